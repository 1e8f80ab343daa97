//! The server: its source, its process, when it was ready, and whether the treatment shows.

use std::collections::{BTreeMap, BTreeSet};

use super::info::Info;
use super::{Ask, RawFiles, arguments, moved_all, record_unset};
use crate::digest::Digest;
use crate::fact::{FactValue, Fingerprint};
use crate::question::Engine;
use crate::redact::environment_facts;
use crate::script::output::{self, Step};
use crate::spec::flags::full_name;

/// Variables that differ from launch to launch without meaning, each with the reason why it can be left out.
const MEANINGLESS: [(&str, &str); 6] = [
    ("LABBOOK_NONCE", "made afresh for each session to know our own processes"),
    ("SGLANG_RUN_ID", "time and a random number, made by the server for its children to share memory"),
    ("PWD", "a shell's note of the working directory, which is named after the commit"),
    ("OLDPWD", "a shell's note of the working directory before"),
    ("SHLVL", "how many shells deep"),
    ("_", "a shell's note of the last command"),
];

/// Helpers of Python that come and go with compilation and hold whatever environment there was when they started.
const HELPERS: [&str; 3] = ["multiprocessing.resource_tracker", "multiprocessing.forkserver", "compile_worker"];

/// The process id of the server.
pub(super) fn pid(files: &RawFiles) -> Option<String> {
    files.word("out/server.pid").filter(|pid| pid.bytes().all(|byte| byte.is_ascii_digit()))
}

/// When the server was started, in seconds since the host's boot.
pub(super) fn started_at(files: &RawFiles) -> Option<f64> {
    at_step(files, &Step::Start)
}

fn at_step(files: &RawFiles, step: &Step) -> Option<f64> {
    let status = output::status(&files.read("out/status")?);
    status.lines.iter().find(|line| line.step == *step && line.code == 0).map(|line| line.uptime_s)
}

/// `source.*` and `binaries.*`.
pub(super) fn source(files: &RawFiles, ask: &Ask, info: &Info, facts: &mut Fingerprint) {
    let pid = pid(files);
    let exe = pid.as_ref().and_then(|pid| files.word(&format!("out/proc/{pid}/exe-sha256")));
    if ask.engine == Engine::Pocketmoe {
        for (key, value) in [("source.commit", info.text("commit")), ("source.dirty", info.text("dirty"))] {
            // Built without git it does not know, which is not an observation.
            if let Some(value) = value.filter(|value| value != "unknown") {
                facts.text(key, value);
            }
        }
        if let Some(digest) = exe {
            facts.text("binaries.labbook", digest);
        }
        return;
    }
    let program = pid.as_ref().and_then(|pid| files.text(&format!("out/proc/{pid}/exe")));
    if let (Some(digest), Some(name)) = (exe, program.as_deref().and_then(|path| path.rsplit('/').next())) {
        facts.text(&format!("binaries.{name}"), digest);
    }
    // The path that was started, not where its links end: virtual environments share one interpreter.
    let started = pid.as_ref().and_then(|pid| files.read(&format!("out/proc/{pid}/cmdline")));
    let started = started.and_then(|words| arguments::of_cmdline(&words).into_iter().next());
    if let Some(path) = started.filter(|path| path.starts_with('/')) {
        facts.text("binaries.interpreter", path);
    }
    if !imported_from_tree(files, ask.engine, pid.as_deref()) {
        return;
    }
    let head = files.word("out/source/head");
    if let Some(head) = head.filter(|head| head.len() == 40 && head.bytes().all(|byte| byte.is_ascii_hexdigit())) {
        facts.text("source.commit", head);
        if let (Some(diff), Some(status)) = (files.read("out/source/diff"), files.read("out/source/status")) {
            facts.text("source.dirty", dirty(&diff, &status));
        }
        if let Some(modules) = files.read("out/source/submodules") {
            facts.text("source.submodules", submodules(&modules));
        }
    }
}

