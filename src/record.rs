//! The record of one trial as the check sees it: where it belongs, what was observed, what the client wrote.
//!
//! Sealed runs and imported ones both become a [`Record`]. Invariant: nothing here is derived from a spec.

use serde::{Deserialize, Serialize};

use crate::digest::Digest;
use crate::fact::Fingerprint;
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
