//! The record as text: the runs of an edition, one run with what was observed, a damaged file.

use std::fmt::Write as _;
use std::path::Path;

use crate::diagnostic::printable;
use crate::metric::Metric;
use crate::record::{Outcome, Record, Written};
use crate::report::progress::significant;
use crate::run::{Session, Status};
use crate::store::{Edition, Problem, SealedRun, SealedSession};
use crate::validity::{self, Severity};

/// Returns the line of a file that is not as it was sealed, and what rests on it.
pub fn problem(folder: &Path, problem: &Problem, claims: &[String]) -> String {
    let place = folder.join(&problem.path);
    let mut text = format!("{}: {}", printable(&place.display().to_string()), problem.wrong.word());
    let runs: Vec<String> = problem.runs.iter().map(|run| run.short(8)).collect();
    if !runs.is_empty() {
        let _ = write!(text, "\n    runs {}", runs.join(" "));
    }
    if !claims.is_empty() {
        let _ = write!(text, "\n    claims {}", claims.join(" "));
    }
    text
}

/// Returns the runs of an edition, one a line, in the order in which they ran.
pub fn edition(edition: &Edition, sessions: &[SealedSession], records: &[Record]) -> String {
    let mut text = format!("{} {}\n", edition.experiment, edition.edition);
    let _ = writeln!(text, "  {:<8}  {:<20} {:<11} {:>16}  note", "run", "session", "trial", "output tok/s");
    for sealed in sessions {
        for run in &sealed.runs {
            let record = records.iter().find(|record| record.id == run.id);
            let value = record.and_then(|record| value(record, Metric::OutputThroughput));
            let value = value.map_or_else(|| "-".to_owned(), significant);
            let note = record.map(note).unwrap_or_default();
            let _ = writeln!(
                text,
                "{}",
                format!("  {:<8}  {:<20} {:<11} {value:>16}  {note}", run.id.short(8), run.run.session, run.run.trial)
                    .trim_end()
            );
        }
    }
    text
}

fn note(record: &Record) -> String {
    match &record.outcome {
        Outcome::Finished => {
            let fired = validity::judge(record);
            let mut rules: Vec<&str> =
                fired.iter().filter(|fired| fired.severity != Severity::Note).map(|fired| fired.rule).collect();
            rules.dedup();
            rules.join(" ")
        }
        Outcome::Failed(why) => format!("failed: {}", printable(why)),
        Outcome::Superseded(why) => format!("superseded: {}", printable(why)),
        Outcome::Excluded(why) => format!("excluded: {}", printable(why)),
    }
}

fn value(record: &Record, metric: Metric) -> Option<f64> {
    match (&record.written, metric) {
        (_, Metric::DecodeRate) => record.decode_rate,
        (Written::Row(row), _) => row.metrics.get(&metric).copied(),
        (Written::Values(values), _) => values.get(&metric).copied(),
        _ => None,
    }
}

/// Returns everything known about one run.
pub fn run(run: &SealedRun, session: &Session, record: Option<&Record>) -> String {
    let mut text = format!("run {}\n", run.id);
    let form = &run.run;
    let status = match form.status {
        Status::Finished => "finished".to_owned(),
        Status::Failed => format!("failed: {}", printable(form.reason.as_deref().unwrap_or("no reason known"))),
    };
    let block = form.block.map_or_else(|| "none".to_owned(), |block| format!("{block}, attempt {}", form.attempt));
    for (name, value) in [
        ("experiment", format!("{} {}", form.experiment, form.edition)),
        ("arm", form.arm.clone()),
        ("block", block),
        ("session", format!("{} on {}", form.session, session.host)),
        ("trial", form.trial.clone()),
        ("status", status),
        ("folder", format!("results/{}/{}/{}/{}", form.experiment, form.edition, form.session, form.trial)),
    ] {
        let _ = writeln!(text, "  {name:<12} {value}");
    }
    if !session.redactions.is_empty() {
        let names: Vec<&str> = session.redactions.iter().map(|redaction| redaction.name.as_str()).collect();
        let _ = writeln!(text, "  {:<12} {}", "redacted", printable(&names.join(", ")));
    }
    let Some(record) = record else { return text };
    text.push_str("\nmetrics\n");
    for metric in Metric::all() {
        if let Some(value) = value(record, metric) {
            let _ = writeln!(text, "  {:<26} {:>12} {}", metric.name(), significant(value), metric.unit().symbol());
        }
    }
    let fired = validity::judge(record);
    if !fired.is_empty() {
        text.push_str("\nrules that fired\n");
        for fired in &fired {
            let _ = writeln!(text, "  {} {}\n      {}", fired.rule, printable(&fired.message), printable(&fired.help));
        }
    }
    text.push_str("\nobserved\n");
    for (key, value) in record.facts.iter() {
        let _ = writeln!(text, "  {key} = {}", shortened(&printable(&value.to_string())));
    }
    text.push_str("\nfiles (labbook show RUN FILE prints one)\n");
    for (path, digest) in &form.files {
        let _ = writeln!(text, "  {}  {:>9}  {path}", digest.sha256.short(12), digest.size);
    }
    text
}

fn shortened(text: &str) -> String {
    const MOST: usize = 160;
    if text.chars().count() <= MOST {
        return text.to_owned();
    }
    let kept: String = text.chars().take(MOST).collect();
    format!("{kept}…")
}
