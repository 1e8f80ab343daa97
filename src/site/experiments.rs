//! The page of an experiment: what was asked, what came out, what fired, and the runs behind it.

use std::fmt::Write as _;

use serde::Serialize;

use crate::comparison::Reason;
use crate::directive::ChartKind;
use crate::fact::{FactKey, Fingerprint};
use crate::finding::Outcome as Found;
use crate::metric::Metric;
use crate::question::{Axis, Question};
use crate::record::{Outcome, Record};
use crate::report::{comparison as report, sentence};
use crate::rules;
use crate::run::Kind;
use crate::spec::Spec;

use super::library::{Library, Measured, Planned, Study};
use super::place;
use super::templates::{TemplateError, Templates};
use super::text::relative;
use super::view::{self, ClaimLine, Family, Link, Note};

/// A name and what it is.
#[derive(Debug, Serialize)]
pub(super) struct Pair {
    pub(super) name: String,
    pub(super) value: String,
}

pub(super) fn pair(name: &str, value: impl Into<String>) -> Pair {
    Pair { name: name.to_owned(), value: value.into() }
}

#[derive(Serialize)]
struct View {
    name: String,
    edition: String,
    title: String,
    question: String,
    hypothesis: String,
    outcome: String,
    kind: String,
    headline: String,
    summary: String,
    banners: Vec<String>,
    design: Vec<Pair>,
    shared: Vec<Pair>,
    claims: Vec<ClaimLine>,
    families: Vec<Family>,
    fired: Vec<Note>,
    consequences: Vec<Pair>,
    unobserved: Vec<String>,
    floor: String,
    counts: String,
    set_aside: Vec<String>,
    blocks: Vec<Block>,
    beside: Vec<Link>,
    reproduce: Vec<String>,
    raw: Vec<Link>,
    editions: Vec<Link>,
    references: Vec<Pair>,
}

#[derive(Serialize)]
struct Block {
    name: String,
    sessions: Vec<Session>,
}

#[derive(Serialize)]
struct Session {
    link: Link,
    note: String,
    runs: Vec<Link>,
}

/// Prints the page of an edition.
///
/// # Errors
///
/// A template that asks for what is not there.
pub(super) fn page(library: &Library, study: &Study, templates: &Templates) -> Result<String, TemplateError> {
    templates.print("experiment.html", &view(library, study)?)
}

fn view(library: &Library, study: &Study) -> Result<View, TemplateError> {
    let from = &place::experiment(&study.name, &study.edition);
    let (question, findings) = (&study.question, &study.findings);
    let spec = study.measured.as_ref().map(|measured| &measured.spec);
    let mut drawn: Vec<Metric> = Vec::new();
    let mut families = view::tables(study, from, None);
    for family in &mut families {
        // One picture shows every treatment of a metric; it stands above the first table.
        let metric = Metric::parse(&family.metric).filter(|metric| !drawn.contains(metric));
        if let Some(metric) = metric {
            drawn.push(metric);
            family.charts = [ChartKind::Throughput, ChartKind::Effect]
                .into_iter()
                .map(|kind| super::charts::of(study, metric, kind, ""))
                .collect::<Result<Vec<_>, _>>()?
                .concat();
        }
    }
    let others = library.of(&study.name).filter(|other| other.edition != study.edition);
    Ok(View {
        name: study.name.clone(),
        edition: study.edition.clone(),
        title: study.title().to_owned(),
        question: spec.map_or(String::new(), |spec| spec.asks.clone()),
        hypothesis: spec.and_then(|spec| spec.hypothesis.clone()).unwrap_or_default(),
        outcome: findings.outcome.name().to_owned(),
        kind: super::chapters::kind(findings.outcome).to_owned(),
        headline: findings.headline.as_ref().map_or(String::new(), |found| report::headline_text(question, found)),
        summary: report::summary(question, findings),
        banners: banners(library, study),
        design: design(question, spec),
        shared: shared(study),
        claims: view::claims(study, from),
        families,
        fired: fired(study, from),
        consequences: consequences(study),
        unobserved: unobserved(study),
        floor: floor(study),
        counts: counts(study),
        set_aside: set_aside(study),
        blocks: study
            .measured
            .as_ref()
            .map_or_else(|| imported_blocks(study, from), |measured| blocks(study, measured, from)),
        beside: study.measured.as_ref().map_or_else(Vec::new, |measured| beside(study, measured, from)),
        reproduce: reproduce(study),
        raw: raw(study, from),
        editions: others
            .map(|other| Link {
                text: other.edition.clone(),
                href: relative(from, &place::experiment(&other.name, &other.edition)),
            })
            .collect(),
        references: spec.map_or_else(Vec::new, references),
    })
}

