//! `engine: sglang` end to end, against a stand-in that a test puts into a git checkout: real commits, patches, virtual environments,
//! processes and log lines, and no model. What is refused is refused by the name of the fact that differs.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use super::lab::Lab;
use super::tiny::{
    self, SPEC, add_words, assert_nothing_left, compare, edition, events, folder_names, host_folder, queue_only,
    queued, reasons, refused_for, replace_words, run, words,
};
use crate::scripts::{python, skipped};

/// A lab with a checkout of the stand-in, a virtual environment each for server and client, and a model's folder.
struct Bed {
    lab: Lab,
    commit: String,
}

/// What a spec says beside the bed's own places.
struct Ask<'a> {
    source: &'a str,
    args: &'a str,
    env: &'a str,
    client: &'a str,
    factor: &'a str,
    arms: &'a str,
    more: &'a str,
}

impl Default for Ask<'_> {
    fn default() -> Self {
        Self {
            source: "",
            args: "",
            env: "{}",
            client: "0.5.23",
            factor: "server.args.moe-runner-backend",
            arms: "one: triton, other: triton_kernel",
            more: "",
        }
    }
}

fn standin(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/standin").join(name)
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a folder");
    for entry in fs::read_dir(from).expect("the stand-in").flatten() {
        let target = to.join(entry.file_name());
        if entry.file_name() == "__pycache__" {
        } else if entry.path().is_dir() {
            copy(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), &target).expect("copied");
        }
    }
}

