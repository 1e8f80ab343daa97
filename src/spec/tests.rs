//! What a spec means, and what must hold of every one.

mod diagnostics;
mod planning;

use std::path::{Path, PathBuf};

use proptest::prelude::*;

use super::keys::{self, Need, Shape, Table};
use super::*;
use crate::diagnostic::Style;
use crate::plan;
use crate::yaml;

/// A spec without any problem, in which each case changes one place.
const BASE: &str = r"title: T
question: Q
source: {repo: ~/sglang, commit: 5c1e0a7d3b7f4a1d9b0d8a6f2c4e6b8a0d2f4c6e}
server:
  engine: sglang
  model: m
  args: {tp-size: 8}
  env: {NCCL_P2P_LEVEL: SYS}
workload:
  client: {use: sglang.bench_serving, python: p, version: 0.5.23}
  input_tokens: 128
  output_tokens: 128
  concurrency: [1, 10]
factor: server.args.moe-runner-backend
arms: {a: triton, b: cutlass}
control: a
claims:
  faster: {metric: output_throughput, treatment: b, at: 10, expect: higher}
";

fn read(name: &str, text: &str, folder: &Path) -> Result<(Spec, Diagnostics), Diagnostics> {
    parse(&yaml::source(name, text), folder)
}

fn base() -> Spec {
    read("x.yaml", BASE, Path::new("")).expect("a spec").0
}

/// A folder with two patches and a lock file.
fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    for (name, text) in [("one.patch", "1"), ("two.patch", "2"), ("lock.txt", "torch==2"), ("data.jsonl", "{}")] {
        std::fs::write(folder.path().join(name), text).expect("written");
    }
    std::fs::write(folder.path().join("empty.patch"), "").expect("written");
    folder
}

fn pinned(name: &str, text: &str) {
    insta::with_settings!({ omit_expression => true }, { insta::assert_snapshot!(name, text) });
}

const ARMS: &str = "arms: {a: triton, b: cutlass}";
const FACTOR: &str = "factor: server.args.moe-runner-backend";
const COMMIT: &str = "5c1e0a7d3b7f4a1d9b0d8a6f2c4e6b8a0d2f4c6e";

fn changed(from: &str, to: &str) -> String {
    assert_eq!(BASE.matches(from).count(), 1, "`{from}` stands once in the base");
    BASE.replace(from, to)
}

#[test]
fn the_base_is_without_problems() {
    let (spec, warnings) = read("experiments/x.yaml", BASE, Path::new("")).expect("a spec");
    assert!(warnings.problems.is_empty());
    assert_eq!(spec.question.experiment, "x");
    assert_eq!((spec.question.repeats, spec.question.passes, spec.workload.seed), (5, 1, 42));
}

/// A spec in which every key of the tables stands, all in one column of keys each on its own line.
fn full(folder: &Path) -> Spec {
    let text = r#"title: "T: a 'title'"
question: Q
hypothesis: "H\nmore"
host: [one, two]
source:
  repo: ~/sglang
  commit: 5c1e0a7d3b7f4a1d9b0d8a6f2c4e6b8a0d2f4c6e
  patches: [one.patch, two.patch]
environment:
  lock: lock.txt
  build: [pip, install, -r, lock.txt]
server:
  engine: sglang
  model: m
  args: {tp: 8, mem-fraction-static: 0.90, disable-radix-cache: set, cuda-graph-bs: [1, 2], load-format: dummy, x: unset}
  env: {A: "unset", B: !text set, C: unset, D: "", E: "é\u2028"}
  ready: 1h30m
workload:
  client: {use: sglang.bench_serving, python: p, version: 0.5.23, args: {temperature: 0.0}}
  dataset: custom
  dataset_path: data.jsonl
  input_tokens: 128
  output_tokens: 64
  range_ratio: 0.5
  prompts_per_user: 4
  request_rate: [1, 2.50, inf]
  seed: 7
  ignore_eos: false
  concurrency: 16
  warmup: {waves: 0, flush_cache: false}
factor: [server.args.moe_runner_backend, server.env.F]
arms: {a: [unset, unset], b: [set, "0.90"], c: [[x, y], off]}
control: a
entails: [server.resolved.*, server.capacity.kv_tokens]
evidence: {b: {log: "on: yes"}}
prime: never
repeats: 7
passes: 2
retry: 0
timeout: 10m
margin: 0.7%
headline: {metric: output_throughput, treatment: b, over: 2.5}
claims:
  one: {metric: p99_ttft_ms, treatment: b, at: 1, expect: lower, by: 3.3%}
  two: {metric: decode_rate, treatment: c, at: inf, expect: not_lower}
references: {r: {value: 309.5, unit: tok/s, at: 1, why: bandwidth}, s: {value: -1, unit: x, why: y}}
guards: {gsm8k: 1319 questions}
allow: {load-format-dummy: speed only}
"#;
    match read("x.yaml", text, folder) {
        Ok((spec, _)) => spec,
        Err(problems) => panic!("{}", problems.render(Style::Plain)),
    }
}

