//! Rules about two runs of one block, one of each arm.
//!
//! Invariant: each is symmetric in firing: exchanging the arms changes the wording, never the answer. A value that is
//! unknown on one side makes a rule silent; that it is unknown is the business of the check of facts.

use crate::fact::FactValue;
use crate::metric::{Metric, Span, Statistic};
use crate::record::{Record, Tier, Written};
use crate::validity::{self, Severity};

use super::{Fault, Pair, number, row, value};

/// Below this share two arms fail alike.
const FAILURE_POINTS: f64 = 0.005;
/// Output lengths of two arms agree within 1 % when the same was asked.
const OUTPUT_SHARE: f64 = 0.01;
/// A point of hits is what block boundaries and shared headers give.
const HIT_POINTS: f64 = 0.01;
/// Clocks of one card move by less within minutes.
const CLOCK_SHARE: f64 = 0.02;
/// Share of the window under a thermal limit that counts.
const THERMAL_SHARE: f64 = 0.01;
/// Acceptance of one draft model on the same prompts repeats better than this.
const ACCEPT_SHARE: f64 = 0.03;
/// Equal to four digits: launches of one program differ by more.
const SAME_DIGITS: f64 = 5e-5;
/// A control older than a day may be another machine.
const STALE_S: f64 = 24.0 * 3600.0;

/// S02: within a block, one arm's run is more than a day older.
pub(super) fn stale(pair: &Pair) -> Option<Fault> {
    let start = |record: &Record| match record.facts.get("time.utc_start") {
        Some(FactValue::Text(text)) => text.parse::<jiff::Timestamp>().ok(),
        _ => None,
    };
    let apart_s = (start(pair.treatment)?.as_second() - start(pair.control)?.as_second()).unsigned_abs() as f64;
    (apart_s > STALE_S).then(|| {
        Fault::new(
            Severity::Warn,
            format!("the two runs of one block are {:.0} h apart", apart_s / 3600.0),
            "run both arms of a block back to back: `labbook run` again redoes the block",
        )
    })
}

/// S13: the metric is not the same one in both arms.
pub(super) fn other_definition(pair: &Pair) -> Option<Fault> {
    let id = |record: &Record| {
        let text = |key| record.facts.get(key).map(ToString::to_string);
        Some(pair.metric.definition_id(&text("client.name")?, &text("client.version")?))
    };
    let (control, treatment) = (id(pair.control)?, id(pair.treatment)?);
    (control != treatment).then(|| {
        Fault::new(
            Severity::Block,
            format!("`{control}` against `{treatment}`: two metrics under one name"),
            "measure both arms with one client of one version",
        )
    })
}

/// S39: a run that left a result does not have the metric.
pub(super) fn metric_absent(pair: &Pair) -> Option<Fault> {
    let lacks = |record: &Record| {
        let wrote = matches!(record.written, Written::Row(_) | Written::Values(_));
        wrote && value(record, pair.metric).is_none()
    };
    let mut arms: Vec<&str> =
        [pair.control, pair.treatment].into_iter().filter(|run| lacks(run)).map(|run| run.arm.as_str()).collect();
    arms.sort_unstable();
    (!arms.is_empty()).then(|| {
        Fault::new(
            Severity::Block,
            format!(
                "`{}` is not in the result of `{}`; absent is neither zero nor another metric",
                pair.metric,
                arms.join("` and `")
            ),
            "measure again with a client that writes it, or choose a metric that both runs have",
        )
    })
}

/// S14, between the arms: they fail at different rates.
pub(super) fn failures_differ(pair: &Pair) -> Option<Fault> {
    let share = |record: &Record| validity::failed_share(record);
    let (control, treatment) = (share(pair.control)?, share(pair.treatment)?);
    ((treatment - control).abs() > FAILURE_POINTS).then(|| {
        Fault::new(
            Severity::Block,
            format!(
                "{:.1} % of the requests of `{}` failed and {:.1} % of `{}`",
                control * 100.0,
                pair.control.arm,
                treatment * 100.0,
                pair.treatment.arm
            ),
            "find out why requests fail; a server that drops work is not faster",
        )
    })
}

