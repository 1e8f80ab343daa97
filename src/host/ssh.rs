//! A host that is reached over SSH: the same folder with the same programs, and a link between.
//!
//! Invariant: the runner there goes on without us, so a cut link costs nothing but time. An act whose answer did not come whole may
//! have happened or not; it can be repeated either way. No value reaches a shell unquoted, and no time of ours is compared with one
//! of the host's.

use std::cell::RefCell;
use std::fs::File;
use std::io::{self, Read as _, Seek as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::runtime::Runtime;

use super::{Host, HostError, Said, files, gpu_list, lives};
use crate::digest::Digest;
use crate::script::input::{self, SessionInput};
use crate::script::{RUNNER, SESSION};

mod archive;
mod link;
mod master;
mod trouble;

pub use trouble::Trouble;

use link::{Answer, Broken, Call, Link};

/// How an SSH host is reached, and where its folders lie.
#[derive(Debug, Clone)]
pub struct Destination {
    /// Name under `hosts:` in labbook.yaml.
    pub name: String,
    /// What `ssh` takes as destination.
    pub address: String,
    /// Configuration that `ssh` reads instead of the user's.
    pub config: Option<PathBuf>,
    /// Folder of ours for the sockets of masters.
    pub sockets: PathBuf,
    /// Folder on the host for sessions; a leading `~/` is its home.
    pub folder: String,
    /// The GPUs that experiments may use; `None` means all.
    pub gpus: Option<Vec<u32>>,
}

/// A host that is reached over SSH.
pub struct Ssh {
    destination: Destination,
    runtime: Runtime,
    link: RefCell<Option<Link>>,
    root: PathBuf,
    system: String,
    machine: String,
}

/// What an act reports when a session's number or name is in use with other content.
const TAKEN: u32 = 73;

impl Ssh {
    /// Connects to a host.
    ///
    /// # Errors
    ///
    /// What keeps us from it, in ssh's words.
    pub fn connect(destination: Destination) -> Result<Self, HostError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|trouble| failed(&destination, Trouble::Program, trouble.to_string()))?;
        let link = Link::open(&destination, &runtime).map_err(|broken| of_broken(&destination, broken))?;
        let hello = link.hello().clone();
        if !hello.missing.is_empty() {
            return Err(failed(&destination, Trouble::Missing, hello.missing));
        }
        let root = match destination.folder.strip_prefix("~/") {
            Some(below) => hello.home.join(below),
            None => PathBuf::from(&destination.folder),
        };
        let (system, machine) = (hello.system, hello.machine);
        Ok(Self { destination, runtime, link: RefCell::new(Some(link)), root, system, machine })
    }

    fn failed(&self, trouble: Trouble, said: impl Into<String>) -> HostError {
        failed(&self.destination, trouble, said)
    }

    /// Does something over the link, which is made anew where it is gone.
    fn over<T>(&self, act: impl FnOnce(&mut Link, &Runtime) -> Result<T, Broken>) -> Result<T, HostError> {
        let mut slot = self.link.borrow_mut();
        let connected = match slot.take() {
            Some(link) => Ok(link),
            None => Link::open(&self.destination, &self.runtime),
        };
        let answered = connected.and_then(|mut link| {
            let answer = act(&mut link, &self.runtime)?;
            *slot = Some(link);
            Ok(answer)
        });
        answered.map_err(|broken| of_broken(&self.destination, broken))
    }

    /// Carries out an act and returns what it printed.
    fn ask(&self, what: &str, call: &Call) -> Result<Vec<u8>, HostError> {
        let mut output = Vec::new();
        let answer = self.over(|link, runtime| link.ask(runtime, call, &mut output))?;
        self.done(what, &answer)?;
        Ok(output)
    }

    /// Carries out an act that reads `bytes`.
    fn give(&self, what: &str, call: &Call, bytes: &mut dyn io::Read) -> Result<(), HostError> {
        let answer = self.over(|link, runtime| link.give(runtime, call, bytes, &mut io::sink()))?;
        self.done(what, &answer)
    }

    fn done(&self, what: &str, answer: &Answer) -> Result<(), HostError> {
        match answer.code {
            0 => Ok(()),
            code => Err(self.failed(Trouble::Act, format!("cannot {what} (code {code}): {}", answer.said))),
        }
    }

    fn digest(&self, path: &Path) -> Result<String, HostError> {
        let answer = self.ask("hash a file", &Call::new("act_sum").arg(path))?;
        Ok(String::from_utf8_lossy(&answer).split_whitespace().next().unwrap_or_default().to_owned())
    }

    fn place(&self, path: &Path, file: &Path, mode: &str) -> Result<(), HostError> {
        let (digest, _) = Digest::of_file(file).map_err(files("read", file))?;
        if self.digest(path)? == digest.to_string() {
            return Ok(());
        }
        let mut bytes = File::open(file).map_err(files("read", file))?;
        let call = Call::new("act_place").arg(path).arg(digest.to_string()).arg(mode);
        self.give("write a file", &call, &mut bytes)
    }
}

