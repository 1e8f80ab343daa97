//! Two runs side by side: how their facts differ. A pair of runs is an observation, never a verdict.

use std::fmt::Write as _;

use serde_json::{Value, json};

use crate::diagnostic::printable;
use crate::fact::FactValue;
use crate::fact::table::{Policy, policy_of};
use crate::metric::Metric;
use crate::noise::is_noise;
use crate::record::{Record, Tier};
use crate::report::progress::significant;

/// One of the two runs.
#[derive(Debug, Clone)]
pub struct Side {
    /// The run.
    pub record: Record,
    /// The metric read from it.
    pub metric: Metric,
    /// Its value, if the run has it.
    pub value: Option<f64>,
}

/// A fact in which two runs differ.
#[derive(Debug, Clone, PartialEq)]
pub struct Difference {
    /// The fact.
    pub key: String,
    /// The first run's value; `None` is unknown.
    pub one: Option<FactValue>,
    /// The second run's value.
    pub other: Option<FactValue>,
}

/// Two runs and what stands between them.
#[derive(Debug, Clone)]
pub struct Pair {
    one: Side,
    other: Side,
    /// Facts that two arms must agree on, and that differ.
    pub differences: Vec<Difference>,
    /// Variables kept as digests that are salted by edition, so that runs of two editions cannot be told apart by them.
    pub hidden: Vec<String>,
    /// Why the two values may not be put beside each other: rule and reason.
    pub refusals: Vec<(&'static str, String)>,
}

impl Pair {
    /// Compares two runs fact by fact.
    pub fn of(one: &Side, other: &Side) -> Self {
        let mut keys: Vec<&str> =
            one.record.facts.iter().chain(other.record.facts.iter()).map(|(key, _)| key.as_str()).collect();
        keys.sort_unstable();
        keys.dedup();
        let found = keys
            .into_iter()
            .filter(|key| policy_of(key) != Policy::Recorded && is_noise(key).is_none())
            .filter_map(|key| difference(key, one.record.facts.get(key), other.record.facts.get(key)));
        let edition = |side: &Side| (side.record.experiment.clone(), side.record.edition.clone());
        let two_salts = edition(one) != edition(other);
        let (hidden, differences): (Vec<_>, Vec<_>) = found.partition(|found| two_salts && is_salted(found));
        Self {
            one: one.clone(),
            other: other.clone(),
            differences,
            hidden: hidden.into_iter().map(|difference| difference.key).collect(),
            refusals: refusals(one, other),
        }
    }

