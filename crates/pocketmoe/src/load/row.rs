//! The row of a run: keys, formulas and order of `sglang.bench_serving` 0.5.23, then this client's own keys.
//!
//! Only successful requests enter any statistic. Percentiles are interpolated linearly and deviations are those of the
//! population, as numpy's defaults are. An infinite rate is written as bare `Infinity`, as that client writes it.

use super::request::Outcome;
use super::{DatasetName, LoadArgs, LoadBackend};
use crate::vocabulary::encode;
use serde_json::{Value, json};
use std::fmt::Write as _;

/// Statistics of one measured quantity, in milliseconds.
pub(super) struct Spread {
    pub(super) mean: f64,
    pub(super) median: f64,
    std: f64,
    pub(super) p90: f64,
    pub(super) p95: f64,
    pub(super) p99: f64,
    pub(super) max: f64,
}

impl Spread {
    /// Of values in seconds; all zero when there are none, as in that client.
    fn of(seconds: impl Iterator<Item = f64>) -> Self {
        let mut values: Vec<f64> = seconds.map(|seconds| seconds * 1000.0).collect();
        if values.is_empty() {
            values.push(0.0);
        }
        values.sort_by(f64::total_cmp);
        let count = values.len() as f64;
        let mean = values.iter().sum::<f64>() / count;
        let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / count;
        Self {
            mean,
            median: percentile(&values, 50.0),
            std: variance.sqrt(),
            p90: percentile(&values, 90.0),
            p95: percentile(&values, 95.0),
            p99: percentile(&values, 99.0),
            max: values[values.len() - 1],
        }
    }
}

/// Linear interpolation between the neighbours at `(n - 1) · percent / 100` of sorted values.
fn percentile(sorted: &[f64], percent: f64) -> f64 {
    let place = (sorted.len() - 1) as f64 * percent / 100.0;
    let (below, above) = (sorted[place.floor() as usize], sorted[place.ceil() as usize]);
    below + (above - below) * place.fract()
}

/// All numbers of a run.
pub(super) struct Row {
    pub(super) duration: f64,
    pub(super) completed: usize,
    pub(super) failed: usize,
    pub(super) input_tokens: usize,
    pub(super) output_tokens: usize,
    pub(super) retokenized: usize,
    pub(super) end_to_end: Spread,
    pub(super) first_token: Spread,
    pub(super) per_output_token: Spread,
    pub(super) inter_token: Spread,
    pub(super) concurrency: f64,
    pub(super) peak_tokens: usize,
    pub(super) peak_requests: usize,
    server_info: Value,
}

impl Row {
    /// At least one outcome must be a success.
    pub(super) fn new(outcomes: &[Outcome], duration: f64, server_info: Value) -> Self {
        let good: Vec<&Outcome> = outcomes.iter().filter(|outcome| outcome.error.is_none()).collect();
        let sum = |count: fn(&Outcome) -> usize| good.iter().map(|outcome| count(outcome)).sum::<usize>();
        let per_output_token = good.iter().filter(|outcome| outcome.output_tokens > 1);
        let (peak_tokens, peak_requests) = peaks(&good);
        Self {
            duration,
            completed: good.len(),
            failed: outcomes.len() - good.len(),
            input_tokens: sum(|outcome| outcome.input_tokens),
            output_tokens: sum(|outcome| outcome.output_tokens),
            retokenized: sum(|outcome| encode(&outcome.text).len()),
            end_to_end: Spread::of(good.iter().map(|outcome| outcome.latency)),
            first_token: Spread::of(good.iter().map(|outcome| outcome.first_token)),
            per_output_token: Spread::of(
                per_output_token
                    .map(|outcome| (outcome.latency - outcome.first_token) / (outcome.output_tokens - 1) as f64),
            ),
            inter_token: Spread::of(good.iter().flat_map(|outcome| outcome.gaps.iter().copied())),
            concurrency: good.iter().map(|outcome| outcome.latency).sum::<f64>() / duration,
            peak_tokens,
            peak_requests,
            server_info,
        }
    }

    pub(super) fn rate(&self, count: usize) -> f64 {
        count as f64 / self.duration
    }

    /// The row as one line of JSON.
    pub(super) fn line(&self, args: &LoadArgs, outcomes: &[Outcome]) -> String {
        let mut pairs = self.head(args);
        for (name, spread) in [
            ("e2e_latency", &self.end_to_end),
            ("ttft", &self.first_token),
            ("tpot", &self.per_output_token),
            ("itl", &self.inter_token),
        ] {
            let values = [
                ("mean", spread.mean),
                ("median", spread.median),
                ("std", spread.std),
                ("p90", spread.p90),
                ("p95", spread.p95),
                ("p99", spread.p99),
            ];
            pairs.extend(values.map(|(statistic, value)| (format!("{statistic}_{name}_ms"), json!(value))));
        }
        let accept = &self.server_info["internal_states"][0]["avg_spec_accept_length"];
        let mut own = |key: &str, value: Value| pairs.push((key.to_owned(), value));
        own("concurrency", json!(self.concurrency));
        own("accept_length", accept.clone());
        own("max_output_tokens_per_s", json!(self.peak_tokens as f64));
        own("max_concurrent_requests", json!(self.peak_requests));
        own("failed", json!(self.failed));
        own("num_prompts", json!(outcomes.len()));
        own("seed", json!(args.seed));
        own("warmup_requests", json!(args.warmup_requests));
        own("flush_cache", json!(args.flush_cache));
        own("client", json!("pocketmoe.load"));
        own("client_version", json!(crate::VERSION));
        if args.output_details {
            let good = |outcome: &Outcome| outcome.error.is_none();
            let list = |value: &dyn Fn(&Outcome) -> Value| Value::Array(outcomes.iter().map(value).collect());
            own("input_lens", list(&|outcome| json!(outcome.input_tokens)));
            own("output_lens", list(&|outcome| json!(if good(outcome) { outcome.output_tokens } else { 0 })));
            own("ttfts", list(&|outcome| json!(outcome.first_token)));
            own("itls", list(&|outcome| json!(outcome.gaps)));
            own("generated_texts", list(&|outcome| json!(outcome.text)));
            own("errors", list(&|outcome| json!(outcome.error.clone().unwrap_or_default())));
        }
        let mut line = String::from("{");
        for (place, (key, value)) in pairs.iter().enumerate() {
            let comma = if place == 0 { "" } else { ", " };
            // JSON has no infinity; readers of that client's rows know this spelling.
            let value = if key == "request_rate" && value.is_null() { "Infinity".into() } else { value.to_string() };
            let _ = write!(line, "{comma}\"{key}\": {value}");
        }
        line + "}\n"
    }

