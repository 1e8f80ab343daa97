//! The runner's other half, at home: it queues what is missing on a host, follows what happens there, brings finished sessions
//! home and decides by fixed rules what comes next. Nobody has to be at home while sessions run.
//!
//! Invariant: everything can be cut off at any point and begun again. The host's queue and journal say what happened there,
//! the record says what is home, and a session is run once and sealed once.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

pub mod decide;
mod event;
pub mod missing;
mod patient;
mod watch;

pub use event::Event;
pub use patient::Patient;

use crate::client::Place;
use crate::diagnostic::printable;
use crate::engine::{self, EngineError};
use crate::host::{Host, HostError, RUNNER_LOG};
use crate::plan::{self, Kind, PlannedSession};
use crate::runner::decide::{Decision, Ended, Outcome};
use crate::spec::Spec;

/// How often a runner that died without a word is started again before we give up on the host.
const RESTARTS: u32 = 5;

/// What sealing a session found.
#[derive(Debug, Clone, PartialEq)]
pub struct Sealed {
    /// Why it failed; `None` when it finished.
    pub failed: Option<String>,
    /// Which rule took a whole run out, if one did.
    pub void: Option<String>,
    /// Ids of its runs.
    pub runs: Vec<String>,
    /// Last lines of the server's log, for a session that failed.
    pub tail: Vec<String>,
}

/// How following a host ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ending {
    /// Everything that was wanted has ended.
    Complete,
    /// We left; the host goes on.
    Detached,
    /// The plan was stopped; why.
    Stopped(String),
}

/// What keeps a host from running.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The host.
    #[error(transparent)]
    Host(#[from] HostError),
    /// A session cannot be compiled.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// Another experiment measures there.
    #[error("another labbook measures on `{host}`: {lease}")]
    Busy {
        /// The host.
        host: String,
        /// What the lease says.
        lease: String,
    },
    /// Something is left over that could not be removed.
    #[error("`{host}` is dirty: {reason}")]
    Dirty {
        /// The host.
        host: String,
        /// What is left.
        reason: String,
    },
    /// The runner dies again and again.
    #[error("the runner on `{host}` ended {times} times without a word")]
    Dies {
        /// The host.
        host: String,
        /// How often.
        times: u32,
    },
    /// The record cannot be written.
    #[error("cannot keep the record")]
    Record(#[source] Box<dyn std::error::Error + Send + Sync>),
}

type Kept<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// Where finished sessions and decisions are kept.
pub trait Keeper {
    /// Returns whether a session is home already.
    fn is_sealed(&self, session: &str) -> bool;
    /// Seals a session; `fetched` is a copy of its folder in the host's queue.
    fn seal(&mut self, session: &PlannedSession, fetched: &Path) -> Kept<Sealed>;
    /// Notes that a block is tried again as a whole.
    fn requeued(&mut self, block: u32, attempt: u32, because: &str, sessions: &[PlannedSession]) -> Kept<()>;
    /// Returns a folder of one's own to fetch into; it does not exist yet.
    fn inbox(&mut self, session: &str) -> Kept<PathBuf>;
}

/// One invocation on one host.
pub struct Drive<'a> {
    /// The spec.
    pub spec: &'a Spec,
    /// Where it runs.
    pub host: &'a dyn Host,
    /// The host's folder of this edition.
    pub folder: PathBuf,
    /// How its commands are built.
    pub place: Place<'a>,
    /// Where results go.
    pub keeper: &'a mut dyn Keeper,
    /// Who is told.
    pub report: &'a RefCell<dyn FnMut(&Event) + 'a>,
    /// Set when we should leave.
    pub interrupted: &'a AtomicBool,
}

