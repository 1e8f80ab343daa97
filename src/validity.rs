//! Rules that need one run only: what its own record says against it.
//!
//! A rule that lacks its input is silent here; that a required fact is missing is the comparison's business, and so is a run
//! without a result ([`Written::Nothing`], [`Written::Unreadable`]): there is nothing to judge, and [`judge`] returns nothing.
//!
//! Invariant: the same record is always judged alike; nothing here reads a clock, a file or another run. A changed threshold
//! is a new version of the rules. Source: the rules S10 to S32 of the method, as far as one run can break them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::fact::{FactValue, Fingerprint};
use crate::metric::{Metric, Span, Statistic};
use crate::record::Record;
use crate::row::{Details, Row, Written};

/// Thresholds, each with its reason.
pub mod threshold {
    /// S10: below this ratio of mean to peak the run spent most of its time not decoding at speed (0.247 was a stalled baseline).
    pub const MEAN_TO_PEAK: f64 = 0.5;
    /// S11: a run of less than this holds too few whole seconds for a one-second peak to exceed the mean.
    pub const PEAK_NEEDS_SECONDS: f64 = 2.0;
    /// S12: identities hold exactly in the client; 2 % is room for printed digits.
    pub const IDENTITY: f64 = 0.02;
    /// S12: where lengths vary the mean time per token weighs requests, not tokens, so in-flight requests follow it loosely.
    pub const IDENTITY_VARYING_LENGTHS: f64 = 0.25;
    /// S14: more failures than this change what was measured; fewer are a note beside the number.
    pub const FAILED: f64 = 0.01;
    /// S15: with `ignore_eos` every request yields its planned length; 1 % is room for a few that failed late.
    pub const OUTPUT_LENGTH: f64 = 0.01;
    /// S15: a sum of drawn lengths may miss its mean by this many standard errors.
    pub const OUTPUT_LENGTH_STANDARD_ERRORS: f64 = 4.0;
    /// S16: templates and special tokens add less than this to prompts of a useful length.
    pub const PROMPT_TOKENS: f64 = 0.02;
    /// S17: the ramp at both ends costs a run of several waves less than this.
    pub const LOAD_REACHED: f64 = 0.8;
    /// S18: start and end, and the client's own last request, weigh too much below it.
    pub const SHORTEST_SECONDS: f64 = 30.0;
    /// S18: fewer waves are mostly ramp.
    pub const FEWEST_WAVES: f64 = 5.0;
    /// S20: random prompts share nothing but a start token.
    pub const CACHE_HITS: f64 = 0.01;
}

/// What a fired rule does, from the gravest on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// The comparison is refused at this condition.
    Block,
    /// The comparison and its interval stand, the claim has no verdict.
    Claim,
    /// The run (or its metric) is kept but leaves all aggregates.
    Void,
    /// Said beside the number.
    Warn,
    /// Said in grey.
    Note,
}

/// A rule that fired.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fired {
    /// The rule, such as `S12`.
    pub rule: &'static str,
    /// What it does.
    pub severity: Severity,
    /// The metric it is about; `None` is the whole run.
    pub metric: Option<Metric>,
    /// What was found and what was expected.
    pub message: String,
    /// What to do about it.
    pub help: String,
}

/// Returns every rule that fires on one run, in the order of their numbers. A run without a result fires none.
pub fn judge(record: &Record) -> Vec<Fired> {
    let (row, metrics) = match &record.written {
        Written::Row(row) => (Some(&**row), &row.metrics),
        Written::Values(values) => (None, values),
        Written::Several(rows) => return vec![several_rows(*rows)],
        Written::Nothing | Written::Unreadable(_) => return vec![],
    };
    let run = Run { row, metrics, facts: &record.facts };
    let rules = [
        mean_far_below_peak,
        impossible_order,
        broken_identities,
        failed_requests,
        output_lengths,
        prompt_lengths,
        load_not_reached,
        too_short,
        cache_hits,
    ];
    rules.iter().flat_map(|rule| rule(&run)).collect()
}

/// Returns the share of the requests that failed, phantom successes included; `None` where it is not known how many were sent.
pub fn failed_share(record: &Record) -> Option<f64> {
    let Written::Row(row) = &record.written else { return None };
    let (failed, asked) = Run { row: Some(row), metrics: &row.metrics, facts: &record.facts }.failed()?;
    Some(failed / asked)
}

