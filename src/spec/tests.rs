//! One test per diagnostic, and what must hold of every spec.

use std::path::{Path, PathBuf};

use proptest::prelude::*;

use super::keys::{self, Need, Shape, Table};
use super::*;
use crate::diagnostic::{Severity, Style};
use crate::plan;
use crate::yaml;

/// A spec without any problem, in which each case changes one place.
const BASE: &str = r#"title: T
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
"#;

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

fn changed(from: &str, to: &str) -> String {
    assert_eq!(BASE.matches(from).count(), 1, "`{from}` stands once in the base");
    BASE.replace(from, to)
}

/// Problems of a text, each case once: what is found, and where.
fn told(cases: &[(&str, String)]) -> String {
    let mut out = String::new();
    for (what, text) in cases {
        let problems = match read("x.yaml", text, Path::new("no-such-folder")) {
            Ok((_, warnings)) => warnings,
            Err(problems) => problems,
        };
        assert!(!problems.problems.is_empty(), "{what}: nothing was noticed");
        out += &format!("## {what}\n{}\n\n", problems.render(Style::Plain));
    }
    out
}

fn case<'a>(what: &'a str, from: &str, to: &str) -> (&'a str, String) {
    (what, changed(from, to))
}

const ARMS: &str = "arms: {a: triton, b: cutlass}";
const FACTOR: &str = "factor: server.args.moe-runner-backend";
const COMMIT: &str = "5c1e0a7d3b7f4a1d9b0d8a6f2c4e6b8a0d2f4c6e";

#[test]
fn the_base_is_without_problems() {
    let (spec, warnings) = read("experiments/x.yaml", BASE, Path::new("")).expect("a spec");
    assert!(warnings.problems.is_empty());
    assert_eq!(spec.question.experiment, "x");
    assert_eq!((spec.question.repeats, spec.question.passes, spec.workload.seed), (5, 1, 42));
}

#[test]
fn top_level_diagnostics() {
    pinned(
        "top_level",
        &told(&[
            ("an empty file", String::new()),
            ("only a comment", "# nothing\n".to_owned()),
            ("not a mapping", "- a\n".to_owned()),
            case("an unknown key", "title: T", "titel: T"),
            case("a key twice", "title: T", "title: T\ntitle: U"),
            case("no factor", "factor: server.args.moe-runner-backend\n", ""),
            case("repeats of none", "control: a", "control: a\nrepeats: 0"),
            case("few repeats", "control: a", "control: a\nrepeats: 2"),
            case("repeats with a leading zero", "control: a", "control: a\nrepeats: 05"),
            case("a margin without a sign", "control: a", "control: a\nmargin: 2"),
            case("a margin of nothing", "control: a", "control: a\nmargin: 0%"),
            case("a deadline without a unit", "control: a", "control: a\ntimeout: 12:30"),
            case("a deadline of nothing", "control: a", "control: a\ntimeout: 0s"),
            case("a host name", "title: T", "title: T\nhost: ../x"),
            case("a host twice", "title: T", "title: T\nhost: [one, one]"),
            case("no host", "title: T", "title: T\nhost: []"),
            case("guards", "title: T", "title: T\nguards: {gsm8k: 1319 questions}"),
            case("an allowance without use", "title: T", "title: T\nallow: {load-format-dummy: speed only}"),
            case("a prime", "title: T", "title: T\nprime: yes"),
        ]),
    );
}

#[test]
fn source_and_environment_diagnostics() {
    let image =
        |text: &str| changed("source: {repo: ~/sglang, commit: 5c1e0a7d3b7f4a1d9b0d8a6f2c4e6b8a0d2f4c6e}", text);
    pinned(
        "source_and_environment",
        &told(&[
            case("a tag", COMMIT, "v0.5.23"),
            case("a short hash that looks like a number", COMMIT, "61e9540"),
            case("another that looks infinite", COMMIT, "12e4567"),
            case("a leading zero", COMMIT, "0123456"),
            case("capitals", COMMIT, "5C1E0A7D3B7F4A1D9B0D8A6F2C4E6B8A0D2F4C6E"),
            case("no commit", ", commit: 5c1e0a7d3b7f4a1d9b0d8a6f2c4e6b8a0d2f4c6e", ""),
            case("a missing patch", "repo: ~/sglang,", "repo: ~/sglang, patches: [oea.patch],"),
            case("a patch from elsewhere", "repo: ~/sglang,", "repo: ~/sglang, patches: [../oea.patch],"),
            case("one patch, not a list", "repo: ~/sglang,", "repo: ~/sglang, patches: oea.patch,"),
            ("neither source nor environment", image("# none")),
            ("an image by tag", image("environment: {image: \"lmsysorg/sglang:latest\"}")),
            ("an environment of nothing", image("environment: {via: docker}")),
            (
                "two environments",
                image(&format!("environment: {{venv: /opt/a, image: \"x@sha256:{}\"}}", "a".repeat(64))),
            ),
            ("a build of nothing", image("environment: {venv: /opt/a, build: [pip, install]}")),
        ]),
    );
}

