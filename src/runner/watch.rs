//! Reading what happens on a host: the journal from an offset, and the status of the session that runs.
//!
//! Invariant: a poll is a short read; a line that is cut off is read again with the next poll.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::host::{Host, HostError};
use crate::metric::{Metric, Span, Statistic};
use crate::plan::{PlannedSession, PlannedTrial};
use crate::record::RESULT_FILE;
use crate::row;
use crate::runner::Event;
use crate::script::output::{self, JournalLine, Step};

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
    /// How many lines the journal grew by.
    pub(super) lines: usize,
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
        let bytes = host.read(&self.folder.join("journal"), self.offset)?;
        // What was there when we came is read in one piece, so that old and new lines never share one.
        let old = (self.came.saturating_sub(self.offset) as usize).min(bytes.len());
        for (part, is_new) in [(&bytes[..old], false), (&bytes[old..], true)] {
            let read = output::journal(part);
            news.lines += read.lines.len();
            for line in read.lines {
                self.journal_line(&line, is_new, &mut news, known, report, host)?;
            }
            self.offset += read.consumed as u64;
        }
        self.status(host, known, report)?;
        Ok(news)
    }

    fn journal_line(
        &mut self,
        line: &JournalLine,
        is_new: bool,
        news: &mut News,
        known: &BTreeMap<String, PlannedSession>,
        report: &mut dyn FnMut(&Event),
        host: &dyn Host,
    ) -> Result<(), HostError> {
        match (line.event, session_of(&line.name)) {
            (output::Event::SessionStart, Some(name)) => {
                if is_new && let Some(planned) = known.get(&name) {
                    report(&Event::Session { session: name.clone(), arm: planned.arm.clone() });
                }
                self.current = Some(Current { name, entry: line.name.clone(), offset: 0, started: 0.0 });
            }
            (output::Event::SessionEnd, Some(name)) => {
                // The last steps of a session and its end come in one poll.
                if is_new {
                    self.status(host, known, report)?;
                }
                self.current = None;
                self.entries.insert(name.clone(), line.name.clone());
                news.ended.push(name);
            }
            (output::Event::LeaseRefused, _) if is_new => news.end = Some(RunnerEnd::LeaseRefused),
            (output::Event::Dirty, _) if is_new => news.end = Some(RunnerEnd::Dirty),
            (output::Event::Stopped, _) if is_new => news.end = Some(RunnerEnd::Stopped),
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
        let read = output::status(&host.read(&out.join("status"), current.offset)?);
        current.offset += read.consumed as u64;
        for line in read.lines {
            match line.step {
                Step::Start => current.started = line.uptime_s,
                Step::Ready if line.code == 0 => {
                    let seconds = line.uptime_s - current.started;
                    report(&Event::Ready { session: current.name.clone(), seconds });
                }
                Step::Trial(folder) => {
                    if let Some(trial) = trial_of(known.get(&current.name), &folder) {
                        report(&trial_event(host, &current.name, trial, &out.join("trials").join(&folder))?);
                    }
                }
                _ => {}
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
    let files = host.read_all(&[RESULT_FILE, "started", "ended"].map(|name| folder.join(name)))?;
    let [bytes, started, ended] = files.as_slice() else { unreachable!("as many as were asked for") };
    let row = row::parse_rows(bytes).ok().and_then(|rows| rows.into_iter().next());
    let metric = Metric::OutputThroughput;
    let value = |metric: Metric| row.as_ref().and_then(|row| row.metrics.get(&metric).copied());
    let uptime = |text: &[u8]| output::instant(&String::from_utf8_lossy(text)).map(|(_, uptime_s)| uptime_s);
    let seconds = uptime(ended).zip(uptime(started)).map_or(0.0, |(end, start)| end - start);
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
