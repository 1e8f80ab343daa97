//! The plan: which sessions run, in which order, with which trials.
//!
//! Invariant: a plan is a function of the edition and the number of blocks. The order inside a block depends on the edition
//! and the block's number alone, so retries and later blocks never move earlier ones. Over each run of `n` blocks of `n`
//! arms, every arm stands at every position once: two arms are AB and BA in random order, an odd block is one off.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::digest::Digest;
use crate::question::{Axis, Engine, Level};
use crate::spec::{Prime, Spec};
use crate::stats;

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

impl Kind {
    /// Returns the word in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Prime => "prime",
            Self::Block => "block",
            Self::Look => "look",
        }
    }
}

/// One server launch.
#[derive(Debug, Clone, PartialEq)]
pub struct PlannedSession {
    /// Folder name: `b03-cutedsl`, `b03-cutedsl.2`, `prime-cutedsl` (`prime-h2-cutedsl` on the second of several hosts),
    /// `look-cutedsl-c0010`.
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
    let mut sessions = primes(spec);
    sessions.extend(blocks(spec, 1, spec.question.repeats));
    Plan { experiment: spec.question.experiment.clone(), edition: spec.edition(), sessions }
}

/// Plans one launch of each arm on each host, every level once; none when the spec says never.
///
/// Whether the caches make them unnecessary (`prime: auto`) is known on the host alone.
pub fn primes(spec: &Spec) -> Vec<PlannedSession> {
    if spec.prime == Prime::Never {
        return Vec::new();
    }
    let order = Order::of(spec);
    let mut sessions = Vec::new();
    for (place, host) in spec.hosts.iter().enumerate() {
        // A host is an alias and may change, so a name has its place in the list.
        let prefix = if spec.hosts.len() == 1 { "prime".to_owned() } else { format!("prime-h{}", place + 1) };
        for (position, arm) in order.arms(1).into_iter().enumerate() {
            sessions.push(PlannedSession {
                name: format!("{prefix}-{arm}"),
                kind: Kind::Prime,
                block: None,
                attempt: 1,
                arm,
                position: position as u32 + 1,
                host: host.clone(),
                trials: spec.question.levels.iter().map(|level| trial(spec, level, 1)).collect(),
            });
        }
    }
    sessions
}

/// Plans `count` blocks from block `first` (from 1) on; `plan` is the primes and `blocks(spec, 1, repeats)`.
pub fn blocks(spec: &Spec, first: u32, count: u32) -> Vec<PlannedSession> {
    let order = Order::of(spec);
    (first..first.saturating_add(count)).flat_map(|block| order.block(block, 1)).collect()
}

/// Plans another attempt (from 2) at a whole block, in the order of the first one.
pub fn retry_block(spec: &Spec, block: u32, attempt: u32) -> Vec<PlannedSession> {
    Order::of(spec).block(block, attempt)
}

/// Plans one launch of one arm at one level, outside any block.
pub fn look(spec: &Spec, arm: &str, level: &Level) -> PlannedSession {
    PlannedSession {
        name: format!("look-{arm}-{}", level.label(spec.question.axis)),
        kind: Kind::Look,
        block: None,
        attempt: 1,
        arm: arm.to_owned(),
        position: 1,
        host: spec.hosts[0].clone(),
        trials: vec![trial(spec, level, 1)],
    }
}

fn trial(spec: &Spec, level: &Level, pass: u32) -> PlannedTrial {
    let (load, axis) = (&spec.workload, spec.question.axis);
    let at = |which: Axis, fixed: Option<u64>| if axis == which { level.number() as u64 } else { fixed.unwrap_or(1) };
    let concurrency = at(Axis::Concurrency, load.concurrency);
    let request_rate = if axis == Axis::RequestRate {
        Some(level.number()).filter(|rate| rate.is_finite())
    } else {
        load.request_rate
    };
    PlannedTrial {
        label: format!("{}-p{pass}", level.label(axis)),
        level: level.clone(),
        pass,
        concurrency,
        request_rate,
        input_tokens: at(Axis::InputTokens, load.input_tokens),
        output_tokens: load.output_tokens,
        num_prompts: concurrency * load.prompts_per_user,
        seed: load.seed + u64::from(pass),
    }
}

/// The order of arms and levels, as a function of the edition and a block's number.
struct Order<'a> {
    spec: &'a Spec,
    edition: Digest,
    /// Sorted: the edition does not depend on the order in which arms are written, so the plan does not either.
    arms: Vec<String>,
}

impl<'a> Order<'a> {
    fn of(spec: &'a Spec) -> Self {
        let mut arms: Vec<String> = spec.question.arms.keys().cloned().collect();
        arms.sort();
        Self { spec, edition: spec.edition(), arms }
    }

    /// The generator for one purpose, so that one more draw for levels never moves the arms.
    fn generator(&self, purpose: &str, number: u32) -> SplitMix64 {
        SplitMix64(Digest::of(format!("{purpose} {number} of {}", self.edition)).seed())
    }

