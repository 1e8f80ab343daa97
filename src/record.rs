//! The record of one trial as the check sees it: where it belongs, what was observed, what the client wrote.
//!
//! Sealed runs and imported ones both become a [`Record`]. Invariant: nothing here is derived from a spec.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::digest::Digest;
use crate::fact::{FactKey, FactValue, Fingerprint};
use crate::question::Level;
pub use crate::row::Written;

/// File that a client writes its row to, in its working directory.
pub const RESULT_FILE: &str = "bench.jsonl";

/// How much a record may be used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Tier {
    /// Measured with all facts, by labbook or by a harness that observed them.
    Measured,
    /// Measured elsewhere; never the control of a verdict.
    Foreign,
    /// One launch outside any block: recorded, never cited, never a control.
    Look,
}

/// What became of the trial.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The client ended and left a result (which may still be void).
    Finished,
    /// It did not; the reason.
    Failed(String),
    /// Another attempt takes its place.
    Superseded(String),
    /// Taken out by a person, with the reason.
    Excluded(String),
}

/// One trial's record.
#[derive(Debug, Clone, PartialEq)]
pub struct Record {
    /// The run id (SHA-256 of `run.json`), or of the manifest's entry.
    pub id: Digest,
    /// The experiment it belongs to.
    pub experiment: String,
    /// The edition it was measured under; `None` for imports.
    pub edition: Option<String>,
    /// Its arm.
    pub arm: String,
    /// Its block, from 1; `None` where an import does not say.
    pub block: Option<u32>,
    /// Which attempt at the block, from 1.
    pub attempt: u32,
    /// Name of the server launch.
    pub session: String,
    /// Place in the block's order, from 1.
    pub position: Option<u32>,
    /// The level of the axis.
    pub level: Level,
    /// Which pass in the session, from 1.
    pub pass: u32,
    /// How much it may be used for.
    pub tier: Tier,
    /// What became of it.
    pub outcome: Outcome,
    /// Facts of the session and of the run together.
    pub facts: Fingerprint,
    /// What the client left.
    pub written: Written,
    /// Digest of the result file, if there is one.
    pub result_sha256: Option<Digest>,
    /// Median full-batch generation rate from the server's log, tok/s.
    pub decode_rate: Option<f64>,
}

/// Records as unset every server argument and variable that some record has and another, whose argv was read, has not: a process's
/// argv and environment are read whole or not at all, so what is not in them is known to be absent.
pub fn complete_inputs(records: &mut [Record]) {
    const WHOLE: [&str; 2] = ["server.args.", "server.env."];
    let is_input = |key: &str| WHOLE.iter().any(|prefix| key.starts_with(prefix));
    let keys: BTreeSet<FactKey> = records
        .iter()
        .flat_map(|record| record.facts.iter())
        .filter(|(key, _)| is_input(key.as_str()))
        .map(|(key, _)| key.clone())
        .collect();
    for record in records.iter_mut().filter(|record| record.facts.get("server.argv").is_some()) {
        for key in keys.iter().filter(|key| !is_noise_input(key)) {
            if record.facts.get(key.as_str()).is_none() {
                record.facts.insert(key.clone(), FactValue::Unset);
            }
        }
    }
}

fn is_noise_input(key: &FactKey) -> bool {
    crate::noise::is_noise(key.as_str()).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(facts: &[(&str, &str)]) -> Record {
        Record {
            id: Digest::of("x"),
            experiment: "x".into(),
            edition: None,
            arm: "a".into(),
            block: Some(1),
            attempt: 1,
            session: "b01-a".into(),
            position: None,
            level: Level("1".into()),
            pass: 1,
            tier: Tier::Measured,
            outcome: Outcome::Finished,
            facts: facts.iter().map(|(key, value)| (FactKey::from(*key), FactValue::text(*value))).collect(),
            written: Written::Nothing,
            result_sha256: None,
            decode_rate: None,
        }
    }

    #[test]
    fn what_is_not_in_an_argv_that_was_read_is_unset_and_else_unknown() {
        complete_inputs(&mut []);
        let mut records = [
            record(&[("server.argv", "serve --x 1"), ("server.args.x", "1"), ("host.cpu", "z")]),
            record(&[("server.argv", "serve")]),
            record(&[]),
        ];
        complete_inputs(&mut records);
        assert_eq!(records[0].facts.get("server.args.x"), Some(&FactValue::text("1")));
        assert_eq!(records[1].facts.get("server.args.x"), Some(&FactValue::Unset));
        assert_eq!(records[1].facts.get("host.cpu"), None);
        assert!(records[2].facts.is_empty());
    }
}
