//! Rules about all runs of one condition: order, passes, duplicates, and what two metrics of one run say together.

use std::collections::BTreeMap;

use crate::digest::Digest;
use crate::fact::FactValue;
use crate::metric::Metric;
use crate::record::{Outcome, Record, Written};
use crate::validity::Severity;

use super::{Evidence, Fault, value};

/// A peak is one second of the run, so that it follows the mean only roughly.
const PEAK_POINTS: f64 = 0.15;
/// A first pass this far from the later ones compiled or tuned something.
const FIRST_PASS_SHARE: f64 = 0.10;
/// Three passes that rise by more than this each are still warming up.
const RISE_SHARE: f64 = 0.02;
/// Correlation of a value with its place in time that interleaving should have removed.
const ORDER_CORRELATION: f64 = 0.7;
/// Medians of the arms' start times further apart than this are two measurements.
const ORDER_APART_S: f64 = 2.0 * 3600.0;

/// S10: the mean rate moved and its peak did not, or the other way round.
pub(super) fn peak_and_mean(evidence: &Evidence) -> Option<Fault> {
    if !matches!(evidence.metric, Metric::OutputThroughput | Metric::TotalThroughput | Metric::PeakOutputThroughput) {
        return None;
    }
    let change = |metric: Metric| {
        let total = |runs: Vec<&&Record>| {
            let values: Option<Vec<f64>> = runs.into_iter().map(|run| value(run, metric)).collect();
            values.filter(|values| !values.is_empty()).map(|values| values.iter().sum::<f64>() / values.len() as f64)
        };
        let control = total(evidence.blocks.iter().flat_map(|(_, control, _)| control).collect())?;
        let treatment = total(evidence.blocks.iter().flat_map(|(.., treatment)| treatment).collect())?;
        (control > 0.0).then(|| treatment / control - 1.0)
    };
    let (mean, peak) = (change(Metric::OutputThroughput)?, change(Metric::PeakOutputThroughput)?);
    ((mean - peak).abs() > PEAK_POINTS).then(|| {
        Fault::new(
            Severity::Warn,
            format!("the mean rate moved by {:+.1} %, its peak by {:+.1} %", mean * 100.0, peak * 100.0),
            "look at the time outside steady decoding: queueing, prefill, a slow start",
        )
    })
}

/// S30: the arms were not interleaved, or were measured hours apart.
pub(super) fn not_interleaved(evidence: &Evidence) -> Option<Fault> {
    let start_s = |record: &Record| match record.facts.get("time.utc_start") {
        Some(FactValue::Text(text)) => text.parse::<jiff::Timestamp>().ok().map(|time| time.as_second() as f64),
        _ => None,
    };
    let mut runs: Vec<(f64, bool, f64)> = Vec::new();
    for (_, control, treatment) in &evidence.blocks {
        for (arm, of_treatment) in [(control, false), (treatment, true)] {
            for run in arm {
                runs.push((start_s(run)?, of_treatment, value(run, evidence.metric)?));
            }
        }
    }
    runs.sort_by(|one, two| one.0.total_cmp(&two.0));
    let times = |wanted: bool| runs.iter().filter(|run| run.1 == wanted).map(|run| run.0).collect::<Vec<f64>>();
    let apart_s = (median(&times(true))? - median(&times(false))?).abs();
    let switches = runs.windows(2).filter(|pair| pair[0].1 != pair[1].1).count();
    let places: Vec<f64> = (0..runs.len()).map(|place| place as f64).collect();
    let values: Vec<f64> = runs.iter().map(|run| run.2).collect();
    let one_after_the_other = evidence.blocks.len() > 1
        && switches == 1
        && correlation(&places, &values).is_some_and(|found| found.abs() > ORDER_CORRELATION);
    (apart_s > ORDER_APART_S || one_after_the_other).then(|| {
        Fault::new(
            Severity::Warn,
            format!(
                "the arms were not interleaved: the medians of their start times are {:.1} h apart",
                apart_s / 3600.0
            ),
            "run the arms in blocks, back to back and in alternating order: `labbook run` does",
        )
    })
}

