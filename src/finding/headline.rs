//! The headline: the one effect that is tested alone.
//!
//! Invariant: over all levels it is the geometric mean over the *planned* levels; one that is refused or void refuses it.

use std::collections::BTreeSet;

use crate::comparison::{Comparison, FEWEST_BLOCKS, LOST_SHARE, Reason, Standing};
use crate::metric::Metric;
use crate::question::{Headline, Over, Question};
use crate::stats;
use crate::validity::Severity;

use super::verdict::margin;
use super::{ALPHA, Checked, ConditionFinding, Effect, Outcome, Verdict, effect, sides};

/// The headline and what may be said about it.
#[derive(Debug, Clone, PartialEq)]
pub struct HeadlineFinding {
    /// By which metric.
    pub metric: Metric,
    /// Which arm.
    pub treatment: String,
    /// Over which levels.
    pub over: Over,
    /// The effect; `None` when a level of it is refused or void.
    pub effect: Option<Effect>,
    /// What may be said.
    pub verdict: Verdict,
    /// Names of the rules and facts that refuse it.
    pub reasons: Vec<String>,
}

impl HeadlineFinding {
    /// `floor_over_all` is the standard deviation of the null control's mean log ratio over all levels.
    pub(super) fn of(
        question: &Question,
        asked: &Headline,
        checked: &[Checked],
        found: &[ConditionFinding],
        floor_over_all: Option<f64>,
    ) -> Self {
        let over = |level| match &asked.over {
            Over::All => true,
            Over::At(wanted) => wanted == level,
        };
        let chosen: Vec<(&Checked, &ConditionFinding)> =
            checked.iter().zip(found).filter(|(_, found)| over(&found.condition.level)).collect();
        let mut made = Self {
            metric: asked.metric,
            treatment: asked.treatment.clone(),
            over: asked.over.clone(),
            effect: None,
            verdict: Verdict::Refused,
            reasons: Vec::new(),
        };
        let worst = chosen.iter().map(|(_, found)| found.outcome).min().unwrap_or(Outcome::Refused);
        let comparisons: Option<Vec<&Comparison>> = chosen.iter().map(|(checked, _)| checked.as_ref().ok()).collect();
        let Some(comparisons) = comparisons.filter(|comparisons| !comparisons.is_empty()) else {
            let refused = chosen.iter().filter(|(checked, _)| checked.is_err());
            let names: BTreeSet<&str> = refused
                .flat_map(|(_, found)| &found.reasons)
                .filter(|reason| refuses(reason))
                .map(|reason| reason.name.as_str())
                .collect();
            made.reasons = names.into_iter().map(str::to_owned).collect();
            return made;
        };
        let floor = chosen.iter().filter_map(|(_, found)| found.floor).reduce(f64::max);
        let delta = margin(question, floor);
        let (effect, raw) = match (&asked.over, comparisons.as_slice()) {
            (Over::At(_), [one]) => alone(one, delta),
            _ => over_all(&comparisons, delta),
        };
        made.effect = effect.filter(|_| worst != Outcome::Foreign);
        let against = |rule: &&str| chosen.iter().any(|(_, found)| found.has(rule));
        let below_floor = matches!(raw, Verdict::Higher | Verdict::Lower)
            && asked.over == Over::All
            && !question.is_null_control(&asked.treatment)
            && made.effect.as_ref().is_some_and(|effect| is_below(effect, floor_over_all));
        let rules: &[&str] = match asked.over {
            Over::All => &["S08", "S35", "S46"],
            Over::At(_) => &["S05", "S35", "S46"],
        };
        let mut standing: Vec<String> =
            rules.iter().filter(|rule| against(rule)).map(|rule| (*rule).to_owned()).collect();
        if below_floor {
            standing.insert(0, "S05".to_owned());
        }
        made.verdict = match worst {
            Outcome::Foreign => Verdict::Refused,
            _ if raw != Verdict::Inconclusive && raw != Verdict::Exploratory && !standing.is_empty() => {
                Verdict::Refused
            }
            _ => raw,
        };
        made.reasons = standing;
        made
    }
}

/// Returns whether a reason takes the number away; S01 only says that facts beside it do.
fn refuses(reason: &Reason) -> bool {
    matches!(reason.severity, Severity::Block | Severity::Void) && reason.name != "S01"
}