/// S15, between the arms: without `ignore_eos` they wrote different amounts.
pub(super) fn outputs_differ(pair: &Pair) -> Option<Fault> {
    let ignores = |record: &Record| matches!(record.facts.get("workload.ignore_eos"), Some(FactValue::Text(text)) if text == "true");
    if ignores(pair.control) && ignores(pair.treatment) {
        return None;
    }
    let mean = |record: &Record| {
        let row = row(record)?;
        Some(row.total_output_tokens? as f64 / row.completed.filter(|count| *count > 0)? as f64)
    };
    let (control, treatment) = (mean(pair.control)?, mean(pair.treatment)?);
    (apart(control, treatment) > OUTPUT_SHARE).then(|| {
        Fault::new(
            Severity::Block,
            format!(
                "{control:.1} output tokens a request in `{}`, {treatment:.1} in `{}`",
                pair.control.arm, pair.treatment.arm
            ),
            "ask for `ignore_eos`, so that both arms do the same work",
        )
    })
}

/// S16, between the arms: the prompts had other lengths.
pub(super) fn lengths_differ(pair: &Pair) -> Option<Fault> {
    let lengths = |record| row(record).and_then(|row| row.details.as_ref()).map(|details| &details.input_lens);
    let (control, treatment) = (lengths(pair.control)?, lengths(pair.treatment)?);
    (control != treatment).then(|| {
        let differs = control.iter().zip(treatment).position(|(one, two)| one != two);
        let what = match differs {
            Some(at) => format!(
                "prompt {} has {} tokens in `{}` and {} in `{}`",
                at + 1,
                control[at],
                pair.control.arm,
                treatment[at],
                pair.treatment.arm
            ),
            None => format!(
                "{} prompts in `{}` and {} in `{}`",
                control.len(),
                pair.control.arm,
                treatment.len(),
                pair.treatment.arm
            ),
        };
        Fault::new(
            Severity::Block,
            format!("other prompt lengths: {what}"),
            "use the same seed and data set in both arms",
        )
    })
}

/// S18, between the arms: another number of prompts per user.
pub(super) fn prompts_per_user(pair: &Pair) -> Option<Fault> {
    let per_user = |record: &Record| {
        let users = number(record, "workload.concurrency").filter(|users| *users > 0.0)?;
        Some(number(record, "workload.num_prompts")? / users)
    };
    let (control, treatment) = (per_user(pair.control)?, per_user(pair.treatment)?);
    ((control - treatment).abs() > f64::EPSILON * control.max(treatment)).then(|| {
        Fault::new(
            Severity::Block,
            format!("{control} prompts per user in `{}`, {treatment} in `{}`", pair.control.arm, pair.treatment.arm),
            "send the same number of prompts in both arms: start and end weigh more in the shorter run",
        )
    })
}

/// S20, between the arms: the prefix cache served one of them.
pub(super) fn cache_hits_differ(pair: &Pair) -> Option<Fault> {
    let share = |record: &Record| {
        let queries = number(record, "counters.prompt_tokens").filter(|tokens| *tokens > 0.0)?;
        Some(number(record, "counters.cached_tokens")? / queries)
    };
    let (control, treatment) = (share(pair.control)?, share(pair.treatment)?);
    ((control - treatment).abs() > HIT_POINTS).then(|| {
        Fault::new(
            Severity::Block,
            format!(
                "{:.1} % of the prompt tokens of `{}` came from the cache, {:.1} % of `{}`",
                control * 100.0,
                pair.control.arm,
                treatment * 100.0,
                pair.treatment.arm
            ),
            "flush the cache before each run (`warmup: { flush_cache: true }`), or make the cache the factor",
        )
    })
}

