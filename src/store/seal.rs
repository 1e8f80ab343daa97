//! Sealing: a session that came home is verified, freed of secrets, written aside and renamed into the record.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use super::{Edition, StoreError, files, is_harmless, names, readable, sync_folder};
use crate::digest::Digest;
use crate::plan::{self, PlannedSession, PlannedTrial};
use crate::probe::{self, Ask};
use crate::question::Axis;
use crate::record::Tier;
use crate::redact::{REDACTED, Redaction, Redactor, is_secret_name};
use crate::run::{FORMAT, FileDigest, Files, Kind, Run, Session, Status, bytes_of};

/// A session that is in the record.
#[derive(Debug, Clone, PartialEq)]
pub struct SealedSession {
    /// `session.json`.
    pub session: Session,
    /// Its runs, in order.
    pub runs: Vec<SealedRun>,
}

/// A run that is in the record.
#[derive(Debug, Clone, PartialEq)]
pub struct SealedRun {
    /// SHA-256 of `run.json`.
    pub id: Digest,
    /// `run.json`.
    pub run: Run,
}

/// Compression level of the server's log: the default of zstd.
const COMPRESSION: i32 = 3;

impl Edition {
    /// Seals a session; `fetched` is a copy of its folder in the host's queue, `trials` maps folder names there to labels. A
    /// session that is sealed already stays as it is, and is returned.
    ///
    /// # Errors
    ///
    /// A file that came home altered, a name that may not be stored, or a file that cannot be written.
    pub fn seal(
        &self,
        fetched: &Path,
        planned: &PlannedSession,
        axis: Axis,
        ask: &Ask,
        previous: Option<&str>,
    ) -> Result<SealedSession, StoreError> {
        if self.folder.join(&planned.name).join("session.json").is_file() {
            return self.sealed(&planned.name);
        }
        verify_manifest(fetched)?;
        fs::create_dir_all(&self.aside).map_err(files("make the folder", &self.aside))?;
        let aside = tempfile::Builder::new()
            .prefix(&format!("{}-{}-", self.experiment, self.edition))
            .tempdir_in(&self.aside)
            .map_err(files("make a folder in", &self.aside))?;
        let trials = trial_folders(planned);
        let (written, redactions) = self.write_files(fetched, aside.path(), &trials)?;
        let ended = ending(fetched);
        let (mut session_files, mut trial_files) = (Files::new(), BTreeMap::<String, Files>::new());
        for (path, digest) in written {
            match trials.iter().find(|(_, label)| path.starts_with(&format!("{label}/"))) {
                Some((_, label)) => trial_files.entry(label.clone()).or_default().insert(path, digest),
                None => session_files.insert(path, digest),
            };
        }
        let session = Session {
            format: FORMAT,
            experiment: self.experiment.clone(),
            edition: self.edition.clone(),
            session: planned.name.clone(),
            kind: kind_of(planned.kind),
            arm: planned.arm.clone(),
            block: planned.block,
            attempt: planned.attempt,
            position: planned.position,
            previous: previous.map(str::to_owned),
            host: planned.host.clone(),
            status: if ended.is_none() { Status::Finished } else { Status::Failed },
            reason: ended.clone(),
            trials: trials.clone(),
            labbook: env!("CARGO_PKG_VERSION").to_owned(),
            rules: ask.rules.clone(),
            programs_sha256: ask.session_sha256.clone(),
            redactions,
            files: session_files,
        };
        self.write_forms(aside.path(), &session, planned, axis, ask, trial_files, fetched)?;
        sync_tree(aside.path())?;
        let target = self.folder.join(&planned.name);
        readable_folders(aside.path())?;
        fs::rename(aside.path(), &target).map_err(files("rename into", &target))?;
        // Renamed away: there is nothing left to remove.
        let _ = aside.keep();
        sync_folder(&self.folder)?;
        self.sealed(&planned.name)
    }

    /// Copies every file to its sealed place, without secrets; returns what was written, by sealed path.
    fn write_files(
        &self,
        fetched: &Path,
        aside: &Path,
        trials: &[(String, String)],
    ) -> Result<(Files, Vec<Redaction>), StoreError> {
        let paths = regular_files(fetched)?;
        let clear: Vec<String> = names(&fetched.join("env"))?;
        let mut redactor = Redactor::new(&self.salt());
        for path in &paths {
            let bytes = read(&fetched.join(path))?;
            match secret_variable(path) {
                Some(name) => redactor.learn_value(name, &bytes),
                None => redactor.learn(&bytes),
            }
        }
        let mut written = Files::new();
        let mut redactions: Vec<Redaction> = Vec::new();
        for path in &paths {
            let bytes = read(&fetched.join(path))?;
            let (clean, removed) = match secret_variable(path) {
                Some(name) => (
                    REDACTED.as_bytes().to_vec(),
                    vec![Redaction { name: name.to_owned(), digest: crate::redact::salted(&bytes, &self.salt()) }],
                ),
                None if path.ends_with("/environ") => redactor.redact_environ(&bytes, &clear),
                None => redactor.redact(&bytes),
            };
            redactions.extend(removed);
            let sealed = sealed_path(path, trials);
            if !is_harmless(&sealed) {
                return Err(StoreError::Name { name: sealed });
            }
            written.insert(sealed.clone(), FileDigest { sha256: Digest::of(&clean), size: clean.len() as u64 });
            write(&aside.join(stored_name(&sealed)), &stored_bytes(&sealed, clean)?)?;
        }
        redactions.sort();
        redactions.dedup();
        Ok((written, redactions))
    }

