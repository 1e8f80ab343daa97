//! The manifest of an import: what is known about results that were measured elsewhere.
//!
//! Invariant: a manifest that was read has a question whose every name exists, and runs whose facts come from one place
//! each; every problem has its line and column.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;

use indexmap::IndexMap;

use crate::diagnostic::{Diagnostic, Diagnostics, Source, did_you_mean};
use crate::fact::table::{matches, row_of};
use crate::fact::{FactKey, FactValue, Fingerprint};
use crate::metric::Metric;
use crate::question::{Asked, Axis, Claim, Engine, Evidence, Expect, Headline, Level, Over, Question};
use crate::record::{Outcome, Tier};
use crate::yaml::{self, Fields, Node, Reader, Value, Written};

/// Client formats that can be read.
const FORMATS: [&str; 2] = ["sglang.bench_serving", "pocketmoe.load"];
/// No experiment has more blocks, passes or attempts.
const MOST: u64 = 1_000;
const AXES: [Axis; 3] = [Axis::Concurrency, Axis::RequestRate, Axis::InputTokens];

/// One run of a manifest.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    /// Its arm.
    pub arm: String,
    /// Its block, if known.
    pub block: Option<u32>,
    /// Which attempt at the block.
    pub attempt: u32,
    /// Name of the server launch.
    pub session: String,
    /// Place in the block's order, if known.
    pub position: Option<u32>,
    /// Level of the axis.
    pub level: Level,
    /// Pass in the session.
    pub pass: u32,
    /// What became of it.
    pub outcome: Outcome,
    /// Facts of all, of the session and of the run.
    pub facts: Fingerprint,
    /// Where its numbers are.
    pub numbers: Numbers,
}

/// Where the numbers of a run are.
#[derive(Debug, Clone, PartialEq)]
pub enum Numbers {
    /// In a file beside the manifest; the path as written, and where it is written.
    File(String, Range<usize>),
    /// Here, transcribed from a text.
    Values(BTreeMap<Metric, f64>),
    /// Nowhere.
    None,
}

/// A manifest that was read.
#[derive(Debug, Clone, PartialEq)]
pub struct Manifest {
    /// What it asks.
    pub question: Question,
    /// How much its runs may be used for.
    pub tier: Tier,
    /// Its runs in written order.
    pub runs: Vec<Entry>,
}

const KEYS: [&str; 18] = [
    "import",
    "tier",
    "experiment",
    "engine",
    "factor",
    "arms",
    "control",
    "entails",
    "evidence",
    "repeats",
    "passes",
    "margin",
    "headline",
    "claims",
    "workload",
    "source",
    "common",
    "sessions",
];

/// Reads a manifest.
///
/// # Errors
///
/// Every problem found, with its place; warnings stand beside a manifest that can be used.
pub fn read(source: &Arc<Source>) -> Result<(Manifest, Diagnostics), Diagnostics> {
    let root = yaml::parse(source)?;
    let mut reader = Reader::new(source);
    let manifest = manifest(&mut reader, &root);
    match manifest {
        Some(manifest) if !reader.diagnostics.has_errors() => Ok((manifest, reader.diagnostics)),
        _ => Err(reader.diagnostics),
    }
}

fn manifest(reader: &mut Reader, root: &Node) -> Option<Manifest> {
    let mut keys = KEYS.to_vec();
    keys.push("runs");
    let fields = reader.fields(root, "an import manifest", &keys)?;
    if let Some(node) = fields.require(reader, "import", "the version of the manifest: 1") {
        reader.whole(node, 1..=1);
    }
    provenance(reader, &fields);
    let tier = match fields.get("tier") {
        None => Tier::Foreign,
        Some(node) => match reader.one_of(node, "a tier", &["foreign", "measured"])? {
            0 => Tier::Foreign,
            _ => Tier::Measured,
        },
    };
    let (axis, levels) = levels(reader, &fields);
    let runs_node = fields.require(reader, "runs", "a list with one entry a client run")?;
    let run_nodes = reader.sequence(runs_node, "a list of runs")?;
    let shared = Shared::read(reader, &fields);
    let runs: Vec<Option<Entry>> = run_nodes.iter().map(|node| run(reader, node, axis, &shared)).collect();
    let runs: Vec<Entry> = runs.into_iter().collect::<Option<_>>()?;
    if runs.is_empty() {
        reader.problem(Diagnostic::error("no runs", runs_node.span.clone(), "expected at least one"));
    }
    let question = question(reader, &fields, tier, axis, levels, &runs)?;
    names_exist(reader, &question, run_nodes, &runs);
    Some(Manifest { question, tier, runs })
}

