//! A comparison: two arms' runs at one condition that passed the check; its opposite is a refusal with reasons.
//!
//! Invariant: [`Comparison::check`] is the only constructor, and an effect can only be computed from a [`Comparison`], so
//! that a number from a confounded comparison has no way onto a page. Refusing is symmetric in the arms, the order of the
//! records does not matter, and all reasons are given at once.
//!
//! A comparison cannot be forged:
//!
//! ```compile_fail,E0451
//! use labbook::comparison::{Comparison, Condition, Context, Standing};
//! use labbook::metric::Metric;
//! use labbook::question::Level;
//!
//! let condition = Condition { metric: Metric::OutputThroughput, treatment: "new".into(), level: Level("64".into()) };
//! let forged = Comparison {
//!     condition,
//!     control: "old".into(),
//!     standing: Standing::Verdict,
//!     values: vec![],
//!     planned: 5,
//!     reasons: vec![],
//!     context: Context::default(),
//! };
//! ```

pub mod applied;
mod blocks;
pub mod facts;
#[cfg(test)]
pub(crate) mod fixture;

use std::collections::{BTreeMap, BTreeSet};

use crate::digest::Digest;
use crate::fact::table::row_of;
use crate::fact::{FactValue, Fingerprint};
use crate::metric::Metric;
use crate::question::{Level, Question};
use crate::record::{Outcome, Record, Tier, Written};
use crate::rules::{self, Evidence, Fault, Pair};
use crate::validity::{self, Severity};

use applied::Proof;
use blocks::Block;
use facts::{Difference, Kind};

/// Fewest blocks that carry a verdict.
pub const FEWEST_BLOCKS: usize = 3;
/// Largest share of the planned blocks that may be lost before nothing can be concluded.
pub const LOST_SHARE: f64 = 0.20;

/// Where two arms are compared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition {
    /// By which metric.
    pub metric: Metric,
    /// Which arm, against the control.
    pub treatment: String,
    /// At which level.
    pub level: Level,
}

/// Why a comparison is refused, void, or to be read with care.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reason {
    /// A fact's key, a rule's id, or `run.result` and `run.outcome` for runs that left nothing.
    pub name: String,
    /// How severe it is.
    pub severity: Severity,
    /// Blocks it was seen in, rising; empty when it is about no block in particular.
    pub blocks: Vec<u32>,
    /// What was found and what was expected.
    pub message: String,
    /// What to do.
    pub help: String,
}

/// Why there is no comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    /// The arms differ in more than the factor, or something planned is missing.
    Confounded,
    /// Nothing is wrong between the arms, but no complete block of valid runs is left.
    Void,
}

/// Why two arms cannot be compared at a condition: a result, not an error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// Where.
    pub condition: Condition,
    /// What kind of refusal.
    pub refused: Refused,
    /// All reasons at once, the most severe first. Never empty.
    pub reasons: Vec<Reason>,
    /// Consequences of the factor and facts that nobody observed, as for a comparison.
    pub context: Context,
}

/// What a comparison carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// A verdict.
    Verdict,
    /// An observation: too few blocks.
    Exploratory,
    /// Numbers of unknown origin: nothing can be concluded from them.
    Foreign,
}

/// One block's values.
#[derive(Debug, Clone, PartialEq)]
pub struct BlockValue {
    /// Its number; `None` where an import does not say.
    pub block: Option<u32>,
    /// Mean over the control's passes.
    pub control: f64,
    /// Mean over the treatment's passes.
    pub treatment: f64,
    /// Ids of the runs they come from, the control's first.
    pub runs: Vec<Digest>,
    /// Requests of one run that succeeded, the fewest.
    pub fewest_requests: Option<u64>,
}

/// What a page shows beside the number.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Context {
    /// Facts on which all runs of both arms agree.
    pub shared: Fingerprint,
    /// Differences that follow from the factor, once a key, in key order.
    pub consequences: Vec<Difference>,
    /// Facts that must agree where they are known, and that neither arm observed.
    pub unobserved: Vec<String>,
    /// Facts that agree in each block and differ between blocks: another day, boot or driver. A paired ratio bears that; a reader
    /// has to know.
    pub between_blocks: Vec<String>,
}

