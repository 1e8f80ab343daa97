//! Verifying the record: every byte against the digests that the ledger and the sealed forms name.
//!
//! Invariant: nothing here writes, and no link is followed. The chain is: an event's name holds its digest and later events name
//! it; `registered` names the frozen files, `finished` and `failed` the runs; a run names its files and its session, and the
//! session names the rest.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use super::seal::{read_sealed, stored_name};
use super::{DESIGN, Edition, INPUTS, PLAN, SPEC, StoreError, files, is_aside, is_harmless, names};
use crate::digest::Digest;
use crate::ledger::Standing;
use crate::run::{Files, Run, Session};

/// What is wrong with a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Wrong {
    /// Its bytes are not those that were sealed.
    Altered,
    /// It is not there.
    Missing,
    /// Nobody sealed it.
    Extra,
    /// It was sealed for another experiment or edition.
    Elsewhere,
}

impl Wrong {
    /// Returns the word for messages.
    pub fn word(self) -> &'static str {
        match self {
            Self::Altered => "altered",
            Self::Missing => "missing",
            Self::Extra => "not part of the record",
            Self::Elsewhere => "of another experiment or edition",
        }
    }
}

/// One file that is not as it was sealed.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Problem {
    /// Path relative to the edition's folder.
    pub path: String,
    /// What is wrong with it.
    pub wrong: Wrong,
    /// Ids of the runs whose evidence it is, as the ledger knows them; all runs for what the whole edition rests on.
    pub runs: Vec<Digest>,
}

impl Edition {
    /// Hashes every file of the edition again; returns what is wrong, by path.
    ///
    /// # Errors
    ///
    /// A folder that cannot be read at all.
    pub fn verify(&self) -> Result<Vec<Problem>, StoreError> {
        let (ledger, damage) = self.ledger()?;
        let standing = ledger.standing();
        let mut told: BTreeMap<String, Vec<Digest>> = standing.finished.clone();
        told.extend(standing.failed.iter().map(|(name, (_, runs))| (name.clone(), runs.clone())));
        let all: Vec<Digest> = told.values().flatten().copied().collect();
        let mut look = Look::default();
        for damage in damage {
            let wrong = if damage.what.starts_with("missing") { Wrong::Missing } else { Wrong::Altered };
            look.say(format!("ledger/{}", damage.place), wrong, &all);
        }
        self.verify_frozen(&standing, &all, &mut look)?;
        for (session, runs) in &told {
            self.verify_session(session, runs, &mut look)?;
        }
        for name in names(&self.folder)? {
            let known = ["ledger", INPUTS, SPEC, DESIGN, PLAN].contains(&name.as_str());
            if !known && !is_aside(&name) && !told.contains_key(&name) {
                look.say(name, Wrong::Extra, &[]);
            }
        }
        Ok(look.problems())
    }

    /// Verifies spec, design, plan and inputs.
    fn verify_frozen(&self, standing: &Standing, all: &[Digest], look: &mut Look) -> Result<(), StoreError> {
        // The edition is named by its design, whatever the ledger says.
        match read_plain(&self.folder.join(DESIGN)) {
            Some(bytes) if is_design_of(&bytes, &self.edition) => {}
            Some(_) => look.say(DESIGN.to_owned(), Wrong::Altered, all),
            None => look.say(DESIGN.to_owned(), Wrong::Missing, all),
        }
        for (path, digest) in &standing.frozen {
            match read_plain(&self.folder.join(path)).filter(|_| is_harmless(path)) {
                Some(bytes) if Digest::of(&bytes) == digest.sha256 => {}
                Some(_) => look.say(path.clone(), Wrong::Altered, all),
                None => look.say(path.clone(), Wrong::Missing, all),
            }
        }
        // Before the registration there is nothing to compare with.
        if standing.frozen.is_empty() || !self.inputs().is_dir() {
            return Ok(());
        }
        for path in everything(&self.inputs())? {
            let path = format!("{INPUTS}/{path}");
            if !standing.frozen.contains_key(&path) && !is_aside(&path) {
                look.say(path, Wrong::Extra, &[]);
            }
        }
        Ok(())
    }

