//! What the server counted while the measured client ran: `counters.*`.
//!
//! Source: the Prometheus text of `/metrics` before and after; where the server has none, its log between.

use std::collections::BTreeMap;

use super::RawFiles;
use super::log::{Line, lines};
use crate::fact::Fingerprint;
use crate::question::Engine;

/// Names in `/metrics` (without prefix and `_total`) and in facts.
const COUNTERS: [(&str, &str); 6] = [
    ("prompt_tokens", "prompt_tokens"),
    ("generation_tokens", "generation_tokens"),
    ("cached_tokens", "cached_tokens"),
    ("num_requests", "requests"),
    ("num_aborted_requests", "aborted"),
    ("num_retracted_requests", "retractions"),
];

pub(super) fn facts(files: &RawFiles, folder: &str, engine: Engine, facts: &mut Fingerprint) {
    let metrics = |look: &str| {
        let path = format!("out/{folder}/{look}/metrics");
        let answered = files.word(&format!("{path}.code")).is_none_or(|code| code == "200");
        totals(&files.read(&path).filter(|_| answered).unwrap_or_default())
    };
    let (before, after) = (metrics("before"), metrics("after"));
    // A counter that went down belongs to another life of the server.
    let grown = |name: &str| Some(after.get(name)? - before.get(name)?).filter(|grown| *grown >= 0.0);
    let mut put = |name: &str, value: f64| facts.text(&format!("counters.{name}"), format!("{value}"));
    for (counter, name) in COUNTERS {
        if let Some(grown) = grown(counter) {
            put(name, grown);
        }
    }
    let Some(log) = part_of_log(files, folder) else { return };
    let (mut steps, mut eager, mut prompt, mut cached, mut retracted) = (0.0, 0.0, Some(0), Some(0), 0);
    let (mut told, mut prefills, mut queued) = (0.0, 0, None);
    for line in lines(&log) {
        match line {
            Line::Decode(step) => {
                steps += 1.0;
                told += f64::from(u8::from(step.graph.is_some()));
                eager += f64::from(u8::from(step.graph == Some(false)));
                queued = queued.max(step.queued);
            }
            Line::Prefill { new, cached: found } => {
                prefills += 1;
                let sum = |total: Option<u64>, more: Option<u64>| total?.checked_add(more?);
                (prompt, cached) = (sum(sum(prompt, new), found), sum(cached, found));
            }
            Line::Retracted(requests) => retracted += requests.min(1 << 32),
        }
    }
    if steps > 0.0 {
        put("decode_lines", steps);
    }
    // The pocket engine has no graphs to fall off.
    if told > 0.0 && engine != Engine::Pocketmoe {
        put("graph_off_share", eager / told);
    }
    if let Some(queued) = queued {
        put("queued", queued as f64);
    }
    if prefills > 0 {
        for (name, counter, value) in
            [("prompt_tokens", "prompt_tokens", prompt), ("cached_tokens", "cached_tokens", cached)]
        {
            if let (None, Some(value)) = (grown(counter), value) {
                put(name, value as f64);
            }
        }
        if grown("num_retracted_requests").is_none() {
            put("retractions", retracted as f64);
        }
    }
}

/// The bytes of the server's log that were written while the measured client ran.
fn part_of_log(files: &RawFiles, folder: &str) -> Option<Vec<u8>> {
    let offset = |name: &str| files.word(&format!("out/{folder}/{name}"))?.parse::<usize>().ok();
    let (from, to) = (offset("log-from")?, offset("log-to")?);
    let log = files.read("out/server.log")?;
    Some(log.get(from..to.min(log.len()))?.to_vec())
}

/// Counters of a Prometheus text, added up over their labels; `sglang:x_total` and `sglang_x_total` are `x`.
fn totals(text: &[u8]) -> BTreeMap<String, f64> {
    let mut totals = BTreeMap::new();
    for line in String::from_utf8_lossy(text).lines() {
        let Some(rest) = line.strip_prefix("sglang").and_then(|rest| rest.strip_prefix([':', '_'])) else { continue };
        let end = rest.find(|character: char| !character.is_ascii_alphanumeric() && character != '_');
        let Some(name) = rest[..end.unwrap_or(rest.len())].strip_suffix("_total") else { continue };
        // A label may hold anything, also blanks and braces: the value is behind the last brace.
        let value = rest.rsplit('}').next().unwrap_or(rest).trim_start_matches(name).trim_start_matches("_total");
        let value = value.split_whitespace().next().and_then(|value| value.parse::<f64>().ok());
        if let Some(value) = value.filter(|value| value.is_finite()) {
            *totals.entry(name.to_owned()).or_insert(0.0) += value;
        }
    }
    totals
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_add_up_over_their_labels() {
        assert!(totals(b"").is_empty() && totals(b"\xff\n# TYPE sglang:x_total counter\nother:x_total 3\n").is_empty());
        let text =
            b"sglang:x_total{a=\"1 } {\"} 3.0\nsglang:x_total{a=\"2\"} 4 1700000000\nsglang_y_total 7\nsglang:z 1\n\
            sglang:w_total{a=\"1\"} NaN\n";
        let totals = totals(text);
        assert_eq!(totals.get("x"), Some(&7.0));
        assert_eq!(totals.get("y"), Some(&7.0));
        assert_eq!(totals.len(), 2);
    }
}
