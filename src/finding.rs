//! Findings: claims, their effects, and what may be said about them.
//!
//! Invariant: an effect comes from a [`Comparison`] and from nothing else; a condition that was refused or is void has no
//! number anywhere; every planned level counts in the family, whether it worked or not. Source: the statistics of the
//! method, section 5.4.

mod headline;
mod json;
mod verdict;

use indexmap::IndexMap;

use crate::comparison::{Comparison, Condition, Context, Reason, Refusal, Refused, Standing};
use crate::metric::{Metric, Statistic};
use crate::question::{Level, Question};
use crate::record::{Record, Tier};
use crate::rules::{self, Curve, CurvePoint};
use crate::stats;
use crate::validity::Severity;

pub use headline::HeadlineFinding;
pub use verdict::{ClaimVerdict, Verdict};

/// Chance of a false claim in a family.
pub const ALPHA: f64 = 0.05;
/// Differences below 1 % do not matter unless the spec says otherwise.
const DEFAULT_MARGIN: f64 = 0.01;

/// How a condition came out, the worst first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outcome {
    /// The arms cannot be compared.
    Refused,
    /// No complete block of valid runs is left.
    Void,
    /// Numbers measured elsewhere.
    Foreign,
    /// Too few blocks for a verdict.
    Exploratory,
    /// A percentage may be shown.
    Comparable,
}

impl Outcome {
    /// Returns the word in JSON and on pages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Refused => "refused",
            Self::Void => "void",
            Self::Foreign => "foreign",
            Self::Exploratory => "exploratory",
            Self::Comparable => "comparable",
        }
    }
}

/// The ratio treatment / control.
#[derive(Debug, Clone, PartialEq)]
pub struct Effect {
    /// Ratio of the means over blocks.
    pub ratio: f64,
    /// Ends of the 95 % interval (Fieller, paired by block); `None` where there is no right to one.
    pub interval: Option<(f64, f64)>,
    /// Number of paired blocks.
    pub blocks: usize,
    /// Two-sided p of a ratio of 1.
    pub p: Option<f64>,
    /// The same, adjusted for the planned levels of this metric and treatment; `None` for a headline, tested alone.
    pub p_holm: Option<f64>,
    /// The interval of the log ratio, where it differs from Fieller's by more than 10 % of the width.
    pub skewed: Option<(f64, f64)>,
}

/// One metric, treatment and level.
#[derive(Debug, Clone, PartialEq)]
pub struct ConditionFinding {
    /// Where.
    pub condition: Condition,
    /// How it came out.
    pub outcome: Outcome,
    /// Reasons, the most severe first.
    pub reasons: Vec<Reason>,
    /// The effect; `None` when refused or void.
    pub effect: Option<Effect>,
    /// What may be said.
    pub verdict: Verdict,
    /// Means over blocks of control and treatment, for context; `None` as for the effect.
    pub means: Option<(f64, f64)>,
    /// Half width, as a log ratio, of what the control shows against itself; `None` where no null control was run.
    pub floor: Option<f64>,
    /// Blocks that were planned.
    pub planned: usize,
    /// Shared facts, consequences, facts that nobody observed.
    pub context: Context,
}

/// One claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimFinding {
    /// What may be said.
    pub verdict: ClaimVerdict,
    /// Names of the reasons that decided it, if any did.
    pub reasons: Vec<String>,
    /// The effect lies wholly inside the margin, although a direction is shown.
    pub within_margin: bool,
}

/// Everything that an experiment says.
#[derive(Debug, Clone, PartialEq)]
pub struct Findings {
    /// The experiment.
    pub experiment: String,
    /// The arm that the others are compared with.
    pub control: String,
    /// The edition; `None` when the records are of several.
    pub edition: Option<String>,
    /// The worst of the conditions.
    pub outcome: Outcome,
    /// Metrics named by claims and headline × treatments × planned levels, in that order.
    pub conditions: Vec<ConditionFinding>,
    /// Claims in written order.
    pub claims: IndexMap<String, ClaimFinding>,
    /// The one effect tested alone.
    pub headline: Option<HeadlineFinding>,
    /// Metrics and levels for which no null control gives a noise floor.
    pub floor_missing: bool,
}

