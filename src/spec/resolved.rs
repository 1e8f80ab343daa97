//! The spec with every default written out, as YAML that parses back to an equal spec.
//!
//! Invariant: text is always quoted, so that no reader of YAML can take it for anything else; words and numbers of labbook
//! are plain.

use std::fmt::Write as _;

use indexmap::IndexMap;

use super::{Cache, ClientAsk, EnvironmentAsk, Eos, SourceAsk, Spec};
use crate::question::{Asked, Axis, Over};

/// Returns text in double quotes as YAML 1.2 reads it.
fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for character in text.chars() {
        match character {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            // Line separators and the byte order mark are read as breaks or dropped by some.
            other if other.is_control() || matches!(other, '\u{2028}' | '\u{2029}' | '\u{feff}') => {
                let _ = write!(out, "\\u{:04x}", other as u32);
            }
            other => out.push(other),
        }
    }
    out.push('"');
    out
}

fn list(texts: impl IntoIterator<Item = impl AsRef<str>>) -> String {
    let texts: Vec<String> = texts.into_iter().map(|text| quoted(text.as_ref())).collect();
    format!("[{}]", texts.join(", "))
}

fn asked(value: &Asked) -> String {
    match value {
        Asked::Unset => "unset".to_owned(),
        Asked::Set => "set".to_owned(),
        Asked::Text(text) => quoted(text),
        Asked::List(elements) => list(elements),
    }
}

/// Returns a percentage that is read back as exactly `fraction`.
fn percent(fraction: f64) -> String {
    let exact = |digits: usize| {
        let text = format!("{:.digits$}", fraction * 100.0);
        format!("{text}e-2").parse::<f64>().is_ok_and(|number| number.to_bits() == fraction.to_bits()).then_some(text)
    };
    let text = (0..20).find_map(exact).unwrap_or_else(|| format!("{}", fraction * 100.0));
    format!("{text}%")
}

/// Lines with their indentation.
struct Lines(String);

impl Lines {
    fn put(&mut self, depth: usize, key: &str, value: impl AsRef<str>) {
        let _ = writeln!(self.0, "{:indent$}{key}: {}", "", value.as_ref(), indent = 2 * depth);
    }

    fn open(&mut self, depth: usize, key: &str) {
        let _ = writeln!(self.0, "{:indent$}{key}:", "", indent = 2 * depth);
    }

    fn maybe(&mut self, depth: usize, key: &str, text: Option<&String>) {
        if let Some(text) = text {
            self.put(depth, key, quoted(text));
        }
    }

    fn map(&mut self, depth: usize, key: &str, values: &IndexMap<String, String>) {
        if values.is_empty() {
            return;
        }
        self.open(depth, key);
        for (name, value) in values {
            self.put(depth + 1, &quoted(name), value);
        }
    }

    fn asked(&mut self, depth: usize, key: &str, values: &IndexMap<String, Asked>) {
        let values = values.iter().map(|(name, value)| (name.clone(), asked(value))).collect();
        self.map(depth, key, &values);
    }
}

/// Returns the YAML; see [`Spec::resolved_yaml`].
pub(super) fn yaml(spec: &Spec) -> String {
    let mut lines = Lines(String::new());
    lines.put(0, "title", quoted(&spec.title));
    lines.put(0, "question", quoted(&spec.asks));
    lines.maybe(0, "hypothesis", spec.hypothesis.as_ref());
    lines.put(0, "host", list(&spec.hosts));
    source(&mut lines, spec.source.as_ref());
    environment(&mut lines, spec.environment.as_ref());
    lines.open(0, "server");
    lines.put(1, "engine", spec.server.engine.name());
    lines.maybe(1, "model", spec.server.model.as_ref());
    lines.asked(1, "args", &spec.server.args);
    lines.asked(1, "env", &spec.server.env);
    lines.put(1, "ready", format!("{}s", spec.server.ready_s));
    workload(&mut lines, spec);
    factor(&mut lines, spec);
    lines.put(0, "prime", spec.prime.name());
    lines.put(0, "repeats", spec.question.repeats.to_string());
    lines.put(0, "passes", spec.question.passes.to_string());
    lines.put(0, "retry", spec.retry.to_string());
    lines.put(0, "timeout", format!("{}s", spec.trial_timeout_s));
    judged(&mut lines, spec);
    let texts = |named: &IndexMap<String, String>| {
        named.iter().map(|(name, text)| (name.clone(), quoted(text))).collect::<IndexMap<_, _>>()
    };
    lines.map(0, "guards", &texts(&spec.guards));
    lines.map(0, "allow", &texts(&spec.allow));
    lines.0
}

fn source(lines: &mut Lines, source: Option<&SourceAsk>) {
    let Some(source) = source else { return };
    lines.open(0, "source");
    lines.put(1, "repo", quoted(&source.repo));
    lines.maybe(1, "commit", source.commit.as_ref());
    if let Some(patches) = &source.patches {
        lines.put(1, "patches", list(patches.iter().map(|patch| &patch.path)));
    }
}

