//! Tests of the rules of one run.

#![expect(clippy::print_stderr, reason = "a test that skips says why")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::*;
use crate::digest::Digest;
use crate::fact::FactKey;
use crate::question::Level;
use crate::record::{Outcome, Tier};
use crate::row::written;

fn latency(statistic: Statistic, span: Span) -> Metric {
    Metric::Latency(statistic, span)
}

/// 80 prompts of 128 in and 128 out at 16 users: 40 s, nothing wrong.
fn clean() -> Record {
    let metrics = BTreeMap::from([
        (Metric::OutputThroughput, 256.0),
        (Metric::InputThroughput, 256.0),
        (Metric::TotalThroughput, 512.0),
        (Metric::PeakOutputThroughput, 300.0),
        (Metric::RequestThroughput, 2.0),
        (Metric::ConcurrencyAchieved, 15.6),
        (latency(Statistic::Mean, Span::E2eLatency), 7_800.0),
        (latency(Statistic::Mean, Span::Tpot), 60.0),
        (latency(Statistic::Mean, Span::Ttft), 180.0),
        (latency(Statistic::Median, Span::Ttft), 150.0),
        (latency(Statistic::P99, Span::Ttft), 400.0),
        (latency(Statistic::Mean, Span::Itl), 60.0),
    ]);
    let details = Details {
        input_lens: vec![128; 80],
        output_lens: vec![128; 80],
        ttfts_s: vec![0.15; 80],
        itls_s: vec![vec![0.06; 127]; 80],
        texts: vec!["a b".to_owned(); 80],
        errors: vec![String::new(); 80],
        cached_tokens: None,
    };
    let row = Row {
        backend: Some("sglang".to_owned()),
        request_rate: Some(f64::INFINITY),
        max_concurrency: Some(16),
        completed: Some(80),
        duration_s: Some(40.0),
        total_input_tokens: Some(10_240),
        total_output_tokens: Some(10_240),
        random_range_ratio: Some(1.0),
        metrics,
        details: Some(details),
        ..Row::default()
    };
    let facts = [
        ("workload.num_prompts", "80"),
        ("workload.concurrency", "16"),
        ("workload.input_tokens", "128"),
        ("workload.output_tokens", "128"),
        ("workload.range_ratio", "1.0"),
        ("workload.ignore_eos", "true"),
        ("workload.request_rate", "inf"),
        ("client.args.dataset-name", "random-ids"),
        ("counters.prompt_tokens", "10240"),
        ("counters.cached_tokens", "80"),
    ];
    let facts = facts.into_iter().map(|(key, value)| (FactKey::from(key), FactValue::text(value))).collect();
    record(Written::Row(Box::new(row)), facts)
}

fn record(written: Written, facts: Fingerprint) -> Record {
    Record {
        id: Digest::of(b"run"),
        experiment: "e".to_owned(),
        edition: None,
        arm: "control".to_owned(),
        block: Some(1),
        attempt: 1,
        session: "b01-control".to_owned(),
        position: Some(1),
        level: Level("16".to_owned()),
        pass: 1,
        tier: Tier::Measured,
        outcome: Outcome::Finished,
        facts,
        written,
        result_sha256: None,
        decode_rate: None,
    }
}

/// What fires after one change of the clean row.
fn after(change: impl FnOnce(&mut Row)) -> Vec<Fired> {
    let mut record = clean();
    if let Written::Row(row) = &mut record.written {
        change(row);
    }
    judge(&record)
}

fn with_fact(key: &str, value: &str) -> Vec<Fired> {
    let mut record = clean();
    record.facts.text(key, value);
    judge(&record)
}

fn with_metric(metric: Metric, value: f64) -> Vec<Fired> {
    after(|row| {
        row.metrics.insert(metric, value);
    })
}