#[test]
fn server_diagnostics() {
    let args = "args: {tp-size: 8}";
    let env = "env: {NCCL_P2P_LEVEL: SYS}";
    let pocket = |flags: &str| {
        format!(
            "title: T\nquestion: Q\nserver: {{engine: pocketmoe, args: {{{flags}}}}}\nworkload: {{input_tokens: 1, \
             output_tokens: 1, concurrency: 1}}\nfactor: server.env.X\narms: {{a: unset, b: \"1\"}}\ncontrol: a\n"
        )
    };
    pinned(
        "server",
        &told(&[
            case("an unknown engine", "engine: sglang", "engine: sgl"),
            case("no model", "  model: m\n", ""),
            case("a flag twice", args, "args: {tp-size: 8, tensor_parallel_size: 4}"),
            case("dashes", args, "args: {--tp-size: 8}"),
            case("an abbreviation", args, "args: {mem-fraction: 0.9}"),
            case("an ambiguous abbreviation", args, "args: {cuda-graph-max: 8}"),
            case("a reserved flag", args, "args: {port: 30000}"),
            case("the model as a flag", args, "args: {model-path: x}"),
            case("a flag with nothing", args, "args: {disable-radix-cache: }"),
            case("a flag with a truth value", args, "args: {disable-radix-cache: true}"),
            case("a flag with an empty list", args, "args: {cuda-graph-bs: []}"),
            case("made-up weights", args, "args: {load-format: dummy}"),
            case("a simulation", env, "env: {SGLANG_SIMULATE_ACC_LEN: \"3\"}"),
            case("a test variable under its old prefix", env, "env: {SGL_TEST_RETRACT: \"1\"}"),
            case("a word for false", env, "env: {SGLANG_FLAG: no, OTHER: \"off\"}"),
            case("a variable that is set", env, "env: {A: set}"),
            case("a variable of nothing", env, "env: {A: }"),
            case("a list in a variable", env, "env: {A: [1, 2]}"),
            case("a NUL", env, "env: {A: \"a\\0b\"}"),
            case("a secret", env, "env: {HF_TOKEN: hf_x}"),
            case("a variable of ours", env, "env: {LABBOOK_NONCE: x}"),
            case("a name that is none", env, "env: {A-B: x}"),
            case("a deadline that is none", "  model: m", "  model: m\n  ready: soon"),
            ("an unknown flag of the pocket engine", pocket("moe-runner-backnd: loop")),
            ("a flag of another engine", pocket("tp-size: 2")),
            ("a switch with a value", pocket("disable-radix-cache: 1")),
            ("a value missing", pocket("random-seed: set")),
            ("a fault", pocket("fault: oom")),
        ]),
    );
}

#[test]
fn workload_diagnostics() {
    let levels = "concurrency: [1, 10]";
    let client = "client: {use: sglang.bench_serving, python: p, version: 0.5.23}";
    pinned(
        "workload",
        &told(&[
            case("a text for a list", levels, "concurrency: 1,10,64"),
            case("level 0", levels, "concurrency: [0]"),
            case("a level twice", levels, "concurrency: [10, 64, 10]"),
            case("half a user", levels, "concurrency: [1.5, 10]"),
            case("a level in quotes", levels, "concurrency: ['10']"),
            case("no levels", levels, "concurrency: []"),
            case("no concurrency", "  concurrency: [1, 10]\n", ""),
            case("two axes", levels, "concurrency: [1, 10]\n  request_rate: [1, 2]"),
            case("one rate twice", levels, "concurrency: 10\n  request_rate: [8.50, 8.5]"),
            case("a rate of nothing", levels, "concurrency: [10]\n  request_rate: 0"),
            case("a rate with a sign", levels, "concurrency: [10]\n  request_rate: 1e+1"),
            case("a seed beyond 64 bits", levels, "concurrency: [10]\n  seed: 18446744073709551616"),
            case("an octal seed", levels, "concurrency: [10]\n  seed: 0777"),
            case("a hexadecimal seed", levels, "concurrency: [10]\n  seed: 0x1f"),
            case("a ratio above 1", levels, "concurrency: [10]\n  range_ratio: 1.5"),
            case("a truth value in another spelling", levels, "concurrency: [10]\n  ignore_eos: yes"),
            case("a data set from elsewhere", levels, "concurrency: [10]\n  dataset: random"),
            case("a data set that is missing", levels, "concurrency: [10]\n  dataset_path: data.json"),
            case("no client", "  client: {use: sglang.bench_serving, python: p, version: 0.5.23}\n", ""),
            case("an unknown client", client, "client: {use: sglang.bench_servin}"),
            case("a client that is not pinned", client, "client: {use: sglang.bench_serving}"),
            case("a version of the built-in client", client, "client: {use: pocketmoe.load, version: 1}"),
            case("a client flag that labbook sets", client, "client: {use: pocketmoe.load, args: {seed: 1}}"),
            case(
                "an abbreviated client flag",
                client,
                "client: {use: sglang.bench_serving, python: p, version: 1, args: {num-prompt: 1}}",
            ),
        ]),
    );
}

