//! From the raw files of one session to facts.
//!
//! Invariant: a fact says what the files show. What they do not show is absent; what moved between the look before the
//! trials and the look after them is a list of both values, which no arm can ask for; a secret is never a value. Nothing
//! here fails: a file that is missing, cut off or not what it should be takes its facts with it.
//! Source: the files that `session.sh` leaves (see [`crate::script`]), and the list of facts of the method.

mod arguments;
mod counters;
mod gpu;
mod host;
mod info;
mod log;
mod scheduling;
mod server;
mod workload;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Component, Path};

use serde_json::Value;

use crate::fact::{FactKey, FactValue, Fingerprint};
use crate::question::Engine;
use crate::script::output;

pub use log::decode_rate;

/// The files of one session, by path below its folder: `argv/0001`, `out/server.log`, `trials/00-c0010-p1/argv/0001`.
pub struct RawFiles<'a> {
    read: Box<Read<'a>>,
    list: Box<List<'a>>,
}

type Read<'a> = dyn Fn(&str) -> Option<Vec<u8>> + 'a;
type List<'a> = dyn Fn(&str) -> Vec<String> + 'a;

impl<'a> RawFiles<'a> {
    /// Files behind two functions: the bytes of a file, and the names in a folder (none where there is none).
    pub fn new(read: impl Fn(&str) -> Option<Vec<u8>> + 'a, list: impl Fn(&str) -> Vec<String> + 'a) -> Self {
        Self { read: Box::new(read), list: Box::new(list) }
    }

    /// Regular files below a folder; no link is followed.
    pub fn folder(root: &'a Path) -> Self {
        let list = |folder: &str| {
            let Some(path) = below(root, folder) else { return Vec::new() };
            let entries = fs::read_dir(path).into_iter().flatten().flatten();
            entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
        };
        Self::new(|path| fs::read(below(root, path).filter(|path| path.is_file())?).ok(), list)
    }

    /// Files in memory, by path.
    pub fn memory(files: &'a BTreeMap<String, Vec<u8>>) -> Self {
        let list = |folder: &str| {
            let prefix = format!("{folder}/");
            let names = files.keys().filter_map(|path| path.strip_prefix(&prefix)?.split('/').next());
            names.map(str::to_owned).collect()
        };
        Self::new(|path| files.get(path).cloned(), list)
    }

    /// Returns the bytes of a file; `None` where there is no regular file.
    pub fn read(&self, path: &str) -> Option<Vec<u8>> {
        (self.read)(path)
    }

    /// Returns the names in a folder, in order, each once.
    pub fn list(&self, folder: &str) -> Vec<String> {
        let mut names = (self.list)(folder);
        names.sort_unstable();
        names.dedup();
        names
    }

    /// Returns the text of a file without the blanks around it; `None` for one that is not there or holds nothing.
    fn text(&self, path: &str) -> Option<String> {
        let bytes = self.read(path)?;
        let text = String::from_utf8_lossy(&bytes).trim().to_owned();
        (!text.is_empty()).then_some(text)
    }

    /// Returns the first word of a file.
    fn word(&self, path: &str) -> Option<String> {
        self.text(path)?.split_whitespace().next().map(str::to_owned)
    }

    /// Returns the JSON of an answer that had status 200 (or whose status was not kept).
    fn answer(&self, path: &str) -> Option<Value> {
        if self.word(&format!("{path}.code")).is_some_and(|code| code != "200") {
            return None;
        }
        serde_json::from_slice(&self.read(path)?).ok()
    }
}

fn below(root: &Path, path: &str) -> Option<std::path::PathBuf> {
    let mut full = root.to_owned();
    for part in Path::new(path).components() {
        let Component::Normal(name) = part else { return None };
        full.push(name);
        if fs::symlink_metadata(&full).ok()?.file_type().is_symlink() {
            return None;
        }
    }
    Some(full)
}

/// What must be known to read the files: whose they are, and what was planned around them.
#[derive(Debug, Clone, PartialEq)]
pub struct Ask {
    /// The engine.
    pub engine: Engine,
    /// Keys to record as unset where their place was looked at and they are not there.
    pub factor: Vec<FactKey>,
    /// Text that stands in the log of this arm.
    pub evidence: Option<String>,
    /// Texts that stand in the logs of the other arms.
    pub other_evidence: Vec<String>,
    /// Salt of the edition, for digests of values that are not kept.
    pub salt: String,
    /// Block of the session, from 1; `None` for a priming launch or a look.
    pub block: Option<u32>,
    /// Place in the block's order, from 1.
    pub position: u32,
    /// The arm that ran before, if any.
    pub previous: Option<String>,
    /// Digest of the host programs as sealed with the session; what the host itself observed wins.
    pub session_sha256: String,
    /// Rule set of the harness that recorded the session.
    pub rules: String,
}