    fn verify_session(&self, name: &str, runs: &[Digest], look: &mut Look) -> Result<(), StoreError> {
        let folder = self.folder.join(name);
        let place = |path: &str| format!("{name}/{path}");
        if !is_harmless(name) || !is_plain_folder(&folder) {
            look.say(place("session.json"), Wrong::Missing, runs);
            return Ok(());
        }
        let session = read_plain(&folder.join("session.json"));
        if session.is_none() {
            look.say(place("session.json"), Wrong::Missing, runs);
        }
        let session = session.and_then(|bytes| Session::parse(&bytes).ok());
        // A copy of an experiment under another name would count its runs twice.
        if session.as_ref().is_some_and(|of| (&of.experiment, &of.edition) != (&self.experiment, &self.edition)) {
            look.say(place("session.json"), Wrong::Elsewhere, runs);
        }
        let found = everything(&folder)?;
        let mut listed = Listed {
            name,
            folder: &folder,
            known: BTreeSet::from(["session.json".to_owned()]),
            hashed: BTreeMap::new(),
            look,
        };
        // The forms are found by name, so that a damaged one does not hide what is wrong beside it.
        let (mut sound, mut altered, mut readable) = (Vec::new(), Vec::new(), BTreeSet::new());
        for path in found.iter().filter(|path| path.ends_with("/run.json") && path.matches('/').count() == 1) {
            let bytes = read_plain(&folder.join(path)).unwrap_or_default();
            let id = Digest::of(&bytes);
            listed.known.insert(path.clone());
            let is_known = runs.contains(&id);
            if !is_known {
                listed.look.say(place(path), Wrong::Altered, runs);
            }
            if let Ok(run) = Run::parse(&bytes) {
                readable.extend(path.split_once('/').map(|(label, _)| label));
                if is_known { sound.push((id, run)) } else { altered.push((id, run)) }
            }
        }
        let lost: Vec<Digest> =
            runs.iter().filter(|id| !sound.iter().any(|(sound, _)| sound == *id)).copied().collect();
        let trials = session.as_ref().map(|session| session.trials.as_slice()).unwrap_or_default();
        for path in trials.iter().map(|(_, label)| format!("{label}/run.json")) {
            if !listed.known.contains(&path) {
                listed.look.say(place(&path), Wrong::Missing, &lost);
            }
        }
        let altered = altered.iter().map(|(_, run)| (&run.files, lost.as_slice()));
        for (files, users) in sound.iter().map(|(id, run)| (&run.files, std::slice::from_ref(id))).chain(altered) {
            listed.check(files, users);
        }
        if let Some(session) = &session {
            listed.check(&session.files, runs);
        }
        // A form that cannot be read is told; what it would have listed is not.
        let is_trial = |label: &str| {
            listed.known.contains(&format!("{label}/run.json")) || trials.iter().any(|(_, trial)| trial == label)
        };
        let judged = |path: &str| match path.split_once('/') {
            Some((label, _)) if is_trial(label) => readable.contains(label),
            _ => session.is_some(),
        };
        let extra: Vec<&String> = found.iter().filter(|path| !listed.known.contains(*path) && judged(path)).collect();
        for path in extra {
            look.say(place(path), Wrong::Extra, &[]);
        }
        Ok(())
    }
}

/// Returns whether a design is the one that an edition is named by: its canonical JSON is followed by a newline.
fn is_design_of(bytes: &[u8], edition: &str) -> bool {
    bytes.strip_suffix(b"\n").is_some_and(|canonical| Digest::of(canonical).short(edition.len()) == edition)
}

/// Everything that is wrong so far.
#[derive(Default)]
struct Look {
    found: BTreeMap<(String, Wrong), BTreeSet<Digest>>,
}

impl Look {
    fn say(&mut self, path: String, wrong: Wrong, runs: &[Digest]) {
        self.found.entry((path, wrong)).or_default().extend(runs);
    }

    fn problems(self) -> Vec<Problem> {
        let problem = |((path, wrong), runs): ((String, Wrong), BTreeSet<Digest>)| Problem {
            path,
            wrong,
            runs: runs.into_iter().collect(),
        };
        self.found.into_iter().map(problem).collect()
    }
}

/// The files of one session that a sealed form lists.
struct Listed<'a> {
    name: &'a str,
    folder: &'a Path,
    /// Names on the disk that some form lists.
    known: BTreeSet<String>,
    /// Digests so far, by listed path; `None` for what is absent or cannot be unpacked. All runs list the server's log.
    hashed: BTreeMap<String, Option<Digest>>,
    look: &'a mut Look,
}

impl Listed<'_> {
    /// Compares what a form lists. What several forms list is compared for each, since each may be the one that is wrong.
    fn check(&mut self, files: &Files, users: &[Digest]) {
        for (path, wanted) in files {
            let stored = stored_name(path);
            let present = is_harmless(path) && is_plain_file(&self.folder.join(&stored));
            let found = self.hashed.entry(path.clone()).or_insert_with(|| {
                let bytes = present.then(|| read_sealed(self.folder, path)).flatten();
                bytes.map(Digest::of)
            });
            if *found != Some(wanted.sha256) {
                let wrong = if present { Wrong::Altered } else { Wrong::Missing };
                self.look.say(format!("{}/{stored}", self.name), wrong, users);
            }
            self.known.insert(stored);
        }
    }
}

fn is_plain_file(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|found| found.is_file())
}

/// Returns the bytes of a regular file; a link is none.
fn read_plain(path: &Path) -> Option<Vec<u8>> {
    if is_plain_file(path) { fs::read(path).ok() } else { None }
}

fn is_plain_folder(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|found| found.is_dir())
}

/// Returns the relative paths of all that is below a folder and no folder itself: files, links, devices, whatever their names.
fn everything(root: &Path) -> Result<Vec<String>, StoreError> {
    let mut found = Vec::new();
    let mut folders = vec![PathBuf::new()];
    while let Some(folder) = folders.pop() {
        let here = root.join(&folder);
        for entry in fs::read_dir(&here).map_err(files("list", &here))? {
            let entry = entry.map_err(files("list", &here))?;
            let path = folder.join(entry.file_name());
            if entry.file_type().map_err(files("read", &entry.path()))?.is_dir() {
                folders.push(path);
            } else {
                found.push(path.to_string_lossy().into_owned());
            }
        }
    }
    found.sort();
    Ok(found)
}