    /// Returns the arms of block `block` (from 1): a rotation of an order that is shuffled anew for every `n` blocks.
    fn arms(&self, block: u32) -> Vec<String> {
        let count = self.arms.len() as u32;
        let (group, place) = ((block - 1) / count, (block - 1) % count);
        let mut generator = self.generator("arms of group", group);
        let mut order = self.arms.clone();
        generator.shuffle(&mut order);
        let mut rotations: Vec<usize> = (0..order.len()).collect();
        generator.shuffle(&mut rotations);
        order.rotate_left(rotations[place as usize]);
        order
    }

    /// Returns the trials of each session of block `block`: for each pass all levels, shuffled anew.
    fn trials(&self, block: u32) -> Vec<PlannedTrial> {
        let mut generator = self.generator("levels of block", block);
        let mut trials = Vec::new();
        for pass in 1..=self.spec.question.passes {
            let mut levels = self.spec.question.levels.clone();
            generator.shuffle(&mut levels);
            trials.extend(levels.iter().map(|level| trial(self.spec, level, pass)));
        }
        trials
    }

    fn block(&self, block: u32, attempt: u32) -> Vec<PlannedSession> {
        let hosts = &self.spec.hosts;
        let host = &hosts[(block as usize - 1) % hosts.len()];
        let trials = self.trials(block);
        let named = |arm: &str| match attempt {
            0 | 1 => format!("b{block:02}-{arm}"),
            _ => format!("b{block:02}-{arm}.{attempt}"),
        };
        let sessions = self.arms(block).into_iter().enumerate().map(|(position, arm)| PlannedSession {
            name: named(&arm),
            kind: Kind::Block,
            block: Some(block),
            attempt,
            arm,
            position: position as u32 + 1,
            host: host.clone(),
            trials: trials.clone(),
        });
        sessions.collect()
    }
}

/// A generator whose stream is fixed for ever: `SplitMix64` of Steele, Lea and Flood, *Fast Splittable Pseudorandom Number
/// Generators*, OOPSLA 2014, with the constants of Vigna's public-domain version.
struct SplitMix64(u64);

impl SplitMix64 {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Shuffles in place (Fisher and Yates); the bias of scaling 64 bits is below 2⁻⁵⁰ for lists of our size.
    fn shuffle<T>(&mut self, elements: &mut [T]) {
        for last in (1..elements.len()).rev() {
            let place = (u128::from(self.next()) * (last as u128 + 1)) >> 64;
            elements.swap(last, place as usize);
        }
    }
}

impl Plan {
    /// Returns the plan as `plan.json` stores it.
    pub fn to_json(&self) -> Value {
        let sessions: Vec<Value> = self.sessions.iter().map(PlannedSession::to_json).collect();
        json!({
            "format": 1,
            "experiment": self.experiment,
            "edition": self.edition.to_string(),
            "sessions": sessions,
        })
    }
}

impl PlannedSession {
    /// Returns the session as JSON.
    pub fn to_json(&self) -> Value {
        let trials: Vec<Value> = self.trials.iter().map(PlannedTrial::to_json).collect();
        json!({
            "name": self.name,
            "kind": self.kind.name(),
            "block": self.block,
            "attempt": self.attempt,
            "arm": self.arm,
            "position": self.position,
            "host": self.host,
            "trials": trials,
        })
    }
}

impl PlannedTrial {
    /// Returns the trial as JSON; an absent request rate is null.
    pub fn to_json(&self) -> Value {
        json!({
            "label": self.label,
            "level": self.level,
            "pass": self.pass,
            "concurrency": self.concurrency,
            "request_rate": self.request_rate,
            "input_tokens": self.input_tokens,
            "output_tokens": self.output_tokens,
            "num_prompts": self.num_prompts,
            "seed": self.seed,
        })
    }
}

/// How long the parts of a session take, and where that is known from.
#[derive(Debug, Clone, PartialEq)]
pub struct Timings {
    /// From start to ready, and from the last trial to the proof that nothing is left, seconds.
    pub load_s: f64,
    /// One measured client run at each level, seconds; levels without an entry are assumed.
    pub trial_s: BTreeMap<Level, f64>,
    /// Where the numbers come from, as a fragment: `assumed: …`, or `as in b02-loop`.
    pub source: String,
}

/// Tokens per second that one user is assumed to get.
const ASSUMED_RATE: f64 = 30.0;
/// The same of the pocket engine.
const ASSUMED_POCKET_RATE: f64 = 150.0;

impl Timings {
    /// Returns guesses for a spec that has never run: round numbers, to be replaced by the first session.
    pub fn assumed(spec: &Spec) -> Self {
        let load_s = if spec.server.engine == Engine::Pocketmoe { 2.0 } else { 300.0 };
        let trial_s = spec.question.levels.iter().map(|level| (level.clone(), assumed_trial_s(spec, level))).collect();
        let source = format!("assumed: {load_s:.0} s to load, {:.0} tok/s per user", rate(spec));
        Self { load_s, trial_s, source }
    }
}

