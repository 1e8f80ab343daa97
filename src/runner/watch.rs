//! Reading what happens on a host: the journal from an offset, and the status of the session that runs.
//!
//! Invariant: a poll is a short read; a line that is cut off is read again with the next poll.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::host::{Host, HostError};
use crate::metric::{Metric, Span, Statistic};
use crate::plan::{PlannedSession, PlannedTrial};
use crate::row;
use crate::runner::Event;

/// A session's place in the host's queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    /// Its number.
    pub(super) sequence: u16,
    /// Folder name, `NNNN-NAME`.
    pub(super) folder: String,
}

/// Returns the queue of a host folder by session name.
pub(super) fn queue_entries(host: &dyn Host, folder: &Path) -> Result<BTreeMap<String, Entry>, HostError> {
    let names = host.list(&folder.join("queue"))?;
    Ok(names
        .into_iter()
        .filter_map(|name| Some((session_of(&name)?, Entry { sequence: sequence_of(&name)?, folder: name })))
        .collect())
}

fn sequence_of(entry: &str) -> Option<u16> {
    entry.split_once('-')?.0.parse().ok()
}

/// Returns the session's name in an entry's folder name.
fn session_of(entry: &str) -> Option<String> {
    let (number, name) = entry.split_once('-')?;
    (number.len() == 4 && number.bytes().all(|byte| byte.is_ascii_digit())).then(|| name.to_owned())
}

/// Why a runner ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RunnerEnd {
    /// The lease is another's.
    LeaseRefused,
    /// Something is left over.
    Dirty,
    /// On request.
    Stopped,
}

/// What one poll found.
#[derive(Debug, Default)]
pub(super) struct News {
    /// New lines of the journal.
    pub(super) lines: Vec<String>,
    /// Sessions that ended, by name.
    pub(super) ended: Vec<String>,
    /// How the runner ended, if it did since we watch.
    pub(super) end: Option<RunnerEnd>,
}

/// A reader of one host folder.
pub(super) struct Watch {
    folder: PathBuf,
    offset: u64,
    /// Lines before this offset were there when we came: a runner that ended then says nothing about now.
    came: u64,
    entries: BTreeMap<String, String>,
    current: Option<Current>,
}

/// The session that runs.
struct Current {
    name: String,
    entry: String,
    offset: u64,
    started: f64,
}

impl Watch {
    /// Starts to watch; everything that is in the journal already counts as news, except how a runner ended.
    pub(super) fn new(host: &dyn Host, folder: &Path) -> Result<Self, HostError> {
        let came = host.read(&folder.join("journal"), 0)?.len() as u64;
        Ok(Self { folder: folder.to_owned(), offset: 0, came, entries: BTreeMap::new(), current: None })
    }

    /// Returns the folder name of a session in the queue.
    pub(super) fn entry(&self, session: &str) -> Option<&str> {
        self.entries.get(session).map(String::as_str)
    }

    /// Looks once, and reports what the running session did.
    pub(super) fn look(
        &mut self,
        host: &dyn Host,
        known: &BTreeMap<String, PlannedSession>,
        report: &mut dyn FnMut(&Event),
    ) -> Result<News, HostError> {
        let mut news = News::default();
        let mut at = self.offset;
        for line in self.complete_lines(host, &self.folder.join("journal"), at)? {
            at += line.len() as u64 + 1;
            self.journal_line(&line, at > self.came, &mut news, known, report, host)?;
            news.lines.push(line);
        }
        self.offset = at;
        self.status(host, known, report)?;
        Ok(news)
    }

    /// Returns the lines of a file from an offset on that end in a newline.
    fn complete_lines(&self, host: &dyn Host, path: &Path, offset: u64) -> Result<Vec<String>, HostError> {
        let bytes = host.read(path, offset)?;
        let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
        Ok(bytes[..whole]
            .split_inclusive(|byte| *byte == b'\n')
            .map(|line| lossless(&line[..line.len() - 1]))
            .collect())
    }