/// Demands one rule and nothing else, about these metrics.
#[track_caller]
fn only(found: &[Fired], rule: &str, severity: Severity, metrics: &[Option<Metric>]) {
    let wanted: Vec<(&str, Severity, Option<Metric>)> =
        metrics.iter().map(|metric| (rule, severity, *metric)).collect();
    let found_: Vec<(&str, Severity, Option<Metric>)> =
        found.iter().map(|fired| (fired.rule, fired.severity, fired.metric)).collect();
    assert_eq!(found_, wanted, "{found:#?}");
    assert!(found.iter().all(|fired| !fired.message.is_empty() && !fired.help.is_empty()));
}

const RUN: &[Option<Metric>] = &[None];

#[test]
fn nothing_is_not_judged() {
    for written in [Written::Nothing, Written::Unreadable("line 1: cut off".to_owned())] {
        assert_eq!(judge(&record(written, Fingerprint::default())), []);
    }
    assert_eq!(judge(&record(Written::Values(BTreeMap::new()), Fingerprint::default())), []);
    assert_eq!(judge(&record(Written::Row(Box::default()), Fingerprint::default())), []);
    assert_eq!(judge(&record(Written::Row(Box::default()), clean().facts)), []);
    let empty_details = Row { details: Some(Details::default()), completed: Some(0), ..Row::default() };
    assert_eq!(judge(&record(Written::Row(Box::new(empty_details)), Fingerprint::default())), []);
}

#[test]
fn a_clean_run_fires_nothing() {
    assert_eq!(judge(&clean()), []);
}

#[test]
fn s10_mean_far_below_peak() {
    let both = [Some(Metric::OutputThroughput), Some(Metric::PeakOutputThroughput)];
    only(&with_metric(Metric::PeakOutputThroughput, 513.0), "S10", Severity::Warn, &both);
    assert_eq!(with_metric(Metric::PeakOutputThroughput, 511.0), []);
    // The second founding example, as it was typed: 352.79 tok/s with a peak of 1428.
    let values = BTreeMap::from([(Metric::OutputThroughput, 352.79), (Metric::PeakOutputThroughput, 1428.0)]);
    only(&judge(&record(Written::Values(values), Fingerprint::default())), "S10", Severity::Warn, &both);
}

#[test]
fn s11_impossible_order() {
    let ttft = |statistic| Some(latency(statistic, Span::Ttft));
    let all = [ttft(Statistic::Mean), ttft(Statistic::Median), ttft(Statistic::P99)];
    only(&with_metric(latency(Statistic::Median, Span::Ttft), 0.0), "S11", Severity::Void, &all);
    only(&with_metric(latency(Statistic::P99, Span::Ttft), 149.0), "S11", Severity::Void, &[ttft(Statistic::P99)]);
    only(&with_metric(latency(Statistic::Mean, Span::Ttft), 149.0), "S11", Severity::Void, &[ttft(Statistic::Mean)]);
    let itl = latency(Statistic::Mean, Span::Itl);
    only(&with_metric(itl, 59.0), "S11", Severity::Void, &[Some(itl)]);
    let peak = Metric::PeakOutputThroughput;
    only(&with_metric(peak, 255.0), "S11", Severity::Void, &[Some(peak)]);
    // Where no whole second fits, a peak below the mean is the bucket's fault.
    let short = after(|row| {
        row.metrics.insert(peak, 200.0);
        row.duration_s = Some(1.0);
        row.metrics.remove(&Metric::RequestThroughput);
        row.metrics.remove(&Metric::InputThroughput);
        row.total_output_tokens = None;
    });
    only(&short, "S18", Severity::Warn, RUN);
}