/// What a reader must know before anything else.
fn banners(library: &Library, study: &Study) -> Vec<String> {
    let mut banners = Vec::new();
    let has_spec = library.specs.iter().any(|planned| planned.name == study.name);
    if study.findings.outcome == Found::Foreign {
        banners.push("foreign: measured elsewhere; no verdict, and nobody's baseline".to_owned());
    }
    if let Some(measured) = &study.measured {
        if !study.current && has_spec {
            banners.push("the spec has another design by now: these runs are of an earlier edition".to_owned());
        } else if !has_spec {
            banners.push("the spec of this experiment is not in the lab any more".to_owned());
        }
        if measured.protocol_changed {
            let what = "claims, margin, headline or repeats of the spec were changed after they were registered";
            banners.push(format!("{what}; judged by what was registered before the first start"));
        }
        banners.extend(measured.spec.allow.iter().map(|(setting, why)| format!("allowed here: {setting}: {why}")));
    }
    for arm in study.question.treatments().filter(|arm| study.question.is_null_control(arm)) {
        let control = &study.question.control;
        banners.push(format!("{arm} asks for the same values as {control}: a null control, which shows the noise"));
    }
    banners
}

pub(super) fn design(question: &Question, spec: Option<&Spec>) -> Vec<Pair> {
    let factor: Vec<&str> = question.factor.iter().map(FactKey::as_str).collect();
    let mut pairs = vec![pair("varies", factor.join(" and "))];
    for (arm, asked) in &question.arms {
        let values: Vec<String> = asked.iter().map(ToString::to_string).collect();
        let control = if *arm == question.control { " (control)" } else { "" };
        pairs.push(pair(&format!("arm {arm}{control}"), values.join(", ")));
    }
    let levels: Vec<&str> = question.levels.iter().map(|level| level.0.as_str()).collect();
    pairs.push(pair(question.axis.name(), levels.join(", ")));
    pairs.push(pair("blocks", question.repeats.to_string()));
    if question.passes > 1 {
        pairs.push(pair("passes", question.passes.to_string()));
    }
    let margin = question.margin.map_or_else(
        || "1 %, or the noise floor if that is larger".to_owned(),
        |margin| format!("{} %", sentence::plain(margin * 100.0)),
    );
    pairs.push(pair("margin", margin));
    for (arm, evidence) in &question.evidence {
        pairs.push(pair(&format!("evidence of {arm}"), format!("in the server's log: {}", evidence.log)));
    }
    if let Some(spec) = spec {
        pairs.push(pair("engine", spec.server.engine.name()));
        pairs.extend(spec.server.model.iter().map(|model| pair("model", model.clone())));
        let load = &spec.workload;
        let input = load.input_tokens.map_or_else(|| "varied".to_owned(), |tokens| tokens.to_string());
        let tokens = format!("{input} in, {} out", load.output_tokens);
        pairs.push(pair("tokens per request", tokens));
        pairs.push(pair("prompts per user", load.prompts_per_user.to_string()));
        pairs.push(pair("hosts", spec.hosts.join(", ")));
    }
    pairs
}

/// The facts on which all runs of all conditions agree.
fn shared(study: &Study) -> Vec<Pair> {
    first_asked(&report::shared(&study.findings.conditions))
}

