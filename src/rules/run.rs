//! Rules about one run that [`crate::validity`] does not have.

use crate::fact::FactValue;
use crate::metric::Metric;
use crate::record::Record;
use crate::validity::Severity;

use super::{Fault, number, row, value};

/// The driver's own contexts hold less.
const IDLE_MIB: f64 = 500.0;
/// Padding to the next captured size that costs more than noise.
const PADDING_SHARE: f64 = 0.10;
/// Decode steps outside of graphs.
const GRAPH_OFF_SHARE: f64 = 0.01;
/// Clocks synchronised by NTP are closer.
const OFFSET_S: f64 = 0.5;
/// A first request this much slower paid for something.
const FIRST_TIMES: f64 = 5.0;
/// Fewest later requests that make a median.
const FEWEST_LATER: usize = 5;
/// Distinct words among all words below which a text loops.
const DISTINCT_SHARE: f64 = 0.02;
/// Fewest words for which that share can be told from a short answer.
const FEWEST_WORDS: usize = 100;

/// Memory bandwidth in bytes per second by a part of the card's name (data sheets); longer names first.
const BANDWIDTH: &[(&str, f64)] = &[
    ("H100 PCIe", 2.0e12),
    ("H100", 3.35e12),
    ("H200", 4.8e12),
    ("H20", 4.0e12),
    ("GB200", 8.0e12),
    ("B200", 8.0e12),
    ("B300", 8.0e12),
    ("A100-SXM4-40GB", 1.555e12),
    ("A100-PCIE-40GB", 1.555e12),
    ("A100", 2.039e12),
    ("RTX PRO 6000", 1.792e12),
    ("RTX 5090", 1.792e12),
    ("RTX 4090", 1.008e12),
    ("L40S", 0.864e12),
    ("L4", 0.3e12),
];

/// S22: more tokens per second at batch 1 than the memory can read weights for.
pub(super) fn impossible(run: &Record) -> Option<Fault> {
    let weight_bytes = number(run, "model.weight_bytes").filter(|bytes| *bytes > 0.0)?;
    let card = run.facts.get("gpu.0.name")?.to_string();
    let (_, bandwidth) = BANDWIDTH.iter().find(|(name, _)| card.contains(name))?;
    if number(run, "workload.concurrency")? > 1.0 {
        // From two requests on, one reading of the weights serves several tokens.
        return None;
    }
    let cards = number(run, "gpu.count")?.max(1.0);
    let per_step = value(run, Metric::AcceptLength).unwrap_or(1.0).max(1.0);
    let ceiling = bandwidth * cards / weight_bytes * per_step;
    let rate = value(run, Metric::OutputThroughput)?;
    (rate > ceiling).then(|| {
        Fault::new(
            Severity::Void,
            format!(
                "{rate:.1} tok/s at batch 1, but {:.2} GB of weights a token allow {ceiling:.1} tok/s at {:.2} TB/s",
                weight_bytes / 1e9,
                bandwidth * cards / 1e12
            ),
            "look for cached answers, speculation that was not declared, or another model",
        )
    })
}

/// S24: somebody else held memory of a card.
pub(super) fn not_alone(run: &Record) -> Option<Fault> {
    let count = number(run, "gpu.count")?.clamp(0.0, 1024.0) as usize;
    (0..count).find_map(|gpu| {
        let foreign = number(run, &format!("gpu.{gpu}.foreign_mib")).unwrap_or(0.0);
        let idle = number(run, &format!("gpu.{gpu}.idle_mib")).unwrap_or(0.0);
        (foreign > 0.0 || idle > IDLE_MIB).then(|| {
            Fault::new(
                Severity::Void,
                format!(
                    "{foreign} MiB of GPU {gpu} belonged to another process, {idle} MiB were in use before the start"
                ),
                "stop what is left over on the card (`nvidia-smi` names the process) and redo the block",
            )
        })
    })
}

/// S26: the batch runs outside of captured graphs, or pads to the next one.
pub(super) fn graph_coverage(run: &Record) -> Option<Fault> {
    let warn = |message: String| {
        Some(Fault::new(Severity::Warn, message, "add the level to the captured sizes (`--cuda-graph-bs`)"))
    };
    if let Some(share) = number(run, "counters.graph_off_share").filter(|share| *share > GRAPH_OFF_SHARE) {
        return warn(format!("{:.1} % of the decode steps ran without a graph", share * 100.0));
    }
    let Some(FactValue::List(sizes)) = run.facts.get("server.capacity.graph_sizes") else { return None };
    let sizes: Vec<f64> = sizes.iter().filter_map(|size| size.parse().ok()).collect();
    let batch = number(run, "workload.concurrency")?.min(number(run, "workload.num_prompts").unwrap_or(f64::INFINITY));
    let next = sizes.iter().copied().filter(|size| *size >= batch).reduce(f64::min);
    match (next, sizes.iter().copied().reduce(f64::max)) {
        (None, Some(largest)) => {
            warn(format!("a batch of {batch} is larger than the largest captured graph, {largest}"))
        }
        (Some(next), _) if next / batch - 1.0 > PADDING_SHARE => {
            warn(format!("a batch of {batch} is padded to {next}, {:.0} % more", (next / batch - 1.0) * 100.0))
        }
        _ => None,
    }
}

/// S37: the clocks of host and client are apart.
pub(super) fn clock_offset(run: &Record) -> Option<Fault> {
    let offset_s = number(run, "time.offset_s").filter(|offset| offset.abs() > OFFSET_S)?;
    Some(Fault::new(
        Severity::Warn,
        format!("the clocks of the hosts are {offset_s} s apart"),
        "synchronise them (`chronyc tracking`); times of two hosts cannot be subtracted",
    ))
}

/// S38: the first request paid for something.
pub(super) fn slow_first_request(run: &Record) -> Option<Fault> {
    let ttfts_s = &row(run)?.details.as_ref()?.ttfts_s;
    let (first, later) = ttfts_s.split_first()?;
    let mut next: Vec<f64> = later.iter().copied().filter(|ttft| *ttft > 0.0).take(10).collect();
    next.sort_by(f64::total_cmp);
    let usual = *next.get(next.len() / 2).filter(|_| next.len() >= FEWEST_LATER)?;
    (*first > FIRST_TIMES * usual).then(|| {
        Fault::new(
            Severity::Warn,
            format!("the first answer took {first:.2} s, the next ones {usual:.2} s"),
            "send a warm-up wave first (`warmup: { waves: 1 }`)",
        )
    })
}

/// S28: the generated text repeats a few words.
pub(super) fn looping_text(run: &Record) -> Option<Fault> {
    let texts = &row(run)?.details.as_ref()?.texts;
    let words: Vec<&str> = texts.iter().flat_map(|text| text.split_whitespace()).collect();
    let distinct = words.iter().collect::<std::collections::BTreeSet<_>>().len();
    let share = distinct as f64 / words.len().max(1) as f64;
    (words.len() >= FEWEST_WORDS && share < DISTINCT_SHARE).then(|| {
        Fault::new(
            Severity::Warn,
            format!("{distinct} distinct words among {}: the text loops", words.len()),
            "speculation accepts loops easily; use prompts with real answers",
        )
    })
}