fn failed(destination: &Destination, trouble: Trouble, said: impl Into<String>) -> HostError {
    let by_hand = master::by_hand(destination);
    HostError::Ssh { host: destination.name.clone(), trouble, said: said.into(), by_hand }
}

fn of_broken(destination: &Destination, broken: Broken) -> HostError {
    failed(destination, broken.trouble, broken.said)
}

/// Splits so many lines with a number each, and then so many bytes each.
fn counted(answer: &[u8], files: usize) -> Option<Vec<Vec<u8>>> {
    let (mut rest, mut sizes) = (answer, Vec::new());
    for _ in 0..files {
        let end = rest.iter().position(|byte| *byte == b'\n')?;
        sizes.push(std::str::from_utf8(&rest[..end]).ok()?.trim().parse().ok()?);
        rest = &rest[end + 1..];
    }
    let mut contents = Vec::new();
    for size in sizes {
        let (content, after) = rest.split_at_checked(size)?;
        contents.push(content.to_vec());
        rest = after;
    }
    rest.is_empty().then_some(contents)
}

/// The words of the kernel and of Rust for one kind of machine.
fn is_this_machine(system: &str, machine: &str) -> bool {
    let machine = match machine {
        "amd64" => "x86_64",
        "arm64" => "aarch64",
        other => other,
    };
    system.eq_ignore_ascii_case(std::env::consts::OS) && machine == std::env::consts::ARCH
}

impl Host for Ssh {
    fn name(&self) -> &str {
        &self.destination.name
    }

    fn folder(&self, label: &str) -> PathBuf {
        self.root.join(label)
    }

    fn pace(&self) -> Duration {
        // A look is one or two short reads in a shell that is there already, but it is on the machine that measures.
        Duration::from_secs(1)
    }

    fn install(&self, folder: &Path) -> Result<(), HostError> {
        let programs = [("session.sh", SESSION), ("runner.sh", RUNNER)];
        let archive = archive::pack(programs.map(|(name, text)| (Path::new(name), text.as_bytes())));
        let archive = archive.map_err(files("pack", folder))?;
        let call = Call::new("act_install")
            .arg(folder)
            .arg(Digest::of(&archive).to_string())
            .arg(gpu_list(self.destination.gpus.as_deref()).unwrap_or_default());
        self.give("install the programs", &call, &mut archive.as_slice())
    }

    fn queue(&self, folder: &Path, sequence: u16, session: &SessionInput) -> Result<(), HostError> {
        let files_of_session = input::files(session)?;
        let pairs = files_of_session.iter().map(|(path, bytes)| (path.as_path(), bytes.as_slice()));
        let archive = archive::pack(pairs).map_err(files("pack", folder))?;
        let call = Call::new("act_queue")
            .arg(folder)
            .arg(format!("{sequence:04}"))
            .arg(&session.name)
            .arg(Digest::of(&archive).to_string());
        let answer = self.over(|link, runtime| link.give(runtime, &call, &mut archive.as_slice(), &mut io::sink()))?;
        if answer.code == TAKEN {
            let taken = format!("{sequence:04}-{} cannot be queued: {}", session.name, answer.said);
            return Err(self.failed(Trouble::Act, taken));
        }
        self.done("queue a session", &answer)
    }

    fn place_file(&self, path: &Path, file: &Path) -> Result<(), HostError> {
        self.place(path, file, "600")
    }

    fn place_program(&self, path: &Path, program: &Path) -> Result<(), HostError> {
        if !is_this_machine(&self.system, &self.machine) {
            let (os, arch) = (std::env::consts::OS, std::env::consts::ARCH);
            let what = format!("it is built for {os} {arch}, and the host is {} {}", self.system, self.machine);
            return Err(self.failed(Trouble::Foreign, what));
        }
        self.place(path, program, "700")?;
        let answer =
            self.over(|link, runtime| link.ask(runtime, &Call::new("act_version").arg(path), &mut io::sink()))?;
        match answer.code {
            0 => Ok(()),
            code => {
                Err(self.failed(Trouble::Foreign, format!("`{}` ends with {code}: {}", path.display(), answer.said)))
            }
        }
    }

