//! Experiments that are over in seconds: the tiny model of the pocket engine, one or two levels, a few prompts.

use std::fs;
use std::net::{TcpListener, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::lab::{Lab, Told, processes_of};

/// Long enough for a machine with other work; nothing waits this long when all is well.
pub(crate) const PATIENCE: Duration = Duration::from_mins(2);

/// The spec of a tiny experiment; the defaults compare the two real kernels.
pub(crate) struct Tiny<'a> {
    /// Arguments of every server beside the seed, each with a comma in front.
    pub(crate) args: &'a str,
    /// Longest time until a server is ready.
    pub(crate) ready: &'a str,
    /// Tokens of each answer.
    pub(crate) output: u32,
    /// Levels of concurrency.
    pub(crate) levels: &'a str,
    /// Prompts for each user.
    pub(crate) prompts: u32,
    /// Further keys of the workload, each on a line of its own with two blanks in front.
    pub(crate) workload: &'a str,
    /// The key that is varied.
    pub(crate) factor: &'a str,
    /// The arms, without braces; the first is `one`, the second `other`.
    pub(crate) arms: &'a str,
    /// Blocks.
    pub(crate) repeats: u32,
    /// Further keys of the spec, each on a line of its own.
    pub(crate) more: &'a str,
}

impl Default for Tiny<'_> {
    fn default() -> Self {
        Self {
            args: "",
            ready: "20s",
            output: 4,
            levels: "[1, 2]",
            prompts: 2,
            workload: "",
            factor: "server.args.moe-runner-backend",
            arms: "one: loop, other: grouped",
            repeats: 1,
            more: "prime: never",
        }
    }
}

impl Tiny<'_> {
    /// Returns the spec as text, with a seed of the server.
    pub(crate) fn yaml(&self, seed: u32) -> String {
        let Self { args, ready, output, levels, prompts, workload, factor, arms, repeats, more } = self;
        // A server that does wrong on purpose has to be allowed, with the reason.
        let faulty = args.contains("fault") || factor.contains("fault");
        let allow = if faulty { "allow: { fault: a test of failures }\n" } else { "" };
        format!(
            "title: Tiny\n\
             question: What happens?\n\
             server:\n  engine: pocketmoe\n  model: pocket-moe-tiny\n  args: {{ random-seed: {seed}{args} }}\n  ready: {ready}\n\
             workload:\n  input_tokens: 8\n  output_tokens: {output}\n  prompts_per_user: {prompts}\n  \
             concurrency: {levels}\n{workload}\
             factor: {factor}\n\
             arms: {{ {arms} }}\n\
             control: one\n\
             repeats: {repeats}\n\
             margin: 5%\n\
             headline: {{ metric: output_throughput, treatment: other, over: 1 }}\n\
             claims:\n  same: {{ metric: output_throughput, treatment: other, at: 1, expect: unchanged }}\n\
             {more}\n{allow}"
        )
    }

    /// Makes a lab with this spec as `experiments/tiny.yaml`.
    pub(crate) fn lab(&self) -> Lab {
        let mut lab = Lab::new();
        self.write(&mut lab, SPEC);
        lab
    }

    /// Writes this spec into a lab, with a seed of its own: the port follows from the edition, and tests that run beside each
    /// other must not meet on one. The UDP socket of the same number keeps every other test from choosing it.
    pub(crate) fn write(&self, lab: &mut Lab, path: &str) {
        write_with_free_port(lab, path, &|seed| self.yaml(seed));
    }
}

/// Writes the spec of the first seed whose port is free.
pub(crate) fn write_with_free_port(lab: &mut Lab, path: &str, yaml: &dyn Fn(u32) -> String) {
    let first = std::process::id() % 100_000 * 10_000;
    for seed in first.. {
        let yaml = yaml(seed);
        lab.write(path, &yaml);
        let folder = lab.path("experiments");
        let Ok((spec, _)) = labbook::spec::parse(&labbook::yaml::source(path, &yaml), &folder) else {
            return;
        };
        let port = labbook::engine::port_of(&spec.edition()).get();
        let free = TcpListener::bind(("127.0.0.1", port)).is_ok();
        if let (true, Ok(socket)) = (free, UdpSocket::bind(("127.0.0.1", port))) {
            lab.reserve(socket);
            return;
        }
    }
}

/// Where the spec stands in the lab.
pub(crate) const SPEC: &str = "experiments/tiny.yaml";

/// Runs the tiny experiment to its end.
pub(crate) fn run(lab: &Lab) -> Told {
    lab.run(&["run", SPEC])
}

/// Returns the verdicts and reasons as JSON, with the exit status.
pub(crate) fn compare(lab: &Lab) -> (i32, Value) {
    let told = lab.run(&["compare", "tiny", "--format", "json"]);
    (told.status, told.json())
}

/// Returns the names of all reasons of all conditions.
pub(crate) fn reasons(compared: &Value) -> Vec<String> {
    let conditions = compared["conditions"].as_array().cloned().unwrap_or_default();
    let mut names: Vec<String> = conditions
        .iter()
        .flat_map(|condition| condition["reasons"].as_array().cloned().unwrap_or_default())
        .map(|reason| reason["name"].as_str().unwrap_or_default().to_owned())
        .collect();
    names.sort();
    names.dedup();
    names
}

/// Demands that the comparison is refused, and that one reason has this name.
#[track_caller]
pub(crate) fn refused_for(lab: &Lab, name: &str) -> Value {
    let (status, compared) = compare(lab);
    assert_eq!(status, 3, "{compared:#}");
    assert!(reasons(&compared).iter().any(|reason| reason == name), "no `{name}` in {compared:#}");
    compared
}