#[test]
fn factor_and_arm_diagnostics() {
    let bundle = |arms: &str| {
        changed(FACTOR, "factor: [server.env.SGLANG_X, server.env.SGLANG_Y]").replace(ARMS, &format!("arms: {arms}"))
    };
    pinned(
        "factor_and_arm",
        &told(&[
            case("an unknown key", FACTOR, "factor: server.arg.x"),
            case("a misspelt key", FACTOR, "factor: source.comit"),
            case("the load", FACTOR, "factor: workload.input_tokens"),
            case("the environment as a whole", FACTOR, "factor: environment"),
            case("a factor with a name of nothing", FACTOR, "factor: server.args."),
            case("a factor of nothing", FACTOR, "factor: []"),
            case("varied and fixed", FACTOR, "factor: server.args.tp"),
            case("varied twice", FACTOR, "factor: [server.args.ep, server.args.ep-size]"),
            case("an abbreviated factor", FACTOR, "factor: server.args.moe-runner"),
            case("no arms", ARMS, "arms: {}"),
            case("one arm", ARMS, "arms: {a: triton}"),
            case("an arm twice", ARMS, "arms: {a: triton, a: cutlass}"),
            case("an arm that sets more", ARMS, "arms: {a: triton, b: {moe-runner-backend: cutlass, tp-size: 4}}"),
            case("an arm of nothing", ARMS, "arms: {a: triton, b: }"),
            case("names of sessions", ARMS, "arms: {a: triton, prime-b: cutlass, b01-c: x, d.2: y}"),
            case("names that lead elsewhere", ARMS, "arms: {a: triton, ../b: cutlass, A b: x, é: y}"),
            case("equal arms", ARMS, "arms: {a: triton, b: triton}"),
            case("arms that are equal as numbers", ARMS, "arms: {a: 0.90, b: 0.9}"),
            case("no arm sets it", ARMS, "arms: {a: unset, b: unset}"),
            ("too few values", bundle("{a: [unset, unset], b: [\"1\"]}")),
            ("too many values", bundle("{a: [unset, unset], b: [\"1\", \"2\", \"3\"]}")),
            ("a value for a list", bundle("{a: [unset, unset], b: \"1\"}")),
            ("a key that does not move", bundle("{a: [unset, \"1\"], b: [\"1\", \"1\"]}")),
            ("a key that no arm sets", bundle("{a: [unset, unset], b: [\"1\", unset]}")),
            ("nothing proves it", bundle("{a: [unset, unset], b: [\"1\", \"1\"]}")),
            case("varied and fixed commit", FACTOR, "factor: source.commit"),
            (
                "a hash that looks infinite in an arm",
                changed(&format!(", commit: {COMMIT}"), "")
                    .replace(FACTOR, "factor: source.commit")
                    .replace(ARMS, &format!("arms: {{a: {COMMIT}, b: 12e4567}}")),
            ),
            (
                "a factor without its source",
                changed(&format!("source: {{repo: ~/sglang, commit: {COMMIT}}}"), "environment: {venv: /opt/a}")
                    .replace(FACTOR, "factor: source.commit")
                    .replace(ARMS, &format!("arms: {{a: {COMMIT}, b: 0{}}}", &COMMIT[1..])),
            ),
            (
                "made-up weights in an arm",
                changed(FACTOR, "factor: server.args.load-format").replace(ARMS, "arms: {a: auto, b: dummy}"),
            ),
        ]),
    );
}