fn environment(lines: &mut Lines, environment: Option<&EnvironmentAsk>) {
    let Some(environment) = environment else { return };
    lines.open(0, "environment");
    lines.maybe(1, "image", environment.image.as_ref());
    lines.put(1, "via", environment.via.name());
    lines.maybe(1, "venv", environment.venv.as_ref());
    lines.maybe(1, "lock", environment.lock.as_ref());
    lines.put(1, "build", list(&environment.build));
}

fn workload(lines: &mut Lines, spec: &Spec) {
    let load = &spec.workload;
    lines.open(0, "workload");
    client(lines, &load.client);
    lines.put(1, "dataset", quoted(&load.dataset));
    lines.maybe(1, "dataset_path", load.dataset_path.as_ref());
    let levels: Vec<&str> = spec.question.levels.iter().map(|level| level.0.as_str()).collect();
    let levels = format!("[{}]", levels.join(", "));
    let at = |axis: Axis, fixed: Option<String>| if spec.question.axis == axis { Some(levels.clone()) } else { fixed };
    let whole = |number: Option<u64>| number.map(|number| number.to_string());
    let rate = load.request_rate.map_or_else(|| "inf".to_owned(), |rate| rate.to_string());
    if let Some(text) = at(Axis::InputTokens, whole(load.input_tokens)) {
        lines.put(1, "input_tokens", text);
    }
    lines.put(1, "output_tokens", load.output_tokens.to_string());
    lines.put(1, "range_ratio", load.range_ratio.to_string());
    lines.put(1, "prompts_per_user", load.prompts_per_user.to_string());
    if let Some(text) = at(Axis::RequestRate, Some(rate)) {
        lines.put(1, "request_rate", text);
    }
    lines.put(1, "seed", load.seed.to_string());
    lines.put(1, "ignore_eos", (load.eos == Eos::Ignored).to_string());
    if let Some(text) = at(Axis::Concurrency, whole(load.concurrency)) {
        lines.put(1, "concurrency", text);
    }
    lines.open(1, "warmup");
    lines.put(2, "waves", load.warmup.waves.to_string());
    lines.put(2, "flush_cache", (load.warmup.cache == Cache::Flushed).to_string());
}

fn client(lines: &mut Lines, client: &ClientAsk) {
    lines.open(1, "client");
    lines.put(2, "use", client.kind.name());
    lines.maybe(2, "python", client.python.as_ref());
    lines.maybe(2, "version", client.version.as_ref());
    lines.asked(2, "args", &client.args);
}

fn factor(lines: &mut Lines, spec: &Spec) {
    let question = &spec.question;
    lines.put(0, "factor", list(question.factor.iter().map(crate::fact::FactKey::as_str)));
    lines.open(0, "arms");
    for (arm, values) in &question.arms {
        let values: Vec<String> = values.iter().map(asked).collect();
        lines.put(1, &quoted(arm), format!("[{}]", values.join(", ")));
    }
    lines.put(0, "control", quoted(&question.control));
    lines.put(0, "entails", list(&question.entails));
    if !question.evidence.is_empty() {
        lines.open(0, "evidence");
        for (arm, evidence) in &question.evidence {
            lines.open(1, &quoted(arm));
            lines.put(2, "log", quoted(&evidence.log));
        }
    }
}

fn judged(lines: &mut Lines, spec: &Spec) {
    if let Some(margin) = spec.question.margin {
        lines.put(0, "margin", percent(margin));
    }
    if let Some(headline) = &spec.question.headline {
        lines.open(0, "headline");
        lines.put(1, "metric", headline.metric.name());
        lines.put(1, "treatment", quoted(&headline.treatment));
        let over = match &headline.over {
            Over::All => "all",
            Over::At(level) => &level.0,
        };
        lines.put(1, "over", over);
    }
    if !spec.question.claims.is_empty() {
        lines.open(0, "claims");
    }
    for (name, claim) in &spec.question.claims {
        lines.open(1, &quoted(name));
        lines.put(2, "metric", claim.metric.name());
        lines.put(2, "treatment", quoted(&claim.treatment));
        lines.put(2, "at", &claim.at.0);
        lines.put(2, "expect", claim.expect.name());
        if let Some(by) = claim.by {
            lines.put(2, "by", percent(by));
        }
    }
    if !spec.references.is_empty() {
        lines.open(0, "references");
    }
    for (name, reference) in &spec.references {
        lines.open(1, &quoted(name));
        lines.put(2, "value", reference.value.to_string());
        lines.put(2, "unit", quoted(&reference.unit));
        if let Some(level) = &reference.at {
            lines.put(2, "at", &level.0);
        }
        lines.put(2, "why", quoted(&reference.why));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_percentages_are_read_back_exactly() {
        assert_eq!(quoted(""), "\"\"");
        assert_eq!(quoted("a\"b\\c\nd\u{7f}é"), "\"a\\\"b\\\\c\\nd\\u007fé\"");
        for fraction in [0.02, 0.007, 0.29, 0.015, 0.0001, 0.123_456_789] {
            let text = percent(fraction);
            let number: f64 = format!("{}e-2", text.trim_end_matches('%')).parse().expect("a number");
            assert_eq!(number.to_bits(), fraction.to_bits(), "{text}");
        }
        assert_eq!(percent(0.02), "2%");
        assert_eq!(percent(0.007), "0.7%");
    }
}