/// `source: {url, date, quoted}`: where transcribed numbers come from.
fn provenance(reader: &mut Reader, fields: &Fields) {
    if let Some(node) = fields.get("source")
        && let Some(source) = reader.fields(node, "a source", &["url", "date", "quoted"])
    {
        for key in ["url", "date", "quoted"] {
            if let Some(node) = source.get(key) {
                reader.text(node, "text");
            }
        }
    }
}

fn levels(reader: &mut Reader, fields: &Fields) -> (Axis, Vec<Level>) {
    let mut found = (Axis::Concurrency, Vec::new());
    let Some(node) = fields.get("workload") else { return found };
    let names = AXES.map(Axis::name);
    let Some(workload) = reader.fields(node, "a workload of an import", &names) else { return found };
    for axis in AXES {
        let Some(node) = workload.get(axis.name()) else { continue };
        if !found.1.is_empty() {
            reader.problem(Diagnostic::error("two load keys with levels", node.span.clone(), "one is the axis"));
        }
        let mut levels: Vec<Level> = Vec::new();
        for element in reader.one_or_many(node) {
            let Some(level) = level(reader, element) else { continue };
            if levels.contains(&level) {
                reader.problem(Diagnostic::error(
                    format!("level `{level}` stands twice"),
                    element.span.clone(),
                    "here",
                ));
            }
            levels.push(level);
        }
        found = (axis, levels);
    }
    found
}

fn level(reader: &mut Reader, node: &Node) -> Option<Level> {
    let text = reader.text(node, "a level")?;
    let number = Level(text.clone()).number();
    if number.is_nan() || number < 0.0 {
        reader.expected(node, "a number, or `inf`");
        return None;
    }
    Some(Level(text))
}

/// Facts of all runs and of each session, with the places of their keys.
struct Shared {
    common: Fingerprint,
    sessions: HashMap<String, Fingerprint>,
}

impl Shared {
    fn read(reader: &mut Reader, fields: &Fields) -> Self {
        let common = fields.get("common").map(|node| facts(reader, node, &[])).unwrap_or_default();
        let mut sessions = HashMap::new();
        if let Some(node) = fields.get("sessions")
            && let Some(pairs) = reader.mapping(node, "sessions by name")
        {
            for (name, node) in pairs {
                sessions.insert(name.text.clone(), facts(reader, node, &[&common]));
            }
        }
        Self { common, sessions }
    }
}

/// Reads facts; a key that also stands in `above` would leave open which one holds.
fn facts(reader: &mut Reader, node: &Node, above: &[&Fingerprint]) -> Fingerprint {
    let mut facts = Fingerprint::default();
    let Some(pairs) = reader.mapping(node, "facts by key") else { return facts };
    for (key, node) in pairs {
        let Some(value) = fact_value(reader, node) else { continue };
        if above.iter().any(|above| above.get(&key.text).is_some()) {
            let problem = Diagnostic::error(
                format!("fact `{}` also stands further up", key.text),
                key.span.clone(),
                "again here",
            );
            reader.problem(problem.help("keep it on one of the levels `common`, `sessions` and `runs`"));
        }
        if row_of(&key.text).is_none() {
            let problem = Diagnostic::warning(
                format!("`{}` is not a key of the table of facts", key.text),
                key.span.clone(),
                "it must agree between the arms",
            );
            reader.problem(problem);
        }
        facts.insert(key.text.as_str(), value);
    }
    facts
}

fn fact_value(reader: &mut Reader, node: &Node) -> Option<FactValue> {
    if let Value::Sequence(elements) = &node.value {
        let texts: Option<Vec<String>> =
            elements.iter().map(|element| reader.scalar(element, "text").map(|scalar| scalar.text.clone())).collect();
        return texts.map(FactValue::List);
    }
    let scalar = reader.scalar(node, "the value observed; leave the key out if it is unknown")?;
    Some(match (scalar.style, scalar.text.as_str()) {
        (Written::Plain, "unset") => FactValue::Unset,
        (Written::Plain, "set") => FactValue::Set,
        (_, text) => FactValue::text(text),
    })
}