/// Two arms' runs at one condition, paired by block, that passed the check.
#[derive(Debug, Clone, PartialEq)]
pub struct Comparison {
    condition: Condition,
    control: String,
    standing: Standing,
    values: Vec<BlockValue>,
    planned: usize,
    reasons: Vec<Reason>,
    context: Context,
    confirmed: bool,
}

impl Comparison {
    /// Checks whether the treatment and the control of `question` can be compared at `condition`.
    ///
    /// `records` may hold runs of other arms, levels, editions and experiments, in any order: runs that share no block
    /// cannot be paired, and that refuses. Looks are never used.
    ///
    /// # Errors
    ///
    /// Every reason against it, with its blocks and its remedy.
    pub fn check(question: &Question, records: &[Record], condition: &Condition) -> Result<Self, Box<Refusal>> {
        let mut check = Check { question, condition, reasons: Reasons::default(), context: Context::default() };
        let blocks = blocks::select(question, records, condition, &mut check.reasons);
        let duplicates: BTreeSet<Digest> = rules::duplicates(records).into_iter().collect();
        let mut evidence = Evidence { metric: condition.metric, blocks: Vec::new() };
        let mut values = Vec::new();
        let mut shared: Option<Fingerprint> = None;
        let mut foreign = false;
        for block in &blocks {
            foreign |= block.runs().any(|run| run.tier == Tier::Foreign);
            check.pairs(block, &mut shared);
            check.between(blocks.first(), block);
            let left = check.valid(block, &duplicates);
            if let Some(value) = check.value(block, &left) {
                values.push(value);
                evidence.blocks.push((block.number().unwrap_or(0), left[0].clone(), left[1].clone()));
            }
        }
        check.context.shared = shared.unwrap_or_default();
        for (name, fault) in rules::judge_condition(&evidence) {
            check.reasons.add(name, fault.severity, None, fault.message, fault.help);
        }
        let confirmed = rules::sources::confirmed(&evidence);
        check.finish(values, blocks::planned(question, &blocks), foreign).map(|made| Self { confirmed, ..made })
    }

    /// Returns whether the server's own log confirms the effect that the metric shows.
    pub fn confirmed(&self) -> bool {
        self.confirmed
    }

    /// Returns where it stands.
    pub fn condition(&self) -> &Condition {
        &self.condition
    }

    /// Returns the control's name.
    pub fn control(&self) -> &str {
        &self.control
    }

    /// Returns what may be concluded.
    pub fn standing(&self) -> Standing {
        self.standing
    }

    /// Returns the values, one entry a block, in block order. Never empty.
    pub fn values(&self) -> &[BlockValue] {
        &self.values
    }

    /// Returns how many blocks were planned, at least as many as there are values.
    pub fn planned(&self) -> usize {
        self.planned
    }

    /// Returns whether so many blocks were lost that nothing can be concluded.
    pub fn lost_too_many(&self) -> bool {
        (self.planned - self.values.len()) as f64 > LOST_SHARE * self.planned as f64
    }

    /// Returns what is to be shown beside the number, the most severe first. None of them blocks.
    pub fn reasons(&self) -> &[Reason] {
        &self.reasons
    }

    /// Returns shared facts, consequences and facts that nobody observed.
    pub fn context(&self) -> &Context {
        &self.context
    }
}

struct Check<'a> {
    question: &'a Question,
    condition: &'a Condition,
    reasons: Reasons,
    context: Context,
}

impl<'a> Check<'a> {
    /// Compares the two arms of a block pass by pass.
    fn pairs(&mut self, block: &Block<'a>, shared: &mut Option<Fingerprint>) {
        for (control, treatment) in block.pairs() {
            for difference in facts::compare(self.question, control, treatment) {
                self.difference(block.number(), &control.arm, &treatment.arm, difference);
            }
            let pair = Pair { metric: self.condition.metric, control, treatment };
            for (name, fault) in rules::judge_pair(&pair) {
                self.reasons.add(name, fault.severity, block.number(), fault.message, fault.help);
            }
            for run in [control, treatment] {
                self.level(block.number(), run);
                match shared {
                    None => *shared = Some(run.facts.clone()),
                    Some(shared) => shared.keep_equal(&run.facts),
                }
            }
        }
    }

