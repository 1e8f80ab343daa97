//! What a sentence of a page says: the verb that a verdict allows, and what stands behind a number.
//!
//! Invariant: the verb follows from the verdict, never from the number alone, and a refused condition has no number in any of it.

use crate::finding::{ClaimFinding, ClaimVerdict, ConditionFinding, Effect, Outcome, Verdict};
use crate::metric::{Metric, Unit};
use crate::question::{Axis, Claim, Expect};

use super::comparison::{bare, p_text, word};
use super::progress::significant;

/// Returns what a treatment does against its control, as `is 1.7 % faster than`.
pub fn verb(metric: Metric, verdict: Verdict, effect: Option<&Effect>) -> String {
    match verdict {
        Verdict::Higher | Verdict::Lower => direction(metric, effect),
        Verdict::Unchanged => "performs like".to_owned(),
        Verdict::Inconclusive => "cannot be told apart from".to_owned(),
        Verdict::Exploratory => "was measured too few times to be compared with".to_owned(),
        Verdict::None => "has no verdict against".to_owned(),
        Verdict::Refused => "cannot be compared with".to_owned(),
    }
}

/// Returns the same for a claim: a claim about one side of a margin may be supported where no direction is shown.
pub fn claim_verb(claim: &Claim, found: &ClaimFinding, condition: &ConditionFinding) -> String {
    let side = match claim.expect {
        Expect::NotLower => "is not lower than",
        Expect::NotHigher => "is not higher than",
        _ => "",
    };
    match (found.verdict, condition.verdict) {
        (ClaimVerdict::Refused, _) if condition.outcome != Outcome::Foreign => "cannot be compared with".to_owned(),
        (ClaimVerdict::Supported, Verdict::Inconclusive | Verdict::Unchanged) if !side.is_empty() => side.to_owned(),
        (_, verdict) => verb(claim.metric, verdict, condition.effect.as_ref()),
    }
}

fn direction(metric: Metric, effect: Option<&Effect>) -> String {
    let Some(effect) = effect else { return "cannot be compared with".to_owned() };
    let percent = bare(effect.ratio);
    let percent = percent.trim_start_matches(['+', '-']);
    let is_rate = matches!(metric.unit(), Unit::TokensPerSecond | Unit::RequestsPerSecond);
    match (is_rate, effect.ratio > 1.0) {
        (true, true) => format!("is {percent} % faster than"),
        (true, false) => format!("is {percent} % slower than"),
        (false, true) => format!("has {percent} % higher {metric} than"),
        (false, false) => format!("has {percent} % lower {metric} than"),
    }
}

/// Returns a level with its unit: `16 users`.
pub fn at_level(axis: Axis, level: &str) -> String {
    match axis {
        Axis::Concurrency if level == "1" => "1 user".to_owned(),
        Axis::Concurrency => format!("{level} users"),
        Axis::RequestRate => format!("{level} req/s"),
        Axis::InputTokens => format!("{level} prompt tokens"),
    }
}

/// Returns the change of an effect: `+1.71 %`.
pub fn change(effect: &Effect) -> String {
    format!("{} %", bare(effect.ratio))
}

/// Returns the interval of an effect: `[+1.49, +1.93] %`; nothing where it has none.
pub fn interval(effect: &Effect) -> String {
    effect.interval.map_or(String::new(), |(low, high)| format!("[{}, {}] %", bare(low), bare(high)))
}

/// Returns a value with its unit: `706.5 tok/s`.
pub fn value(metric: Metric, value: f64) -> String {
    let unit = metric.unit();
    if unit == Unit::One { significant(value) } else { format!("{} {}", significant(value), unit.symbol()) }
}

/// Returns everything that stands behind an effect, for hover and focus.
pub fn behind_effect(effect: &Effect, verdict: &str) -> String {
    let interval = effect
        .interval
        .map_or("no interval".to_owned(), |(low, high)| format!("95 % interval {} to {} %", bare(low), bare(high)));
    let p = effect.p_holm.or(effect.p).map_or(String::new(), |p| format!(", p {}", p_text(p)));
    format!("{}, {interval}{p}, n = {} blocks, {verdict}", change(effect), effect.blocks)
}

/// Returns a number as short as it can be written.
pub fn plain(value: f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Returns the word of a condition as it is written out beside a number.
pub fn spelled(found: &ConditionFinding) -> &'static str {
    match word(found) {
        "~" => "inconclusive",
        word => word,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn effect(ratio: f64) -> Effect {
        Effect {
            ratio,
            interval: Some((ratio - 0.01, ratio + 0.01)),
            blocks: 5,
            p: Some(0.001),
            p_holm: Some(0.004),
            skewed: None,
        }
    }

    #[test]
    fn the_verb_is_the_verdict() {
        let rate = |verdict, ratio| verb(Metric::OutputThroughput, verdict, Some(&effect(ratio)));
        assert_eq!(rate(Verdict::Higher, 1.017), "is 1.70 % faster than");
        assert_eq!(rate(Verdict::Lower, 0.9), "is 10.00 % slower than");
        assert_eq!(rate(Verdict::Inconclusive, 1.3), "cannot be told apart from");
        assert_eq!(rate(Verdict::Refused, 1.3), "cannot be compared with");
        let metric = Metric::parse("mean_ttft_ms").expect("a metric");
        assert_eq!(verb(metric, Verdict::Lower, Some(&effect(0.9))), "has 10.00 % lower mean_ttft_ms than");
        assert_eq!(verb(metric, Verdict::Higher, None), "cannot be compared with");
    }

    #[test]
    fn what_stands_behind_a_number_is_complete() {
        assert_eq!(
            behind_effect(&effect(1.02), "higher"),
            "+2.00 %, 95 % interval +1.00 to +3.00 %, p 0.004, n = 5 blocks, higher"
        );
        assert_eq!(at_level(Axis::Concurrency, "1"), "1 user");
    }
}