    fn journal_line(
        &mut self,
        line: &str,
        is_new: bool,
        news: &mut News,
        known: &BTreeMap<String, PlannedSession>,
        report: &mut dyn FnMut(&Event),
        host: &dyn Host,
    ) -> Result<(), HostError> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [_, _, event, entry, _] = words.as_slice() else { return Ok(()) };
        let session = session_of(entry);
        match (*event, session) {
            ("session-start", Some(name)) => {
                if is_new && let Some(planned) = known.get(&name) {
                    report(&Event::Session { session: name.clone(), arm: planned.arm.clone() });
                }
                self.current = Some(Current { name, entry: (*entry).to_owned(), offset: 0, started: 0.0 });
            }
            ("session-end", Some(name)) => {
                // The last steps of a session and its end come in one poll.
                if is_new {
                    self.status(host, known, report)?;
                }
                self.current = None;
                self.entries.insert(name.clone(), (*entry).to_owned());
                news.ended.push(name);
            }
            ("lease-refused", _) if is_new => news.end = Some(RunnerEnd::LeaseRefused),
            ("dirty", _) if is_new => news.end = Some(RunnerEnd::Dirty),
            ("stopped", _) if is_new => news.end = Some(RunnerEnd::Stopped),
            _ => {}
        }
        Ok(())
    }

    /// Reports the new steps of the running session.
    fn status(
        &mut self,
        host: &dyn Host,
        known: &BTreeMap<String, PlannedSession>,
        report: &mut dyn FnMut(&Event),
    ) -> Result<(), HostError> {
        let Some(mut current) = self.current.take() else { return Ok(()) };
        let out = self.folder.join("queue").join(&current.entry).join("out");
        for line in self.complete_lines(host, &out.join("status"), current.offset)? {
            current.offset += line.len() as u64 + 1;
            let words: Vec<&str> = line.split_whitespace().collect();
            let [_, uptime, step, code] = words.as_slice() else { continue };
            let uptime: f64 = uptime.parse().unwrap_or(0.0);
            match *step {
                "start" => current.started = uptime,
                "ready" if *code == "0" => {
                    report(&Event::Ready { session: current.name.clone(), seconds: uptime - current.started });
                }
                _ => {
                    if let Some(folder) = step.strip_prefix("trial:")
                        && let Some(trial) = trial_of(known.get(&current.name), folder)
                    {
                        report(&trial_event(host, &current.name, trial, &out.join("trials").join(folder))?);
                    }
                }
            }
        }
        self.current = Some(current);
        Ok(())
    }
}

fn trial_of<'p>(session: Option<&'p PlannedSession>, folder: &str) -> Option<&'p PlannedTrial> {
    let label = folder.split_once('-')?.1;
    session?.trials.iter().find(|trial| trial.label == label)
}

/// Reads what the client of a trial wrote, for the line that is shown; the record is made later from the sealed files.
fn trial_event(host: &dyn Host, session: &str, trial: &PlannedTrial, folder: &Path) -> Result<Event, HostError> {
    let bytes = host.read(&folder.join(crate::client::RESULT_FILE), 0)?;
    let row = row::parse_rows(&bytes).ok().and_then(|rows| rows.into_iter().next());
    let metric = Metric::OutputThroughput;
    let value = |metric: Metric| row.as_ref().and_then(|row| row.metrics.get(&metric).copied());
    let uptime = |name: &str| -> Result<Option<f64>, HostError> {
        let text = lossless(&host.read(&folder.join(name), 0)?);
        Ok(text.split_whitespace().nth(1).and_then(|uptime| uptime.parse().ok()))
    };
    let seconds = uptime("ended")?.zip(uptime("started")?).map_or(0.0, |(end, start)| end - start);
    Ok(Event::Trial {
        session: session.to_owned(),
        trial: trial.label.clone(),
        metric: metric.name(),
        value: value(metric),
        unit: metric.unit().symbol().to_owned(),
        ttft_ms: value(Metric::Latency(Statistic::Median, Span::Ttft)),
        completed: row.as_ref().and_then(|row| row.completed),
        asked: trial.num_prompts,
        seconds,
        fired: Vec::new(),
    })
}

fn lossless(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
