//! Tests of reading rows.

#![expect(clippy::print_stderr, reason = "a test that skips says why")]

use std::path::{Path, PathBuf};

use super::*;
use crate::metric::{Span, Statistic};

const ROW: &str = r#"{"backend": "sglang", "completed": 8, "duration": 2.5, "request_rate": Infinity}"#;

fn one(text: &str) -> Row {
    let mut rows = parse_rows(text.as_bytes()).expect("rows");
    assert_eq!(rows.len(), 1);
    rows.pop().expect("one row")
}

fn reason(text: &str) -> (usize, String) {
    let error = parse_rows(text.as_bytes()).expect_err("an error");
    (error.line, error.reason)
}

/// Files of the samples, or nothing with the reason printed by the caller.
fn samples(folder: &str, extension: &str) -> Vec<PathBuf> {
    fn walk(folder: &Path, extension: &str, files: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                walk(&path, extension, files);
            } else if path.extension().is_some_and(|found| found == extension) {
                files.push(path);
            }
        }
    }
    let mut files = Vec::new();
    walk(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared").join(folder), extension, &mut files);
    files.sort();
    files
}

fn sample(path: &str) -> Option<Vec<Row>> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared").join(path);
    match std::fs::read(&file) {
        Ok(bytes) => Some(parse_rows(&bytes).expect("the sample is readable")),
        Err(error) => {
            eprintln!("skipped: {path}: {error}");
            None
        }
    }
}

#[test]
fn nothing_is_no_row() {
    assert_eq!(parse_rows(b""), Ok(vec![]));
    assert_eq!(parse_rows(b" \n\n"), Ok(vec![]));
    assert_eq!(written(None), Written::Nothing);
    assert_eq!(written(Some(b"")), Written::Nothing);
    assert_eq!(written(Some(b"\n")), Written::Nothing);
}

