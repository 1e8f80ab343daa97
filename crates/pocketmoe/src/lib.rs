//! A pocket mixture-of-experts engine behind the interface of SGLang, and a load client for it.
//!
//! It does real work, small: a decoder with random but fixed weights, real routing, a key and value cache, continuous
//! batching, a prefix cache and two mixture kernels, on one core. Its purpose is that programs which start, drive, judge
//! and kill inference servers have a real one to try on, with nothing but cargo, and with faults on demand.

mod experts;
mod fault;
mod forward;
mod linear;
pub mod load;
mod log;
mod metrics;
mod model;
mod prefix;
#[cfg(test)]
mod reference;
mod router;
mod sampling;
mod scheduler;
pub mod serve;
pub mod vocabulary;

pub use fault::{Fault, UnknownFault};
pub use model::{Dimensions, VOCABULARY};
pub use router::{InvalidVariable, Oea, Scoring};

/// The last commit that touched this crate when it was built, 40 hex digits, or `unknown` without git.
pub const COMMIT: &str = env!("POCKETMOE_COMMIT");

/// `clean`, or the SHA-256 of this crate's difference from HEAD when it was built, or `unknown` without git.
pub const DIRTY: &str = env!("POCKETMOE_DIRTY");

/// Version of this crate.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
