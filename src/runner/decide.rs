//! What happens after a session has ended: go on, queue the whole block again, or stop the plan.
//!
//! Invariant: the rules are fixed before the first start and know nothing of how fast an arm was: only failures and voids
//! count, and only whole blocks are repeated, never a single trial.

use std::collections::BTreeMap;

/// How a session ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ended {
    /// Every planned trial has a result that may be used.
    Sound,
    /// It failed; the reason, in which only the place and the kind of failure count.
    Failed(String),
    /// It ended, and a rule took at least one whole run out; which rule.
    Void(String),
}

/// One session that has ended, in the order in which they ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// The block; `None` for a prime.
    pub block: Option<u32>,
    /// Which attempt at the block.
    pub attempt: u32,
    /// The arm.
    pub arm: String,
    /// How it ended.
    pub ended: Ended,
}

/// What to do next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// Queue the whole block again at the end.
    Requeue {
        /// The block.
        block: u32,
        /// The number of the new attempt.
        attempt: u32,
        /// What was wrong with the last one.
        because: String,
    },
    /// Start nothing more.
    Stop {
        /// Why.
        because: String,
    },
}

/// Decides about everything that ended during one invocation, all of whose sessions are in `ended`; `open` says whether sessions
/// of a block are still queued or running, `retry` how often a block may be repeated in one invocation, and `begun` with which
/// attempt the invocation found each block.
pub fn decide(
    ended: &[Outcome],
    open: &dyn Fn(u32, u32) -> bool,
    retry: u32,
    begun: &BTreeMap<u32, u32>,
) -> Vec<Decision> {
    if let Some(because) = hopeless(ended) {
        return vec![Decision::Stop { because }];
    }
    let mut latest: BTreeMap<u32, u32> = BTreeMap::new();
    for outcome in ended {
        if let Some(block) = outcome.block {
            let attempt = latest.entry(block).or_insert(0);
            *attempt = (*attempt).max(outcome.attempt);
        }
    }
    let mut decisions = Vec::new();
    for (block, attempt) in latest {
        let first = begun.get(&block).copied().unwrap_or(1);
        // An interruption says nothing about an arm, so it does not use up the retries.
        let interruptions =
            ended.iter().filter(|outcome| outcome.block == Some(block) && cut_off(outcome)).count() as u32;
        if open(block, attempt) || attempt.saturating_sub(first) >= retry + interruptions {
            continue;
        }
        let wrong = ended.iter().find_map(|outcome| match &outcome.ended {
            Ended::Failed(why) if (outcome.block, outcome.attempt) == (Some(block), attempt) => {
                Some(format!("`{}` failed: {why}", outcome.arm))
            }
            Ended::Void(why) if (outcome.block, outcome.attempt) == (Some(block), attempt) => {
                Some(format!("a run of `{}` is void: {why}", outcome.arm))
            }
            _ => None,
        });
        if let Some(because) = wrong {
            decisions.push(Decision::Requeue { block, attempt: attempt + 1, because });
        }
    }
    decisions
}

/// How often a rule may take runs of one arm out before it is the arm, or the design, and not chance.
const VOIDS_ALIKE: u32 = 3;

/// Returns why nothing more should be tried: an arm that failed its prime, that failed twice alike, or whose runs one rule took
/// out again and again.
fn hopeless(ended: &[Outcome]) -> Option<String> {
    let mut seen: BTreeMap<(&str, &str), u32> = BTreeMap::new();
    let mut voids: BTreeMap<(&str, &str), u32> = BTreeMap::new();
    for outcome in ended {
        if let Ended::Void(why) = &outcome.ended {
            let rule = why.split_whitespace().next().unwrap_or_default();
            let times = voids.entry((&outcome.arm, rule)).or_insert(0);
            *times += 1;
            if *times == VOIDS_ALIKE {
                return Some(format!("{VOIDS_ALIKE} sessions of `{}` are void by the same rule: {why}", outcome.arm));
            }
        }
        let Ended::Failed(why) = &outcome.ended else { continue };
        if outcome.block.is_none() {
            return Some(format!("`{}` failed its prime: {why}", outcome.arm));
        }
        // An interruption says nothing about the arm.
        if is_interruption(why) {
            continue;
        }
        let times = seen.entry((&outcome.arm, why)).or_insert(0);
        *times += 1;
        if *times == 2 {
            return Some(format!("`{}` failed twice alike: {why}", outcome.arm));
        }
    }
    None
}