/// One condition after the check.
type Checked = Result<Comparison, Box<Refusal>>;

impl Findings {
    /// Judges all that `question` asks of `records`.
    pub fn of(question: &Question, records: &[Record]) -> Self {
        let mut conditions = Vec::new();
        let mut headline = None;
        let mut claims: IndexMap<String, ClaimFinding> =
            question.claims.keys().map(|name| (name.clone(), ClaimFinding::unplanned())).collect();
        for metric in question.metrics() {
            let floors = floors(question, records, metric);
            for treatment in question.treatments() {
                let checked = check_levels(question, records, metric, treatment);
                let found = family(question, &checked, &floors, &mut claims);
                if let Some(asked) = &question.headline
                    && asked.metric == metric
                    && asked.treatment == treatment
                {
                    headline = Some(HeadlineFinding::of(question, asked, &checked, &found, floors.over_all));
                }
                conditions.extend(found);
            }
        }
        let mut editions: Vec<&Option<String>> =
            records.iter().filter(|record| record.tier != Tier::Look).map(|record| &record.edition).collect();
        editions.sort();
        editions.dedup();
        Self {
            experiment: question.experiment.clone(),
            control: question.control.clone(),
            edition: if editions.len() == 1 { editions[0].clone() } else { None },
            outcome: conditions.iter().map(|found| found.outcome).min().unwrap_or(Outcome::Refused),
            floor_missing: conditions.iter().any(|found| found.effect.is_some() && found.floor.is_none()),
            conditions,
            claims,
            headline,
        }
    }

    /// Returns whether a claim is refuted.
    pub fn any_refuted(&self) -> bool {
        self.claims.values().any(|claim| claim.verdict == ClaimVerdict::Refuted)
    }
}

impl ClaimFinding {
    /// A claim about a level that is not planned: whoever built the question reports it; here it has no verdict.
    fn unplanned() -> Self {
        Self { verdict: ClaimVerdict::Refused, reasons: vec!["S03".to_owned()], within_margin: false }
    }
}

fn check_levels(question: &Question, records: &[Record], metric: Metric, treatment: &str) -> Vec<Checked> {
    let at = |level: &Level| {
        let condition = Condition { metric, treatment: treatment.to_owned(), level: level.clone() };
        Comparison::check(question, records, &condition)
    };
    question.levels.iter().map(at).collect()
}

/// What the control shows against itself, by a null control: standard deviations over blocks of its log ratios.
#[derive(Debug, Default)]
struct Floors {
    by_level: IndexMap<Level, f64>,
    over_all: Option<f64>,
}

fn floors(question: &Question, records: &[Record], metric: Metric) -> Floors {
    let mut floors = Floors::default();
    for treatment in question.treatments().filter(|arm| question.is_null_control(arm)) {
        let checked = check_levels(question, records, metric, treatment);
        let comparisons: Vec<&Comparison> = checked
            .iter()
            .filter_map(|checked| checked.as_ref().ok())
            .filter(|comparison| comparison.standing() == Standing::Verdict)
            .collect();
        for comparison in &comparisons {
            let logs: Vec<f64> =
                comparison.values().iter().map(|value| (value.treatment / value.control).ln()).collect();
            if let Ok(sd) = stats::sample_sd(&logs) {
                // Of several null controls the noisiest one counts.
                let known = floors.by_level.entry(comparison.condition().level.clone()).or_insert(sd);
                *known = known.max(sd);
            }
        }
        if comparisons.len() == question.levels.len() {
            floors.over_all = floors.over_all.into_iter().chain(headline::sd_over_all(&comparisons)).reduce(f64::max);
        }
    }
    floors
}

