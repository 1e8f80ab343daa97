//! What a run shows while it goes on: one line for each thing that finished, as text or as JSON.
//!
//! Invariant: a line is printed when its thing is over and never changed afterwards; only the footer moves.

use std::fmt::Write as _;

use crate::runner::Event;

/// Returns the line of an event, without a newline; `None` for events that have none.
pub fn line(event: &Event) -> Option<String> {
    let (word, rest) = match event {
        Event::Plan { experiment, edition, arms, blocks, levels, sessions, trials, estimate_s } => {
            let time = estimate_s.map_or_else(String::new, |seconds| format!(", about {}", duration(seconds)));
            let size = format!("{} arms × {blocks} blocks × {levels} levels", arms.len());
            let to_do = format!("{sessions} launches with {trials} runs to do{time}");
            ("Plan", format!("{experiment} {edition}  {size}\n             {to_do}"))
        }
        Event::Host { host, folder } => ("Host", format!("{host}  {folder}")),
        Event::Session { .. } => return None,
        Event::Ready { session, seconds } => ("READY", format!("{} {session}", bracketed(*seconds))),
        Event::Trial { session, trial, value, unit, ttft_ms, completed, asked, seconds, fired, .. } => {
            let shown = value.map_or_else(|| "no value".to_owned(), |value| format!("{} {unit}", significant(value)));
            let ttft = ttft_ms.map_or_else(String::new, |ttft| format!(" ttft {}ms", significant(ttft)));
            let word = if fired.is_empty() { "OK" } else { "FIRED" };
            let rules = if fired.is_empty() { String::new() } else { format!("  {}", fired.join(" ")) };
            let done = completed.map_or_else(|| "?".to_owned(), |completed| completed.to_string());
            let place = format!("{session} {trial}");
            (word, format!("{} {place:<22} {shown:>11}{ttft} {done}/{asked}{rules}", bracketed(*seconds)))
        }
        Event::Sealed { session, status, reason, runs, tail } => {
            if status == "finished" {
                return None;
            }
            let mut text = format!("{session}: {}", reason.as_deref().unwrap_or("no reason known"));
            if let Some(run) = runs.first() {
                text.push_str("\n               recorded as failed run ");
                text.push_str(run.get(..8).unwrap_or(run));
            }
            for each in tail {
                text.push_str("\n               | ");
                text.push_str(each);
            }
            ("FAILED", text)
        }
        Event::Requeued { block, attempt, because } => {
            ("AGAIN", format!("block {block} as a whole, attempt {attempt}: {because}"))
        }
        Event::Lost { host, because, deadline_s } => {
            let deadline = duration(*deadline_s as f64);
            ("LOST", format!("{because}\n             `{host}` goes on by itself; trying again for {deadline}"))
        }
        Event::Back { host, seconds } => ("BACK", format!("{} `{host}` is in reach again", bracketed(*seconds))),
        Event::Stopped { because } => ("STOPPED", because.clone()),
        Event::Detached { attach } => (
            "Detached",
            format!("the runner goes on; it is safe to close the terminal\n               come back with `{attach}`"),
        ),
        Event::Done { finished, failed, complete_blocks, blocks, seconds } => {
            let failures = if *failed == 0 { String::new() } else { format!(", {failed} failed") };
            let launches = format!("{finished} launches finished{failures}");
            ("Summary", format!("{} {launches}; {complete_blocks} of {blocks} blocks complete", bracketed(*seconds)))
        }
    };
    Some(lines_of(&format!("{word:>12} {rest}")))
}

/// Breaks what is longer than a line of 80 columns, at blanks, and aligns the rest with the first word behind the label.
fn lines_of(text: &str) -> String {
    let broken = text.lines().map(|line| {
        // The tail of a log keeps its lines, and its mark in front.
        if line.trim_start().starts_with("| ") { line.to_owned() } else { folded(line, "             ") }
    });
    broken.collect::<Vec<_>>().join("\n")
}

/// Folds one line at blanks to 80 columns; further lines begin with `indent`. A word that is longer stays whole.
pub fn folded(line: &str, indent: &str) -> String {
    const WIDTH: usize = 80;
    if line.chars().count() <= WIDTH {
        return line.to_owned();
    }
    let start = line.len() - line.trim_start_matches(' ').len();
    let (mut text, mut column, mut fresh) = (line[..start].to_owned(), start, true);
    for word in line[start..].split(' ') {
        let length = word.chars().count();
        if !fresh && column + 1 + length > WIDTH {
            text.push('\n');
            text.push_str(indent);
            (column, fresh) = (indent.chars().count(), true);
        }
        if !fresh {
            text.push(' ');
            column += 1;
        }
        text.push_str(word);
        column += length;
        fresh = false;
    }
    text
}