/// The facts that a reader asks for first.
fn first_asked(facts: &Fingerprint) -> Vec<Pair> {
    let named = report::HEADER.iter();
    named.filter_map(|(name, keys)| Some(pair(name, report::joined(facts, keys)?))).collect()
}

/// Every reason of every condition, once, the most severe first.
fn fired(study: &Study, from: &str) -> Vec<Note> {
    let mut known: Vec<(&Reason, Vec<String>)> = Vec::new();
    for found in &study.findings.conditions {
        let place = format!("{} at {}", found.condition.treatment, found.condition.level);
        for reason in &found.reasons {
            match known.iter_mut().find(|(other, _)| other.name == reason.name && other.severity == reason.severity) {
                Some((_, places)) => places.push(place.clone()),
                None => known.push((reason, vec![place.clone()])),
            }
        }
    }
    known.sort_by_key(|(reason, _)| (reason.severity, reason.name.clone()));
    let all = study.findings.conditions.len();
    known
        .into_iter()
        .map(|(reason, mut places)| {
            places.dedup();
            let place =
                if places.len() == all { ", everywhere".to_owned() } else { format!(", {}", places.join("; ")) };
            view::note(reason, 0, from, place)
        })
        .collect()
}

fn consequences(study: &Study) -> Vec<Pair> {
    let mut pairs: Vec<Pair> = Vec::new();
    for difference in study.findings.conditions.iter().flat_map(|found| &found.context.consequences) {
        if pairs.iter().any(|pair| pair.name == difference.key) {
            continue;
        }
        let shown = |value: &Option<crate::fact::FactValue>| {
            value.as_ref().map_or_else(|| "(absent)".to_owned(), ToString::to_string)
        };
        let both = format!("{} → {}", shown(&difference.control), shown(&difference.treatment));
        pairs.push(pair(&difference.key, both));
    }
    pairs.sort_by(|one, other| one.name.cmp(&other.name));
    pairs
}

fn unobserved(study: &Study) -> Vec<String> {
    let mut keys: Vec<String> =
        study.findings.conditions.iter().flat_map(|found| found.context.unobserved.iter().cloned()).collect();
    keys.sort();
    keys.dedup();
    keys
}

fn floor(study: &Study) -> String {
    let known = study.findings.conditions.iter().filter_map(|found| {
        let percent = found.floor?.exp_m1() * 100.0;
        Some(format!("{} {} % at {}", found.condition.metric, sentence::plain(percent), found.condition.level))
    });
    let mut known: Vec<String> = known.collect();
    known.sort();
    known.dedup();
    if known.is_empty() { "not measured".to_owned() } else { known.join(", ") }
}

/// What became of the planned runs: `40 runs planned, 39 shown, 1 excluded`.
fn counts(study: &Study) -> String {
    let question = &study.question;
    let count = |wanted: fn(&Outcome) -> bool| study.records.iter().filter(|record| wanted(&record.outcome)).count();
    let words = [
        (count(|outcome| matches!(outcome, Outcome::Failed(_))), "failed"),
        (count(|outcome| matches!(outcome, Outcome::Superseded(_))), "superseded"),
        (count(|outcome| matches!(outcome, Outcome::Excluded(_))), "excluded"),
    ];
    let finished = count(|outcome| matches!(outcome, Outcome::Finished));
    let blocks = study.measured.as_ref().map_or(question.repeats, |measured| measured.standing.blocks) as usize;
    let planned = blocks * question.arms.len() * question.levels.len() * question.passes as usize;
    let mut text = if planned == 0 { String::new() } else { format!("{planned} runs planned, ") };
    let _ = write!(text, "{finished} shown");
    for (number, word) in words.into_iter().filter(|(number, _)| *number > 0) {
        let _ = write!(text, ", {number} {word}");
    }
    text
}