    /// Returns the pair as JSON.
    pub fn to_json(&self) -> Value {
        let side = |side: &Side| {
            json!({
                "run": side.record.id, "arm": side.record.arm, "session": side.record.session, "level": side.record.level,
                "metric": side.metric.name(), "value": side.value,
            })
        };
        let differences: Vec<Value> = self
            .differences
            .iter()
            .map(|difference| json!({"fact": difference.key, "one": difference.one, "other": difference.other}))
            .collect();
        let refusals: Vec<Value> = self
            .refusals
            .iter()
            .map(|(name, message)| json!({"name": name, "severity": "block", "message": message}))
            .collect();
        let outcome = if self.refusals.is_empty() { "exploratory" } else { "refused" };
        json!({
            "outcome": outcome, "one": side(&self.one), "other": side(&self.other), "differences": differences,
            "hidden": self.hidden, "reasons": refusals,
        })
    }
}

fn difference(key: &str, one: Option<&FactValue>, other: Option<&FactValue>) -> Option<Difference> {
    let same = match (one, other, policy_of(key)) {
        (Some(one), Some(other), Policy::Near(tolerance)) => match (one.number(), other.number()) {
            (Some(a), Some(b)) => (a - b).abs() <= tolerance * a.abs().max(b.abs()),
            _ => one.same(other),
        },
        (Some(one), Some(other), _) => one.same(other),
        _ => false,
    };
    (!same).then(|| Difference { key: key.to_owned(), one: one.cloned(), other: other.cloned() })
}

/// Whether both values are digests of a variable that is not kept in clear.
fn is_salted(difference: &Difference) -> bool {
    let digest =
        |value: &Option<FactValue>| value.as_ref().is_some_and(|value| value.to_string().starts_with("sha256:"));
    difference.key.starts_with("server.env.") && digest(&difference.one) && digest(&difference.other)
}

fn refusals(one: &Side, other: &Side) -> Vec<(&'static str, String)> {
    let mut refusals = Vec::new();
    let id = |side: &Side| {
        let fact = |key: &str| side.record.facts.get(key).map_or_else(|| "unknown".to_owned(), ToString::to_string);
        side.metric.definition_id(&fact("client.name"), &fact("client.version"))
    };
    if id(one) != id(other) {
        refusals.push(("S13", format!("`{}` and `{}` are two metrics", id(one), id(other))));
    }
    for side in [one, other] {
        if side.value.is_none() {
            refusals
                .push(("S39", format!("run {} has no {}: absent is not zero", side.record.id.short(8), side.metric)));
        }
    }
    refusals
}

/// Renders two runs as text; no percentage, since one launch of each says nothing about the arms.
pub fn render(pair: &Pair) -> String {
    let mut text = String::new();
    for (word, side) in [("one", &pair.one), ("other", &pair.other)] {
        let _ = writeln!(text, "{word:>8}  {}", line(side));
    }
    if !pair.refusals.is_empty() {
        text.push_str("\nrefused: these two values may not be put beside each other\n");
        for (rule, reason) in &pair.refusals {
            let _ = writeln!(text, "  {rule}  {reason}");
        }
    }
    differences(&mut text, pair);
    if pair.refusals.is_empty() {
        text.push_str(
            "\none launch of each is an observation: `labbook run` makes blocks, `labbook compare` the verdict\n",
        );
    }
    text
}

fn differences(text: &mut String, pair: &Pair) {
    match pair.differences.len() {
        0 => text.push_str("\nno observed fact differs\n"),
        1 => text.push_str("\n1 observed fact differs\n"),
        several => {
            let _ = writeln!(text, "\n{several} observed facts differ");
        }
    }
    for difference in &pair.differences {
        let shown = |value: &Option<FactValue>| {
            let value =
                value.as_ref().map_or_else(|| "(not observed)".to_owned(), |value| printable(&value.to_string()));
            if value.chars().count() > 60 {
                format!("{}…", value.chars().take(60).collect::<String>())
            } else {
                value
            }
        };
        let _ = writeln!(text, "  {}\n      {} → {}", difference.key, shown(&difference.one), shown(&difference.other));
    }
    if !pair.hidden.is_empty() {
        text.push_str("cannot be told, since what is secret is digested with another salt in each edition\n");
        for key in &pair.hidden {
            let _ = writeln!(text, "  {key}");
        }
    }
}

fn line(side: &Side) -> String {
    let value = side.value.map_or_else(|| "no value".to_owned(), significant);
    let record = &side.record;
    let tier = if record.tier == Tier::Look { " (a look)" } else { "" };
    format!(
        "{}  {} at {} in {}{tier}: {value} {} {}",
        record.id.short(8),
        record.arm,
        record.level,
        record.session,
        side.metric.unit().symbol(),
        side.metric
    )
}

/// Renders a look and the stored run that is nearest to it.
pub fn look(look: &Side, nearest: Option<&Pair>) -> String {
    let mut text = format!("    look  {}\n", line(look));
    let Some(pair) = nearest else {
        text.push_str("no other run of this experiment is stored at this level\n");
        return text;
    };
    let _ = writeln!(text, " nearest  {}", line(&pair.one));
    differences(&mut text, pair);
    text.push_str("\na look is recorded with all its facts; it is never cited and never a control\n");
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::comparison::fixture::records;

    fn side(record: Record) -> Side {
        Side { record, metric: Metric::OutputThroughput, value: Some(1.0) }
    }

    #[test]
    fn secrets_of_two_editions_cannot_be_told_apart_and_are_no_difference() {
        let mut one = records().remove(0);
        one.facts.text("server.env.MY_TOKEN", "sha256:aa");
        let mut other = one.clone();
        other.facts.text("server.env.MY_TOKEN", "sha256:bb");
        other.facts.text("source.commit", "another");
        let keys = |pair: &Pair| pair.differences.iter().map(|difference| difference.key.clone()).collect::<Vec<_>>();
        let same = Pair::of(&side(one.clone()), &side(other.clone()));
        assert_eq!(keys(&same), ["server.env.MY_TOKEN", "source.commit"], "one salt: another digest is another secret");
        other.edition = Some("ffffffff".into());
        let two = Pair::of(&side(one), &side(other));
        assert_eq!(
            (keys(&two), two.hidden.clone()),
            (vec!["source.commit".to_owned()], vec!["server.env.MY_TOKEN".to_owned()])
        );
        assert!(render(&two).contains("cannot be told"));
    }
}