#[track_caller]
fn git(folder: &Path, words: &[&str]) -> String {
    let identity = ["-c", "user.name=t", "-c", "user.email=t@localhost", "-c", "commit.gpgsign=false"];
    let output = Command::new("git").args(identity).args(words).current_dir(folder).output().expect("git");
    assert!(output.status.success(), "git {words:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

/// Makes a virtual environment by hand, which is what `python -m venv --without-pip` makes, without its half a second.
fn venv(folder: &Path) -> PathBuf {
    fs::create_dir_all(folder.join("bin")).expect("a folder");
    symlink(python(), folder.join("bin/python")).expect("a link");
    let home = python().parent().expect("a folder").display().to_string();
    fs::write(folder.join("pyvenv.cfg"), format!("home = {home}\ninclude-system-site-packages = false\n"))
        .expect("cfg");
    let output = Command::new(folder.join("bin/python"))
        .args(["-c", "import sysconfig; print(sysconfig.get_path('purelib'))"])
        .output()
        .expect("the interpreter starts");
    let real = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
    assert!(real.starts_with(folder), "{} is not in {}", real.display(), folder.display());
    fs::create_dir_all(&real).expect("a folder");
    real
}

/// Installs the metadata of a package.
fn distribution(packages: &Path, name: &str, version: &str) {
    let folder = packages.join(format!("{}-{version}.dist-info", name.replace('-', "_")));
    fs::create_dir_all(&folder).expect("a folder");
    let text = format!("Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n");
    fs::write(folder.join("METADATA"), text).expect("written");
}

impl Bed {
    fn new() -> Self {
        let lab = Lab::new();
        let checkout = lab.path("sglang");
        copy(&standin("sglang"), &checkout);
        git(&checkout, &["init", "-q", "-b", "main", "."]);
        git(&checkout, &["add", "."]);
        git(&checkout, &["commit", "-q", "-m", "the stand-in"]);
        let commit = git(&checkout, &["rev-parse", "HEAD"]);
        let server = venv(&lab.path("serving"));
        distribution(&server, "sgl-kernel", "0.3.1");
        distribution(&server, "a-colleagues-tool", "1.0");
        let client = venv(&lab.path("bench"));
        copy(&standin("client"), &client);
        distribution(&client, "sglang", "0.5.23");
        lab.write("model/config.json", "{\"architectures\": [\"Standin\"]}");
        fs::copy(standin("oea.patch"), lab.path("experiments/oea.patch")).expect("a patch");
        Self { lab, commit }
    }

    /// Writes the spec; its seed is chosen so that no other test has the port.
    fn ask(&mut self, ask: &Ask) -> &Lab {
        let Ask { source, args, env, client, factor, arms, more } = ask;
        let commit = if *factor == "source.commit" { String::new() } else { format!("commit: {}, ", self.commit) };
        let place = |name: &str| self.lab.path(name).display().to_string();
        let (repo, model, serving, bench) =
            (place("sglang"), place("model"), place("serving"), place("bench/bin/python"));
        let environment = if factor.starts_with("environment") {
            String::new()
        } else {
            format!("environment: {{ venv: {serving} }}\n")
        };
        let spec = |seed: u32| {
            format!(
                "title: Tiny\nquestion: What happens?\n\
                 source: {{ {commit}repo: {repo}{source} }}\n{environment}\
                 server:\n  engine: sglang\n  model: {model}\n  \
                 args: {{ device: cpu, random-seed: {seed}, decode-log-interval: 1, enable-metrics: set{args} }}\n  \
                 env: {env}\n  ready: 30s\n\
                 workload:\n  client: {{ use: sglang.bench_serving, python: {bench}, version: {client} }}\n  \
                 input_tokens: 8\n  output_tokens: 8\n  prompts_per_user: 2\n  concurrency: [1, 2]\n\
                 factor: {factor}\narms: {{ {arms} }}\ncontrol: one\nrepeats: 1\nmargin: 5%\nprime: never\n\
                 headline: {{ metric: output_throughput, treatment: other, over: 1 }}\n\
                 claims:\n  same: {{ metric: decode_rate, treatment: other, at: 2, expect: unchanged }}\n{more}"
            )
        };
        tiny::write_with_free_port(&mut self.lab, SPEC, &spec);
        &self.lab
    }
}

/// The facts of a session and of its first run, as they are parsed from the sealed files.
#[track_caller]
fn facts(lab: &Lab, session: &str) -> BTreeMap<String, Value> {
    let folder = lab.path(&edition(lab)).join(session);
    let text = fs::read(folder.join("facts.json")).expect("facts");
    let mut facts: BTreeMap<String, Value> = serde_json::from_slice(&text).expect("JSON");
    let trial = folder_names(&folder).into_iter().find(|name| name.ends_with("-p1")).expect("a trial");
    let run: Value =
        serde_json::from_slice(&fs::read(folder.join(trial).join("run.json")).expect("a run")).expect("JSON");
    let id = run_id(lab, session);
    let shown = lab.run(&["show", &id]).success().out;
    for line in shown.lines() {
        if let Some((key, value)) = line.trim().split_once(" =") {
            facts.entry(key.to_owned()).or_insert_with(|| Value::String(value.trim().to_owned()));
        }
    }
    assert_eq!(run["session"], session);
    facts
}

#[track_caller]
fn run_id(lab: &Lab, session: &str) -> String {
    let runs = lab.run(&["show", "tiny", "--format", "json"]).success().json();
    let of_session = |run: &&Value| run["run"]["session"] == session || run["session"] == session;
    let run = runs.as_array().and_then(|runs| runs.iter().find(of_session)).unwrap_or_else(|| panic!("{runs:#}"));
    run["id"].as_str().expect("an id").to_owned()
}

fn edit(lab: &Lab, session: &str, file: &str, text: &str) {
    let path = queued(&host_folder(lab), session).join(file);
    fs::create_dir_all(path.parent().expect("a folder")).expect("made");
    fs::write(path, text).expect("written");
}

/// The queue's folders that hold a measured client's command.
fn clients(lab: &Lab, session: &str) -> Vec<PathBuf> {
    let session = queued(&host_folder(lab), session);
    let trials = folder_names(&session.join("trials")).into_iter().map(|name| session.join("trials").join(name));
    trials.flat_map(|trial| [trial.join("argv"), trial.join("warmup/argv")]).collect()
}

#[test]
fn an_argument_is_compared_and_every_fact_was_observed() {
    let mut bed = Bed::new();
    let commit = bed.commit.clone();
    let lab = bed.ask(&Ask { more: "entails: [server.resolved.disable_overlap_schedule]\n", ..Ask::default() });
    run(lab).success().says("1 of 1 blocks complete");
    let (status, compared) = compare(lab);
    assert_eq!((status, &compared["outcome"]), (0, &"exploratory".into()), "{compared:#}");
    let slower = compared["conditions"].as_array().expect("conditions").iter().any(|condition| {
        condition["metric"] == "decode_rate" && condition["effect"]["ratio"].as_f64().is_some_and(|ratio| ratio < 0.95)
    });
    assert!(slower, "the other kernel takes longer for each step, and the server's log says so: {compared:#}");
    let facts = facts(lab, "b01-other");
    let here = |name: &str| lab.path(name).display().to_string();
    for (key, wanted) in [
        ("source.commit", commit),
        ("source.dirty", "clean".into()),
        ("source.submodules", "none".into()),
        ("binaries.interpreter", here("serving/bin/python")),
        ("packages.sglang.path", "python/sglang/__init__.py".into()),
        ("packages.sgl-kernel", "0.3.1".into()),
        ("server.args.moe-runner-backend", "triton_kernel".into()),
        ("server.args.model-path", here("model")),
        ("server.resolved.moe_runner_backend", "triton_kernel".into()),
        ("server.resolved.attention_backend", "torch_native".into()),
        ("server.capacity.max_running_requests", "256".into()),
        ("server.identity", "own".into()),
        ("model.path", here("model")),
        ("client.name", "sglang.bench_serving".into()),
        ("client.version", "0.5.23".into()),
        ("counters.cached_tokens", "0".into()),
        ("workload.range_ratio", "1.0".into()),
        ("workload.flush_status", "200 Cache flushed. Please check backend logs for more".into()),
        ("gpu.count", "0".into()),
    ] {
        assert_eq!(facts.get(key), Some(&Value::String(wanted)), "{key} in {facts:#?}");
    }
    for key in ["model.config_sha256", "client.module_sha256", "server.capacity.kv_tokens", "workload.lengths_sha256"] {
        assert!(facts.contains_key(key), "{key} in {facts:#?}");
    }
    let number =
        |key: &str| facts[key].as_str().and_then(|text| text.parse::<u32>().ok()).unwrap_or_else(|| panic!("{key}"));
    assert_eq!(number("counters.requests"), number("workload.num_prompts"), "the server counted what was sent");
    assert_eq!(number("counters.prompt_tokens"), 8 * number("workload.num_prompts"));
    // The server sets it for its children only, and both values are told.
    assert_eq!(facts["server.env.NCCL_CUMEM_ENABLE"], serde_json::json!(["(unset)", "0"]), "{facts:#?}");
    assert!(!facts.contains_key("packages.a-colleagues-tool"), "not in the engine's closure: {facts:#?}");
    assert!(!facts.contains_key("server.env.SGLANG_RUN_ID"), "made afresh at each launch");
    assert_nothing_left(lab);
}

#[test]
fn patches_are_the_factor_and_the_log_is_the_evidence() {
    let mut bed = Bed::new();
    let ask = Ask {
        env: "{ SGLANG_OEA_K0: \"3\" }",
        factor: "source.patches",
        arms: "one: [], other: [oea.patch]",
        more: "evidence:\n  other: { log: \"OEA on\" }\n",
        ..Ask::default()
    };
    let lab = bed.ask(&ask);
    run(lab).success();
    let (status, compared) = compare(lab);
    assert_eq!((status, &compared["outcome"]), (0, &"exploratory".into()), "{compared:#}");
    let (one, other) = (facts(lab, "b01-one"), facts(lab, "b01-other"));
    assert_eq!((&one["source.dirty"], &one["treatment.evidence"]), (&"clean".into(), &"absent".into()));
    assert_eq!(other["treatment.evidence"], "present");
    assert_eq!(other["source.dirty"].as_str().map(str::len), Some(64), "the digest of the patched tree");
    assert_eq!(one["source.commit"], other["source.commit"]);
}

#[test]
fn a_bundle_of_variables_is_active_only_under_its_right_names() {
    let mut bed = Bed::new();
    let ask = Ask {
        source: ", patches: [oea.patch]",
        factor: "[server.env.SGLANG_OEA_K0, server.env.SGLANG_OEA_MIN_BATCH]",
        arms: "one: [unset, unset], other: [\"3\", \"2\"]",
        more: "evidence:\n  other: { log: \"OEA on\" }\n",
        ..Ask::default()
    };
    let lab = bed.ask(&ask);
    run(lab).success();
    let (status, compared) = compare(lab);
    assert_eq!((status, &compared["outcome"]), (0, &"exploratory".into()), "{compared:#}");
    let other = facts(lab, "b01-other");
    assert_eq!(
        (&other["server.env.SGLANG_OEA_K0"], &other["server.env.SGLANG_OEA_MIN_BATCH"]),
        (&"3".into(), &"2".into())
    );
    // The same experiment with one letter amiss: the variable is there, and nothing reads it.
    fs::remove_dir_all(bed.lab.path("results")).expect("the first edition is out of the way");
    fs::remove_dir_all(bed.lab.path(".labbook")).expect("and its host folder");
    let ask = Ask { factor: "[server.env.SGLANG_OEA_KO, server.env.SGLANG_OEA_MIN_BATCH]", ..ask };
    let lab = bed.ask(&ask);
    run(lab).success();
    refused_for(lab, "treatment.evidence");
}

#[test]
fn another_flag_commit_and_working_tree_are_refused_by_name() {
    let mut bed = Bed::new();
    let checkout = bed.lab.path("sglang");
    fs::write(checkout.join("python/sglang/srt/extra.py"), "").expect("written");
    git(&checkout, &["add", "."]);
    git(&checkout, &["commit", "-q", "-m", "another"]);
    let other_commit = git(&checkout, &["rev-parse", "HEAD"]);
    git(&checkout, &["checkout", "-q", &bed.commit]);
    fs::write(checkout.join("python/sglang/srt/extra.py"), "left_over = 1\n").expect("a file that git does not know");
    let lab = bed.ask(&Ask { more: "retry: 0\n", ..Ask::default() });
    let spec = lab.read(SPEC).replace("repeats: 1", "repeats: 3");
    lab.write(SPEC, &spec);
    let host = queue_only(lab);
    add_words(&queued(&host, "b01-other").join("argv"), &["--tp", "2"]);
    edit(lab, "b02-other", "source/commit", &format!("{other_commit}\n"));
    // Somebody's working tree in the place of the clean one.
    fs::remove_dir_all(queued(&host, "b03-other").join("source")).expect("removed");
    edit(lab, "b03-other", "cwd", &format!("{}\n", checkout.display()));
    run(lab).success();
    let compared = refused_for(lab, "source.commit");
    let blocks = |name: &str| {
        let reasons = compared["conditions"][0]["reasons"].as_array().expect("reasons");
        reasons.iter().find(|reason| reason["name"] == name).map(|reason| reason["blocks"].clone())
    };
    assert_eq!(blocks("server.args.tp-size"), Some(serde_json::json!([1])), "under its full name: {compared:#}");
    assert_eq!(blocks("source.commit"), Some(serde_json::json!([2])), "{compared:#}");
    assert_eq!(blocks("source.dirty"), Some(serde_json::json!([3])), "{compared:#}");
    lab.run(&["compare", "tiny"]).fails(3).says("source.dirty").says("server.args.tp-size");
}

#[test]
fn a_child_with_another_environment_is_refused_by_name() {
    let mut bed = Bed::new();
    bed.lab.write("site-lpm.env", "FLASHINFER_SOMETHING=1\n");
    let lab = bed.ask(&Ask { factor: "server.args.schedule-policy", arms: "one: fcfs, other: lpm", ..Ask::default() });
    run(lab).success();
    refused_for(lab, "server.env.FLASHINFER_SOMETHING");
    assert_eq!(facts(lab, "b01-other")["server.env.FLASHINFER_SOMETHING"], serde_json::json!(["(unset)", "1"]));
}

#[test]
fn a_client_of_another_version_is_refused() {
    let mut bed = Bed::new();
    let lab = bed.ask(&Ask::default());
    let other = venv(&lab.path("newer"));
    copy(&standin("client"), &other);
    distribution(&other, "sglang", "0.5.24");
    let host = queue_only(lab);
    let python = lab.path("newer/bin/python").display().to_string();
    let session = queued(&host, "b01-other");
    let mut commands = clients(lab, "b01-other");
    // Whoever installs over the pinned client does so for the preflight too, which is told not to look.
    commands.extend(
        folder_names(&session.join("preflight")).iter().map(|name| session.join("preflight").join(name).join("argv")),
    );
    for argv in commands.iter().filter(|argv| words(argv)[0].ends_with("bench/bin/python")) {
        let mut command: Vec<String> = words(argv);
        command[0].clone_from(&python);
        command.retain(|word| word != "0.5.23");
        replace_words(argv, &command.iter().map(String::as_str).collect::<Vec<_>>());
    }
    run(lab).success();
    refused_for(lab, "client.version");
    // A client that is not the pinned one does not even begin.
    let mut bed = Bed::new();
    let lab = bed.ask(&Ask { client: "0.5.22", more: "retry: 0\n", ..Ask::default() });
    run(lab).fails(5).says("client.version is 0.5.23").says("the spec pins 0.5.22");
    assert_nothing_left(lab);
}

#[test]
fn a_clean_tree_that_was_changed_is_not_used() {
    let mut bed = Bed::new();
    let lab = bed.ask(&Ask { more: "retry: 0\n", ..Ask::default() });
    run(lab).success();
    let sources = host_folder(lab).join("source");
    let tree = sources.join(&folder_names(&sources)[0]);
    fs::write(tree.join("python/sglang/extra.py"), "").expect("written");
    lab.run(&["run", SPEC, "--more", "1"]).fails(5).says("was changed").says("extra.py");
    fs::remove_file(tree.join("python/sglang/extra.py")).expect("removed");
    fs::write(tree.join("python/sglang/__init__.py"), "__version__ = '1'\n").expect("written");
    run(lab).fails(5).says("was changed").says("__init__.py");
}

#[test]
fn an_abbreviated_flag_is_refused_and_an_unknown_one_costs_seconds() {
    let mut bed = Bed::new();
    let lab = bed.ask(&Ask { args: ", chunked-prefill: 128", more: "retry: 0\n", ..Ask::default() });
    lab.run(&["check", SPEC]).fails(2).says("chunked-prefill-size");
    let mut bed = Bed::new();
    let lab = bed.ask(&Ask { args: ", a-flag-of-tomorrow: 128", more: "retry: 0\n", ..Ask::default() });
    run(lab).fails(5).says("unrecognized arguments: --a-flag-of-tomorrow 128");
}

#[test]
fn environments_are_facts_and_what_cannot_be_built_is_refused_at_once() {
    let mut bed = Bed::new();
    let newer = venv(&bed.lab.path("newer"));
    distribution(&newer, "sgl-kernel", "0.3.2");
    let place = |name: &str| bed.lab.path(name).display().to_string();
    let arms = format!("one: {}, other: {}", place("serving"), place("newer"));
    let lab = bed.ask(&Ask { factor: "environment.venv", arms: &arms, ..Ask::default() });
    run(lab).success();
    let (status, compared) = compare(lab);
    assert_eq!((status, &compared["outcome"]), (0, &"exploratory".into()), "{compared:#}");
    let (one, other) = (facts(lab, "b01-one"), facts(lab, "b01-other"));
    assert_eq!((&one["packages.sgl-kernel"], &other["packages.sgl-kernel"]), (&"0.3.1".into(), &"0.3.2".into()));
    assert_eq!(other["binaries.interpreter"], Value::String(lab.path("newer/bin/python").display().to_string()));

    let mut bed = Bed::new();
    bed.ask(&Ask::default());
    let digest = "a".repeat(64);
    let spec = bed.lab.read(SPEC);
    let at = spec.find("environment:").expect("an environment");
    let end = spec[at..].find('\n').expect("a line") + at;
    bed.lab.write("experiments/requirements.lock", "sglang==0.5.23\n");
    for environment in [format!("image: x@sha256:{digest}"), "lock: requirements.lock, build: [make]".to_owned()] {
        let text = format!("{}environment: {{ {environment} }}{}", &spec[..at], &spec[end..]);
        bed.lab.write(SPEC, &text);
        bed.lab.run(&["check", SPEC]).success();
        bed.lab.run(&["run", SPEC]).fails(5).says("cannot be run").says("venv: PATH");
        assert!(!bed.lab.path("results/tiny").exists() && !bed.lab.path(".labbook").exists(), "nothing was begun");
    }
}

#[test]
fn what_setup_exports_is_given_to_every_process_and_is_a_fact() {
    let mut bed = Bed::new();
    let setup = |text: &str| {
        format!("hosts:\n  local:\n    via: local\n    setup: |\n      {}\n", text.replace('\n', "\n      "))
    };
    bed.lab.write("labbook.yaml", &setup("echo loading\nexport NCCL_DEBUG=WARN SITE='a  b'\nmodule load cuda"));
    let lab = bed.ask(&Ask::default());
    run(lab).fails(5).says("ended with code 127").says("loading").says("/etc/profile");
    assert!(!events(lab).iter().any(|event| event.to_string().contains("finished")), "nothing ran");
    lab.write("labbook.yaml", &setup("export NCCL_DEBUG=WARN SITE='a  b'"));
    run(lab).success();
    let facts = facts(lab, "b01-one");
    assert_eq!(facts["server.env.NCCL_DEBUG"], "WARN");
    assert!(facts["server.env.SITE"].as_str().is_some_and(|text| text.starts_with("sha256:")), "{facts:#?}");
    assert!(!facts.contains_key("server.env.CARGO_BIN_EXE_labbook"), "and nothing of ours came along");
    let (status, compared) = compare(lab);
    assert_eq!((status, reasons(&compared).contains(&"server.env.NCCL_DEBUG".to_owned())), (0, false), "{compared:#}");
}

#[test]
fn the_published_client_drives_the_stand_in() {
    let name = "the_published_client_drives_the_stand_in";
    let above =
        Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().map(|folder| folder.join("shared/tools/sglang-client"));
    let Some(tool) = above.into_iter().find(|tool| tool.is_file()) else {
        return skipped(&format!("{name}: no shared/tools/sglang-client beside the repository"));
    };
    let Some(installed) = std::env::var_os("LABBOOK_SGLANG_CLIENT").map(PathBuf::from) else {
        return skipped(&format!("{name}: LABBOOK_SGLANG_CLIENT names no FOLDER of `{} setup FOLDER`", tool.display()));
    };
    let mut bed = Bed::new();
    // Its interpreter, with the modules that import torch in vain replaced, as the tool itself does.
    let site = bed.lab.path("bench-real");
    fs::create_dir_all(site.join("bin")).expect("a folder");
    let program = format!(
        "#!/bin/sh\n[ \"$1\" = -m ] || exec {0}/venv/bin/python \"$@\"\nshift 2\nexec {1} {2} python {0} -- \"$@\"\n",
        installed.display(),
        python().display(),
        tool.display()
    );
    fs::write(site.join("bin/python"), program).expect("written");
    fs::set_permissions(site.join("bin/python"), std::os::unix::fs::PermissionsExt::from_mode(0o755))
        .expect("executable");
    for name in ["tokenizer.json", "tokenizer_config.json"] {
        fs::copy(installed.join("tokenizer").join(name), bed.lab.path("model").join(name)).expect("a tokenizer");
    }
    bed.ask(&Ask::default());
    let spec = bed.lab.read(SPEC).replace("/bench/bin/python", "/bench-real/bin/python");
    // Its imports take long: one level, and no wave before it.
    let spec =
        spec.replace("concurrency: [1, 2]", "concurrency: [2]\n  warmup: { waves: 0 }").replace("over: 1", "over: 2");
    bed.lab.write(SPEC, &spec);
    run(&bed.lab).success();
    let facts = facts(&bed.lab, "b01-one");
    assert_eq!(facts["client.version"], "0.5.23");
    let (status, compared) = compare(&bed.lab);
    assert_eq!((status, &compared["outcome"]), (0, &"exploratory".into()), "{compared:#}");
}
