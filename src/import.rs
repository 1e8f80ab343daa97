//! Imports: results that were measured elsewhere, with what is known about them.
//!
//! A manifest and its raw files are copied, without secrets, into `results/EXPERIMENT/DIGEST/`, where a record says what was
//! brought in. Invariant: nothing is overwritten, nothing outside the manifest's folder is read, no symbolic link is
//! followed, and files that changed since are noticed.

pub mod manifest;

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::diagnostic::{Diagnostics, Style};
use crate::digest::{Digest, canonical_json};
use crate::question::Question;
use crate::record::{Record, Tier, Written};
use crate::redact::{Redaction, Redactor};
use crate::{row, yaml};

use manifest::{Entry, Manifest, Numbers};

/// Largest raw file: per-request details of 100 000 requests have about 60 MB.
const MOST_BYTES: u64 = 256 << 20;
/// Largest manifest.
const MOST_MANIFEST_BYTES: u64 = 64 << 20;
/// All files of one import together.
const MOST_BYTES_TOGETHER: u64 = 8 << 30;
/// Name of the copied manifest.
const MANIFEST: &str = "manifest.yaml";
/// Name of the record of the import.
const RECORD: &str = "import.json";

/// Why an import, or an imported experiment, cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// The manifest is wrong.
    #[error("{}", .0.render(Style::Plain))]
    Manifest(Box<Diagnostics>),
    /// A file cannot be read or written.
    #[error("{}: {trouble}", .path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// What the system says.
        trouble: io::Error,
    },
    /// A file is not one that may be imported.
    #[error("{}: {reason}", .path.display())]
    Unfit {
        /// Which.
        path: PathBuf,
        /// What is wrong and what to do.
        reason: String,
    },
    /// The experiment is not there, or there several times.
    #[error("{0}")]
    Experiment(String),
}

/// What an import brought in.
#[derive(Debug)]
pub struct Imported {
    /// The experiment.
    pub experiment: String,
    /// Where it is now.
    pub folder: PathBuf,
    /// How many runs.
    pub runs: usize,
    /// How many raw files.
    pub files: usize,
    /// Secrets that were removed.
    pub redacted: Vec<Redaction>,
    /// Whether it had been brought in before.
    pub again: Again,
    /// Warnings about the manifest.
    pub warnings: Diagnostics,
}

/// Whether an import had been made before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Again {
    /// It is new.
    New,
    /// The same files are there already.
    Already,
}

/// The record of an import, one immutable file.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Receipt {
    import: u32,
    experiment: String,
    tier: Tier,
    utc: String,
    labbook: String,
    files: Vec<Brought>,
    redacted: Vec<Redaction>,
}

#[derive(Debug, Serialize, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
struct Brought {
    path: String,
    sha256: Digest,
    bytes: u64,
}

/// Copies a manifest and its raw files into `results`; `now` is written into the record.
///
/// # Errors
///
/// A manifest that is wrong, files that are absent, too large, links, or outside its folder; nothing is written then.
pub fn import(path: &Path, results: &Path, now: jiff::Timestamp) -> Result<Imported, ImportError> {
    let written = read_plain(path, MOST_MANIFEST_BYTES)?;
    let (read, warnings) = read_manifest(path, &written)?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut redactor = Redactor::new(&Digest::of(&written).to_string());
    redactor.learn(&written);
    let names = raw_names(&read);
    let mut together = 0;
    for name in &names {
        let bytes = read_inside(folder, name)?;
        together += bytes.len() as u64;
        if together > MOST_BYTES_TOGETHER {
            return Err(unfit(path, format!("its files hold more than {} GiB", MOST_BYTES_TOGETHER >> 30)));
        }
        redactor.learn(&bytes);
    }
    let (kept, redacted) = redactor.redact(&written);
    // What was removed must not change what the manifest says otherwise.
    read_manifest(path, &kept)?;
    let parent = results.join(&read.question.experiment);
    let target = parent.join(Digest::of(&kept).short(8));
    let mut made = Imported {
        experiment: read.question.experiment.clone(),
        folder: target.clone(),
        runs: read.runs.len(),
        files: names.len(),
        redacted,
        again: Again::New,
        warnings,
    };
    fs::create_dir_all(&parent).map_err(|trouble| file(&parent, trouble))?;
    let aside =
        tempfile::Builder::new().prefix(".import-").tempdir_in(&parent).map_err(|trouble| file(&parent, trouble))?;
    let files = copy(aside.path(), folder, &kept, &names, &redactor, &mut made.redacted)?;
    if target.exists() {
        same_files(&target, &files)?;
        made.again = Again::Already;
        return Ok(made);
    }
    let receipt = Receipt {
        import: 1,
        experiment: made.experiment.clone(),
        tier: read.tier,
        utc: now.to_string(),
        labbook: env!("CARGO_PKG_VERSION").to_owned(),
        files,
        redacted: made.redacted.clone(),
    };
    let text = serde_json::to_string_pretty(&receipt).expect("a receipt is JSON") + "\n";
    write_new(&aside.path().join(RECORD), text.as_bytes())?;
    // A rename onto a folder that appeared meanwhile fails, so that nothing is overwritten.
    fs::rename(aside.path(), &target).map_err(|trouble| file(&target, trouble))?;
    Ok(made)
}

