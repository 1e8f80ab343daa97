//! The programs that run on a host, what they are given and what they leave.
pub mod input;
pub mod output;

use sha2::{Digest as _, Sha256};

/// Runs the queue.
pub const RUNNER: &str = include_str!("script/runner.sh");
/// Runs one session.
pub const SESSION: &str = include_str!("script/session.sh");

/// The fact `labbook.session_sha256`: SHA-256 of `runner.sh` followed by `session.sh`, 64 hex digits.
pub fn digest() -> String {
    sha256(&[RUNNER.as_bytes(), SESSION.as_bytes()])
}

/// SHA-256 of the parts one after another, 64 lower-case hex digits.
pub fn sha256(parts: &[&[u8]]) -> String {
    let mut state = Sha256::new();
    parts.iter().for_each(|part| state.update(part));
    state.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}