fn run(reader: &mut Reader, node: &Node, axis: Axis, shared: &Shared) -> Option<Entry> {
    let fields = reader.fields(
        node,
        "a run",
        &[
            "arm",
            "block",
            "session",
            "position",
            "concurrency",
            "request_rate",
            "input_tokens",
            "pass",
            "attempt",
            "result",
            "values",
            "format",
            "facts",
            "status",
            "reason",
        ],
    )?;
    let whole = |reader: &mut Reader, key: &str| {
        fields.get(key).and_then(|node| reader.whole(node, 1..=MOST)).map(|number| number as u32)
    };
    let arm_node = fields.require(reader, "arm", "which arm was measured")?;
    let arm = reader.text(arm_node, "an arm")?;
    let level_node = fields.require(reader, axis.name(), "at which level")?;
    let level = level(reader, level_node)?;
    let session = match fields.get("session") {
        Some(node) => session(reader, node, shared)?,
        None => arm.clone(),
    };
    let mut facts = fields.get("facts").map_or_else(Fingerprint::default, |node| {
        let none = Fingerprint::default();
        let of_session = shared.sessions.get(&session).unwrap_or(&none);
        self::facts(reader, node, &[&shared.common, of_session])
    });
    facts.extend(&shared.common);
    if let Some(of_session) = shared.sessions.get(&session) {
        facts.extend(of_session);
    }
    Some(Entry {
        block: whole(reader, "block"),
        attempt: whole(reader, "attempt").unwrap_or_else(|| attempt_of(&session)),
        position: whole(reader, "position"),
        pass: whole(reader, "pass").unwrap_or(1),
        outcome: outcome(reader, &fields)?,
        numbers: numbers(reader, &fields)?,
        arm,
        session,
        level,
        facts,
    })
}

/// A second attempt at `b03-off` is the session `b03-off.2`.
fn attempt_of(session: &str) -> u32 {
    let suffix = session.rsplit_once('.').and_then(|(_, suffix)| suffix.parse::<u32>().ok());
    suffix.filter(|attempt| (2..=MOST as u32).contains(attempt)).unwrap_or(1)
}

fn session(reader: &mut Reader, node: &Node, shared: &Shared) -> Option<String> {
    let name = reader.text(node, "a session")?;
    if !shared.sessions.is_empty() && !shared.sessions.contains_key(&name) {
        let mut problem =
            Diagnostic::error(format!("session `{name}` does not exist"), node.span.clone(), "not a key of `sessions`");
        problem.help = did_you_mean(&name, shared.sessions.keys().map(String::as_str))
            .map(|near| format!("did you mean `{near}`?"));
        reader.problem(problem);
    }
    Some(name)
}

fn outcome(reader: &mut Reader, fields: &Fields) -> Option<Outcome> {
    let Some(node) = fields.get("status") else { return Some(Outcome::Finished) };
    let status = reader.one_of(node, "a status", &["finished", "failed", "superseded", "excluded"])?;
    if status == 0 {
        return Some(Outcome::Finished);
    }
    let reason = fields.require(reader, "reason", "why the run does not count")?;
    let reason = reader.text(reason, "a reason")?;
    Some(match status {
        1 => Outcome::Failed(reason),
        2 => Outcome::Superseded(reason),
        _ => Outcome::Excluded(reason),
    })
}

fn numbers(reader: &mut Reader, fields: &Fields) -> Option<Numbers> {
    if let Some(node) = fields.get("format") {
        reader.one_of(node, "a format", &FORMATS)?;
    }
    match (fields.get("result"), fields.get("values")) {
        (Some(_), Some(values)) => {
            let problem = Diagnostic::error("`result` and `values` in one run", values.span.clone(), "one of them");
            reader.problem(problem.help("`values` is for numbers that have no raw file"));
            None
        }
        (Some(node), None) => {
            let path = reader.text(node, "a path beside the manifest")?;
            if !is_inside(&path) {
                let problem = Diagnostic::error(
                    format!("`{}` leads out of the manifest's folder", path.escape_debug()),
                    node.span.clone(),
                    "here",
                );
                reader.problem(problem.help("copy the file beside the manifest and name it without `..`"));
                return None;
            }
            Some(Numbers::File(path, node.span.clone()))
        }
        (None, Some(node)) => values(reader, node).map(Numbers::Values),
        (None, None) => Some(Numbers::None),
    }
}

