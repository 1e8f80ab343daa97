//! `compare` and `import`, and what `try` ends with: from records to a verdict, or to the reasons why there is none.

use std::io::Write;
use std::path::{Path, PathBuf};

use super::keep::{self, find, frozen};
use super::open::{Opened, lab_folder, open};
use super::{Answer, Exit, Failure, Format, Terminal, Trouble};
use crate::finding::{ClaimVerdict, Findings, Outcome};
use crate::metric::Metric;
use crate::question::Question;
use crate::record::{Record, Tier};
use crate::report::{comparison as report, pair as pair_report, progress::counted, record as record_report};
use crate::store::{Edition, SealedRun, SealedSession, Store};
use crate::{import as imports, rules};

/// Brings in manifests.
pub(super) fn import(terminal: &mut Terminal, files: &[PathBuf]) -> Answer {
    let root = lab_folder(Path::new("."))?;
    let results = Store::new(&root).results();
    for file in files {
        let brought = match imports::import(file, &results, jiff::Timestamp::now()) {
            Ok(brought) => brought,
            Err(imports::ImportError::Manifest(diagnostics)) => return Err((*diagnostics).into()),
            Err(error) => return Err(Failure::of(Exit::Usage, &error).into()),
        };
        if !brought.warnings.problems.is_empty() {
            writeln!(terminal.err, "{}\n", brought.warnings.render(terminal.style))?;
        }
        if !brought.redacted.is_empty() {
            let names: Vec<&str> = brought.redacted.iter().map(|redaction| redaction.name.as_str()).collect();
            writeln!(terminal.err, "removed before storing: {}", crate::diagnostic::printable(&names.join(", ")))?;
        }
        let again = if brought.again == imports::Again::Already { " (it was there already)" } else { "" };
        let folder = brought.folder.strip_prefix(&root).unwrap_or(&brought.folder).display();
        writeln!(
            terminal.out,
            "{}  {}, {} in {folder}{again}",
            brought.experiment,
            counted(brought.runs, "run"),
            counted(brought.files, "file")
        )?;
        let edition = brought.folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let several = brought.folder.parent().and_then(|parent| std::fs::read_dir(parent).ok());
        let at =
            if several.is_some_and(|editions| editions.count() > 1) { format!("@{edition}") } else { String::new() };
        writeln!(terminal.err, "next: labbook compare {}{at}", brought.experiment)?;
    }
    Ok(Exit::Done)
}

/// Compares the arms of an experiment.
pub(super) fn compare(terminal: &mut Terminal, what: &str, require_verdict: bool, format: Format) -> Answer {
    let (question, records) = question_and_records(terminal, what)?;
    let findings = Findings::of(&question, &records);
    match format {
        Format::Json => writeln!(terminal.out, "{:#}", findings.to_json(question.axis))?,
        Format::Text => {
            write!(terminal.out, "{}{}", report::render(&question, &findings), record_report::set_aside(&records))?;
        }
    }
    Ok(exit_of(&findings, require_verdict))
}

/// Returns the question of an experiment and all records that may answer it: of the spec's edition where `what` is a spec, else of
/// the newest edition, else of what was imported under that name.
fn question_and_records(terminal: &mut Terminal, what: &str) -> Result<(Question, Vec<Record>), Trouble> {
    let path = Path::new(what);
    if path.extension().is_some_and(|extension| extension == "yaml" || extension == "yml") {
        let opened = open(terminal, path)?;
        if !opened.edition.exists() {
            return Err(no_edition(&opened).into());
        }
        return registered(terminal, &opened);
    }
    let root = lab_folder(Path::new("."))?;
    let store = Store::new(&root);
    let spec = root.join("experiments").join(format!("{what}.yaml"));
    if spec.is_file() {
        let opened = open(terminal, &spec)?;
        if opened.edition.exists() {
            return registered(terminal, &opened);
        }
        if store.editions(what).is_ok_and(|editions| !editions.is_empty()) {
            return Err(no_edition(&opened).into());
        }
    }
    let failed = |error: &dyn std::error::Error| Trouble::from(Failure::of(Exit::Usage, error));
    let editions = store.editions(what).map_err(|error| failed(&error))?;
    match editions.as_slice() {
        [] => imports::load(&store.results(), what).map_err(|error| failed(&error)),
        [edition] => {
            sound(edition)?;
            let frozen = frozen(edition)?;
            let standing = edition.sound_ledger().map_err(|error| failed(&error))?.standing();
            let records = edition.records(&frozen.question, &standing).map_err(|error| failed(&error))?;
            Ok((frozen.question, records))
        }
        several => {
            let names: Vec<&str> = several.iter().map(|edition| edition.edition.as_str()).collect();
            let failure =
                Failure::new(Exit::Usage, format!("`{what}` has {} editions and no spec here", several.len()));
            Err(failure.hint(format!("restore experiments/{what}.yaml; the editions are {}", names.join(", "))).into())
        }
    }
}