fn set_aside(study: &Study) -> Vec<String> {
    let mut told: Vec<String> = Vec::new();
    for record in &study.records {
        let why = match &record.outcome {
            Outcome::Finished => continue,
            Outcome::Failed(why) => format!("failed: {why}"),
            Outcome::Superseded(why) => format!("superseded: {why}"),
            Outcome::Excluded(why) => format!("excluded: {why}"),
        };
        let block = record.block.map_or_else(|| "?".to_owned(), |block| block.to_string());
        let line = format!("block {block}, attempt {}, {}: {why}", record.attempt, record.arm);
        if !told.contains(&line) {
            told.push(line);
        }
    }
    told
}

fn outcome_note(record: Option<&Record>) -> String {
    match record.map(|record| &record.outcome) {
        Some(Outcome::Failed(_)) => "failed".to_owned(),
        Some(Outcome::Superseded(_)) => "superseded".to_owned(),
        Some(Outcome::Excluded(_)) => "excluded".to_owned(),
        _ => String::new(),
    }
}

fn blocks(study: &Study, measured: &Measured, from: &str) -> Vec<Block> {
    let mut blocks: Vec<(u32, Block)> = Vec::new();
    for sealed in measured.sessions.iter().filter(|sealed| sealed.session.kind == Kind::Block) {
        let session = &sealed.session;
        let Some(number) = session.block else { continue };
        let first = sealed.runs.first().and_then(|run| study.record(run.id));
        let entry = Session {
            link: Link {
                text: session.session.clone(),
                href: relative(from, &place::session(&study.name, &study.edition, &session.session)),
            },
            note: outcome_note(first),
            runs: sealed
                .runs
                .iter()
                .map(|run| Link {
                    text: run.run.level.to_string(),
                    href: relative(from, &place::run(&study.name, &study.edition, &run.run.session, &run.run.trial)),
                })
                .collect(),
        };
        match blocks.iter_mut().find(|(known, _)| *known == number) {
            Some((_, block)) => block.sessions.push(entry),
            None => blocks.push((number, Block { name: number.to_string(), sessions: vec![entry] })),
        }
    }
    blocks.sort_by_key(|(number, _)| *number);
    blocks.into_iter().map(|(_, block)| block).collect()
}

fn imported_blocks(study: &Study, from: &str) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    for record in &study.records {
        let name = record.block.map_or_else(|| "?".to_owned(), |block| block.to_string());
        let run = Link {
            text: record.level.to_string(),
            href: relative(from, &place::run(&study.name, &study.edition, &record.session, &study.trial(record))),
        };
        let at = blocks.iter().position(|block| block.name == name).unwrap_or_else(|| {
            blocks.push(Block { name, sessions: Vec::new() });
            blocks.len() - 1
        });
        let sessions = &mut blocks[at].sessions;
        match sessions.iter_mut().find(|session| session.link.text == record.session) {
            Some(session) => session.runs.push(run),
            None => sessions.push(Session {
                link: Link {
                    text: record.session.clone(),
                    href: relative(from, &place::session(&study.name, &study.edition, &record.session)),
                },
                note: outcome_note(Some(record)),
                runs: vec![run],
            }),
        }
    }
    blocks
}

/// Sessions that are recorded and never averaged.
fn beside(study: &Study, measured: &Measured, from: &str) -> Vec<Link> {
    let others = measured.sessions.iter().filter(|sealed| sealed.session.kind != Kind::Block);
    others
        .map(|sealed| Link {
            text: sealed.session.session.clone(),
            href: relative(from, &place::session(&study.name, &study.edition, &sealed.session.session)),
        })
        .collect()
}

fn reproduce(study: &Study) -> Vec<String> {
    let name = &study.name;
    if study.measured.is_none() {
        return vec![format!("labbook compare {name}")];
    }
    vec![
        "labbook check".to_owned(),
        format!("labbook compare {name}"),
        format!("labbook run experiments/{name}.yaml --more 3"),
    ]
}

/// The frozen files of an edition, or the manifest of an import.
fn raw(study: &Study, from: &str) -> Vec<Link> {
    let names: &[&str] = if study.measured.is_some() {
        &["spec.yaml", "design.json", "plan.json"]
    } else {
        &["manifest.yaml", "import.json"]
    };
    names
        .iter()
        .map(|name| Link {
            text: (*name).to_owned(),
            href: relative(from, &place::raw(&study.name, &study.edition, name)),
        })
        .collect()
}