    /// Notes what the control of a block does not share with that of the first block.
    fn between(&mut self, first: Option<&Block<'a>>, block: &Block<'a>) {
        let pairs = first.into_iter().flat_map(Block::pairs).zip(block.pairs());
        for ((one, _), (other, _)) in pairs.filter(|((one, _), (other, _))| one.pass == other.pass) {
            for key in facts::moved(one, other) {
                if !self.context.between_blocks.contains(&key) {
                    self.context.between_blocks.push(key);
                }
            }
        }
    }

    /// A run was measured at the level that it stands for.
    fn level(&mut self, block: Option<u32>, run: &Record) {
        let key = format!("workload.{}", self.question.axis.name());
        let Some(found) = run.facts.get(&key) else { return };
        if !found.same(&FactValue::text(&*run.level.0)) {
            let message = format!("`{}`: {}, but the run stands for {}", run.arm, short(&found.to_string()), run.level);
            let help = "give the run its own level, or measure this one".to_owned();
            self.reasons.add(&key, Severity::Block, block, message, help);
        }
    }

    fn difference(&mut self, block: Option<u32>, control: &str, treatment: &str, difference: Difference) {
        match difference.kind {
            Kind::Consequence(_) => {
                if !self.context.consequences.iter().any(|known| known.key == difference.key) {
                    self.context.consequences.push(difference);
                }
            }
            Kind::Unobserved => {
                if !self.context.unobserved.contains(&difference.key) {
                    self.context.unobserved.push(difference.key);
                }
            }
            Kind::DrawnSeed => self.reasons.add(
                &difference.key,
                Severity::Warn,
                block,
                "each server drew its own random seed".to_owned(),
                "set `random-seed` under `server.args`, so that sampling does not differ".to_owned(),
            ),
            _ => {
                let (message, help) = explain(control, treatment, &difference);
                for rule in rules_beside(&difference) {
                    let said = rules::says(rule).unwrap_or_default();
                    let message = format!("{said}: `{}`", difference.key);
                    self.reasons.add(rule, Severity::Block, block, message, help.clone());
                }
                self.reasons.add(&difference.key, Severity::Block, block, message, help);
            }
        }
    }

    /// Returns the runs of a block that are left for the control and for the treatment, and notes why others left.
    fn valid(&mut self, block: &Block<'a>, duplicates: &BTreeSet<Digest>) -> [Vec<&'a Record>; 2] {
        [block.control(), block.treatment()].map(|runs| {
            let cold = self.not_warm(block, runs);
            runs.iter().copied().filter(|run| self.judge(block, run, duplicates) && !cold.contains(&run.pass)).collect()
        })
    }