/// How far an experiment is.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct Standing {
    /// The experiment.
    pub experiment: String,
    /// Eight hex digits of the edition.
    pub edition: String,
    /// Sessions planned so far.
    pub planned: usize,
    /// Sessions sealed as finished.
    pub finished: usize,
    /// Sessions sealed as failed, with the reason.
    pub failed: Vec<(String, String)>,
    /// Blocks planned.
    pub blocks: u32,
    /// Attempts at blocks that no longer count.
    pub superseded: usize,
    /// The session that runs.
    pub running: Option<String>,
    /// Whether the runner lives.
    pub runner_lives: bool,
    /// Why nothing may start on the host.
    pub dirty: Option<String>,
    /// Why the host was not asked, so that `running`, `runner_lives` and `dirty` are not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unreached: Option<String>,
}

/// Returns how far an experiment is, in a few lines.
pub fn standing(view: &Standing) -> String {
    let open = view.planned.saturating_sub(view.finished + view.failed.len());
    let mut text = format!(
        "{} {}  {} blocks planned: {} launches finished, {} failed, {open} open",
        view.experiment,
        view.edition,
        view.blocks,
        view.finished,
        view.failed.len()
    );
    let mut add = |word: &str, rest: &str| {
        let _ = write!(text, "\n{word:>12} {rest}");
    };
    match (&view.running, view.runner_lives) {
        (Some(session), true) => add("running", session),
        (None, true) => add("running", "between two sessions"),
        _ => {}
    }
    for (session, reason) in &view.failed {
        add("failed", &format!("{session}: {reason}"));
    }
    if view.superseded > 0 {
        add("superseded", &format!("{} attempts at blocks", view.superseded));
    }
    if let Some(reason) = &view.unreached {
        add("unknown", &format!("what runs there: {reason}"));
    }
    if let Some(reason) = &view.dirty {
        add("dirty", reason);
    }
    text
}

/// Returns a number of things: `1 run`, `0 runs`.
pub fn counted(number: usize, thing: &str) -> String {
    if number == 1 { format!("1 {thing}") } else { format!("{number} {thing}s") }
}

/// Returns a duration as people say it: `42 s`, `3 min 10 s`, `2 h 05 min`.
pub fn duration(seconds: f64) -> String {
    let whole = seconds.max(0.0).round() as u64;
    match whole {
        0..60 => format!("{whole} s"),
        60..3600 => format!("{} min {:02} s", whole / 60, whole % 60),
        _ => format!("{} h {:02} min", whole / 3600, whole % 3600 / 60),
    }
}

/// Returns a number with four significant digits, without an exponent.
pub fn significant(value: f64) -> String {
    let magnitude = value.abs();
    if magnitude >= 1000.0 {
        format!("{value:.0}")
    } else if magnitude >= 100.0 {
        format!("{value:.1}")
    } else if magnitude >= 10.0 {
        format!("{value:.2}")
    } else {
        format!("{value:.3}")
    }
}

fn bracketed(seconds: f64) -> String {
    format!("[{seconds:>6.1}s]")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_and_numbers_read_well() {
        assert_eq!([0.0, 59.6, 3599.0, 7500.0].map(duration), ["0 s", "1 min 00 s", "59 min 59 s", "2 h 05 min"]);
        assert_eq!([0.5, 12.345, 432.11, 5012.4].map(significant), ["0.500", "12.35", "432.1", "5012"]);
    }

    #[test]
    fn lines_fit_eighty_columns() {
        let events = [
            Event::Plan {
                experiment: "quickstart".into(),
                edition: "4f2a91c0".into(),
                arms: vec!["loop".into(), "grouped".into()],
                blocks: 3,
                levels: 3,
                sessions: 8,
                trials: 24,
                estimate_s: Some(100.0),
            },
            Event::Ready { session: "b01-loop".into(), seconds: 1.2 },
            Event::Trial {
                session: "b01-loop".into(),
                trial: "c0016-p1".into(),
                metric: "output_throughput".into(),
                value: Some(432.12),
                unit: "tok/s".into(),
                ttft_ms: Some(212.0),
                completed: Some(64),
                asked: 64,
                seconds: 4.04,
                fired: Vec::new(),
            },
            Event::Requeued { block: 2, attempt: 2, because: "`loop` failed: ready 1".into() },
            Event::Done { finished: 8, failed: 1, complete_blocks: 3, blocks: 3, seconds: 100.2 },
        ];
        let shown: Vec<String> = events.iter().filter_map(line).collect();
        insta::assert_snapshot!(shown.join("\n"));
        assert!(line(&Event::Session { session: "b01-loop".into(), arm: "loop".into() }).is_none());
    }
}
