//! Reading the record: sealed sessions, the records that the check judges, and runs by a prefix of their id.

use std::fs;
use std::path::{Path, PathBuf};

use super::seal::{SealedRun, SealedSession, list_sealed, read_sealed, sealed_path};
use super::{Edition, Store, StoreError, files};
use crate::digest::Digest;
use crate::ledger::Standing;
use crate::probe::{self, Ask, RawFiles};
use crate::question::{Axis, Question};
use crate::record::{Outcome, RESULT_FILE, Record, Tier, complete_inputs};
use crate::row;
use crate::run::{Kind, Run, Session, Status};

/// The files of a sealed session under the names they had on the host.
#[derive(Debug, Clone)]
pub struct SealedFiles {
    folder: PathBuf,
    trials: Vec<(String, String)>,
}

impl SealedFiles {
    /// Makes a view of a session's folder; `trials` maps folder names on the host to labels.
    pub fn new(folder: &Path, trials: Vec<(String, String)>) -> Self {
        Self { folder: folder.to_owned(), trials }
    }

    /// Returns what the probe reads from.
    pub fn raw(&self) -> RawFiles<'_> {
        RawFiles::new(
            |path| read_sealed(&self.folder, &sealed_path(path, &self.trials)),
            |path| list_sealed(&self.folder, path, &self.trials),
        )
    }

    /// Returns the bytes of a file by its sealed path (`server.log`, `c0010-p1/bench.jsonl`).
    pub fn sealed(&self, path: &str) -> Option<Vec<u8>> {
        read_sealed(&self.folder, path)
    }
}

/// What a prefix of a run id stands for.
#[derive(Debug, Clone)]
pub enum Found {
    /// No run.
    None,
    /// One run.
    One(Box<(Edition, SealedRun)>),
    /// Several; their ids.
    Many(Vec<Digest>),
}

impl Store {
    /// Finds the run whose id starts with `prefix`.
    ///
    /// # Errors
    ///
    /// A part of the record that cannot be read.
    pub fn find(&self, prefix: &str) -> Result<Found, StoreError> {
        let prefix = prefix.to_ascii_lowercase();
        let mut found = Vec::new();
        for experiment in self.experiments()? {
            for edition in self.editions(&experiment)? {
                for session in edition.all_sealed()? {
                    let runs = session.runs.into_iter().filter(|run| run.id.to_string().starts_with(&prefix));
                    found.extend(runs.map(|run| (edition.clone(), run)));
                }
            }
        }
        match found.len() {
            0 => Ok(Found::None),
            1 => Ok(Found::One(Box::new(found.remove(0)))),
            _ => Ok(Found::Many(found.into_iter().map(|(_, run)| run.id).collect())),
        }
    }
}

impl Edition {
    /// Reads one sealed session.
    ///
    /// # Errors
    ///
    /// A file that is absent, or of another form.
    pub fn sealed(&self, name: &str) -> Result<SealedSession, StoreError> {
        let folder = self.folder.join(name);
        let read = |path: PathBuf| fs::read(&path).map_err(files("read", &path)).map(|bytes| (path, bytes));
        let (path, bytes) = read(folder.join("session.json"))?;
        let session = Session::parse(&bytes).map_err(|source| StoreError::Form { path, source })?;
        let mut runs = Vec::new();
        for (_, label) in &session.trials {
            let (path, bytes) = read(folder.join(label).join("run.json"))?;
            let run = Run::parse(&bytes).map_err(|source| StoreError::Form { path, source })?;
            runs.push(SealedRun { id: Digest::of(&bytes), run });
        }
        Ok(SealedSession { session, runs })
    }

    /// Reads all sealed sessions, by name.
    ///
    /// # Errors
    ///
    /// A session that cannot be read.
    pub fn all_sealed(&self) -> Result<Vec<SealedSession>, StoreError> {
        self.sessions()?.iter().map(|name| self.sealed(name)).collect()
    }

    /// Returns the files of a sealed session.
    pub fn files_of(&self, session: &Session) -> SealedFiles {
        SealedFiles::new(&self.folder.join(&session.session), session.trials.clone())
    }

