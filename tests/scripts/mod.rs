//! The host programs under real shells, with real processes.
//!
//! [`Bed`] is one host folder (with a blank in its path) with a lease and a port of its own, so that tests run beside
//! each other. A shell that this machine lacks is named as skipped.

mod ends;
mod kills;
mod programs;

use std::collections::HashSet;
use std::ffi::OsString;
use std::fs;
use std::net::{TcpListener, UdpSocket};
use std::num::NonZeroU16;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command as Process, Stdio};
use std::time::{Duration, Instant};

use labbook::script::input::{self, Command, Generate, Limits, SessionInput, TrialInput};
use labbook::script::output::{self, Event, HostFolder, Step};
use rustix::process::{Pid, Signal};

/// Long enough for a machine with other work; nothing waits this long when all is well.
pub(crate) const PATIENCE: Duration = Duration::from_secs(90);

/// Which program is `sh`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shell {
    Dash,
    Bash,
    Busybox,
    /// Every tool is busybox's, and there is no curl.
    BusyboxAlone,
}

/// Makes one test a shell of a function that takes a [`Shell`].
macro_rules! under_each_shell {
    ($($name:ident),* $(,)?) => {
        mod dash { $(#[test] fn $name() { super::$name($crate::scripts::Shell::Dash); })* }
        mod bash { $(#[test] fn $name() { super::$name($crate::scripts::Shell::Bash); })* }
        mod busybox { $(#[test] fn $name() { super::$name($crate::scripts::Shell::Busybox); })* }
    };
}
pub(crate) use under_each_shell;

#[expect(clippy::print_stderr, reason = "a test that did not run says so")]
pub(crate) fn skipped(reason: &str) {
    eprintln!("skipped: {reason}");
}

pub(crate) fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).map(|folder| folder.join(program)).find(|file| file.is_file())
}

/// The interpreter itself, not a wrapper that a version manager put into PATH.
pub(crate) fn python() -> PathBuf {
    ["/usr/bin/python3", "/usr/local/bin/python3"]
        .into_iter()
        .map(PathBuf::from)
        .find(|file| file.is_file())
        .or_else(|| find("python3"))
        .expect("the tests of the host programs need python3")
}

pub(crate) struct Bed {
    root: tempfile::TempDir,
    pub(crate) host: PathBuf,
    pub(crate) lease: PathBuf,
    pub(crate) path: OsString,
    pub(crate) port: u16,
    _reserved: UdpSocket,
    runners: Vec<Child>,
}

impl Bed {
    pub(crate) fn new(shell: Shell) -> Option<Self> {
        let root = tempfile::Builder::new().prefix("labbook bed ").tempdir().unwrap();
        let bin = root.path().join("bin");
        fs::create_dir(&bin).unwrap();
        let name = match shell {
            Shell::Dash => "dash",
            Shell::Bash => "bash",
            Shell::Busybox | Shell::BusyboxAlone => "busybox",
        };
        let Some(program) = find(name) else {
            skipped(&format!("no {name} on this machine"));
            return None;
        };
        symlink(&program, bin.join("sh")).unwrap();
        symlink(python(), bin.join("python3")).unwrap();
        let mut folders = vec![bin.clone()];
        if shell == Shell::BusyboxAlone {
            let list = Process::new(&program).arg("--list").output().unwrap().stdout;
            for applet in String::from_utf8(list).unwrap().lines().filter(|applet| !bin.join(applet).exists()) {
                symlink(&program, bin.join(applet)).unwrap();
            }
        } else {
            folders.extend(std::env::split_paths(&std::env::var_os("PATH").unwrap()));
        }
        let (port, reserved) = free_port();
        let host = root.path().join("host folder");
        let lease = root.path().join("lease");
        fs::create_dir(&lease).unwrap();
        input::install(&host).unwrap();
        let path = std::env::join_paths(folders).unwrap();
        Some(Self { host, lease, path, port, _reserved: reserved, runners: Vec::new(), root })
    }

    pub(crate) fn root(&self) -> &Path {
        self.root.path()
    }

    /// A second host folder on the same host.
    pub(crate) fn second_host(&self) -> PathBuf {
        let host = self.root().join("another host folder");
        input::install(&host).unwrap();
        host
    }

    /// A session of two short trials on the server above, with these options.
    pub(crate) fn session(&self, name: &str, options: &[&str]) -> SessionInput {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scripts/server.py");
        let mut server = vec![python().into_os_string(), "-I".into(), "-S".into(), script.into_os_string()];
        server.push(self.port.to_string().into());
        server.extend(options.iter().map(OsString::from));
        let trial = |label: &str| TrialInput {
            label: label.to_owned(),
            client: shell("sleep 0.1; echo '{}' >bench.jsonl"),
            warmup: None,
            flush: true,
        };
        SessionInput {
            name: name.to_owned(),
            server: Command { argv: server, env: Vec::new() },
            cwd: None,
            source: None,
            port: NonZeroU16::new(self.port).unwrap(),
            health: Some("/health".to_owned()),
            ready_line: Some("ready to roll".to_owned()),
            generate: Some(Generate { path: "/generate".to_owned(), body: b"{\"text\": \"a\"}".to_vec() }),
            info: vec![
                ("server_info".to_owned(), "/server_info".to_owned()),
                ("metrics".to_owned(), "/metrics".to_owned()),
            ],
            flush_path: Some("/flush_cache".to_owned()),
            preflight: Vec::new(),
            package_path: None,
            limits: Limits {
                ready: Duration::from_mins(1),
                trial: Duration::from_mins(1),
                stop: Duration::from_secs(2),
                preflight: Duration::from_mins(1),
                disk_kib: 1,
            },
            trials: vec![trial("a"), trial("b")],
        }
    }

    pub(crate) fn place(&self, sequence: u16, session: &SessionInput) -> PathBuf {
        input::place(&self.host, sequence, session).unwrap()
    }

    /// Starts a runner as labbook does, in a process group of its own with all streams redirected.
    pub(crate) fn start(&mut self) -> u32 {
        let host = self.host.clone();
        let child = self.spawn(&host);
        let pid = child.id();
        self.runners.push(child);
        pid
    }

    pub(crate) fn spawn(&self, host: &Path) -> Child {
        let log = fs::OpenOptions::new().create(true).append(true).open(host.join("runner.log")).unwrap();
        Process::new("setsid")
            .args(["sh", "runner.sh"])
            .current_dir(host)
            .env("PATH", &self.path)
            .env("LABBOOK_LEASE_DIR", &self.lease)
            .env_remove("SLURM_JOB_ID")
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap()
    }

    /// Waits for the end of the runner that was started last and returns its exit code.
    pub(crate) fn ended(&mut self) -> Option<i32> {
        let mut child = self.runners.pop().expect("a runner was started");
        wait(&mut child, &self.tell())
    }

    /// Runs the queue to its end.
    pub(crate) fn run(&mut self) -> Option<i32> {
        self.start();
        self.ended()
    }

    pub(crate) fn journal(&self) -> Vec<output::JournalLine> {
        let read = output::journal(&fs::read(HostFolder(self.host.clone()).journal()).unwrap_or_default());
        assert!(read.unreadable.is_empty(), "unreadable: {:?}", read.unreadable);
        read.lines
    }

    pub(crate) fn count(&self, event: Event, name: &str) -> usize {
        self.journal().iter().filter(|line| line.event == event && line.name == name).count()
    }

    /// All that is there to read when something went wrong.
    pub(crate) fn tell(&self) -> String {
        let mut text = String::new();
        for file in ["journal", "runner.log", "dirty"].map(|name| self.host.join(name)).into_iter().chain(
            self.entries().into_iter().flat_map(|entry| {
                ["session.log", "out/status", "out/fail", "out/proof", "done"].map(|name| entry.join(name))
            }),
        ) {
            if let Ok(bytes) = fs::read(&file) {
                let shown = String::from_utf8_lossy(&bytes);
                text.extend(["== ", &file.to_string_lossy(), "\n", &shown, "\n"]);
            }
        }
        text
    }

    pub(crate) fn entries(&self) -> Vec<PathBuf> {
        let Ok(queue) = fs::read_dir(self.host.join("queue")) else { return Vec::new() };
        let mut entries: Vec<_> = queue.map(|entry| entry.unwrap().path()).collect();
        entries.sort();
        entries
    }

    /// Pids of the living that carry a nonce of one of this bed's sessions or runners.
    pub(crate) fn ours(&self) -> Vec<u32> {
        let mut nonces: HashSet<String> =
            self.entries().iter().map(|entry| word(&entry.join("out/nonce"), 0)).filter(|n| n.len() == 32).collect();
        nonces.extend(Some(word(&self.host.join("runner"), 3)).filter(|n| n.len() == 16));
        let is_ours = |pid: &u32| {
            let environ = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            let environ = String::from_utf8_lossy(&environ);
            nonces.iter().any(|nonce| environ.contains(&format!("LABBOOK_NONCE={nonce}")))
        };
        pids().into_iter().filter(is_ours).collect()
    }

    /// Pids of the living in the process session of a server of this bed, with or without a nonce.
    fn members(&self) -> Vec<u32> {
        // A session that was cut off before its server has no pid, and a process that ends now has no session: nothing equals nothing.
        let servers: HashSet<String> = self
            .entries()
            .iter()
            .map(|entry| word(&entry.join("out/server.pid"), 0))
            .filter(|pid| !pid.is_empty())
            .collect();
        let session = |pid: u32| {
            let stat = read(Path::new(&format!("/proc/{pid}/stat")));
            stat.rsplit_once(") ").and_then(|(_, rest)| rest.split(' ').nth(3).map(str::to_owned)).unwrap_or_default()
        };
        pids().into_iter().filter(|&pid| alive(pid) && servers.contains(&session(pid))).collect()
    }

    /// What must hold whenever no runner is alive: nothing of ours runs, the port is free, no step or session twice.
    pub(crate) fn assert_clean(&self) {
        let (ours, members) = (self.ours(), self.members());
        assert!(ours.is_empty() && members.is_empty(), "alive: {ours:?} {members:?}\n{}", self.tell());
        assert!(TcpListener::bind(("127.0.0.1", self.port)).is_ok(), "the port is taken\n{}", self.tell());
        for entry in self.entries().iter().filter(|entry| entry.join("out").exists()) {
            let name = entry.file_name().unwrap().to_str().unwrap();
            assert!(self.count(Event::SessionStart, name) <= 1, "{name} ran twice\n{}", self.tell());
            assert!(self.count(Event::SessionEnd, name) == 1, "{name} has not one end\n{}", self.tell());
            assert_monotone(&entry.join("out/status"));
            assert_manifest(&entry.join("out"));
        }
        assert!(!self.lease.join("labbook-lease").exists(), "the lease is still there\n{}", self.tell());
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        for child in &mut self.runners {
            _ = child.kill();
            _ = child.wait();
        }
        for _ in 0..50 {
            let ours = self.ours();
            if ours.is_empty() {
                break;
            }
            ours.into_iter().for_each(kill);
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

pub(crate) fn shell(text: &str) -> Command {
    Command::new(["sh", "-c", text])
}

/// A port below the ephemeral range. The UDP socket of the same number keeps other tests from choosing it.
fn free_port() -> (u16, UdpSocket) {
    let seed = std::process::id().wrapping_mul(2_654_435_761);
    for n in 0..20_000_u32 {
        let port = 10_000 + u16::try_from(seed.wrapping_add(n * 7) % 20_000).unwrap();
        if let (Ok(udp), Ok(_)) = (UdpSocket::bind(("127.0.0.1", port)), TcpListener::bind(("127.0.0.1", port))) {
            return (port, udp);
        }
    }
    panic!("no free port");
}

pub(crate) fn wait(child: &mut Child, tell: &str) -> Option<i32> {
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status.code();
        }
        assert!(start.elapsed() < PATIENCE, "the runner does not end; at its start:\n{tell}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Waits until it is true.
pub(crate) fn until(what: &str, bed: &Bed, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < PATIENCE, "waited for {what}\n{}", bed.tell());
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The word of this number in the first line of a file, or nothing.
pub(crate) fn word(file: &Path, number: usize) -> String {
    read(file).lines().next().and_then(|line| line.split(' ').nth(number)).unwrap_or_default().to_owned()
}

pub(crate) fn read(file: &Path) -> String {
    String::from_utf8_lossy(&fs::read(file).unwrap_or_default()).into_owned()
}

pub(crate) fn pids() -> Vec<u32> {
    fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect()
}

pub(crate) fn signal(pid: u32, signal: Signal) {
    if let Some(pid) = Pid::from_raw(pid.cast_signed()) {
        _ = rustix::process::kill_process(pid, signal);
    }
}

pub(crate) fn kill(pid: u32) {
    signal(pid, Signal::KILL);
}

/// Whether a process is there and no zombie.
pub(crate) fn alive(pid: u32) -> bool {
    let stat = read(Path::new(&format!("/proc/{pid}/stat")));
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

pub(crate) fn steps(status: &Path) -> Vec<output::StatusLine> {
    output::status(&fs::read(status).unwrap_or_default()).lines
}

fn assert_monotone(status: &Path) {
    let steps = steps(status);
    for pair in steps.windows(2) {
        assert!(pair[0].step < pair[1].step, "{:?} before {:?} in {}", pair[0], pair[1], status.display());
        assert!(pair[0].uptime_s <= pair[1].uptime_s, "time runs backwards in {}", status.display());
    }
    assert_eq!(steps.last().map(|line| line.step.clone()), Some(Step::End), "{}", read(status));
}

/// Every file is listed with its digest and size, as `sha256sum` sees them.
fn assert_manifest(out: &Path) {
    let listed = output::manifest(&fs::read(out.join("manifest")).unwrap());
    assert!(listed.unreadable.is_empty(), "{:?}", listed.unreadable);
    let mut found = Vec::new();
    collect(out, out, &mut found);
    let names: HashSet<_> = listed.lines.iter().map(|line| line.path.clone()).collect();
    assert_eq!(names, found.iter().cloned().collect(), "the manifest of {}", out.display());
    for line in &listed.lines {
        let bytes = fs::read(out.join(&line.path)).unwrap();
        assert_eq!(line.size, bytes.len() as u64, "size of {}", line.path.display());
        assert_eq!(line.sha256, labbook::script::sha256(&[&bytes]), "digest of {}", line.path.display());
    }
}

fn collect(root: &Path, folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect(root, &path, found);
        } else if path != root.join("manifest") {
            found.push(path.strip_prefix(root).unwrap().to_owned());
        }
    }
}
