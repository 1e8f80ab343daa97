//! The load client, and the published client it takes after.

use crate::support::{Server, rows, scratch};
use serde_json::Value;
use std::io::Write as _;
use std::process::Command;

fn number(row: &Value, key: &str) -> f64 {
    row[key].as_f64().unwrap_or_else(|| panic!("{key}: {row}"))
}

fn close(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-9 * a.abs().max(b.abs()).max(1.0)
}

const LOAD: &str = "--num-prompts 12 --random-input-len 20 --random-output-len 10 --max-concurrency 4 --output-details";

#[tokio::test]
async fn all_counts_agree_and_the_row_satisfies_its_identities() {
    let server = Server::ready("--random-seed 1 --skip-server-warmup");
    let file = scratch("row.jsonl");
    let output = server.load(&format!("{LOAD} --tag here --flush-cache"), &file);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.starts_with("benchmark_args=Namespace(backend='sglang', "), "{text}");
    assert!(text.contains("\n============ Serving Benchmark Result ============\n"), "{text}");
    assert!(text.contains("Successful requests:                     12        \n"), "{text}");
    assert!(std::fs::read_to_string(&file).unwrap().contains("\"request_rate\": Infinity, "));
    let all = rows(&file);
    let row = &all[0];
    let plan = pocketmoe::load::plan_requests(42, 12, 20, 10, 0.0);
    let (input, output): (usize, usize) =
        plan.iter().fold((0, 0), |(a, b), request| (a + request.input_tokens, b + request.output_tokens));
    for (key, value) in [
        ("completed", 12),
        ("failed", 0),
        ("num_prompts", 12),
        ("total_input_tokens", input),
        ("total_output_tokens", output),
        ("total_output_tokens_retokenized", output),
    ] {
        assert_eq!(row[key], value, "{key}");
    }
    assert_eq!(server.metric("sglang:prompt_tokens_total").await, input as u64);
    assert_eq!(server.metric("sglang:generation_tokens_total").await, output as u64);
    assert_eq!(server.metric("sglang:num_requests_total").await, 12);
    let planned: Vec<usize> = plan.iter().map(|request| request.output_tokens).collect();
    assert_eq!(row["output_lens"], serde_json::json!(planned));
    let seconds = number(row, "duration");
    assert!(close(number(row, "output_throughput"), output as f64 / seconds));
    assert!(close(number(row, "request_throughput"), 12.0 / seconds));
    assert!(close(number(row, "total_throughput"), number(row, "input_throughput") + number(row, "output_throughput")));
    assert!(close(number(row, "concurrency"), 12.0 * number(row, "mean_e2e_latency_ms") / 1000.0 / seconds));
    assert!(number(row, "concurrency") <= 4.0);
    for name in ["ttft", "tpot", "itl", "e2e_latency"] {
        let [median, p90, p95, p99] =
            ["median", "p90", "p95", "p99"].map(|statistic| number(row, &format!("{statistic}_{name}_ms")));
        assert!(median <= p90 && p90 <= p95 && p95 <= p99, "{name}");
    }
    let gaps: usize = row["itls"].as_array().unwrap().iter().map(|gaps| gaps.as_array().unwrap().len()).sum();
    assert_eq!(gaps, output - 12, "one gap for each token but the first of each request");
    assert_eq!(row["server_info"]["moe_runner_backend"], "grouped");
    assert_eq!((&row["tag"], &row["client"]), (&"here".into(), &"pocketmoe.load".into()));
    assert!(server.load(LOAD, &file).status.success());
    let again = rows(&file);
    assert_eq!(again.len(), 2, "rows are appended");
    assert_eq!(again[0]["generated_texts"], again[1]["generated_texts"], "the seed decides the workload");
}

#[tokio::test]
async fn failures_are_told_apart_from_successes() {
    for (fault, reason) in [
        ("error-in-stream", "error in the stream: fault error-in-stream"),
        ("empty-stream", "the stream brought no token"),
        ("http-500", "status 500"),
        ("drop", ""),
    ] {
        let server = Server::ready(&format!("--fault {fault}"));
        let file = scratch("row.jsonl");
        assert!(server.load(LOAD, &file).status.success());
        let row = &rows(&file)[0];
        assert_eq!((&row["completed"], &row["failed"]), (&9.into(), &3.into()), "{fault}");
        let errors = row["errors"].as_array().unwrap();
        let failed: Vec<&str> = errors.iter().filter_map(Value::as_str).filter(|error| !error.is_empty()).collect();
        assert!(failed.len() == 3 && failed.iter().all(|error| error.contains(reason)), "{failed:?}");
        let lens = row["output_lens"].as_array().unwrap();
        let total: u64 = lens.iter().filter_map(Value::as_u64).sum();
        assert_eq!(
            (row["total_output_tokens"].as_u64(), lens.iter().filter(|len| **len == 0).count()),
            (Some(total), 3)
        );
    }
}

#[tokio::test]
async fn an_early_end_is_counted_as_the_server_counts_it() {
    let server = Server::ready("--fault early-eos");
    let file = scratch("row.jsonl");
    assert!(server.load("--num-prompts 4 --random-output-len 10 --random-range-ratio 1", &file).status.success());
    let row = &rows(&file)[0];
    assert_eq!((&row["completed"], &row["total_output_tokens"]), (&4.into(), &20.into()));
}

