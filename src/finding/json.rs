//! Findings as JSON, the stable interface of `labbook compare --format json`.

use serde_json::{Map, Value, json};

use crate::comparison::Reason;
use crate::question::{Axis, Level};
use crate::rules;

use super::{ConditionFinding, Effect, Findings, HeadlineFinding};

impl Findings {
    /// Returns the findings as JSON; floats as computed, absent numbers as `null`.
    pub fn to_json(&self, axis: Axis) -> Value {
        let claims = self
            .claims
            .iter()
            .map(|(name, claim)| (name.clone(), json!({ "verdict": claim.verdict.name(), "reasons": claim.reasons })));
        json!({
            "experiment": self.experiment,
            "edition": self.edition,
            "rules": rules::VERSION,
            "outcome": self.outcome.name(),
            "conditions": self.conditions.iter().map(|found| condition(found, &self.control, axis)).collect::<Vec<_>>(),
            "claims": claims.collect::<Map<String, Value>>(),
            "headline": self.headline.as_ref().map(headline),
        })
    }
}

fn condition(found: &ConditionFinding, control: &str, axis: Axis) -> Value {
    let mut made = Map::new();
    made.insert("control".to_owned(), json!(control));
    made.insert("treatment".to_owned(), json!(found.condition.treatment));
    made.insert("metric".to_owned(), json!(found.condition.metric.name()));
    made.insert(axis.name().to_owned(), level(&found.condition.level));
    made.insert("outcome".to_owned(), json!(found.outcome.name()));
    made.insert("reasons".to_owned(), found.reasons.iter().map(reason).collect());
    made.insert("effect".to_owned(), found.effect.as_ref().map_or(Value::Null, effect));
    made.insert("verdict".to_owned(), json!(found.verdict.name()));
    Value::Object(made)
}

/// A level is a number where it is one, and its text otherwise (`inf`).
fn level(level: &Level) -> Value {
    match level.0.parse::<u64>() {
        Ok(whole) => json!(whole),
        Err(_) => level
            .0
            .parse::<f64>()
            .ok()
            .filter(|number| number.is_finite())
            .map_or(json!(level.0), |number| json!(number)),
    }
}

fn reason(reason: &Reason) -> Value {
    json!({
        "name": reason.name,
        "severity": reason.severity,
        "blocks": reason.blocks,
        "message": reason.message,
        "help": reason.help,
    })
}

fn effect(effect: &Effect) -> Value {
    json!({
        "ratio": effect.ratio,
        "low": effect.interval.map(|(low, _)| low),
        "high": effect.interval.map(|(_, high)| high),
        "blocks": effect.blocks,
        "p": effect.p,
        "p_holm": effect.p_holm,
    })
}

fn headline(found: &HeadlineFinding) -> Value {
    json!({
        "metric": found.metric.name(),
        "treatment": found.treatment,
        "verdict": found.verdict.name(),
        "effect": found.effect.as_ref().map(effect),
    })
}