/// Returns the only edition's folder, relative to the lab.
pub(crate) fn edition(lab: &Lab) -> String {
    let names = folder_names(&lab.path("results/tiny"));
    assert_eq!(names.len(), 1, "one edition: {names:?}");
    format!("results/tiny/{}", names[0])
}

/// Returns the only host folder.
pub(crate) fn host_folder(lab: &Lab) -> PathBuf {
    let root = lab.path(".labbook/host");
    let names = folder_names(&root);
    assert_eq!(names.len(), 1, "one host folder: {names:?}");
    root.join(&names[0])
}

pub(crate) fn folder_names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

/// Returns what the ledger says happened, oldest name first.
pub(crate) fn events(lab: &Lab) -> Vec<Value> {
    let folder = lab.path(&edition(lab)).join("ledger");
    folder_names(&folder)
        .iter()
        // What begins with a dot is being written.
        .filter(|name| !name.starts_with('.'))
        .map(|name| {
            let event: Value = serde_json::from_slice(&fs::read(folder.join(name)).expect("an event")).expect("JSON");
            event["happened"].clone()
        })
        .collect()
}

/// Queues everything without a start: for that moment the lease belongs to this test, which lives, so the runner is refused. What
/// is in the queue may be changed before [`run`] starts it.
pub(crate) fn queue_only(lab: &Lab) -> PathBuf {
    let lease = hold_lease(lab);
    lab.run(&["run", SPEC, "--detach"]).success();
    let host = host_folder(lab);
    until("the runner is refused", || {
        let journal = fs::read_to_string(host.join("journal")).unwrap_or_default();
        journal.contains("lease-refused") && processes_of(&lab.path("")).is_empty()
    });
    fs::remove_dir_all(lease).expect("the lease is given back");
    host
}

/// Takes the lease of a lab in the name of this test.
pub(crate) fn hold_lease(lab: &Lab) -> PathBuf {
    let lease = lab.path("labbook-lease");
    fs::create_dir(&lease).expect("a lease");
    let stat = fs::read_to_string("/proc/self/stat").expect("/proc");
    let start = stat.rsplit(") ").next().and_then(|rest| rest.split(' ').nth(19)).expect("a start time");
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").expect("/proc");
    let owner = format!("{} {start} {} 0123456789abcdef elsewhere\n", std::process::id(), boot.trim());
    fs::write(lease.join("owner"), owner).expect("written");
    lease
}

/// Returns the queue's folder of a session.
pub(crate) fn queued(host: &Path, session: &str) -> PathBuf {
    let queue = host.join("queue");
    let name = folder_names(&queue).into_iter().find(|name| name[5..] == *session);
    queue.join(name.unwrap_or_else(|| panic!("no {session} in {:?}", folder_names(&queue))))
}

/// Adds words to a command in the queue: one file each, as the session reads them.
pub(crate) fn add_words(argv: &Path, words: &[&str]) {
    let next = folder_names(argv).last().map_or(1, |name| name.parse::<u32>().expect("a number") + 1);
    for (number, word) in (next..).zip(words) {
        fs::write(argv.join(format!("{number:04}")), word).expect("written");
    }
}

/// Replaces a command in the queue.
pub(crate) fn replace_words(argv: &Path, words: &[&str]) {
    fs::remove_dir_all(argv).expect("removed");
    fs::create_dir(argv).expect("made");
    add_words(argv, words);
}

/// Returns the words of a command in the queue.
pub(crate) fn words(argv: &Path) -> Vec<String> {
    folder_names(argv).iter().map(|name| fs::read_to_string(argv.join(name)).expect("a word")).collect()
}

/// Demands that nothing of the lab is alive, and that its port and its lease are free.
#[track_caller]
pub(crate) fn assert_nothing_left(lab: &Lab) {
    // A killed process needs a moment to be gone.
    let began = Instant::now();
    while !processes_of(&lab.path("")).is_empty() && began.elapsed() < Duration::from_secs(10) {
        std::thread::sleep(Duration::from_millis(20));
    }
    let left: Vec<String> = processes_of(&lab.path(""))
        .iter()
        .map(|pid| fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default().replace('\0', " "))
        .collect();
    assert!(left.is_empty(), "still alive: {left:?}");
    let port = port(&host_folder(lab));
    assert!(TcpListener::bind(("127.0.0.1", port)).is_ok(), "port {port} is taken");
    assert!(!lab.path("labbook-lease/owner").exists(), "the lease is still held");
}

/// Returns the port that the sessions of a host folder use.
pub(crate) fn port(host: &Path) -> u16 {
    let queue = host.join("queue");
    let first = folder_names(&queue).into_iter().next().expect("a queue");
    fs::read_to_string(queue.join(first).join("port")).expect("a port").trim().parse().expect("a number")
}

/// Waits until it is true.
#[track_caller]
pub(crate) fn until(what: &str, mut done: impl FnMut() -> bool) {
    let began = Instant::now();
    while !done() {
        assert!(began.elapsed() < PATIENCE, "waited for: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Waits for a command that was spawned with piped output.
pub(crate) fn ended(child: Child) -> Told {
    Told::of(&child.wait_with_output().expect("it ends"))
}

/// Starts a command of the lab with piped output.
pub(crate) fn spawn(lab: &Lab, arguments: &[&str]) -> Child {
    use std::process::Stdio;
    lab.command(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary starts")
}

pub(crate) fn signal(pid: u32, signal: rustix::process::Signal) {
    if let Some(pid) = rustix::process::Pid::from_raw(pid.cast_signed()) {
        let _ = rustix::process::kill_process(pid, signal);
    }
}
