//! The programs that run on a host, what they are given and what they leave.
pub mod input;
pub mod output;

/// Runs the queue.
pub const RUNNER: &str = include_str!("script/runner.sh");
/// Runs one session.
pub const SESSION: &str = include_str!("script/session.sh");
