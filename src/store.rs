//! The results folder: `results/<experiment>/<edition>/`, sealed once and never changed.
//!
//! Invariant: a session folder appears whole or not at all, and nothing that is there is overwritten. Secrets are gone before
//! anything is sealed. What a later reader needs is parsed from raw files; no derived number is stored as truth.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::digest::Digest;
use crate::ledger::{Happened, Ledger, LedgerProblem};
use crate::run::{FileDigest, Files};

mod read;
mod seal;
mod verify;

pub use read::{Found, SealedFiles, other_evidence};
pub use seal::{SealedRun, SealedSession};
pub use verify::{Problem, Wrong};

/// The spec of an edition, as it was written.
const SPEC: &str = "spec.yaml";
/// What is executed, as canonical JSON: its digest names the edition.
const DESIGN: &str = "design.json";
/// The plan that was made first.
const PLAN: &str = "plan.json";
/// The folder of the files that the spec names.
const INPUTS: &str = "inputs";

/// What went wrong with the record, and where.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
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
    /// Something else is there already.
    #[error("`{path}` is there already with other content, and nothing in the record is overwritten")]
    Taken {
        /// Where.
        path: PathBuf,
    },
    /// A file is not what the host said it is.
    #[error("`{path}` came home altered: the host's manifest says {wanted}, and it is {found}")]
    Transfer {
        /// Path below the session's output.
        path: String,
        /// Digest in the manifest.
        wanted: String,
        /// Digest found, or `missing`.
        found: String,
    },
    /// The host's list of what a session left cannot be used.
    #[error("the host's manifest {what}: the session stays on the host; fetch it again")]
    Manifest {
        /// What is wrong with it.
        what: String,
    },
    /// A name that could leave its folder, or that no program of ours makes.
    #[error("`{name}` is not a name that may be stored: letters, digits, `.`, `_`, `-` and `/` between them")]
    Name {
        /// The name.
        name: String,
    },
    /// A sealed file cannot be read.
    #[error("cannot read `{path}`: {source}")]
    Form {
        /// Which.
        path: PathBuf,
        /// Why.
        source: crate::run::FormatError,
    },
    /// Events are altered or missing.
    #[error("the ledger of `{edition}` is damaged: {place}: {what}")]
    Ledger {
        /// Experiment and edition.
        edition: String,
        /// File name.
        place: String,
        /// What is wrong.
        what: String,
    },
}

fn files(act: &'static str, path: &Path) -> impl FnOnce(io::Error) -> StoreError {
    let path = path.to_owned();
    move |source| StoreError::Files { act, path, source }
}

/// The record of a lab.
#[derive(Debug, Clone)]
pub struct Store {
    root: PathBuf,
}

/// The record of one edition.
#[derive(Debug, Clone)]
pub struct Edition {
    /// The experiment.
    pub experiment: String,
    /// Eight hex digits.
    pub edition: String,
    /// Its folder.
    pub folder: PathBuf,
    /// Folder in the same file system, which may be another than that of the lab, where sessions are written before they are
    /// renamed into place.
    aside: PathBuf,
}

impl Store {
    /// Makes the store of the lab at `root`.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// Returns the folder `results/`.
    pub fn results(&self) -> PathBuf {
        self.root.join("results")
    }

    /// Returns the names of experiments that have results, sorted.
    ///
    /// # Errors
    ///
    /// A folder that cannot be listed.
    pub fn experiments(&self) -> Result<Vec<String>, StoreError> {
        let names = folders(&self.results())?;
        Ok(names.into_iter().filter(|name| is_experiment(&self.results(), name)).collect())
    }

    /// Returns what stands in the results folder and is neither an experiment nor hidden, sorted.
    ///
    /// # Errors
    ///
    /// A folder that cannot be listed.
    pub fn strangers(&self) -> Result<Vec<String>, StoreError> {
        let results = self.results();
        let names = names(&results)?.into_iter().filter(|name| !name.starts_with('.'));
        Ok(names.filter(|name| !is_experiment(&results, name)).collect())
    }