/// Whether the package that the server imports lies in the tree that it started in. A working directory that happens to
/// be some checkout says nothing about a server that was installed elsewhere.
fn imported_from_tree(files: &RawFiles, engine: Engine, pid: Option<&str>) -> bool {
    let Some(package) = files.text("out/source/package-path").and_then(|text| text.lines().last().map(str::to_owned))
    else {
        return engine == Engine::Command;
    };
    let tree = pid.and_then(|pid| files.text(&format!("out/proc/{pid}/cwd")));
    let inside =
        |tree: &str| package.strip_prefix(tree.trim_end_matches('/')).is_some_and(|rest| rest.starts_with('/'));
    let climbs = package.split('/').any(|part| part == "..");
    !climbs && tree.is_some_and(|tree| !package.starts_with('/') || inside(&tree))
}

/// `clean`, or the digest of what is not committed: the diff, and the names of files that git does not know.
fn dirty(diff: &[u8], status: &[u8]) -> String {
    let unknown: Vec<&[u8]> = status.split(|byte| *byte == b'\n').filter(|line| line.starts_with(b"??")).collect();
    if diff.is_empty() && unknown.is_empty() {
        return "clean".to_owned();
    }
    let bytes = if unknown.is_empty() { diff.to_vec() } else { [diff, b"\0", &unknown.join(&b'\n')].concat() };
    Digest::of(bytes).to_string()
}

/// `none`, or `COMMIT PATH` of each in the order of paths; what git adds about branches is left out.
fn submodules(status: &[u8]) -> String {
    let text = String::from_utf8_lossy(status);
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let mut modules: Vec<String> = lines
        .map(|line| {
            let (commit, rest) = line.split_once(' ').unwrap_or((line, ""));
            format!("{commit} {}", rest.rsplit_once(" (").map_or(rest, |(path, _)| path))
        })
        .collect();
    modules.sort();
    if modules.is_empty() { "none".to_owned() } else { modules.join("; ") }
}

/// `server.args.*`, `server.argv`, `server.env.*`, `server.pid`.
pub(super) fn process(files: &RawFiles, ask: &Ask, facts: &mut Fingerprint) {
    let Some(pid) = pid(files) else { return };
    facts.text("server.pid", &pid);
    let words = |look: &str| {
        let words = arguments::of_cmdline(&files.read(&format!("out/{look}/{pid}/cmdline")).unwrap_or_default());
        (!words.is_empty()).then_some(words)
    };
    if let Some(before) = words("proc") {
        facts.text("server.argv", arguments::as_text(&before));
        let named = |words: Vec<String>| arguments::named(&words, |flag| full_name(ask.engine, flag));
        for (name, value) in moved_all(named(before), words("proc-after").map(named)) {
            facts.insert(format!("server.args.{name}"), value);
        }
        record_unset("server.args.", ask, facts);
    }
    let variables = |look: &str| variables(files, &format!("out/{look}"), &pid, ask);
    if let Some(before) = variables("proc") {
        for (name, value) in moved_all(before, variables("proc-after")) {
            facts.insert(format!("server.env.{name}"), value);
        }
        record_unset("server.env.", ask, facts);
    }
}

