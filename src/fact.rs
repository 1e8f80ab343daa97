//! Facts: what was observed about a session or a run, and the fingerprint they form.
//!
//! Invariant: a fact is observed, never copied from a spec; a key that is absent is unknown, and unknown is not equal to
//! anything, not even to unknown.

pub mod table;

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A dotted key, such as `server.env.SGLANG_OEA_K0`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct FactKey(String);

impl FactKey {
    /// Makes a key.
    pub fn new(key: impl Into<String>) -> Self {
        Self(key.into())
    }

    /// Returns its text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for FactKey {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

impl From<&str> for FactKey {
    fn from(key: &str) -> Self {
        Self::new(key)
    }
}

impl Borrow<str> for FactKey {
    fn borrow(&self) -> &str {
        &self.0
    }
}

/// An observed value. In JSON: `null` is unset, `true` is a flag without a value, text and lists of text as they are.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FactValue {
    /// It was looked for and is not set.
    Unset,
    /// A flag that stands there without a value.
    Set,
    /// Its text.
    Text(String),
    /// A list, element by element.
    List(Vec<String>),
}

impl FactValue {
    /// Makes a text value.
    pub fn text(text: impl Into<String>) -> Self {
        Self::Text(text.into())
    }

    /// Makes the value of a JSON scalar or list of scalars; objects become their canonical text.
    pub fn of_json(value: &Value) -> Self {
        match value {
            Value::Null => Self::Unset,
            Value::Array(elements) => Self::List(elements.iter().map(scalar_text).collect()),
            other => Self::Text(scalar_text(other)),
        }
    }

    /// Returns the number it states, if it is one.
    pub fn number(&self) -> Option<f64> {
        match self {
            Self::Text(text) => text.parse().ok().filter(|number: &f64| number.is_finite()),
            _ => None,
        }
    }

    /// Returns whether two values say the same: text after canonical number form (`0.90` is `0.9`), lists element by element.
    pub fn same(&self, other: &Self) -> bool {
        if self == other {
            return true;
        }
        match (self, other) {
            (Self::Text(one), Self::Text(two)) => canonical(one) == canonical(two),
            (Self::List(one), Self::List(two)) => {
                one.len() == two.len() && one.iter().zip(two).all(|(one, two)| canonical(one) == canonical(two))
            }
            _ => false,
        }
    }
}

impl fmt::Display for FactValue {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unset => out.write_str("(unset)"),
            Self::Set => out.write_str("(set)"),
            Self::Text(text) => out.write_str(text),
            Self::List(elements) => write!(out, "[{}]", elements.join(", ")),
        }
    }
}

impl Serialize for FactValue {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Unset => serializer.serialize_none(),
            Self::Set => serializer.serialize_bool(true),
            Self::Text(text) => serializer.serialize_str(text),
            Self::List(elements) => elements.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for FactValue {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Value::deserialize(deserializer)? {
            Value::Null => Ok(Self::Unset),
            Value::Bool(true) => Ok(Self::Set),
            Value::String(text) => Ok(Self::Text(text)),
            Value::Array(elements) => Ok(Self::List(elements.iter().map(scalar_text).collect())),
            other => {
                Err(serde::de::Error::custom(format!("`{other}` is not a fact: expected null, true, text or a list")))
            }
        }
    }
}

fn scalar_text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Object(_) | Value::Array(_) => crate::digest::canonical_json(value),
        other => other.to_string(),
    }
}

/// Returns a decimal number in its shortest form, and any other text as it is. Whole numbers keep all their digits, and text
/// with a leading zero or an exponent that overflows (a hash such as `12e4567`) is not a number.
pub fn canonical(text: &str) -> String {
    let digits = text.strip_prefix('-').unwrap_or(text);
    let looks_decimal =
        digits.bytes().all(|byte| byte.is_ascii_digit() || matches!(byte, b'.' | b'e' | b'E' | b'-' | b'+'));
    let starts_well = digits.starts_with(|character: char| character.is_ascii_digit());
    let leading_zero = digits.len() > 1 && digits.starts_with('0') && !digits.starts_with("0.");
    if !looks_decimal || !starts_well || leading_zero || digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return text.to_owned();
    }
    match text.parse::<f64>() {
        Ok(number) if number.is_finite() => format!("{number}"),
        _ => text.to_owned(),
    }
}

