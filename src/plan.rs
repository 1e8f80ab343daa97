//! The plan: which sessions run, in which order, with which trials.
//!
//! Invariant: a plan is a function of the edition and the number of blocks. The order inside a block depends on the edition
//! and the block's number alone, so retries and later blocks never move earlier ones.

use serde_json::Value;

use crate::digest::Digest;
use crate::question::Level;
use crate::spec::Spec;

/// Everything that is to run, in order.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// The experiment.
    pub experiment: String,
    /// The edition.
    pub edition: Digest,
    /// Server launches in the order in which they run.
    pub sessions: Vec<PlannedSession>,
}

/// What a session is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Fills compile caches before block 1: recorded, never averaged.
    Prime,
    /// Part of a block.
    Block,
    /// One launch outside any block: recorded, never cited.
    Look,
}

/// One server launch.
#[derive(Debug, Clone, PartialEq)]
pub struct PlannedSession {
    /// Folder name: `b03-cutedsl`, `b03-cutedsl.2`, `prime-cutedsl`, `look-cutedsl-c0010`.
    pub name: String,
    /// What it is for.
    pub kind: Kind,
    /// Its block, from 1; `None` outside blocks.
    pub block: Option<u32>,
    /// Which attempt at the block, from 1.
    pub attempt: u32,
    /// Its arm.
    pub arm: String,
    /// Place in the block's order, from 1.
    pub position: u32,
    /// Name of the host.
    pub host: String,
    /// Client runs in order.
    pub trials: Vec<PlannedTrial>,
}

/// One client run.
#[derive(Debug, Clone, PartialEq)]
pub struct PlannedTrial {
    /// Folder name: `c0010-p1`.
    pub label: String,
    /// The level of the axis.
    pub level: Level,
    /// Which pass, from 1.
    pub pass: u32,
    /// Most requests in flight.
    pub concurrency: u64,
    /// Requests per second; `None` when as fast as the concurrency allows.
    pub request_rate: Option<f64>,
    /// Prompt length, tokens.
    pub input_tokens: u64,
    /// Tokens to generate per request.
    pub output_tokens: u64,
    /// Requests in the run.
    pub num_prompts: u64,
    /// Seed of prompts and arrivals: the spec's plus the pass number, the same in every arm.
    pub seed: u64,
}

/// Plans the primes and all blocks of a spec.
pub fn plan(spec: &Spec) -> Plan {
    let _ = spec;
    todo!()
}

/// Plans `count` blocks from block `first` (from 1) on; `plan` is the primes and `blocks(spec, 1, repeats)`.
pub fn blocks(spec: &Spec, first: u32, count: u32) -> Vec<PlannedSession> {
    let _ = (spec, first, count);
    todo!()
}

/// Plans another attempt (from 2) at a whole block, in the order of the first one.
pub fn retry_block(spec: &Spec, block: u32, attempt: u32) -> Vec<PlannedSession> {
    let _ = (spec, block, attempt);
    todo!()
}

/// Plans one launch of one arm at one level, outside any block.
pub fn look(spec: &Spec, arm: &str, level: &Level) -> PlannedSession {
    let _ = (spec, arm, level);
    todo!()
}

impl Plan {
    /// Returns the plan as `plan.json` stores it.
    pub fn to_json(&self) -> Value {
        todo!()
    }
}
