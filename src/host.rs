//! A host: where sessions run. A few acts are all that an execution needs of one: install the programs, queue a session, start
//! the runner, read a file from an offset, fetch a folder, ask for a stop.
//!
//! Invariant: every act may be repeated without harm, since a caller cannot always know whether the last one happened.

use std::fs;
use std::io::{self, Read, Seek, SeekFrom, Write as _};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::script::input::{self, PlaceError, SessionInput};

/// What went wrong with a host, and where.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// A file or folder could not be read or written.
    #[error("cannot {act} `{path}`")]
    Files {
        /// What was tried.
        act: &'static str,
        /// On what.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A session could not be put in the queue.
    #[error("cannot queue a session")]
    Queue(#[from] PlaceError),
    /// The runner could not be started.
    #[error("cannot start the runner in `{folder}`: {reason}")]
    Start {
        /// The host folder.
        folder: PathBuf,
        /// What the system or the program said.
        reason: String,
    },
}

fn files(act: &'static str, path: &Path) -> impl FnOnce(io::Error) -> HostError {
    let path = path.to_owned();
    move |source| HostError::Files { act, path, source }
}

/// What a script said on a host, and how it ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Said {
    /// Exit status; 128 + n after signal n.
    pub code: i32,
    /// Standard output.
    pub out: Vec<u8>,
    /// Standard error.
    pub err: Vec<u8>,
}

/// Where sessions run.
pub trait Host {
    /// Returns the name under `hosts:` in labbook.yaml.
    fn name(&self) -> &str;

    /// Returns the folder on the host that belongs to `label` (an experiment and its edition).
    fn folder(&self, label: &str) -> PathBuf;

    /// Makes the host folder with the programs that run there.
    fn install(&self, folder: &Path) -> Result<(), HostError>;

    /// Puts a session in the queue of a host folder, whole or not at all.
    fn queue(&self, folder: &Path, sequence: u16, session: &SessionInput) -> Result<(), HostError>;

    /// Puts a program in place, whole or not at all; one that is there already stays.
    fn place_program(&self, path: &Path, program: &Path) -> Result<(), HostError>;

    /// Starts the runner of a host folder and returns at once; a second start while one lives is harmless.
    fn start(&self, folder: &Path) -> Result<(), HostError>;

    /// Returns whether the runner of a host folder lives.
    fn alive(&self, folder: &Path) -> Result<bool, HostError>;

    /// Asks the runner of a host folder to end cleanly, and the session that runs with it.
    fn request_stop(&self, folder: &Path) -> Result<(), HostError>;

    /// Takes such a request back.
    fn withdraw_stop(&self, folder: &Path) -> Result<(), HostError>;

    /// Returns the bytes of a file from `offset` on; none where the file is absent.
    fn read(&self, path: &Path, offset: u64) -> Result<Vec<u8>, HostError>;

    /// Returns the names in a folder, sorted; none where it is absent.
    fn list(&self, folder: &Path) -> Result<Vec<String>, HostError>;

    /// Copies a folder of regular files here, into a folder that does not exist yet.
    fn fetch(&self, folder: &Path, into: &Path) -> Result<(), HostError>;

    /// Runs one of our constant scripts under `sh` to its end; `input` is its standard input. It may be run again.
    fn shell(&self, script: &str, input: &[u8]) -> Result<Said, HostError>;
}

/// What the runner of a host folder says about itself.
pub const RUNNER_LOG: &str = "runner.log";

const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// This machine.
#[derive(Debug)]
pub struct Local {
    name: String,
    root: PathBuf,
}

impl Local {
    /// Makes the local host, which keeps its folders under `root`.
    pub fn new(name: impl Into<String>, root: impl Into<PathBuf>) -> Self {
        Self { name: name.into(), root: root.into() }
    }
}

impl Host for Local {
    fn name(&self) -> &str {
        &self.name
    }

    fn folder(&self, label: &str) -> PathBuf {
        self.root.join(label)
    }

    fn install(&self, folder: &Path) -> Result<(), HostError> {
        Ok(input::install(folder)?)
    }

    fn queue(&self, folder: &Path, sequence: u16, session: &SessionInput) -> Result<(), HostError> {
        input::place(folder, sequence, session)?;
        Ok(())
    }

    fn place_program(&self, path: &Path, program: &Path) -> Result<(), HostError> {
        if path.exists() {
            return Ok(());
        }
        let folder = path.parent().unwrap_or(path);
        fs::create_dir_all(folder).map_err(files("make the folder", folder))?;
        let aside = tempfile::NamedTempFile::new_in(folder).map_err(files("write in", folder))?;
        fs::copy(program, aside.path()).map_err(files("copy", program))?;
        // Closing the descriptor first: a program that is open for writing cannot be executed.
        let aside = aside.into_temp_path();
        aside.persist(path).map_err(|trouble| files("write", path)(trouble.error))?;
        Ok(())
    }

    fn start(&self, folder: &Path) -> Result<(), HostError> {
        let failed = |reason: String| HostError::Start { folder: folder.to_owned(), reason };
        let log = folder.join(RUNNER_LOG);
        let log = fs::File::options().create(true).append(true).open(&log).map_err(files("write", &log))?;
        // `setsid -f` forks, so that the runner is nobody's child and goes on when this program ends.
        let status = Command::new("setsid")
            .args(["-f", "sh", "runner.sh"])
            .current_dir(folder)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .status()
            .map_err(|trouble| failed(format!("setsid: {trouble}")))?;
        if status.success() { Ok(()) } else { Err(failed(format!("setsid ended with {status}"))) }
    }

