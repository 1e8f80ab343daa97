//! What a host leaves: `journal`, `status` and the small files of `out/`, read without trust.
//!
//! Invariant: nothing here fails on what a host wrote. A line that cannot be read is kept and named, and a last line
//! without its newline is not a line yet (it may still be growing, or its writer was killed).

use std::path::{Path, PathBuf};

use jiff::Timestamp;

/// A step of a session, in the order they happen.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Step {
    /// Port free, room on the disk, GPU memory idle.
    Idle,
    /// Clean tree at the commit, with its patches.
    Source,
    /// Commands that must succeed before weights load.
    Preflight,
    /// The server's process exists.
    Start,
    /// It listens, says so, and has generated once.
    Ready,
    /// The port is served by a process of ours.
    Identity,
    /// Facts before the trials.
    Facts,
    /// The trial of this folder name, `00-c0010-p1`.
    Trial(String),
    /// Facts after the trials.
    FactsAfter,
    /// TERM, then KILL.
    Stop,
    /// No process of ours, port free, GPU memory idle.
    Proof,
    /// The code of the session.
    End,
}

impl Step {
    /// The step of a name in `status` or `fail`.
    pub fn parse(name: &str) -> Option<Self> {
        Some(match name {
            "idle" => Self::Idle,
            "source" => Self::Source,
            "preflight" => Self::Preflight,
            "start" => Self::Start,
            "ready" => Self::Ready,
            "identity" => Self::Identity,
            "facts" => Self::Facts,
            "facts-after" => Self::FactsAfter,
            "stop" => Self::Stop,
            "proof" => Self::Proof,
            "end" => Self::End,
            other => Self::Trial(other.strip_prefix("trial:").filter(|folder| !folder.is_empty())?.to_owned()),
        })
    }
}

/// An event of a host folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A runner began; the name is its pid.
    RunnerStart,
    /// It holds the lease of the host.
    LeaseTaken,
    /// Another folder's runner holds it.
    LeaseRefused,
    /// What a session or runner left was ended; the code is the session's.
    Swept,
    /// A session began.
    SessionStart,
    /// A session ended with this code; its `out/` does not change any more.
    SessionEnd,
    /// The runner ended on request.
    Stopped,
    /// The queue is empty.
    Drained,
    /// Nothing may start: see the file `dirty`.
    Dirty,
}

impl Event {
    /// The event of a name in `journal`.
    pub fn parse(name: &str) -> Option<Self> {
        Some(match name {
            "runner-start" => Self::RunnerStart,
            "lease-taken" => Self::LeaseTaken,
            "lease-refused" => Self::LeaseRefused,
            "swept" => Self::Swept,
            "session-start" => Self::SessionStart,
            "session-end" => Self::SessionEnd,
            "stopped" => Self::Stopped,
            "drained" => Self::Drained,
            "dirty" => Self::Dirty,
            _ => return None,
        })
    }
}

/// How a session ended, by the file `done`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All steps, code 0.
    Done,
    /// A step failed, or the session was cut off: see `fail`. Code 70.
    Failed,
    /// It cannot be proved that the host is as it was: see `proof`. Code 75.
    Dirty,
}

impl Outcome {
    /// The content of `done`; `None` while there is none (an empty file after a crash is none).
    pub fn parse(text: &str) -> Option<Self> {
        match text.trim_end() {
            "0" => Some(Self::Done),
            "70" => Some(Self::Failed),
            "75" => Some(Self::Dirty),
            _ => None,
        }
    }
}

/// One line of `status`.
#[derive(Clone, Debug, PartialEq)]
pub struct StatusLine {
    /// Wall clock of the host.
    pub utc: Timestamp,
    /// Seconds since the host's boot, monotonic.
    pub uptime_s: f64,
    /// Which step ended.
    pub step: Step,
    /// 0, or the code it failed with.
    pub code: i32,
}

/// One line of `journal`.
#[derive(Clone, Debug, PartialEq)]
pub struct JournalLine {
    /// Wall clock of the host.
    pub utc: Timestamp,
    /// Seconds since the host's boot, monotonic.
    pub uptime_s: f64,
    /// What happened.
    pub event: Event,
    /// Queue entry `NNNN-SESSION`, or `-`.
    pub name: String,
    /// 0, or a code.
    pub code: i32,
}

/// The lines of an append-only file.
#[derive(Clone, Debug, PartialEq)]
pub struct Lines<T> {
    /// In the order of the file.
    pub lines: Vec<T>,
    /// Complete lines that are none of ours, as they are.
    pub unreadable: Vec<String>,
    /// Bytes up to the end of the last complete line: where the next poll goes on.
    pub consumed: usize,
}

