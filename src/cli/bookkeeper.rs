//! The bookkeeper of one invocation: what is missing, what came home, what is noted in the ledger.
//!
//! Invariant: it works under the edition's lock; a session is sealed once and noted once, and what an interrupted invocation
//! sealed without noting is noted first.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use super::execute::{Wish, failed};
use super::open::Opened;
use super::{Exit, Failure};
use crate::ledger::{Happened, Standing};
use crate::plan::{self, PlannedSession};
use crate::probe::Ask;
use crate::runner::missing::{self, Missing};
use crate::runner::{Keeper, Sealed};
use crate::script::output;
use crate::spec::Spec;
use crate::store::{SealedSession, Store, StoreError, other_evidence};
use crate::validity::{self, Severity};
use crate::{diagnostic, rules, script};

/// Keeps the record of one invocation.
pub(super) struct Bookkeeper<'o> {
    pub(super) opened: &'o Opened,
    pub(super) standing: Standing,
    pub(super) inbox: Option<tempfile::TempDir>,
    pub(super) finished: usize,
    pub(super) failed: usize,
}

impl<'o> Bookkeeper<'o> {
    /// Opens the record: freezes the design, registers the protocol, and notes what an interrupted invocation sealed and did
    /// not note. The caller holds the lock of the edition.
    pub(super) fn open(opened: &'o Opened) -> Result<Self, Failure> {
        let edition = &opened.edition;
        let plan = plan::plan(&opened.spec).to_json();
        let mut inputs = Vec::new();
        for path in opened.spec.files.keys() {
            let bytes = fs::read(opened.spec_folder.join(path)).map_err(failed)?;
            inputs.push((path.clone(), bytes));
        }
        edition.freeze(&opened.text, &inputs, &opened.spec.design(), &plan).map_err(failed)?;
        edition.tidy().map_err(failed)?;
        let mut keeper = Self { opened, standing: Standing::default(), inbox: None, finished: 0, failed: 0 };
        keeper.refresh()?;
        if keeper.standing.protocol.is_none() {
            let files = edition.frozen().map_err(failed)?;
            keeper.note(Happened::Registered { protocol: opened.spec.protocol(), files })?;
        }
        edition.reconcile(&now()).map_err(failed)?;
        keeper.refresh()?;
        Ok(keeper)
    }

    pub(super) fn refresh(&mut self) -> Result<(), Failure> {
        self.standing = self.opened.edition.sound_ledger().map_err(failed)?.standing();
        Ok(())
    }

    pub(super) fn note(&mut self, happened: Happened) -> Result<(), Failure> {
        self.opened.edition.note(&now(), happened).map_err(failed)?;
        self.refresh()
    }

    /// Plans what is missing on a host that was booted as `boot_id`, and notes it.
    pub(super) fn plan(&mut self, wish: &Wish, boot_id: &str) -> Result<Missing, Failure> {
        let spec = &self.opened.spec;
        let blocks = self.standing.blocks.max(spec.question.repeats) + wish.more;
        let mut spoiled = self.spoiled()?;
        if let Some((block, because)) = &wish.redo {
            let attempt = missing::latest_attempt(spec, *block, &self.standing);
            if *block == 0 || *block > blocks {
                return Err(Failure::new(Exit::Usage, format!("there is no block {block}: the plan has {blocks}")));
            }
            spoiled.insert((*block, attempt), because.clone());
        }
        let primed = self.primed_arms(boot_id)?;
        let missing =
            missing::missing(spec, blocks, &self.standing, &spoiled, &|arm| primed.iter().any(|primed| primed == arm));
        for (block, attempt, reason) in &missing.superseded {
            self.note(Happened::Superseded { block: *block, attempt: *attempt, reason: reason.clone() })?;
        }
        let sessions: Vec<String> = missing.sessions.iter().map(|session| session.name.clone()).collect();
        let invocation = self.standing.invocations + 1;
        if sessions.iter().any(|name| !self.standing.planned.contains(name)) || blocks > self.standing.blocks {
            let reason = match (invocation, wish.more, missing.superseded.is_empty()) {
                (1, ..) => "the first plan".to_owned(),
                (_, 1.., _) => format!("{} more blocks", wish.more),
                (_, _, false) => "another attempt at spoiled blocks".to_owned(),
                _ => "what was missing".to_owned(),
            };
            self.note(Happened::Planned { sessions, blocks, invocation, reason })?;
        }
        if !missing.sessions.is_empty() {
            let host = spec.hosts.first().cloned().unwrap_or_default();
            self.note(Happened::Started { host, invocation })?;
        }
        Ok(missing)
    }

