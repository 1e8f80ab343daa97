//! `engine: sglang` end to end, against a stand-in that a test puts into a git checkout: real commits, patches, virtual environments,
//! processes and log lines, and no model. What is refused is refused by the name of the fact that differs.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use super::lab::{Lab, Told};
use super::tiny::{
    self, SPEC, add_words, assert_nothing_left, compare, folder_names, host_folder, queue_only, queued, reasons,
    refused_for, run,
};
use crate::scripts::python;

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
    let packages = folder.join("lib/python3/site-packages");
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
    assert!(real.starts_with(folder), "{real:?} is not in {folder:?}, as {packages:?} would be");
    fs::create_dir_all(&real).expect("a folder");
    real
}

/// Installs the metadata of a package.
fn distribution(packages: &Path, name: &str, version: &str, requires: &[&str]) {
    let folder = packages.join(format!("{}-{version}.dist-info", name.replace('-', "_")));
    let requires: String = requires.iter().map(|name| format!("Requires-Dist: {name}\n")).collect();
    fs::create_dir_all(&folder).expect("a folder");
    let text = format!("Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{requires}");
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
        distribution(&server, "sgl-kernel", "0.3.1", &[]);
        distribution(&server, "a-colleagues-tool", "1.0", &[]);
        let client = venv(&lab.path("bench"));
        copy(&standin("client"), &client);
        distribution(&client, "sglang", "0.5.23", &[]);
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

/// The facts of the first run of an arm.
#[track_caller]
fn facts(lab: &Lab, arm: &str) -> Value {
    let runs = lab.run(&["show", "tiny", "--format", "json"]).success().json();
    let of_arm = |run: &&Value| run["arm"] == arm;
    let id = runs.as_array().and_then(|runs| runs.iter().find(of_arm)).map(|run| run["id"].clone());
    let id = id.unwrap_or_else(|| panic!("no run of `{arm}` in {runs:#}"));
    lab.run(&["show", id.as_str().expect("text"), "--format", "json"]).success().json()["facts"].clone()
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
    let facts = facts(lab, "other");
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
        ("server.env.PYTHONPATH", "python".into()),
        ("server.identity", "own".into()),
        ("model.path", here("model")),
        ("client.name", "sglang.bench_serving".into()),
        ("client.version", "0.5.23".into()),
        ("counters.cached_tokens", "0".into()),
        ("counters.prompt_tokens", "16".into()),
        ("workload.flush_status", "200 Cache flushed. Please check backend logs for more details.".into()),
        ("gpu.count", "0".into()),
    ] {
        assert_eq!(facts[key], Value::String(wanted), "{key} in {facts:#}");
    }
    for key in ["model.config_sha256", "client.module_sha256", "server.capacity.kv_tokens", "workload.lengths_sha256"] {
        assert!(facts[key].is_string(), "{key} in {facts:#}");
    }
    // The server sets it for its children only, and both values are told.
    assert_eq!(facts["server.env.NCCL_CUMEM_ENABLE"], serde_json::json!(["(unset)", "0"]), "{facts:#}");
    assert!(facts["packages.a-colleagues-tool"].is_null(), "not in the engine's closure: {facts:#}");
    assert!(facts["server.env.SGLANG_RUN_ID"].is_null(), "made afresh at each launch");
    assert_nothing_left(lab);
}