#[test]
fn s12_identities() {
    only(&with_metric(Metric::TotalThroughput, 500.0), "S12", Severity::Void, RUN);
    assert_eq!(with_metric(Metric::TotalThroughput, 505.0), []);
    only(&with_metric(Metric::ConcurrencyAchieved, 15.2), "S12", Severity::Void, RUN);
    only(&with_metric(latency(Statistic::Mean, Span::E2eLatency), 7.8), "S12", Severity::Void, RUN);
    only(&after(|row| row.duration_s = Some(39.0)), "S12", Severity::Void, &[None, None, None]);
    only(&after(|row| row.total_input_tokens = Some(9_000)), "S12", Severity::Void, RUN);
    // 256 tok/s × 0.068 s × 127/128 = 17.3 in flight, 16 allowed.
    only(&with_metric(latency(Statistic::Mean, Span::Tpot), 68.0), "S12", Severity::Void, RUN);
    let varying = after(|row| {
        row.metrics.insert(latency(Statistic::Mean, Span::Tpot), 68.0);
        if let Some(details) = &mut row.details {
            details.output_lens[0] = 64;
        }
    });
    assert_eq!(varying, []);
}

#[test]
fn s14_failures() {
    let fail = |row: &mut Row, requests: u64| {
        row.completed = Some(row.completed.unwrap_or(0) - requests);
        row.metrics.remove(&Metric::RequestThroughput);
        row.total_output_tokens = None;
    };
    only(&after(|row| fail(row, 1)), "S14", Severity::Block, RUN);
    let mut one_in_a_thousand = clean();
    one_in_a_thousand.facts.remove("counters.prompt_tokens");
    if let Written::Row(row) = &mut one_in_a_thousand.written {
        (row.num_prompts, row.failed, row.completed) = (Some(1_000), Some(1), Some(999));
        row.metrics.remove(&Metric::RequestThroughput);
        row.total_output_tokens = None;
    }
    only(&judge(&one_in_a_thousand), "S14", Severity::Warn, RUN);
    let phantom = after(|row| {
        if let Some(details) = &mut row.details {
            (details.ttfts_s[3], details.texts[3], details.itls_s[3]) = (0.0, String::new(), vec![]);
        }
    });
    only(&phantom, "S14", Severity::Block, RUN);
    assert!(phantom[0].message.contains("1 of 80") && phantom[0].message.contains("without a token"));
    // A request that failed with an error is counted once.
    let error = after(|row| {
        fail(row, 1);
        if let Some(details) = &mut row.details {
            (details.ttfts_s[3], details.texts[3], details.errors[3]) = (0.0, String::new(), "500".to_owned());
        }
    });
    assert!(error[0].message.starts_with("1 of 80 requests failed"));
}

#[test]
fn s15_outputs_too_short() {
    let short = |row: &mut Row| {
        row.total_output_tokens = Some(7_711);
        row.metrics.insert(Metric::OutputThroughput, 192.8);
        row.metrics.insert(Metric::TotalThroughput, 448.8);
    };
    only(&after(short), "S15", Severity::Block, RUN);
    let mut without = clean();
    if let Written::Row(row) = &mut without.written {
        short(row);
    }
    without.facts.text("workload.ignore_eos", "false");
    assert_eq!(judge(&without), []);
    // Drawn from 1 to 256: 128.5 on average, and 80 of them miss it by some.
    let mut drawn = clean();
    drawn.facts.text("workload.output_tokens", "256");
    drawn.facts.text("workload.range_ratio", "0.0");
    assert_eq!(judge(&drawn), []);
    drawn.facts.text("workload.output_tokens", "400");
    only(&judge(&drawn), "S15", Severity::Block, RUN);
}

#[test]
fn s16_prompts_longer_at_the_server() {
    only(&with_fact("counters.prompt_tokens", "10500"), "S16", Severity::Warn, RUN);
    assert_eq!(with_fact("counters.prompt_tokens", "10400"), []);
    let mut planned = clean();
    planned.facts.text("workload.input_tokens", "125");
    only(&judge(&planned), "S16", Severity::Warn, RUN);
    planned.facts.text("workload.range_ratio", "0.5");
    planned.facts.remove("workload.ignore_eos");
    assert_eq!(judge(&planned), []);
}

#[test]
fn s17_load_not_reached() {
    let low = |row: &mut Row| {
        row.metrics.insert(Metric::ConcurrencyAchieved, 12.0);
        row.metrics.insert(latency(Statistic::Mean, Span::E2eLatency), 6_000.0);
    };
    only(&after(low), "S17", Severity::Warn, RUN);
    let paced = after(|row| {
        low(row);
        row.request_rate = Some(2.0);
    });
    assert_eq!(paced, []);
}