#[tokio::test]
async fn nothing_but_failures_is_an_error_without_a_row() {
    let server = Server::ready("--fault http-500=1");
    let file = scratch("row.jsonl");
    let output = server.load("--num-prompts 3 --random-input-len 4 --random-output-len 4", &file);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(1) && text.contains("no request succeeded: 3 of 3 failed"), "{text}");
    assert!(rows(&file).is_empty());
    let output = server.load("--num-prompts 3 --warmup-requests 2", &file);
    assert!(String::from_utf8_lossy(&output.stderr).contains("the warm-up failed: status 500"));
}

#[test]
fn a_missing_server_and_a_missing_folder_are_found_before_the_run() {
    let load = |arguments: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_pocketmoe"))
            .args(["load", "--port", "1", "--ready-check-timeout-sec", "0"])
            .args(arguments)
            .output()
            .unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (code, text) = load(&[]);
    assert!(code == Some(1) && text.contains("did not answer within 0 s"), "{text}");
    let (code, text) = load(&["--output-file", "no/such/folder/row.jsonl"]);
    assert!(code == Some(1) && text.contains("cannot write `no/such/folder/row.jsonl`"), "{text}");
    assert_eq!(load(&["--num-prompt", "1"]).0, Some(2), "abbreviations are refused");
    assert_eq!(load(&["--dataset-name", "custom"]).0, Some(1));
}

#[tokio::test]
async fn a_finite_rate_spreads_the_starts_and_a_warm_up_is_not_in_the_row() {
    let server = Server::ready("--skip-server-warmup");
    let file = scratch("row.jsonl");
    let load = "--num-prompts 20 --random-input-len 4 --random-output-len 4 --request-rate 40 --warmup-requests 3";
    assert!(server.load(load, &file).status.success());
    let row = &rows(&file)[0];
    assert_eq!((&row["request_rate"], &row["completed"]), (&40.0.into(), &20.into()));
    assert!(number(row, "duration") > 0.15, "20 gaps with a mean of 25 ms");
    assert_eq!(server.metric("sglang:num_requests_total").await, 23);
}

#[tokio::test]
async fn prompts_come_from_a_file_and_the_body_can_be_extended() {
    let server = Server::ready("--random-seed 1");
    let (data, file) = (scratch("prompts.jsonl"), scratch("row.jsonl"));
    std::fs::write(&data, "{\"prompt\": \"w1 w2 w3\", \"output_len\": 5}\n").unwrap();
    let load = format!("--dataset-name custom --dataset-path {} --num-prompts 1", data.display());
    assert!(server.load(&load, &file).status.success());
    let extra = "{\"sampling_params\":{\"max_new_tokens\":7,\"ignore_eos\":true}}";
    assert!(server.load(&format!("{load} --extra-request-body {extra}"), &file).status.success());
    let rows = rows(&file);
    assert_eq!((&rows[0]["total_input_tokens"], &rows[0]["total_output_tokens"]), (&3.into(), &5.into()));
    assert_eq!(rows[1]["total_output_tokens"], 7);
}

/// The published `sglang.bench_serving`, prepared in the folder that `PUBLISHED_CLIENT_DIR` names by the tool beside the
/// repository.
#[tokio::test]
async fn the_published_client_drives_the_server_and_counts_the_same() {
    let tool = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/tools/sglang-client");
    let Some(folder) = std::env::var_os("PUBLISHED_CLIENT_DIR").filter(|_| tool.exists()) else {
        let reason = "PUBLISHED_CLIENT_DIR is not set, or the tool is not there";
        let _ = writeln!(
            std::io::stderr(),
            "skipped: the_published_client_drives_the_server_and_counts_the_same: {reason}"
        );
        return;
    };
    let tokenizer = std::path::Path::new(&folder).join("tokenizer");
    let server =
        Server::ready(&format!("--random-seed 1 --skip-server-warmup --tokenizer-path {}", tokenizer.display()));
    let file = scratch("published.jsonl");
    let output = Command::new(&tool)
        .arg("python")
        .arg(&folder)
        .args(["--", "--backend", "sglang", "--host", "127.0.0.1", "--port", &server.port.to_string()])
        .args(["--dataset-name", "random-ids", "--num-prompts", "12", "--max-concurrency", "4", "--seed", "3"])
        .args(["--random-input-len", "20", "--random-output-len", "10", "--random-range-ratio", "0.5"])
        .args(["--warmup-requests", "0", "--flush-cache", "--output-details", "--disable-tqdm", "--output-file"])
        .arg(&file)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let row = &rows(&file)[0];
    assert_eq!(row["completed"], 12);
    assert_eq!(server.metric("sglang:prompt_tokens_total").await, row["total_input_tokens"].as_u64().unwrap());
    assert_eq!(server.metric("sglang:generation_tokens_total").await, row["total_output_tokens"].as_u64().unwrap());
    assert_eq!(row["total_output_tokens"], row["total_output_tokens_retokenized"]);
    assert_eq!(row["server_info"]["moe_runner_backend"], "grouped");
    let own = scratch("own.jsonl");
    assert!(server.load(LOAD, &own).status.success());
    let own = &rows(&own)[0];
    let missing: Vec<_> = row.as_object().unwrap().keys().filter(|key| own.get(*key).is_none()).collect();
    assert!(missing.is_empty(), "keys that only the published row has: {missing:?}");
}
