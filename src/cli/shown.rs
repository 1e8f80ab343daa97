//! Where the events of a run go: lines, a live footer, or JSON.

use std::io::Write;

use super::{Format, Terminal};
use crate::report::progress;
use crate::runner::Event;
use crate::runner::missing::Missing;

/// Where events go: lines, a live footer, or JSON.
pub(super) struct Shown<'t> {
    terminal: &'t mut Terminal,
    format: Format,
    footer: Option<indicatif::ProgressBar>,
}

impl<'t> Shown<'t> {
    pub(super) fn new(terminal: &'t mut Terminal, format: Format, missing: &Missing) -> Self {
        let trials: usize = missing.sessions.iter().map(|session| session.trials.len()).sum();
        let footer = (terminal.live && format == Format::Text && trials > 0).then(|| {
            let bar = indicatif::ProgressBar::new(trials as u64);
            let style = indicatif::ProgressStyle::with_template("{wide_msg} {pos}/{len} runs, {elapsed} so far")
                .unwrap_or_else(|_| indicatif::ProgressStyle::default_bar());
            bar.set_style(style);
            bar.enable_steady_tick(std::time::Duration::from_millis(250));
            bar
        });
        Self { terminal, format, footer }
    }

    pub(super) fn event(&mut self, event: &Event) {
        if let Some(footer) = &self.footer {
            match event {
                Event::Session { session, .. } => footer.set_message(format!("{session}: starting the server")),
                Event::Ready { session, .. } => footer.set_message(format!("{session}: measuring")),
                Event::Trial { .. } => footer.inc(1),
                Event::Requeued { .. } => footer.inc_length(1),
                _ => {}
            }
        }
        let text = match self.format {
            Format::Json => serde_json::to_string(event).ok(),
            Format::Text => progress::line(event),
        };
        let Some(text) = text else { return };
        let out: &mut dyn Write =
            if self.format == Format::Json { &mut *self.terminal.out } else { &mut *self.terminal.err };
        let mut write = || {
            let _ = writeln!(out, "{text}").and_then(|()| out.flush());
        };
        match &self.footer {
            Some(footer) => footer.suspend(write),
            None => write(),
        }
    }

    pub(super) fn clear(&mut self) {
        if let Some(footer) = self.footer.take() {
            footer.finish_and_clear();
        }
    }
}
