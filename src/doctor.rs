//! What a host lets us observe, and what stands in the way: its programs, each fact of the table, leases and processes left over.
//!
//! Invariant: it is the session's own program that looks, at a process that it starts as it would start a server, so that what is
//! called observed here is what a session will see. Nothing on the host is changed.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::diagnostic::printable;
use crate::fact::Fingerprint;
use crate::fact::table::{Class, FACTS, FactRow, Required, matches};
use crate::host::{Host, HostError};
use crate::probe::{self, Ask, RawFiles};
use crate::question::Engine;
use crate::script::{DOCTOR, SESSION};

/// Programs that not every session needs: what they are for, and how they come to a host.
const OPTIONAL: [(&str, &str); 5] = [
    ("bash", "`setup:` is run by it, else by sh"),
    ("curl", "requests to the server, else python3"),
    ("git", "clean trees for `source:`"),
    ("nvidia-smi", "everything about GPUs"),
    ("python3", "requests to the server where there is no curl"),
];

/// Keys that a host's own condition can hide, and the remedy; for others the table says how they are observed.
const REMEDIES: [(&str, &str); 9] = [
    ("host.id", "`systemd-machine-id-setup` makes /etc/machine-id"),
    ("host.boot_id", "/proc/sys/kernel/random/boot_id must be readable"),
    ("host.cpu", "/proc/cpuinfo must be readable"),
    ("host.numa", "no NUMA nodes under /sys/devices/system/node: nothing to do"),
    ("host.governor", "no cpufreq under /sys/devices/system/cpu, as in most virtual machines: nothing to do"),
    ("server.env.<name>", "/proc must show the processes of one's own account: look at its option hidepid"),
    ("server.argv", "/proc must show the processes of one's own account: look at its option hidepid"),
    ("server.args.<name>", "/proc must show the processes of one's own account: look at its option hidepid"),
    ("server.identity", "/proc/net/tcp and /proc/PID/fd must be readable: look at the option hidepid of /proc"),
];

/// What was seen on a host.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Seen {
    /// Path of each program, or nothing where it is absent.
    pub programs: BTreeMap<String, Option<String>>,
    /// Leases.
    pub leases: Vec<Lease>,
    /// Processes that carry a nonce of labbook, beside those of a living lease.
    pub left_over: Vec<Process>,
    /// Facts of a session whose server is a process that sleeps.
    pub facts: Fingerprint,
}

/// Who holds a set of GPUs, or the whole host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Lease {
    /// Its folder.
    pub path: String,
    /// Whether its owner lives; the next runner sweeps what a dead one left.
    pub alive: bool,
    /// Process id of the owner.
    pub pid: String,
    /// The owner's host folder.
    pub folder: String,
    #[serde(skip)]
    nonce: String,
}

/// A process that a session started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Process {
    /// Its id.
    pub pid: String,
    /// Its command, shortened.
    pub command: String,
    #[serde(skip)]
    nonce: String,
}

impl Lease {
    /// Makes a lease whose processes are not known.
    pub fn new(path: &str, alive: bool, pid: &str, folder: &str) -> Self {
        Self { path: path.to_owned(), alive, pid: pid.to_owned(), folder: folder.to_owned(), nonce: String::new() }
    }
}

impl Process {
    /// Makes a process whose session is not known.
    pub fn new(pid: &str, command: &str) -> Self {
        Self { pid: pid.to_owned(), command: command.to_owned(), nonce: String::new() }
    }
}

/// Whether a fact can be observed on a host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Sight {
    /// It was, just now.
    Observed,
    /// It is about a server, its code, or a client, and nothing stands in the way.
    WithServer,
    /// The host has no such thing.
    NotHere,
    /// It cannot be.
    Hidden,
}

/// A fact, or a family of facts, on a host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FactSight {
    /// Its row in the table, `F01`.
    pub id: &'static str,
    /// Its key.
    pub key: &'static str,
    /// Whether a verdict needs it here.
    pub required: bool,
    /// Whether it can be observed.
    pub sight: Sight,
    /// What to do about one that cannot.
    pub remedy: Option<String>,
}

/// A program on a host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ProgramSight {
    /// Its name.
    pub name: String,
    /// Where it is.
    pub path: Option<String>,
    /// Whether no session can do without it.
    pub required: bool,
    /// What it is for, where not every session needs it.
    pub purpose: Option<&'static str>,
}

