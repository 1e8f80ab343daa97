//! Patience with a host whose link breaks: the act is tried again, less and less often, until a deadline.
//!
//! Invariant: only what may pass by itself is waited for, the wait is told when it begins and when it ends, and a person who leaves
//! is not kept.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::host::{Host, HostError, Said};
use crate::runner::Event;
use crate::script::input::SessionInput;

/// How long a host may be out of reach before we give up; what runs there goes on.
const DEADLINE: Duration = Duration::from_mins(20);
/// From the first to the longest pause between two tries.
const PAUSES: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(15));

/// A host that is asked again.
pub struct Patient<'a> {
    host: &'a dyn Host,
    report: &'a RefCell<dyn FnMut(&Event) + 'a>,
    interrupted: &'a AtomicBool,
}

impl<'a> Patient<'a> {
    /// Makes a host that is asked again, until somebody wants to leave.
    pub fn new(host: &'a dyn Host, report: &'a RefCell<dyn FnMut(&Event) + 'a>, interrupted: &'a AtomicBool) -> Self {
        Self { host, report, interrupted }
    }

    fn tell(&self, event: &Event) {
        (self.report.borrow_mut())(event);
    }

    fn patiently<T>(&self, act: impl Fn(&dyn Host) -> Result<T, HostError>) -> Result<T, HostError> {
        let mut error = match act(self.host) {
            Err(error) if error.may_pass() => error,
            done => return done,
        };
        let (began, mut pause) = (Instant::now(), PAUSES.0);
        let host = self.host.name().to_owned();
        self.tell(&Event::Lost { host: host.clone(), because: error.to_string(), deadline_s: DEADLINE.as_secs() });
        while began.elapsed() < DEADLINE && !self.sleep(pause) {
            pause = (pause * 2).min(PAUSES.1);
            match act(self.host) {
                Err(again) if again.may_pass() => error = again,
                done => {
                    self.tell(&Event::Back { host, seconds: began.elapsed().as_secs_f64() });
                    return done;
                }
            }
        }
        Err(error)
    }

    /// Sleeps; returns whether somebody wants to leave.
    fn sleep(&self, pause: Duration) -> bool {
        let began = Instant::now();
        while began.elapsed() < pause && !self.interrupted.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(50));
        }
        self.interrupted.load(Ordering::Relaxed)
    }
}

impl Host for Patient<'_> {
    fn name(&self) -> &str {
        self.host.name()
    }

    fn folder(&self, label: &str) -> PathBuf {
        self.host.folder(label)
    }

    fn pace(&self) -> Duration {
        self.host.pace()
    }

    fn install(&self, folder: &Path) -> Result<(), HostError> {
        self.patiently(|host| host.install(folder))
    }

    fn queue(&self, folder: &Path, sequence: u16, session: &SessionInput) -> Result<(), HostError> {
        self.patiently(|host| host.queue(folder, sequence, session))
    }

    fn place_file(&self, path: &Path, file: &Path) -> Result<(), HostError> {
        self.patiently(|host| host.place_file(path, file))
    }

    fn place_program(&self, path: &Path, program: &Path) -> Result<(), HostError> {
        self.patiently(|host| host.place_program(path, program))
    }

    fn start(&self, folder: &Path) -> Result<(), HostError> {
        self.patiently(|host| host.start(folder))
    }

    fn alive(&self, folder: &Path) -> Result<bool, HostError> {
        self.patiently(|host| host.alive(folder))
    }

    fn request_stop(&self, folder: &Path) -> Result<(), HostError> {
        self.patiently(|host| host.request_stop(folder))
    }

    fn withdraw_stop(&self, folder: &Path) -> Result<(), HostError> {
        self.patiently(|host| host.withdraw_stop(folder))
    }

    fn read(&self, path: &Path, offset: u64) -> Result<Vec<u8>, HostError> {
        self.patiently(|host| host.read(path, offset))
    }

    fn read_all(&self, paths: &[PathBuf]) -> Result<Vec<Vec<u8>>, HostError> {
        self.patiently(|host| host.read_all(paths))
    }

    fn list(&self, folder: &Path) -> Result<Vec<String>, HostError> {
        self.patiently(|host| host.list(folder))
    }

    fn shell(&self, script: &str, input: &[u8]) -> Result<Said, HostError> {
        self.patiently(|host| host.shell(script, input))
    }

    fn fetch(&self, folder: &Path, into: &Path) -> Result<(), HostError> {
        self.patiently(|host| host.fetch(folder, into))
    }
}
