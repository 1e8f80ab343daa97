//! The closed list of metrics: name, unit, direction, and what exactly each one counts.
//!
//! Invariant: two values are comparable only when their definition ids are equal; a peak is never a mean, a value of the
//! client's row is never a value of the server's log. The doc comment of a variant is its definition on the site.

use std::fmt;

/// What a metric is measured in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Unit {
    /// Tokens per second.
    TokensPerSecond,
    /// Requests per second.
    RequestsPerSecond,
    /// Milliseconds.
    Milliseconds,
    /// Tokens.
    Tokens,
    /// A plain number.
    One,
}

impl Unit {
    /// Returns the symbol as the field writes it.
    pub fn symbol(self) -> &'static str {
        match self {
            Self::TokensPerSecond => "tok/s",
            Self::RequestsPerSecond => "req/s",
            Self::Milliseconds => "ms",
            Self::Tokens => "tok",
            Self::One => "1",
        }
    }
}

/// Which way is an improvement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Better {
    /// Larger values.
    Higher,
    /// Smaller values.
    Lower,
    /// Neither: a description of the run.
    Neither,
}

/// Where a value comes from; values of different origins never compare.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// The row that the load client wrote.
    ClientRow,
    /// The server's own log and counters.
    ServerLog,
}

/// How the values of one run's requests become one number. Percentiles interpolate linearly; the standard deviation is
/// that of the population (divisor n). Only requests that succeeded enter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Statistic {
    /// Arithmetic mean.
    Mean,
    /// 50th percentile.
    Median,
    /// Standard deviation.
    Std,
    /// 90th percentile.
    P90,
    /// 95th percentile.
    P95,
    /// 99th percentile.
    P99,
}

/// Which part of a request is timed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Span {
    /// Time to first token: from sending the request to the first chunk with text.
    Ttft,
    /// Time per output token after the first: (end-to-end − TTFT) / (output tokens − 1), one value a request.
    Tpot,
    /// Inter-token latency: the gap between two tokens, pooled over all gaps of all requests.
    Itl,
    /// End-to-end latency: from sending the request to its last event.
    E2eLatency,
}

/// One metric of the closed list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Metric {
    /// Generated tokens of the requests that succeeded, divided by the duration of the run: the mean rate.
    OutputThroughput,
    /// Prompt and generated tokens of the requests that succeeded, divided by the duration.
    TotalThroughput,
    /// Prompt tokens of the requests that succeeded, divided by the duration.
    InputThroughput,
    /// The fullest one-second bucket of token events: an artefact of bucketing, never comparable with a mean rate.
    PeakOutputThroughput,
    /// Requests that succeeded, divided by the duration.
    RequestThroughput,
    /// A statistic of a latency over the requests of the run.
    Latency(Statistic, Span),
    /// Mean number of requests in flight: the sum of end-to-end latencies divided by the duration.
    ConcurrencyAchieved,
    /// Mean number of tokens that one speculative step accepted, over the server's life since start or flush.
    AcceptLength,
    /// Median of the generation rate that the server logs over decode steps with the full batch, the first step after a
    /// prefill or idleness dropped.
    DecodeRate,
}

const STATISTICS: [(Statistic, &str); 6] = [
    (Statistic::Mean, "mean"),
    (Statistic::Median, "median"),
    (Statistic::Std, "std"),
    (Statistic::P90, "p90"),
    (Statistic::P95, "p95"),
    (Statistic::P99, "p99"),
];

const SPANS: [(Span, &str); 4] =
    [(Span::Ttft, "ttft"), (Span::Tpot, "tpot"), (Span::Itl, "itl"), (Span::E2eLatency, "e2e_latency")];

impl Metric {
    /// Returns every metric, rates first.
    pub fn all() -> Vec<Self> {
        let mut all = vec![
            Self::OutputThroughput,
            Self::TotalThroughput,
            Self::InputThroughput,
            Self::PeakOutputThroughput,
            Self::RequestThroughput,
            Self::DecodeRate,
        ];
        for (span, _) in SPANS {
            all.extend(STATISTICS.map(|(statistic, _)| Self::Latency(statistic, span)));
        }
        all.extend([Self::ConcurrencyAchieved, Self::AcceptLength]);
        all
    }