/// Returns whether a path stays in its folder, on every system.
pub fn is_inside(path: &str) -> bool {
    let plain = |part: &str| !part.is_empty() && part != "." && part != "..";
    path.split('/').all(plain) && !path.contains(['\\', ':']) && !path.chars().any(char::is_control)
}

fn values(reader: &mut Reader, node: &Node) -> Option<BTreeMap<Metric, f64>> {
    let mut values = BTreeMap::new();
    for (key, node) in reader.mapping(node, "values by metric")? {
        let metric = metric_of(reader, &key.text, &key.span)?;
        let value = reader.number(node, 0.0..=f64::MAX)?;
        values.insert(metric, value);
    }
    Some(values)
}

fn metric_of(reader: &mut Reader, name: &str, span: &Range<usize>) -> Option<Metric> {
    let found = Metric::parse(name);
    if found.is_none() {
        let names: Vec<String> = Metric::all().into_iter().map(Metric::name).collect();
        let mut problem =
            Diagnostic::error(format!("`{name}` is not a metric"), span.clone(), "not in the closed list");
        problem.help =
            did_you_mean(name, names.iter().map(String::as_str)).map(|near| format!("did you mean `{near}`?"));
        reader.problem(problem);
    }
    found
}

fn metric(reader: &mut Reader, fields: &Fields) -> Option<Metric> {
    let node = fields.require(reader, "metric", "what is compared")?;
    let name = reader.text(node, "a metric")?;
    metric_of(reader, &name, &node.span)
}

fn question(
    reader: &mut Reader,
    fields: &Fields,
    tier: Tier,
    axis: Axis,
    mut levels: Vec<Level>,
    runs: &[Entry],
) -> Option<Question> {
    let experiment = experiment(reader, fields)?;
    let engine = match fields.get("engine") {
        Some(node) => {
            let names = Engine::NAMES.map(|(name, _)| name);
            Some(Engine::NAMES[reader.one_of(node, "an engine", &names)?].1)
        }
        None if tier == Tier::Measured => {
            fields.require(reader, "engine", "it says which facts must be known")?;
            None
        }
        None => None,
    };
    let factor_node = fields.require(reader, "factor", "what is varied on purpose")?;
    let mut factor = Vec::new();
    for node in reader.one_or_many(factor_node) {
        factor.push(FactKey::new(reader.text(node, "a key such as `server.env.NAME`")?));
    }
    let arms = arms(reader, fields, tier, &factor, runs)?;
    let control_node = fields.require(reader, "control", "the arm that the others are compared with")?;
    let control = one_of_arms(reader, control_node, &arms)?;
    if levels.is_empty() {
        for run in runs {
            if !levels.contains(&run.level) {
                levels.push(run.level.clone());
            }
        }
    }
    let count = |reader: &mut Reader, key: &str| fields.get(key).and_then(|node| reader.whole(node, 1..=MOST));
    Some(Question {
        experiment,
        engine,
        factor,
        entails: entails(reader, fields),
        evidence: evidence(reader, fields, &arms),
        axis,
        repeats: count(reader, "repeats").unwrap_or(0) as u32,
        passes: count(reader, "passes").unwrap_or(1) as u32,
        margin: fields.get("margin").and_then(|node| reader.percent(node, 0.0001..=0.5)),
        headline: headline(reader, fields, &arms, &control, &levels),
        claims: claims(reader, fields, &arms, &control, &levels),
        levels,
        control,
        arms,
    })
}

/// Whether an experiment of this name can have a folder among the results.
pub(super) fn is_folder_name(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    !name.is_empty() && name.len() <= 100 && name.bytes().all(plain) && !name.starts_with(['.', '-'])
}

/// The experiment's name becomes a folder.
fn experiment(reader: &mut Reader, fields: &Fields) -> Option<String> {
    let node = fields.require(reader, "experiment", "the name of the experiment")?;
    let name = reader.text(node, "a name")?;
    if !is_folder_name(&name) {
        let problem =
            Diagnostic::error(format!("`{}` cannot be a folder", name.escape_debug()), node.span.clone(), "here");
        reader.problem(
            problem.help("use letters, digits, `-`, `_` and `.`, at most 100, and begin with a letter or a digit"),
        );
        return None;
    }
    Some(name)
}

