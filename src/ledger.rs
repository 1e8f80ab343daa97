//! The ledger: one immutable file for each thing that happened to an edition's record.
//!
//! Invariant: events are only ever added, each names the digests of the events it came after, and a merge of two branches is the
//! union of their files. Order comes from parents; the time in a name is for people.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::digest::Digest;
use crate::run::{Files, bytes_of};

/// What happened.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Happened {
    /// The protocol was fixed, before the first start.
    Registered {
        /// Claims, margin, headline, repeats.
        protocol: Value,
        /// The frozen files, by path in the edition's folder: spec, design, plan, inputs.
        #[serde(default, skip_serializing_if = "Files::is_empty")]
        files: Files,
    },
    /// Sessions were planned.
    Planned {
        /// Names, in order.
        sessions: Vec<String>,
        /// Blocks that the edition has from now on.
        blocks: u32,
        /// Which invocation planned them, from 1.
        invocation: u32,
        /// Why: the first plan, more blocks, another attempt.
        reason: String,
    },
    /// An invocation began on a host.
    Started {
        /// Name of the host.
        host: String,
        /// Which invocation, from 1.
        invocation: u32,
    },
    /// A session was sealed as finished.
    Finished {
        /// Its name.
        session: String,
        /// Ids of its runs.
        runs: Vec<Digest>,
    },
    /// A session was sealed as failed.
    Failed {
        /// Its name.
        session: String,
        /// Why.
        reason: String,
        /// Ids of its runs.
        runs: Vec<Digest>,
    },
    /// An attempt at a block no longer counts.
    Superseded {
        /// The block.
        block: u32,
        /// The attempt that no longer counts.
        attempt: u32,
        /// Why.
        reason: String,
    },
    /// A person took a run out.
    Excluded {
        /// Its id.
        run: Digest,
        /// Why.
        reason: String,
    },
}

impl Happened {
    /// Returns the word in the file's name.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Registered { .. } => "registered",
            Self::Planned { .. } => "planned",
            Self::Started { .. } => "started",
            Self::Finished { .. } => "finished",
            Self::Failed { .. } => "failed",
            Self::Superseded { .. } => "superseded",
            Self::Excluded { .. } => "excluded",
        }
    }
}

/// One event of the ledger.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Event {
    /// Version of this form.
    pub format: u32,
    /// When, UTC.
    pub at: String,
    /// Digests of the events that nothing came after yet.
    pub parents: Vec<Digest>,
    /// What.
    pub happened: Happened,
}

/// The events of one edition, each with the digest of its file.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Ledger {
    events: BTreeMap<Digest, Event>,
}

/// Something that is wrong with a ledger.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LedgerProblem {
    /// File name, or the digest of a file that should be there.
    pub place: String,
    /// What is wrong.
    pub what: String,
}

impl Ledger {
    /// Reads the files of a ledger, by name; also returns what is wrong with them. A file whose name does not end in the first
    /// eight digits of its digest was altered.
    pub fn read(files: impl IntoIterator<Item = (String, Vec<u8>)>) -> (Self, Vec<LedgerProblem>) {
        let mut ledger = Self::default();
        let mut problems = Vec::new();
        for (name, bytes) in files {
            let digest = Digest::of(&bytes);
            let problem = |what: String| LedgerProblem { place: name.clone(), what };
            if !name.ends_with(&format!("-{}.json", digest.short(8))) {
                problems.push(problem("altered: its digest is not the one in its name".to_owned()));
                continue;
            }
            match serde_json::from_slice::<Event>(&bytes) {
                Ok(event) => {
                    ledger.events.insert(digest, event);
                }
                Err(error) => problems.push(problem(format!("not an event: {error}"))),
            }
        }
        for event in ledger.events.values() {
            for parent in event.parents.iter().filter(|parent| !ledger.events.contains_key(parent)) {
                problems.push(LedgerProblem {
                    place: format!("{}-*-{}.json", event.at, parent.short(8)),
                    what: format!("missing: a later event (`{}`) came after it", event.happened.word()),
                });
            }
        }
        problems.sort_by(|one, other| one.place.cmp(&other.place));
        problems.dedup();
        (ledger, problems)
    }

    /// Makes the file of a new event: its name and its bytes. Adds it to this ledger as well.
    pub fn append(&mut self, at: &str, happened: Happened) -> (String, Vec<u8>) {
        let event = Event { format: crate::run::FORMAT, at: at.to_owned(), parents: self.heads(), happened };
        let bytes = bytes_of(&event);
        let digest = Digest::of(&bytes);
        let compact: String = at.chars().filter(char::is_ascii_alphanumeric).collect();
        let name = format!("{compact}-{}-{}.json", event.happened.word(), digest.short(8));
        self.events.insert(digest, event);
        (name, bytes)
    }

    /// Returns the events that nothing came after.
    fn heads(&self) -> Vec<Digest> {
        let parents: BTreeSet<&Digest> = self.events.values().flat_map(|event| &event.parents).collect();
        self.events.keys().filter(|digest| !parents.contains(digest)).copied().collect()
    }