fn lines<T>(text: &[u8], parse: impl Fn(&str) -> Option<T>) -> Lines<T> {
    let consumed = text.iter().rposition(|&b| b == b'\n').map_or(0, |end| end + 1);
    let mut read = Lines { lines: Vec::new(), unreadable: Vec::new(), consumed };
    for line in text[..consumed].split(|&b| b == b'\n').filter(|line| !line.is_empty()) {
        match std::str::from_utf8(line).ok().and_then(&parse) {
            Some(line) => read.lines.push(line),
            None => read.unreadable.push(String::from_utf8_lossy(line).into_owned()),
        }
    }
    read
}

fn times<'a>(words: &mut impl Iterator<Item = &'a str>) -> Option<(Timestamp, f64)> {
    let utc = words.next()?.parse().ok()?;
    let uptime_s = words.next()?.parse().ok().filter(|s: &f64| s.is_finite() && *s >= 0.0)?;
    Some((utc, uptime_s))
}

/// Reads `out/status`, or the rest of it from an earlier `consumed`.
pub fn status(text: &[u8]) -> Lines<StatusLine> {
    lines(text, |line| {
        let mut words = line.split(' ');
        let (utc, uptime_s) = times(&mut words)?;
        let (step, code) = (Step::parse(words.next()?)?, words.next()?.parse().ok()?);
        words.next().is_none().then_some(StatusLine { utc, uptime_s, step, code })
    })
}

/// Reads `journal`, or the rest of it from an earlier `consumed`.
pub fn journal(text: &[u8]) -> Lines<JournalLine> {
    lines(text, |line| {
        let mut words = line.split(' ');
        let (utc, uptime_s) = times(&mut words)?;
        let (event, name) = (Event::parse(words.next()?)?, words.next()?.to_owned());
        let code = words.next()?.parse().ok()?;
        words.next().is_none().then_some(JournalLine { utc, uptime_s, event, name, code })
    })
}

/// Reads a time file of a trial, `started` or `ended`: wall clock and seconds since boot.
pub fn instant(text: &str) -> Option<(Timestamp, f64)> {
    times(&mut text.trim_end().split(' '))
}

/// The first failure of a session, from `out/fail`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The step that failed; `None` when the session was cut off from outside (killed, or the host restarted).
    pub step: Option<Step>,
    /// Its code: an exit code, or 124 past a deadline, 143 stopped on request, 98 port in use, 28 disk, 16 GPU in use.
    pub code: i32,
    /// One line for people.
    pub text: String,
}

impl Failure {
    /// Reads `out/fail`.
    pub fn parse(text: &str) -> Option<Self> {
        let mut words = text.trim_end().splitn(3, ' ');
        let (step, code) = (words.next()?, words.next()?.parse().ok()?);
        let step = if step == "interrupted" { None } else { Some(Step::parse(step)?) };
        Some(Self { step, code, text: words.next().unwrap_or_default().to_owned() })
    }
}

/// Who serves the port, from `out/identity`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Identity {
    /// Every listening socket of the port belongs to processes that carry our nonce.
    Own,
    /// This process, which is not ours, holds one of them.
    Other(u32),
    /// Nobody that can be seen.
    Unknown,
}

impl Identity {
    /// Reads `out/identity`.
    pub fn parse(text: &str) -> Option<Self> {
        match text.trim_end() {
            "own" => Some(Self::Own),
            "unknown" => Some(Self::Unknown),
            other => other.strip_prefix("other ")?.parse().ok().map(Self::Other),
        }
    }
}

/// What was verified after the stop, from `out/proof`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Proof {
    /// Living processes of the session.
    pub processes: Option<u32>,
    /// Nothing listens on the port.
    pub port_free: Option<bool>,
    /// MiB in use on the fullest GPU; `None` without a GPU that tells.
    pub gpu_mib: Option<u64>,
}

impl Proof {
    /// Reads `out/proof`; what is absent or odd is `None`.
    pub fn parse(text: &str) -> Self {
        let mut proof = Self::default();
        for line in text.lines() {
            match line.split_once(' ') {
                Some(("processes", n)) => proof.processes = n.trim().parse().ok(),
                Some(("port", state)) => proof.port_free = Some(state == "free"),
                Some(("gpu", mib)) => proof.gpu_mib = mib.parse().ok(),
                _ => {}
            }
        }
        proof
    }
}

/// One file of a finished session, from `out/manifest`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManifestLine {
    /// SHA-256 of the bytes, 64 lower-case hex digits.
    pub sha256: String,
    /// Bytes.
    pub size: u64,
    /// Below `out/`; no `..`, not absolute.
    pub path: PathBuf,
}

/// Reads `out/manifest`. Paths that would lead out of the folder are unreadable.
pub fn manifest(text: &[u8]) -> Lines<ManifestLine> {
    lines(text, |line| {
        let (sha256, rest) = line.split_once("  ")?;
        let (size, path) = rest.split_once("  ")?;
        let hex = sha256.len() == 64 && sha256.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        let path = Path::new(path);
        let below = path.components().all(|part| matches!(part, std::path::Component::Normal(_)));
        let size = size.parse().ok()?;
        (hex && below && path.file_name().is_some()).then(|| ManifestLine {
            sha256: sha256.to_owned(),
            size,
            path: path.to_owned(),
        })
    })
}

