//! Counters of a server and their Prometheus text, under SGLang's names.
//!
//! Tokens are counted when a request ends, as SGLang does; the server's own warm-up counts, a health probe does not.

use std::fmt::Write as _;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Upper bounds in seconds of all histograms.
const BOUNDS: [f64; 16] =
    [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 60.0, 300.0];

/// Distribution of durations in seconds.
#[derive(Clone, Debug, Default)]
pub(crate) struct Histogram {
    counts: [u64; BOUNDS.len()],
    total: u64,
    sum: f64,
}

impl Histogram {
    pub(crate) fn observe(&mut self, seconds: f64) {
        if let Some(bucket) = BOUNDS.iter().position(|bound| seconds <= *bound) {
            self.counts[bucket] += 1;
        }
        self.total += 1;
        self.sum += seconds;
    }

    fn render(&self, name: &str, label: &str, text: &mut String) {
        let _ = writeln!(text, "# TYPE sglang:{name} histogram");
        let mut below = 0;
        for (bound, count) in BOUNDS.iter().zip(self.counts) {
            below += count;
            let _ = writeln!(text, "sglang:{name}_bucket{{le=\"{bound}\",{label}}} {below}");
        }
        let _ = writeln!(text, "sglang:{name}_bucket{{le=\"+Inf\",{label}}} {}", self.total);
        let _ = writeln!(text, "sglang:{name}_sum{{{label}}} {}", self.sum);
        let _ = writeln!(text, "sglang:{name}_count{{{label}}} {}", self.total);
    }
}

/// Everything a server counts.
#[derive(Clone, Debug, Default)]
pub(crate) struct Metrics {
    pub(crate) prompt_tokens: u64,
    pub(crate) generation_tokens: u64,
    pub(crate) cached_tokens: u64,
    pub(crate) requests: u64,
    pub(crate) aborted: u64,
    pub(crate) prefill_steps: u64,
    pub(crate) decode_steps: u64,
    pub(crate) oea_steps: u64,
    /// Distinct experts read by decode steps, added up over layers and steps.
    pub(crate) decode_experts_read: u64,
    pub(crate) flushes: u64,
    pub(crate) running: usize,
    pub(crate) waiting: usize,
    pub(crate) used_tokens: usize,
    pub(crate) capacity: usize,
    /// Tokens per second between the last two lines of the decode log.
    pub(crate) gen_throughput: f64,
    pub(crate) startup_seconds: f64,
    pub(crate) first_token: Histogram,
    pub(crate) inter_token: Histogram,
    pub(crate) end_to_end: Histogram,
    pub(crate) queue: Histogram,
}

impl Metrics {
    /// Share of the key and value cache in use by running sequences, 0 to 1.
    pub(crate) fn token_usage(&self) -> f64 {
        if self.capacity == 0 { 0.0 } else { self.used_tokens as f64 / self.capacity as f64 }
    }

    /// The Prometheus text.
    pub(crate) fn render(&self, model: &str) -> String {
        let label = format!("model_name=\"{}\"", model.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n"));
        let mut text = String::new();
        let counters = [
            ("sglang:prompt_tokens_total", self.prompt_tokens),
            ("sglang:generation_tokens_total", self.generation_tokens),
            ("sglang:cached_tokens_total", self.cached_tokens),
            ("sglang:num_requests_total", self.requests),
            ("sglang:num_aborted_requests_total", self.aborted),
            ("sglang:num_retracted_requests_total", 0),
            ("pocketmoe:prefill_steps_total", self.prefill_steps),
            ("pocketmoe:decode_steps_total", self.decode_steps),
            ("pocketmoe:oea_steps_total", self.oea_steps),
            ("pocketmoe:decode_experts_read_total", self.decode_experts_read),
            ("pocketmoe:cache_flushes_total", self.flushes),
        ];
        for (name, value) in counters {
            let _ = writeln!(text, "# TYPE {name} counter\n{name}{{{label}}} {value}");
        }
        let hits = if self.prompt_tokens == 0 { 0.0 } else { self.cached_tokens as f64 / self.prompt_tokens as f64 };
        let gauges = [
            ("gen_throughput", self.gen_throughput),
            ("num_running_reqs", self.running as f64),
            ("num_queue_reqs", self.waiting as f64),
            ("num_used_tokens", self.used_tokens as f64),
            ("token_usage", self.token_usage()),
            ("cache_hit_rate", hits),
            ("is_cuda_graph", 0.0),
            ("startup_time_seconds", self.startup_seconds),
        ];
        for (name, value) in gauges {
            let _ = writeln!(text, "# TYPE sglang:{name} gauge\nsglang:{name}{{{label}}} {value}");
        }
        self.first_token.render("time_to_first_token_seconds", &label, &mut text);
        self.inter_token.render("inter_token_latency_seconds", &label, &mut text);
        self.end_to_end.render("e2e_request_latency_seconds", &label, &mut text);
        self.queue.render("queue_time_seconds", &label, &mut text);
        text
    }
}

/// A panic elsewhere leaves the counters usable.
pub(crate) fn locked(metrics: &Mutex<Metrics>) -> MutexGuard<'_, Metrics> {
    metrics.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_did_nothing_reports_zeros() {
        let text = Metrics::default().render("m");
        assert!(text.contains("sglang:prompt_tokens_total{model_name=\"m\"} 0\n"), "{text}");
        assert!(text.contains("sglang:cache_hit_rate{model_name=\"m\"} 0\n"), "{text}");
        assert!(!text.contains("NaN"));
    }

    #[test]
    fn histograms_are_cumulative() {
        let mut histogram = Histogram::default();
        for seconds in [0.001, 0.004, 1000.0] {
            histogram.observe(seconds);
        }
        let mut text = String::new();
        histogram.render("x", "a=\"b\"", &mut text);
        assert!(text.contains("x_bucket{le=\"0.002\",a=\"b\"} 1\n"), "{text}");
        assert!(text.contains("x_bucket{le=\"300\",a=\"b\"} 2\n"), "{text}");
        assert!(text.contains("x_bucket{le=\"+Inf\",a=\"b\"} 3\n"), "{text}");
        assert!(text.contains("x_count{a=\"b\"} 3\n"), "{text}");
    }
}
