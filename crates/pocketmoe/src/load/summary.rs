//! What `pocketmoe load` prints: the arguments first, the summary of `sglang.bench_serving` last.

use super::row::{Row, Spread};
use super::{DatasetName, LoadArgs};
use std::io::{Result, Write};

/// All arguments, the client and its version, as Python prints a `Namespace`; the key is not shown.
pub(super) fn namespace(args: &LoadArgs) -> String {
    let text = |value: &str| format!("'{}'", value.replace('\\', "\\\\").replace('\'', "\\'"));
    let maybe = |value: Option<String>| value.unwrap_or_else(|| "None".into());
    let flag = |value: bool| if value { "True" } else { "False" }.to_owned();
    let path = |value: &Option<std::path::PathBuf>| maybe(value.as_ref().map(|path| text(&path.display().to_string())));
    let dataset = match args.dataset_name {
        DatasetName::RandomIds => "random-ids",
        DatasetName::Custom => "custom",
    };
    let extra = args.extra_request_body.clone().map(|body| text(&serde_json::Value::Object(body).to_string()));
    let pairs = [
        ("backend", text("sglang")),
        ("base_url", maybe(args.base_url.as_deref().map(text))),
        ("host", text(&args.host)),
        ("port", args.port.to_string()),
        ("ready_check_timeout_sec", args.ready_check_timeout_sec.to_string()),
        ("request_timeout_sec", args.request_timeout_sec.to_string()),
        ("dataset_name", text(dataset)),
        ("dataset_path", path(&args.dataset_path)),
        ("num_prompts", args.num_prompts.to_string()),
        ("random_input_len", args.random_input_len.to_string()),
        ("random_output_len", args.random_output_len.to_string()),
        ("random_range_ratio", format!("{:?}", args.random_range_ratio)),
        ("request_rate", rate(args.request_rate)),
        ("max_concurrency", maybe(args.max_concurrency.map(|most| most.to_string()))),
        ("output_file", path(&args.output_file)),
        ("output_details", flag(args.output_details)),
        ("seed", args.seed.to_string()),
        ("disable_ignore_eos", flag(args.disable_ignore_eos)),
        ("temperature", format!("{:?}", args.temperature)),
        ("extra_request_body", maybe(extra)),
        ("flush_cache", flag(args.flush_cache)),
        ("warmup_requests", args.warmup_requests.to_string()),
        ("tag", maybe(args.tag.as_deref().map(text))),
        ("api_key", maybe(args.api_key.as_ref().map(|_| text("***")))),
        ("client", text("pocketmoe.load")),
        ("client_version", text(crate::VERSION)),
        ("client_commit", text(crate::COMMIT)),
    ];
    let pairs: Vec<_> = pairs.into_iter().map(|(name, value)| format!("{name}={value}")).collect();
    format!("Namespace({})", pairs.join(", "))
}

fn rate(rate: f64) -> String {
    if rate.is_infinite() { "inf".into() } else { format!("{rate:?}") }
}

/// The summary.
pub(super) fn print(args: &LoadArgs, row: &Row, out: &mut dyn Write) -> Result<()> {
    writeln!(out, "\n{:=^50}", " Serving Benchmark Result ")?;
    let limit = args.max_concurrency.map_or_else(|| "not set".into(), |most| most.to_string());
    let number = |value: f64| format!("{value:.2}");
    let lines = [
        ("Backend:", "sglang".to_owned()),
        ("Traffic request rate:", rate(args.request_rate)),
        ("Max request concurrency:", limit),
        ("Successful requests:", row.completed.to_string()),
        ("Failed requests:", row.failed.to_string()),
        ("Benchmark duration (s):", number(row.duration)),
        ("Total input tokens:", row.input_tokens.to_string()),
        ("Total input text tokens:", row.input_tokens.to_string()),
        ("Total generated tokens:", row.output_tokens.to_string()),
        ("Total generated tokens (retokenized):", row.retokenized.to_string()),
        ("Request throughput (req/s):", number(row.rate(row.completed))),
        ("Input token throughput (tok/s):", number(row.rate(row.input_tokens))),
        ("Output token throughput (tok/s):", number(row.rate(row.output_tokens))),
        ("Peak output token throughput (tok/s):", number(row.peak_tokens as f64)),
        ("Peak concurrent requests:", row.peak_requests.to_string()),
        ("Total token throughput (tok/s):", number(row.rate(row.input_tokens + row.output_tokens))),
        ("Concurrency:", number(row.concurrency)),
    ];
    for (label, value) in lines {
        writeln!(out, "{label:<40} {value:<10}")?;
    }
    section(out, "End-to-End Latency", "E2E Latency", &row.end_to_end)?;
    section(out, "Time to First Token", "TTFT", &row.first_token)?;
    section(out, "Time per Output Token (excl. 1st token)", "TPOT", &row.per_output_token)?;
    section(out, "Inter-Token Latency", "ITL", &row.inter_token)?;
    writeln!(out, "{:<40} {:<10.2}", "Max ITL (ms):", row.inter_token.max)?;
    writeln!(out, "{:=^50}", "")
}

fn section(out: &mut dyn Write, title: &str, name: &str, spread: &Spread) -> Result<()> {
    writeln!(out, "{title:-^50}")?;
    for (statistic, value) in [
        ("Mean", spread.mean),
        ("Median", spread.median),
        ("P90", spread.p90),
        ("P95", spread.p95),
        ("P99", spread.p99),
    ] {
        writeln!(out, "{:<40} {value:<10.2}", format!("{statistic} {name} (ms):"))?;
    }
    Ok(())
}