/// Judges one metric and treatment over the planned levels, which are one family.
fn family(
    question: &Question,
    checked: &[Checked],
    floors: &Floors,
    claims: &mut IndexMap<String, ClaimFinding>,
) -> Vec<ConditionFinding> {
    let mut found: Vec<ConditionFinding> = checked.iter().map(|checked| condition(checked, floors)).collect();
    // Planned levels that have no p count as p = 1, so that a failed level never makes the others look better.
    let p_values: Vec<f64> =
        found.iter().map(|found| found.effect.as_ref().and_then(|effect| effect.p).unwrap_or(1.0)).collect();
    if let Ok(adjusted) = stats::holm(&p_values, question.levels.len()) {
        for (found, p_holm) in found.iter_mut().zip(adjusted) {
            if let Some(effect) = found.effect.as_mut().filter(|effect| effect.p.is_some()) {
                effect.p_holm = Some(p_holm);
            }
        }
    }
    for (name, level, fault) in rules::judge_curve(&curve(question, checked, floors)) {
        let judged = found.iter_mut().filter(|found| found.condition.level == level && found.effect.is_some());
        for found in judged {
            found.note(name, fault.severity, fault.message.clone(), fault.help.clone());
        }
    }
    for (at, (found, checked)) in found.iter_mut().zip(checked).enumerate() {
        let comparison = checked.as_ref().ok();
        if let Some(comparison) = comparison {
            verdict::condition(question, comparison, found);
        }
        if found.outcome == Outcome::Foreign {
            found.without_numbers();
        }
        for (name, claim) in question.claims.iter().filter(|(_, claim)| verdict::is_about(claim, found)) {
            claims.insert(name.clone(), verdict::claim(question, claim, comparison, found, (&p_values, at)));
        }
    }
    found
}

fn condition(checked: &Checked, floors: &Floors) -> ConditionFinding {
    match checked {
        Err(refusal) => ConditionFinding {
            condition: refusal.condition.clone(),
            outcome: match refusal.refused {
                Refused::Confounded => Outcome::Refused,
                Refused::Void => Outcome::Void,
            },
            reasons: refusal.reasons.clone(),
            effect: None,
            verdict: Verdict::Refused,
            means: None,
            floor: None,
            planned: 0,
            context: refusal.context.clone(),
        },
        Ok(comparison) => {
            let [control, treatment] = sides(comparison);
            let mut found = ConditionFinding {
                condition: comparison.condition().clone(),
                outcome: match comparison.standing() {
                    Standing::Verdict => Outcome::Comparable,
                    Standing::Exploratory => Outcome::Exploratory,
                    Standing::Foreign => Outcome::Foreign,
                },
                reasons: comparison.reasons().to_vec(),
                effect: effect(comparison),
                verdict: Verdict::None,
                means: stats::mean(&control).ok().zip(stats::mean(&treatment).ok()),
                floor: floors
                    .by_level
                    .get(&comparison.condition().level)
                    .and_then(|sd| stats::noise_floor(*sd, u32::try_from(control.len()).ok()?).ok()),
                planned: comparison.planned(),
                context: comparison.context().clone(),
            };
            found.percentile(comparison);
            found
        }
    }
}

/// Returns the values of both arms, block by block.
pub(crate) fn sides(comparison: &Comparison) -> [Vec<f64>; 2] {
    [
        comparison.values().iter().map(|value| value.control).collect(),
        comparison.values().iter().map(|value| value.treatment).collect(),
    ]
}

/// Returns the effect of a comparison: an interval from two blocks on, unless the numbers are foreign.
pub fn effect(comparison: &Comparison) -> Option<Effect> {
    let [control, treatment] = sides(comparison);
    if comparison.standing() != Standing::Foreign
        && let Ok(fieller) = stats::paired_fieller(&control, &treatment, stats::CONFIDENCE)
    {
        let log = stats::paired_log_ratio(&control, &treatment, stats::CONFIDENCE).ok();
        return Some(Effect {
            ratio: fieller.ratio,
            interval: Some((fieller.low, fieller.high)),
            blocks: fieller.blocks,
            p: Some(fieller.p),
            p_holm: None,
            skewed: log.filter(|log| stats::skewed(&fieller, log)).map(|log| (log.low, log.high)),
        });
    }
    let ratio = stats::mean(&treatment).ok()? / stats::mean(&control).ok()?;
    let blocks = control.len();
    ratio.is_finite().then_some(Effect { ratio, interval: None, blocks, p: None, p_holm: None, skewed: None })
}