/// One run as the rules see it.
struct Run<'a> {
    row: Option<&'a Row>,
    metrics: &'a BTreeMap<Metric, f64>,
    facts: &'a Fingerprint,
}

impl Run<'_> {
    fn metric(&self, metric: Metric) -> Option<f64> {
        self.metrics.get(&metric).copied()
    }

    fn latency(&self, statistic: Statistic, span: Span) -> Option<f64> {
        self.metric(Metric::Latency(statistic, span))
    }

    fn details(&self) -> Option<&Details> {
        self.row?.details.as_ref()
    }

    fn fact(&self, key: &str) -> Option<f64> {
        self.facts.get(key)?.number()
    }

    fn duration_s(&self) -> Option<f64> {
        self.row?.duration_s
    }

    fn completed(&self) -> Option<f64> {
        self.row?.completed.map(|count| count as f64)
    }

    /// Requests asked for: as the row says, as the run was started, or as many as have details.
    fn asked(&self) -> Option<f64> {
        let row = self.row;
        let written = row.and_then(|row| row.num_prompts.or_else(|| Some(row.completed? + row.failed?)));
        let listed = || self.details().map(|details| details.errors.len()).filter(|requests| *requests > 0);
        written
            .map(|count| count as f64)
            .or_else(|| self.fact("workload.num_prompts"))
            .or_else(|| listed().map(|requests| requests as f64))
    }

    fn max_concurrency(&self) -> Option<f64> {
        let cap = self.row.and_then(|row| row.max_concurrency).map(|count| count as f64);
        cap.or_else(|| self.fact("workload.concurrency")).filter(|cap| *cap > 0.0)
    }

    fn range_ratio(&self) -> Option<f64> {
        self.fact("workload.range_ratio").or_else(|| self.row?.random_range_ratio)
    }

    /// Requests that failed, and requests asked for, which are more than 0.
    fn failed(&self) -> Option<(f64, f64)> {
        let asked = self.asked().filter(|asked| *asked > 0.0)?;
        Some(((asked - self.completed()?).max(0.0) + self.phantom_successes() as f64, asked))
    }

    /// Successes in name only: no error, but no first token and nothing after it.
    fn phantom_successes(&self) -> usize {
        self.details().map_or(0, |details| {
            let without_token = |at: usize| {
                details.ttfts_s[at] == 0.0
                    && (details.texts.get(at).is_some_and(String::is_empty)
                        || details.output_lens.get(at) == Some(&0)
                        || details.itls_s.get(at).is_some_and(Vec::is_empty))
            };
            let succeeded = |at: usize| details.errors.get(at).is_some_and(String::is_empty);
            (0..details.ttfts_s.len()).filter(|at| succeeded(*at) && without_token(*at)).count()
        })
    }
}

fn fired(rule: &'static str, severity: Severity, message: String, help: &str) -> Fired {
    Fired { rule, severity, metric: None, message, help: help.to_owned() }
}

fn about(metric: Metric, fired: Fired) -> Fired {
    Fired { metric: Some(metric), ..fired }
}

fn apart(one: f64, two: f64, tolerance: f64) -> bool {
    (one - two).abs() > tolerance * one.abs().max(two.abs())
}

/// S10, the part of one run: it warns beside the mean and beside the peak.
fn mean_far_below_peak(run: &Run<'_>) -> Vec<Fired> {
    let (mean, peak) = (Metric::OutputThroughput, Metric::PeakOutputThroughput);
    let (Some(mean_rate), Some(peak_rate)) = (run.metric(mean), run.metric(peak)) else { return vec![] };
    if peak_rate <= 0.0 || mean_rate >= threshold::MEAN_TO_PEAK * peak_rate {
        return vec![];
    }
    let message = format!(
        "the mean of {mean_rate:.1} tok/s is {:.2} of the peak of {peak_rate:.1} tok/s, expected at least {:.1}",
        mean_rate / peak_rate,
        threshold::MEAN_TO_PEAK
    );
    let warning = fired("S10", Severity::Warn, message, "look for stalls, ramps and idle time; run longer");
    vec![about(mean, warning.clone()), about(peak, warning)]
}