fn asked(reader: &mut Reader, node: &Node) -> Option<Asked> {
    Some(match fact_value(reader, node)? {
        FactValue::Unset => Asked::Unset,
        FactValue::Set => Asked::Set,
        FactValue::Text(text) => Asked::Text(text),
        FactValue::List(elements) => Asked::List(elements),
    })
}

fn arms(
    reader: &mut Reader,
    fields: &Fields,
    tier: Tier,
    factor: &[FactKey],
    runs: &[Entry],
) -> Option<IndexMap<String, Vec<Asked>>> {
    let node = match fields.get("arms") {
        None if tier == Tier::Foreign => return Some(arms_of(factor, runs)),
        _ => fields.require(reader, "arms", "each arm and its value of the factor")?,
    };
    let mut arms = IndexMap::new();
    for (name, node) in reader.mapping(node, "arms by name")? {
        let values = match (&node.value, factor.len()) {
            (_, 1) => vec![asked(reader, node)?],
            (Value::Sequence(elements), keys) if elements.len() == keys => {
                elements.iter().map(|element| asked(reader, element)).collect::<Option<_>>()?
            }
            (_, keys) => {
                reader.expected(node, &format!("{keys} values, one for each key of the factor"));
                return None;
            }
        };
        arms.insert(name.text.clone(), values);
    }
    if arms.len() < 2 {
        reader.problem(Diagnostic::error("fewer than two arms", node.span.clone(), "nothing to compare"));
    }
    Some(arms)
}

/// Without `arms`, foreign runs name them; what they asked for is what was observed, or else nothing but their name.
fn arms_of(factor: &[FactKey], runs: &[Entry]) -> IndexMap<String, Vec<Asked>> {
    let mut arms = IndexMap::new();
    for run in runs.iter().filter(|run| !run.arm.is_empty()) {
        let value = |key: &FactKey| match run.facts.get(key.as_str()) {
            Some(FactValue::Unset) => Asked::Unset,
            Some(FactValue::Set) => Asked::Set,
            Some(FactValue::Text(text)) => Asked::Text(text.clone()),
            Some(FactValue::List(elements)) => Asked::List(elements.clone()),
            None => Asked::Text(run.arm.clone()),
        };
        arms.entry(run.arm.clone()).or_insert_with(|| factor.iter().map(value).collect());
    }
    arms
}

fn one_of_arms(reader: &mut Reader, node: &Node, arms: &IndexMap<String, Vec<Asked>>) -> Option<String> {
    let names: Vec<&str> = arms.keys().map(String::as_str).collect();
    let index = reader.one_of(node, "an arm", &names)?;
    Some(names[index].to_owned())
}

/// Outputs only: an input that differs is part of the factor or a confound.
fn entails(reader: &mut Reader, fields: &Fields) -> Vec<String> {
    let mut entails = Vec::new();
    let Some(node) = fields.get("entails") else { return entails };
    for node in reader.one_or_many(node) {
        let Some(key) = reader.text(node, "a key such as `server.resolved.NAME`") else { continue };
        if matches("server.resolved.<name>", &key) || matches("server.capacity.<name>", &key) {
            entails.push(key);
        } else {
            let problem =
                Diagnostic::error(format!("`{key}` is not an output"), node.span.clone(), "an input is never entailed");
            reader.problem(problem.help(
                "only `server.resolved.*` and `server.capacity.*` follow from a factor; make it part of the factor",
            ));
        }
    }
    entails
}

fn evidence(reader: &mut Reader, fields: &Fields, arms: &IndexMap<String, Vec<Asked>>) -> IndexMap<String, Evidence> {
    let mut evidence = IndexMap::new();
    let Some(node) = fields.get("evidence") else { return evidence };
    for (arm, node) in reader.mapping(node, "evidence by arm").unwrap_or_default() {
        if !arms.contains_key(&arm.text) {
            reader.problem(Diagnostic::error(format!("`{}` is not an arm", arm.text), arm.span.clone(), "here"));
        }
        if let Some(fields) = reader.fields(node, "evidence", &["log"])
            && let Some(node) = fields.require(reader, "log", "text that the server logs when the treatment is active")
            && let Some(log) = reader.text(node, "text of the log")
        {
            evidence.insert(arm.text.clone(), Evidence { log });
        }
    }
    evidence
}

