//! Command lines: from words to arguments under their full names.
//!
//! Invariant: every word behind the first flag is in some value, so that nothing that was typed is overlooked; the value
//! of a secret is never kept.

use std::collections::BTreeMap;

use super::RawFiles;
use crate::fact::FactValue;
use crate::redact::{REDACTED, is_secret_name};

/// The words of `/proc/PID/cmdline`. A process title that went over them has none.
pub(super) fn of_cmdline(bytes: &[u8]) -> Vec<String> {
    let words = bytes.strip_suffix(&[0]).unwrap_or(bytes);
    if words.is_empty() {
        return Vec::new();
    }
    words.split(|byte| *byte == 0).map(|word| String::from_utf8_lossy(word).into_owned()).collect()
}

/// The words of a planned command, `FOLDER/0001` and so on.
pub(super) fn of_files(files: &RawFiles, folder: &str) -> Vec<String> {
    let names = files.list(folder);
    let numbered = names.iter().filter(|name| name.bytes().all(|byte| byte.is_ascii_digit()));
    let words = numbered.filter_map(|name| files.read(&format!("{folder}/{name}")));
    words.map(|word| String::from_utf8_lossy(&word).into_owned()).collect()
}

/// Arguments under the names that `full_name` gives them: a flag alone is set, one value is text, several values (of one
/// flag, or of the same flag again) are a list. Secrets are left out.
pub(super) fn named(words: &[String], full_name: impl Fn(&str) -> String) -> BTreeMap<String, FactValue> {
    let mut arguments = BTreeMap::<String, Vec<String>>::new();
    let mut current: Option<String> = None;
    for word in words.iter().skip(1) {
        if let Some(flag) = flag_of(word) {
            let (flag, value) = flag.split_once('=').map_or((flag, None), |(flag, value)| (flag, Some(value)));
            let name = full_name(flag);
            let values = arguments.entry(name.clone()).or_default();
            values.extend(value.map(str::to_owned));
            current = value.is_none().then_some(name);
        } else if let Some(name) = &current {
            arguments.entry(name.clone()).or_default().push(word.clone());
        } else if !arguments.is_empty() {
            // A stray word behind `--flag=value`: it belongs to no flag, and must not vanish.
            arguments.entry("(words)".to_owned()).or_default().push(word.clone());
        }
    }
    arguments.retain(|name, _| !is_secret(name));
    let value = |mut values: Vec<String>| match values.len() {
        0 => FactValue::Set,
        1 => FactValue::Text(values.remove(0)),
        _ => FactValue::List(values),
    };
    arguments.into_iter().map(|(name, values)| (name, value(values))).collect()
}

/// The command as one text, without the values of secrets.
pub(super) fn as_text(words: &[String]) -> String {
    let mut hidden = false;
    let shown = words.iter().map(|word| {
        let flag = flag_of(word);
        let secret = |flag: &str| is_secret(flag.trim_start_matches('-'));
        let shown = match flag.map(|flag| flag.split_once('=').unwrap_or((flag, ""))) {
            Some((name, value)) if !value.is_empty() && secret(name) => format!("{name}={REDACTED}"),
            None if hidden => REDACTED.to_owned(),
            _ => word.clone(),
        };
        hidden = flag.is_some_and(|flag| !flag.contains('=') && secret(flag));
        shown
    });
    shown.collect::<Vec<_>>().join(" ")
}

fn is_secret(name: &str) -> bool {
    is_secret_name(name) || is_secret_name(&name.replace('-', "_"))
}

/// A long flag; a short one (`-m`) is the interpreter's, and a negative number is a value.
fn flag_of(word: &str) -> Option<&str> {
    word.strip_prefix("--").filter(|name| name.starts_with(|first: char| first.is_ascii_alphabetic())).map(|_| word)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::question::Engine;
    use crate::spec::flags::full_name;

    fn read(line: &str) -> BTreeMap<String, FactValue> {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        named(&words, |flag| full_name(Engine::Sglang, flag))
    }

    #[test]
    fn nothing_has_no_arguments() {
        assert!(of_cmdline(b"").is_empty() && of_cmdline(b"\0").is_empty());
        assert!(named(&[], str::to_owned).is_empty() && read("python3 -m sglang.launch_server").is_empty());
        assert_eq!(as_text(&[]), "");
    }

    #[test]
    fn every_spelling_is_the_same_argument() {
        let tp = |line: &str| read(line).get("tp-size").cloned();
        for line in ["p --tp 8", "p --tp-size=8", "p -m x --tensor-parallel-size 8", "p --tp_size 8"] {
            assert_eq!(tp(line), Some(FactValue::text("8")), "{line}");
        }
        let read = read("p --a --b -1 --c 1 2 3 --f=x --f y --d=k=v stray --e");
        assert_eq!(read["a"], FactValue::Set);
        assert_eq!(read["b"], FactValue::text("-1"));
        assert_eq!(read["c"], FactValue::List(vec!["1".into(), "2".into(), "3".into()]));
        assert_eq!(read["f"], FactValue::List(vec!["x".into(), "y".into()]));
        assert_eq!((&read["d"], &read["(words)"]), (&FactValue::text("k=v"), &FactValue::text("stray")));
    }

    #[test]
    fn secrets_are_no_values() {
        let line = "p --api-key s3cret-value --admin-api-key=s3cret-value --tp 2";
        assert_eq!(read(line).keys().collect::<Vec<_>>(), ["tp-size"]);
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        assert!(!as_text(&words).contains("s3cret"), "{}", as_text(&words));
        assert!(as_text(&words).ends_with("--tp 2"));
    }
}
