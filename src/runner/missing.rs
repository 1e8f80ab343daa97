//! What is missing of an experiment, given what its record already holds.
//!
//! Invariant: pure; a block whose latest attempt is spoiled is wanted again as a whole, a sound one is never touched.

use std::collections::BTreeMap;

use jiff::Timestamp;

use crate::ledger::Standing;
use crate::plan::{self, PlannedSession};
use crate::spec::{Prime, Spec};

/// What one invocation has to do.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Missing {
    /// Sessions to run, in order: primes, then blocks.
    pub sessions: Vec<PlannedSession>,
    /// Attempts that no longer count from now on, with the reason.
    pub superseded: Vec<(u32, u32, String)>,
    /// The attempt of each block that this invocation begins with.
    pub begun: BTreeMap<u32, u32>,
}

/// Returns what is missing of `blocks` blocks.
///
/// * `spoiled`: attempts at blocks in which a session failed or a run is void, and why.
/// * `primed`: whether an arm needs no prime.
pub fn missing(
    spec: &Spec,
    blocks: u32,
    standing: &Standing,
    spoiled: &BTreeMap<(u32, u32), String>,
    primed: &dyn Fn(&str) -> bool,
) -> Missing {
    let mut missing = Missing::default();
    let mut of_blocks = Vec::new();
    for block in 1..=blocks {
        let mut attempt = latest_attempt(spec, block, standing);
        if let Some(because) = spoiled.get(&(block, attempt)) {
            missing.superseded.push((block, attempt, because.clone()));
            attempt += 1;
        }
        missing.begun.insert(block, attempt);
        let sessions = plan::retry_block(spec, block, attempt);
        of_blocks.extend(sessions.into_iter().filter(|session| !standing.is_sealed(&session.name)));
    }
    if !of_blocks.is_empty() {
        missing.sessions = primes(spec, standing, primed);
    }
    missing.sessions.extend(of_blocks);
    missing
}

/// Longest pause between two sessions of one block, in seconds: a reboot or a lost client may cost an hour; after more it is
/// another state of the machine.
const LONGEST_PAUSE_S: i64 = 2 * 3600;

/// Returns the pause between the end of one session of a block and the start of the next, where it is too long.
pub fn torn(end: Timestamp, start: Timestamp) -> Option<String> {
    let pause_s = start.duration_since(end).as_secs();
    (pause_s > LONGEST_PAUSE_S).then(|| format!("{:.1} h", pause_s as f64 / 3600.0))
}

/// Returns the primes that are wanted before any block.
fn primes(spec: &Spec, standing: &Standing, primed: &dyn Fn(&str) -> bool) -> Vec<PlannedSession> {
    let mut sessions = plan::primes(spec);
    sessions.retain(|session| spec.prime == Prime::Always || !primed(&session.arm));
    for session in &mut sessions {
        // A prime that failed, or that was for an earlier boot of the host, keeps its name; the next one gets a number.
        let base = session.name.clone();
        while standing.is_sealed(&session.name) {
            session.attempt += 1;
            session.name = format!("{base}.{}", session.attempt);
        }
    }
    sessions
}

/// Returns the highest attempt at a block that was planned, 1 when none was.
pub fn latest_attempt(spec: &Spec, block: u32, standing: &Standing) -> u32 {
    let planned = |attempt: u32| {
        let sessions = plan::retry_block(spec, block, attempt);
        !sessions.is_empty() && sessions.iter().all(|session| standing.planned.contains(&session.name))
    };
    let mut attempt = 1;
    while planned(attempt + 1) {
        attempt += 1;
    }
    while standing.superseded.contains_key(&(block, attempt)) {
        attempt += 1;
    }
    attempt
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_torn_by_a_pause_of_more_than_two_hours() {
        let at = |text: &str| text.parse::<Timestamp>().expect("a time");
        let end = at("2026-02-11T08:00:00Z");
        assert_eq!(torn(end, end), None);
        assert_eq!(torn(end, at("2026-02-11T10:00:00Z")), None);
        assert_eq!(torn(end, at("2026-02-11T07:00:00Z")), None, "a clock that went back says nothing");
        assert_eq!(torn(end, at("2026-02-11T13:30:00Z")).as_deref(), Some("5.5 h"));
    }
}