fn treatment(
    reader: &mut Reader,
    fields: &Fields,
    arms: &IndexMap<String, Vec<Asked>>,
    control: &str,
) -> Option<String> {
    let node = fields.require(reader, "treatment", "the arm that is compared with the control")?;
    let arm = one_of_arms(reader, node, arms)?;
    if arm == control {
        reader.problem(Diagnostic::error(format!("`{arm}` is the control"), node.span.clone(), "expected another arm"));
        return None;
    }
    Some(arm)
}

fn planned_level(reader: &mut Reader, node: &Node, levels: &[Level]) -> Option<Level> {
    let level = level(reader, node)?;
    if !levels.contains(&level) {
        let planned: Vec<String> = levels.iter().map(|level| format!("`{level}`")).collect();
        let problem = Diagnostic::error(format!("level `{level}` is not planned"), node.span.clone(), "here");
        reader.problem(problem.help(format!("planned are {}", planned.join(", "))));
        return None;
    }
    Some(level)
}

fn headline(
    reader: &mut Reader,
    fields: &Fields,
    arms: &IndexMap<String, Vec<Asked>>,
    control: &str,
    levels: &[Level],
) -> Option<Headline> {
    let node = fields.get("headline")?;
    let fields = reader.fields(node, "a headline", &["metric", "treatment", "over"])?;
    let metric = metric(reader, &fields);
    let treatment = treatment(reader, &fields, arms, control);
    let over = match fields.get("over") {
        None => Over::All,
        Some(node) if matches!(&node.value, Value::Scalar(scalar) if scalar.text == "all") => Over::All,
        Some(node) => Over::At(planned_level(reader, node, levels)?),
    };
    Some(Headline { metric: metric?, treatment: treatment?, over })
}

fn claims(
    reader: &mut Reader,
    fields: &Fields,
    arms: &IndexMap<String, Vec<Asked>>,
    control: &str,
    levels: &[Level],
) -> IndexMap<String, Claim> {
    let mut claims = IndexMap::new();
    let Some(node) = fields.get("claims") else { return claims };
    for (name, node) in reader.mapping(node, "claims by name").unwrap_or_default() {
        if let Some(claim) = claim(reader, node, arms, control, levels) {
            claims.insert(name.text.clone(), claim);
        }
    }
    claims
}

fn claim(
    reader: &mut Reader,
    node: &Node,
    arms: &IndexMap<String, Vec<Asked>>,
    control: &str,
    levels: &[Level],
) -> Option<Claim> {
    let fields = reader.fields(node, "a claim", &["metric", "treatment", "at", "expect", "by"])?;
    let metric = metric(reader, &fields);
    let treatment = treatment(reader, &fields, arms, control);
    let at = fields.require(reader, "at", "at which level").and_then(|node| planned_level(reader, node, levels));
    let names = Expect::NAMES.map(|(name, _)| name);
    let expect = fields.require(reader, "expect", "what is expected of the ratio")?;
    let expect = Expect::NAMES[reader.one_of(expect, "an expectation", &names)?].1;
    let by = fields.get("by").and_then(|node| {
        if !matches!(expect, Expect::Higher | Expect::Lower) {
            let problem = Diagnostic::error("`by` without a direction", node.span.clone(), "here");
            reader
                .problem(problem.help("`by` goes with `higher` and `lower`; for the others the margin says how much"));
        }
        reader.percent(node, 0.0001..=100.0)
    });
    Some(Claim { metric: metric?, treatment: treatment?, at: at?, expect, by })
}

fn names_exist(reader: &mut Reader, question: &Question, nodes: &[Node], runs: &[Entry]) {
    for (node, run) in nodes.iter().zip(runs) {
        if !question.arms.contains_key(&run.arm) {
            let mut problem = Diagnostic::error(format!("`{}` is not an arm", run.arm), node.span.clone(), "this run");
            problem.help = did_you_mean(&run.arm, question.arms.keys().map(String::as_str))
                .map(|near| format!("did you mean `{near}`?"));
            reader.problem(problem);
        }
        if !question.levels.contains(&run.level) {
            let problem =
                Diagnostic::error(format!("level `{}` is not planned", run.level), node.span.clone(), "this run");
            reader.problem(problem.help("add it under `workload`, or leave the run out"));
        }
    }
}