/// Looks at a host.
///
/// # Errors
///
/// The host.
pub fn look(host: &dyn Host) -> Result<Seen, HostError> {
    let said = host.shell(DOCTOR, SESSION.as_bytes())?;
    Ok(read(&said.out))
}

/// Reads the records that the script wrote; what is no record is passed over.
fn read(out: &[u8]) -> Seen {
    let (mut seen, mut files, mut rest) = (Seen::default(), BTreeMap::<String, Vec<u8>>::new(), out);
    let mut processes = Vec::new();
    while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
        let line = String::from_utf8_lossy(&rest[..end]).into_owned();
        rest = &rest[end + 1..];
        let words: Vec<&str> = line.splitn(3, ' ').collect();
        match words.as_slice() {
            ["program", name, path] => {
                let found = (*path != "-").then(|| printable(path));
                seen.programs.insert((*name).to_owned(), found);
            }
            ["lease", state, owner] => seen.leases.extend(lease(*state == "alive", owner)),
            ["process", pid, what] => {
                let (nonce, command) = what.split_once(' ').unwrap_or((what, ""));
                let (pid, nonce) = (printable(pid), nonce.to_owned());
                processes.push(Process { pid, command: printable(command), nonce });
            }
            ["file", size, path] => {
                let size = size.parse::<usize>().unwrap_or(usize::MAX).min(rest.len());
                files.insert((*path).to_owned(), rest[..size].to_vec());
                rest = rest.get(size + 1..).unwrap_or_default();
            }
            _ => {}
        }
    }
    let at_work = |process: &Process| {
        seen.leases
            .iter()
            .any(|lease| lease.alive && !lease.nonce.is_empty() && process.nonce.starts_with(&lease.nonce))
    };
    seen.left_over = processes.into_iter().filter(|process| !at_work(process)).collect();
    seen.facts = probe::session_facts(&RawFiles::memory(&files), &ask());
    seen
}

/// `PATH PID STARTTIME BOOT_ID NONCE FOLDER`; a path of a lease has no blanks unless its variable has.
fn lease(alive: bool, owner: &str) -> Option<Lease> {
    let at = owner.find("/labbook-lease")?;
    let path_end = owner[at..].find(' ')? + at;
    let mut words = owner[path_end + 1..].splitn(5, ' ');
    let (pid, _start, _boot, nonce) = (words.next()?, words.next()?, words.next()?, words.next()?);
    Some(Lease {
        path: printable(&owner[..path_end]),
        alive,
        pid: printable(pid),
        folder: printable(words.next().unwrap_or_default()),
        nonce: nonce.to_owned(),
    })
}

fn ask() -> Ask {
    Ask {
        engine: Engine::Sglang,
        factor: Vec::new(),
        evidence: None,
        other_evidence: Vec::new(),
        salt: String::new(),
        block: None,
        position: 1,
        previous: None,
        session_sha256: String::new(),
        rules: String::new(),
    }
}

impl Seen {
    fn has(&self, program: &str) -> bool {
        self.programs.get(program).is_some_and(Option::is_some)
    }

    /// Returns the programs, those that every session needs first.
    pub fn programs(&self) -> Vec<ProgramSight> {
        let mut programs: Vec<ProgramSight> = self
            .programs
            .iter()
            .map(|(name, path)| {
                let purpose = OPTIONAL.iter().find(|(optional, _)| optional == name).map(|(_, purpose)| *purpose);
                // One of two that can ask the server.
                let asks = matches!(name.as_str(), "curl" | "python3") && !self.has("curl") && !self.has("python3");
                ProgramSight { name: name.clone(), path: path.clone(), required: purpose.is_none() || asks, purpose }
            })
            .collect();
        programs.sort_by_key(|program| program.purpose.is_some());
        programs
    }

    /// Returns every fact of the table in its order.
    pub fn facts(&self) -> Vec<FactSight> {
        let of_row = |row: &'static FactRow| row.keys.iter().map(|key| self.fact(row, key));
        FACTS.iter().flat_map(of_row).collect()
    }

    fn fact(&self, row: &FactRow, key: &'static str) -> FactSight {
        let (sight, remedy) = self.sight(row, key);
        let required = match row.required {
            Required::Never => false,
            Required::Always | Required::EngineTells => true,
            Required::WithGpu => self.has("nvidia-smi"),
        };
        FactSight { id: row.id, key, required, sight, remedy }
    }