/// A host folder: where its files are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostFolder(pub PathBuf);

impl HostFolder {
    /// Events, appended by the runner.
    pub fn journal(&self) -> PathBuf {
        self.0.join("journal")
    }
    /// A file that asks the runner to end; whoever wants to go on removes it first.
    pub fn stop(&self) -> PathBuf {
        self.0.join("stop")
    }
    /// Why nothing may start.
    pub fn dirty(&self) -> PathBuf {
        self.0.join("dirty")
    }
    /// A queue entry, `NNNN-SESSION`.
    pub fn session(&self, entry: &str) -> SessionFolder {
        SessionFolder(self.0.join("queue").join(entry))
    }
}

/// A session folder in the queue, or a fetched copy of it: where its files are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionFolder(pub PathBuf);

impl SessionFolder {
    /// Exit code, there when the session has ended.
    pub fn done(&self) -> PathBuf {
        self.0.join("done")
    }
    /// What the programs themselves said; not a part of the record.
    pub fn log(&self) -> PathBuf {
        self.0.join("session.log")
    }
    /// The record. Every other path is below it: `status`, `fail`, `identity`, `server.log`, …
    pub fn out(&self) -> PathBuf {
        self.0.join("out")
    }
    /// Output of one trial, by its folder name `00-c0010-p1`.
    pub fn trial(&self, folder: &str) -> PathBuf {
        self.out().join("trials").join(folder)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_yet() {
        assert_eq!(status(b""), Lines { lines: vec![], unreadable: vec![], consumed: 0 });
        assert_eq!(journal(b""), Lines { lines: vec![], unreadable: vec![], consumed: 0 });
        assert_eq!(manifest(b""), Lines { lines: vec![], unreadable: vec![], consumed: 0 });
        assert_eq!(Outcome::parse(""), None);
        assert_eq!(Failure::parse(""), None);
        assert_eq!(Identity::parse(""), None);
        assert_eq!(instant(""), None);
        assert_eq!(Proof::parse(""), Proof::default());
    }

    #[test]
    fn a_torn_line_is_not_read() {
        let text = b"2026-11-30T15:23:15Z 12.34 idle 0\n2026-11-30T15:23:16Z 13.00 ready 12";
        let read = status(text);
        assert_eq!(read.lines.len(), 1);
        assert_eq!(read.lines[0].step, Step::Idle);
        assert_eq!(read.consumed, 34);
        let rest = status(&[&text[read.consumed..], b"4\n"].concat());
        assert_eq!((rest.lines[0].step.clone(), rest.lines[0].code), (Step::Ready, 124));
    }

    #[test]
    fn odd_lines_are_named() {
        let text = b"\xff\xfe\nyesterday 1 idle 0\n2026-11-30T15:23:15Z -1 idle 0\n2026-11-30T15:23:15Z inf idle 0\n\
            2026-11-30T15:23:15Z 1 trial: 0\n2026-11-30T15:23:15Z 1 idle 0 more\n2026-11-30T15:23:15Z 1 trial:00-a 0\n";
        let read = status(text);
        assert_eq!(read.unreadable.len(), 6);
        assert_eq!(read.lines[0].step, Step::Trial("00-a".to_owned()));
    }

    #[test]
    fn steps_are_ordered() {
        assert!(Step::Facts < Step::Trial("00-a".into()) && Step::Trial("99-z".into()) < Step::FactsAfter);
    }

    #[test]
    fn journal_lines() {
        let read =
            journal(b"2026-11-30T15:23:15Z 12.34 session-end 0003-b01-a 70\n2026-11-30T15:23:15Z 12.34 new - 0\n");
        assert_eq!(
            (read.lines[0].event, read.lines[0].name.as_str(), read.lines[0].code),
            (Event::SessionEnd, "0003-b01-a", 70)
        );
        assert_eq!(read.unreadable, ["2026-11-30T15:23:15Z 12.34 new - 0"]);
    }

    #[test]
    fn failures() {
        let read = |text| Failure::parse(text).unwrap();
        assert_eq!(read("trial:00-a 124 the client\n").step, Some(Step::Trial("00-a".into())));
        assert_eq!(read("interrupted 137 cut off\n").step, None);
        assert_eq!(Failure::parse("lunch 1 x"), None);
    }

    #[test]
    fn a_manifest_stays_in_its_folder() {
        let hex = "0".repeat(64);
        for path in ["/etc/passwd", "../x", "a/../../x", ""] {
            assert_eq!(manifest(format!("{hex}  1  {path}\n").as_bytes()).unreadable.len(), 1, "{path}");
        }
        let read = manifest(format!("{hex}  12  a  b/c d\n").as_bytes());
        assert_eq!((read.lines[0].size, read.lines[0].path.to_str()), (12, Some("a  b/c d")));
    }
}