fn rate(spec: &Spec) -> f64 {
    if spec.server.engine == Engine::Pocketmoe { ASSUMED_POCKET_RATE } else { ASSUMED_RATE }
}

fn assumed_trial_s(spec: &Spec, level: &Level) -> f64 {
    let trial = trial(spec, level, 1);
    let waves_s = spec.workload.prompts_per_user as f64 * trial.output_tokens as f64 / rate(spec);
    let arrivals_s = trial.request_rate.map_or(0.0, |rate| trial.num_prompts as f64 / rate);
    waves_s.max(arrivals_s)
}

/// What a plan costs, seconds.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Cost {
    /// Starting and stopping servers in blocks.
    pub load_s: f64,
    /// Sessions before block 1.
    pub prime_s: f64,
    /// Warm-up waves in blocks.
    pub warmup_s: f64,
    /// Measured client runs in blocks.
    pub measure_s: f64,
}

impl Cost {
    /// Returns the sum, seconds.
    pub fn total_s(&self) -> f64 {
        self.load_s + self.prime_s + self.warmup_s + self.measure_s
    }
}

/// Estimates what the sessions cost one after the other.
pub fn cost(spec: &Spec, sessions: &[PlannedSession], timings: &Timings) -> Cost {
    let mut cost = Cost::default();
    let waves = spec.workload.warmup.waves as f64 / spec.workload.prompts_per_user as f64;
    for session in sessions {
        let measure_s: f64 = session
            .trials
            .iter()
            .map(|trial| {
                timings.trial_s.get(&trial.level).copied().unwrap_or_else(|| assumed_trial_s(spec, &trial.level))
            })
            .sum();
        if session.kind == Kind::Prime {
            cost.prime_s += timings.load_s + measure_s * (1.0 + waves);
        } else {
            cost.load_s += timings.load_s;
            cost.warmup_s += measure_s * waves;
            cost.measure_s += measure_s;
        }
    }
    cost
}

/// How much the log ratio of two arms varies from block to block, and where that is known from.
#[derive(Debug, Clone, PartialEq)]
pub struct Spread {
    /// Standard deviation of `ln treatment − ln control` over blocks.
    pub sd_log: f64,
    /// Where it comes from, as a fragment: `assumed`, or `from the null control aa@4f2a91c0`.
    pub source: String,
}

impl Spread {
    /// Returns a guess for a host that was never measured: launches of one arm differed by 0.4 to 2.5 % in throughput on an
    /// H200, so 1 % is neither the best nor the worst case.
    pub fn assumed() -> Self {
        Self { sd_log: 0.01, source: "assumed: launches of one arm differ by about 1 %".to_owned() }
    }
}

/// Returns the smallest effect that `blocks` blocks find in 80 of 100 experiments at the 5 % level, as a fraction above 1 of the
/// ratio; `None` below two blocks or when the spread is not a number that varies.
///
/// Source: the power of the paired t test on log ratios (noncentral t).
pub fn resolvable_effect(spread: &Spread, blocks: u32) -> Option<f64> {
    let log_ratio = stats::minimum_detectable_effect(spread.sd_log, blocks, 0.05, 0.8).ok()?;
    Some(log_ratio.exp_m1())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stream_is_the_published_one() {
        // The first outputs for seed 1234567, as printed in the literature on this generator.
        let mut generator = SplitMix64(1_234_567);
        let first: Vec<u64> = (0..3).map(|_| generator.next()).collect();
        assert_eq!(first, [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]);
    }

    #[test]
    fn shuffling_nothing_is_nothing_and_keeps_every_element() {
        let mut generator = SplitMix64(1);
        generator.shuffle::<u8>(&mut []);
        generator.shuffle(&mut [1]);
        let mut many: Vec<u32> = (0..50).collect();
        generator.shuffle(&mut many);
        assert_ne!(many, (0..50).collect::<Vec<_>>());
        many.sort_unstable();
        assert_eq!(many, (0..50).collect::<Vec<_>>());
    }

    #[test]
    fn what_few_blocks_resolve_is_what_the_tables_say() {
        let spread = |sd_log| Spread { sd_log, source: "assumed".into() };
        // Three blocks at SD 1 % find 3.264 % (log ratio), five 1.682 %.
        for (blocks, wanted) in [(3, 0.03264), (5, 0.01682)] {
            let effect = resolvable_effect(&spread(0.01), blocks).expect("an effect").ln_1p();
            assert!((effect - wanted).abs() < 5e-6, "{effect}");
        }
        assert_eq!(resolvable_effect(&spread(0.01), 0), None);
        assert_eq!(resolvable_effect(&spread(0.01), 1), None);
        assert_eq!(resolvable_effect(&spread(f64::NAN), 5), None);
    }
}
