//! Verdicts: from an effect and its reasons to the word that may be written down.
//!
//! Invariant: an inconclusive result stays inconclusive, whatever rule fires beside it; a rule of severity *claim* turns a
//! verdict into `refused` and leaves the interval.

use crate::comparison::{Comparison, Standing};
use crate::question::{Claim, Expect, Question};
use crate::rules;
use crate::stats::{self, Direction};
use crate::validity::Severity;

use super::{ALPHA, ClaimFinding, ConditionFinding, DEFAULT_MARGIN, Outcome, sides};

/// What may be said about a condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The ratio is above 1.
    Higher,
    /// The ratio is below 1.
    Lower,
    /// The ratio is within the margin around 1.
    Unchanged,
    /// None of these is shown.
    Inconclusive,
    /// Too few blocks.
    Exploratory,
    /// There is no right to a verdict.
    Refused,
    /// Foreign numbers have none.
    None,
}

impl Verdict {
    /// Returns the word in JSON and on pages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Higher => "higher",
            Self::Lower => "lower",
            Self::Unchanged => "unchanged",
            Self::Inconclusive => "inconclusive",
            Self::Exploratory => "exploratory",
            Self::Refused => "refused",
            Self::None => "none",
        }
    }
}

/// What may be said about a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClaimVerdict {
    /// It is shown.
    Supported,
    /// Its opposite is shown.
    Refuted,
    /// Neither is shown.
    Inconclusive,
    /// Too few blocks.
    Exploratory,
    /// There is no right to a verdict.
    Refused,
}

impl ClaimVerdict {
    /// Returns the word in JSON and on pages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Supported => "supported",
            Self::Refuted => "refuted",
            Self::Inconclusive => "inconclusive",
            Self::Exploratory => "exploratory",
            Self::Refused => "refused",
        }
    }
}

/// Returns the fraction below which differences do not matter: what was asked, or 1 %, or the noise floor if that is larger.
pub(super) fn margin(question: &Question, floor: Option<f64>) -> f64 {
    question.margin.unwrap_or_else(|| floor.map_or(DEFAULT_MARGIN, |floor| floor.exp_m1().max(DEFAULT_MARGIN)))
}

/// What the statistics alone say about a statement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shown {
    Itself,
    ItsOpposite,
    Neither,
}

/// Judges a condition, and adds the rules that depend on what would be said.
pub(super) fn condition(question: &Question, comparison: &Comparison, found: &mut ConditionFinding) {
    match comparison.standing() {
        // Both values are shown, no ratio of them: nobody saw what else differed.
        Standing::Foreign => {
            found.verdict = Verdict::None;
            found.effect = None;
        }
        Standing::Exploratory => found.verdict = Verdict::Exploratory,
        Standing::Verdict => {
            let delta = margin(question, found.floor);
            let raw = undisturbed(comparison, found, delta);
            below_floor(question, comparison, raw, found);
            unproven(question, comparison, delta, raw, found);
            found.verdict = match raw {
                Verdict::Higher | Verdict::Lower if found.forbids(&DIRECTION_RULES) => Verdict::Refused,
                Verdict::Unchanged if found.forbids(&EQUALITY_RULES) => Verdict::Refused,
                _ if found.has("S46") => Verdict::Refused,
                verdict => verdict,
            };
        }
    }
}

/// Rules that forbid a verdict about a direction.
const DIRECTION_RULES: [&str; 3] = ["S05", "S35", "S46"];
/// Rules that forbid a verdict about equality.
const EQUALITY_RULES: [&str; 3] = ["S35", "S45", "S46"];

/// What the statistics say when no rule stands against it.
fn undisturbed(comparison: &Comparison, found: &ConditionFinding, delta: f64) -> Verdict {
    let Some(effect) = &found.effect else { return Verdict::Inconclusive };
    if comparison.lost_too_many() {
        return Verdict::Inconclusive;
    }
    if effect.p_holm.is_some_and(|p| p < ALPHA) {
        return if effect.ratio > 1.0 { Verdict::Higher } else { Verdict::Lower };
    }
    let [control, treatment] = sides(comparison);
    match stats::equivalence(&control, &treatment, delta, ALPHA) {
        Ok(tests) if tests.equivalent => Verdict::Unchanged,
        _ => Verdict::Inconclusive,
    }
}

/// S05: a direction that the control shows against itself as well.
fn below_floor(question: &Question, comparison: &Comparison, raw: Verdict, found: &mut ConditionFinding) {
    let directed = |expect| matches!(expect, Expect::Higher | Expect::Lower);
    let about_direction = matches!(raw, Verdict::Higher | Verdict::Lower)
        || question.claims.values().any(|claim| is_about(claim, found) && directed(claim.expect));
    if question.is_null_control(&found.condition.treatment) || !about_direction {
        return;
    }
    let [control, treatment] = sides(comparison);
    let log = stats::paired_log_ratio(&control, &treatment, stats::CONFIDENCE);
    if let (Some(floor), Ok(log)) = (found.floor, log)
        && let Some(fault) = rules::floor_reason(log.mean_log, floor)
    {
        found.note("S05", fault.severity, fault.message, fault.help);
    }
}

