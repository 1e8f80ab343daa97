//! A lab in a temporary folder, and the real binary on it.

use std::fs;
use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// A lab of its own: its folder, and a folder for leases, so that tests do not wait for one another.
pub(crate) struct Lab {
    folder: tempfile::TempDir,
    ports: Vec<UdpSocket>,
}

/// What one command printed, and how it ended.
#[derive(Debug)]
pub(crate) struct Told {
    /// Exit status; 128 + n after signal n.
    pub(crate) status: i32,
    /// Standard output.
    pub(crate) out: String,
    /// Standard error.
    pub(crate) err: String,
}

impl Lab {
    /// Makes a lab with `labbook init`.
    pub(crate) fn new() -> Self {
        let lab = Self { folder: tempfile::tempdir().expect("a temporary folder"), ports: Vec::new() };
        lab.run(&["init", "."]).success();
        lab
    }

    /// Makes an empty folder, without `labbook init`.
    pub(crate) fn empty() -> Self {
        Self { folder: tempfile::tempdir().expect("a temporary folder"), ports: Vec::new() }
    }

    /// Keeps a socket as long as this lab: its number is a port that no other test takes meanwhile.
    pub(crate) fn reserve(&mut self, socket: UdpSocket) {
        self.ports.push(socket);
    }

    /// Returns a path in the lab.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes a file.
    pub(crate) fn write(&self, name: &str, text: &str) -> &Self {
        let path = self.path(name);
        fs::create_dir_all(path.parent().expect("inside the lab")).expect("a folder");
        fs::write(path, text).expect("written");
        self
    }

    /// Reads a file.
    pub(crate) fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_else(|trouble| panic!("{name}: {trouble}"))
    }

    /// Returns the command, ready to run or to spawn.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_labbook"));
        command
            .args(arguments)
            .current_dir(self.folder.path())
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", self.folder.path())
            .env("LABBOOK_LEASE_DIR", self.folder.path())
            .env("XDG_RUNTIME_DIR", self.folder.path())
            .stdin(Stdio::null());
        command
    }

    /// Runs the command to its end.
    pub(crate) fn run(&self, arguments: &[&str]) -> Told {
        Told::of(&self.command(arguments).output().expect("the binary starts"))
    }

    /// Returns every file below a folder of the lab, relative to it, sorted.
    pub(crate) fn files(&self, name: &str) -> Vec<PathBuf> {
        let root = self.path(name);
        let mut found = Vec::new();
        let mut folders = vec![root.clone()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
                let path = entry.path();
                if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                    folders.push(path);
                } else {
                    found.push(path.strip_prefix(&root).expect("below").to_owned());
                }
            }
        }
        found.sort();
        found
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        // A failed test must not leave a server behind: whatever carries a nonce of this lab is ended.
        end_processes_of(self.folder.path());
    }
}

impl Told {
    /// Reads what an ended process left.
    pub(crate) fn of(output: &Output) -> Self {
        use std::os::unix::process::ExitStatusExt as _;
        let status = output.status.code().or_else(|| output.status.signal().map(|signal| 128 + signal));
        Self {
            status: status.expect("ended"),
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    /// Demands exit status 0.
    #[track_caller]
    pub(crate) fn success(self) -> Self {
        self.fails(0)
    }

    /// Demands an exit status.
    #[track_caller]
    pub(crate) fn fails(self, status: i32) -> Self {
        assert_eq!(self.status, status, "stdout:\n{}\nstderr:\n{}", self.out, self.err);
        self
    }

    /// Demands that a text was printed, on either stream.
    #[track_caller]
    pub(crate) fn says(self, text: &str) -> Self {
        assert!(self.holds(text), "no `{text}` in:\n{}\n{}", self.out, self.err);
        self
    }

    /// Whether a text was printed, also where a line was folded in it.
    fn holds(&self, text: &str) -> bool {
        let unfolded = |printed: &str| printed.lines().map(str::trim_start).collect::<Vec<_>>().join(" ");
        [&self.out, &self.err].into_iter().any(|printed| printed.contains(text) || unfolded(printed).contains(text))
    }

    /// Demands that a text was not printed.
    #[track_caller]
    pub(crate) fn does_not_say(self, text: &str) -> Self {
        assert!(!self.holds(text), "`{text}` in:\n{}\n{}", self.out, self.err);
        self
    }

    /// Returns standard output as JSON.
    #[track_caller]
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.out).unwrap_or_else(|trouble| panic!("{trouble}: {}{}", self.out, self.err))
    }
}

/// Returns the live processes whose environment names a nonce and whose working directory or lease is below `folder`.
pub(crate) fn processes_of(folder: &Path) -> Vec<i32> {
    let needle = folder.to_string_lossy().into_owned();
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").expect("/proc").flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else { continue };
        let zombie = fs::read_to_string(entry.path().join("stat"))
            .is_ok_and(|stat| stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('Z')));
        let inside =
            fs::read_link(entry.path().join("cwd")).is_ok_and(|cwd| cwd.to_string_lossy().starts_with(&needle));
        if inside && !zombie && u32::try_from(pid) != Ok(std::process::id()) {
            found.push(pid);
        }
    }
    found
}

fn end_processes_of(folder: &Path) {
    for pid in processes_of(folder) {
        if let Some(pid) = rustix::process::Pid::from_raw(pid) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
    }
}
