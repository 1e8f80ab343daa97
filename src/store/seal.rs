//! Sealing: a session that came home is verified, freed of secrets, written aside and renamed into the record.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::{Edition, StoreError, files, is_harmless, names, readable, sync_folder};
use crate::digest::Digest;
use crate::ledger::Happened;
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

impl SealedSession {
    /// Returns what the ledger says of it.
    pub fn event(&self) -> Happened {
        let session = self.session.session.clone();
        let runs: Vec<Digest> = self.runs.iter().map(|run| run.id).collect();
        match &self.session.reason {
            None => Happened::Finished { session, runs },
            Some(reason) => Happened::Failed { session, reason: reason.clone(), runs },
        }
    }
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
    /// Seals a session; `fetched` is a copy of its folder in the host's queue, `trials` maps folder names there to labels. The
    /// same session, sealed already, stays as it is and is returned.
    ///
    /// # Errors
    ///
    /// A file that came home altered, another session that is sealed under this name, a name that may not be stored, or a file
    /// that cannot be written.
    pub fn seal(
        &self,
        fetched: &Path,
        planned: &PlannedSession,
        axis: Axis,
        ask: &Ask,
        previous: Option<&str>,
    ) -> Result<SealedSession, StoreError> {
        let manifest_sha256 = verify_manifest(fetched)?;
        if self.folder.join(&planned.name).join("session.json").is_file() {
            return self.sealed_before(fetched, planned, manifest_sha256);
        }
        let aside = self.make_aside()?;
        let trials = trial_folders(planned);
        let (written, redactions) = self.write_files(fetched, aside.path(), &trials)?;
        let ended = ending(fetched, aside.path());
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
            manifest_sha256,
            redactions,
            files: session_files,
        };
        self.write_forms(aside.path(), &session, planned, axis, ask, trial_files, fetched)?;
        publish(aside, &self.folder.join(&planned.name))?;
        self.sealed(&planned.name)
    }

    /// Returns the session that is sealed under the name of a fetched one, if it is that one.
    fn sealed_before(
        &self,
        fetched: &Path,
        planned: &PlannedSession,
        manifest_sha256: Option<Digest>,
    ) -> Result<SealedSession, StoreError> {
        let sealed = self.sealed(&planned.name)?;
        let folder = self.folder.join(&planned.name);
        let same = sealed.session.manifest_sha256 == manifest_sha256
            // Where the host had no room for a manifest, the number that the session drew for itself tells it from others.
            && (manifest_sha256.is_some()
                || fs::read(fetched.join("out/nonce")).ok() == fs::read(folder.join("raw/nonce")).ok());
        if same { Ok(sealed) } else { Err(StoreError::Taken { path: folder }) }
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
        let argv = argument_lists(fetched, &paths)?;
        for list in argv.values() {
            redactor.learn(&list.join(&0));
        }
        let mut arguments = BTreeMap::new();
        let mut redactions: Vec<Redaction> = Vec::new();
        for (folder, list) in &argv {
            let (clean, removed) = redactor.redact(&list.join(&0));
            redactions.extend(removed);
            let mut clean: Vec<Vec<u8>> = clean.split(|byte| *byte == 0).map(<[u8]>::to_vec).collect();
            if clean.len() != list.len() {
                // A secret that runs on into the next argument: nothing of such a list can be told apart any more.
                clean = vec![REDACTED.as_bytes().to_vec(); list.len()];
            }
            arguments.insert(folder.as_str(), clean);
        }
        let mut written = Files::new();
        for path in &paths {
            let bytes = read(&fetched.join(path))?;
            let (clean, removed) = match (secret_variable(path), argument(path)) {
                (Some(name), _) => (
                    REDACTED.as_bytes().to_vec(),
                    vec![Redaction { name: name.to_owned(), digest: crate::redact::salted(&bytes, &self.salt()) }],
                ),
                (None, Some((folder, index))) => (arguments[folder][index].clone(), Vec::new()),
                (None, None) if path.ends_with("/environ") => redactor.redact_environ(&bytes, &clear),
                (None, None) => redactor.redact(&bytes),
            };
            redactions.extend(removed);
            let sealed = sealed_path(path, trials);
            if !is_harmless(&sealed) {
                return Err(StoreError::Name { name: sealed });
            }
            // The names of sealed forms, and a name that two files of the host would get, are nobody's to take.
            let form = trials.iter().any(|(_, label)| sealed == format!("{label}/run.json"));
            let digest = FileDigest { sha256: Digest::of(&clean), size: clean.len() as u64 };
            if form || written.insert(sealed.clone(), digest).is_some() {
                return Err(StoreError::Taken { path: PathBuf::from(sealed) });
            }
            let stored = stored_bytes(&sealed, clean)?;
            if stored_name(&sealed) != sealed {
                let digest = FileDigest { sha256: Digest::of(&stored), size: stored.len() as u64 };
                written.insert(stored_name(&sealed), digest);
            }
            write(&aside.join(stored_name(&sealed)), &stored)?;
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

/// Returns folder and index of a file that holds one argument: `argv/0003` is the third.
fn argument(path: &str) -> Option<(&str, usize)> {
    let (folder, name) = path.rsplit_once('/')?;
    let number: usize = name.parse().ok().filter(|_| name.len() == 4)?;
    (!path.starts_with("out/") && folder.rsplit('/').next() == Some("argv")).then_some((folder, number.checked_sub(1)?))
}

/// Returns the arguments of every command of a session, by folder: a flag and its secret are neighbours there.
fn argument_lists(fetched: &Path, paths: &[String]) -> Result<BTreeMap<String, Vec<Vec<u8>>>, StoreError> {
    let mut lists = BTreeMap::<String, Vec<Vec<u8>>>::new();
    for path in paths {
        let Some((folder, index)) = argument(path) else { continue };
        let list = lists.entry(folder.to_owned()).or_default();
        let bytes = read(&fetched.join(path))?;
        // Sorted names count up from 0001; anything else was not made by labbook.
        if list.len() != index || bytes.contains(&0) {
            return Err(StoreError::Name { name: path.clone() });
        }
        list.push(bytes);
    }
    Ok(lists)
}

/// Returns whether the host says that the session finished.
fn has_finished(fetched: &Path) -> bool {
    fs::read_to_string(fetched.join("done")).is_ok_and(|done| done.trim() == "0")
}

/// Returns why a session failed, in words that are free of secrets already; `None` when it finished.
fn ending(fetched: &Path, sealed: &Path) -> Option<String> {
    if has_finished(fetched) {
        return None;
    }
    let done = fs::read_to_string(fetched.join("done")).unwrap_or_default();
    let told = fs::read(sealed.join("raw/fail")).unwrap_or_default();
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

/// Compares every file of `out/` with the host's manifest and returns the manifest's digest. Only a session that failed may have
/// none: its disk may have been full.
fn verify_manifest(fetched: &Path) -> Result<Option<Digest>, StoreError> {
    let out = fetched.join("out");
    let manifest = match fs::read(out.join("manifest")) {
        Ok(manifest) => manifest,
        Err(trouble) if trouble.kind() != io::ErrorKind::NotFound => return Err(files("read", &out)(trouble)),
        Err(_) if has_finished(fetched) => {
            return Err(StoreError::Manifest { what: "is absent, although the session finished".to_owned() });
        }
        Err(_) => return Ok(None),
    };
    let lines = crate::script::output::manifest(&manifest);
    if let Some(line) = lines.unreadable.first() {
        let what = format!("has a line that is none: `{}`", crate::diagnostic::printable(line));
        return Err(StoreError::Manifest { what });
    }
    if lines.consumed != manifest.len() {
        return Err(StoreError::Manifest { what: "is cut off".to_owned() });
    }
    let mut unlisted: BTreeSet<String> = regular_files(&out)?.into_iter().filter(|path| path != "manifest").collect();
    for line in lines.lines {
        let path = line.path.to_string_lossy().into_owned();
        if !is_harmless(&path) {
            return Err(StoreError::Name { name: path });
        }
        // A link or a device is not what the host hashed.
        let found = if unlisted.remove(&path) { Digest::of_file(&out.join(&path)).ok() } else { None };
        let found = found.map_or_else(|| "missing".to_owned(), |(digest, _)| digest.to_string());
        if found != line.sha256 {
            return Err(StoreError::Transfer { path, wanted: line.sha256, found });
        }
    }
    match unlisted.pop_first() {
        None => Ok(Some(Digest::of(&manifest))),
        Some(path) => Err(StoreError::Transfer { path, wanted: "nothing of it".to_owned(), found: "there".to_owned() }),
    }
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

pub(super) fn write(path: &Path, bytes: &[u8]) -> Result<(), StoreError> {
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

/// Makes a folder that was written aside appear under its name, whole: by one rename, which replaces nothing.
///
/// # Errors
///
/// Something that stands under that name, or a rename that the system refuses.
pub(super) fn publish(aside: tempfile::TempDir, target: &Path) -> Result<(), StoreError> {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    use rustix::io::Errno;
    use std::os::unix::fs::PermissionsExt as _;

    let folder = target.parent().expect("a record stands in a folder");
    fs::create_dir_all(folder).map_err(files("make the folder", folder))?;
    fs::set_permissions(aside.path(), fs::Permissions::from_mode(0o755))
        .map_err(files("change the mode of", aside.path()))?;
    sync_tree(aside.path())?;
    let renamed = match renameat_with(CWD, aside.path(), CWD, target, RenameFlags::NOREPLACE) {
        // Some network file systems know no such flag; a folder that is not empty is replaced by no rename.
        Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) if fs::symlink_metadata(target).is_err() => {
            fs::rename(aside.path(), target)
        }
        other => other.map_err(io::Error::from),
    };
    match renamed {
        Ok(()) => {
            // Renamed away: there is nothing left to remove.
            let _ = aside.keep();
            sync_folder(folder)
        }
        Err(_) if fs::symlink_metadata(target).is_ok() => Err(StoreError::Taken { path: target.to_owned() }),
        Err(trouble) => Err(files("rename into", target)(trouble)),
    }
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