#[test]
fn s18_too_short() {
    let brief = after(|row| {
        row.duration_s = Some(29.0);
        for metric in
            [Metric::OutputThroughput, Metric::InputThroughput, Metric::RequestThroughput, Metric::TotalThroughput]
        {
            row.metrics.remove(&metric);
        }
    });
    only(&brief, "S18", Severity::Warn, RUN);
    let mut few = clean();
    few.facts.text("workload.num_prompts", "79");
    only(&judge(&few), "S18", Severity::Warn, RUN);
}

#[test]
fn s20_cache_hits_on_random_prompts() {
    only(&with_fact("counters.cached_tokens", "103"), "S20", Severity::Void, RUN);
    let mut shared = clean();
    shared.facts.text("counters.cached_tokens", "9000");
    shared.facts.text("client.args.dataset-name", "generated-shared-prefix");
    assert_eq!(judge(&shared), []);
}

#[test]
fn s32_more_rows_than_runs() {
    only(&judge(&record(Written::Several(3), Fingerprint::default())), "S32", Severity::Void, RUN);
}

#[test]
fn severities_are_written_in_lower_case_and_ordered() {
    let all = [Severity::Block, Severity::Claim, Severity::Void, Severity::Warn, Severity::Note];
    assert_eq!(serde_json::to_string(&all).expect("JSON"), r#"["block","claim","void","warn","note"]"#);
    assert!(all.is_sorted());
}

/// One run of a corpus case: its file, its arm, and its facts.
struct CorpusRun {
    file: String,
    level: String,
    record: Record,
}

impl CorpusRun {
    /// The values of one arm at one level, block after block.
    fn values(runs: &[Self], arm: &str, level: &str, metric: Metric) -> Vec<f64> {
        let values = runs.iter().filter(|run| run.level == level).filter_map(|run| {
            let (block, rest) = run.file.split_once('-')?;
            let (found, _) = rest.rsplit_once("-c")?;
            let Written::Row(row) = &run.record.written else { return None };
            (found == arm).then(|| (block.to_owned(), row.metric(metric)))
        });
        values.collect::<BTreeMap<_, _>>().into_values().flatten().collect()
    }
}

/// Reads a manifest just far enough: it is written by a machine, one key a line.
fn corpus(case: &str) -> Vec<CorpusRun> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/cases/corpus");
    let found: Option<PathBuf> = std::fs::read_dir(&folder)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .find(|path| path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with(case)));
    let Some(folder) = found else {
        eprintln!("skipped: no case {case} at {}", folder.display());
        return vec![];
    };
    let manifest = std::fs::read_to_string(folder.join("manifest.yaml")).expect("a manifest");
    let (mut section, mut session) = (String::new(), String::new());
    let (mut common, mut sessions) = (Fingerprint::default(), BTreeMap::<String, Fingerprint>::new());
    let mut runs: Vec<(BTreeMap<String, String>, Fingerprint)> = vec![];
    for line in manifest.lines() {
        let indent = line.len() - line.trim_start().len();
        let Some((key, value)) = line.trim_start_matches(['-', ' ']).split_once(':') else { continue };
        let value = value.trim().trim_matches('"').to_owned();
        match (indent, section.as_str()) {
            (0, _) => key.clone_into(&mut section),
            (2, "common") => common.text(key, value),
            (2, "sessions") => key.clone_into(&mut session),
            (4, "sessions") => sessions.entry(session.clone()).or_default().text(key, value),
            (2, "runs") => runs.push((BTreeMap::from([(key.to_owned(), value)]), Fingerprint::default())),
            (4, "runs") => _ = runs.last_mut().expect("a run").0.insert(key.to_owned(), value),
            (6, "runs") => runs.last_mut().expect("a run").1.text(key, value),
            _ => {}
        }
    }
    let finished = runs.into_iter().filter(|(keys, _)| keys.contains_key("result") && !keys.contains_key("status"));
    finished
        .map(|(keys, run_facts)| {
            let mut facts = common.clone();
            if let Some(of_session) = sessions.get(&keys["session"]) {
                facts.extend(of_session);
            }
            facts.extend(&run_facts);
            let bytes = std::fs::read(folder.join(&keys["result"])).ok();
            let record = record(written(bytes.as_deref()), facts);
            CorpusRun { file: keys["result"].clone(), level: keys["concurrency"].clone(), record }
        })
        .collect()
}