    /// Returns the editions of an experiment, sorted by name.
    ///
    /// # Errors
    ///
    /// A folder that cannot be listed.
    pub fn editions(&self, experiment: &str) -> Result<Vec<Edition>, StoreError> {
        let names = folders(&self.results().join(experiment))?;
        let editions = names.iter().map(|name| self.edition(experiment, name));
        // One whose design was lost is still one, and `verify` says what is lost.
        let is_edition =
            |edition: &Edition| edition.exists() || fs::symlink_metadata(edition.folder.join("ledger")).is_ok();
        Ok(editions.filter(is_edition).collect())
    }

    /// Returns one edition, which may not exist yet.
    pub fn edition(&self, experiment: &str, edition: &str) -> Edition {
        Edition {
            experiment: experiment.to_owned(),
            edition: edition.to_owned(),
            folder: self.results().join(experiment).join(edition),
            aside: self.results().join(".aside"),
        }
    }

    /// Makes a folder of one's own for what comes from a host, which nobody else may read.
    ///
    /// # Errors
    ///
    /// A folder that cannot be made.
    pub fn inbox(&self) -> Result<tempfile::TempDir, StoreError> {
        let folder = self.root.join(".labbook/inbox");
        fs::create_dir_all(&folder).map_err(files("make the folder", &folder))?;
        let private = fs::Permissions::from_mode(0o700);
        let mut builder = tempfile::Builder::new();
        builder.prefix("from-").permissions(private);
        builder.tempdir_in(&folder).map_err(files("make a folder in", &folder))
    }
}

impl Edition {
    /// Returns whether anything of it is on the disk.
    pub fn exists(&self) -> bool {
        self.folder.join(DESIGN).is_file()
    }

    /// Returns the text that salts the digests of what is not stored in clear.
    pub fn salt(&self) -> String {
        format!("{}/{}", self.experiment, self.edition)
    }

    /// Returns the folder with the files that the frozen spec names (patches, data sets).
    pub fn inputs(&self) -> PathBuf {
        self.folder.join(INPUTS)
    }

    /// Writes the spec, the files it names (path and bytes), the design and the plan, once. A design that is there must be the
    /// same; spec and plan stay as they were.
    ///
    /// # Errors
    ///
    /// Another design, or a file that cannot be written.
    pub fn freeze(
        &self,
        spec: &str,
        inputs: &[(String, Vec<u8>)],
        design: &Value,
        plan: &Value,
    ) -> Result<(), StoreError> {
        let design_text = format!("{}\n", crate::digest::canonical_json(design));
        let path = self.folder.join(DESIGN);
        if let Ok(present) = fs::read_to_string(&path) {
            return if present == design_text { Ok(()) } else { Err(StoreError::Taken { path }) };
        }
        let mut frozen = vec![(SPEC.to_owned(), spec.as_bytes().to_vec())];
        for (name, bytes) in inputs {
            if !is_harmless(name) {
                return Err(StoreError::Name { name: name.clone() });
            }
            frozen.push((format!("{INPUTS}/{name}"), bytes.clone()));
        }
        frozen.push((PLAN.to_owned(), crate::run::bytes_of(plan)));
        frozen.push((DESIGN.to_owned(), design_text.into_bytes()));
        if self.folder.is_dir() {
            // A file of it was lost; what is left must be the same.
            return frozen.iter().try_for_each(|(name, bytes)| write_once(&self.folder.join(name), bytes));
        }
        let aside = self.make_aside()?;
        for (name, bytes) in &frozen {
            seal::write(&aside.path().join(name), bytes)?;
        }
        seal::publish(aside, &self.folder)
    }