    fn alive(&self, folder: &Path) -> Result<bool, HostError> {
        let claim = self.read(&folder.join("runner"), 0)?;
        let claim = String::from_utf8_lossy(&claim);
        let mut words = claim.split_whitespace();
        let (Some(pid), Some(start), Some(boot)) = (words.next(), words.next(), words.next()) else { return Ok(false) };
        if pid.parse::<u32>().is_err() || fs::read_to_string(BOOT_ID).is_ok_and(|current| current.trim() != boot) {
            return Ok(false);
        }
        let stat = self.read(Path::new(&format!("/proc/{pid}/stat")), 0)?;
        let stat = String::from_utf8_lossy(&stat);
        // The name in the second field may hold anything, so fields are counted from the last parenthesis: state is the
        // first after it, the start time the twentieth.
        let fields: Vec<&str> = stat.rsplit(") ").next().unwrap_or("").split_whitespace().collect();
        Ok(fields.first().is_some_and(|state| *state != "Z") && fields.get(19) == Some(&start))
    }

    fn request_stop(&self, folder: &Path) -> Result<(), HostError> {
        let path = folder.join("stop");
        fs::write(&path, b"").map_err(files("write", &path))
    }

    fn withdraw_stop(&self, folder: &Path) -> Result<(), HostError> {
        let path = folder.join("stop");
        match fs::remove_file(&path) {
            Err(trouble) if trouble.kind() != io::ErrorKind::NotFound => Err(files("remove", &path)(trouble)),
            _ => Ok(()),
        }
    }

    fn read(&self, path: &Path, offset: u64) -> Result<Vec<u8>, HostError> {
        let mut file = match fs::File::open(path) {
            Ok(file) => file,
            Err(trouble) if trouble.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(trouble) => return Err(files("read", path)(trouble)),
        };
        let mut content = Vec::new();
        file.seek(SeekFrom::Start(offset)).map_err(files("read", path))?;
        file.read_to_end(&mut content).map_err(files("read", path))?;
        Ok(content)
    }

    fn list(&self, folder: &Path) -> Result<Vec<String>, HostError> {
        let entries = match fs::read_dir(folder) {
            Ok(entries) => entries,
            Err(trouble) if trouble.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(trouble) => return Err(files("list", folder)(trouble)),
        };
        let mut names = Vec::new();
        for entry in entries {
            let entry = entry.map_err(files("list", folder))?;
            names.push(entry.file_name().to_string_lossy().into_owned());
        }
        names.sort();
        Ok(names)
    }

    fn fetch(&self, folder: &Path, into: &Path) -> Result<(), HostError> {
        fs::create_dir_all(into).map_err(files("make the folder", into))?;
        for entry in fs::read_dir(folder).map_err(files("list", folder))? {
            let entry = entry.map_err(files("list", folder))?;
            let kind = entry.file_type().map_err(files("read", &entry.path()))?;
            let target = into.join(entry.file_name());
            // Links and devices are never followed: what they point to was not written by the session.
            if kind.is_dir() {
                self.fetch(&entry.path(), &target)?;
            } else if kind.is_file() {
                fs::copy(entry.path(), &target).map_err(files("copy", &entry.path()))?;
            }
        }
        Ok(())
    }

    fn shell(&self, script: &str, input: &[u8]) -> Result<Said, HostError> {
        let failed = || files("run a script with", Path::new("sh"));
        let mut child = Command::new("sh")
            .args(["-c", script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(failed())?;
        let stdin = child.stdin.take();
        let output = std::thread::scope(|scope| {
            // Beside the reading, since either pipe may be full. A script need not read what it is given.
            scope.spawn(move || stdin.map(|mut stdin| stdin.write_all(input)));
            child.wait_with_output()
        });
        let output = output.map_err(failed())?;
        let code = output.status.code().or_else(|| output.status.signal().map(|signal| 128 + signal)).unwrap_or(-1);
        Ok(Said { code, out: output.stdout, err: output.stderr })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn acts_on_nothing_are_empty_and_acts_repeat() {
        let root = tempfile::tempdir().expect("a folder");
        let host = Local::new("local", root.path());
        let folder = host.folder("x-00000000");
        assert!(host.list(&folder).expect("no folder, no names").is_empty());
        assert!(host.read(&folder.join("journal"), 7).expect("no file, no bytes").is_empty());
        assert!(!host.alive(&folder).expect("no runner"));
        for _ in 0..2 {
            host.install(&folder).expect("installed");
            host.withdraw_stop(&folder).expect("nothing to withdraw");
        }
        fs::create_dir_all(folder.join("a")).expect("a folder");
        fs::write(folder.join("a/b"), b"content").expect("written");
        assert_eq!(host.read(&folder.join("a/b"), 3).expect("read"), b"tent");
        assert_eq!(host.list(&folder.join("a")).expect("listed"), ["b"]);
        let fetched = root.path().join("here");
        std::os::unix::fs::symlink("/etc/passwd", folder.join("a/link")).expect("a link");
        host.fetch(&folder, &fetched).expect("fetched");
        assert_eq!(host.list(&fetched.join("a")).expect("listed"), ["b"]);
    }

    #[test]
    fn a_script_gets_its_input_and_its_end_is_told() {
        let host = Local::new("local", "/nowhere");
        let quiet = host.shell("exit 3", &vec![b'x'; 1 << 20]).expect("it ran");
        assert_eq!(quiet, Said { code: 3, out: Vec::new(), err: Vec::new() });
        let loud = host.shell("cat; echo no >&2; kill -9 $$", &vec![b'x'; 1 << 20]).expect("it ran");
        assert_eq!((loud.code, loud.out.len(), loud.err.as_slice()), (137, 1 << 20, &b"no\n"[..]));
    }
}