/// S23: clocks differ, or one side was hot.
pub(super) fn clocks_differ(pair: &Pair) -> Option<Fault> {
    let gpus = |record: &Record| number(record, "gpu.count").map_or(0, |count| count.clamp(0.0, 1024.0) as usize);
    let count = gpus(pair.control).max(gpus(pair.treatment));
    let hot = |record: &Record| {
        let window_us = row(record)?.duration_s? * 1e6;
        let reasons = ["hw_thermal", "sw_thermal", "hw_power_brake"];
        let keys = (0..count).flat_map(|gpu| reasons.map(|reason| format!("gpu.{gpu}.throttle_us.{reason}")));
        Some(keys.filter_map(|key| number(record, &key)).any(|us| us > THERMAL_SHARE * window_us))
    };
    if let (Some(control), Some(treatment)) = (hot(pair.control), hot(pair.treatment))
        && control != treatment
    {
        let arm = if control { &pair.control.arm } else { &pair.treatment.arm };
        return Some(Fault::new(
            Severity::Block,
            format!("a thermal or power-brake limit was active in `{arm}` alone"),
            "cool the machine down and redo the block",
        ));
    }
    (0..count).find_map(|gpu| {
        let key = format!("gpu.{gpu}.sm_clock_mhz");
        let (control, treatment) = (number(pair.control, &key)?, number(pair.treatment, &key)?);
        (apart(control, treatment) > CLOCK_SHARE).then(|| {
            Fault::new(
                Severity::Warn,
                format!("`{key}`: {control} in `{}`, {treatment} in `{}`", pair.control.arm, pair.treatment.arm),
                "lock the clocks (`nvidia-smi -lgc`) or say on the page that they moved",
            )
        })
    })
}

/// S27: the autotuner found something else.
pub(super) fn tuning_differs(pair: &Pair) -> Option<Fault> {
    const KEY: &str = "cache.autotune.sha256";
    let (control, treatment) = (pair.control.facts.get(KEY)?, pair.treatment.facts.get(KEY)?);
    (!control.same(treatment)).then(|| {
        Fault::new(
            Severity::Warn,
            format!("`{KEY}` differs between the arms"),
            "at least three launches per arm, or share one tuning file",
        )
    })
}

/// S28, between the arms: speculation did other work.
pub(super) fn acceptance_differs(pair: &Pair) -> Option<Fault> {
    let (control, treatment) =
        (value(pair.control, Metric::AcceptLength)?, value(pair.treatment, Metric::AcceptLength)?);
    (apart(control, treatment) > ACCEPT_SHARE).then(|| {
        Fault::new(
            Severity::Block,
            format!("accept length {control:.3} in `{}`, {treatment:.3} in `{}`", pair.control.arm, pair.treatment.arm),
            "the same draft model on the same prompts accepts alike: find what else differs, or make it the factor",
        )
    })
}

/// S31: the runs agree to four digits in everything, as if one server had answered twice.
pub(super) fn too_equal(pair: &Pair) -> Option<Fault> {
    let (control, treatment) = (row(pair.control)?, row(pair.treatment)?);
    let mut compared = vec![(control.duration_s, treatment.duration_s)];
    for span in [Span::Ttft, Span::Tpot] {
        let key = Metric::Latency(Statistic::Mean, span);
        compared.push((control.metrics.get(&key).copied(), treatment.metrics.get(&key).copied()));
    }
    let same = compared
        .iter()
        .all(|(one, two)| matches!((one, two), (Some(one), Some(two)) if apart(*one, *two) < SAME_DIGITS));
    (same && pair.control.tier == Tier::Measured).then(|| {
        Fault::new(
            Severity::Warn,
            "duration, TTFT and TPOT agree to four digits between the arms",
            "look whether both arms talked to the same server, or one file stands in both places",
        )
    })
}

/// Returns the relative difference of two positive numbers, in relation to the smaller one.
fn apart(one: f64, two: f64) -> f64 {
    let smaller = one.abs().min(two.abs());
    if (one - two).abs() <= 0.0 {
        0.0
    } else if smaller > 0.0 {
        (one - two).abs() / smaller
    } else {
        f64::INFINITY
    }
}