/// The facts of a session or a run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Fingerprint(BTreeMap<FactKey, FactValue>);

impl Fingerprint {
    /// Returns the value observed for `key`; `None` is unknown.
    pub fn get(&self, key: &str) -> Option<&FactValue> {
        self.0.get(key)
    }

    /// Records an observation; a later one replaces an earlier one.
    pub fn insert(&mut self, key: impl Into<FactKey>, value: FactValue) {
        self.0.insert(key.into(), value);
    }

    /// Records text.
    pub fn text(&mut self, key: &str, value: impl Into<String>) {
        self.insert(key, FactValue::Text(value.into()));
    }

    /// Forgets an observation.
    pub fn remove(&mut self, key: &str) {
        self.0.remove(key);
    }

    /// Returns all facts in key order.
    pub fn iter(&self) -> impl Iterator<Item = (&FactKey, &FactValue)> {
        self.0.iter()
    }

    /// Adds the facts of `other`; its values win.
    pub fn extend(&mut self, other: &Self) {
        self.0.extend(other.0.iter().map(|(key, value)| (key.clone(), value.clone())));
    }

    /// Returns the first key, in key order, that fits a pattern of the table, with its value.
    pub fn find(&self, pattern: &str) -> Option<(&FactKey, &FactValue)> {
        let Some((prefix, _)) = pattern.split_once('<') else { return self.0.get_key_value(pattern) };
        let family = self.0.range(FactKey::new(prefix)..).take_while(|(key, _)| key.as_str().starts_with(prefix));
        family.into_iter().find(|(key, _)| table::matches(pattern, key.as_str()))
    }

    /// Forgets every observation that `other` does not share.
    pub fn keep_equal(&mut self, other: &Self) {
        self.0.retain(|key, value| other.0.get(key).is_some_and(|found| found.same(value)));
    }

    /// Returns how many facts there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether nothing was observed.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl From<String> for FactKey {
    fn from(key: String) -> Self {
        Self(key)
    }
}

impl FromIterator<(FactKey, FactValue)> for Fingerprint {
    fn from_iter<I: IntoIterator<Item = (FactKey, FactValue)>>(facts: I) -> Self {
        Self(facts.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_compare_by_value_and_hashes_by_text() {
        let same = |one: &str, two: &str| FactValue::text(one).same(&FactValue::text(two));
        assert!(same("0.90", "0.9") && same("1.0", "1.00") && same("8192.0", "8192e0") && same("1e-5", "0.00001"));
        assert!(!same("0123456", "123456") && !same("12e4567", "12e4568") && !same("12e4567", "inf"));
        assert!(!same("18446744073709551616", "18446744073709551617") && !same("", "0") && same("", ""));
        assert!(!FactValue::Unset.same(&FactValue::text("unset")) && !FactValue::Set.same(&FactValue::text("true")));
        let list = |elements: [&str; 2]| FactValue::List(elements.map(str::to_owned).to_vec());
        assert!(list(["1", "2.0"]).same(&list(["1", "2.00"])) && !list(["1", "2"]).same(&list(["2", "1"])));
    }

    #[test]
    fn a_fingerprint_survives_json() {
        let mut facts = Fingerprint::default();
        assert_eq!(serde_json::to_string(&facts).expect("JSON"), "{}");
        facts.insert("a", FactValue::Unset);
        facts.insert("b", FactValue::Set);
        facts.text("c", "0.90");
        facts.insert("d", FactValue::List(vec!["1".into(), "2".into()]));
        let text = serde_json::to_string(&facts).expect("JSON");
        assert_eq!(text, r#"{"a":null,"b":true,"c":"0.90","d":["1","2"]}"#);
        assert_eq!(serde_json::from_str::<Fingerprint>(&text).expect("facts"), facts);
        assert!(serde_json::from_str::<Fingerprint>(r#"{"a": 1}"#).is_err());
    }
}