/// Reads an imported experiment: `NAME`, or `NAME@DIGITS` where there are several imports of one name.
///
/// # Errors
///
/// No such import, several, or files that are not what they were when they were brought in.
pub fn load(results: &Path, experiment: &str) -> Result<(Question, Vec<Record>), ImportError> {
    let (name, digits) = experiment.split_once('@').unwrap_or((experiment, ""));
    let parent = results.join(name);
    if !manifest::is_inside(name) || name.contains('/') {
        return Err(ImportError::Experiment(format!("`{}` is not the name of an experiment", name.escape_debug())));
    }
    let mut found: Vec<String> = fs::read_dir(&parent)
        .map_err(|_| ImportError::Experiment(format!("experiment `{name}` has no results: import or run it first")))?
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|edition| edition.starts_with(digits) && !edition.starts_with('.'))
        .filter(|edition| parent.join(edition).join(RECORD).is_file())
        .collect();
    found.sort();
    match found.as_slice() {
        [edition] => load_one(&parent.join(edition), edition),
        [] => Err(ImportError::Experiment(format!("experiment `{experiment}` has no imported results"))),
        several => Err(ImportError::Experiment(format!(
            "`{name}` was imported {} times; name one of `{name}@{}`",
            several.len(),
            several.join(&format!("`, `{name}@"))
        ))),
    }
}

/// Returns every import, by experiment and edition.
///
/// # Errors
///
/// A folder that cannot be listed.
pub fn editions(results: &Path) -> Result<Vec<(String, String)>, ImportError> {
    let mut found = Vec::new();
    for experiment in folders_of(results)? {
        let editions = folders_of(&results.join(&experiment))?;
        let imported =
            editions.into_iter().filter(|edition| results.join(&experiment).join(edition).join(RECORD).is_file());
        found.extend(imported.map(|edition| (experiment.clone(), edition)));
    }
    Ok(found)
}

/// Hashes the files of every import again; returns what is wrong, a line each: the file, and what about it.
///
/// # Errors
///
/// A folder that cannot be listed.
pub fn verify(results: &Path) -> Result<Vec<String>, ImportError> {
    let mut wrong = Vec::new();
    for experiment in folders_of(results)? {
        let experiment = results.join(experiment);
        for edition in folders_of(&experiment)? {
            let folder = experiment.join(&edition);
            if folder.join(RECORD).is_file() {
                verify_one(&folder, &edition, &mut wrong)?;
            } else if folder.join(MANIFEST).is_file() && !folder.join("ledger").exists() {
                wrong.push(format!("{}: missing", folder.join(RECORD).display()));
            }
        }
    }
    Ok(wrong)
}