/// S11: values in an order that no set of requests can have.
fn impossible_order(run: &Run<'_>) -> Vec<Fired> {
    let mut found = vec![];
    let void = |metric, message| {
        let help = "the client computed it from something else than it says; measure again with per-request details";
        about(metric, fired("S11", Severity::Void, message, help))
    };
    if run.latency(Statistic::Median, Span::Ttft) == Some(0.0) {
        let timed = run.metrics.keys().filter(|metric| matches!(metric, Metric::Latency(_, Span::Ttft)));
        found.extend(timed.map(|metric| {
            void(
                *metric,
                "the median time to the first token is 0 ms: half of the requests had no first token".to_owned(),
            )
        }));
    }
    for span in [Span::Ttft, Span::Tpot, Span::Itl, Span::E2eLatency] {
        found.extend(disordered_percentiles(run, span).map(|(metric, message)| void(metric, message)));
        found.extend(mean_below_smallest(run, span).map(|(metric, message)| void(metric, message)));
    }
    let (mean, peak) = (run.metric(Metric::OutputThroughput), run.metric(Metric::PeakOutputThroughput));
    let long = run.duration_s().is_some_and(|duration| duration >= threshold::PEAK_NEEDS_SECONDS);
    if let (Some(mean), Some(peak), true) = (mean, peak, long)
        && peak < mean
    {
        found.push(void(
            Metric::PeakOutputThroughput,
            format!("the peak of {peak} tok/s is below the mean of {mean} tok/s"),
        ));
    }
    found
}

fn disordered_percentiles(run: &Run<'_>, span: Span) -> Option<(Metric, String)> {
    let order = [Statistic::Median, Statistic::P90, Statistic::P95, Statistic::P99];
    let present: Vec<(Metric, f64)> = order
        .map(|statistic| Metric::Latency(statistic, span))
        .into_iter()
        .filter_map(|metric| run.metric(metric).map(|value| (metric, value)))
        .collect();
    let pair = present.windows(2).find(|pair| pair[1].1 < pair[0].1 * (1.0 - 1e-9))?;
    let ((lower, low), (upper, high)) = (pair[0], pair[1]);
    Some((upper, format!("`{upper}` is {high} and `{lower}` is {low}: a higher percentile cannot be smaller")))
}

fn mean_below_smallest(run: &Run<'_>, span: Span) -> Option<(Metric, String)> {
    let details = run.details()?;
    let succeeded = |at: &usize| details.errors.get(*at).is_some_and(String::is_empty);
    let smallest_s = match span {
        Span::Ttft => (0..details.ttfts_s.len()).filter(succeeded).map(|at| details.ttfts_s[at]).reduce(f64::min)?,
        Span::Itl => (0..details.itls_s.len())
            .filter(succeeded)
            .flat_map(|at| details.itls_s[at].iter().copied())
            .reduce(f64::min)?,
        Span::Tpot | Span::E2eLatency => return None,
    };
    let metric = Metric::Latency(Statistic::Mean, span);
    let (mean, smallest) = (run.metric(metric)?, 1000.0 * smallest_s);
    (smallest > mean * (1.0 + 1e-6))
        .then(|| (metric, format!("`{metric}` is {mean}, but the smallest of its requests is {smallest:.6} ms")))
}

/// S12: what one field says follows from others, and does not.
fn broken_identities(run: &Run<'_>) -> Vec<Fired> {
    let output = run.metric(Metric::OutputThroughput);
    let per_second = |count: Option<f64>| Some(count? / run.duration_s().filter(|duration| *duration > 0.0)?);
    let tokens = |read: fn(&Row) -> Option<u64>| run.row.and_then(read).map(|count| count as f64);
    let sum = output.and_then(|output| Some(output + run.metric(Metric::InputThroughput)?));
    let in_flight = run.metric(Metric::RequestThroughput).and_then(|rate| {
        let latency_s = run.latency(Statistic::Mean, Span::E2eLatency)? / 1000.0;
        Some(rate * latency_s)
    });
    let identities = [
        ("total_throughput", run.metric(Metric::TotalThroughput), "input + output throughput", sum),
        ("output_throughput", output, "output tokens / duration", per_second(tokens(|row| row.total_output_tokens))),
        (
            "input_throughput",
            run.metric(Metric::InputThroughput),
            "input tokens / duration",
            per_second(tokens(|row| row.total_input_tokens)),
        ),
        (
            "request_throughput",
            run.metric(Metric::RequestThroughput),
            "completed / duration",
            per_second(run.completed()),
        ),
        ("concurrency", run.metric(Metric::ConcurrencyAchieved), "request rate × mean end-to-end latency", in_flight),
    ];
    let help = "a field holds another unit or another quantity than its name says; the run cannot be used";
    let mut found: Vec<Fired> = identities
        .into_iter()
        .filter_map(|(name, stated, formula, computed)| {
            let (stated, computed) = (stated?, computed?);
            apart(stated, computed, threshold::IDENTITY).then(|| {
                let message = format!("`{name}` is {stated:.3}, but {formula} is {computed:.3}: they agree within 2 %");
                fired("S12", Severity::Void, message, help)
            })
        })
        .collect();
    found.extend(more_in_flight_than_allowed(run, help));
    found
}