/// Rules of a severity that fire in a case, each with the level it fires at.
fn fires(case: &str, severities: &[Severity]) -> BTreeSet<(&'static str, String)> {
    let runs = corpus(case);
    let judged = runs.iter().flat_map(|run| {
        let fired = judge(&run.record).into_iter().filter(|fired| severities.contains(&fired.severity));
        fired.map(|fired| (fired.rule, run.level.clone())).collect::<Vec<_>>()
    });
    judged.collect()
}

const GRAVE: [Severity; 3] = [Severity::Block, Severity::Claim, Severity::Void];

fn at(rule: &'static str, levels: &[&str]) -> Vec<(&'static str, String)> {
    levels.iter().map(|level| (rule, (*level).to_owned())).collect()
}

#[test]
fn corpus_cases_about_one_run_are_caught() {
    if corpus("d20").is_empty() {
        return;
    }
    let wanted = |rules: Vec<Vec<(&'static str, String)>>| rules.into_iter().flatten().collect::<BTreeSet<_>>();
    let all = ["1", "4", "16", "64"];
    assert_eq!(fires("d18", &GRAVE), wanted(vec![at("S12", &all)]));
    assert_eq!(fires("d20", &GRAVE), wanted(vec![at("S11", &["64"]), at("S14", &["64"])]));
    assert_eq!(fires("d21", &GRAVE), wanted(vec![at("S14", &["64"])]));
    assert_eq!(fires("d22", &GRAVE), wanted(vec![at("S15", &all)]));
    assert_eq!(fires("d24", &GRAVE), wanted(vec![at("S20", &all)]));
    let warned = fires("d31", &[Severity::Warn]);
    // Its S10 is the part that compares two runs.
    for rule in at("S16", &all).into_iter().chain(at("S17", &["16"])) {
        assert!(warned.contains(&rule), "{rule:?}: {warned:?}");
    }
    assert!(fires("d31", &GRAVE).is_empty());
}

#[test]
fn clean_corpus_cases_stay_clean() {
    for case in ["d33", "d34", "d36", "d37", "d38", "d32", "d35", "d39", "d41"] {
        assert_eq!(fires(case, &GRAVE), BTreeSet::new(), "{case}");
    }
    let warned = fires("d37", &[Severity::Warn]);
    assert!(warned.iter().all(|(rule, _)| *rule == "S18"), "{warned:?}");
    let unreadable: Vec<String> = corpus("d34")
        .into_iter()
        .filter(|run| !matches!(run.record.written, Written::Row(_)))
        .map(|run| run.file)
        .collect();
    assert!(unreadable.len() <= 1, "{unreadable:?}");
}

/// The text of `key: value` inside `{…}` of a line.
fn inline<'a>(line: &'a str, key: &str) -> &'a str {
    let start = line.find(&format!("{key}: ")).expect("the key") + key.len() + 2;
    line[start..].split([',', '}']).next().expect("a value").trim()
}

#[track_caller]
fn near(found: f64, wanted: &str, what: &str) {
    let wanted: f64 = wanted.parse().expect("a number");
    assert!((found / wanted - 1.0).abs() < 1e-9, "{what}: found {found}, wanted {wanted}");
}