/// S19: returns the passes of one session at one level that were still warming up, and why. `passes` holds pass number and
/// value; with one pass nothing can be told.
pub fn not_warm(passes: &[(u32, f64)]) -> Vec<(u32, Fault)> {
    let mut sorted = passes.to_vec();
    sorted.sort_by_key(|(pass, _)| *pass);
    let rising = sorted.len() >= 3 && sorted.windows(2).all(|pair| pair[1].1 > pair[0].1 * (1.0 + RISE_SHARE));
    let Some(((first, value), rest)) = sorted.split_first() else { return Vec::new() };
    let Some(usual) = median(&rest.iter().map(|(_, value)| *value).collect::<Vec<f64>>()) else { return Vec::new() };
    let share = value / usual;
    if !rising && (share - 1.0).abs() <= FIRST_PASS_SHARE {
        return Vec::new();
    }
    let fault = Fault::new(
        Severity::Void,
        format!("the first pass is {share:.2} x the median of the later ones: not warm"),
        "warm up longer (`warmup: { waves: 2 }`), or add a pass",
    );
    vec![(*first, fault)]
}

/// S32: returns the ids of runs whose result file is, byte for byte, that of another run.
pub fn duplicates(records: &[Record]) -> Vec<Digest> {
    let mut holders: BTreeMap<Digest, Vec<&Record>> = BTreeMap::new();
    let wrote = |record: &&Record| {
        matches!(record.outcome, Outcome::Finished) && !matches!(record.written, Written::Nothing | Written::Values(_))
    };
    for record in records.iter().filter(wrote) {
        if let Some(digest) = record.result_sha256 {
            holders.entry(digest).or_default().push(record);
        }
    }
    holders.into_values().filter(|runs| runs.len() > 1).flatten().map(|run| run.id).collect()
}

fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        odd if odd % 2 == 1 => Some(sorted[middle]),
        _ => Some(f64::midpoint(sorted[middle - 1], sorted[middle])),
    }
}

fn correlation(one: &[f64], two: &[f64]) -> Option<f64> {
    let count = one.len() as f64;
    let (mean_one, mean_two) = (one.iter().sum::<f64>() / count, two.iter().sum::<f64>() / count);
    let moment = |left: &[f64], left_mean: f64, right: &[f64], right_mean: f64| {
        left.iter().zip(right).map(|(left, right)| (left - left_mean) * (right - right_mean)).sum::<f64>()
    };
    let spread = (moment(one, mean_one, one, mean_one) * moment(two, mean_two, two, mean_two)).sqrt();
    (spread > 0.0).then(|| moment(one, mean_one, two, mean_two) / spread)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cold_first_pass_is_found_and_a_single_one_is_not_judged() {
        assert!(not_warm(&[]).is_empty() && not_warm(&[(1, 100.0)]).is_empty());
        assert!(not_warm(&[(1, 100.0), (2, 101.0), (3, 109.0)]).is_empty());
        assert_eq!(not_warm(&[(2, 100.0), (1, 41.0), (3, 99.0)])[0].0, 1);
        assert_eq!(not_warm(&[(1, 95.0), (2, 98.0), (3, 101.0)]).len(), 1, "rises by more than 2 % each");
    }

    #[test]
    fn medians_and_correlations_of_nothing_are_nothing() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0, 1.0]), Some(2.0));
        assert_eq!(correlation(&[], &[]), None);
        assert_eq!(correlation(&[1.0, 2.0], &[5.0, 5.0]), None);
        assert!((correlation(&[1.0, 2.0, 3.0], &[2.0, 4.0, 6.0]).expect("some") - 1.0).abs() < 1e-12);
        assert!(duplicates(&[]).is_empty());
    }
}
