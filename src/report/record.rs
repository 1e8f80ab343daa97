//! The record as text: the runs of an edition, one run with what was observed, a damaged file.

use std::fmt::Write as _;
use std::path::Path;

use crate::diagnostic::printable;
use crate::metric::{Metric, Unit};
use crate::record::{Outcome, Record, Written};
use crate::report::progress::significant;
use crate::run::{Session, Status};
use crate::store::{Edition, Problem, SealedRun, SealedSession};
use crate::validity::{self, Severity};

/// Columns of a page. What cannot be broken, such as a path, may be longer.
const WIDTH: usize = 80;
/// Longest observed value that is shown whole, characters.
const LONGEST_VALUE: usize = 480;
/// Most runs that are named below one damaged file.
const MOST_RUNS: usize = 6;

/// Returns the line of a file that is not as it was sealed, and what rests on it.
pub fn problem(folder: &Path, problem: &Problem, claims: &[String]) -> String {
    let place = folder.join(&problem.path);
    let mut text = format!("{}: {}\n", printable(&place.display().to_string()), problem.wrong.word());
    let mut runs: Vec<String> = problem.runs.iter().take(MOST_RUNS).map(|run| run.short(8)).collect();
    if problem.runs.len() > MOST_RUNS {
        runs.push(format!("and {} more", problem.runs.len() - MOST_RUNS));
    }
    for (word, names) in [("runs", runs.as_slice()), ("claims", claims)] {
        if !names.is_empty() {
            paragraph(&mut text, &format!("    {word}"), &names.join(" "), 8);
        }
    }
    text.trim_end().to_owned()
}

/// Returns the runs of an edition, one a line, session by session in the given order. Why runs failed or do not count stands
/// below them, once a session.
pub fn edition(edition: &Edition, sessions: &[SealedSession], records: &[Record]) -> String {
    let mut text = String::new();
    let head = format!("{} {}:", edition.experiment, edition.edition);
    paragraph(&mut text, &head, &counts(sessions, records), 2);
    let runs = || sessions.iter().flat_map(|sealed| &sealed.runs);
    let widest = |head: &str, name: fn(&SealedRun) -> &String| {
        runs().map(|run| columns(name(run))).chain([columns(head)]).max().unwrap_or(0)
    };
    let (session_width, trial_width) =
        (widest("session", |run| &run.run.session), widest("trial", |run| &run.run.trial));
    let line = |run: &str, session: &str, trial: &str, value: &str, note: &str| {
        let line = format!("  {run:<8}  {session:<session_width$}  {trial:<trial_width$}  {value:>12}  {note}");
        format!("{}\n", line.trim_end())
    };
    if runs().next().is_none() {
        return text;
    }
    text.push_str(&line("run", "session", "trial", "output tok/s", "note"));
    let mut has_rules = false;
    for sealed in sessions {
        let mut reasons: Vec<String> = Vec::new();
        for run in &sealed.runs {
            let record = records.iter().find(|record| record.id == run.id);
            let value = record.and_then(|record| value(record, Metric::OutputThroughput));
            let value = value.map_or_else(|| "-".to_owned(), significant);
            let (note, reason) = record.map(note).unwrap_or_default();
            has_rules |= record.is_some_and(|record| record.outcome == Outcome::Finished) && !note.is_empty();
            text.push_str(&line(&run.id.short(8), &run.run.session, &run.run.trial, &value, &note));
            reasons.extend(reason.filter(|reason| !reasons.contains(reason)));
        }
        for reason in reasons {
            paragraph(&mut text, "           ", &reason, 12);
        }
    }
    if has_rules {
        text.push_str("`labbook show RUN` says what the rules of the last column found\n");
    }
    text
}

/// Returns how many runs there are and what became of them.
fn counts(sessions: &[SealedSession], records: &[Record]) -> String {
    let runs: usize = sessions.iter().map(|sealed| sealed.runs.len()).sum();
    let count = |word: &str| {
        let counted = records.iter().filter(|record| outcome_word(&record.outcome) == word).count();
        (counted > 0).then(|| format!(", {counted} {word}"))
    };
    let words = ["finished", "failed", "superseded", "excluded"];
    format!(
        "{runs} {}{}",
        if runs == 1 { "run" } else { "runs" },
        words.into_iter().filter_map(count).collect::<String>()
    )
}