fn more_in_flight_than_allowed(run: &Run<'_>, help: &str) -> Option<Fired> {
    let (output, cap) = (run.metric(Metric::OutputThroughput)?, run.max_concurrency()?);
    let token_s = run.latency(Statistic::Mean, Span::Tpot)? / 1000.0;
    let (tokens, completed) = (run.row?.total_output_tokens? as f64, run.completed()?);
    if completed <= 0.0 || tokens <= completed {
        return None;
    }
    let fixed = run.details().filter(|details| details.output_lens.len() > 1).map_or_else(
        || run.range_ratio() == Some(1.0),
        |details| {
            let mut lengths = details.output_lens.iter().filter(|length| **length > 0);
            let first = lengths.next();
            lengths.all(|length| Some(length) == first)
        },
    );
    let tolerance = if fixed { threshold::IDENTITY } else { threshold::IDENTITY_VARYING_LENGTHS };
    let length = tokens / completed;
    let decoding = output * token_s * (length - 1.0) / length;
    (decoding > cap * (1.0 + tolerance)).then(|| {
        let message = format!(
            "{output:.1} tok/s at {:.2} ms a token are {decoding:.1} requests in flight, but at most {cap} were allowed",
            1000.0 * token_s
        );
        fired("S12", Severity::Void, message, help)
    })
}

/// S14, the part of one run.
fn failed_requests(run: &Run<'_>) -> Vec<Fired> {
    let Some((failed, asked)) = run.failed().filter(|(failed, _)| *failed > 0.0) else { return vec![] };
    let phantom = run.phantom_successes() as f64;
    let severity = if failed / asked > threshold::FAILED { Severity::Block } else { Severity::Warn };
    let phantoms =
        if phantom > 0.0 { format!(", {phantom} of them counted as successes without a token") } else { String::new() };
    let message = format!("{failed} of {asked} requests failed ({:.1} %){phantoms}", 100.0 * failed / asked);
    vec![fired(
        "S14",
        severity,
        message,
        "read `errors` of the row and the server's log, mend the cause, run the block again",
    )]
}

/// S15, the part of one run.
fn output_lengths(run: &Run<'_>) -> Vec<Fired> {
    let ignores_eos = match run.facts.get("workload.ignore_eos") {
        Some(FactValue::Set) => true,
        Some(FactValue::Text(text)) => text == "true",
        _ => false,
    };
    let planned = run.fact("workload.output_tokens").filter(|length| *length > 0.0);
    let completed = run.completed().filter(|completed| *completed > 0.0);
    let tokens = run.row.and_then(|row| row.total_output_tokens);
    let (true, Some(planned), Some(completed), Some(tokens), Some(ratio)) =
        (ignores_eos, planned, completed, tokens, run.range_ratio())
    else {
        return vec![];
    };
    // Lengths are drawn from max(whole(L·r), 1) to L.
    let shortest = (planned * ratio).floor().clamp(1.0, planned);
    let mean = f64::midpoint(shortest, planned);
    let standard_error = (planned - shortest) / (12.0 * completed).sqrt() / mean;
    let tolerance = threshold::OUTPUT_LENGTH + threshold::OUTPUT_LENGTH_STANDARD_ERRORS * standard_error;
    let share = tokens as f64 / (completed * mean);
    if (share - 1.0).abs() <= tolerance {
        return vec![];
    }
    let message = format!(
        "{completed} requests of {mean} planned tokens yielded {tokens}, {share:.3} of the plan, although `ignore_eos` was asked"
    );
    let help = "`ignore_eos` did not reach the server, or lengths were capped; check the client's version and the request body";
    vec![fired("S15", Severity::Block, message, help)]
}

