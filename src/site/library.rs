//! Everything that pages are made from: each edition's question as it was registered, its records, and what they say.
//!
//! Invariant: loaded from a [`Sound`] record only, and judged by what was registered before the first start, whatever the spec says
//! by now.

use std::collections::HashMap;
use std::path::PathBuf;

use crate::comparison::{Comparison, Condition};
use crate::diagnostic::Diagnostics;
use crate::digest::Digest;
use crate::finding::{ConditionFinding, Findings};
use crate::ledger::Standing;
use crate::question::{Claim, Question};
use crate::record::Record;
use crate::run::Kind;
use crate::spec::{self, Spec};
use crate::store::{Edition, SealedRun, SealedSession, Store, StoreError};
use crate::{import, yaml};

use super::evidence::{Sound, in_parallel};

/// Why the record cannot be made into pages.
#[derive(Debug, thiserror::Error)]
pub enum LibraryError {
    /// A part of the record cannot be read.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The same of an import.
    #[error(transparent)]
    Import(#[from] import::ImportError),
    /// A frozen spec that this version cannot read.
    #[error("the spec that `{0}` was frozen with cannot be read by this labbook:\n{text}", text = .1.render(crate::diagnostic::Style::Plain))]
    Spec(String, Box<Diagnostics>),
    /// A file cannot be read.
    #[error("cannot read `{}`: {trouble}", .path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// What the system says.
        trouble: std::io::Error,
    },
}

/// What was measured here, beside what an import does not have.
#[derive(Debug)]
pub(super) struct Measured {
    /// The spec as it was frozen.
    pub spec: Spec,
    /// What the ledger adds up to.
    pub standing: Standing,
    /// Sessions in the order of the plan; looks come last.
    pub sessions: Vec<SealedSession>,
    /// Whether claims, margin, headline or repeats of the spec are others by now.
    pub protocol_changed: bool,
}

/// One edition of an experiment, or one import.
#[derive(Debug)]
pub(super) struct Study {
    /// The experiment.
    pub name: String,
    /// Eight hex digits of the edition, or of the import.
    pub edition: String,
    /// Where its files are.
    pub folder: PathBuf,
    /// Whether it is what the experiment's name alone means: the edition of the spec as it stands.
    pub current: bool,
    /// When something last happened to it, as its ledger says; text that sorts by time.
    pub latest: String,
    /// What was asked, as registered.
    pub question: Question,
    /// What was measured, the control of every comparison: all runs in blocks.
    pub records: Vec<Record>,
    /// What it says.
    pub findings: Findings,
    /// Records of primes and looks: shown, and part of no comparison.
    pub others: Vec<Record>,
    /// What an import does not have.
    pub measured: Option<Measured>,
    /// Place of each record by its run's id, those of `others` behind those of `records`.
    record_at: HashMap<Digest, usize>,
    /// Places of each sealed run: session, and run in it.
    sealed_at: HashMap<Digest, (usize, usize)>,
}

/// A spec of the lab.
#[derive(Debug)]
pub(super) struct Planned {
    /// The experiment.
    pub name: String,
    /// The spec.
    pub spec: Spec,
    /// Eight hex digits of its edition.
    pub edition: String,
}

/// The whole record of a lab.
#[derive(Debug)]
pub(super) struct Library {
    /// Every edition and import, by experiment; the current edition first.
    pub studies: Vec<Study>,
    /// Every spec, by name.
    pub specs: Vec<Planned>,
}

impl Library {
    /// Reads the record; `specs` are those of the lab.
    ///
    /// # Errors
    ///
    /// A part of the record that cannot be read.
    pub(super) fn load(sound: &Sound, specs: Vec<Spec>) -> Result<Self, LibraryError> {
        let mut specs: Vec<Planned> = specs
            .into_iter()
            .map(|spec| Planned { name: spec.question.experiment.clone(), edition: spec.edition().short(8), spec })
            .collect();
        specs.sort_by(|one, other| one.name.cmp(&other.name));
        let mut studies: Vec<Study> = Vec::new();
        for study in in_parallel(sound.editions(), |edition| measured(edition, &specs)) {
            studies.push(study?);
        }
        studies.extend(imports(sound, &specs)?);
        // What is meant by the name alone comes first.
        studies.sort_by(|one, other| {
            (&one.name, !one.current, &one.edition).cmp(&(&other.name, !other.current, &other.edition))
        });
        Ok(Self { studies, specs })
    }

    /// Returns the studies of an experiment, the current one first.
    pub(super) fn of<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Study> {
        self.studies.iter().filter(move |study| study.name == name)
    }

    /// Returns the names of everything that was measured or planned, sorted.
    pub(super) fn names(&self) -> Vec<&str> {
        let specs = self.specs.iter().map(|planned| planned.name.as_str());
        let mut names: Vec<&str> = self.studies.iter().map(|study| study.name.as_str()).chain(specs).collect();
        names.sort_unstable();
        names.dedup();
        names
    }

    /// Returns the specs without results of their edition.
    pub(super) fn unmeasured(&self) -> impl Iterator<Item = &Planned> {
        self.specs
            .iter()
            .filter(|planned| !self.studies.iter().any(|study| study.name == planned.name && study.current))
    }
}

impl Study {
    /// Returns what was found where a claim looks; `None` for a claim about a level that is not planned.
    pub(super) fn condition_of(&self, claim: &Claim) -> Option<&ConditionFinding> {
        let about = |condition: &Condition| {
            condition.metric == claim.metric && condition.treatment == claim.treatment && condition.level == claim.at
        };
        self.findings.conditions.iter().find(|found| about(&found.condition))
    }

