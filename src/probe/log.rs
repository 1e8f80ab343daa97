//! The server's own log: lines about decode and prefill steps.
//!
//! Source: `SGLang` 0.4 to 0.5.23 write `Decode batch, #running-req: N, …, cuda graph: True, gen throughput (token/s): X,
//! #queue-req: N` (0.4: `Decode batch. …`) every so many steps, and a line `Prefill batch, …` a prefill step; `pocketmoe`
//! writes the same.

/// One line about a decode step: the state after it, and the rate since the line before.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Decode {
    /// Requests in the batch.
    pub(super) running: u64,
    /// Generated tokens per second since the last such line.
    pub(super) rate: f64,
    /// Whether the step was a captured graph.
    pub(super) graph: Option<bool>,
    /// Requests that wait.
    pub(super) queued: Option<u64>,
}

/// What a line is about.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Line {
    /// A decode step.
    Decode(Decode),
    /// A prefill step: prompt tokens computed, and prompt tokens found in the cache.
    Prefill {
        /// Computed.
        new: Option<u64>,
        /// From the cache.
        cached: Option<u64>,
    },
    /// Requests that lost their place in the KV cache and start again.
    Retracted(u64),
}

/// The lines of a log that say one of these.
pub(super) fn lines(log: &[u8]) -> impl Iterator<Item = Line> {
    log.split(|byte| *byte == b'\n').filter_map(|line| {
        // A line of this kind is short; a server may also print whole prompts.
        let line = String::from_utf8_lossy(&line[..line.len().min(4096)]);
        if let Some(at) = line.find("Decode batch") {
            let line = &line[at..];
            let graph = after(line, "cuda graph: ").map(|rest| rest.starts_with("True"));
            let (running, rate) = (whole(line, "#running-req: ")?, number(line, "gen throughput (token/s): ")?);
            return Some(Line::Decode(Decode { running, rate, graph, queued: whole(line, "#queue-req: ") }));
        }
        if let Some(at) = line.find("Prefill batch") {
            let line = &line[at..];
            return Some(Line::Prefill { new: whole(line, "#new-token: "), cached: whole(line, "#cached-token: ") });
        }
        whole(&line, "#retracted_reqs: ").map(Line::Retracted)
    })
}

fn after<'a>(line: &'a str, mark: &str) -> Option<&'a str> {
    line.find(mark).map(|at| &line[at + mark.len()..])
}

fn number(line: &str, mark: &str) -> Option<f64> {
    let rest = after(line, mark)?;
    let end = rest.find(|character: char| !character.is_ascii_digit() && character != '.').unwrap_or(rest.len());
    rest[..end].parse().ok().filter(|number: &f64| number.is_finite())
}

fn whole(line: &str, mark: &str) -> Option<u64> {
    let rest = after(line, mark)?;
    let end = rest.find(|character: char| !character.is_ascii_digit()).unwrap_or(rest.len());
    rest[..end].parse().ok()
}

/// Returns the metric `decode_rate`, tok/s: the median of the logged rates of decode steps whose batch holds `full_batch`
/// requests. The first step of the log and the first after a prefill (which every idle time ends with) are dropped: their
/// rate is over time in which nothing was decoded. `None` where no step is left.
///
/// `log` is the part of the server's log that was written while the measured client ran.
pub fn decode_rate(log: &[u8], full_batch: u64) -> Option<f64> {
    let (mut rates, mut undisturbed) = (Vec::new(), false);
    for line in lines(log) {
        match line {
            Line::Decode(step) => {
                if undisturbed && step.running == full_batch {
                    rates.push(step.rate);
                }
                undisturbed = true;
            }
            Line::Prefill { .. } | Line::Retracted(_) => undisturbed = false,
        }
    }
    rates.sort_unstable_by(f64::total_cmp);
    let upper = *rates.get(rates.len() / 2)?;
    if rates.len() % 2 == 1 { Some(upper) } else { Some(f64::midpoint(rates[rates.len() / 2 - 1], upper)) }
}

#[cfg(test)]
#[expect(clippy::print_stderr, reason = "a test that skips says why")]
mod tests {
    use super::*;

    #[test]
    fn nothing_logged_is_no_rate() {
        assert_eq!(decode_rate(b"", 1), None);
        assert_eq!(decode_rate(b"Decode batch, #running-req: 1, gen throughput (token/s): 5.00", 1), None);
        assert_eq!(decode_rate(b"Decode batch\nPrefill batch\n\xff\xfe Decode batch, #running-req: x", 1), None);
    }

    #[test]
    fn the_first_step_after_a_prefill_and_partial_batches_do_not_count() {
        let log = "[2026-11-30 13:43:21] Prefill batch, #new-seq: 2, #new-token: 128, #cached-token: 3, token usage: 0.00\n\
            [2026-11-30 13:43:21] Decode batch, #running-req: 2, #token: 160, cuda graph: True, gen throughput (token/s): 0.76, #queue-req: 4\n\
            [2026-11-30 13:43:22 TP0] Decode batch. #running-req: 2, #token: 200, gen throughput (token/s): 100.00, #queue-req: 0\n\
            Decode batch, #running-req: 2, gen throughput (token/s): 104\nDecode batch, #running-req: 1, gen throughput (token/s): 60\n\
            Prefill batch, #new-seq: 1\nDecode batch, #running-req: 2, gen throughput (token/s): 7\n";
        assert_eq!(decode_rate(log.as_bytes(), 2), Some(102.0));
        assert_eq!(decode_rate(log.as_bytes(), 1), Some(60.0));
        assert_eq!(decode_rate(log.as_bytes(), 3), None);
        assert_eq!(lines(log.as_bytes()).next(), Some(Line::Prefill { new: Some(128), cached: Some(3) }));
        let graph = Decode { running: 2, rate: 0.76, graph: Some(true), queued: Some(4) };
        assert_eq!(lines(log.as_bytes()).nth(1), Some(Line::Decode(graph)));
    }

    #[test]
    fn agrees_with_a_real_server() {
        // Published with the measurement: decode rates of the five levels, from the whole log of the launch.
        let path =
            std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/real/h200-sglang/A1-triton/server.log");
        let Ok(log) = std::fs::read(&path) else {
            eprintln!("skipped: {} is not here", path.display());
            return;
        };
        for (batch, published) in [(1, 470.5), (2, 784.8), (10, 1965.0), (64, 6996.0), (256, 22448.0)] {
            let rate = decode_rate(&log, batch).expect("a rate");
            assert!((rate / published - 1.0).abs() < 0.01, "{batch}: {rate}, published {published}");
        }
    }
}