/// Returns the facts of a session: everything that its trials share.
pub fn session_facts(files: &RawFiles, ask: &Ask) -> Fingerprint {
    let mut facts = Fingerprint::default();
    let info = info::Info::read(files);
    server::source(files, ask, &info, &mut facts);
    server::process(files, ask, &mut facts);
    scheduling::facts(files, &mut facts);
    server::readiness(files, &mut facts);
    server::evidence(files, ask, &mut facts);
    info.resolved(&mut facts);
    info.capacity(files, &mut facts);
    info.model(ask.engine, &mut facts);
    host::facts(files, &mut facts);
    gpu::facts(files, &info, &mut facts);
    printed(files, &mut facts);
    facts.text("order.position", ask.position.to_string());
    if let Some(block) = ask.block {
        facts.text("order.block", block.to_string());
    }
    if let Some(previous) = &ask.previous {
        facts.text("order.previous", previous);
    }
    if !ask.rules.is_empty() {
        facts.text("labbook.rules", &ask.rules);
    }
    let programs = files.word("out/programs-sha256").unwrap_or_else(|| ask.session_sha256.clone());
    if !programs.is_empty() {
        facts.text("labbook.session_sha256", programs);
    }
    let status = output::status(&files.read("out/status").unwrap_or_default());
    if let Some(line) = status.lines.first() {
        facts.text("time.utc_start", line.utc.to_string());
        facts.text("time.mono_start", format!("{:.2}", line.uptime_s));
    }
    facts
}

/// Returns the facts of one trial (`trials/00-c0010-p1`): client, load, counters and times. They go over those of its
/// session.
pub fn trial_facts(files: &RawFiles, folder: &str, ask: &Ask) -> Fingerprint {
    let mut facts = Fingerprint::default();
    let folder = folder.trim_matches('/');
    let written = workload::written(files, folder);
    workload::client(files, folder, ask, &written, &mut facts);
    workload::load(files, folder, &written, &mut facts);
    counters::facts(files, folder, ask.engine, &mut facts);
    times(files, folder, &mut facts);
    facts
}

fn times(files: &RawFiles, folder: &str, facts: &mut Fingerprint) {
    let at = |folder: &str, name: &str| output::instant(&files.text(&format!("out/{folder}/{name}"))?);
    let started = at(folder, "started");
    if let Some((utc, uptime_s)) = &started {
        facts.text("time.utc_start", utc.to_string());
        facts.text("time.mono_start", format!("{uptime_s:.2}"));
        if let Some(begin) = server::started_at(files) {
            facts.text("server.age_s", format!("{:.2}", uptime_s - begin));
        }
    }
    if let Some((utc, uptime_s)) = at(folder, "ended") {
        facts.text("time.utc_end", utc.to_string());
        facts.text("time.mono_end", format!("{uptime_s:.2}"));
    }
    let name = folder.rsplit('/').next().unwrap_or(folder);
    let trials = files.list("out/trials");
    let Some(place) = trials.iter().position(|trial| trial == name) else { return };
    facts.text("order.trial", (place + 1).to_string());
    if let Some(before) = place.checked_sub(1).map(|before| &trials[before])
        && let (Some((_, ended)), Some((_, started))) = (at(&format!("trials/{before}"), "ended"), started)
    {
        facts.text("order.idle_s", format!("{:.2}", started - ended));
    }
}

/// Facts that only a program on the host can find: a preflight command prints `labbook-fact KEY VALUE`, and only about what
/// it can know.
fn printed(files: &RawFiles, facts: &mut Fingerprint) {
    const MAY: [&str; 6] = [
        "packages.<name>",
        "binaries.<name>",
        "model.<name>",
        "nccl.version",
        "client.version",
        "client.module_sha256",
    ];
    for number in files.list("out/preflight") {
        let log = files.text(&format!("out/preflight/{number}/log")).unwrap_or_default();
        for line in log.lines() {
            let said = line.strip_prefix("labbook-fact ").and_then(|said| said.split_once(' '));
            if let Some((key, value)) = said
                && MAY.iter().any(|may| crate::fact::table::matches(may, key))
                // What the live server showed is not replaced by what a program before it said.
                && facts.get(key).is_none()
            {
                facts.text(key, value.trim());
            }
        }
    }
}

/// A value that was looked at twice: both when they differ.
fn moved(before: Option<FactValue>, after: Option<FactValue>) -> Option<FactValue> {
    match (before, after) {
        (Some(before), Some(after)) if !before.same(&after) => {
            Some(FactValue::List(vec![before.to_string(), after.to_string()]))
        }
        (Some(seen), _) | (None, Some(seen)) => Some(seen),
        (None, None) => None,
    }
}

/// Values by name, looked at twice: a name that is in one of them only was unset in the other.
fn moved_all(
    mut before: BTreeMap<String, FactValue>,
    after: Option<BTreeMap<String, FactValue>>,
) -> BTreeMap<String, FactValue> {
    let Some(mut after) = after else { return before };
    let names: BTreeSet<String> = before.keys().chain(after.keys()).cloned().collect();
    for name in names {
        let was = before.remove(&name).or_else(|| after.contains_key(&name).then_some(FactValue::Unset));
        let is = after.remove(&name).unwrap_or(FactValue::Unset);
        if let Some(was) = was {
            before.extend(moved(Some(was), Some(is)).map(|value| (name, value)));
        }
    }
    before
}

/// Keys of the factor below `prefix` that nobody set.
fn record_unset(prefix: &str, ask: &Ask, facts: &mut Fingerprint) {
    for key in ask.factor.iter().filter(|key| key.as_str().starts_with(prefix)) {
        if facts.get(key.as_str()).is_none() {
            facts.insert(key.clone(), FactValue::Unset);
        }
    }
}

#[cfg(test)]
mod tests;
