//! One case per diagnostic: the text, what is told about it, and where.

use std::fmt::Write as _;

use super::*;
use crate::diagnostic::Severity;

/// Problems of a text, each case once: what is found, and where.
fn told(cases: &[(&str, String)]) -> String {
    let mut out = String::new();
    for (what, text) in cases {
        let problems = match read("x.yaml", text, Path::new("no-such-folder")) {
            Ok((_, warnings)) => warnings,
            Err(problems) => problems,
        };
        assert!(!problems.problems.is_empty(), "{what}: nothing was noticed");
        let _ = write!(out, "## {what}\n{}\n\n", problems.render(Style::Plain));
    }
    out
}

fn case<'a>(what: &'a str, from: &str, to: &str) -> (&'a str, String) {
    (what, changed(from, to))
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
        let _ = write!(out, "## {text:?}\n{}\n\n", read(text).expect_err("refused").render(Style::Plain));
    }
    pinned("labbook_yaml", &out);
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
        let _ = writeln!(out, "{:24} {row}:{column} {}", key.trim(), first.title);
    }
    pinned("empty_values", &out);
}