impl Drive<'_> {
    fn tell(&self, event: &Event) {
        (self.report.borrow_mut())(event);
    }

    /// Queues the wanted sessions that the host does not have yet, in their order.
    ///
    /// # Errors
    ///
    /// The host, or a session that cannot be compiled.
    pub fn queue(&mut self, wanted: &[PlannedSession]) -> Result<(), RunError> {
        self.host.install(&self.folder)?;
        let present = watch::queue_entries(self.host, &self.folder)?;
        let first = present.values().map(|entry| entry.sequence).max().unwrap_or(0) + 1;
        let absent = wanted.iter().filter(|session| !present.contains_key(&session.name));
        for (sequence, session) in (first..).zip(absent) {
            let input = engine::session(self.spec, session, &self.place)?;
            self.host.queue(&self.folder, sequence, &input)?;
        }
        Ok(())
    }

    /// Starts the host's runner.
    ///
    /// # Errors
    ///
    /// The host.
    pub fn start(&mut self) -> Result<(), RunError> {
        self.host.withdraw_stop(&self.folder)?;
        Ok(self.host.start(&self.folder)?)
    }

    /// Follows the host until all of `wanted` have ended, the plan is stopped, or we are asked to leave. `begun` says with which
    /// attempt this invocation found each block.
    ///
    /// # Errors
    ///
    /// What keeps the host from running, or the record from being written.
    pub fn follow(&mut self, wanted: &[PlannedSession], begun: &BTreeMap<u32, u32>) -> Result<Ending, RunError> {
        match self.follow_to_the_end(wanted, begun) {
            // Somebody left while the host was out of reach: the runner there goes on all the same.
            Err(RunError::Host(error)) if error.may_pass() && self.interrupted.load(Ordering::Relaxed) => {
                Ok(Ending::Detached)
            }
            followed => followed,
        }
    }

    fn follow_to_the_end(&mut self, wanted: &[PlannedSession], begun: &BTreeMap<u32, u32>) -> Result<Ending, RunError> {
        let mut known: BTreeMap<String, PlannedSession> =
            wanted.iter().map(|session| (session.name.clone(), session.clone())).collect();
        let mut watch = watch::Watch::new(self.host, &self.folder)?;
        let mut ended: Vec<Outcome> = Vec::new();
        let mut home: BTreeSet<String> = BTreeSet::new();
        let mut silent = Silence::default();
        loop {
            let news = watch.look(self.host, &known, &mut |event| (self.report.borrow_mut())(event))?;
            for name in &news.ended {
                let Some(session) = known.get(name).cloned() else { continue };
                if home.insert(name.clone()) {
                    ended.extend(self.bring_home(&session, &watch)?);
                }
            }
            for decision in self.decisions(&ended, &known, &home, begun) {
                match decision {
                    Decision::Stop { because } => {
                        self.host.request_stop(&self.folder)?;
                        self.tell(&Event::Stopped { because: because.clone() });
                        return Ok(Ending::Stopped(because));
                    }
                    Decision::Requeue { block, attempt, because } => {
                        let again = self.requeue(block, attempt, &because)?;
                        known.extend(again.into_iter().map(|session| (session.name.clone(), session)));
                    }
                }
            }
            if known.keys().all(|name| home.contains(name)) {
                return Ok(Ending::Complete);
            }
            if self.interrupted.load(Ordering::Relaxed) {
                return Ok(Ending::Detached);
            }
            self.see_to_the_runner(&news, &mut silent)?;
            std::thread::sleep(self.host.pace());
        }
    }

    fn decisions(
        &self,
        ended: &[Outcome],
        known: &BTreeMap<String, PlannedSession>,
        home: &BTreeSet<String>,
        begun: &BTreeMap<u32, u32>,
    ) -> Vec<Decision> {
        let open = |block: u32, attempt: u32| {
            known.values().any(|session| {
                session.block == Some(block) && session.attempt == attempt && !home.contains(&session.name)
            })
        };
        let mut decisions = decide::decide(ended, &open, self.spec.retry, begun);
        decisions.retain(|decision| match decision {
            Decision::Requeue { block, attempt, .. } => {
                !known.values().any(|session| session.block == Some(*block) && session.attempt == *attempt)
            }
            Decision::Stop { .. } => true,
        });
        decisions
    }

    /// Fetches and seals one session that has ended on the host; nothing where it was home before this invocation.
    fn bring_home(&mut self, session: &PlannedSession, watch: &watch::Watch) -> Result<Option<Outcome>, RunError> {
        if self.keeper.is_sealed(&session.name) {
            return Ok(None);
        }
        let Some(entry) = watch.entry(&session.name) else { return Ok(None) };
        let fetched = self.keeper.inbox(&session.name).map_err(RunError::Record)?;
        self.host.fetch(&self.folder.join("queue").join(entry), &fetched)?;
        let sealed = self.keeper.seal(session, &fetched).map_err(RunError::Record)?;
        self.tell(&Event::Sealed {
            session: session.name.clone(),
            status: if sealed.failed.is_some() { "failed" } else { "finished" }.to_owned(),
            reason: sealed.failed.clone(),
            runs: sealed.runs.clone(),
            tail: sealed.tail.clone(),
        });
        if session.kind == Kind::Look {
            // It belongs to no plan, so that nothing follows from it.
            return Ok(None);
        }
        let ended = match (sealed.failed, sealed.void) {
            (Some(why), _) => Ended::Failed(why),
            (None, Some(rule)) => Ended::Void(rule),
            (None, None) => Ended::Sound,
        };
        Ok(Some(Outcome { block: session.block, attempt: session.attempt, arm: session.arm.clone(), ended }))
    }

    fn requeue(&mut self, block: u32, attempt: u32, because: &str) -> Result<Vec<PlannedSession>, RunError> {
        let again = plan::retry_block(self.spec, block, attempt);
        self.keeper.requeued(block, attempt, because, &again).map_err(RunError::Record)?;
        self.tell(&Event::Requeued { block, attempt, because: because.to_owned() });
        self.queue(&again)?;
        self.host.start(&self.folder)?;
        Ok(again)
    }

    /// Tells a host that is busy, dirty or stopped from one whose runner merely died, and starts the latter again.
    fn see_to_the_runner(&mut self, news: &watch::News, silent: &mut Silence) -> Result<(), RunError> {
        let host = self.host.name().to_owned();
        match &news.end {
            Some(watch::RunnerEnd::LeaseRefused) => {
                let log = self.host.read(&self.folder.join(RUNNER_LOG), 0)?;
                let log = String::from_utf8_lossy(&log);
                let lease = printable(log.trim_end().lines().next_back().unwrap_or("its lease is held"));
                return Err(RunError::Busy { host, lease });
            }
            Some(watch::RunnerEnd::Dirty) => {
                let reason = String::from_utf8_lossy(&self.host.read(&self.folder.join("dirty"), 0)?).trim().to_owned();
                return Err(RunError::Dirty { host, reason });
            }
            Some(watch::RunnerEnd::Stopped) if self.host.list(&self.folder)?.iter().any(|name| name == "stop") => {
                return Err(RunError::Host(HostError::Start {
                    folder: self.folder.clone(),
                    reason: "it was stopped on request".to_owned(),
                }));
            }
            _ => {}
        }
        if news.lines > 0 || self.host.alive(&self.folder)? {
            silent.since = None;
            return Ok(());
        }
        // A runner takes a moment to claim its folder, so its absence counts only when it lasts.
        let since = *silent.since.get_or_insert_with(Instant::now);
        if since.elapsed() < Duration::from_secs(2) {
            return Ok(());
        }
        silent.since = None;
        silent.restarts += 1;
        if silent.restarts > RESTARTS {
            return Err(RunError::Dies { host, times: silent.restarts });
        }
        Ok(self.host.start(&self.folder)?)
    }
}

/// How long nothing was heard of a runner, and how often it was started again.
#[derive(Default)]
struct Silence {
    since: Option<Instant>,
    restarts: u32,
}