    /// Returns the attempts in which a session failed or a whole run is void, with the reason.
    pub(super) fn spoiled(&self) -> Result<BTreeMap<(u32, u32), String>, Failure> {
        let mut spoiled = BTreeMap::new();
        for sealed in self.opened.edition.all_sealed().map_err(failed)? {
            let Some(block) = sealed.session.block else { continue };
            let reason =
                sealed.session.reason.clone().or_else(|| self.void(&sealed)).or(self.torn(&sealed).map_err(failed)?);
            if let Some(reason) = reason {
                spoiled.entry((block, sealed.session.attempt)).or_insert(format!("`{}`: {reason}", sealed.session.arm));
            }
        }
        Ok(spoiled)
    }

    /// Returns which rule takes a whole run of a session out.
    pub(super) fn void(&self, sealed: &SealedSession) -> Option<String> {
        let records = self.opened.edition.records_of(sealed, &self.opened.spec.question, &self.standing);
        records
            .iter()
            .flat_map(|record| validity::judge(record).into_iter().map(move |fired| (record, fired)))
            .find_map(|(record, fired)| {
                let whole = fired.severity == Severity::Void && fired.metric.is_none();
                whole.then(|| format!("{} {}: {}", fired.rule, record.level, fired.message))
            })
    }

    /// Returns why a session does not belong to the sessions before it in its block: a block is back to back, and what was resumed
    /// much later is another day's measurement.
    fn torn(&self, sealed: &SealedSession) -> Result<Option<String>, StoreError> {
        let session = &sealed.session;
        let before = |other: &SealedSession| {
            let other = &other.session;
            (other.block, other.attempt, other.position + 1) == (session.block, session.attempt, session.position)
        };
        let Some(other) = self.opened.edition.all_sealed()?.into_iter().find(before) else {
            return Ok(None);
        };
        let status = |sealed: &SealedSession| {
            let files = self.opened.edition.files_of(&sealed.session);
            output::status(&files.sealed("raw/status").or_else(|| files.sealed("status")).unwrap_or_default()).lines
        };
        let (other_lines, own_lines) = (status(&other), status(sealed));
        let Some((end, start)) = other_lines.last().zip(own_lines.first()) else { return Ok(None) };
        Ok(missing::torn(end.utc, start.utc)
            .map(|gap| format!("it began {gap} after `{}` had ended, and a block is back to back", other.session.arm)))
    }

    /// Returns the arms that finished a session since the host booted.
    pub(super) fn primed_arms(&self, boot_id: &str) -> Result<Vec<String>, Failure> {
        let mut arms = Vec::new();
        for sealed in self.opened.edition.all_sealed().map_err(failed)? {
            let session = &sealed.session;
            let observed = self.opened.edition.files_of(session).sealed("raw/host/boot-id").unwrap_or_default();
            if session.reason.is_none()
                && session.kind != crate::run::Kind::Look
                && String::from_utf8_lossy(&observed).trim() == boot_id
            {
                arms.push(session.arm.clone());
            }
        }
        Ok(arms)
    }