/// Returns the question as it was registered before the first start, and the records of the edition. What the spec says by now
/// about claims, margin or headline changes nothing that was measured already.
fn registered(terminal: &mut Terminal, opened: &Opened) -> Result<(Question, Vec<Record>), Trouble> {
    sound(&opened.edition)?;
    let registered = frozen(&opened.edition)?;
    if registered.protocol() != opened.spec.protocol() {
        writeln!(
            terminal.err,
            "warning: claims, margin, headline or repeats of `{}` were changed after they were registered;\n         \
             judged by what was registered before the first start\n",
            opened.path.display()
        )?;
    }
    Ok((registered.question, keep::records(opened)?))
}

/// Returns only where every byte of an edition is as it was sealed.
fn sound(edition: &Edition) -> Result<(), Failure> {
    let problems = edition.verify().map_err(|error| Failure::of(Exit::RunFailed, &error))?;
    let Some(first) = problems.first() else { return Ok(()) };
    let what = format!(
        "{} files of `{}` are not as they were sealed, the first `{}` ({})",
        problems.len(),
        edition.experiment,
        crate::diagnostic::printable(&first.path),
        first.wrong.word()
    );
    Err(Failure::new(Exit::EvidenceSaysNo, what).hint("nothing is compared; `labbook check` names every file"))
}

fn no_edition(opened: &Opened) -> Failure {
    let edition = &opened.edition;
    let others = Store::new(&opened.root).editions(&edition.experiment).unwrap_or_default();
    let what = format!("edition {} of `{}` has no results", edition.edition, edition.experiment);
    let failure =
        Failure::new(Exit::Refused, what).hint(format!("`labbook run {}` measures it", opened.path.display()));
    match others.last() {
        None => failure,
        Some(other) => failure.hint(format!(
            "results of edition {} are of another design, and are never compared with this one",
            other.edition
        )),
    }
}

fn exit_of(findings: &Findings, require_verdict: bool) -> Exit {
    let inconclusive = findings
        .claims
        .values()
        .any(|claim| matches!(claim.verdict, ClaimVerdict::Inconclusive | ClaimVerdict::Exploratory));
    match findings.outcome {
        Outcome::Refused | Outcome::Void => Exit::Refused,
        _ if findings.claims.values().any(|claim| claim.verdict == ClaimVerdict::Refused)
            && findings.outcome != Outcome::Foreign =>
        {
            Exit::Refused
        }
        _ if findings.any_refuted() => Exit::EvidenceSaysNo,
        _ if require_verdict && inconclusive => Exit::Inconclusive,
        _ => Exit::Done,
    }
}

/// Shows the comparison that a run ends with.
pub(super) fn show(terminal: &mut Terminal, opened: &Opened) -> Result<(), Trouble> {
    let (question, records) = registered(terminal, opened)?;
    let findings = Findings::of(&question, &records);
    write!(terminal.out, "{}{}", report::render(&question, &findings), record_report::set_aside(&records))?;
    Ok(())
}

