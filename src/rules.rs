//! The table of rules: what each one says, how severe it is, and which function looks for it.
//!
//! Rules that need one run only are in [`crate::validity`]; here are those that need both arms, all blocks of a condition,
//! or the whole curve. Adding one is one row and one function. Invariant: a threshold stands in this module or in
//! `validity`, once, with its reason; changing one raises [`VERSION`], so that an old verdict names the rules that gave it.
//! Source: the list of rules S01 to S45 of the method.

mod condition;
mod curve;
mod pair;
mod run;
pub mod sources;

use crate::metric::Metric;
use crate::question::Level;
use crate::record::{Record, Written};
use crate::row::Row;
use crate::validity::Severity;

pub use condition::{duplicates, not_warm};
pub use curve::{Curve, CurvePoint, floor_reason, unproven_reason};

/// The version of all thresholds together.
pub const VERSION: u32 = 1;

/// What a rule found: one message with its remedy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// How severe it is here; some rules warn first and block later.
    pub severity: Severity,
    /// What was found and what was expected.
    pub message: String,
    /// What to do.
    pub help: String,
}

impl Fault {
    /// Makes a fault.
    pub fn new(severity: Severity, message: impl Into<String>, help: impl Into<String>) -> Self {
        Self { severity, message: message.into(), help: help.into() }
    }
}

/// Two runs that should differ in the factor alone: the same block, level and pass.
#[derive(Debug, Clone, Copy)]
pub struct Pair<'a> {
    /// The metric they are compared by.
    pub metric: Metric,
    /// The control's run.
    pub control: &'a Record,
    /// The treatment's run.
    pub treatment: &'a Record,
}

/// The valid runs of one condition, block by block in block order.
#[derive(Debug, Clone)]
pub struct Evidence<'a> {
    /// The metric they are compared by.
    pub metric: Metric,
    /// Block number, the control's runs, the treatment's runs.
    pub blocks: Vec<(u32, Vec<&'a Record>, Vec<&'a Record>)>,
}

/// Which function looks for it, and at what.
#[derive(Debug, Clone, Copy)]
pub enum Test {
    /// One run, where [`crate::validity`] does not look.
    Run(fn(&Record) -> Option<Fault>),
    /// Two runs of one block.
    Pair(fn(&Pair) -> Option<Fault>),
    /// All blocks of one condition.
    Condition(fn(&Evidence) -> Option<Fault>),
    /// One metric and treatment over all levels; a fault belongs to a level.
    Curve(fn(&Curve) -> Vec<(Level, Fault)>),
    /// Somewhere else, which this names.
    In(&'static str),
}

/// One row of the table.
#[derive(Debug, Clone, Copy)]
pub struct Rule {
    /// Its id.
    pub id: &'static str,
    /// Its severity where it is strongest.
    pub severity: Severity,
    /// What it says.
    pub says: &'static str,
    /// Its thresholds and why they are what they are.
    pub threshold: &'static str,
    /// Which function looks for it.
    pub test: Test,
}

const fn rule(id: &'static str, severity: Severity, says: &'static str, threshold: &'static str, test: Test) -> Rule {
    Rule { id, severity, says, threshold, test }
}

use Severity::{Block, Claim, Void, Warn};
use Test::In;

const CHECK: Test = In("comparison");
const RUN: Test = In("validity");
const FINDING: Test = In("finding");

/// Every rule that is evaluated.
pub const RULES: &[Rule] = &[
    rule("S01", Block, "undeclared difference between the arms", "tolerances stand in the table of facts", CHECK),
    rule("S02", Warn, "stale control", "24 h: a day is when machines are updated", Test::Pair(pair::stale)),
    rule("S03", Block, "a planned run is missing and nothing explains it", "none: every planned run counts", CHECK),
    rule("S04", Claim, "fewer than three blocks", "3: below it the t interval is wider than most effects", CHECK),
    rule("S05", Claim, "the effect is below the noise floor", "the 97.5 % t quantile of the null control", FINDING),
    rule(
        "S06",
        Warn,
        "the curve bends upwards",
        "slope +0.10: twice what clean curves show",
        Test::Curve(curve::bends_up),
    ),
    rule("S07", Warn, "one point stands out", "4 standard deviations of a difference", Test::Curve(curve::stands_out)),
    rule("S08", Claim, "the sign flips between neighbours", "5 %: above usual noise", Test::Curve(curve::flips)),
    rule(
        "S09",
        Warn,
        "a near-simple ratio",
        "1.5 % around 2, 3, 4, 8 and their inverses",
        Test::Curve(curve::simple_ratio),
    ),
    rule(
        "S10",
        Warn,
        "mean and peak disagree",
        "15 points: the peak is one second",
        Test::Condition(condition::peak_and_mean),
    ),
    rule("S11", Void, "impossible order of statistics", "none", RUN),
    rule("S12", Void, "identities do not hold", "2 %: rounding and ramps", RUN),
    rule("S13", Block, "the metric has another definition", "none", Test::Pair(pair::other_definition)),
    rule("S14", Block, "failed requests", "1 %, or 0.5 points between arms", Test::Pair(pair::failures_differ)),
    rule("S15", Block, "outputs too short or too long", "1 %", Test::Pair(pair::outputs_differ)),
    rule(
        "S16",
        Block,
        "inputs drift",
        "2 % against the plan; lengths equal between arms",
        Test::Pair(pair::lengths_differ),
    ),
    rule("S17", Warn, "load not reached", "0.8 of what was asked", RUN),
    rule(
        "S18",
        Block,
        "too short, or prompts per user differ",
        "30 s, 5 prompts a user",
        Test::Pair(pair::prompts_per_user),
    ),
    rule("S19", Void, "not warm", "10 % from the later passes, 2 % a pass", In("rules::not_warm")),
    rule(
        "S20",
        Block,
        "cache hits in an uncached design",
        "1 %, or 1 point between arms",
        Test::Pair(pair::cache_hits_differ),
    ),
    rule("S22", Void, "physically impossible", "the peak of the GPUs used", Test::Run(run::impossible)),
    rule(
        "S23",
        Block,
        "clocks differ",
        "2 % of the SM clock; 1 % of the window under heat",
        Test::Pair(pair::clocks_differ),
    ),
    rule("S24", Void, "not alone on the GPU", "500 MiB idle: the driver's own contexts", Test::Run(run::not_alone)),
    rule("S25", Block, "capacity differs", "1 %: launches differ by less", CHECK),
    rule("S26", Block, "graph coverage", "10 % padding", Test::Run(run::graph_coverage)),
    rule("S27", Warn, "tuned state differs", "none", Test::Pair(pair::tuning_differs)),
    rule("S28", Block, "speculation accepts another share", "3 %", Test::Pair(pair::acceptance_differs)),
    rule("S28", Warn, "the text loops", "2 % distinct words: prose has ten times that", Test::Run(run::looping_text)),
    rule("S29", Block, "the treatment was not active", "none", CHECK),
    rule("S30", Warn, "order", "correlation 0.7; medians 2 h apart", Test::Condition(condition::not_interleaved)),
    rule("S31", Warn, "too equal", "4 digits: noise alone is larger", Test::Pair(pair::too_equal)),
    rule("S31", Warn, "equal here and far apart at the next level", "1 % then 25 %", Test::Curve(curve::discontinuity)),
    rule("S32", Void, "the same result twice", "none", In("rules::duplicates")),
    rule("S35", Claim, "too good", "+50 %, -30 %: rarer than a mistake", Test::Curve(curve::too_good)),
    rule("S36", Block, "the client moved", "none", CHECK),
    rule("S37", Warn, "clocks of the hosts disagree", "0.5 s", Test::Run(run::clock_offset)),
    rule(
        "S38",
        Warn,
        "the first request was slow",
        "5 x the median of the next ten",
        Test::Run(run::slow_first_request),
    ),
    rule("S39", Block, "absent is not zero", "none", Test::Pair(pair::metric_absent)),
    rule(
        "S41",
        Warn,
        "two sources disagree",
        "other direction, or intervals apart",
        Test::Condition(sources::disagree),
    ),
    rule("S45", Claim, "nothing proves that the treatment did anything", "none", FINDING),
    rule("S46", Claim, "a percentile of too few requests", "ln 0.025 / ln q: below it, it is the maximum", FINDING),
];

/// Returns what a rule says; `None` for an id that is not in the table.
pub fn says(id: &str) -> Option<&'static str> {
    RULES.iter().find(|rule| rule.id == id).map(|rule| rule.says)
}

