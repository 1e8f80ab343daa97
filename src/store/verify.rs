//! Verifying the record: every byte against the digests that the ledger and the sealed forms name.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use super::seal::{read_sealed, regular_files, stored_name};
use super::{Edition, StoreError, files, names};
use crate::digest::Digest;
use crate::run::{Files, Run, Session};

/// What is wrong with a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wrong {
    /// Its bytes are not those that were sealed.
    Altered,
    /// It is not there.
    Missing,
    /// Nobody sealed it.
    Extra,
}

impl Wrong {
    /// Returns the word for messages.
    pub fn word(self) -> &'static str {
        match self {
            Self::Altered => "altered",
            Self::Missing => "missing",
            Self::Extra => "not part of the record",
        }
    }
}

/// One file that is not as it was sealed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Path relative to the edition's folder.
    pub path: String,
    /// What is wrong with it.
    pub wrong: Wrong,
    /// Ids of the runs whose evidence it is, as the ledger knows them.
    pub runs: Vec<Digest>,
}

impl Edition {
    /// Hashes every file of the edition again.
    ///
    /// # Errors
    ///
    /// A folder that cannot be read at all.
    pub fn verify(&self) -> Result<Vec<Problem>, StoreError> {
        let (ledger, damage) = self.ledger()?;
        let wrong_of = |what: &str| if what.starts_with("missing") { Wrong::Missing } else { Wrong::Altered };
        let mut problems: Vec<Problem> = damage
            .iter()
            .map(|damage| Problem {
                path: format!("ledger/{}", damage.place),
                wrong: wrong_of(&damage.what),
                runs: Vec::new(),
            })
            .collect();
        let standing = ledger.standing();
        let mut told: BTreeMap<String, Vec<Digest>> = standing.finished.clone();
        told.extend(standing.failed.iter().map(|(name, (_, runs))| (name.clone(), runs.clone())));
        let all: Vec<Digest> = told.values().flatten().copied().collect();
        for (path, digest) in &standing.frozen {
            let wrong = match fs::read(self.folder.join(path)) {
                Ok(bytes) if Digest::of(&bytes) == *digest => continue,
                Ok(_) => Wrong::Altered,
                Err(_) => Wrong::Missing,
            };
            problems.push(Problem { path: path.clone(), wrong, runs: all.clone() });
        }
        let on_disk: BTreeSet<String> = self.sessions()?.into_iter().collect();
        for (session, runs) in &told {
            self.verify_session(session, runs, &mut problems)?;
        }
        for session in on_disk.difference(&told.keys().cloned().collect()) {
            problems.push(Problem { path: session.clone(), wrong: Wrong::Extra, runs: Vec::new() });
        }
        Ok(problems)
    }

    fn verify_session(&self, name: &str, runs: &[Digest], problems: &mut Vec<Problem>) -> Result<(), StoreError> {
        let folder = self.folder.join(name);
        let mut problem = |path: &str, wrong: Wrong, runs: &[Digest]| {
            problems.push(Problem { path: format!("{name}/{}", stored_name(path)), wrong, runs: runs.to_vec() });
        };
        let Ok(session_bytes) = fs::read(folder.join("session.json")) else {
            problem("session.json", Wrong::Missing, runs);
            return Ok(());
        };
        let mut known: BTreeSet<String> = BTreeSet::new();
        let session = Session::parse(&session_bytes).ok();
        // The forms are found by name, so that a damaged one does not hide what is wrong beside it.
        let labels: Vec<String> =
            names(&folder)?.into_iter().filter(|label| folder.join(label).join("run.json").is_file()).collect();
        let mut seen: BTreeSet<Digest> = BTreeSet::new();
        for label in &labels {
            let path = format!("{label}/run.json");
            let bytes = fs::read(folder.join(&path)).map_err(files("read", &folder.join(&path)))?;
            known.insert(path.clone());
            let id = Digest::of(&bytes);
            if runs.contains(&id) {
                seen.insert(id);
            } else {
                problem(&path, Wrong::Altered, runs);
            }
            if let Ok(run) = Run::parse(&bytes) {
                check_files(&folder, &run.files, &[id], &mut known, &mut problem);
            }
        }
        if seen.len() < runs.len() && labels.len() < runs.len() {
            let lost: Vec<Digest> = runs.iter().filter(|id| !seen.contains(id)).copied().collect();
            problem("*/run.json", Wrong::Missing, &lost);
        }
        let Some(session) = session else {
            // What belongs to the session cannot be told from what does not.
            if known.insert("session.json".to_owned()) {
                problem("session.json", Wrong::Altered, runs);
            }
            return Ok(());
        };
        check_files(&folder, &session.files, runs, &mut known, &mut problem);
        for path in regular_files(&folder)? {
            let sealed = if path == stored_name("server.log") { "server.log".to_owned() } else { path };
            if !known.contains(&sealed) {
                problem(&sealed, Wrong::Extra, &[]);
            }
        }
        Ok(())
    }
}

fn check_files(
    folder: &std::path::Path,
    listed: &Files,
    runs: &[Digest],
    known: &mut BTreeSet<String>,
    problem: &mut dyn FnMut(&str, Wrong, &[Digest]),
) {
    for (path, digest) in listed {
        if !known.insert(path.clone()) {
            continue;
        }
        let present = folder.join(stored_name(path)).is_file();
        match read_sealed(folder, path) {
            Some(bytes) if Digest::of(&bytes) == digest.sha256 => {}
            _ if present => problem(path, Wrong::Altered, runs),
            _ => problem(path, Wrong::Missing, runs),
        }
    }
}
