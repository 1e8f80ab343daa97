//! Facts that differ from launch to launch without meaning anything, each with the reason why it is safe to ignore.
//!
//! Invariant: nothing outside this list is ignored, and nothing in it can change how fast a server is, except the random
//! seed that nobody set, which is why that one comes with a warning.

use crate::fact::Fingerprint;
use crate::fact::table::matches;

/// Patterns of noise and why each is noise.
const NOISE: &[(&str, &str)] = &[
    ("server.args.port", "two servers on one host need two ports"),
    ("server.args.host", "the address it listens on"),
    ("server.args.nccl-port", "a port"),
    ("server.args.dist-init-addr", "an address of the rendezvous"),
    ("server.env.LABBOOK_NONCE", "made afresh for each session to know our own processes"),
    ("server.resolved.launch_command", "argv as text: it holds the port and the factor"),
    ("server.resolved.status", "whether it was ready when asked"),
    ("server.resolved.internal_states", "queue lengths and rates at the moment of asking"),
    (
        "server.resolved.max_total_num_tokens",
        "a capacity: compared as `server.capacity.kv_tokens`, within its tolerance",
    ),
    ("server.resolved.startup_time", "a start-up time"),
    ("server.resolved.last_gen_throughput", "a rate at the moment of asking"),
    (
        "server.resolved.memory_usage",
        "free memory at the moment of asking, rounded; what follows from it is a capacity",
    ),
    ("server.resolved.avg_spec_accept_length", "a mean over the server's life so far"),
    ("server.resolved.pid", "a process id"),
    ("server.resolved.nonce", "made afresh for each session"),
    ("client.args.port", "the port of the server"),
    ("client.args.host", "the address of the server"),
    ("client.args.base-url", "address and port of the server"),
    ("client.args.tag", "the name of the run"),
    ("client.args.output-file", "the name of the result file"),
    ("client.args.server-info-file", "the name of a file"),
];

/// Words that mark a resolved setting as noise wherever they stand in its name.
const NOISY_WORDS: &[(&str, &str)] =
    &[("port", "a port"), ("pid", "a process id"), ("start_time", "a start-up time"), ("queue", "a queue length")];

/// Returns why a fact is noise; `None` for everything that must be compared.
pub fn is_noise(key: &str) -> Option<&'static str> {
    if let Some((_, reason)) = NOISE.iter().find(|(pattern, _)| matches(pattern, key)) {
        return Some(reason);
    }
    let name = key.strip_prefix("server.resolved.")?;
    let words: Vec<&str> = name.split(['_', '.', '-']).collect();
    NOISY_WORDS
        .iter()
        .find(|(noisy, _)| words.contains(noisy) || (noisy.contains('_') && name.contains(noisy)))
        .map(|(_, reason)| *reason)
}

/// The seed that a server draws when none is asked for.
pub const DRAWN_SEED: &str = "server.resolved.random_seed";

/// Returns whether a server drew its own seed: it was not asked for one, so that two launches differ in it.
pub fn drew_its_seed(facts: &Fingerprint) -> bool {
    !matches!(
        facts.get("server.args.random-seed"),
        Some(crate::fact::FactValue::Text(_) | crate::fact::FactValue::Set | crate::fact::FactValue::List(_))
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_listed_is_noise() {
        assert_eq!(is_noise(""), None);
        assert_eq!(is_noise("server.args.port"), Some("two servers on one host need two ports"));
        assert_eq!(is_noise("server.resolved.nccl_port"), Some("a port"));
        for key in ["server.args.tp-size", "server.resolved.supports_tools", "server.resolved.attention_backend"] {
            assert_eq!(is_noise(key), None, "{key}");
        }
        assert_eq!(is_noise(DRAWN_SEED), None, "only when it was not asked for");
    }

    #[test]
    fn a_seed_is_drawn_when_none_was_asked_for() {
        let mut facts = Fingerprint::default();
        assert!(drew_its_seed(&facts));
        facts.insert("server.args.random-seed", crate::fact::FactValue::Unset);
        assert!(drew_its_seed(&facts));
        facts.text("server.args.random-seed", "1");
        assert!(!drew_its_seed(&facts));
    }
}