fn cut_off(outcome: &Outcome) -> bool {
    matches!(&outcome.ended, Ended::Failed(why) if is_interruption(why))
}

/// Returns whether a session failed because somebody or something stopped it, rather than by itself.
pub fn is_interruption(why: &str) -> bool {
    why.contains("interrupted") || why.contains("stopped on request")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(block: impl Into<Option<u32>>, attempt: u32, arm: &str, ended: Ended) -> Outcome {
        Outcome { block: block.into(), attempt, arm: arm.into(), ended }
    }

    fn failed(why: &str) -> Ended {
        Ended::Failed(why.into())
    }

    const CLOSED: fn(u32, u32) -> bool = |_, _| false;

    #[test]
    fn nothing_decides_nothing_and_sound_blocks_stay() {
        assert!(decide(&[], &CLOSED, 1, &BTreeMap::new()).is_empty());
        let sound = [outcome(1, 1, "a", Ended::Sound), outcome(1, 1, "b", Ended::Sound)];
        assert!(decide(&sound, &CLOSED, 1, &BTreeMap::new()).is_empty());
    }

    #[test]
    fn a_failed_or_void_block_is_queued_again_once_it_is_over() {
        for ended in [failed("ready: 1"), Ended::Void("S32".into())] {
            let block = [outcome(2, 1, "a", Ended::Sound), outcome(2, 1, "b", ended)];
            let told = decide(&block, &CLOSED, 1, &BTreeMap::new());
            assert!(matches!(told.as_slice(), [Decision::Requeue { block: 2, attempt: 2, .. }]), "{told:?}");
            assert!(decide(&block, &|_, _| true, 1, &BTreeMap::new()).is_empty(), "not while a session is open");
            assert!(decide(&block, &CLOSED, 0, &BTreeMap::new()).is_empty(), "not without a retry");
        }
    }

    #[test]
    fn retries_are_counted_from_the_attempt_that_was_found() {
        let block = [outcome(1, 3, "a", failed("x"))];
        assert!(decide(&block, &CLOSED, 1, &BTreeMap::new()).is_empty());
        let begun = BTreeMap::from([(1, 3)]);
        assert!(matches!(decide(&block, &CLOSED, 1, &begun).as_slice(), [Decision::Requeue { attempt: 4, .. }]));
    }

    #[test]
    fn a_failed_prime_and_two_equal_failures_stop_the_plan() {
        let prime = [outcome(None, 1, "a", failed("oom"))];
        assert!(matches!(decide(&prime, &CLOSED, 1, &BTreeMap::new()).as_slice(), [Decision::Stop { .. }]));
        let twice = [outcome(1, 1, "a", failed("oom")), outcome(2, 1, "a", failed("oom"))];
        assert!(matches!(decide(&twice, &CLOSED, 1, &BTreeMap::new()).as_slice(), [Decision::Stop { .. }]));
        let unlike = [outcome(1, 1, "a", failed("oom")), outcome(2, 1, "a", failed("hang"))];
        assert_eq!(decide(&unlike, &CLOSED, 1, &BTreeMap::new()).len(), 2);
        let others = [outcome(1, 1, "a", failed("oom")), outcome(1, 1, "b", failed("oom"))];
        assert_eq!(decide(&others, &CLOSED, 1, &BTreeMap::new()).len(), 1);
        let void = |block, rule: &str| outcome(block, 1, "a", Ended::Void(format!("{rule} 4: cached")));
        let thrice = [void(1, "S20"), void(2, "S20"), void(3, "S20")];
        assert!(matches!(decide(&thrice, &CLOSED, 1, &BTreeMap::new()).as_slice(), [Decision::Stop { .. }]));
        let unlike = [void(1, "S20"), void(2, "S24"), void(3, "S20")];
        assert_eq!(decide(&unlike, &CLOSED, 1, &BTreeMap::new()).len(), 3);
        let cut = [outcome(1, 1, "a", failed("interrupted")), outcome(2, 1, "a", failed("interrupted"))];
        assert_eq!(decide(&cut, &CLOSED, 0, &BTreeMap::new()).len(), 2);
    }
}