    /// Returns the records of all runs in blocks: what the check judges. Primes and looks are none of them.
    ///
    /// # Errors
    ///
    /// A session that cannot be read.
    pub fn records(&self, question: &Question, standing: &Standing) -> Result<Vec<Record>, StoreError> {
        let mut records = Vec::new();
        for sealed in self.all_sealed()?.iter().filter(|sealed| sealed.session.kind == Kind::Block) {
            records.extend(self.records_of(sealed, question, standing));
        }
        complete_inputs(&mut records);
        Ok(records)
    }

    /// Returns the records of one session, whatever it was for. Facts and rows are parsed from its raw files.
    pub fn records_of(&self, sealed: &SealedSession, question: &Question, standing: &Standing) -> Vec<Record> {
        let session = &sealed.session;
        let view = self.files_of(session);
        let raw = view.raw();
        let ask = self.ask(session, question);
        let of_session = probe::session_facts(&raw, &ask);
        let mut records = Vec::new();
        for ((folder, label), SealedRun { id, run }) in session.trials.iter().zip(&sealed.runs) {
            let mut facts = of_session.clone();
            facts.extend(&probe::trial_facts(&raw, &format!("trials/{folder}"), &ask));
            let result = view.sealed(&format!("{label}/{RESULT_FILE}"));
            records.push(Record {
                id: *id,
                experiment: self.experiment.clone(),
                edition: Some(self.edition.clone()),
                arm: run.arm.clone(),
                block: run.block,
                attempt: run.attempt,
                session: run.session.clone(),
                position: Some(run.position),
                level: run.level.clone(),
                pass: run.pass,
                tier: run.tier,
                outcome: outcome(*id, run, standing),
                facts,
                written: row::written(result.as_deref()),
                result_sha256: result.as_deref().map(Digest::of),
                decode_rate: decode_rate(&view, label, run),
            });
        }
        records
    }

    /// Returns what the probe has to know about a session.
    fn ask(&self, session: &Session, question: &Question) -> Ask {
        Ask {
            engine: question.engine.unwrap_or(crate::question::Engine::Command),
            factor: question.factor.clone(),
            evidence: question.evidence.get(&session.arm).map(|evidence| evidence.log.clone()),
            other_evidence: other_evidence(question, &session.arm),
            salt: self.salt(),
            block: session.block,
            position: session.position,
            previous: session.previous.clone(),
            session_sha256: session.programs_sha256.clone(),
            rules: session.rules.clone(),
        }
    }
}

/// Returns the patterns that prove the treatments of the other arms.
pub fn other_evidence(question: &Question, arm: &str) -> Vec<String> {
    question.evidence.iter().filter(|(other, _)| *other != arm).map(|(_, evidence)| evidence.log.clone()).collect()
}

fn outcome(id: Digest, run: &Run, standing: &Standing) -> Outcome {
    if let Some(reason) = standing.excluded.get(&id) {
        return Outcome::Excluded(reason.clone());
    }
    let superseded = run.block.and_then(|block| standing.superseded.get(&(block, run.attempt)));
    match (superseded, run.status) {
        (Some(reason), _) => Outcome::Superseded(reason.clone()),
        (None, Status::Finished) => Outcome::Finished,
        (None, Status::Failed) => Outcome::Failed(run.reason.clone().unwrap_or_else(|| "no reason known".to_owned())),
    }
}

/// Returns the full-batch generation rate that the server logged during the measured client.
fn decode_rate(view: &SealedFiles, label: &str, run: &Run) -> Option<f64> {
    if run.tier == Tier::Foreign || run.axis != Axis::Concurrency {
        return None;
    }
    let offset = |name: &str| -> Option<usize> {
        String::from_utf8(view.sealed(&format!("{label}/{name}"))?).ok()?.trim().parse().ok()
    };
    let log = view.sealed("server.log")?;
    let (from, to) = (offset("log-from")?, offset("log-to")?.min(log.len()));
    probe::decode_rate(log.get(from..to)?, run.level.0.parse().ok()?)
}