fn outcome_word(outcome: &Outcome) -> &'static str {
    match outcome {
        Outcome::Finished => "finished",
        Outcome::Failed(_) => "failed",
        Outcome::Superseded(_) => "superseded",
        Outcome::Excluded(_) => "excluded",
    }
}

/// Returns the last column of a run's line, and the reason that stands below.
/// Returns what was measured and does not count, and why; nothing where everything counts.
pub fn set_aside(records: &[Record]) -> String {
    let mut reasons: Vec<(Option<u32>, u32, String)> = Vec::new();
    for record in records {
        let why = match &record.outcome {
            Outcome::Superseded(why) => format!("superseded: {why}"),
            Outcome::Excluded(why) => format!("excluded: {why}"),
            Outcome::Finished | Outcome::Failed(_) => continue,
        };
        if !reasons
            .iter()
            .any(|(block, attempt, known)| (*block, *attempt, known) == (record.block, record.attempt, &why))
        {
            reasons.push((record.block, record.attempt, why));
        }
    }
    let mut text = String::new();
    for (block, attempt, why) in &reasons {
        let block = block.map_or_else(|| "?".to_owned(), |block| block.to_string());
        let _ = writeln!(text, "measured and not counted: block {block}, attempt {attempt}, {}", printable(why));
    }
    text
}

fn note(record: &Record) -> (String, Option<String>) {
    match &record.outcome {
        Outcome::Finished => {
            let fired = validity::judge(record);
            let mut rules: Vec<&str> =
                fired.iter().filter(|fired| fired.severity != Severity::Note).map(|fired| fired.rule).collect();
            rules.dedup();
            (rules.join(" "), None)
        }
        Outcome::Failed(why) | Outcome::Superseded(why) | Outcome::Excluded(why) => {
            let word = outcome_word(&record.outcome);
            (word.to_owned(), Some(format!("{word}: {}", printable(why))))
        }
    }
}

/// Adds `label value`, broken at blanks into lines of at most [`WIDTH`] columns, of which all but the first start with
/// `indent` blanks.
fn paragraph(text: &mut String, label: &str, value: &str, indent: usize) {
    let mut line = label.to_owned();
    for word in value.split(' ').filter(|word| !word.is_empty()) {
        if columns(&line) + 1 + columns(word) > WIDTH && columns(line.trim_start()) > 0 {
            let _ = writeln!(text, "{}", line.trim_end());
            line = " ".repeat(indent - 1);
        }
        line.push(' ');
        line.push_str(word);
    }
    let _ = writeln!(text, "{}", line.trim_end());
}

fn columns(text: &str) -> usize {
    text.chars().count()
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
        paragraph(&mut text, &format!("  {name:<12}"), &value, 15);
    }
    if !session.redactions.is_empty() {
        let names: Vec<&str> = session.redactions.iter().map(|redaction| redaction.name.as_str()).collect();
        paragraph(&mut text, &format!("  {:<12}", "redacted"), &printable(&names.join(", ")), 15);
    }
    let Some(record) = record else { return text };
    text.push_str("\nmetrics\n");
    for metric in Metric::all() {
        if let Some(value) = value(record, metric) {
            let unit = Some(metric.unit()).filter(|unit| *unit != Unit::One).map_or("", Unit::symbol);
            let line = format!("  {:<26} {:>12} {unit}", metric.name(), significant(value));
            let _ = writeln!(text, "{}", line.trim_end());
        }
    }
    let fired = validity::judge(record);
    if !fired.is_empty() {
        text.push_str("\nrules that fired\n");
        for fired in &fired {
            paragraph(&mut text, &format!("  {:<3}", fired.rule), &printable(&fired.message), 6);
            paragraph(&mut text, "     ", &printable(&fired.help), 6);
        }
    }
    text.push_str("\nobserved\n");
    for (key, value) in record.facts.iter() {
        paragraph(&mut text, &format!("  {key} ="), &shortened(&printable(&value.to_string())), 6);
    }
    text.push_str("\nfiles (labbook show RUN FILE prints one)\n");
    for (path, digest) in &form.files {
        let _ = writeln!(text, "  {}  {:>9}  {path}", digest.sha256.short(12), digest.size);
    }
    text
}

