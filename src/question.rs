//! What an experiment asks of the data: the factor, its arms, the levels, and the claims declared before the runs.
//!
//! A spec and an import manifest both become a [`Question`], so that measured and imported runs go through one check.
//! Invariant: the control is one of the arms, each arm has one asked value for each key of the factor, and every claim
//! names an arm, a metric and a level that exist. Whoever builds a question has checked this and reported it with its place.

use std::fmt;

use indexmap::IndexMap;
use serde::{Deserialize, Serialize};

use crate::fact::FactKey;
use crate::metric::Metric;

/// Which engine serves, and so which facts are required.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Engine {
    /// `SGLang`.
    Sglang,
    /// `vLLM`.
    Vllm,
    /// The pocket engine that is built in.
    Pocketmoe,
    /// Any program; the spec says how to observe it.
    Command,
}

impl Engine {
    /// Every engine and its name in specs.
    pub const NAMES: [(&'static str, Self); 4] =
        [("sglang", Self::Sglang), ("vllm", Self::Vllm), ("pocketmoe", Self::Pocketmoe), ("command", Self::Command)];

    /// Returns the name in specs.
    pub fn name(self) -> &'static str {
        Self::NAMES.iter().find(|(_, engine)| *engine == self).map_or("", |(name, _)| *name)
    }
}

/// The value that an arm asks for at one key of the factor.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Asked {
    /// The key must be absent.
    Unset,
    /// A flag without a value.
    Set,
    /// This text.
    Text(String),
    /// These elements (several patches, a flag with several values).
    List(Vec<String>),
}

impl fmt::Display for Asked {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unset => out.write_str("unset"),
            Self::Set => out.write_str("set"),
            Self::Text(text) => out.write_str(text),
            Self::List(elements) => write!(out, "[{}]", elements.join(", ")),
        }
    }
}

/// How it is seen that the treatment is active.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Evidence {
    /// Text that stands in the server's log when it is, and does not when it is not.
    pub log: String,
}

/// The load key that is varied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Axis {
    /// Most requests in flight.
    Concurrency,
    /// Requests sent per second.
    RequestRate,
    /// Prompt length, tokens.
    InputTokens,
}

impl Axis {
    /// Returns the key in specs and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Concurrency => "concurrency",
            Self::RequestRate => "request_rate",
            Self::InputTokens => "input_tokens",
        }
    }

    /// Returns the letter that starts a folder name.
    pub fn letter(self) -> char {
        match self {
            Self::Concurrency => 'c',
            Self::RequestRate => 'r',
            Self::InputTokens => 'i',
        }
    }
}

/// One planned value of the axis; its text is what was typed.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Level(pub String);

impl Level {
    /// Returns the number it states; infinite for `inf`.
    pub fn number(&self) -> f64 {
        self.0.parse().unwrap_or(f64::NAN)
    }

    /// Returns the name of the condition in folder names: `c0010`, `r8.5`, `i0128`.
    pub fn label(&self, axis: Axis) -> String {
        match self.0.parse::<u64>() {
            Ok(whole) => format!("{}{whole:04}", axis.letter()),
            Err(_) => format!("{}{}", axis.letter(), self.0),
        }
    }
}

impl fmt::Display for Level {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

/// What a claim expects of the ratio treatment / control.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Expect {
    /// Above 1.
    Higher,
    /// Below 1.
    Lower,
    /// Within the margin around 1.
    Unchanged,
    /// Not below 1 by more than the margin.
    NotLower,
    /// Not above 1 by more than the margin.
    NotHigher,
}

impl Expect {
    /// Every expectation and its name in specs.
    pub const NAMES: [(&'static str, Self); 5] = [
        ("higher", Self::Higher),
        ("lower", Self::Lower),
        ("unchanged", Self::Unchanged),
        ("not_lower", Self::NotLower),
        ("not_higher", Self::NotHigher),
    ];

    /// Returns the name in specs.
    pub fn name(self) -> &'static str {
        Self::NAMES.iter().find(|(_, expect)| *expect == self).map_or("", |(name, _)| *name)
    }
}

/// A typed statement, declared before the runs.
#[derive(Debug, Clone, PartialEq)]
pub struct Claim {
    /// What is compared.
    pub metric: Metric,
    /// The arm that is compared with the control.
    pub treatment: String,
    /// At which level.
    pub at: Level,
    /// The expectation.
    pub expect: Expect,
    /// By at least how much, as a fraction (`by: 5%` is 0.05); only with `higher` and `lower`.
    pub by: Option<f64>,
}

/// Over which levels the headline speaks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Over {
    /// The geometric mean over all planned levels.
    All,
    /// One level.
    At(Level),
}

/// The one effect that is tested alone.
#[derive(Debug, Clone, PartialEq)]
pub struct Headline {
    /// What is compared.
    pub metric: Metric,
    /// The arm that is compared with the control.
    pub treatment: String,
    /// Over which levels.
    pub over: Over,
}

/// One question, as the check needs it.
#[derive(Debug, Clone, PartialEq)]
pub struct Question {
    /// Its name.
    pub experiment: String,
    /// Which engine served; `None` where an import does not say.
    pub engine: Option<Engine>,
    /// The keys that are varied on purpose; several move together.
    pub factor: Vec<FactKey>,
    /// Each arm's values, in the order of `factor`.
    pub arms: IndexMap<String, Vec<Asked>>,
    /// The arm that the others are compared with.
    pub control: String,
    /// Outputs that also differ because the factor does: a key, or a prefix that ends in `.*`.
    pub entails: Vec<String>,
    /// Proof that an arm's treatment is active.
    pub evidence: IndexMap<String, Evidence>,
    /// Which load key the levels are values of.
    pub axis: Axis,
    /// Planned levels in written order, all different.
    pub levels: Vec<Level>,
    /// Planned blocks; 0 where an import does not say.
    pub repeats: u32,
    /// Client runs per level inside a session, at least 1.
    pub passes: u32,
    /// Differences below this fraction do not matter; `None` is the default of max(1 %, noise floor).
    pub margin: Option<f64>,
    /// The one effect tested alone.
    pub headline: Option<Headline>,
    /// Claims by name, in written order.
    pub claims: IndexMap<String, Claim>,
}

impl Question {
    /// Returns the arms other than the control, in written order.
    pub fn treatments(&self) -> impl Iterator<Item = &str> {
        self.arms.keys().map(String::as_str).filter(|arm| *arm != self.control)
    }

    /// Returns whether `arm` asks for the same values as the control: an A/A comparison.
    pub fn is_null_control(&self, arm: &str) -> bool {
        arm != self.control && self.arms.get(arm).is_some() && self.arms.get(arm) == self.arms.get(&self.control)
    }

    /// Returns the metrics that claims or the headline name, in that order, each once.
    pub fn metrics(&self) -> Vec<Metric> {
        let mut named: Vec<Metric> = Vec::new();
        let headline = self.headline.iter().map(|headline| headline.metric);
        for metric in headline.chain(self.claims.values().map(|claim| claim.metric)) {
            if !named.contains(&metric) {
                named.push(metric);
            }
        }
        named
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_name_their_folders() {
        assert_eq!(Level("10".into()).label(Axis::Concurrency), "c0010");
        assert_eq!(Level("8.5".into()).label(Axis::RequestRate), "r8.5");
        assert_eq!(Level("inf".into()).label(Axis::RequestRate), "rinf");
        assert!(Level("inf".into()).number().is_infinite() && Level("x".into()).number().is_nan());
    }
}