    fn not_warm(&mut self, block: &Block<'a>, runs: &[&'a Record]) -> Vec<u32> {
        let rate = |run: &&&Record| matches!(run.outcome, Outcome::Finished);
        let value = |run: &Record| {
            rules::value(run, Metric::OutputThroughput).or_else(|| rules::value(run, self.condition.metric))
        };
        let passes: Vec<(u32, f64)> =
            runs.iter().filter(rate).filter_map(|run| value(run).map(|value| (run.pass, value))).collect();
        let found = rules::not_warm(&passes);
        for (_, fault) in &found {
            let arm = runs.first().map_or("", |run| run.arm.as_str());
            let message = format!("`{arm}`: {}", fault.message);
            self.reasons.add("S19", fault.severity, block.number(), message, fault.help.clone());
        }
        found.into_iter().map(|(pass, _)| pass).collect()
    }

    /// Returns whether a run stays, and notes everything that is wrong with it.
    fn judge(&mut self, block: &Block<'a>, run: &Record, duplicates: &BTreeSet<Digest>) -> bool {
        let number = block.number();
        let lost = match &run.outcome {
            Outcome::Finished => None,
            Outcome::Failed(why) => Some(("failed", why)),
            Outcome::Superseded(why) => Some(("was superseded", why)),
            Outcome::Excluded(why) => Some(("was excluded", why)),
        };
        if let Some((what, why)) = lost {
            let message = format!("a run of `{}` {what}: {why}", run.arm);
            self.reasons.add(
                "run.outcome",
                Severity::Void,
                number,
                message,
                "redo the block: `labbook run`".to_owned(),
            );
            return false;
        }
        let mut stays = true;
        if duplicates.contains(&run.id) {
            stays = false;
            let message = format!("the result file of `{}` stands for two runs, byte for byte", run.arm);
            self.reasons.add("S32", Severity::Void, number, message, "find out which run it belongs to".to_owned());
        }
        let about_us = |fired: &validity::Fired| fired.metric.is_none_or(|metric| metric == self.condition.metric);
        let own = validity::judge(run).into_iter().filter(about_us);
        let own = own.map(|fired| (fired.rule, Fault::new(fired.severity, fired.message, fired.help)));
        for (rule, fault) in own.chain(rules::judge_run(run)) {
            stays &= fault.severity != Severity::Void;
            let message = format!("`{}`: {}", run.arm, fault.message);
            self.reasons.add(rule, fault.severity, number, message, fault.help);
        }
        if let Some(nothing) = left_nothing(&run.written).filter(|_| stays) {
            stays = false;
            let message = format!("a run of `{}` {nothing}", run.arm);
            self.reasons.add("run.result", Severity::Void, number, message, "redo the block: `labbook run`".to_owned());
        }
        stays
    }

    fn value(&self, block: &Block, left: &[Vec<&Record>; 2]) -> Option<BlockValue> {
        let [control, treatment] = left.each_ref().map(|runs| {
            let values: Vec<f64> = runs.iter().filter_map(|run| rules::value(run, self.condition.metric)).collect();
            (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
        });
        let requests = |run: &&&Record| rules::row(run).and_then(|row| row.completed);
        Some(BlockValue {
            block: block.number(),
            control: control?,
            treatment: treatment?,
            runs: left.iter().flatten().map(|run| run.id).collect(),
            fewest_requests: left.iter().flatten().filter_map(|run| requests(&run)).min(),
        })
    }

    fn finish(mut self, values: Vec<BlockValue>, planned: usize, foreign: bool) -> Result<Comparison, Box<Refusal>> {
        if values.is_empty() && self.reasons.is_empty() {
            // Nothing was found because nothing was there to be looked at.
            self.reasons.add("S03", Severity::Block, None, "no runs".to_owned(), "run the experiment".to_owned());
        }
        let blocked = self.reasons.any(Severity::Block);
        if blocked || values.is_empty() {
            return Err(Box::new(Refusal {
                condition: self.condition.clone(),
                refused: if blocked { Refused::Confounded } else { Refused::Void },
                reasons: self.reasons.sorted(),
                context: self.context,
            }));
        }
        let few = values.len() < FEWEST_BLOCKS;
        if few {
            let message = format!("{} of at least {FEWEST_BLOCKS} blocks: an observation, not a claim", values.len());
            let help = format!("set `repeats: 5`, or at least {FEWEST_BLOCKS}");
            self.reasons.add("S04", Severity::Claim, None, message, help);
        }
        let standing = match (foreign, few) {
            (true, _) => Standing::Foreign,
            (false, true) => Standing::Exploratory,
            (false, false) => Standing::Verdict,
        };
        Ok(Comparison {
            condition: self.condition.clone(),
            control: self.question.control.clone(),
            standing,
            planned: planned.max(values.len()),
            values,
            reasons: self.reasons.sorted(),
            context: self.context,
            confirmed: false,
        })
    }
}

fn left_nothing(written: &Written) -> Option<String> {
    match written {
        Written::Row(_) | Written::Values(_) => None,
        Written::Nothing => Some("left no result".to_owned()),
        Written::Unreadable(why) => Some(format!("left a result that cannot be read: {why}")),
        Written::Several(rows) => Some(format!("left {rows} rows where one run writes one")),
    }
}