/// The variables of the server. Where a child has another value of one that is kept in clear, all values are listed, the
/// server's first.
fn variables(files: &RawFiles, processes: &str, server: &str, ask: &Ask) -> Option<BTreeMap<String, FactValue>> {
    let in_factor = |name: &str| ask.factor.iter().any(|key| key.as_str().strip_prefix("server.env.") == Some(name));
    let clear: Vec<String> =
        ask.factor.iter().filter_map(|key| key.as_str().strip_prefix("server.env.").map(str::to_owned)).collect();
    let read = |pid: &str| {
        let environ = files.read(&format!("{processes}/{pid}/environ"))?;
        let mut found = environment_facts(&environ, &ask.salt, &clear);
        found.retain(|name, _| in_factor(name) || !MEANINGLESS.iter().any(|(other, _)| other == name));
        (!found.is_empty()).then_some(found)
    };
    let mut own = read(server)?;
    let mut others = BTreeMap::<String, BTreeSet<String>>::new();
    for child in files.list(processes).iter().filter(|pid| *pid != server && !is_helper(files, processes, pid)) {
        let Some(found) = read(child) else { continue };
        for name in own.keys().chain(found.keys()) {
            let text =
                |variables: &BTreeMap<String, FactValue>| variables.get(name).unwrap_or(&FactValue::Unset).to_string();
            let (ours, theirs) = (text(&own), text(&found));
            let hidden = ours.starts_with("sha256:") || theirs.starts_with("sha256:");
            if ours != theirs && !hidden {
                others.entry(name.clone()).or_default().insert(theirs);
            }
        }
    }
    for (name, values) in others {
        let first = own.get(&name).unwrap_or(&FactValue::Unset).to_string();
        own.insert(name, FactValue::List(std::iter::once(first).chain(values).collect()));
    }
    Some(own)
}

/// Whether a process is a helper of Python's.
pub(super) fn is_helper(files: &RawFiles, processes: &str, pid: &str) -> bool {
    let cmdline = files.read(&format!("{processes}/{pid}/cmdline")).unwrap_or_default();
    let cmdline = String::from_utf8_lossy(&cmdline);
    HELPERS.iter().any(|helper| cmdline.contains(helper))
}

/// `server.identity`, `server.ready_*`.
pub(super) fn readiness(files: &RawFiles, facts: &mut Fingerprint) {
    if let Some(who) = files.word("out/identity") {
        facts.text("server.identity", who);
    }
    let (Some(start), Some(ready)) = (started_at(files), at_step(files, &Step::Ready)) else { return };
    facts.text("server.ready_after_s", format!("{:.2}", ready - start));
    let mut by = Vec::new();
    for (file, said) in [("ready-line", "log line"), ("health", "health")] {
        by.extend(files.text(file).map(|_| said));
    }
    if by.is_empty() {
        by.push("listening port");
    }
    if files.word("out/http/generate.code").is_some_and(|code| code == "200") {
        by.push("one generation");
    }
    facts.text("server.ready_by", by.join(", then "));
    if let Some(seconds) = files.word("out/http/generate-s") {
        facts.text("time.first_generation_s", seconds);
    }
}

/// `treatment.evidence`: for an arm without a text of its own, the text of any other arm.
pub(super) fn evidence(files: &RawFiles, ask: &Ask, facts: &mut Fingerprint) {
    let sought: Vec<&String> = match &ask.evidence {
        Some(own) => vec![own],
        None => ask.other_evidence.iter().collect(),
    };
    let sought: Vec<&[u8]> = sought.into_iter().map(String::as_bytes).filter(|text| !text.is_empty()).collect();
    if sought.is_empty() {
        return;
    }
    let Some(log) = files.read("out/server.log") else { return };
    let stands = |text: &[u8]| log.windows(text.len()).any(|window| window == text);
    facts.text("treatment.evidence", if sought.into_iter().any(stands) { "present" } else { "absent" });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_is_clean_or_has_a_digest() {
        assert_eq!(dirty(b"", b""), "clean");
        assert_eq!(dirty(b"", b" M only.staged\n"), "clean");
        assert_eq!(dirty(b"patch", b"M  a\n"), Digest::of("patch").to_string());
        assert_ne!(dirty(b"patch", b"?? b\n"), dirty(b"patch", b""));
        assert_ne!(dirty(b"", b"?? b\n"), "clean");
    }

    #[test]
    fn submodules_are_commits_and_paths() {
        assert_eq!(submodules(b""), "none");
        assert_eq!(submodules(b" 1234 b/c d (v1-2-g1234)\n+abcd a\n"), "+abcd a; 1234 b/c d");
        assert_eq!(submodules(b"-99 only"), "-99 only");
    }
}
