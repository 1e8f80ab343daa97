//! The spec: what a person typed, and what it means.
//!
//! Invariant: a [`Spec`] exists only when nothing in the text is wrong; each arm sets the factor's keys and nothing else, so
//! a spec cannot confound itself. Commits, variables and arguments are the source text of their scalars, never numbers or
//! booleans. Two specs with the same [`Spec::design`] are the same edition, whatever their titles and claims say.

mod design;
mod factor;
pub mod flags;
mod hosts;
mod judged;
pub mod keys;
mod reading;
mod resolved;
#[cfg(test)]
mod tests;
mod workload;

use std::path::Path;
use std::sync::Arc;

use indexmap::IndexMap;
use serde_json::Value;

use crate::diagnostic::{Diagnostics, Source};
use crate::digest::Digest;
use crate::question::{Asked, Engine, Level, Question};

pub use hosts::{HostEntry, HostVia, Lab, Neighbours, parse_lab};
pub(crate) use reading::bad_name;

/// One experiment as it is meant, with every default filled in.
#[derive(Debug, Clone, PartialEq)]
pub struct Spec {
    /// One line for tables and pages.
    pub title: String,
    /// What the experiment asks, in words (`question:`).
    pub asks: String,
    /// What its author expects, and why.
    pub hypothesis: Option<String>,
    /// The factor, the arms, the levels and the claims; `question.experiment` is the file's stem.
    pub question: Question,
    /// Names of hosts; block `b` runs on host `(b − 1) mod n`. Never empty.
    pub hosts: Vec<String>,
    /// The code that serves; its parts that are the factor are absent here and present in [`Spec::arm`].
    pub source: Option<SourceAsk>,
    /// What the server runs in; its part that is the factor is absent here and present in [`Spec::arm`].
    pub environment: Option<EnvironmentAsk>,
    /// The server, without the factor's values.
    pub server: Server,
    /// The load, the same in every arm.
    pub workload: Workload,
    /// Whether arms are launched once before block 1.
    pub prime: Prime,
    /// How often a void or failed block may be queued again.
    pub retry: u32,
    /// Longest time of one client run, seconds.
    pub trial_timeout_s: u64,
    /// Unsafe settings that this spec may use, with the reason; every page carries them.
    pub allow: IndexMap<String, String>,
    /// Numbers from elsewhere to draw beside the data, by name.
    pub references: IndexMap<String, Reference>,
    /// What else is checked so that speed is not bought with quality, by name: a declaration, not run by labbook.
    pub guards: IndexMap<String, String>,
    /// Digest of each file beside the spec that is part of the design (patches, lock files, data sets), by written path.
    pub files: IndexMap<String, Digest>,
}

/// `source:`, without what the factor sets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceAsk {
    /// Path of the repository on the host.
    pub repo: String,
    /// 40 hex digits; `None` when the commit is the factor.
    pub commit: Option<String>,
    /// Applied in order to a clean worktree; `None` when the patches are the factor.
    pub patches: Option<Vec<PatchAsk>>,
}

/// One patch file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PatchAsk {
    /// Path as written, relative to the spec's folder.
    pub path: String,
    /// Digest of its bytes.
    pub sha256: Digest,
}

/// `environment:`, without what the factor sets. At most one of `image`, `venv` and `lock` is there; none when it is the factor.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EnvironmentAsk {
    /// `NAME@sha256:DIGEST`.
    pub image: Option<String>,
    /// What starts the image.
    pub via: Via,
    /// Path of a virtual environment on the host.
    pub venv: Option<String>,
    /// Path of a lock file, relative to the spec's folder.
    pub lock: Option<String>,
    /// Command that builds the environment from the lock file, one argument an element.
    pub build: Vec<String>,
}

/// What the server of one arm runs in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Environment {
    /// A container image, named by digest.
    Image {
        /// `NAME@sha256:DIGEST`.
        image: String,
        /// What starts it.
        via: Via,
    },
    /// A virtual environment on the host.
    Venv {
        /// Its path there.
        path: String,
    },
    /// An environment that is built from a lock file.
    Lock {
        /// Path relative to the spec's folder.
        path: String,
        /// Digest of its bytes.
        sha256: Digest,
        /// Command that builds it, one argument an element.
        build: Vec<String>,
    },
}

/// What starts a container image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Via {
    /// Docker.
    #[default]
    Docker,
    /// Apptainer.
    Apptainer,
    /// Slurm's pyxis plugin.
    Pyxis,
}

/// `server:`, without what the factor sets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Server {
    /// Which engine.
    pub engine: Engine,
    /// Model name or path; `None` when it is the factor, or where the engine has a default.
    pub model: Option<String>,
    /// Arguments by full name without dashes in front (`tp-size`), in written order.
    pub args: IndexMap<String, Asked>,
    /// Variables by name, in written order; [`Asked::Text`] or [`Asked::Unset`].
    pub env: IndexMap<String, Asked>,
    /// Longest time from start to ready, seconds.
    pub ready_s: u64,
}

