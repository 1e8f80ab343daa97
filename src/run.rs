//! The sealed form of a session and of a run: `session.json` and `run.json`.
//!
//! Invariant: the run id is the SHA-256 of the bytes of `run.json`, so that `sha256sum` alone can verify it. `run.json` lists the
//! digest of `session.json`, which lists the files of the whole session: one id answers for every byte.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::digest::Digest;
use crate::question::{Axis, Level};
use crate::record::Tier;
use crate::redact::Redaction;

/// Format of `session.json` and `run.json` that this program writes.
pub const FORMAT: u32 = 1;

/// Digest and size of one file, of its uncompressed bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileDigest {
    /// SHA-256.
    pub sha256: Digest,
    /// Bytes.
    pub size: u64,
}

/// Files by path relative to the session's folder, as sealed (`server.log` for `server.log.zst`).
pub type Files = BTreeMap<String, FileDigest>;

/// What a session was for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Fills compile caches before block 1: recorded, never averaged.
    Prime,
    /// Part of a block.
    Block,
    /// One launch outside any block: recorded, never cited, never a control.
    Look,
}

/// How a session or a trial ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// To its end.
    Finished,
    /// Not.
    Failed,
}

/// One server launch, `session.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Session {
    /// Version of this form.
    pub format: u32,
    /// The experiment.
    pub experiment: String,
    /// Eight hex digits of the edition.
    pub edition: String,
    /// Folder name.
    pub session: String,
    /// What it was for.
    pub kind: Kind,
    /// The arm.
    pub arm: String,
    /// The block, from 1.
    pub block: Option<u32>,
    /// Which attempt at the block, from 1.
    pub attempt: u32,
    /// Place in the block's order, from 1.
    pub position: u32,
    /// Arm of the session before it in the block.
    pub previous: Option<String>,
    /// Name of the host in labbook.yaml.
    pub host: String,
    /// How it ended.
    pub status: Status,
    /// Why it failed: the step, the code, and what the host said.
    pub reason: Option<String>,
    /// The planned trials: folder name in the host's queue and label.
    pub trials: Vec<(String, String)>,
    /// Version of the program that sealed it.
    pub labbook: String,
    /// Version of the rule set that was in force when it was sealed.
    pub rules: String,
    /// SHA-256 of the programs that ran it on the host.
    pub programs_sha256: String,
    /// SHA-256 of the host's own list of the session's output, as it came home; absent when the host had no room for one.
    pub manifest_sha256: Option<Digest>,
    /// What was removed from its files.
    pub redactions: Vec<Redaction>,
    /// Every file of the session outside its trials; `server.log` unpacked, and `server.log.zst` as it is.
    pub files: Files,
}

/// One trial, `run.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Run {
    /// Version of this form.
    pub format: u32,
    /// The experiment.
    pub experiment: String,
    /// Eight hex digits of the edition.
    pub edition: String,
    /// Folder name of its session.
    pub session: String,
    /// Folder name of the trial, such as `c0010-p1`.
    pub trial: String,
    /// The arm.
    pub arm: String,
    /// The block, from 1.
    pub block: Option<u32>,
    /// Which attempt at the block, from 1.
    pub attempt: u32,
    /// Place of the session in the block's order, from 1.
    pub position: u32,
    /// The load key that is varied.
    pub axis: Axis,
    /// Its value.
    pub level: Level,
    /// Which pass in the session, from 1.
    pub pass: u32,
    /// What it may be used for.
    pub tier: Tier,
    /// How it ended.
    pub status: Status,
    /// Why it failed.
    pub reason: Option<String>,
    /// `session.json`, `facts.json`, `server.log` and the trial's own files.
    pub files: Files,
}

/// Why a sealed file cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum FormatError {
    /// Written by another version of this program.
    #[error("format {found}, and this labbook reads format {FORMAT}")]
    Version {
        /// The version found.
        found: u64,
    },
    /// Not the form it should have.
    #[error("not a sealed record: {0}")]
    Form(#[from] serde_json::Error),
}

impl Session {
    /// Reads `session.json`.
    ///
    /// # Errors
    ///
    /// Another version, or another form.
    pub fn parse(bytes: &[u8]) -> Result<Self, FormatError> {
        of_this_format(bytes)?;
        Ok(serde_json::from_slice(bytes)?)
    }
}

impl Run {
    /// Reads `run.json`.
    ///
    /// # Errors
    ///
    /// Another version, or another form.
    pub fn parse(bytes: &[u8]) -> Result<Self, FormatError> {
        of_this_format(bytes)?;
        Ok(serde_json::from_slice(bytes)?)
    }
}

fn of_this_format(bytes: &[u8]) -> Result<(), FormatError> {
    let value: serde_json::Value = serde_json::from_slice(bytes)?;
    match value.get("format").and_then(serde_json::Value::as_u64) {
        Some(found) if found != u64::from(FORMAT) => Err(FormatError::Version { found }),
        _ => Ok(()),
    }
}

/// Returns the bytes of a sealed form: indented, so that a diff shows what changed, and a newline at the end.
pub fn bytes_of(form: &impl Serialize) -> Vec<u8> {
    let mut bytes = serde_json::to_vec_pretty(form).expect("plain data");
    bytes.push(b'\n');
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run() -> Run {
        Run {
            format: FORMAT,
            experiment: "x".into(),
            edition: "00000000".into(),
            session: "b01-a".into(),
            trial: "c0001-p1".into(),
            arm: "a".into(),
            block: Some(1),
            attempt: 1,
            position: 1,
            axis: Axis::Concurrency,
            level: Level("1".into()),
            pass: 1,
            tier: Tier::Measured,
            status: Status::Finished,
            reason: None,
            files: Files::new(),
        }
    }

    #[test]
    fn a_run_reads_back_and_another_format_is_named() {
        let bytes = bytes_of(&run());
        assert_eq!(Run::parse(&bytes).expect("its own form"), run());
        let later = String::from_utf8(bytes).expect("text").replace("\"format\": 1", "\"format\": 7, \"new\": 1");
        assert_eq!(
            Run::parse(later.as_bytes()).expect_err("later").to_string(),
            "format 7, and this labbook reads format 1"
        );
        assert!(Run::parse(b"").is_err() && Run::parse(b"{}").is_err() && Run::parse(b"[1]").is_err());
    }
}
