//! From what an arm asks for to what should be observed: one function a key, and the proof that the treatment was active.

use crate::fact::table::{Class, class_of, matches};
use crate::fact::{FactKey, FactValue, Fingerprint};
use crate::question::{Asked, Question};

/// What a fact should be, given what an arm asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wanted {
    /// This value.
    Value(FactValue),
    /// Anything but this value.
    NotValue(FactValue),
    /// A path below the host's home that ends so.
    InHome(String),
    /// Observed, whatever it is.
    Known,
}

impl Wanted {
    /// Returns whether an observation is what was asked for.
    pub fn is_met(&self, observed: &FactValue) -> bool {
        match self {
            Self::Value(value) => value.same(observed) || as_one_text(value).same(&as_one_text(observed)),
            Self::NotValue(value) => !value.same(observed),
            Self::InHome(path) => {
                observed.to_string().strip_suffix(path.as_str()).is_some_and(|home| home.starts_with('/'))
            }
            Self::Known => true,
        }
    }
}

impl std::fmt::Display for Wanted {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Value(value) => write!(out, "`{value}`"),
            Self::NotValue(value) => write!(out, "anything but `{value}`"),
            Self::InHome(path) => write!(out, "`~{path}`"),
            Self::Known => out.write_str("an observed value"),
        }
    }
}

/// A flag with several values stands in argv as one text or as several, depending on who read it.
fn as_one_text(value: &FactValue) -> FactValue {
    match value {
        FactValue::List(elements) => FactValue::text(elements.join(" ")),
        other => other.clone(),
    }
}

/// Returns the facts that prove that an arm asking `asked` at `key` got it. Never empty.
pub fn expected_facts(key: &FactKey, asked: &Asked) -> Vec<(String, Wanted)> {
    let text = key.as_str();
    match text {
        "source.patches" => {
            let none = matches!(asked, Asked::Unset) || matches!(asked, Asked::List(patches) if patches.is_empty());
            let clean = FactValue::text("clean");
            vec![("source.dirty".to_owned(), if none { Wanted::Value(clean) } else { Wanted::NotValue(clean) })]
        }
        "environment" | "environment.image" => match asked {
            Asked::Text(image) if image.contains("sha256:") => {
                let digest = image.rsplit('@').next().unwrap_or(image);
                vec![("image.digest".to_owned(), Wanted::Value(FactValue::text(digest)))]
            }
            _ => vec![("image.digest".to_owned(), Wanted::Known)],
        },
        "environment.venv" => vec![("binaries.interpreter".to_owned(), interpreter_of(asked))],
        "environment.lock" => vec![("packages.<name>".to_owned(), Wanted::Known)],
        "client" => vec![("client.version".to_owned(), Wanted::Known)],
        "client.use" => vec![("client.name".to_owned(), Wanted::Value(value_of(asked)))],
        "server.model" => vec![("model.path".to_owned(), Wanted::Value(value_of(asked)))],
        _ => vec![(observed_key(text), Wanted::Value(value_of(asked)))],
    }
}

/// The interpreter of a virtual environment, as the server's command names it.
fn interpreter_of(venv: &Asked) -> Wanted {
    let Asked::Text(path) = venv else { return Wanted::Known };
    let path = format!("{}/bin/python", path.trim_end_matches('/'));
    match path.strip_prefix('~') {
        Some(below) => Wanted::InHome(below.to_owned()),
        None => Wanted::Value(FactValue::text(path)),
    }
}

/// Returns the patterns of the facts that are the factor itself and so may differ.
pub fn owned(key: &FactKey) -> Vec<String> {
    match key.as_str() {
        "server.model" => [
            "model.<name>",
            "server.args.model-path",
            "server.args.model",
            "server.args.tokenizer-path",
            "server.resolved.model_path",
            "server.resolved.tokenizer_path",
            "server.resolved.served_model_name",
        ]
        .map(str::to_owned)
        .to_vec(),
        "environment" | "environment.image" | "environment.venv" | "environment.lock" => {
            ["image.digest", "packages.<name>", "binaries.interpreter"].map(str::to_owned).to_vec()
        }
        key if class_of(key) == Class::Client => vec!["client.<name>".to_owned(), observed_key(key)],
        "source.patches" => vec!["source.dirty".to_owned()],
        // Another commit pins other submodules.
        "source.commit" => vec!["source.commit".to_owned(), "source.submodules".to_owned()],
        key => vec![observed_key(key)],
    }
}

