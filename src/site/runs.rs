//! Session and run pages: plain HTML beside the chapters, and the raw files that they link to.
//!
//! Invariant: every file of the record is in the site with the bytes that its digest was taken of, and a run's page names the digest
//! of each. The many inputs of a word or two stand on the page itself; all others are files, under names that no browser runs.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use serde::Serialize;

use crate::digest::Digest;
use crate::metric::Metric;
use crate::record::{Outcome, Record, Tier};
use crate::report::sentence;
use crate::rules;
use crate::run::{Files, Kind};
use crate::store::{Edition, SealedFiles, SealedRun, SealedSession, Store};
use crate::validity;

use super::evidence::in_parallel;
use super::experiments::{Pair, pair};
use super::library::{Library, Measured, Study};
use super::place;
use super::templates::{TemplateError, Templates};
use super::text::relative;
use super::tree::{Content, Tree, TreeError};
use super::view::{Link, Note};

/// Longest observed value that is shown whole, characters.
const LONGEST_VALUE: usize = 480;

/// Why pages of runs could not be made.
#[derive(Debug, thiserror::Error)]
pub enum RunsError {
    /// A template that asks for what is not there.
    #[error(transparent)]
    Template(#[from] TemplateError),
    /// A name that is taken.
    #[error(transparent)]
    Tree(#[from] TreeError),
}

#[derive(Serialize)]
struct SessionView {
    page: Frame,
    session: String,
    told: Vec<Pair>,
    runs: Vec<RunLine>,
    files: Vec<FileLine>,
    redacted: String,
}

#[derive(Serialize)]
struct RunView {
    page: Frame,
    id: String,
    short: String,
    state: String,
    told: Vec<Pair>,
    session: Option<Link>,
    used_by: Vec<Link>,
    metrics: Vec<Pair>,
    fired: Vec<Note>,
    facts: Vec<Fact>,
    files: Vec<FileLine>,
    verify: String,
}

/// What every plain page has around it.
#[derive(Debug, Clone, Serialize)]
struct Frame {
    title: String,
    style: String,
    book: Vec<Link>,
}

#[derive(Serialize)]
struct RunLine {
    link: Link,
    trial: String,
    value: String,
    note: String,
}

#[derive(Serialize)]
struct FileLine {
    /// Where it is; empty where `text` is all of it.
    link: Link,
    text: Option<String>,
    size: String,
    sha256: String,
}

#[derive(Serialize)]
struct Fact {
    key: String,
    href: String,
    value: String,
}

/// Which claims a run is evidence of, by its id.
type Uses = HashMap<Digest, Vec<(String, String)>>;

/// Most bytes of an input that is shown on the page instead of being a file of its own.
const SHORT_INPUT: u64 = 4096;

/// A session, and those of its files that are shown on its pages.
struct Shown<'a> {
    sealed: &'a SealedSession,
    inputs: BTreeMap<String, String>,
}

impl<'a> Shown<'a> {
    /// Reads the short inputs of a session: one argument or variable a file, thousands in a book.
    fn of(edition: &Edition, sealed: &'a SealedSession) -> Self {
        let files = edition.files_of(&sealed.session);
        let lists = sealed.runs.iter().map(|run| &run.run.files).chain([&sealed.session.files]);
        let short = lists.flatten().filter(|(path, digest)| is_input(path) && digest.size <= SHORT_INPUT);
        let text = |(path, _): (&String, _)| Some((path.clone(), String::from_utf8(files.sealed(path)?).ok()?));
        Self { sealed, inputs: short.filter_map(text).filter(|(_, text)| is_plain(text)).collect() }
    }
}

fn is_input(path: &str) -> bool {
    path.split('/').take(2).any(|part| part == "input")
}

/// Whether a page shows a text with all its bytes: HTML cannot write some characters, and drops a line end that comes first.
fn is_plain(text: &str) -> bool {
    !text.starts_with('\n') && text.chars().all(|character| character == '\n' || !character.is_control())
}

/// Adds all session and run pages, and every raw file, to the site.
///
/// # Errors
///
/// A template that asks for what is not there.
pub(super) fn add(library: &Library, store: &Store, templates: &Templates, tree: &mut Tree) -> Result<(), RunsError> {
    for study in &library.studies {
        let uses = uses(study);
        let pages = if let Some(measured) = &study.measured {
            let edition = store.edition(&study.name, &study.edition);
            let shown = in_parallel(&measured.sessions, |sealed| Shown::of(&edition, sealed));
            raw_files(study, &edition, measured, &shown, tree)?;
            in_parallel(&shown, |shown| session_pages(study, shown, &uses, templates))
        } else {
            add_folder(study, tree)?;
            in_parallel(&imported_sessions(study), |session| imported_pages(study, session, &uses, templates))
        };
        for page in pages {
            for (path, text) in page? {
                tree.add(path, Content::Bytes(text.into_bytes()))?;
            }
        }
    }
    Ok(())
}

/// Adds the frozen files, the ledger and the files of every session.
fn raw_files(
    study: &Study,
    edition: &Edition,
    measured: &Measured,
    shown: &[Shown],
    tree: &mut Tree,
) -> Result<(), TreeError> {
    let at = |path: &str| place::raw(&study.name, &study.edition, path);
    let ledger = super::tree::existing(&study.folder.join("ledger"))?;
    let ledger = ledger.keys().filter(|name| !name.starts_with('.')).map(|name| format!("ledger/{name}"));
    for path in measured.standing.frozen.keys().cloned().chain(ledger) {
        tree.add(at(&path), Content::File(study.folder.join(&path)))?;
    }
    for Shown { sealed, inputs } in shown {
        let files = Arc::new(edition.files_of(&sealed.session));
        let folder = &sealed.session.session;
        let mut add = |path: &str| tree.add(at(&format!("{folder}/{path}")), content(&files, path));
        add("session.json")?;
        let lists = sealed.runs.iter().flat_map(|run| run.run.files.keys());
        let mut paths: Vec<&String> = sealed.session.files.keys().chain(lists).collect();
        paths.sort();
        paths.dedup();
        paths.retain(|path| *path != "session.json" && !inputs.contains_key(*path));
        paths.into_iter().try_for_each(|path| add(path))?;
        sealed.runs.iter().try_for_each(|run| add(&format!("{}/run.json", run.run.trial)))?;
    }
    Ok(())
}

fn content(files: &Arc<SealedFiles>, path: &str) -> Content {
    Content::Sealed(Arc::clone(files), path.to_owned())
}

/// Adds every file of an import.
fn add_folder(study: &Study, tree: &mut Tree) -> Result<(), TreeError> {
    for path in super::tree::existing(&study.folder)?.into_keys() {
        tree.add(place::raw(&study.name, &study.edition, &path), Content::File(study.folder.join(&path)))?;
    }
    Ok(())
}

fn uses(study: &Study) -> Uses {
    let mut uses = Uses::new();
    for (name, claim) in &study.question.claims {
        let Some(compared) = study.condition_of(claim).and_then(|found| study.compared(&found.condition)) else {
            continue;
        };
        for id in compared.values().iter().flat_map(|value| &value.runs) {
            uses.entry(*id).or_default().push((name.clone(), place::claim(&study.name, &study.edition, name)));
        }
    }
    uses
}

fn frame(study: &Study, from: &str, title: &str) -> Frame {
    let links = [
        ("Findings", place::DASHBOARD.to_owned()),
        (study.name.as_str(), place::experiment(&study.name, &study.edition)),
    ];
    Frame {
        title: format!("{title} · {}", study.name),
        style: relative(from, place::STYLE),
        book: links.into_iter().map(|(text, to)| Link { text: text.to_owned(), href: relative(from, &to) }).collect(),
    }
}

fn session_pages(
    study: &Study,
    shown: &Shown,
    uses: &Uses,
    templates: &Templates,
) -> Result<Vec<(String, String)>, TemplateError> {
    let Shown { sealed, inputs } = shown;
    let session = &sealed.session;
    let page = place::session(&study.name, &study.edition, &session.session);
    let from = page.as_str();
    let kind = match session.kind {
        Kind::Block => "part of a block",
        Kind::Prime => "fills caches before block 1; recorded, never averaged",
        Kind::Look => "a look: recorded, never cited, never a control",
    };
    let mut told = vec![pair("experiment", format!("{} {}", study.name, study.edition)), pair("kind", kind)];
    told.push(pair("arm", session.arm.clone()));
    told.extend(session.block.map(|block| pair("block", format!("{block}, attempt {}", session.attempt))));
    told.push(pair("place in the block", session.position.to_string()));
    told.push(pair("host", session.host.clone()));
    told.push(pair("ended", session.reason.as_ref().map_or("finished".to_owned(), |why| format!("failed: {why}"))));
    told.push(pair("sealed by", format!("labbook {}, rules {}", session.labbook, session.rules)));
    let runs = sealed.runs.iter().map(|run| {
        let record = study.record(run.id);
        RunLine {
            link: Link {
                text: run.id.short(8),
                href: relative(from, &place::run(&study.name, &study.edition, &session.session, &run.run.trial)),
            },
            trial: run.run.trial.clone(),
            value: record
                .and_then(|record| rules::value(record, Metric::OutputThroughput))
                .map_or_else(|| "-".to_owned(), |value| sentence::value(Metric::OutputThroughput, value)),
            note: record.map_or(String::new(), state),
        }
    });
    let redacted: Vec<&str> = session.redactions.iter().map(|redaction| redaction.name.as_str()).collect();
    let view = SessionView {
        page: frame(study, from, &format!("session {}", session.session)),
        session: session.session.clone(),
        told,
        runs: runs.collect(),
        files: file_lines(study, from, &session.session, &session.files, inputs),
        redacted: redacted.join(", "),
    };
    let mut pages = vec![(page.clone(), templates.print("session.html", &view)?)];
    for run in &sealed.runs {
        pages.push(run_page(study, shown, run, uses, templates)?);
    }
    Ok(pages)
}

fn state(record: &Record) -> String {
    match &record.outcome {
        Outcome::Finished if record.tier == Tier::Look => "a look".to_owned(),
        Outcome::Finished => "finished".to_owned(),
        Outcome::Failed(why) => format!("failed: {why}"),
        Outcome::Superseded(why) => format!("superseded: {why}"),
        Outcome::Excluded(why) => format!("excluded: {why}"),
    }
}

fn file_lines(
    study: &Study,
    from: &str,
    session: &str,
    files: &Files,
    inputs: &BTreeMap<String, String>,
) -> Vec<FileLine> {
    let place = |path: &str| relative(from, &place::raw(&study.name, &study.edition, &format!("{session}/{path}")));
    let line = |(path, digest): (&String, &crate::run::FileDigest)| FileLine {
        text: inputs.get(path).cloned(),
        link: Link { text: path.clone(), href: if inputs.contains_key(path) { String::new() } else { place(path) } },
        size: digest.size.to_string(),
        sha256: digest.sha256.to_string(),
    };
    files.iter().map(line).collect()
}

fn run_page(
    study: &Study,
    shown: &Shown,
    run: &SealedRun,
    uses: &Uses,
    templates: &Templates,
) -> Result<(String, String), TemplateError> {
    let form = &run.run;
    let page = place::run(&study.name, &study.edition, &form.session, &form.trial);
    let from = page.as_str();
    let record = study.record(run.id);
    let mut told = vec![
        pair("experiment", format!("{} {}", study.name, study.edition)),
        pair("arm", form.arm.clone()),
        pair("at", sentence::at_level(form.axis, &form.level.0)),
    ];
    told.extend(form.block.map(|block| pair("block", format!("{block}, attempt {}", form.attempt))));
    told.push(pair("trial", form.trial.clone()));
    told.push(pair("host", shown.sealed.session.host.clone()));
    told.push(pair("folder", format!("results/{}/{}/{}/{}", form.experiment, form.edition, form.session, form.trial)));
    let run_json = format!("{}/run.json", form.trial);
    let raw = place::raw(&study.name, &study.edition, &format!("{}/{run_json}", form.session));
    let mut files = vec![FileLine {
        text: None,
        link: Link { text: run_json, href: relative(from, &raw) },
        size: String::new(),
        sha256: run.id.to_string(),
    }];
    files.extend(file_lines(study, from, &form.session, &form.files, &shown.inputs));
    let view = RunView {
        page: frame(study, from, &format!("run {}", run.id.short(8))),
        id: run.id.to_string(),
        short: run.id.short(8),
        state: record.map_or("unread".to_owned(), state),
        told,
        session: Some(Link {
            text: form.session.clone(),
            href: relative(from, &place::session(&study.name, &study.edition, &form.session)),
        }),
        used_by: used_by(uses, run.id, from),
        metrics: record.map_or_else(Vec::new, metrics),
        fired: record.map_or_else(Vec::new, |record| fired(record, from)),
        facts: record.map_or_else(Vec::new, |record| facts(record, from)),
        files,
        verify: format!("sha256sum {raw}"),
    };
    Ok((page.clone(), templates.print("run.html", &view)?))
}

fn used_by(uses: &Uses, id: Digest, from: &str) -> Vec<Link> {
    let claims = uses.get(&id).into_iter().flatten();
    claims.map(|(name, to)| Link { text: name.clone(), href: relative(from, to) }).collect()
}

fn metrics(record: &Record) -> Vec<Pair> {
    Metric::all()
        .into_iter()
        .filter_map(|metric| Some(pair(&metric.name(), sentence::value(metric, rules::value(record, metric)?))))
        .collect()
}

fn fired(record: &Record, from: &str) -> Vec<Note> {
    let note = |fired: validity::Fired| Note {
        number: 0,
        name: fired.rule.to_owned(),
        href: relative(from, &format!("{}#{}", place::GLOSSARY, fired.rule)),
        severity: crate::report::comparison::severity(fired.severity).to_owned(),
        place: String::new(),
        message: fired.message,
        help: fired.help,
    };
    validity::judge(record).into_iter().map(note).collect()
}

fn facts(record: &Record, from: &str) -> Vec<Fact> {
    let fact = |(key, value): (&crate::fact::FactKey, &crate::fact::FactValue)| {
        let row = crate::fact::table::row_of(key.as_str());
        let text = value.to_string();
        let length = text.chars().count();
        let value = if length > LONGEST_VALUE {
            let kept: String = text.chars().take(LONGEST_VALUE).collect();
            format!("{kept}… ({length} characters)")
        } else {
            text
        };
        Fact {
            key: key.to_string(),
            href: row.map_or(String::new(), |row| relative(from, &format!("{}#{}", place::GLOSSARY, row.id))),
            value,
        }
    };
    record.facts.iter().map(fact).collect()
}

/// The sessions of an import with their runs, in the order of its manifest.
fn imported_sessions(study: &Study) -> Vec<(String, Vec<&Record>)> {
    let mut sessions: BTreeMap<&str, Vec<&Record>> = BTreeMap::new();
    for record in &study.records {
        sessions.entry(&record.session).or_default().push(record);
    }
    sessions.into_iter().map(|(name, records)| (name.to_owned(), records)).collect()
}

fn imported_pages(
    study: &Study,
    session: &(String, Vec<&Record>),
    uses: &Uses,
    templates: &Templates,
) -> Result<Vec<(String, String)>, TemplateError> {
    let (name, records) = session;
    let page = place::session(&study.name, &study.edition, name);
    let from = page.as_str();
    let first = records.first();
    let mut told = vec![
        pair("experiment", format!("{} {}", study.name, study.edition)),
        pair("kind", "brought in from elsewhere"),
        pair("arm", first.map_or(String::new(), |record| record.arm.clone())),
    ];
    told.extend(first.and_then(|record| record.block).map(|block| pair("block", block.to_string())));
    let manifest = [("manifest.yaml", "manifest.yaml"), ("import.json", "import.json")].map(|(text, path)| FileLine {
        text: None,
        link: Link { text: text.to_owned(), href: relative(from, &place::raw(&study.name, &study.edition, path)) },
        size: String::new(),
        sha256: String::new(),
    });
    let runs = records.iter().map(|record| RunLine {
        link: Link {
            text: record.id.short(8),
            href: relative(from, &place::run(&study.name, &study.edition, name, &study.trial(record))),
        },
        trial: sentence::at_level(study.question.axis, &record.level.0),
        value: rules::value(record, Metric::OutputThroughput)
            .map_or_else(|| "-".to_owned(), |value| sentence::value(Metric::OutputThroughput, value)),
        note: state(record),
    });
    let view = SessionView {
        page: frame(study, from, &format!("session {name}")),
        session: name.clone(),
        told,
        runs: runs.collect(),
        files: manifest.into_iter().collect(),
        redacted: String::new(),
    };
    let mut pages = vec![(page.clone(), templates.print("session.html", &view)?)];
    for record in records {
        pages.push(imported_run(study, name, record, uses, templates)?);
    }
    Ok(pages)
}

fn imported_run(
    study: &Study,
    session: &str,
    record: &Record,
    uses: &Uses,
    templates: &Templates,
) -> Result<(String, String), TemplateError> {
    let page = place::run(&study.name, &study.edition, session, &study.trial(record));
    let from = page.as_str();
    let mut told = vec![
        pair("experiment", format!("{} {}", study.name, study.edition)),
        pair("arm", record.arm.clone()),
        pair("at", sentence::at_level(study.question.axis, &record.level.0)),
    ];
    told.extend(record.block.map(|block| pair("block", block.to_string())));
    told.push(pair("tier", if record.tier == Tier::Foreign { "foreign" } else { "measured, brought in" }));
    let raw = place::raw(&study.name, &study.edition, "manifest.yaml");
    let view = RunView {
        page: frame(study, from, &format!("run {}", record.id.short(8))),
        id: record.id.to_string(),
        short: record.id.short(8),
        state: state(record),
        told,
        session: Some(Link {
            text: session.to_owned(),
            href: relative(from, &place::session(&study.name, &study.edition, session)),
        }),
        used_by: used_by(uses, record.id, from),
        metrics: metrics(record),
        fired: fired(record, from),
        facts: facts(record, from),
        files: vec![FileLine {
            text: None,
            link: Link { text: "manifest.yaml".to_owned(), href: relative(from, &raw) },
            size: String::new(),
            sha256: record.result_sha256.map_or(String::new(), |digest| format!("result file {digest}")),
        }],
        verify: String::new(),
    };
    Ok((page.clone(), templates.print("run.html", &view)?))
}