    /// Returns the name in specs, pages and JSON.
    pub fn name(self) -> String {
        match self {
            Self::OutputThroughput => "output_throughput".to_owned(),
            Self::TotalThroughput => "total_throughput".to_owned(),
            Self::InputThroughput => "input_throughput".to_owned(),
            Self::PeakOutputThroughput => "peak_output_throughput".to_owned(),
            Self::RequestThroughput => "request_throughput".to_owned(),
            Self::Latency(statistic, span) => {
                let word = |pairs: &[(Statistic, &'static str)]| {
                    pairs.iter().find(|(found, _)| *found == statistic).map_or("", |(_, word)| *word)
                };
                let timed = SPANS.iter().find(|(found, _)| *found == span).map_or("", |(_, word)| *word);
                format!("{}_{timed}_ms", word(&STATISTICS))
            }
            Self::ConcurrencyAchieved => "concurrency_achieved".to_owned(),
            Self::AcceptLength => "accept_length".to_owned(),
            Self::DecodeRate => "decode_rate".to_owned(),
        }
    }

    /// Reads a name; `None` for anything that is not in the list.
    pub fn parse(name: &str) -> Option<Self> {
        Self::all().into_iter().find(|metric| metric.name() == name)
    }

    /// Returns what exactly it counts: the doc comment of its variant, and of what it is a statistic of.
    pub fn definition(self) -> String {
        match self {
            Self::Latency(statistic, span) => {
                format!(
                    "{} Here: {}",
                    documented("Span", &format!("{span:?}")),
                    documented("Statistic", &format!("{statistic:?}")).to_lowercase()
                )
            }
            other => documented("Metric", &format!("{other:?}")),
        }
    }

    /// Returns the unit.
    pub fn unit(self) -> Unit {
        match self {
            Self::RequestThroughput => Unit::RequestsPerSecond,
            Self::Latency(..) => Unit::Milliseconds,
            Self::ConcurrencyAchieved => Unit::One,
            Self::AcceptLength => Unit::Tokens,
            _ => Unit::TokensPerSecond,
        }
    }

    /// Returns which way is an improvement.
    pub fn better(self) -> Better {
        match self {
            Self::Latency(..) => Better::Lower,
            Self::ConcurrencyAchieved | Self::AcceptLength => Better::Neither,
            _ => Better::Higher,
        }
    }

    /// Returns where the value comes from.
    pub fn origin(self) -> Origin {
        if self == Self::DecodeRate { Origin::ServerLog } else { Origin::ClientRow }
    }

    /// Returns the key under which `sglang.bench_serving` and `pocketmoe.load` write it; `None` when no row has it.
    pub fn row_key(self) -> Option<String> {
        match self {
            Self::PeakOutputThroughput => Some("max_output_tokens_per_s".to_owned()),
            Self::ConcurrencyAchieved => Some("concurrency".to_owned()),
            Self::DecodeRate => None,
            other => Some(other.name()),
        }
    }

    /// Returns the identity of what was counted: metric, client and version. Values under different ids never compare,
    /// since clients change formulas without changing names.
    pub fn definition_id(self, client: &str, version: &str) -> String {
        match self.origin() {
            Origin::ClientRow => format!("{} by {client} {version}", self.name()),
            Origin::ServerLog => format!("{} by the server's log", self.name()),
        }
    }
}

/// Returns the doc comment of a variant in this file, so that a definition is written once.
fn documented(of: &str, variant: &str) -> String {
    let source = include_str!("metric.rs");
    let body = source.split(&format!("pub enum {of} {{\n")).nth(1).unwrap_or("");
    let mut lines: Vec<&str> = Vec::new();
    for line in body.lines().take_while(|line| *line != "}") {
        match line.trim().strip_prefix("///") {
            Some(text) => lines.push(text.trim()),
            None if line.trim().split(['(', ',']).next() == Some(variant) => return lines.join(" "),
            None => lines.clear(),
        }
    }
    String::new()
}

impl fmt::Display for Metric {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_parses_back_and_no_two_are_equal() {
        let all = Metric::all();
        let names: std::collections::BTreeSet<String> = all.iter().map(|metric| metric.name()).collect();
        assert_eq!(names.len(), all.len());
        assert_eq!(all.len(), 6 + 24 + 2);
        assert!(all.iter().all(|metric| Metric::parse(&metric.name()) == Some(*metric)));
        assert_eq!(Metric::parse("p99_ttft_ms"), Some(Metric::Latency(Statistic::P99, Span::Ttft)));
        for wrong in ["", "peak", "throughput", "p50_ttft_ms", "Output_Throughput"] {
            assert_eq!(Metric::parse(wrong), None);
        }
    }

    #[test]
    fn each_metric_says_what_it_counts() {
        for metric in Metric::all() {
            let definition = metric.definition();
            assert!(definition.ends_with('.') && !definition.starts_with(' '), "{metric}: {definition}");
        }
        let p99 = Metric::Latency(Statistic::P99, Span::Ttft).definition();
        assert_eq!(
            p99,
            "Time to first token: from sending the request to the first chunk with text. Here: 99th percentile."
        );
        assert_eq!(documented("Metric", "None"), "");
    }

    #[test]
    fn a_peak_is_not_a_mean_and_a_client_is_not_the_next_version() {
        let id = |metric: Metric, version| metric.definition_id("sglang.bench_serving", version);
        assert_ne!(id(Metric::OutputThroughput, "0.5.23"), id(Metric::PeakOutputThroughput, "0.5.23"));
        assert_ne!(id(Metric::OutputThroughput, "0.5.23"), id(Metric::OutputThroughput, "0.5.13"));
        assert_eq!(id(Metric::DecodeRate, "0.5.23"), id(Metric::DecodeRate, "0.5.13"));
        assert_eq!(Metric::Latency(Statistic::Mean, Span::Itl).better(), Better::Lower);
    }
}