#[test]
fn the_resolved_form_parses_back_to_an_equal_spec() {
    let folder = folder();
    let mut specs = vec![base(), full(folder.path())];
    for name in ["quickstart", "oea", "aa", "cutedsl"] {
        specs.push(of_the_repository(name));
    }
    for spec in specs {
        let yaml = spec.resolved_yaml();
        let name = format!("{}.yaml", spec.question.experiment);
        let again = match read(&name, &yaml, folder.path()) {
            Ok((again, _)) => again,
            Err(problems) => panic!("{}\n{yaml}", problems.render(Style::Plain)),
        };
        assert_eq!(again, spec, "{yaml}");
        assert_eq!(again.edition(), spec.edition());
        assert_eq!(again.resolved_yaml(), yaml);
    }
}

#[test]
fn the_full_spec_means_what_it_says() {
    let folder = folder();
    let spec = full(folder.path());
    pinned("full", &format!("{}\n{:#}\n{:#}", spec.resolved_yaml(), spec.design(), spec.protocol()));
    let arm = spec.arm("c").expect("an arm");
    assert_eq!(arm.args["moe-runner-backend"], Asked::List(vec!["x".into(), "y".into()]));
    assert_eq!(arm.args["tp-size"], Asked::Text("8".into()));
    assert_eq!(arm.args["mem-fraction-static"], Asked::Text("0.90".into()));
    assert_eq!((&arm.env["F"], &arm.env["A"]), (&Asked::Text("off".into()), &Asked::Text("unset".into())));
    assert_eq!(arm.source.expect("a source").patches[1].sha256, Digest::of("2"));
    assert!(matches!(arm.environment, Some(Environment::Lock { sha256, .. }) if sha256 == Digest::of("torch==2")));
    assert_eq!(spec.arm("none"), None);
}

/// Each key of the tables is read: something of a wrong shape there is a problem, and not that of an unknown key.
#[test]
fn every_key_of_the_tables_is_read() {
    fn walk(table: &'static Table, path: &str, told: &mut Vec<String>) {
        for key in table.keys {
            told.push(format!("{path}{}", key.name));
            let inner = format!("{path}{}/", key.name);
            match &key.shape {
                Shape::Table(table) => walk(table, &inner, told),
                Shape::Named(Shape::Table(table)) => walk(table, &format!("{inner}b/"), told),
                _ => {}
            }
        }
    }
    let mut paths = Vec::new();
    walk(&keys::SPEC, "", &mut paths);
    assert!(paths.len() > 60);
    for path in paths {
        let parts: Vec<&str> = path.split('/').collect();
        let mut text = String::from("{oops: [[{}]]}");
        for part in parts.iter().rev().take(parts.len() - 1) {
            text = format!("{{{part}: {text}}}");
        }
        let top: String = BASE
            .split_inclusive('\n')
            .scan(false, |skipping, line| {
                *skipping = if line.starts_with(' ') { *skipping } else { line.starts_with(&format!("{}:", parts[0])) };
                Some(if *skipping { "" } else { line })
            })
            .collect();
        let problems = read("x.yaml", &format!("{top}{}: {text}\n", parts[0]), Path::new("")).expect_err(&path);
        let told = problems.render(Style::Plain);
        let last = parts[parts.len() - 1];
        assert!(!told.contains(&format!("unknown key `{last}`")), "{path}: {told}");
        let place = problems.source.text.rfind("{oops").expect("there");
        let hit = problems.problems.iter().any(|problem| problem.primary.0.start >= place);
        assert!(hit, "{path} is not read: {told}");
    }
}