/// Returns the rules that say the same as a fact.
fn rules_beside(difference: &Difference) -> Vec<&'static str> {
    let key = difference.key.as_str();
    match &difference.kind {
        Kind::NotApplied(..) | Kind::SameInBoth | Kind::Evidence(_) => vec!["S29"],
        Kind::Undeclared if key.starts_with("server.capacity.") => vec!["S01", "S25"],
        Kind::Undeclared if key.starts_with("client.") => vec!["S01", "S36"],
        Kind::Undeclared => vec!["S01"],
        _ => Vec::new(),
    }
}

fn explain(control: &str, treatment: &str, difference: &Difference) -> (String, String) {
    let shown = |value: &Option<FactValue>| {
        value.as_ref().map_or("(not observed)".to_owned(), |value| short(&value.to_string()))
    };
    let both = format!("`{control}`: {}, `{treatment}`: {}", shown(&difference.control), shown(&difference.treatment));
    let row = row_of(&difference.key);
    let observe = row.map_or(String::new(), |row| format!("observe it by {}", row.observe));
    match &difference.kind {
        Kind::Unknown if difference.control.is_none() && difference.treatment.is_none() => {
            ("observed in neither arm; unknown is not equal".to_owned(), observe)
        }
        Kind::Unknown => (format!("{both}; unknown is not equal"), observe),
        Kind::NotApplied(arm, wanted) => (
            format!("{both}; `{arm}` asked for {wanted}: the treatment was not applied"),
            "look for a typo in the key, and at what the server's process really got".to_owned(),
        ),
        Kind::SameInBoth => (
            format!("{both}; the arms asked for different values: the treatment was not applied"),
            "look for a typo in the key, and at what the server's process really got".to_owned(),
        ),
        Kind::Evidence(Proof::Unknown) => (format!("{both}; nobody looked for the evidence"), observe),
        Kind::Evidence(_) => (
            format!("{both}; the evidence is to be present in the treatment and absent in the control"),
            "look whether the server knows the setting, and whether the pattern under `evidence` is right".to_owned(),
        ),
        Kind::NotAllowed(value) => (
            format!("{both}; expected `{value}` in both"),
            row.map_or(String::new(), |row| format!("redo the block; {}", row.why)),
        ),
        _ => {
            let help = if difference.key.starts_with("server.resolved.")
                || difference.key.starts_with("server.capacity.")
            {
                "if it differs because the factor does, list it under `entails`; otherwise redo the block".to_owned()
            } else {
                "make it part of the factor, or redo the block with the same value in both arms".to_owned()
            };
            (both, help)
        }
    }
}

/// Cuts a value that would fill the page.
fn short(text: &str) -> String {
    const MOST: usize = 60;
    if text.chars().count() <= MOST { text.to_owned() } else { text.chars().take(MOST - 1).chain(['…']).collect() }
}

/// Reasons, merged by name and severity.
#[derive(Debug, Default)]
pub(crate) struct Reasons(BTreeMap<(Severity, String), Merged>);

#[derive(Debug)]
struct Merged {
    blocks: BTreeSet<u32>,
    /// Each message with the first block it was seen in.
    messages: BTreeSet<(Option<u32>, String)>,
    help: String,
}

impl Reasons {
    fn add(&mut self, name: &str, severity: Severity, block: Option<u32>, message: String, help: String) {
        let merged = self.0.entry((severity, name.to_owned())).or_insert_with(|| Merged {
            blocks: BTreeSet::new(),
            messages: BTreeSet::new(),
            help: help.clone(),
        });
        merged.blocks.extend(block);
        // The one that sorts first, so that the order of the records does not matter.
        merged.help = merged.help.clone().min(help);
        if !merged.messages.iter().any(|(_, known)| *known == message) {
            merged.messages.insert((block, message));
        }
    }

    fn any(&self, severity: Severity) -> bool {
        self.0.keys().any(|(found, _)| *found == severity)
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn sorted(self) -> Vec<Reason> {
        let made = self.0.into_iter().map(|((severity, name), merged)| {
            let mut messages = merged.messages.into_iter();
            let mut message = messages.next().map(|(_, message)| message).unwrap_or_default();
            if messages.len() > 0 {
                message = format!("{message} (and {} more like it)", messages.len());
            }
            Reason { name, severity, blocks: merged.blocks.into_iter().collect(), message, help: merged.help }
        });
        made.collect()
    }
}

#[cfg(test)]
mod tests;