    /// Compares again where a finding was made, for the values block by block.
    pub(super) fn compared(&self, condition: &Condition) -> Option<Comparison> {
        Comparison::check(&self.question, &self.records, condition).ok()
    }

    /// Returns the sealed run of an id, with its session.
    pub(super) fn sealed(&self, id: Digest) -> Option<(&SealedSession, &SealedRun)> {
        let (session, run) = self.sealed_at.get(&id)?;
        let sealed = self.measured.as_ref()?.sessions.get(*session)?;
        Some((sealed, sealed.runs.get(*run)?))
    }

    /// Returns the record of a run.
    pub(super) fn record(&self, id: Digest) -> Option<&Record> {
        let at = *self.record_at.get(&id)?;
        self.records.get(at).or_else(|| self.others.get(at - self.records.len()))
    }

    /// Returns every record: those of blocks, then those of primes and looks.
    pub(super) fn all_records(&self) -> impl Iterator<Item = &Record> {
        self.records.iter().chain(&self.others)
    }

    /// Returns what to say about it in a heading: its title, or its name where an import has none.
    pub(super) fn title(&self) -> &str {
        self.measured.as_ref().map_or(&self.name, |measured| &measured.spec.title)
    }

    /// Returns the name of the trial that a record is of: its folder, or the beginning of its id for an import.
    pub(super) fn trial(&self, record: &Record) -> String {
        self.trial_of(record.id)
    }

    /// Returns the name of the trial that a run id belongs to.
    pub(super) fn trial_of(&self, id: Digest) -> String {
        self.sealed(id).map_or_else(|| id.short(12), |(_, run)| run.run.trial.clone())
    }
}

fn measured(edition: &Edition, specs: &[Planned]) -> Result<Study, LibraryError> {
    let path = edition.folder.join("spec.yaml");
    let text = std::fs::read_to_string(&path).map_err(|trouble| LibraryError::File { path: path.clone(), trouble })?;
    // The file's stem is the experiment's name.
    let source = yaml::source(format!("{}.yaml", edition.experiment), &text);
    let (spec, _) = spec::parse(&source, &edition.inputs())
        .map_err(|diagnostics| LibraryError::Spec(edition.salt(), Box::new(diagnostics)))?;
    let ledger = edition.sound_ledger()?;
    let standing = ledger.standing();
    let now = specs.iter().find(|planned| planned.name == edition.experiment);
    let latest = ledger.in_order().last().map_or(String::new(), |event| event.at.clone());
    let mut sessions = edition.all_sealed()?;
    let planned = |name: &String| standing.planned.iter().position(|other| other == name).unwrap_or(usize::MAX);
    sessions.sort_by_key(|sealed| (planned(&sealed.session.session), sealed.session.session.clone()));
    let records = edition.records(&spec.question, &standing)?;
    let beside = sessions.iter().filter(|sealed| sealed.session.kind != Kind::Block);
    let others: Vec<Record> = beside.flat_map(|sealed| edition.records_of(sealed, &spec.question, &standing)).collect();
    let findings = Findings::of(&spec.question, &records);
    let places = |(at, sealed): (usize, &SealedSession)| {
        let runs: Vec<(Digest, (usize, usize))> =
            sealed.runs.iter().enumerate().map(|(run, sealed)| (sealed.id, (at, run))).collect();
        runs
    };
    Ok(Study {
        sealed_at: sessions.iter().enumerate().flat_map(places).collect(),
        record_at: places_of(&records, &others),
        name: edition.experiment.clone(),
        edition: edition.edition.clone(),
        folder: edition.folder.clone(),
        current: now.is_some_and(|planned| planned.edition == edition.edition),
        latest,
        question: spec.question.clone(),
        records,
        others,
        findings,
        measured: Some(Measured {
            protocol_changed: now
                .is_some_and(|now| now.edition == edition.edition && now.spec.protocol() != spec.protocol()),
            spec,
            standing,
            sessions,
        }),
    })
}

fn places_of(records: &[Record], others: &[Record]) -> HashMap<Digest, usize> {
    records.iter().chain(others).enumerate().map(|(at, record)| (record.id, at)).collect()
}

fn imports(sound: &Sound, specs: &[Planned]) -> Result<Vec<Study>, LibraryError> {
    let results = Store::new(sound.root()).results();
    let mut studies = Vec::new();
    for (name, edition) in import::editions(&results)? {
        let (question, records) = import::load(&results, &format!("{name}@{edition}"))?;
        let alone = !specs.iter().any(|planned| planned.name == name)
            && !sound.editions().iter().any(|measured| measured.experiment == name);
        studies.push(Study {
            findings: Findings::of(&question, &records),
            folder: results.join(&name).join(&edition),
            current: alone,
            latest: String::new(),
            measured: None,
            sealed_at: HashMap::new(),
            record_at: places_of(&records, &[]),
            others: Vec::new(),
            name,
            edition,
            question,
            records,
        });
    }
    // One of several imports is not what the name alone means.
    let several: Vec<String> = studies
        .iter()
        .filter(|study| studies.iter().filter(|other| other.name == study.name).count() > 1)
        .map(|study| study.name.clone())
        .collect();
    for study in studies.iter_mut().filter(|study| several.contains(&study.name)) {
        study.current = false;
    }
    Ok(studies)
}