    /// Returns the digests of the frozen files, by path in the edition's folder: what is registered with the protocol.
    ///
    /// # Errors
    ///
    /// A file that cannot be read.
    pub fn frozen(&self) -> Result<Files, StoreError> {
        let mut paths: Vec<String> = [SPEC, DESIGN, PLAN].map(str::to_owned).to_vec();
        if self.inputs().is_dir() {
            paths.extend(seal::regular_files(&self.inputs())?.into_iter().map(|path| format!("{INPUTS}/{path}")));
        }
        paths.retain(|path| !is_aside(path));
        let mut frozen = Files::new();
        for path in paths {
            let place = self.folder.join(&path);
            let (sha256, size) = Digest::of_file(&place).map_err(files("read", &place))?;
            frozen.insert(path, FileDigest { sha256, size });
        }
        Ok(frozen)
    }

    /// Makes a folder in which something is written before it appears in the record.
    fn make_aside(&self) -> Result<tempfile::TempDir, StoreError> {
        fs::create_dir_all(&self.aside).map_err(files("make the folder", &self.aside))?;
        tempfile::Builder::new()
            .prefix(&format!("{}-{}-", self.experiment, self.edition))
            .tempdir_in(&self.aside)
            .map_err(files("make a folder in", &self.aside))
    }

    /// Reads the ledger and what is wrong with it.
    ///
    /// # Errors
    ///
    /// A file that cannot be read.
    pub fn ledger(&self) -> Result<(Ledger, Vec<LedgerProblem>), StoreError> {
        let folder = self.folder.join("ledger");
        let mut events = Vec::new();
        for name in names(&folder)?.into_iter().filter(|name| !name.starts_with('.')) {
            let path = folder.join(&name);
            events.push((name, fs::read(&path).map_err(files("read", &path))?));
        }
        Ok(Ledger::read(events))
    }

    /// Reads a ledger in which nothing is wrong.
    ///
    /// # Errors
    ///
    /// The first thing that is wrong.
    pub fn sound_ledger(&self) -> Result<Ledger, StoreError> {
        let (ledger, problems) = self.ledger()?;
        match problems.into_iter().next() {
            None => Ok(ledger),
            Some(problem) => Err(StoreError::Ledger { edition: self.salt(), place: problem.place, what: problem.what }),
        }
    }

    /// Adds one event; `at` is UTC.
    ///
    /// # Errors
    ///
    /// A damaged ledger, or a file that cannot be written.
    pub fn note(&self, at: &str, happened: Happened) -> Result<(), StoreError> {
        let (name, bytes) = self.sound_ledger()?.append(at, happened);
        write_once(&self.folder.join("ledger").join(name), &bytes)
    }

    /// Returns the names of the sealed sessions, sorted.
    ///
    /// # Errors
    ///
    /// A folder that cannot be listed.
    pub fn sessions(&self) -> Result<Vec<String>, StoreError> {
        let folders = folders(&self.folder)?;
        Ok(folders.into_iter().filter(|name| self.folder.join(name).join("session.json").is_file()).collect())
    }

    /// Notes the sessions that an interrupted invocation sealed and did not note; returns their names. `at` is UTC.
    ///
    /// # Errors
    ///
    /// A session that cannot be read, a damaged ledger, or a file that cannot be written.
    pub fn reconcile(&self, at: &str) -> Result<Vec<String>, StoreError> {
        let standing = self.sound_ledger()?.standing();
        let mut noted = self.sessions()?;
        noted.retain(|name| !standing.is_sealed(name));
        for name in &noted {
            self.note(at, self.sealed(name)?.event())?;
        }
        Ok(noted)
    }