fn verify_one(folder: &Path, edition: &str, wrong: &mut Vec<String>) -> Result<(), ImportError> {
    let path = folder.join(RECORD);
    let receipt: Receipt = match read_inside(folder, RECORD).map(|bytes| serde_json::from_slice(&bytes)) {
        Ok(Ok(receipt)) => receipt,
        Ok(Err(trouble)) => {
            wrong.push(format!("{}: altered: not the record of an import: {trouble}", path.display()));
            return Ok(());
        }
        Err(trouble) => {
            wrong.push(trouble.to_string());
            return Ok(());
        }
    };
    // The folder is named by the manifest, so that the receipt cannot vouch for another one.
    let manifest = receipt.files.iter().find(|brought| brought.path == MANIFEST);
    if manifest.is_none_or(|manifest| manifest.sha256.short(edition.len()) != edition) {
        wrong.push(format!("{}: altered: it is not the record of import {edition}", path.display()));
    }
    if folder.parent().and_then(Path::file_name).is_none_or(|name| name.to_string_lossy() != receipt.experiment) {
        wrong.push(format!("{}: an import of `{}`", path.display(), receipt.experiment.escape_debug()));
    }
    for brought in &receipt.files {
        match same_files(folder, std::slice::from_ref(brought)) {
            Err(ImportError::File { path, trouble }) if trouble.kind() == io::ErrorKind::NotFound => {
                wrong.push(format!("{}: missing", path.display()));
            }
            Err(trouble) => wrong.push(trouble.to_string()),
            Ok(()) => {}
        }
    }
    let known = |path: &str| path == RECORD || receipt.files.iter().any(|brought| brought.path == path);
    for path in everything_below(folder)?.into_iter().filter(|path| !known(path)) {
        wrong.push(format!("{}: not part of the record", folder.join(path).display()));
    }
    Ok(())
}

/// Returns the names of the folders in a folder, sorted; none where it is absent, none that are hidden, no links.
fn folders_of(folder: &Path) -> Result<Vec<String>, ImportError> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(trouble) if trouble.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(trouble) => return Err(file(folder, trouble)),
    };
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry.map_err(|trouble| file(folder, trouble))?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if manifest::is_folder_name(&name) && entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

/// Returns the relative paths of what is below a folder and no folder itself, sorted; no link is followed.
fn everything_below(root: &Path) -> Result<Vec<String>, ImportError> {
    let mut found = Vec::new();
    let mut folders = vec![PathBuf::new()];
    while let Some(folder) = folders.pop() {
        let here = root.join(&folder);
        for entry in fs::read_dir(&here).map_err(|trouble| file(&here, trouble))? {
            let entry = entry.map_err(|trouble| file(&here, trouble))?;
            let path = folder.join(entry.file_name());
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                folders.push(path);
            } else {
                found.push(path.to_string_lossy().into_owned());
            }
        }
    }
    found.sort();
    Ok(found)
}

fn load_one(folder: &Path, edition: &str) -> Result<(Question, Vec<Record>), ImportError> {
    let path = folder.join(RECORD);
    let receipt: Receipt = serde_json::from_slice(&read_plain(&path, MOST_MANIFEST_BYTES)?)
        .map_err(|trouble| unfit(&path, format!("not the record of an import: {trouble}")))?;
    same_files(folder, &receipt.files)?;
    let path = folder.join(MANIFEST);
    let (read, _) = read_manifest(&path, &read_plain(&path, MOST_MANIFEST_BYTES)?)?;
    let mut records = Vec::new();
    for (index, entry) in read.runs.iter().enumerate() {
        records.push(record(folder, edition, &read, index, entry)?);
    }
    Ok((read.question, records))
}

fn record(folder: &Path, edition: &str, read: &Manifest, index: usize, entry: &Entry) -> Result<Record, ImportError> {
    let (written, result_sha256) = match &entry.numbers {
        Numbers::File(name, _) => {
            let bytes = read_inside(folder, name)?;
            (row::written(Some(&bytes)), Some(Digest::of(&bytes)))
        }
        Numbers::Values(values) => (Written::Values(values.clone()), None),
        Numbers::None => (Written::Nothing, None),
    };
    let identity = json!({
        "import": edition, "run": index, "arm": entry.arm, "block": entry.block, "attempt": entry.attempt,
        "session": entry.session, "level": entry.level, "pass": entry.pass, "result": result_sha256,
    });
    Ok(Record {
        id: Digest::of(canonical_json(&identity)),
        experiment: read.question.experiment.clone(),
        // Two imports of one name share no block.
        edition: Some(edition.to_owned()),
        arm: entry.arm.clone(),
        block: entry.block,
        attempt: entry.attempt,
        session: entry.session.clone(),
        position: entry.position,
        level: entry.level.clone(),
        pass: entry.pass,
        tier: read.tier,
        outcome: entry.outcome.clone(),
        facts: entry.facts.clone(),
        written,
        result_sha256,
        decode_rate: None,
    })
}