/// One level, tested alone.
fn alone(comparison: &Comparison, delta: f64) -> (Option<Effect>, Verdict) {
    let effect = effect(comparison);
    let [control, treatment] = sides(comparison);
    let verdict = match (&effect, comparison.standing()) {
        (_, Standing::Exploratory) => Verdict::Exploratory,
        (Some(effect), Standing::Verdict) if !comparison.lost_too_many() => {
            let equivalent = stats::equivalence(&control, &treatment, delta, ALPHA).is_ok_and(|tests| tests.equivalent);
            word(effect.ratio, effect.p, equivalent)
        }
        _ => Verdict::Inconclusive,
    };
    (effect, verdict)
}

/// S05 for the geometric mean: the control shows as much against itself.
fn is_below(effect: &Effect, sd: Option<f64>) -> bool {
    let floor = sd.zip(u32::try_from(effect.blocks).ok()).and_then(|(sd, blocks)| stats::noise_floor(sd, blocks).ok());
    floor.is_some_and(|floor| effect.ratio.ln().abs() < floor)
}

/// Returns the standard deviation over blocks of the mean log ratio over all levels; `None` when a level is missing.
pub(super) fn sd_over_all(comparisons: &[&Comparison]) -> Option<f64> {
    let mut sums: Vec<f64> = Vec::new();
    let first = comparisons.first()?;
    for value in first.values() {
        let at_block = |comparison: &&Comparison| {
            let same = comparison.values().iter().find(|other| other.block == value.block)?;
            Some((same.treatment / same.control).ln())
        };
        if let Some(logs) = comparisons.iter().map(at_block).collect::<Option<Vec<f64>>>() {
            sums.push(logs.iter().sum::<f64>() / logs.len() as f64);
        }
    }
    stats::sample_sd(&sums).ok()
}

/// The geometric mean over all levels, over the blocks that have every level.
fn over_all(comparisons: &[&Comparison], delta: f64) -> (Option<Effect>, Verdict) {
    let numbers = |comparison: &Comparison| comparison.values().iter().map(|value| value.block).collect::<Vec<_>>();
    let mut common = comparisons.first().map(|first| numbers(first)).unwrap_or_default();
    common.retain(|block| comparisons.iter().all(|comparison| numbers(comparison).contains(block)));
    let levels: Vec<[Vec<f64>; 2]> = comparisons
        .iter()
        .map(|comparison| {
            let kept = || comparison.values().iter().filter(|value| common.contains(&value.block));
            [kept().map(|value| value.control).collect(), kept().map(|value| value.treatment).collect()]
        })
        .collect();
    let sides: Vec<(&[f64], &[f64])> =
        levels.iter().map(|[control, treatment]| (control.as_slice(), treatment.as_slice())).collect();
    let planned = comparisons.iter().map(|comparison| comparison.planned()).max().unwrap_or(0);
    let foreign = comparisons.iter().any(|comparison| comparison.standing() == Standing::Foreign);
    let Some(log) = stats::geometric_mean_over_levels(&sides, stats::CONFIDENCE).ok().filter(|_| !foreign) else {
        return (ratio_alone(&sides, common.len()), Verdict::Exploratory);
    };
    let effect = Effect {
        ratio: log.ratio,
        interval: Some((log.low, log.high)),
        blocks: log.blocks,
        p: Some(log.p),
        p_holm: None,
        skewed: None,
    };
    if common.len() < FEWEST_BLOCKS {
        return (Some(effect), Verdict::Exploratory);
    }
    if (planned - common.len()) as f64 > LOST_SHARE * planned as f64 {
        return (Some(effect), Verdict::Inconclusive);
    }
    // Two one-sided tests at 5 % are an interval of 90 % inside the margin.
    let equivalent = stats::geometric_mean_over_levels(&sides, 1.0 - 2.0 * ALPHA)
        .is_ok_and(|inner| inner.low > 1.0 / (1.0 + delta) && inner.high < 1.0 + delta);
    let verdict = word(effect.ratio, effect.p, equivalent);
    (Some(effect), verdict)
}

/// With one block, or foreign numbers: the geometric mean and nothing else.
fn ratio_alone(sides: &[(&[f64], &[f64])], blocks: usize) -> Option<Effect> {
    let logs: Vec<f64> = sides
        .iter()
        .flat_map(|(control, treatment)| {
            control.iter().zip(*treatment).map(|(control, treatment)| (treatment / control).ln())
        })
        .collect();
    let ratio = stats::mean(&logs).ok()?.exp();
    Some(Effect { ratio, interval: None, blocks, p: None, p_holm: None, skewed: None })
}

fn word(ratio: f64, p: Option<f64>, equivalent: bool) -> Verdict {
    match p {
        Some(p) if p < ALPHA && ratio > 1.0 => Verdict::Higher,
        Some(p) if p < ALPHA => Verdict::Lower,
        _ if equivalent => Verdict::Unchanged,
        _ => Verdict::Inconclusive,
    }
}