    fn start(&self, folder: &Path) -> Result<(), HostError> {
        self.ask("start the runner", &Call::new("act_start").arg(folder)).map(drop)
    }

    fn alive(&self, folder: &Path) -> Result<bool, HostError> {
        let answer = self.ask("look at the runner", &Call::new("act_alive").arg(folder))?;
        let mut lines = answer.splitn(3, |byte| *byte == b'\n');
        let mut line = || lines.next().unwrap_or_default();
        let (claim, boot, stat) = (line(), line(), line());
        Ok(lives(&String::from_utf8_lossy(claim), boot, stat))
    }

    fn request_stop(&self, folder: &Path) -> Result<(), HostError> {
        self.ask("ask the runner to stop", &Call::new("act_stop").arg(folder)).map(drop)
    }

    fn withdraw_stop(&self, folder: &Path) -> Result<(), HostError> {
        self.ask("take a stop back", &Call::new("act_withdraw").arg(folder)).map(drop)
    }

    fn read(&self, path: &Path, offset: u64) -> Result<Vec<u8>, HostError> {
        self.ask("read a file", &Call::new("act_read").arg(path).arg((offset + 1).to_string()))
    }

    fn read_all(&self, paths: &[PathBuf]) -> Result<Vec<Vec<u8>>, HostError> {
        let call = paths.iter().fold(Call::new("act_read_all"), Call::arg);
        let answer = self.ask("read files", &call)?;
        counted(&answer, paths.len())
            .ok_or_else(|| self.failed(Trouble::Content, "not as many bytes as it announced".to_owned()))
    }

    fn list(&self, folder: &Path) -> Result<Vec<String>, HostError> {
        let answer = self.ask("list a folder", &Call::new("act_list").arg(folder))?;
        let mut names: Vec<String> = answer
            .split(|byte| *byte == 0)
            .filter(|name| !name.is_empty())
            .map(|name| String::from_utf8_lossy(name).into_owned())
            .collect();
        names.sort();
        Ok(names)
    }

    fn fetch(&self, folder: &Path, into: &Path) -> Result<(), HostError> {
        // It is unpacked when it is here as a whole, so that a link that breaks in the middle leaves nothing.
        let mut spool = tempfile::tempfile().map_err(files("write", into))?;
        let call = Call::new("act_fetch").arg(folder);
        let answer = self.over(|link, runtime| link.ask(runtime, &call, &mut spool))?;
        self.done("pack a session", &answer)?;
        spool.rewind().map_err(files("read", into))?;
        archive::unpack(io::BufReader::new(spool.by_ref()), into)
            .map_err(|trouble| self.failed(Trouble::Content, format!("{}: {trouble}", folder.display())))
    }

    fn shell(&self, script: &str, input: &[u8]) -> Result<Said, HostError> {
        let mut out = Vec::new();
        let call = Call::new("act_shell").arg(script);
        let answer = self.over(|link, runtime| link.give(runtime, &call, &mut &*input, &mut out))?;
        // A shell cannot hold a NUL in a variable, so the last one stands before what was said.
        let Some(end) = out.iter().rposition(|byte| *byte == 0) else {
            return Err(self.failed(Trouble::Act, format!("cannot run a script: {}", answer.said)));
        };
        let err = out.split_off(end).split_off(1);
        Ok(Said { code: answer.code.try_into().unwrap_or(i32::MAX), out, err })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counted_bytes_are_whole_or_nothing() {
        for nothing in [&b""[..], b"3", b"x\nabc", b"3\nab", b"3\nabcd", b"-1\n"] {
            assert!(counted(nothing, 1).is_none(), "{nothing:?}");
        }
        assert_eq!(counted(b"", 0), Some(Vec::new()));
        assert_eq!(counted(b"3\n0\n1\na\nbc", 3), Some(vec![b"a\nb".to_vec(), Vec::new(), b"c".to_vec()]));
    }

    #[test]
    fn the_kernel_and_rust_name_machines_alike_enough() {
        let (os, arch) = (std::env::consts::OS, std::env::consts::ARCH);
        assert!(is_this_machine(&os.to_uppercase(), arch));
        assert!(!is_this_machine("", "") && !is_this_machine(os, "riscv64") && !is_this_machine("Darwin", arch));
    }
}