    #[expect(clippy::too_many_arguments, reason = "one call, which has them all at hand")]
    fn write_forms(
        &self,
        aside: &Path,
        session: &Session,
        planned: &PlannedSession,
        axis: Axis,
        ask: &Ask,
        mut trial_files: BTreeMap<String, Files>,
        fetched: &Path,
    ) -> Result<(), StoreError> {
        let digest_of = |bytes: &[u8]| FileDigest { sha256: Digest::of(bytes), size: bytes.len() as u64 };
        let session_json = bytes_of(session);
        write(&aside.join("session.json"), &session_json)?;
        let sealed = super::SealedFiles::new(aside, session.trials.clone());
        let facts = bytes_of(&probe::session_facts(&sealed.raw(), ask));
        write(&aside.join("facts.json"), &facts)?;
        let log = session.files.get("server.log").copied();
        for (index, trial) in planned.trials.iter().enumerate() {
            let mut list = trial_files.remove(&trial.label).unwrap_or_default();
            list.insert("session.json".to_owned(), digest_of(&session_json));
            list.insert("facts.json".to_owned(), digest_of(&facts));
            list.extend(log.map(|log| ("server.log".to_owned(), log)));
            let failed = trial_ending(&fetched.join("out/trials").join(&session.trials[index].0), session);
            let run = Run {
                format: FORMAT,
                experiment: self.experiment.clone(),
                edition: self.edition.clone(),
                session: planned.name.clone(),
                trial: trial.label.clone(),
                arm: planned.arm.clone(),
                block: planned.block,
                attempt: planned.attempt,
                position: planned.position,
                axis,
                level: trial.level.clone(),
                pass: trial.pass,
                tier: if session.kind == Kind::Look { Tier::Look } else { Tier::Measured },
                status: if failed.is_none() { Status::Finished } else { Status::Failed },
                reason: failed,
                files: list,
            };
            write(&aside.join(&trial.label).join("run.json"), &bytes_of(&run))?;
        }
        Ok(())
    }
}

/// Returns folder name in the host's queue and label of each planned trial.
pub(super) fn trial_folders(planned: &PlannedSession) -> Vec<(String, String)> {
    let folder = |(index, trial): (usize, &PlannedTrial)| (format!("{index:02}-{}", trial.label), trial.label.clone());
    planned.trials.iter().enumerate().map(folder).collect()
}

/// Returns where a file of the queue's folder stands in the record.
pub(super) fn sealed_path(path: &str, trials: &[(String, String)]) -> String {
    for (folder, label) in trials {
        if let Some(rest) = path.strip_prefix(&format!("out/trials/{folder}/")) {
            return format!("{label}/{rest}");
        }
        if let Some(rest) = path.strip_prefix(&format!("trials/{folder}/")) {
            return format!("{label}/input/{rest}");
        }
    }
    match path {
        "out/status" => "status".to_owned(),
        "out/server.log" => "server.log".to_owned(),
        _ => match path.strip_prefix("out/") {
            Some(rest) => format!("raw/{rest}"),
            None => format!("raw/input/{path}"),
        },
    }
}

/// Returns the name under which a sealed file stands on the disk.
pub(super) fn stored_name(sealed: &str) -> String {
    if sealed == "server.log" { "server.log.zst".to_owned() } else { sealed.to_owned() }
}

fn stored_bytes(sealed: &str, clean: Vec<u8>) -> Result<Vec<u8>, StoreError> {
    if sealed != "server.log" {
        return Ok(clean);
    }
    zstd::encode_all(clean.as_slice(), COMPRESSION).map_err(files("compress", Path::new(sealed)))
}

fn kind_of(kind: plan::Kind) -> Kind {
    match kind {
        plan::Kind::Prime => Kind::Prime,
        plan::Kind::Block => Kind::Block,
        plan::Kind::Look => Kind::Look,
    }
}

/// Returns the variable that a file of an `env/` folder sets, if its value is a secret.
fn secret_variable(path: &str) -> Option<&str> {
    let (folder, name) = path.rsplit_once('/')?;
    (folder.rsplit('/').next() == Some("env") && is_secret_name(name)).then_some(name)
}