fn shortened(text: &str) -> String {
    let length = columns(text);
    if length <= LONGEST_VALUE {
        return text.to_owned();
    }
    let kept: String = text.chars().take(LONGEST_VALUE).collect();
    format!("{kept}… ({length} characters)")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::digest::Digest;
    use crate::fact::FactValue;
    use crate::question::{Axis, Level};
    use crate::record::Tier;
    use crate::redact::Redaction;
    use crate::run::{FORMAT, FileDigest, Files, Kind, Run};
    use crate::store::{Store, Wrong};

    fn sealed(session: &str, block: Option<u32>, trials: &[(&str, Status)]) -> SealedSession {
        let runs = trials.iter().map(|(level, status)| {
            let trial = format!("c{level:0>4}-p1");
            let digest = |text: &str| FileDigest { sha256: Digest::of(text), size: text.len() as u64 * 1234 };
            let names = [format!("{trial}/bench.jsonl"), "facts.json".to_owned(), "server.log".to_owned()];
            let run = Run {
                format: FORMAT,
                experiment: "cutedsl".into(),
                edition: "4f2a91c0".into(),
                session: session.into(),
                trial,
                arm: "flashinfer_cutedsl".into(),
                block,
                attempt: 1,
                position: 1,
                axis: Axis::Concurrency,
                level: Level((*level).into()),
                pass: 1,
                tier: Tier::Measured,
                status: *status,
                reason: (*status == Status::Failed).then(|| WHY.to_owned()),
                files: names.into_iter().map(|name| (name.clone(), digest(&name))).collect(),
            };
            SealedRun { id: Digest::of(format!("{session} {level}")), run }
        });
        let runs: Vec<SealedRun> = runs.collect();
        let session = Session {
            format: FORMAT,
            experiment: "cutedsl".into(),
            edition: "4f2a91c0".into(),
            session: session.into(),
            kind: Kind::Block,
            arm: "flashinfer_cutedsl".into(),
            block,
            attempt: 1,
            position: 1,
            previous: None,
            host: "blackwell".into(),
            status: Status::Finished,
            reason: None,
            trials: Vec::new(),
            labbook: "0.1.0".into(),
            rules: "1".into(),
            programs_sha256: "00".into(),
            manifest_sha256: None,
            redactions: vec![Redaction { name: "api_key".into(), digest: Digest::of("x") }],
            files: Files::new(),
        };
        SealedSession { session, runs }
    }

    const WHY: &str = "ready 1 the server exited by itself with code 1: RuntimeError: Not enough memory. Please try to \
        increase --mem-fraction-static. \u{1b}[31mred";

    fn record(run: &SealedRun, outcome: Outcome) -> Record {
        let row = br#"{"backend": "sglang", "completed": 512, "duration": 93.5, "output_throughput": 706.512345,
            "total_throughput": 1387.0, "mean_ttft_ms": 61.734, "concurrency": 255.7}"#;
        let row: Vec<u8> = row.iter().map(|byte| if *byte == b'\n' { b' ' } else { *byte }).collect();
        let finished = matches!(outcome, Outcome::Finished | Outcome::Superseded(_));
        let argv = "/opt/venv/bin/python -m sglang.launch_server --model-path lukealonso/GLM-5-NVFP4 --tp-size 8 ";
        let digest = Digest::of("packages").to_string();
        let facts = [
            ("packages.sha256", FactValue::Text(digest)),
            ("server.argv", FactValue::Text(argv.repeat(8))),
            ("server.resolved.attention_backend", FactValue::Text("fa3".into())),
        ];
        Record {
            id: run.id,
            experiment: run.run.experiment.clone(),
            edition: Some(run.run.edition.clone()),
            arm: run.run.arm.clone(),
            block: run.run.block,
            attempt: 1,
            session: run.run.session.clone(),
            position: Some(1),
            level: run.run.level.clone(),
            pass: 1,
            tier: Tier::Measured,
            outcome,
            facts: facts.into_iter().map(|(key, value)| (key.into(), value)).collect(),
            written: if finished { crate::row::written(Some(&row)) } else { Written::Nothing },
            result_sha256: None,
            decode_rate: None,
        }
    }

    fn widest(text: &str) -> usize {
        text.lines().map(columns).max().unwrap_or(0)
    }

    #[test]
    fn an_edition_without_runs_is_one_line() {
        let of = Store::new("lab").edition("cutedsl", "4f2a91c0");
        assert_eq!(edition(&of, &[], &[]), "cutedsl 4f2a91c0: 0 runs\n");
    }

    #[test]
    fn an_edition_is_a_table_that_fits() {
        let (done, lost) = (Status::Finished, Status::Failed);
        let sessions = [
            sealed("prime-flashinfer_cutedsl", None, &[("1", done)]),
            sealed("b01-flashinfer_cutedsl", Some(1), &[("1", done), ("256", done)]),
            sealed("b01-flashinfer_cutlass", Some(1), &[("1", lost), ("256", lost)]),
            sealed("b01-flashinfer_cutlass.2", Some(1), &[("1", done), ("1024", done)]),
        ];
        let again = "`flashinfer_cutlass`: its server died";
        let outcomes = |index: usize, level: &str| match (index, level) {
            (1, _) => Outcome::Superseded(again.into()),
            (2, _) => Outcome::Failed(WHY.into()),
            (3, "1024") => {
                Outcome::Excluded("the fan of GPU 3 had stopped, which the log of the machine room shows".into())
            }
            _ => Outcome::Finished,
        };
        let records: Vec<Record> = sessions
            .iter()
            .enumerate()
            .flat_map(|(index, sealed)| {
                sealed.runs.iter().map(move |run| record(run, outcomes(index, &run.run.level.0)))
            })
            .collect();
        let of = Store::new("lab").edition("cutedsl", "4f2a91c0");
        let text = edition(&of, &sessions, &records);
        assert!(widest(&text) <= WIDTH && !text.contains('\u{1b}'), "{text}");
        insta::assert_snapshot!("edition", text);
    }

    #[test]
    fn a_run_is_a_page_that_fits() {
        let sealed = sealed("b01-flashinfer_cutedsl", Some(1), &[("256", Status::Finished), ("1", Status::Failed)]);
        let text = run(&sealed.runs[0], &sealed.session, Some(&record(&sealed.runs[0], Outcome::Finished)));
        assert!(widest(&text) <= WIDTH, "{text}");
        // Which rules fire, and their words, are pinned where they are defined.
        let rules = text.find("\nrules that fired").zip(text.find("\nobserved"));
        let text = rules.map_or_else(|| text.clone(), |(from, to)| format!("{}{}", &text[..from], &text[to..]));
        insta::assert_snapshot!("run", text);
        let failed = run(&sealed.runs[1], &sealed.session, None);
        assert!(widest(&failed) <= WIDTH && !failed.contains('\u{1b}'), "{failed}");
        insta::assert_snapshot!("failed_run", failed);
    }

    #[test]
    fn a_damaged_file_names_what_rests_on_it() {
        let runs: Vec<Digest> = (0..24).map(|run| Digest::of(format!("{run}"))).collect();
        let claims = ["cutedsl/faster-at-10", "cutedsl/no-loss-at-1", "cutedsl/faster-at-64", "cutedsl/slower-at-1024"];
        let claims = claims.map(str::to_owned);
        let of = |runs: &[Digest]| Problem { path: "spec.yaml".into(), wrong: Wrong::Altered, runs: runs.to_vec() };
        let folder = Path::new("results/cutedsl/4f2a91c0");
        assert_eq!(problem(folder, &of(&[]), &[]), "results/cutedsl/4f2a91c0/spec.yaml: altered");
        insta::assert_snapshot!("damaged", problem(folder, &of(&runs), &claims));
    }

    #[test]
    fn a_long_value_is_cut_and_says_so() {
        assert_eq!(shortened(""), "");
        let text = shortened(&"x".repeat(1000));
        assert!(text.ends_with("… (1000 characters)") && columns(&text) < 520);
    }
}