fn read_manifest(path: &Path, bytes: &[u8]) -> Result<(Manifest, Diagnostics), ImportError> {
    let text = std::str::from_utf8(bytes).map_err(|_| unfit(path, "not UTF-8 text".to_owned()))?;
    let name = path.file_name().map_or_else(|| path.display().to_string(), |name| name.to_string_lossy().into_owned());
    manifest::read(&yaml::source(name, text)).map_err(|problems| ImportError::Manifest(Box::new(problems)))
}

/// Returns the raw files of a manifest, each once.
fn raw_names(read: &Manifest) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for entry in &read.runs {
        if let Numbers::File(name, _) = &entry.numbers {
            names.push(name.clone());
        }
    }
    names.sort();
    names.dedup();
    names
}

/// Copies everything without secrets into `aside`.
fn copy(
    aside: &Path,
    folder: &Path,
    kept: &[u8],
    names: &[String],
    redactor: &Redactor,
    redacted: &mut Vec<Redaction>,
) -> Result<Vec<Brought>, ImportError> {
    write_new(&aside.join(MANIFEST), kept)?;
    let mut files = vec![Brought { path: MANIFEST.to_owned(), sha256: Digest::of(kept), bytes: kept.len() as u64 }];
    for name in names {
        let target = aside.join(name);
        if [MANIFEST, RECORD].contains(&name.as_str()) {
            return Err(unfit(&folder.join(name), "the name is taken; rename the file".to_owned()));
        }
        let (bytes, removed) = redactor.redact(&read_inside(folder, name)?);
        if let Some(parent) = target.parent() {
            fs::create_dir_all(parent).map_err(|trouble| file(parent, trouble))?;
        }
        write_new(&target, &bytes)?;
        files.push(Brought { path: name.clone(), sha256: Digest::of(&bytes), bytes: bytes.len() as u64 });
        redacted.extend(removed);
    }
    redacted.sort();
    redacted.dedup();
    Ok(files)
}

/// Looks whether the files of an import are what they were.
fn same_files(folder: &Path, files: &[Brought]) -> Result<(), ImportError> {
    for brought in files {
        if !manifest::is_inside(&brought.path) {
            return Err(unfit(folder, format!("its record names `{}`", brought.path.escape_debug())));
        }
        let bytes = read_inside(folder, &brought.path)?;
        if Digest::of(&bytes) != brought.sha256 {
            let reason = "altered since it was imported; restore it, or import the changed files anew".to_owned();
            return Err(unfit(&folder.join(&brought.path), reason));
        }
    }
    Ok(())
}

/// Reads a file below `folder`, of which no part may be a symbolic link.
fn read_inside(folder: &Path, name: &str) -> Result<Vec<u8>, ImportError> {
    let mut path = folder.to_owned();
    for part in name.split('/') {
        path.push(part);
        let found = fs::symlink_metadata(&path).map_err(|trouble| file(&path, trouble))?;
        if found.file_type().is_symlink() {
            return Err(unfit(&path, "a symbolic link is not followed; copy the file there".to_owned()));
        }
    }
    read_plain(&path, MOST_BYTES)
}

fn read_plain(path: &Path, most: u64) -> Result<Vec<u8>, ImportError> {
    let found = fs::metadata(path).map_err(|trouble| file(path, trouble))?;
    if !found.is_file() {
        return Err(unfit(path, "not a plain file".to_owned()));
    }
    if found.len() > most {
        return Err(unfit(path, format!("{} bytes, at most {most} are read", found.len())));
    }
    fs::read(path).map_err(|trouble| file(path, trouble))
}

fn write_new(path: &Path, bytes: &[u8]) -> Result<(), ImportError> {
    let mut made = fs::File::create_new(path).map_err(|trouble| file(path, trouble))?;
    made.write_all(bytes).and_then(|()| made.sync_all()).map_err(|trouble| file(path, trouble))
}

fn file(path: &Path, trouble: io::Error) -> ImportError {
    ImportError::File { path: path.to_owned(), trouble }
}

fn unfit(path: &Path, reason: String) -> ImportError {
    ImportError::Unfit { path: path.to_owned(), reason }
}

#[cfg(test)]
mod tests;