/// S45: "unchanged", and nothing would have looked different if the treatment had done nothing.
fn unproven(question: &Question, comparison: &Comparison, delta: f64, raw: Verdict, found: &mut ConditionFinding) {
    let arm = &found.condition.treatment;
    let silent = |key: &str| key.starts_with("server.env.") || key == "source.patches";
    let needs_proof = question.factor.iter().any(|key| silent(key.as_str()))
        && !question.evidence.contains_key(arm)
        && !question.is_null_control(arm);
    let equality = |claim: &Claim| {
        matches!(claim.expect, Expect::Unchanged | Expect::NotLower | Expect::NotHigher)
            && is_about(claim, found)
            && shown(comparison, found, claim, delta) == Shown::Itself
    };
    let would_be_said = raw == Verdict::Unchanged || question.claims.values().any(equality);
    if needs_proof && would_be_said {
        let fault = rules::unproven_reason(arm);
        found.note("S45", fault.severity, fault.message, fault.help);
    }
}

pub(super) fn is_about(claim: &Claim, found: &ConditionFinding) -> bool {
    let condition = &found.condition;
    claim.metric == condition.metric && claim.treatment == condition.treatment && claim.at == condition.level
}

/// Judges a claim at its condition. `family` holds the two-sided p of each planned level, of which `at` is the claim's.
pub(super) fn claim(
    question: &Question,
    claim: &Claim,
    comparison: Option<&Comparison>,
    found: &ConditionFinding,
    family: (&[f64], usize),
) -> ClaimFinding {
    let named = |severities: &[Severity]| -> Vec<String> {
        let chosen = found.reasons.iter().filter(|reason| severities.contains(&reason.severity));
        chosen.map(|reason| reason.name.clone()).collect()
    };
    let without = |verdict, reasons| ClaimFinding { verdict, reasons, within_margin: false };
    let (Some(comparison), Outcome::Comparable) = (comparison, found.outcome) else {
        return match found.outcome {
            Outcome::Exploratory => without(ClaimVerdict::Exploratory, vec!["S04".to_owned()]),
            Outcome::Refused => without(ClaimVerdict::Refused, named(&[Severity::Block])),
            _ => without(ClaimVerdict::Refused, named(&[Severity::Claim, Severity::Void])),
        };
    };
    let delta = margin(question, found.floor);
    let rules: &[&str] = match claim.expect {
        Expect::Higher | Expect::Lower => &DIRECTION_RULES,
        _ => &EQUALITY_RULES,
    };
    let standing: Vec<String> = rules.iter().filter(|rule| found.has(rule)).map(|rule| (*rule).to_owned()).collect();
    let verdict = match shown_in_family(comparison, found, claim, family, delta) {
        _ if found.has("S46") => ClaimVerdict::Refused,
        Shown::Neither => ClaimVerdict::Inconclusive,
        _ if !standing.is_empty() => ClaimVerdict::Refused,
        Shown::Itself => ClaimVerdict::Supported,
        Shown::ItsOpposite => ClaimVerdict::Refuted,
    };
    let interval = found.effect.as_ref().and_then(|effect| effect.interval);
    let inside = interval.is_some_and(|(low, high)| low > 1.0 / (1.0 + delta) && high < 1.0 + delta);
    ClaimFinding { verdict, reasons: standing, within_margin: inside && verdict == ClaimVerdict::Supported }
}

fn shown_in_family(
    comparison: &Comparison,
    found: &ConditionFinding,
    claim: &Claim,
    family: (&[f64], usize),
    delta: f64,
) -> Shown {
    if comparison.lost_too_many() {
        return Shown::Neither;
    }
    let Some(by) = claim.by else { return shown(comparison, found, claim, delta) };
    let direction = if claim.expect == Expect::Higher { Direction::Higher } else { Direction::Lower };
    let [control, treatment] = sides(comparison);
    let Ok(test) = stats::at_least_better(&control, &treatment, by, direction) else { return Shown::Neither };
    // Two-sided around the shifted null, in the place that the level has in its family.
    let (others, at) = family;
    let mut family = others.to_vec();
    let two_sided = 2.0 * test.p_one_sided.min(1.0 - test.p_one_sided);
    family[at] = two_sided;
    let Ok(adjusted) = stats::holm(&family, family.len()) else { return Shown::Neither };
    match adjusted[at] < ALPHA {
        true if test.t > 0.0 => Shown::Itself,
        true => Shown::ItsOpposite,
        false => Shown::Neither,
    }
}

/// What the statistics say about a claim without `by`.
fn shown(comparison: &Comparison, found: &ConditionFinding, claim: &Claim, delta: f64) -> Shown {
    let Some(effect) = &found.effect else { return Shown::Neither };
    let [control, treatment] = sides(comparison);
    let Ok(tests) = stats::equivalence(&control, &treatment, delta, ALPHA) else { return Shown::Neither };
    let (low, high) = effect.interval.unwrap_or((0.0, f64::INFINITY));
    let (too_low, too_high) = (high <= 1.0 / (1.0 + delta), low >= 1.0 + delta);
    let rejects = effect.p_holm.is_some_and(|p| p < ALPHA);
    let (itself, opposite) = match claim.expect {
        Expect::Higher => (rejects && effect.ratio > 1.0, rejects && effect.ratio < 1.0),
        Expect::Lower => (rejects && effect.ratio < 1.0, rejects && effect.ratio > 1.0),
        Expect::Unchanged => (tests.equivalent, too_low || too_high),
        Expect::NotLower => (tests.p_lower < ALPHA, too_low),
        Expect::NotHigher => (tests.p_upper < ALPHA, too_high),
    };
    match (itself, opposite) {
        (true, _) => Shown::Itself,
        (false, true) => Shown::ItsOpposite,
        (false, false) => Shown::Neither,
    }
}