#[test]
fn claim_diagnostics() {
    let claim = "{metric: output_throughput, treatment: b, at: 10, expect: higher}";
    pinned(
        "claim",
        &told(&[
            case("an unknown control", "control: a", "control: c"),
            case("an unknown metric", "output_throughput", "output_troughput"),
            case("another metric", "output_throughput", "throughput"),
            case("a peak", "output_throughput", "peak_output_throughput"),
            case("a percentile of few", "output_throughput", "p99_ttft_ms"),
            case("an unknown arm", "treatment: b", "treatment: c"),
            case("the control", "treatment: b", "treatment: a"),
            case("a level that is not planned", "at: 10", "at: 64"),
            case("an unknown expectation", "expect: higher", "expect: faster"),
            case("no claim", claim, ""),
            case("an unknown key", claim, "{metric: output_throughput, treatment: b, at: 10, expects: higher}"),
            case("by without a direction", "expect: higher}", "expect: unchanged, by: 5%}"),
            case("a claim's name", "  faster:", "  Faster/x:"),
            case(
                "a headline at no level",
                "control: a",
                "control: a\nheadline: {metric: output_throughput, treatment: b, over: 3}",
            ),
            case("an input that is entailed", "control: a", "control: a\nentails: [server.args.tp-size]"),
            case("a misplaced star", "control: a", "control: a\nentails: [server.resolved.*.x]"),
            case("something that is entailed", "control: a", "control: a\nentails: [gpu.count]"),
            case("evidence of the control", "control: a", "control: a\nevidence: {a: {log: x}}"),
            case("evidence of nothing", "control: a", "control: a\nevidence: {b: {log: }}"),
            case("a reference without a reason", "control: a", "control: a\nreferences: {r: {value: 1, unit: tok/s}}"),
        ]),
    );
}

#[test]
fn several_problems_are_told_at_once() {
    let text = changed("title: T", "titel: T").replace("engine: sglang", "engine: sgl").replace("at: 10", "at: 64");
    let problems = read("x.yaml", &text, Path::new("")).expect_err("refused");
    assert_eq!(problems.problems.len(), 4, "{}", problems.render(Style::Plain));
}

#[test]
fn the_name_of_the_file_must_be_able_to_name_a_folder() {
    for name in ["", "..", "My Spec.yaml", "x/prime-x.yaml", "é.yaml"] {
        let told = read(name, BASE, Path::new("")).expect_err("refused").render(Style::Plain);
        assert!(told.contains("cannot name an experiment"), "{told}");
    }
}