pub(super) fn references(spec: &Spec) -> Vec<Pair> {
    spec.references
        .iter()
        .map(|(name, reference)| {
            let place = reference.at.as_ref().map_or(String::new(), |level| format!(" at {level}"));
            let value = format!("{} {}{place}: {}", sentence::plain(reference.value), reference.unit, reference.why);
            pair(name, value)
        })
        .collect()
}

#[derive(Serialize)]
struct PlannedView {
    name: String,
    edition: String,
    title: String,
    question: String,
    hypothesis: String,
    design: Vec<Pair>,
    claims: Vec<Pair>,
    references: Vec<Pair>,
    spec: String,
}

/// Prints the page of a spec that has no results.
///
/// # Errors
///
/// A template that asks for what is not there.
pub(super) fn planned(planned: &Planned, templates: &Templates) -> Result<String, TemplateError> {
    let spec = &planned.spec;
    let axis: Axis = spec.question.axis;
    let claims = spec.question.claims.iter().map(|(name, claim)| {
        let place = sentence::at_level(axis, &claim.at.0);
        pair(
            name,
            format!("{} of {} at {place}: {}", claim.metric, claim.treatment, claim.expect.name().replace('_', " ")),
        )
    });
    templates.print(
        "planned.html",
        &PlannedView {
            name: planned.name.clone(),
            edition: planned.edition.clone(),
            title: spec.title.clone(),
            question: spec.asks.clone(),
            hypothesis: spec.hypothesis.clone().unwrap_or_default(),
            design: design(&spec.question, Some(spec)),
            claims: claims.collect(),
            references: references(spec),
            spec: format!("experiments/{}.yaml", planned.name),
        },
    )
}

/// The rules in force, as a page names them.
pub(super) fn rules_version() -> String {
    rules::VERSION.to_string()
}

/// Where the numbers of an experiment or of a run come from.
#[derive(Debug, Serialize)]
pub(super) struct ProvenanceView {
    of: Link,
    agree: Vec<Pair>,
    vary: Vec<Pair>,
    follow: Vec<Pair>,
    unknown: Vec<String>,
    refuses: Vec<Note>,
}

/// Returns which facts all arms of an experiment agree on, and which differ.
pub(super) fn provenance(study: &Study, from: &str) -> ProvenanceView {
    let mut refuses = fired(study, from);
    refuses.retain(|note| note.severity == report::severity(crate::validity::Severity::Block));
    ProvenanceView {
        of: Link {
            text: format!("{} {}", study.name, study.edition),
            href: relative(from, &place::experiment(&study.name, &study.edition)),
        },
        agree: shared(study),
        vary: varies(&study.question),
        follow: consequences(study),
        unknown: unobserved(study),
        refuses,
    }
}

fn varies(question: &Question) -> Vec<Pair> {
    let keys = question.factor.iter().enumerate();
    keys.map(|(at, key)| {
        let values = question.arms.iter().filter_map(|(arm, asked)| Some(format!("{arm}: {}", asked.get(at)?)));
        pair(key.as_str(), values.collect::<Vec<_>>().join(" | "))
    })
    .collect()
}

/// Returns what was observed of one run, the facts that a reader asks for first.
pub(super) fn provenance_of_run(study: &Study, record: &Record, from: &str) -> ProvenanceView {
    let to = place::run(&study.name, &study.edition, &record.session, &study.trial(record));
    let vary = study.question.factor.iter().map(|key| {
        let value = record.facts.get(key.as_str()).map_or_else(|| "(not observed)".to_owned(), ToString::to_string);
        pair(key.as_str(), value)
    });
    ProvenanceView {
        of: Link { text: format!("run {}", record.id.short(8)), href: relative(from, &to) },
        agree: first_asked(&record.facts),
        vary: vary.collect(),
        follow: Vec::new(),
        unknown: Vec::new(),
        refuses: Vec::new(),
    }
}
