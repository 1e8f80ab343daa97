//! Where things stand in the site.
//!
//! Invariant: a place follows from names alone, so that a link can be written before its page is; chapters stand under `findings/`,
//! plain pages under `runs/`, and the record itself under `raw/`, so that no file of it can be taken for a page.

use std::fmt::Write as _;

use crate::comparison::Condition;
use crate::digest::Digest;

/// The dashboard of findings.
pub(super) const DASHBOARD: &str = "findings/index.html";
/// Metrics, rules and facts.
pub(super) const GLOSSARY: &str = "findings/glossary.html";
/// The style of everything.
pub(super) const STYLE: &str = "labbook.css";
/// What tells a site of labbook from any other folder.
pub(super) const MARK: &str = "labbook-site.json";

/// Returns the page of an experiment's edition.
pub(super) fn experiment(name: &str, edition: &str) -> String {
    format!("findings/{name}/{edition}/index.html")
}

/// Returns the page of a spec that was not measured yet.
pub(super) fn planned(name: &str) -> String {
    format!("findings/{name}/planned/index.html")
}

/// Returns the page of a claim.
pub(super) fn claim(name: &str, edition: &str, claim: &str) -> String {
    format!("findings/{name}/{edition}/claims/{claim}.html")
}

/// Returns the place of a condition on the page of its experiment.
pub(super) fn condition(name: &str, edition: &str, condition: &Condition) -> String {
    format!("{}#{}", experiment(name, edition), anchor(condition))
}

/// Returns the anchor of a condition.
pub(super) fn anchor(condition: &Condition) -> String {
    format!("at-{}-{}-{}", condition.metric, condition.treatment, word(&condition.level.0))
}

/// Returns the page of a session.
pub(super) fn session(name: &str, edition: &str, session: &str) -> String {
    format!("runs/{name}/{edition}/{}/index.html", word(session))
}

/// Returns the page of a run; an import has no trials, and its runs are named by their ids.
pub(super) fn run(name: &str, edition: &str, session: &str, trial: &str) -> String {
    format!("runs/{name}/{edition}/{}/{}.html", word(session), word(trial))
}

/// Returns where a raw file is published. Its bytes are those of the record, under a name that no browser runs.
pub(super) fn raw(name: &str, edition: &str, path: &str) -> String {
    let ending = path.rsplit('/').next().and_then(|file| file.rsplit_once('.')).map_or("", |(_, ending)| ending);
    let is_text = ["json", "jsonl", "log", "csv", "txt", "yaml", "yml", "patch", "zst"].contains(&ending);
    // Files without an ending are ours alone; whatever else a client left might be a page or a script.
    let suffix =
        if is_text || ending.is_empty() || ending.bytes().all(|byte| byte.is_ascii_digit()) { "" } else { ".txt" };
    format!("raw/{name}/{edition}/{path}{suffix}")
}

/// Longest part of a path that is made of a free name, without the digest behind it.
const LONGEST_NAME: usize = 80;

/// Returns a name that an import may have made freely as one that is safe in a path: other characters are spelled out.
fn word(name: &str) -> String {
    let mut safe = String::with_capacity(name.len());
    for (at, byte) in name.bytes().enumerate() {
        if byte.is_ascii_alphanumeric() || byte == b'-' || (byte == b'.' && at > 0) {
            safe.push(char::from(byte));
        } else {
            let _ = write!(safe, "_{byte:02x}");
        }
    }
    // File systems end a name at 255 bytes.
    if safe.len() > LONGEST_NAME {
        safe.truncate(LONGEST_NAME);
        let _ = write!(safe, "-{}", Digest::of(name).short(12));
    }
    safe
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_raw_file_is_a_page() {
        assert_eq!(raw("x", "4f", "b01-a/c0001-p1/run.json"), "raw/x/4f/b01-a/c0001-p1/run.json");
        assert_eq!(raw("x", "4f", "b01-a/input/argv/0001"), "raw/x/4f/b01-a/input/argv/0001");
        for hostile in ["evil.html", "evil.svg", "x.y/evil.HTM", "evil.mjs"] {
            assert_eq!(raw("x", "4f", hostile), format!("raw/x/4f/{hostile}.txt"));
        }
    }

    #[test]
    fn a_free_name_stays_in_its_folder() {
        assert_eq!(session("x", "4f", "../é/"), "runs/x/4f/_2e._2f_c3_a9_2f/index.html");
        assert_ne!(word("a_2f"), word("a/"));
        assert_eq!(word(""), "");
        let (long, other) = ("x".repeat(300), format!("{}y", "x".repeat(299)));
        assert!(word(&long).len() < 100 && word(&long) != word(&other));
    }
}