#[test]
fn labbook_yaml_is_read_and_its_problems_are_told() {
    let read = |text: &str| parse_lab(&yaml::source("labbook.yaml", text));
    let (lab, _) =
        read("hosts:\n  h200: {via: slurm, partition: gpu, gpus: [0, 1], neighbours: record}\n").expect("a lab");
    assert_eq!(lab.hosts.keys().collect::<Vec<_>>(), ["local", "h200"]);
    assert_eq!(lab.hosts["h200"].gpus, Some(vec![0, 1]));
    assert_eq!(lab.hosts["local"].via, HostVia::Local);
    assert_eq!(read("{}").expect("a lab").0, Lab::default());
    let mut out = String::new();
    for text in [
        "",
        "hosts:\n",
        "hosts: {a: {via: shh}}",
        "hosts: {a: {}}",
        "hosts: {Ab: {via: ssh}}",
        "hosts: {local: {via: ssh}}",
        "hosts: {a: {via: ssh, gpus: []}}",
        "hosts: {a: {via: ssh, gpus: [0, 0]}}",
        "hosts: {a: {via: local, address: x}}",
        "hosts: {a: {via: ssh, folder: x}}",
        "host: {}",
    ] {
        out += &format!("## {text:?}\n{}\n\n", read(text).expect_err("refused").render(Style::Plain));
    }
    pinned("labbook_yaml", &out);
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

/// For each line of the resolved form of the full spec: the value taken away, and what is told about it.
#[test]
fn an_empty_value_is_a_problem_at_every_key() {
    let folder = folder();
    let yaml = full(folder.path()).resolved_yaml();
    let lines: Vec<&str> = yaml.lines().collect();
    let depth = |line: &str| line.len() - line.trim_start().len();
    let mut out = String::new();
    for (place, line) in lines.iter().enumerate() {
        let key = line.split_once(": ").map_or(line.trim_end_matches(':'), |(key, _)| key);
        let inside = lines[place + 1..].iter().take_while(|other| depth(other) > depth(line)).count();
        let before = lines[..place].iter().copied();
        let after = lines[place + 1 + inside..].iter().copied();
        let emptied = format!("{key}:");
        let text: Vec<&str> = before.chain([emptied.as_str()]).chain(after).collect();
        let problems = read("x.yaml", &text.join("\n"), folder.path()).expect_err(&emptied);
        let mut problems_of_it = problems.problems.iter();
        let first = problems_of_it.find(|problem| problem.severity == Severity::Error).expect("an error");
        let (row, column) = problems.line_column(first.primary.0.start);
        out += &format!("{:24} {row}:{column} {}\n", key.trim(), first.title);
    }
    pinned("empty_values", &out);
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

/// A spec of `arms` arms and `levels` levels.
fn sized(arms: u32, levels: u32, passes: u32, seed: u64) -> Spec {
    let arms: Vec<String> = (0..arms).map(|arm| format!("a{arm}: v{arm}")).collect();
    let levels: Vec<String> = (1..=levels).map(|level| level.to_string()).collect();
    let text = BASE
        .split("claims:")
        .next()
        .expect("a part")
        .replace(ARMS, &format!("arms: {{{}}}", arms.join(", ")))
        .replace("control: a", &format!("control: a0\npasses: {passes}"))
        .replace("concurrency: [1, 10]", &format!("concurrency: [{}]\n  seed: {seed}", levels.join(", ")));
    read("x.yaml", &text, Path::new("")).expect("a spec").0
}

#[test]
fn a_plan_without_blocks_is_empty_and_a_retry_keeps_the_order() {
    let spec = base();
    assert!(plan::blocks(&spec, 1, 0).is_empty());
    let (first, again) = (plan::blocks(&spec, 3, 1), plan::retry_block(&spec, 3, 2));
    let arms =
        |sessions: &[plan::PlannedSession]| sessions.iter().map(|session| session.arm.clone()).collect::<Vec<_>>();
    assert_eq!(arms(&first), arms(&again));
    assert!(again.iter().all(|session| session.name == format!("b03-{}.2", session.arm) && session.attempt == 2));
    assert_eq!(first[0].trials, again[0].trials);
    let look = plan::look(&spec, "b", &spec.question.levels[1]);
    assert_eq!((look.name.as_str(), look.trials.len(), look.trials[0].num_prompts), ("look-b-c0010", 1, 80));
    assert_eq!(look.trials[0].seed, 43);
    let json = plan::plan(&spec).to_json();
    assert_eq!(json["sessions"].as_array().expect("a list").len(), 12);
    assert_eq!(json["sessions"][0]["trials"][0]["request_rate"], serde_json::Value::Null);
}

#[test]
fn blocks_go_round_the_hosts_and_primes_go_to_each() {
    let text = changed("title: T", "title: T\nhost: [one, two]");
    let (spec, _) = read("x.yaml", &text, Path::new("")).expect("a spec");
    let planned = plan::plan(&spec);
    let mut names: Vec<&str> = planned.sessions.iter().map(|session| session.name.as_str()).collect();
    assert_eq!(planned.sessions.iter().filter(|session| session.kind == plan::Kind::Prime).count(), 4);
    for session in &planned.sessions {
        let wanted = session.block.map(|block| if block % 2 == 1 { "one" } else { "two" });
        assert!(wanted.is_none_or(|wanted| wanted == session.host));
    }
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), planned.sessions.len());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_group_of_blocks_is_balanced(arms in 2_u32..6, blocks in 1_u32..13, seed in 0_u64..1000) {
        let spec = sized(arms, 3, 1, seed);
        let sessions = plan::blocks(&spec, 1, blocks);
        prop_assert_eq!(&sessions, &plan::blocks(&spec, 1, blocks), "reproducible");
        for arm in spec.question.arms.keys() {
            for position in 1..=arms {
                let count = sessions.iter().filter(|session| session.arm == *arm && session.position == position).count() as u32;
                prop_assert!(count == blocks / arms || count == blocks / arms + 1);
                prop_assert!(blocks % arms != 0 || count == blocks / arms);
            }
        }
    }

    #[test]
    fn the_arms_of_a_block_meet_the_same_conditions(arms in 2_u32..5, levels in 1_u32..6, passes in 1_u32..4, block in 1_u32..40) {
        let spec = sized(arms, levels, passes, 1);
        let sessions = plan::blocks(&spec, block, 1);
        prop_assert!(sessions.iter().all(|session| session.trials == sessions[0].trials));
        let mut labels: Vec<&str> = sessions[0].trials.iter().map(|trial| trial.label.as_str()).collect();
        prop_assert_eq!(labels.len() as u32, levels * passes);
        labels.sort_unstable();
        labels.dedup();
        prop_assert_eq!(labels.len() as u32, levels * passes);
        prop_assert!(sessions[0].trials.iter().all(|trial| trial.seed == 1 + u64::from(trial.pass)));
    }

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