/// `workload:`.
#[derive(Debug, Clone, PartialEq)]
pub struct Workload {
    /// Who measures.
    pub client: ClientAsk,
    /// Kind of prompts, as the client names it.
    pub dataset: String,
    /// File of the data set: relative to the spec's folder (then its digest is in [`Spec::files`]), or an absolute path on the host.
    pub dataset_path: Option<String>,
    /// Prompt length, tokens; `None` when it is the axis.
    pub input_tokens: Option<u64>,
    /// Tokens to generate per request.
    pub output_tokens: u64,
    /// Lengths are drawn from `[ratio × length, length]`; 1 means fixed lengths.
    pub range_ratio: f64,
    /// A run sends this many requests for each one in flight.
    pub prompts_per_user: u64,
    /// Most requests in flight; `None` when it is the axis.
    pub concurrency: Option<u64>,
    /// Requests per second; `None` when as fast as the concurrency allows (`inf`), or when it is the axis.
    pub request_rate: Option<f64>,
    /// Seed of prompts and arrivals; pass `p` of every arm uses `seed + p`.
    pub seed: u64,
    /// What the end-of-sequence token does.
    pub eos: Eos,
    /// What comes before each measured run.
    pub warmup: Warmup,
}

/// What the end-of-sequence token does (`ignore_eos:`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Eos {
    /// Nothing: each request generates all its tokens.
    Ignored,
    /// It ends the request.
    Ends,
}

/// What comes before each measured run, at the level's own concurrency.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Warmup {
    /// Full waves of requests.
    pub waves: u64,
    /// What happens to the prefix cache after them.
    pub cache: Cache,
}

/// What happens to the prefix cache between warm-up and measurement (`flush_cache:`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cache {
    /// It is emptied.
    Flushed,
    /// It stays as the warm-up left it.
    Kept,
}

/// `workload.client:`, without what the factor sets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientAsk {
    /// Which client.
    pub kind: ClientKind,
    /// Python interpreter on the host that has it; `None` for the built-in client, or when it is the factor.
    pub python: Option<String>,
    /// Its version; `None` for the built-in client, or when it is the factor.
    pub version: Option<String>,
    /// Further arguments by full name.
    pub args: IndexMap<String, Asked>,
}

/// Which load client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientKind {
    /// `python -m sglang.bench_serving`.
    SglangBenchServing,
    /// The client that is built in.
    PocketmoeLoad,
}

/// When arms are launched once before block 1, so that compile caches are as in later blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Prime {
    /// Unless the caches are those of the last finished session.
    Auto,
    /// Before each invocation.
    Always,
    /// Never.
    Never,
}

/// A number from elsewhere to draw beside the data; never a baseline.
#[derive(Debug, Clone, PartialEq)]
pub struct Reference {
    /// The number.
    pub value: f64,
    /// Its unit.
    pub unit: String,
    /// At which level; `None` at all of them.
    pub at: Option<Level>,
    /// Where it comes from.
    pub why: String,
}

/// Everything one arm runs with: the fixed settings and the factor's values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArmSettings {
    /// The code that serves.
    pub source: Option<ArmSource>,
    /// What the server runs in.
    pub environment: Option<Environment>,
    /// Model name or path.
    pub model: Option<String>,
    /// Arguments by full name: [`Asked::Unset`] means that it must not be passed.
    pub args: IndexMap<String, Asked>,
    /// Variables by name: [`Asked::Unset`] means that it must not be in the environment.
    pub env: IndexMap<String, Asked>,
    /// Who measures.
    pub client: ClientAsk,
}

/// The code that one arm serves with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArmSource {
    /// Path of the repository on the host.
    pub repo: String,
    /// 40 hex digits.
    pub commit: String,
    /// Applied in order to a clean worktree.
    pub patches: Vec<PatchAsk>,
}

/// Reads a spec. The file's stem is the experiment's name; `folder` is where patches and data files are looked for.
///
/// Returns the spec and its warnings.
///
/// # Errors
///
/// Every problem found, each with its place.
pub fn parse(source: &Arc<Source>, folder: &Path) -> Result<(Spec, Diagnostics), Diagnostics> {
    reading::read(source, folder)
}

impl Spec {
    /// Returns the design: what is executed, with fields at their default left out.
    pub fn design(&self) -> Value {
        design::design(self)
    }

    /// Returns the edition: the digest of the canonical JSON of the design. Eight hex digits of it name a folder.
    pub fn edition(&self) -> Digest {
        Digest::of(crate::digest::canonical_json(&self.design()))
    }

    /// Returns the protocol: what is registered before the first start and judged by.
    pub fn protocol(&self) -> Value {
        design::protocol(self)
    }

    /// Returns the spec with every default written out, as YAML that parses back to an equal spec.
    pub fn resolved_yaml(&self) -> String {
        resolved::yaml(self)
    }

    /// Returns everything that `arm` runs with; `None` when there is no such arm.
    pub fn arm(&self, arm: &str) -> Option<ArmSettings> {
        design::arm(self, arm)
    }
}