    fn sight(&self, row: &FactRow, key: &'static str) -> (Sight, Option<String>) {
        if self.facts.find(key).is_some() {
            return (Sight::Observed, None);
        }
        let hidden = |remedy: &str| (Sight::Hidden, Some(remedy.to_owned()));
        let fits = |pattern: &str| matches(pattern, key);
        if row.class == Class::Hardware || fits("gpu.*") {
            return if self.has("nvidia-smi") {
                hidden("`nvidia-smi -q -x` must answer for this account")
            } else {
                (Sight::NotHere, None)
            };
        }
        if key == "host.nodes" || key == "image.digest" || key == "nccl.version" {
            return (Sight::NotHere, None);
        }
        let needs = match row.class {
            Class::Source => Some(("git", self.has("git"))),
            Class::Output => Some(("curl or python3", self.has("curl") || self.has("python3"))),
            _ => None,
        };
        if let Some((program, false)) = needs {
            return hidden(&format!("install {program}"));
        }
        // A process that sleeps has no flags, but its command is where they would stand.
        let argv_hidden = fits("server.args.*") && self.facts.get("server.argv").is_none();
        let shows_now = row.class == Class::Host || matches!(key, "server.argv" | "server.env.<name>");
        if argv_hidden || shows_now {
            let remedy = REMEDIES.iter().find(|(other, _)| *other == key).map(|(_, remedy)| *remedy);
            return hidden(remedy.unwrap_or(row.observe));
        }
        (Sight::WithServer, None)
    }

    /// Returns whether a session here can observe everything that a verdict needs.
    pub fn is_ready(&self) -> bool {
        !self.programs.is_empty()
            && self.programs().iter().all(|program| !program.required || program.path.is_some())
            && self.facts().iter().all(|fact| !fact.required || fact.sight != Sight::Hidden)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::Local;

    #[test]
    fn nothing_said_is_nothing_ready() {
        for said in [&b""[..], b"\n\nnoise\nfile x y\nfile 99999999999999999999 out/a\n", b"\xff\xfe\nlease\nprogram\n"]
        {
            let seen = read(said);
            assert!(!seen.is_ready() && seen.programs.is_empty() && seen.leases.is_empty(), "{seen:?}");
        }
    }

    #[test]
    fn every_fact_has_a_sight_and_what_is_hidden_a_remedy() {
        let facts = Seen::default().facts();
        let keys = FACTS.iter().map(|row| row.keys.len()).sum::<usize>();
        assert_eq!(facts.len(), keys);
        assert!(facts.iter().all(|fact| fact.sight != Sight::Observed));
        assert!(facts.iter().filter(|fact| fact.sight == Sight::Hidden).all(|fact| fact.remedy.is_some()));
        let of = |key: &str| facts.iter().find(|fact| fact.key == key).map(|fact| fact.sight.clone());
        assert_eq!(of("host.id"), Some(Sight::Hidden));
        assert_eq!(of("source.commit"), Some(Sight::Hidden), "there is no git");
        assert_eq!(of("gpu.count"), Some(Sight::NotHere));
    }

    #[test]
    fn a_process_of_a_living_lease_is_at_work() {
        let said = "lease alive /var/tmp/labbook-lease 12 34 boot 0123456789abcdef /a folder/x\n\
            lease dead /var/tmp/labbook-lease-0,1 13 35 boot fedcba9876543210 /b\n\
            process 20 0123456789abcdef0011223344556677 python3 -m sglang.launch_server\n\
            process 21 fedcba98765432100011223344556677 \u{1b}[31msleep 9\n";
        let seen = read(said.as_bytes());
        assert_eq!(seen.leases.len(), 2);
        assert_eq!((seen.leases[0].folder.as_str(), seen.leases[1].alive), ("/a folder/x", false));
        assert_eq!(seen.leases[1].path, "/var/tmp/labbook-lease-0,1");
        let left: Vec<&str> = seen.left_over.iter().map(|process| process.command.as_str()).collect();
        assert_eq!(left, ["\\u{1b}[31msleep 9"]);
    }

    #[test]
    fn this_machine_shows_itself() {
        let seen = look(&Local::new("local", "/nowhere", None)).expect("the script ran");
        for key in
            ["host.boot_id", "host.kernel", "server.argv", "server.env.<name>", "server.identity", "time.utc_start"]
        {
            assert!(seen.facts.find(key).is_some(), "{key} in {:?}", seen.facts);
        }
        assert_eq!(seen.facts.get("server.argv"), Some(&crate::fact::FactValue::text("sleep 60")));
        assert!(seen.has("sh") && seen.has("setsid"));
    }
}
