//! Which runs belong together: blocks, attempts, arms and passes, and what is missing.
//!
//! Invariant: of several attempts at a block the last one counts, whatever came out of it, so that nobody can choose.

use std::collections::{BTreeMap, BTreeSet};

use crate::question::{Level, Question};
use crate::record::{Outcome, Record, Tier};
use crate::validity::Severity;

use super::{Condition, Reasons};

/// What two runs must share to be paired.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct BlockKey {
    experiment: String,
    edition: Option<String>,
    /// Its number; `None` where an import does not say.
    pub(super) block: Option<u32>,
}

/// The runs of two arms at one level in one block, sorted by pass.
#[derive(Debug)]
pub(super) struct Block<'a> {
    key: BlockKey,
    control: Vec<&'a Record>,
    treatment: Vec<&'a Record>,
}

impl<'a> Block<'a> {
    pub(super) fn number(&self) -> Option<u32> {
        self.key.block
    }

    pub(super) fn control(&self) -> &[&'a Record] {
        &self.control
    }

    pub(super) fn treatment(&self) -> &[&'a Record] {
        &self.treatment
    }

    pub(super) fn runs(&self) -> impl Iterator<Item = &'a Record> + '_ {
        self.control.iter().chain(&self.treatment).copied()
    }

    /// Returns the finished runs that belong together, pass by pass. Where two runs stand in one place, each is paired with
    /// each of the other arm, so that exchanging the arms changes nothing.
    pub(super) fn pairs(&self) -> Vec<(&'a Record, &'a Record)> {
        let finished = |run: &&Record| matches!(run.outcome, Outcome::Finished);
        let partners = |control: &'a Record| {
            let of_pass = self.treatment.iter().copied().filter(finished).filter(move |run| run.pass == control.pass);
            of_pass.map(move |treatment| (control, treatment))
        };
        self.control.iter().copied().filter(finished).flat_map(partners).collect()
    }
}

/// Returns how many blocks were planned, at least as many as there are.
pub(super) fn planned(question: &Question, blocks: &[Block]) -> usize {
    blocks.len().max(question.repeats as usize)
}

/// Selects the runs of a condition block by block, in block order, and notes what is missing and not explained.
pub(super) fn select<'a>(
    question: &Question,
    records: &'a [Record],
    condition: &Condition,
    reasons: &mut Reasons,
) -> Vec<Block<'a>> {
    let mut groups: BTreeMap<BlockKey, Vec<&Record>> = BTreeMap::new();
    for record in records.iter().filter(|record| record.tier != Tier::Look) {
        let key =
            BlockKey { experiment: record.experiment.clone(), edition: record.edition.clone(), block: record.block };
        groups.entry(key).or_default().push(record);
    }
    let arms = [question.control.as_str(), condition.treatment.as_str()];
    let mut blocks = Vec::new();
    for (key, records) in groups {
        if let Some(block) = one(question, key, &records, arms, &condition.level, reasons) {
            blocks.push(block);
        }
    }
    missing_blocks(question, &blocks, reasons);
    blocks
}

/// Selects one block; `None` when it has nothing to do with the two arms.
fn one<'a>(
    question: &Question,
    key: BlockKey,
    records: &[&'a Record],
    arms: [&str; 2],
    level: &Level,
    reasons: &mut Reasons,
) -> Option<Block<'a>> {
    if !records.iter().any(|record| arms.contains(&record.arm.as_str())) {
        return None;
    }
    let last = records
        .iter()
        .filter(|record| !matches!(record.outcome, Outcome::Superseded(_)))
        .map(|record| record.attempt)
        .max();
    let chosen: Vec<&Record> = records.iter().copied().filter(|record| Some(record.attempt) == last).collect();
    let [control, treatment] = arms.map(|arm| {
        let mut runs: Vec<&Record> =
            chosen.iter().copied().filter(|record| record.arm == arm && record.level == *level).collect();
        runs.sort_by(|one, two| (one.pass, &one.session, one.id).cmp(&(two.pass, &two.session, two.id)));
        let crashed = chosen.iter().any(|record| record.arm == arm && matches!(record.outcome, Outcome::Failed(_)));
        complete(question, &key, arm, level, &runs, crashed, reasons);
        single(&key, arm, &runs, reasons);
        runs
    });
    Some(Block { key, control, treatment })
}

/// S03: every planned pass has a run, unless the session crashed, which its failed run says.
fn complete(
    question: &Question,
    key: &BlockKey,
    arm: &str,
    level: &Level,
    runs: &[&Record],
    crashed: bool,
    reasons: &mut Reasons,
) {
    let passes: BTreeSet<u32> = runs.iter().map(|run| run.pass).collect();
    let planned = question.passes.max(1) as usize;
    if crashed || passes.len() >= planned {
        return;
    }
    let edition = key.edition.as_ref().map_or(String::new(), |edition| format!(" of edition `{edition}`"));
    let message = format!("{} of {planned} runs of `{arm}` at {level}{edition}", passes.len());
    let help = if key.experiment == question.experiment {
        "run what is missing: `labbook run SPEC`".to_owned()
    } else {
        format!(
            "runs of experiment `{}` share no block with this one: measure both arms in one experiment",
            key.experiment
        )
    };
    reasons.add("S03", Severity::Block, key.block, message, help);
}

/// Two runs in one place: neither can be known to be the one that was meant.
fn single(key: &BlockKey, arm: &str, runs: &[&Record], reasons: &mut Reasons) {
    for two in runs.windows(2).filter(|two| two[0].pass == two[1].pass) {
        let message = format!("two runs of `{arm}` stand for pass {} of one session", two[0].pass);
        let help = "say which one counts: give the later one `attempt: 2`, the earlier one `status: superseded`";
        reasons.add("S32", Severity::Block, key.block, message, help.to_owned());
    }
}

/// S03: each planned block was run.
fn missing_blocks(question: &Question, blocks: &[Block], reasons: &mut Reasons) {
    let seen: BTreeSet<u32> = blocks.iter().filter_map(Block::number).collect();
    if blocks.is_empty() {
        let message = "no runs of either arm".to_owned();
        reasons.add("S03", Severity::Block, None, message, "run the experiment: `labbook run`".to_owned());
        return;
    }
    for block in (1..=question.repeats).filter(|block| !seen.contains(block)) {
        let message = format!("planned block without a run ({} blocks are planned)", question.repeats);
        let help = "run what is missing: `labbook run SPEC`".to_owned();
        reasons.add("S03", Severity::Block, Some(block), message, help);
    }
}