/// S16, the part of one run. Asked is the length of the workload where it is fixed, else what the client says it sent; its
/// list of lengths comes last, since some clients put the server's count there.
fn prompt_lengths(run: &Run<'_>) -> Vec<Fired> {
    let fixed = run.range_ratio() == Some(1.0);
    let planned = || run.fact("workload.input_tokens").filter(|_| fixed).zip(run.asked());
    let all_completed = run.completed().is_some() && run.completed() == run.asked();
    let totalled = || run.row.filter(|_| all_completed)?.total_input_tokens.map(|tokens| tokens as f64);
    let listed = || run.details().map(|details| details.input_lens.iter().map(|length| *length as f64).sum::<f64>());
    let asked = planned().map(|(length, prompts)| length * prompts).or_else(totalled).or_else(listed);
    let asked = asked.filter(|tokens| *tokens > 0.0);
    let (Some(seen), Some(asked)) = (run.fact("counters.prompt_tokens"), asked) else { return vec![] };
    let off = seen / asked - 1.0;
    if off.abs() <= threshold::PROMPT_TOKENS {
        return vec![];
    }
    let message = format!("the server counted {seen} prompt tokens, {asked} were asked for ({:+.1} %)", 100.0 * off);
    let help = "another tokenizer, a chat template, other traffic, or truncation: compare `model.tokenizer_sha256` of client and server";
    vec![fired("S16", Severity::Warn, message, help)]
}

/// S17. A finite request rate is its own load, and the cap only a guard.
fn load_not_reached(run: &Run<'_>) -> Vec<Fired> {
    if run.row.and_then(|row| row.request_rate).is_some_and(f64::is_finite)
        || run.fact("workload.request_rate").is_some()
    {
        return vec![];
    }
    let (Some(achieved), Some(cap)) = (run.metric(Metric::ConcurrencyAchieved), run.max_concurrency()) else {
        return vec![];
    };
    let wanted = run.asked().map_or(cap, |asked| cap.min(asked));
    if achieved >= threshold::LOAD_REACHED * wanted {
        return vec![];
    }
    let message = format!(
        "{achieved:.2} requests were in flight on average, {:.2} of the {wanted} asked for, expected at least {:.1}",
        achieved / wanted,
        threshold::LOAD_REACHED
    );
    vec![fired(
        "S17",
        Severity::Warn,
        message,
        "ask for more prompts a user, or look for a limit in client, network or server",
    )]
}

/// S18, the part that warns.
fn too_short(run: &Run<'_>) -> Vec<Fired> {
    let brief = run.duration_s().filter(|duration| *duration < threshold::SHORTEST_SECONDS);
    let few = run.asked().zip(run.max_concurrency()).filter(|(asked, cap)| *asked < threshold::FEWEST_WAVES * cap);
    let mut reasons = vec![];
    if let Some(duration) = brief {
        reasons.push(format!("the run took {duration:.2} s, expected at least {} s", threshold::SHORTEST_SECONDS));
    }
    if let Some((asked, cap)) = few {
        reasons.push(format!(
            "{asked} prompts are {:.1} waves of {cap}, expected at least {}",
            asked / cap,
            threshold::FEWEST_WAVES
        ));
    }
    if reasons.is_empty() {
        return vec![];
    }
    vec![fired("S18", Severity::Warn, reasons.join("; "), "raise `prompts_per_user`")]
}

/// S20, the part of one run.
fn cache_hits(run: &Run<'_>) -> Vec<Fired> {
    let data = ["workload.dataset", "client.args.dataset-name"];
    let is_random = data.iter().filter_map(|key| run.facts.get(key)).any(|data| match data {
        FactValue::Text(name) => matches!(name.as_str(), "random" | "random-ids"),
        _ => false,
    });
    let counted = run.fact("counters.cached_tokens").zip(run.fact("counters.prompt_tokens"));
    let (true, Some((cached, prompt))) = (is_random, counted) else { return vec![] };
    if prompt <= 0.0 || cached / prompt < threshold::CACHE_HITS {
        return vec![];
    }
    let message = format!(
        "{cached} of {prompt} prompt tokens ({:.1} %) came from the cache, although the prompts are random",
        100.0 * cached / prompt
    );
    let help = "flush the cache after the warm-up and share no prompt between warm-up and run; where the prompts are so short that they \
         share their first tokens by chance, make `input_tokens` longer";
    vec![fired("S20", Severity::Void, message, help)]
}

/// S32, the part of one run.
fn several_rows(rows: usize) -> Fired {
    let message = format!("the result file holds {rows} rows, one run writes one");
    fired(
        "S32",
        Severity::Void,
        message,
        "give each run its own file; which row is this run's cannot be told afterwards",
    )
}

#[cfg(test)]
mod tests;