/// Returns why a session failed; `None` when it finished.
fn ending(fetched: &Path) -> Option<String> {
    let done = fs::read_to_string(fetched.join("done")).unwrap_or_default();
    if done.trim() == "0" {
        return None;
    }
    let told = fs::read(fetched.join("out/fail")).unwrap_or_default();
    let told = crate::diagnostic::printable(&String::from_utf8_lossy(&told));
    Some(if told.is_empty() { format!("ended with code {}", crate::diagnostic::printable(done.trim())) } else { told })
}

/// Returns why a trial failed; `None` when its client ended well and left something.
fn trial_ending(folder: &Path, session: &Session) -> Option<String> {
    let text = |name: &str| fs::read_to_string(folder.join(name)).unwrap_or_default();
    let of_session = || session.reason.clone().unwrap_or_else(|| "not run".to_owned());
    match text("code").trim() {
        "" => Some(of_session()),
        "0" if fs::metadata(folder.join("bench.jsonl")).is_ok_and(|file| file.len() > 0) => None,
        "0" => Some("the client ended with code 0 and left no row".to_owned()),
        _ if folder.join("timeout").exists() => Some("the client did not end within its time".to_owned()),
        code => Some(format!("the client ended with code {}", crate::diagnostic::printable(code))),
    }
}

/// Compares every file of `out/` with the host's manifest, where there is one (a disk that was full has none).
fn verify_manifest(fetched: &Path) -> Result<(), StoreError> {
    let Ok(manifest) = fs::read(fetched.join("out/manifest")) else { return Ok(()) };
    for line in crate::script::output::manifest(&manifest).lines {
        let path = line.path.to_string_lossy().into_owned();
        if !is_harmless(&path) {
            return Err(StoreError::Name { name: path });
        }
        let found = Digest::of_file(&fetched.join("out").join(&path)).map(|(digest, _)| digest.to_string());
        if found.as_ref().ok() != Some(&line.sha256) {
            let found = found.unwrap_or_else(|_| "missing".to_owned());
            return Err(StoreError::Transfer { path, wanted: line.sha256, found });
        }
    }
    Ok(())
}

/// Returns the relative paths of all regular files below a folder, sorted; links and devices are left out.
pub(super) fn regular_files(root: &Path) -> Result<Vec<String>, StoreError> {
    let mut found = Vec::new();
    let mut folders = vec![PathBuf::new()];
    while let Some(folder) = folders.pop() {
        let here = root.join(&folder);
        for entry in fs::read_dir(&here).map_err(files("list", &here))? {
            let entry = entry.map_err(files("list", &here))?;
            let kind = entry.file_type().map_err(files("read", &entry.path()))?;
            let name = entry
                .file_name()
                .into_string()
                .map_err(|name| StoreError::Name { name: name.to_string_lossy().into_owned() })?;
            let path = folder.join(name);
            if kind.is_dir() {
                folders.push(path);
            } else if kind.is_file() {
                found.push(path.to_string_lossy().into_owned());
            }
        }
    }
    found.sort();
    Ok(found)
}

fn read(path: &Path) -> Result<Vec<u8>, StoreError> {
    fs::read(path).map_err(files("read", path))
}

fn write(path: &Path, bytes: &[u8]) -> Result<(), StoreError> {
    let folder = path.parent().expect("a file stands in a folder");
    fs::create_dir_all(folder).map_err(files("make the folder", folder))?;
    fs::write(path, bytes).map_err(files("write", path))?;
    readable(path)
}

fn sync_tree(root: &Path) -> Result<(), StoreError> {
    for entry in fs::read_dir(root).map_err(files("list", root))? {
        let path = entry.map_err(files("list", root))?.path();
        if path.is_dir() {
            sync_tree(&path)?;
        } else {
            fs::File::open(&path).and_then(|file| file.sync_all()).map_err(files("write", &path))?;
        }
    }
    sync_folder(root)
}

fn readable_folders(root: &Path) -> Result<(), StoreError> {
    use std::os::unix::fs::PermissionsExt as _;
    fs::set_permissions(root, fs::Permissions::from_mode(0o755)).map_err(files("change the mode of", root))
}

pub(super) fn read_sealed(folder: &Path, sealed: &str) -> Option<Vec<u8>> {
    if !is_harmless(sealed) {
        return None;
    }
    let bytes = fs::read(folder.join(stored_name(sealed))).ok()?;
    if sealed == "server.log" { zstd::decode_all(bytes.as_slice()).ok() } else { Some(bytes) }
}

pub(super) fn list_sealed(folder: &Path, path: &str, trials: &[(String, String)]) -> Vec<String> {
    if path == "trials" || path == "out/trials" {
        return trials.iter().map(|(folder, _)| folder.clone()).collect();
    }
    // A folder maps like a file in it.
    let inside = sealed_path(&format!("{path}/x"), trials);
    let Some(sealed) = inside.strip_suffix("/x").filter(|sealed| is_harmless(sealed)) else { return Vec::new() };
    names(&folder.join(sealed)).unwrap_or_default()
}