    /// Returns all events, each after its parents; events that do not depend on one another in order of time, then digest.
    pub fn in_order(&self) -> Vec<&Event> {
        let mut left: BTreeMap<&Digest, &Event> = self.events.iter().collect();
        let mut ordered: Vec<&Event> = Vec::with_capacity(left.len());
        while !left.is_empty() {
            let next = left
                .iter()
                .filter(|(_, event)| event.parents.iter().all(|parent| !left.contains_key(parent)))
                .min_by(|one, other| (&one.1.at, one.0).cmp(&(&other.1.at, other.0)))
                // A cycle cannot be made with digests; were there one, time would have to do.
                .or_else(|| left.iter().next())
                .map(|(digest, _)| **digest);
            let Some(digest) = next else { break };
            ordered.extend(left.remove(&digest));
        }
        ordered
    }

    /// Returns what the events add up to.
    pub fn standing(&self) -> Standing {
        let mut standing = Standing::default();
        for event in self.in_order() {
            standing.apply(&event.happened);
        }
        standing
    }
}

/// What a ledger adds up to.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Standing {
    /// Protocol that was registered first.
    pub protocol: Option<Value>,
    /// Frozen files that were registered with it.
    pub frozen: Files,
    /// Blocks planned.
    pub blocks: u32,
    /// Names of all sessions that were ever planned, in order.
    pub planned: Vec<String>,
    /// Sessions sealed as finished, with their runs.
    pub finished: BTreeMap<String, Vec<Digest>>,
    /// Sessions sealed as failed, with the reason and their runs.
    pub failed: BTreeMap<String, (String, Vec<Digest>)>,
    /// Attempts at blocks that no longer count, with the reason.
    pub superseded: BTreeMap<(u32, u32), String>,
    /// Runs that a person took out, with the reason.
    pub excluded: BTreeMap<Digest, String>,
    /// Invocations so far.
    pub invocations: u32,
}

impl Standing {
    fn apply(&mut self, happened: &Happened) {
        match happened {
            Happened::Registered { protocol, files } => {
                if self.protocol.is_none() {
                    self.protocol = Some(protocol.clone());
                    self.frozen.clone_from(files);
                }
            }
            Happened::Planned { sessions, blocks, invocation, .. } => {
                let new: Vec<String> = sessions.iter().filter(|name| !self.planned.contains(name)).cloned().collect();
                self.planned.extend(new);
                self.blocks = self.blocks.max(*blocks);
                self.invocations = self.invocations.max(*invocation);
            }
            Happened::Started { invocation, .. } => self.invocations = self.invocations.max(*invocation),
            Happened::Finished { session, runs } => {
                self.finished.insert(session.clone(), runs.clone());
            }
            Happened::Failed { session, reason, runs } => {
                self.failed.insert(session.clone(), (reason.clone(), runs.clone()));
            }
            Happened::Superseded { block, attempt, reason } => {
                self.superseded.insert((*block, *attempt), reason.clone());
            }
            Happened::Excluded { run, reason } => {
                self.excluded.insert(*run, reason.clone());
            }
        }
    }

    /// Returns whether a session is sealed, as finished or as failed.
    pub fn is_sealed(&self, session: &str) -> bool {
        self.finished.contains_key(session) || self.failed.contains_key(session)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finished(session: &str) -> Happened {
        Happened::Finished { session: session.into(), runs: vec![Digest::of(session)] }
    }

    #[test]
    fn nothing_adds_up_to_nothing() {
        let (ledger, problems) = Ledger::read([]);
        assert!(problems.is_empty() && ledger.in_order().is_empty());
        assert_eq!(ledger.standing(), Standing::default());
    }

    #[test]
    fn a_merge_of_two_branches_is_their_union() {
        let mut trunk = Ledger::default();
        let mut files = vec![
            trunk.append("2026-11-30T15:00:00Z", Happened::Registered { protocol: Value::Null, files: Files::new() }),
        ];
        let mut one = trunk.clone();
        let mut other = trunk.clone();
        files.push(one.append("2026-11-30T15:02:00Z", finished("b01-a")));
        files.push(other.append("2026-11-30T15:01:00Z", finished("b01-b")));
        let (mut merged, problems) = Ledger::read(files.clone());
        assert!(problems.is_empty());
        assert_eq!(merged.standing().finished.len(), 2);
        files.push(
            merged.append("2026-11-30T14:00:00Z", Happened::Superseded { block: 1, attempt: 1, reason: "x".into() }),
        );
        let (again, problems) = Ledger::read(files);
        assert!(problems.is_empty());
        // Its clock was wrong, and still it comes last.
        assert_eq!(again.in_order().last().expect("events").happened.word(), "superseded");
    }

    #[test]
    fn an_altered_and_a_missing_event_are_named() {
        let mut ledger = Ledger::default();
        let first = ledger.append("2026-11-30T15:00:00Z", finished("b01-a"));
        let second = ledger.append("2026-11-30T15:01:00Z", finished("b01-b"));
        let (_, problems) = Ledger::read([second.clone()]);
        assert!(problems.iter().any(|problem| problem.what.starts_with("missing")), "{problems:?}");
        let mut altered = first.clone();
        altered.1[20] ^= 1;
        let (_, problems) = Ledger::read([altered, second]);
        assert!(problems.iter().any(|problem| problem.place == first.0 && problem.what.starts_with("altered")));
    }
}