fn curve(question: &Question, checked: &[Checked], floors: &Floors) -> Curve {
    let compared: Vec<&Comparison> = checked.iter().filter_map(|checked| checked.as_ref().ok()).collect();
    let points = compared.iter().filter_map(|comparison| {
        let [control, treatment] = sides(comparison);
        let level = &comparison.condition().level;
        // A log ratio is the difference of two values, hence the root of 2.
        let relative_sd = floors
            .by_level
            .get(level)
            .map(|sd| sd / std::f64::consts::SQRT_2)
            .or_else(|| within_arms(&control, &treatment));
        Some(CurvePoint {
            level: level.clone(),
            control: stats::mean(&control).ok()?,
            treatment: stats::mean(&treatment).ok()?,
            relative_sd,
            confirmed: comparison.confirmed(),
        })
    });
    let metric = compared.first().map_or(Metric::OutputThroughput, |comparison| comparison.condition().metric);
    let treatment = compared.first().map_or("", |comparison| comparison.condition().treatment.as_str());
    Curve::new(metric, &question.control, treatment, points.collect())
}

/// Relative standard deviation over blocks, both arms together.
fn within_arms(control: &[f64], treatment: &[f64]) -> Option<f64> {
    let relative = |values: &[f64]| Some(stats::sample_sd(values).ok()? / stats::mean(values).ok()?);
    let (control, treatment) = (relative(control)?, relative(treatment)?);
    Some((f64::midpoint(control * control, treatment * treatment)).sqrt())
}

impl ConditionFinding {
    /// Says of each rule what it is about, without the number that it saw: a ratio of foreign numbers would stand there, and what
    /// would help is not in our hands.
    fn without_numbers(&mut self) {
        for reason in &mut self.reasons {
            if let Some(says) = rules::says(&reason.name) {
                says.clone_into(&mut reason.message);
                reason.help.clear();
            }
        }
    }

    /// Adds a reason, in the order of severity and name.
    fn note(&mut self, name: &str, severity: Severity, message: String, help: String) {
        let reason = Reason { name: name.to_owned(), severity, blocks: Vec::new(), message, help };
        let at = self
            .reasons
            .partition_point(|known| (known.severity, known.name.as_str()) <= (severity, reason.name.as_str()));
        self.reasons.insert(at, reason);
    }

    /// Returns whether a rule of this id is among the reasons.
    pub fn has(&self, name: &str) -> bool {
        self.reasons.iter().any(|reason| reason.name == name)
    }

    /// Returns whether one of these rules stands against a verdict.
    fn forbids(&self, names: &[&str]) -> bool {
        names.iter().any(|name| self.has(name))
    }

    /// S46: a percentile of fewer requests than its interval needs is essentially the maximum.
    fn percentile(&mut self, comparison: &Comparison) {
        let quantile = match self.condition.metric {
            Metric::Latency(Statistic::P90, _) => 0.90,
            Metric::Latency(Statistic::P95, _) => 0.95,
            Metric::Latency(Statistic::P99, _) => 0.99,
            Metric::Latency(Statistic::Median, _) => 0.50,
            _ => return,
        };
        let Ok(needed) = stats::minimum_n(quantile, stats::CONFIDENCE) else { return };
        let fewest = comparison.values().iter().filter_map(|value| value.fewest_requests).min();
        if let Some(fewest) = fewest.filter(|fewest| *fewest < needed) {
            let message = format!(
                "`{}` of {fewest} requests a run; below {needed} it is essentially the maximum",
                self.condition.metric
            );
            let help = format!("send at least {needed} prompts a run, or claim the median");
            self.note("S46", Severity::Claim, message, help);
        }
    }
}
