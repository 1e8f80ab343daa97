//! The server's log: lines as SGLang writes them, `[YYYY-MM-DD HH:MM:SS] text`, in UTC.

use std::fmt::{Arguments, Write as _};
use std::io::Write;
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

/// Where the lines go; shared by the threads of a server.
pub(crate) struct Log(Mutex<Box<dyn Write + Send>>);

impl Log {
    /// A log that writes to `out`.
    pub(crate) fn new(out: Box<dyn Write + Send>) -> Self {
        Self(Mutex::new(out))
    }

    /// Writes one line with its time. A reader that went away is no reason to stop serving.
    pub(crate) fn line(&self, text: Arguments<'_>) {
        let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let mut line = String::new();
        let _ = writeln!(line, "[{}] {text}", stamp(seconds));
        let mut out = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = out.write_all(line.as_bytes()).and_then(|()| out.flush());
    }
}

/// `YYYY-MM-DD HH:MM:SS` of seconds since 1970, after Howard Hinnant's `civil_from_days`.
fn stamp(seconds: u64) -> String {
    let (days, rest) = (seconds / 86_400 + 719_468, seconds % 86_400);
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let of_year = day - (365 * year + year / 4 - year / 100);
    let shifted = (5 * of_year + 2) / 153;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = year + era * 400 + u64::from(month <= 2);
    let of_month = of_year - (153 * shifted + 2) / 5 + 1;
    format!("{year:04}-{month:02}-{of_month:02} {:02}:{:02}:{:02}", rest / 3600, rest / 60 % 60, rest % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamps_are_utc() {
        assert_eq!(stamp(0), "1970-01-01 00:00:00");
        assert_eq!(stamp(951_782_400), "2000-02-29 00:00:00");
        assert_eq!(stamp(1_796_046_132), "2026-11-30 13:42:12");
    }
}