/// Writing a default out changes nothing, so the defaults of the tables are those of the reader and not in the edition.
#[test]
fn defaults_of_the_tables_are_those_of_the_reader() {
    fn defaults(table: &'static Table) -> impl Iterator<Item = (&'static str, &'static str)> {
        table.keys.iter().filter_map(|key| match key.need {
            Need::Default(value) => Some((key.name, value)),
            _ => None,
        })
    }
    let same = |text: String, key: &str| {
        let spec = match read("x.yaml", &text, Path::new("")) {
            Ok((spec, _)) => spec,
            Err(problems) => panic!("{key}: {}", problems.render(Style::Plain)),
        };
        assert_eq!(spec.design(), base().design(), "{key}");
        assert_eq!(spec.resolved_yaml().replace("  patches: []\n", ""), base().resolved_yaml(), "{key}");
    };
    for (key, value) in defaults(&keys::SPEC) {
        same(format!("{BASE}{key}: {value}\n"), key);
    }
    for (key, value) in defaults(&keys::WORKLOAD) {
        same(changed("  output_tokens: 128\n", &format!("  output_tokens: 128\n  {key}: {value}\n")), key);
    }
    for (key, value) in defaults(&keys::SERVER) {
        same(changed("  model: m\n", &format!("  model: m\n  {key}: {value}\n")), key);
    }
    for (key, value) in defaults(&keys::SOURCE) {
        same(changed("source: {", &format!("source: {{{key}: {value}, ")), key);
    }
    for (key, value) in defaults(&keys::WARMUP) {
        same(changed("  output_tokens: 128\n", &format!("  output_tokens: 128\n  warmup: {{{key}: {value}}}\n")), key);
    }
}

#[test]
fn the_edition_is_of_what_is_executed_alone() {
    let edition = |text: &str| read("x.yaml", text, Path::new("")).expect("a spec").0.edition();
    let same = [
        ("title: T", "title: Another\nhost: elsewhere\nretry: 3\ntimeout: 5m\nrepeats: 9\nmargin: 3%"),
        ("question: Q", "question: Other\nhypothesis: H"),
        ("args: {tp-size: 8}", "args: {tensor_parallel_size: 8}"),
        ("at: 10, expect: higher", "at: 1, expect: lower"),
        (ARMS, "arms: {b: cutlass, a: triton}"),
        (FACTOR, "factor: server.args.moe_runner_backend"),
        ("model: m", "model: m\n  ready: 5m"),
    ];
    for (from, to) in same {
        assert_eq!(edition(&changed(from, to)), edition(BASE), "{to}");
    }
    let other = [
        ("model: m", "model: n"),
        ("args: {tp-size: 8}", "args: {tp-size: 8.0}"),
        ("concurrency: [1, 10]", "concurrency: [10, 1]"),
        ("concurrency: [1, 10]", "concurrency: [1, 10]\n  seed: 43"),
        ("control: a", "control: a\npasses: 2"),
        ("control: a", "control: a\nprime: never"),
        ("version: 0.5.23", "version: 0.5.22"),
        ("{a: triton, b: cutlass}", "{a: triton, b: marlin}"),
    ];
    for (from, to) in other {
        assert_ne!(edition(&changed(from, to)), edition(BASE), "{to}");
    }
    // What is published under an edition must stay under it.
    insta::assert_snapshot!(base().edition().short(8), @"9bcfede0");
}

#[test]
fn the_bytes_of_patches_are_part_of_the_edition() {
    let folder = folder();
    let text = changed("repo: ~/sglang,", "repo: ~/sglang, patches: [one.patch],");
    let edition = || read("x.yaml", &text, folder.path()).expect("a spec").0.edition();
    let before = edition();
    std::fs::write(folder.path().join("one.patch"), "other").expect("written");
    assert_ne!(edition(), before);
    let told = read("x.yaml", &text.replace("one.patch", "empty.patch"), folder.path()).expect_err("refused");
    assert!(told.render(Style::Plain).contains("the file is empty"));
}