    /// Returns how many blocks have a sound attempt of every arm.
    pub(super) fn complete_blocks(&self) -> Result<u32, Failure> {
        let spec = &self.opened.spec;
        let spoiled = self.spoiled()?;
        let complete = |block: &u32| {
            let attempt = missing::latest_attempt(spec, *block, &self.standing);
            let sessions = plan::retry_block(spec, *block, attempt);
            !spoiled.contains_key(&(*block, attempt))
                && sessions.iter().all(|session| self.standing.finished.contains_key(&session.name))
        };
        Ok((1..=self.standing.blocks).filter(complete).count() as u32)
    }
}

impl Keeper for Bookkeeper<'_> {
    fn is_sealed(&self, session: &str) -> bool {
        self.standing.is_sealed(session)
    }

    fn seal(
        &mut self,
        session: &PlannedSession,
        fetched: &Path,
    ) -> Result<Sealed, Box<dyn std::error::Error + Send + Sync>> {
        let sealed = seal(self.opened, session, fetched)?;
        self.opened.edition.note(&now(), sealed.event())?;
        self.standing = self.opened.edition.sound_ledger()?.standing();
        self.inbox = None;
        let failed = sealed.session.reason.clone();
        if failed.is_some() {
            self.failed += 1;
        } else {
            self.finished += 1;
        }
        let log = failed.as_ref().and_then(|_| self.opened.edition.files_of(&sealed.session).sealed("server.log"));
        Ok(Sealed {
            void: match &failed {
                None => self.void(&sealed).or(self.torn(&sealed)?),
                Some(_) => None,
            },
            failed,
            runs: sealed.runs.iter().map(|run| run.id.to_string()).collect(),
            tail: log.map(|log| last_lines(&log)).unwrap_or_default(),
        })
    }

    fn requeued(
        &mut self,
        block: u32,
        attempt: u32,
        because: &str,
        sessions: &[PlannedSession],
    ) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        let edition = &self.opened.edition;
        let reason = because.to_owned();
        edition.note(&now(), Happened::Superseded { block, attempt: attempt - 1, reason })?;
        let planned = Happened::Planned {
            sessions: sessions.iter().map(|session| session.name.clone()).collect(),
            blocks: self.standing.blocks,
            invocation: self.standing.invocations,
            reason: format!("another attempt at block {block}: {because}"),
        };
        edition.note(&now(), planned)?;
        self.standing = edition.sound_ledger()?.standing();
        Ok(())
    }

    fn inbox(&mut self, session: &str) -> Result<PathBuf, Box<dyn std::error::Error + Send + Sync>> {
        let inbox = Store::new(&self.opened.root).inbox()?;
        let path = inbox.path().join(session);
        self.inbox = Some(inbox);
        Ok(path)
    }
}

fn seal(opened: &Opened, session: &PlannedSession, fetched: &Path) -> Result<SealedSession, StoreError> {
    let question = &opened.spec.question;
    let previous = previous_arm(&opened.spec, session);
    let ask = Ask {
        engine: opened.spec.server.engine,
        factor: question.factor.clone(),
        evidence: question.evidence.get(&session.arm).map(|evidence| evidence.log.clone()),
        other_evidence: other_evidence(question, &session.arm),
        salt: opened.edition.salt(),
        block: session.block,
        position: session.position,
        previous: previous.clone(),
        session_sha256: script::digest(),
        rules: rules::VERSION.to_string(),
    };
    opened.edition.seal(fetched, session, question.axis, &ask, previous.as_deref())
}

/// Returns the arm that ran before a session in its block.
fn previous_arm(spec: &Spec, session: &PlannedSession) -> Option<String> {
    let block = session.block?;
    let before = session.position.checked_sub(1)?;
    plan::retry_block(spec, block, session.attempt)
        .into_iter()
        .find(|other| other.position == before)
        .map(|other| other.arm)
}

/// Returns the last lines of a log, for a failure that is told at once.
fn last_lines(log: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(log);
    let lines: Vec<String> = text.lines().filter(|line| !line.trim().is_empty()).map(diagnostic::printable).collect();
    lines[lines.len().saturating_sub(5)..].iter().map(|line| line.chars().take(160).collect()).collect()
}

fn now() -> String {
    jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}