#[test]
fn effects_of_the_corpus_agree_to_nine_digits() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/cases/corpus");
    let mut compared = 0;
    for entry in std::fs::read_dir(&folder).into_iter().flatten().flatten() {
        let name = entry.file_name().into_string().expect("a name");
        // Cases without lost blocks and with one pass a session.
        if !["d29", "d30", "d31", "d32", "d33", "d35", "d36", "d37", "d38", "d39", "d41"].contains(&&name[..3]) {
            continue;
        }
        let runs = corpus(&name);
        let manifest = std::fs::read_to_string(entry.path().join("manifest.yaml")).expect("a manifest");
        let expected = std::fs::read_to_string(entry.path().join("expect.yaml")).expect("what must come out");
        let control = manifest.lines().find_map(|line| line.strip_prefix("control: ")).expect("a control");
        for line in expected.lines().filter(|line| line.contains("treatment:") && line.contains("ratio:")) {
            let metric = Metric::parse(inline(line, "metric")).expect("a metric");
            let of = |arm: &str| CorpusRun::values(&runs, arm, inline(line, "at"), metric);
            let found = crate::stats::paired_fieller(&of(control), &of(inline(line, "treatment")), 0.95).expect("ok");
            near(found.ratio, inline(line, "ratio"), &name);
            near(found.low, inline(line, "low"), &name);
            near(found.high, inline(line, "high"), &name);
            assert_eq!(found.blocks.to_string(), inline(line, "n"), "{name}");
            compared += 1;
        }
        let stated = |lines: &str| lines.lines().find(|line| line.starts_with("headline:")).map(str::to_owned);
        if let (Some(asked), Some(line)) = (stated(&manifest), stated(&expected).filter(|line| line.contains("ratio")))
        {
            let metric = Metric::parse(inline(&asked, "metric")).expect("a metric");
            let levels: BTreeSet<&str> = runs.iter().map(|run| run.level.as_str()).collect();
            let of =
                |arm: &str| levels.iter().map(|level| CorpusRun::values(&runs, arm, level, metric)).collect::<Vec<_>>();
            let (one, two) = (of(control), of(inline(&asked, "treatment")));
            let pairs: Vec<(&[f64], &[f64])> = one.iter().zip(&two).map(|(one, two)| (&one[..], &two[..])).collect();
            let found = crate::stats::geometric_mean_over_levels(&pairs, 0.95).expect("a headline");
            near(found.ratio, inline(&line, "ratio"), &name);
            near(found.low, inline(&line, "low"), &name);
            near(found.high, inline(&line, "high"), &name);
            compared += 1;
        }
    }
    if compared == 0 {
        eprintln!("skipped: no corpus at {}", folder.display());
    } else {
        assert!(compared > 15, "{compared} effects compared");
    }
}

/// What fires in real rows, without any fact: nothing that is not there.
#[test]
fn real_rows_are_judged_by_what_they_hold() {
    let shared = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared");
    let judged = |path: &str| {
        let bytes = std::fs::read(shared.join(path)).ok()?;
        let fired = judge(&record(written(Some(&bytes)), Fingerprint::default()));
        Some(
            fired
                .into_iter()
                .filter(|fired| fired.severity <= Severity::Void)
                .map(|fired| fired.rule)
                .collect::<BTreeSet<_>>(),
        )
    };
    for (path, wanted) in [
        ("samples/sglang/c2_details.jsonl", vec![]),
        ("samples/sglang/rust_c10.jsonl", vec![]),
        ("samples/sglang/old_0.4.0.jsonl", vec![]),
        ("samples/sglang/fast_py64.jsonl", vec!["S11"]),
        ("samples/sglang/fail_http500.jsonl", vec!["S14"]),
        ("samples/sglang/fail_err200.jsonl", vec!["S14"]),
        ("samples/sglang/append_sweep.jsonl", vec!["S32"]),
        ("real/h200-sglang/A1-triton/c64-r1.jsonl", vec![]),
    ] {
        match judged(path) {
            Some(found) => assert_eq!(found, wanted.into_iter().collect(), "{path}"),
            None => eprintln!("skipped: {path} is not there"),
        }
    }
}