/// Returns what the rules about one run find that are not in [`crate::validity`].
pub fn judge_run(record: &Record) -> Vec<(&'static str, Fault)> {
    let tests = RULES.iter().filter_map(|rule| match rule.test {
        Test::Run(test) => Some((rule.id, test)),
        _ => None,
    });
    tests.filter_map(|(id, test)| test(record).map(|fault| (id, fault))).collect()
}

/// Returns what the rules about two runs find.
pub fn judge_pair(pair: &Pair) -> Vec<(&'static str, Fault)> {
    let tests = RULES.iter().filter_map(|rule| match rule.test {
        Test::Pair(test) => Some((rule.id, test)),
        _ => None,
    });
    tests.filter_map(|(id, test)| test(pair).map(|fault| (id, fault))).collect()
}

/// Returns what the rules about all blocks of a condition find.
pub fn judge_condition(evidence: &Evidence) -> Vec<(&'static str, Fault)> {
    let tests = RULES.iter().filter_map(|rule| match rule.test {
        Test::Condition(test) => Some((rule.id, test)),
        _ => None,
    });
    tests.filter_map(|(id, test)| test(evidence).map(|fault| (id, fault))).collect()
}

/// Returns what the rules about a curve find, with the level each fault belongs to.
pub fn judge_curve(curve: &Curve) -> Vec<(&'static str, Level, Fault)> {
    let tests = RULES.iter().filter_map(|rule| match rule.test {
        Test::Curve(test) => Some((rule.id, test)),
        _ => None,
    });
    tests.flat_map(|(id, test)| test(curve).into_iter().map(move |(level, fault)| (id, level, fault))).collect()
}

/// Returns the client's row of a run that left one.
pub(crate) fn row(record: &Record) -> Option<&Row> {
    match &record.written {
        Written::Row(row) => Some(row),
        _ => None,
    }
}

/// Returns the value of a metric in a run; `None` is absent, never 0.
pub fn value(record: &Record, metric: Metric) -> Option<f64> {
    let value = match (&record.written, metric) {
        (_, Metric::DecodeRate) => record.decode_rate,
        (Written::Row(row), _) => row.metrics.get(&metric).copied(),
        (Written::Values(values), _) => values.get(&metric).copied(),
        _ => None,
    };
    value.filter(|value| value.is_finite())
}

/// Returns the number that a fact states.
pub(crate) fn number(record: &Record, key: &str) -> Option<f64> {
    record.facts.get(key).and_then(crate::fact::FactValue::number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_id_says_something_and_none_is_unknown_by_accident() {
        assert_eq!(says(""), None);
        assert_eq!(says("S03"), Some("a planned run is missing and nothing explains it"));
        assert!(RULES.iter().all(|rule| !rule.says.is_empty() && !rule.threshold.is_empty() && rule.id.len() == 3));
    }
}