    /// Removes what interrupted writes left aside. What a living process is writing lies there too, so the caller holds the
    /// lock of this edition (`home.lock` in its folder on the host): only who holds it writes into the edition.
    ///
    /// # Errors
    ///
    /// Something that cannot be removed.
    pub fn tidy(&self) -> Result<(), StoreError> {
        let mine = format!("{}-{}-", self.experiment, self.edition);
        for name in names(&self.aside)? {
            // The rest is random letters and digits; with a hyphen it belongs to an experiment of a longer name.
            if name.strip_prefix(&mine).is_some_and(|rest| !rest.contains('-')) {
                let path = self.aside.join(name);
                fs::remove_dir_all(&path).map_err(files("remove", &path))?;
            }
        }
        let mut folders = vec![self.folder.clone(), self.folder.join("ledger")];
        if self.inputs().is_dir() {
            let below = seal::regular_files(&self.inputs())?;
            let parents = below.iter().filter_map(|path| Some(self.inputs().join(path).parent()?.to_owned()));
            folders.extend(parents.collect::<BTreeSet<PathBuf>>());
        }
        for folder in folders {
            for name in names(&folder)?.into_iter().filter(|name| is_aside(name)) {
                let path = folder.join(name);
                fs::remove_file(&path).map_err(files("remove", &path))?;
            }
        }
        Ok(())
    }
}

/// How the name of a file begins that is being written.
const ASIDE: &str = ".aside-";

/// Returns whether a path names a file whose writing was interrupted, or goes on.
fn is_aside(path: &str) -> bool {
    path.rsplit('/').next().is_some_and(|name| name.starts_with(ASIDE))
}

/// Writes a file that does not exist yet, whole or not at all; the same content again changes nothing.
///
/// # Errors
///
/// Other content that is there, or a file that cannot be written.
pub fn write_once(path: &Path, content: &[u8]) -> Result<(), StoreError> {
    let folder = path.parent().expect("a file stands in a folder");
    fs::create_dir_all(folder).map_err(files("make the folder", folder))?;
    let mut aside = tempfile::Builder::new().prefix(ASIDE).tempfile_in(folder).map_err(files("write in", folder))?;
    aside.write_all(content).map_err(files("write", path))?;
    readable(aside.path())?;
    aside.as_file().sync_all().map_err(files("write", path))?;
    match aside.persist_noclobber(path) {
        Ok(_) => sync_folder(folder),
        Err(_) if fs::read(path).is_ok_and(|present| Digest::of(present) == Digest::of(content)) => Ok(()),
        Err(trouble) if trouble.error.kind() == io::ErrorKind::AlreadyExists => {
            Err(StoreError::Taken { path: path.to_owned() })
        }
        Err(trouble) => Err(files("write", path)(trouble.error)),
    }
}

/// Temporary files are private; what is published is not.
fn readable(path: &Path) -> Result<(), StoreError> {
    fs::set_permissions(path, fs::Permissions::from_mode(0o644)).map_err(files("change the mode of", path))
}

fn sync_folder(folder: &Path) -> Result<(), StoreError> {
    fs::File::open(folder).and_then(|opened| opened.sync_all()).map_err(files("write", folder))
}

/// Returns the names in a folder, sorted; none where it is absent.
fn names(folder: &Path) -> Result<Vec<String>, StoreError> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(trouble) if trouble.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(trouble) => return Err(files("list", folder)(trouble)),
    };
    let mut names = Vec::new();
    for entry in entries {
        names.push(entry.map_err(files("list", folder))?.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    Ok(names)
}

fn folders(folder: &Path) -> Result<Vec<String>, StoreError> {
    let names = names(folder)?;
    Ok(names.into_iter().filter(|name| !name.starts_with('.') && folder.join(name).is_dir()).collect())
}

/// Whether a name in the results folder is one that an experiment can have, and a folder of its own: nobody's link.
fn is_experiment(results: &Path, name: &str) -> bool {
    is_harmless(name)
        && !name.contains('/')
        && name.starts_with(|first: char| first.is_ascii_alphanumeric())
        && fs::symlink_metadata(results.join(name)).is_ok_and(|found| found.is_dir())
}

/// Returns whether a relative path is made of harmless names only.
pub(crate) fn is_harmless(path: &str) -> bool {
    !path.is_empty()
        && path.split('/').all(|name| {
            !name.is_empty()
                && !name.starts_with("..")
                && name != "."
                && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-'))
        })
}

#[cfg(test)]
mod tests;
