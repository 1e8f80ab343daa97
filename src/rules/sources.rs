//! Whether two sources of one run say the same: the client's row and the server's own log.
//!
//! Invariant: a source that is absent from one run is absent; agreement is never assumed. Source: on one H200, throughput said
//! +17 % where the decode rate said −3.2 %.

use super::{Evidence, Fault, value};
use crate::metric::Metric;
use crate::record::{Record, Tier};
use crate::stats::{self, CONFIDENCE};
use crate::validity::Severity;

/// Fewest blocks whose agreement stands for a second measurement.
const FEWEST_BLOCKS: usize = 3;

/// What the server's decode rate says of an effect that the client's rate shows.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Sources {
    /// The server's rate is not known in every run, or the metric is no rate of tokens.
    Unknown,
    /// Same direction, and the intervals overlap.
    Agree,
    /// Another direction, or intervals apart; the two ratios, the client's first.
    Disagree(f64, f64),
}

/// Compares the effect by the metric with the effect by the server's decode rate, over the same runs.
pub fn sources(evidence: &Evidence) -> Sources {
    if !matches!(evidence.metric, Metric::OutputThroughput | Metric::TotalThroughput | Metric::RequestThroughput) {
        return Sources::Unknown;
    }
    let effect = |metric: Metric| {
        let (mut control, mut treatment) = (Vec::new(), Vec::new());
        for (_, of_control, of_treatment) in &evidence.blocks {
            control.push(mean_of(of_control, metric)?);
            treatment.push(mean_of(of_treatment, metric)?);
        }
        stats::paired_fieller(&control, &treatment, CONFIDENCE).ok()
    };
    let (Some(client), Some(server)) = (effect(evidence.metric), effect(Metric::DecodeRate)) else {
        return Sources::Unknown;
    };
    let same_direction = (client.ratio - 1.0) * (server.ratio - 1.0) > 0.0;
    let overlap = client.low <= server.high && server.low <= client.high;
    if same_direction && overlap { Sources::Agree } else { Sources::Disagree(client.ratio, server.ratio) }
}

/// Returns whether two sources confirm an effect: at least three blocks whose runs observed all facts, and agreement.
pub fn confirmed(evidence: &Evidence) -> bool {
    let runs = || evidence.blocks.iter().flat_map(|(_, control, treatment)| control.iter().chain(treatment));
    evidence.blocks.len() >= FEWEST_BLOCKS
        && runs().all(|run| run.tier == Tier::Measured && run.position.is_some())
        && sources(evidence) == Sources::Agree
}

/// S41: the client's rate and the server's own log disagree about the effect.
pub(super) fn disagree(evidence: &Evidence) -> Option<Fault> {
    let Sources::Disagree(client, server) = sources(evidence) else { return None };
    let percent = |ratio: f64| (ratio - 1.0) * 100.0;
    let message = format!(
        "by the client's row the effect is {:+.1} %, by the decode rate in the server's log {:+.1} %",
        percent(client),
        percent(server)
    );
    let help =
        "claim the decode rate (`metric: decode_rate`) if decoding is meant; look for queueing or a busy client if not";
    Some(Fault::new(Severity::Warn, message, help))
}

fn mean_of(runs: &[&Record], metric: Metric) -> Option<f64> {
    let values: Option<Vec<f64>> = runs.iter().map(|run| value(run, metric)).collect();
    stats::mean(&values?).ok()
}