/// Returns the outputs that may state the same thing as an argument: `server.args.a-b` is `server.resolved.a_b`, and a limit
/// that is asked for is a capacity of the same name, with or without its `-size`.
pub fn images(key: &FactKey) -> Vec<String> {
    let Some(name) = key.as_str().strip_prefix("server.args.") else { return Vec::new() };
    let name = full_name(name).replace('-', "_");
    let mut images = vec![format!("server.resolved.{name}"), format!("server.capacity.{name}")];
    images.extend(name.strip_suffix("_size").map(|short| format!("server.capacity.{short}")));
    if name == "max_total_tokens" {
        images.push("server.capacity.kv_tokens".to_owned());
    }
    images
}

/// Returns whether `key` is one that a factor of `question` owns.
pub fn is_owned(question: &Question, key: &str) -> bool {
    question.factor.iter().flat_map(owned).any(|pattern| matches(&pattern, key))
}

fn observed_key(key: &str) -> String {
    match key.strip_prefix("server.args.") {
        Some(name) => format!("server.args.{}", full_name(name)),
        None => key.to_owned(),
    }
}

/// Returns a flag's full name with hyphens.
fn full_name(name: &str) -> String {
    let name = name.replace('_', "-");
    match name.as_str() {
        "tp" | "tensor-parallel-size" => "tp-size".to_owned(),
        "dp" | "data-parallel-size" => "dp-size".to_owned(),
        "ep" | "expert-parallel-size" => "ep-size".to_owned(),
        "pp" | "pipeline-parallel-size" => "pp-size".to_owned(),
        _ => name,
    }
}

fn value_of(asked: &Asked) -> FactValue {
    match asked {
        Asked::Unset => FactValue::Unset,
        Asked::Set => FactValue::Set,
        Asked::Text(text) => FactValue::text(text),
        Asked::List(elements) => FactValue::List(elements.clone()),
    }
}

/// The fact that says whether the text under `evidence` stood in the server's log.
pub const EVIDENCE: &str = "treatment.evidence";

/// What the evidence says about one arm in one run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Proof {
    /// As it should be, or nothing was declared.
    Fine,
    /// Nobody looked.
    Unknown,
    /// Present where it should be absent, or the other way round.
    Wrong,
}

/// Returns what the evidence says about `arm`, when it is compared with an arm that has declared evidence.
pub fn proof(question: &Question, arm: &str, facts: &Fingerprint) -> Proof {
    let wanted = if question.evidence.contains_key(arm) { "present" } else { "absent" };
    match facts.get(EVIDENCE) {
        Some(FactValue::Text(found)) if found == wanted => Proof::Fine,
        None => Proof::Unknown,
        Some(_) => Proof::Wrong,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expected(key: &str, asked: &Asked) -> (String, Wanted) {
        expected_facts(&key.into(), asked).remove(0)
    }

    #[test]
    fn each_asked_key_has_its_observation() {
        let text = |text: &str| Asked::Text(text.into());
        assert_eq!(expected("server.env.A", &Asked::Unset), ("server.env.A".into(), Wanted::Value(FactValue::Unset)));
        assert_eq!(expected("server.args.tp", &text("2")).0, "server.args.tp-size");
        assert_eq!(expected("server.model", &text("m")).0, "model.path");
        assert_eq!(expected("source.patches", &Asked::List(vec![])).1, Wanted::Value(FactValue::text("clean")));
        assert!(expected("source.patches", &Asked::List(vec!["a.patch".into()])).1.is_met(&FactValue::text("ab12")));
        assert_eq!(expected("environment.image", &text("x@sha256:ab")).1, Wanted::Value(FactValue::text("sha256:ab")));
        assert_eq!(images(&"server.args.moe-runner-backend".into())[0], "server.resolved.moe_runner_backend");
        assert!(images(&"server.args.chunked-prefill-size".into()).contains(&"server.capacity.chunked_prefill".into()));
        assert!(images(&"server.args.max-total-tokens".into()).contains(&"server.capacity.kv_tokens".into()));
        assert!(images(&"server.env.A".into()).is_empty());
        assert_eq!(
            expected("environment.venv", &text("/v/")),
            ("binaries.interpreter".into(), Wanted::Value(FactValue::text("/v/bin/python")))
        );
        let in_home = expected("environment.venv", &text("~/v")).1;
        assert!(
            in_home.is_met(&FactValue::text("/home/a/v/bin/python"))
                && !in_home.is_met(&FactValue::text("/w/bin/python"))
        );
    }

    #[test]
    fn values_meet_what_was_asked_as_text_or_as_a_list() {
        let list = Wanted::Value(FactValue::List(vec!["1".into(), "2".into()]));
        assert!(list.is_met(&FactValue::text("1 2")) && !list.is_met(&FactValue::text("1 3")));
        assert!(!Wanted::Value(FactValue::Unset).is_met(&FactValue::text("")));
    }
}
