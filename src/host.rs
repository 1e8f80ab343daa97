//! A host: where sessions run. A few acts are all that an execution needs of one: install the programs, queue a session, start
//! the runner, read a file from an offset, fetch a folder, ask for a stop.
//!
//! Invariant: every act may be repeated without harm, since a caller cannot always know whether the last one happened.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::script::input::{PlaceError, SessionInput};

mod local;
mod ssh;

pub use local::Local;
pub use ssh::{Destination, Ssh, Trouble};

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
    /// A host that is reached over SSH.
    #[error("`{host}`: {trouble}{}{said}", if said.is_empty() { "" } else { ": " })]
    Ssh {
        /// Name of the host.
        host: String,
        /// What kind of thing is wrong.
        trouble: Trouble,
        /// What `ssh` or the host said.
        said: String,
        /// The command by which a person reaches it.
        by_hand: String,
    },
}

impl HostError {
    /// Returns whether it may pass by itself, as a cut link does, so that the same act can be tried again.
    pub fn may_pass(&self) -> bool {
        matches!(self, Self::Ssh { trouble, .. } if trouble.may_pass())
    }

    /// Returns what a person can do about it, where the kind of trouble tells.
    pub fn remedy(&self) -> Option<String> {
        match self {
            Self::Ssh { trouble, by_hand, .. } => Some(trouble.remedy(by_hand)),
            _ => None,
        }
    }
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

    /// Returns how long to wait between two looks at what is new.
    fn pace(&self) -> Duration;

    /// Puts a file in place, whole or not at all; one that is there already stays.
    fn place_file(&self, path: &Path, file: &Path) -> Result<(), HostError>;

    /// Puts a program in place, in the same way, which must run there.
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

    /// Returns the bytes of several files, in their order; none where one is absent.
    fn read_all(&self, paths: &[PathBuf]) -> Result<Vec<Vec<u8>>, HostError> {
        paths.iter().map(|path| self.read(path, 0)).collect()
    }

    /// Returns the names in a folder, sorted; none where it is absent.
    fn list(&self, folder: &Path) -> Result<Vec<String>, HostError>;

    /// Copies a folder of regular files here, into a folder that does not exist yet.
    fn fetch(&self, folder: &Path, into: &Path) -> Result<(), HostError>;

    /// Runs one of our constant scripts under `sh` to its end; `input` is its standard input. It may be run again.
    fn shell(&self, script: &str, input: &[u8]) -> Result<Said, HostError>;
}

/// What the runner of a host folder says about itself.
pub const RUNNER_LOG: &str = "runner.log";

/// Which boot of the machine this is.
pub const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// Returns the content of a host folder's file `gpus`.
fn gpu_list(gpus: Option<&[u32]>) -> Option<String> {
    Some(gpus?.iter().map(u32::to_string).collect::<Vec<_>>().join(","))
}

/// Returns whether the runner that left this claim (`PID STARTTIME BOOT_ID …`) lives, given the boot and its `/proc/PID/stat`.
fn lives(claim: &str, boot: &[u8], stat: &[u8]) -> bool {
    let mut words = claim.split_whitespace();
    let (Some(_), Some(start), Some(claimed)) = (words.next(), words.next(), words.next()) else { return false };
    let boot = String::from_utf8_lossy(boot);
    if !boot.trim().is_empty() && boot.trim() != claimed {
        return false;
    }
    // The name in the second field may hold anything, so fields are counted from the last parenthesis: state is the first after
    // it, the start time the twentieth.
    let stat = String::from_utf8_lossy(stat);
    let fields: Vec<&str> = stat.rsplit(") ").next().unwrap_or("").split_whitespace().collect();
    fields.first().is_some_and(|state| *state != "Z") && fields.get(19) == Some(&start)
}