/// Shows how two runs differ; a pair of runs never has a verdict.
pub(super) fn pair(terminal: &mut Terminal, one: &str, other: &str, metric: Option<&str>, format: Format) -> Answer {
    let root = lab_folder(Path::new("."))?;
    let store = Store::new(&root);
    let (one, other) = (side(&store, one, metric)?, side(&store, other, metric)?);
    let view = pair_report::Pair::of(&one, &other);
    match format {
        Format::Json => writeln!(terminal.out, "{:#}", view.to_json())?,
        Format::Text => write!(terminal.out, "{}", pair_report::render(&view))?,
    }
    Ok(if view.refusals.is_empty() { Exit::Done } else { Exit::Refused })
}

/// Reads `RUN` or `RUN:METRIC`.
fn side(store: &Store, text: &str, metric: Option<&str>) -> Result<pair_report::Side, Trouble> {
    let (run, own) = text.split_once(':').map_or((text, None), |(run, metric)| (run, Some(metric)));
    let name = own.or(metric).unwrap_or("output_throughput");
    let Some(metric) = Metric::parse(name) else {
        let names: Vec<String> = Metric::all().iter().map(|metric| metric.name()).collect();
        let failure = Failure::new(Exit::Usage, format!("`{name}` is not a metric"));
        let hint = crate::diagnostic::did_you_mean(name, names.iter().map(String::as_str))
            .map_or_else(|| format!("the metrics are {}", names.join(", ")), |near| format!("did you mean `{near}`?"));
        return Err(failure.hint(hint).into());
    };
    let (edition, run) = find(store, run)?;
    let record = record_of(&edition, &run)?;
    let value = rules::value(&record, metric);
    Ok(pair_report::Side { record, metric, value })
}

fn record_of(edition: &Edition, run: &SealedRun) -> Result<Record, Trouble> {
    let failed = |error: crate::store::StoreError| Trouble::from(Failure::of(Exit::RunFailed, &error));
    let question = frozen(edition)?.question;
    let standing = edition.sound_ledger().map_err(failed)?.standing();
    let sealed = edition.sealed(&run.run.session).map_err(failed)?;
    let records = edition.records_of(&sealed, &question, &standing);
    records.into_iter().find(|record| record.id == run.id).ok_or_else(|| {
        Failure::new(Exit::EvidenceSaysNo, format!("run {} is not in its session", run.id.short(8))).into()
    })
}

/// Ends a look: names the nearest stored run at its level, and the facts in which they differ.
pub(super) fn nearest(terminal: &mut Terminal, opened: &Opened, look: &SealedSession, format: Format) -> Answer {
    let failed = |error: crate::store::StoreError| Trouble::from(Failure::of(Exit::RunFailed, &error));
    let question = &opened.spec.question;
    let mut others = Vec::new();
    for edition in Store::new(&opened.root).editions(&opened.edition.experiment).map_err(failed)? {
        let standing = edition.sound_ledger().map_err(failed)?.standing();
        for sealed in edition.all_sealed().map_err(failed)? {
            if sealed.session.session != look.session.session || edition.edition != opened.edition.edition {
                others.extend(edition.records_of(&sealed, question, &standing));
            }
        }
    }
    let standing = opened.edition.sound_ledger().map_err(failed)?.standing();
    let records = opened.edition.records_of(look, question, &standing);
    for record in &records {
        debug_assert_eq!(record.tier, Tier::Look);
        let side = |record: &Record| pair_report::Side {
            record: record.clone(),
            metric: Metric::OutputThroughput,
            value: rules::value(record, Metric::OutputThroughput),
        };
        let near = others
            .iter()
            .filter(|other| other.level == record.level && rules::value(other, Metric::OutputThroughput).is_some())
            .map(|other| pair_report::Pair::of(&side(other), &side(record)))
            .min_by_key(|pair| pair.differences.len());
        match format {
            Format::Json => {
                let object = serde_json::json!({
                    "run": record.id, "tier": "look", "arm": record.arm, "level": record.level,
                    "output_throughput": rules::value(record, Metric::OutputThroughput),
                    "nearest": near.as_ref().map(pair_report::Pair::to_json),
                });
                writeln!(terminal.out, "{object:#}")?;
            }
            Format::Text => write!(terminal.out, "{}", pair_report::look(&side(record), near.as_ref()))?,
        }
    }
    Ok(Exit::Done)
}