#[test]
fn patches_and_commits_can_be_the_factor() {
    let folder = folder();
    let text = changed(FACTOR, "factor: source.patches").replace(ARMS, "arms: {a: [], b: [one.patch, two.patch]}");
    let (spec, warnings) = read("x.yaml", &text, folder.path()).expect("a spec");
    assert_eq!(warnings.problems.len(), 1, "without evidence");
    let patches = |arm: &str| spec.arm(arm).expect("an arm").source.expect("a source").patches;
    assert_eq!((patches("a").len(), patches("b").len()), (0, 2));
    assert_eq!(spec.source.as_ref().expect("a source").patches, None);
    assert_eq!(read("x.yaml", &spec.resolved_yaml(), folder.path()).expect("a spec").0, spec);

    let other = format!("0{}", &COMMIT[1..]);
    let text = changed(&format!(", commit: {COMMIT}"), "")
        .replace(FACTOR, "factor: source.commit")
        .replace(ARMS, &format!("arms: {{a: {COMMIT}, b: {other}}}"));
    let (spec, _) = read("x.yaml", &text, folder.path()).expect("a spec");
    assert_eq!(spec.arm("b").expect("an arm").source.expect("a source").commit, other);
    let text = changed(FACTOR, "factor: environment.image")
        .replace(ARMS, &format!("arms: {{a: \"i@sha256:{0}\", b: \"i@sha256:{1}\"}}", "a".repeat(64), "b".repeat(64)));
    let (spec, _) = read("x.yaml", &text, folder.path()).expect("a spec");
    assert!(
        matches!(spec.arm("b").expect("an arm").environment, Some(Environment::Image { image, .. }) if image.ends_with('b'))
    );
}

fn experiments() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("experiments")
}

fn of_the_repository(name: &str) -> Spec {
    let text = std::fs::read_to_string(experiments().join(format!("{name}.yaml"))).expect("text");
    match read(&format!("{name}.yaml"), &text, &experiments()) {
        Ok((spec, _)) => spec,
        Err(problems) => panic!("{}", problems.render(Style::Plain)),
    }
}

#[test]
fn the_experiments_of_the_repository_check_and_plan() {
    let mut names: Vec<String> = std::fs::read_dir(experiments())
        .expect("a folder")
        .filter_map(|entry| {
            entry.expect("an entry").file_name().to_string_lossy().strip_suffix(".yaml").map(str::to_owned)
        })
        .collect();
    names.sort();
    assert_eq!(names, ["aa", "cutedsl", "oea", "quickstart"]);
    for name in names {
        let spec = of_the_repository(&name);
        let planned = plan::plan(&spec);
        let arms = spec.question.arms.len();
        assert_eq!(planned.sessions.len(), arms * (1 + spec.question.repeats as usize));
        assert!(spec.question.arms.keys().all(|arm| spec.arm(arm).is_some()));
    }
    assert!(of_the_repository("aa").question.is_null_control("other"));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn no_text_is_too_strange(text in "\\PC{0,200}") {
        if let Err(problems) = read("x.yaml", &text, Path::new("no-such-folder")) {
            prop_assert!(problems.has_errors());
            problems.render(Style::Plain);
        }
    }

    #[test]
    fn no_damage_to_a_spec_is_too_strange(at in 0_usize..700, length in 0_usize..40, put in "[ a-z0-9:,\\[\\]{}\"'!&*%|>#\n\t-]{0,12}") {
        let mut text: Vec<char> = BASE.chars().collect();
        let start = at.min(text.len());
        let end = (start + length).min(text.len());
        text.splice(start..end, put.chars());
        let text: String = text.into_iter().collect();
        match read("x.yaml", &text, Path::new("no-such-folder")) {
            Ok((spec, _)) => {
                let again = read("x.yaml", &spec.resolved_yaml(), Path::new("no-such-folder"));
                let again = again.map_err(|problems| TestCaseError::fail(problems.render(Style::Plain)))?;
                prop_assert_eq!(&again.0, &spec);
                plan::plan(&spec);
            }
            Err(problems) => {
                prop_assert!(problems.has_errors());
                problems.render(Style::Plain);
            }
        }
    }
}