    /// Everything before the latencies.
    fn head(&self, args: &LoadArgs) -> Vec<(String, Value)> {
        let LoadBackend::Sglang = args.backend;
        let dataset = match args.dataset_name {
            DatasetName::RandomIds => "random-ids",
            DatasetName::Custom => "custom",
        };
        let pairs = [
            ("tag", json!(args.tag)),
            ("backend", json!("sglang")),
            ("dataset_name", json!(dataset)),
            // `json!` of an infinity is null.
            ("request_rate", json!(args.request_rate)),
            ("max_concurrency", json!(args.max_concurrency)),
            ("sharegpt_output_len", Value::Null),
            ("random_input_len", json!(args.random_input_len)),
            ("random_output_len", json!(args.random_output_len)),
            ("random_range_ratio", json!(args.random_range_ratio)),
            ("server_info", self.server_info.clone()),
            ("duration", json!(self.duration)),
            ("completed", json!(self.completed)),
            ("total_input_tokens", json!(self.input_tokens)),
            ("total_input_text_tokens", json!(self.input_tokens)),
            ("total_input_vision_tokens", json!(0)),
            ("total_output_tokens", json!(self.output_tokens)),
            ("total_output_tokens_retokenized", json!(self.retokenized)),
            ("request_throughput", json!(self.rate(self.completed))),
            ("input_throughput", json!(self.rate(self.input_tokens))),
            ("output_throughput", json!(self.rate(self.output_tokens))),
            ("total_throughput", json!(self.rate(self.input_tokens + self.output_tokens))),
        ];
        pairs.map(|(key, value)| (key.to_owned(), value)).into()
    }
}

/// The largest counts of token events and of requests that touch a second, counted from the first start.
fn peaks(good: &[&Outcome]) -> (usize, usize) {
    let Some(begin) = good.iter().map(|outcome| outcome.start).min_by(f64::total_cmp) else { return (0, 0) };
    let end = good.iter().map(|outcome| outcome.start + outcome.latency).fold(begin, f64::max);
    let seconds = (end - begin).ceil() as usize + 1;
    let (mut tokens, mut requests) = (vec![0usize; seconds], vec![0usize; seconds]);
    for outcome in good {
        let start = outcome.start - begin;
        let mut time = start + outcome.first_token;
        for gap in std::iter::once(0.0).chain(outcome.gaps.iter().copied()) {
            time += gap;
            if let Some(count) = tokens.get_mut(time as usize) {
                *count += 1;
            }
        }
        let last = ((start + outcome.latency) as usize).min(seconds - 1);
        requests[start as usize..=last].iter_mut().for_each(|count| *count += 1);
    }
    let most = |counts: &[usize]| counts.iter().copied().max().unwrap_or(0);
    (most(&tokens), most(&requests))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_measured_is_zero() {
        let spread = Spread::of(std::iter::empty());
        let all = [spread.mean, spread.median, spread.std, spread.p99, spread.max];
        assert!(all.iter().all(|value| value.abs() < 1e-12), "{all:?}");
        assert_eq!(peaks(&[]), (0, 0));
    }

    #[test]
    fn statistics_are_numpys() {
        // numpy 2.4: mean, median, std, percentile 90, 95, 99 of [1, 2, 3, 4, 10].
        let spread = Spread::of([0.003, 0.001, 0.010, 0.002, 0.004].into_iter());
        let got = [spread.mean, spread.median, spread.std, spread.p90, spread.p95, spread.p99, spread.max];
        let want = [4.0, 3.0, 3.162_277_660_168_379_5, 7.6, 8.8, 9.76, 10.0];
        assert!(got.iter().zip(want).all(|(got, want)| (got - want).abs() < 1e-9), "{got:?}");
    }

    #[test]
    fn peaks_count_whole_seconds_from_the_first_start() {
        let outcome = |start, gaps: &[f64]| Outcome {
            start,
            first_token: 0.1,
            gaps: gaps.to_vec(),
            latency: 0.1 + gaps.iter().sum::<f64>(),
            ..Outcome::default()
        };
        let (a, b) = (outcome(5.0, &[0.2, 0.2, 0.9]), outcome(6.5, &[0.1]));
        // Tokens at 0.1, 0.3, 0.5, 1.4 and 1.6, 1.7; requests touch seconds 0 and 1, and 1.
        assert_eq!(peaks(&[&a, &b]), (3, 2));
    }
}