#[test]
fn absent_is_never_zero_and_only_the_finite_is_a_value() {
    let row = one(ROW);
    assert_eq!((row.completed, row.failed, row.num_prompts), (Some(8), None, None));
    assert_eq!((row.duration_s, row.request_rate), (Some(2.5), Some(f64::INFINITY)));
    assert!(row.metrics.is_empty() && row.details.is_none() && row.server_info.is_none());
    let odd = one(
        r#"{"backend": "x", "completed": 0, "mean_ttft_ms": NaN, "p99_ttft_ms": -Infinity, "concurrency": -0.0,
        "accept_length": null, "max_output_tokens_per_s": "inf", "request_rate": "inf", "tag": "NaN, \"Infinity\" \\"}"#,
    );
    assert_eq!(odd.metrics, BTreeMap::from([(Metric::ConcurrencyAchieved, 0.0)]));
    assert_eq!(odd.tag.as_deref(), Some(r#"NaN, "Infinity" \"#));
    assert_eq!(odd.request_rate, Some(f64::INFINITY));
    assert_eq!(one(r#"{"backend": "x", "completed": 1, "request_rate": "trace"}"#).request_rate, None);
    assert_eq!(one(r#"{"backend": "x", "completed": 128.0, "request_rate": 8}"#).completed, Some(128));
}

#[test]
fn a_row_of_the_pocket_client_says_more() {
    let row =
        one(r#"{"client": "pocketmoe.load", "client_version": "0.1.0", "num_prompts": 8, "failed": 1, "completed": 7,
        "output_throughput": 12.5, "max_output_tokens_per_s": 20, "ttfts": [0.5, NaN], "output_lens": [3, 0],
        "errors": ["", null], "itls": [[0.1, 0.2], []], "cached_tokens": [0, 1]}"#);
    assert_eq!((row.client, row.client.name()), (Client::PocketmoeLoad, "pocketmoe.load"));
    assert_eq!((row.num_prompts, row.failed, row.client_version.as_deref()), (Some(8), Some(1), Some("0.1.0")));
    assert_eq!(row.metric(Metric::PeakOutputThroughput), Some(20.0));
    let details = row.details.expect("details");
    assert_eq!(details.ttfts_s, [0.5, 0.0]);
    assert_eq!(details.errors, ["", ""]);
    assert_eq!((details.itls_s, details.cached_tokens), (vec![vec![0.1, 0.2], vec![]], Some(vec![0, 1])));
    assert!(details.texts.is_empty());
}

#[test]
fn one_bad_thing_makes_the_file_unreadable() {
    let two = format!("{ROW}\n{ROW}");
    assert_eq!(written(Some(two.as_bytes())), Written::Several(2));
    assert_eq!(written(Some(format!("{ROW}{ROW}\n").as_bytes())), Written::Several(2));
    for cut in 1..ROW.len() {
        assert!(parse_rows(&ROW.as_bytes()[..cut]).is_err(), "cut at {cut}");
        let appended = format!("{ROW}\n{}", &ROW[..cut]);
        assert_eq!(parse_rows(appended.as_bytes()).expect_err("cut").line, 2, "appended, cut at {cut}");
    }
    assert_eq!(reason("\n\n{\"a\": 1}").0, 3);
    assert_eq!(reason(&format!("{ROW}\n\n\n{{}}")).0, 4);
    assert!(reason(&format!("{ROW}\nTraceback (most recent call last)")).1.starts_with("not a row"));
    assert!(
        matches!(written(Some(b"[1, 2]")), Written::Unreadable(why) if why.contains("expected one JSON object a run"))
    );
}

#[test]
fn a_known_key_of_the_wrong_type_is_an_error_not_an_absence() {
    let with = |field: &str| reason(&format!(r#"{{"backend": "x", "completed": 8, {field}}}"#)).1;
    assert_eq!(with(r#""duration": "fast""#), "`duration` is \"fast\", expected a number");
    assert_eq!(with(r#""failed": -1"#), "`failed` is -1, expected a whole number of at least 0");
    assert_eq!(
        with(r#""total_output_tokens": 1.5"#),
        "`total_output_tokens` is 1.5, expected a whole number of at least 0"
    );
    assert_eq!(
        with(r#""max_concurrency": 1e300"#),
        "`max_concurrency` is 1e+300, expected a whole number of at least 0"
    );
    assert_eq!(with(r#""mean_itl_ms": {"api_key": "secret"}"#), "`mean_itl_ms` is an object, expected a number");
    assert_eq!(with(r#""ttfts": 3"#), "`ttfts` is 3, expected a list of numbers");
    assert_eq!(with(r#""ttfts": [], "itls": [[1], ["x"]]"#), "`itls[1]` is a list, expected lists of numbers");
    assert_eq!(with(r#""duration": 1, "duration": 2"#), "not a row: the key `duration` stands there twice");
    assert!(with(&format!(r#""tag": {}"#, "9".repeat(50))).len() < 80);
    assert!(reason(r#"{"client": "wrk", "completed": 1}"#).1.contains("`client` is \"wrk\""));
    assert!(reason(r#"{"backend": "vllm", "completed": 1, "endpoint_type": "vllm"}"#).1.contains("vllm.bench_serve"));
}

#[test]
fn hostile_bytes_are_an_error_and_not_a_crash() {
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    assert!(parse_rows(deep.as_bytes()).is_err());
    let inside = format!(r#"{{"backend": "x", "completed": 1, "server_info": {deep}}}"#);
    assert!(parse_rows(inside.as_bytes()).is_err());
    assert!(parse_rows(&[0, 159, 146, 150, 255, b'"', b'\\']).is_err());
    assert!(parse_rows(b"{\"backend\": \"\xff\xfe\", \"completed\": 1}").is_err());
    assert!(parse_rows(br#"{"backend": "x", "completed": 1, "duration": 1e999}"#).is_err());
    for word in ["Infinity", "-Infinity", "NaN", "-", "NaN1", "\"", "\"\\", "\u{0}", "null", "-InfinityInfinity"] {
        assert!(parse_rows(word.as_bytes()).is_err(), "{word}");
    }
}

#[test]
fn a_large_file_is_read_in_one_pass() {
    let text = "w62 ".repeat(500);
    let texts = vec![format!("\"{text}\""); 4_000].join(", ");
    let row = format!(
        r#"{{"backend": "x", "completed": 4000, "request_rate": Infinity, "ttfts": [], "generated_texts": [{texts}]}}"#
    );
    assert!(row.len() > 8_000_000);
    let started = std::time::Instant::now();
    assert_eq!(one(&row).details.expect("details").texts.len(), 4_000);
    let many = format!("{ROW}\n").repeat(20_000);
    assert_eq!(written(Some(many.as_bytes())), Written::Several(20_000));
    assert!(started.elapsed().as_secs() < 20, "{:?}", started.elapsed());
}

#[test]
fn every_sample_of_the_client_is_readable() {
    let (rows, real) = (samples("samples/sglang", "jsonl"), samples("real", "jsonl"));
    if rows.is_empty() {
        eprintln!("skipped: no samples at ../shared");
        return;
    }
    let mut read = 0;
    for path in rows.iter().chain(&real) {
        let bytes = std::fs::read(path).expect("readable file");
        let name = path.file_name().and_then(|name| name.to_str()).expect("name");
        match (name, parse_rows(&bytes)) {
            // Neither is a row: the journal of a harness, and the output of another tool.
            ("events.jsonl" | "steady_metrics.jsonl", result) => {
                assert!(result.is_err(), "{}", path.display());
            }
            (_, Ok(found)) => {
                assert!(!found.is_empty() && found.iter().all(|row| row.duration_s.is_some()), "{}", path.display());
                assert!(found.iter().all(|row| row.metric(Metric::OutputThroughput).is_some()), "{}", path.display());
                read += found.len();
            }
            (_, Err(error)) => panic!("{}: {error}", path.display()),
        }
    }
    assert!(read > 150, "{read} rows read");
    for path in samples("real/vllm-2026", "json") {
        assert!(parse_rows(&std::fs::read(path).expect("file")).expect_err("vllm").reason.contains("vllm.bench_serve"));
    }
}

#[test]
fn samples_have_the_values_that_were_written() {
    let latency = |statistic, span| Metric::Latency(statistic, span);
    if let Some(rows) = sample("samples/sglang/c2_details.jsonl") {
        let [row] = &rows[..] else { panic!("one row") };
        assert_eq!((row.tag.as_deref(), row.backend.as_deref()), (Some("c2_details"), Some("sglang")));
        assert_eq!((row.completed, row.max_concurrency, row.request_rate), (Some(4), Some(2), Some(f64::INFINITY)));
        assert_eq!(row.duration_s, Some(0.761_265_675_000_004_2));
        assert_eq!((row.total_input_tokens, row.total_output_tokens), (Some(128), Some(64)));
        assert_eq!(
            (row.random_input_len, row.random_output_len, row.random_range_ratio),
            (Some(32), Some(16), Some(1.0))
        );
        assert_eq!(row.metric(Metric::OutputThroughput), Some(84.070_518_482_262_64));
        assert_eq!(row.metric(Metric::PeakOutputThroughput), Some(64.0));
        assert_eq!(row.metric(latency(Statistic::P99, Span::Itl)), Some(24.735_256_019_966_982));
        assert_eq!(row.metric(Metric::AcceptLength), None);
        let details = row.details.as_ref().expect("details");
        assert_eq!((&details.input_lens[..], &details.output_lens[..]), (&[32; 4][..], &[16; 4][..]));
        assert_eq!((details.texts.len(), details.itls_s[0].len()), (4, 15));
        assert!(row.server_info.as_ref().is_some_and(|info| info["model_path"] == "/srv/bench/tok_tiny"));
    }
    if let Some(rows) = sample("samples/sglang/append_sweep.jsonl") {
        assert_eq!(rows.len(), 3);
    }
    if let Some(rows) = sample("samples/sglang/old_0.4.0.jsonl") {
        assert_eq!(rows[0].metrics.len(), 5, "{:?}", rows[0].metrics);
        assert_eq!((rows[0].tag.as_deref(), rows[0].metric(Metric::TotalThroughput)), (None, None));
    }
    if let Some(rows) = sample("samples/sglang/rust_all_fail.jsonl") {
        assert_eq!((rows[0].completed, rows[0].request_rate), (Some(0), Some(f64::INFINITY)));
        assert_eq!(rows[0].metric(latency(Statistic::Mean, Span::E2eLatency)), None);
        assert_eq!(rows[0].metric(latency(Statistic::Mean, Span::Ttft)), Some(0.0));
    }
    if let Some(rows) = sample("samples/sglang/rust_http500.jsonl") {
        let details = rows[0].details.as_ref().expect("details");
        assert_eq!((details.output_lens[2], details.ttfts_s[2]), (0, 0.0));
        assert!(details.errors[2].starts_with("Internal Server Error"));
    }
    if let Some(rows) = sample("samples/sglang/rate5.jsonl") {
        assert_eq!(rows[0].request_rate, Some(8.0));
    }
}
