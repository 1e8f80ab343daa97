//! What one session is given: plain data, turned into files.
//!
//! Invariant: every file is written with exact bytes, nothing is quoted or escaped, and a session folder appears in
//! `queue/` complete or not at all (written aside, synced, renamed). Whatever the host programs could not carry
//! exactly (NUL, an argument above the kernel's limit, a variable name `env` would misread) is refused here.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, Write as _};
use std::num::NonZeroU16;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Linux refuses a single argument or variable of 32 pages or more (`MAX_ARG_STRLEN`, its NUL included).
const LONGEST_STRING: usize = 128 * 1024 - 1;

/// A program with its arguments and the variables it gets beside the base set (see [`crate::script`]).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Command {
    /// Program first; at least one.
    pub argv: Vec<OsString>,
    /// Name and value; a name occurs once.
    pub env: Vec<(String, OsString)>,
}

impl Command {
    /// A command without variables of its own.
    pub fn new<S: Into<OsString>>(argv: impl IntoIterator<Item = S>) -> Self {
        Self { argv: argv.into_iter().map(Into::into).collect(), env: Vec::new() }
    }
}

/// The first generation, which proves that the server answers (C57: healthy, but no answers yet).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Generate {
    /// Where it is posted, `/generate`.
    pub path: String,
    /// The JSON body, sent as it is.
    pub body: Vec<u8>,
}

/// Where the server's code comes from: a clean tree of its own is made on the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// A repository on the host; a leading `~/` is the host's home.
    pub repo: String,
    /// Full SHA, 40 lower-case hex digits.
    pub commit: String,
    /// Patches in the order of application: a label and the bytes.
    pub patches: Vec<(String, Vec<u8>)>,
}

/// Deadlines of every wait, in whole seconds (rounded up), and the room wanted on the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// From the start of the server to its first generation.
    pub ready: Duration,
    /// One client run; a warm-up wave has the same limit.
    pub trial: Duration,
    /// From SIGTERM to SIGKILL, and again until port and GPU memory are free.
    pub stop: Duration,
    /// One preflight command.
    pub preflight: Duration,
    /// Room on the disk of the host folder, in KiB.
    pub disk_kib: u64,
}

/// One planned client run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrialInput {
    /// `c0010-p1`.
    pub label: String,
    /// The measured client; its working directory is the trial's output folder.
    pub client: Command,
    /// A wave before it.
    pub warmup: Option<Command>,
    /// Whether the cache is flushed between the wave and the client.
    pub flush: bool,
}

/// Everything one session is given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionInput {
    /// `b03-cutedsl`, `b03-cutedsl.2`, `prime-cutedsl`, …
    pub name: String,
    /// The server.
    pub server: Command,
    /// Where it starts; the source tree, or else the host folder. A leading `~/` is the host's home.
    pub cwd: Option<String>,
    /// Clean tree to make.
    pub source: Option<Source>,
    /// Where the server must listen, on 127.0.0.1.
    pub port: NonZeroU16,
    /// Path that must answer 200.
    pub health: Option<String>,
    /// Fixed text that must occur in the server's log.
    pub ready_line: Option<String>,
    /// First generation.
    pub generate: Option<Generate>,
    /// Name and path of each GET that is recorded before and after all trials; names that begin with `metrics` also
    /// before and after each trial.
    pub info: Vec<(String, String)>,
    /// Where a POST flushes the prefix cache.
    pub flush_path: Option<String>,
    /// Commands that must succeed before the server starts.
    pub preflight: Vec<Command>,
    /// A command that prints where the server's interpreter finds its package.
    pub package_path: Option<Command>,
    /// Deadlines.
    pub limits: Limits,
    /// The plan, in order.
    pub trials: Vec<TrialInput>,
}

/// Why a session cannot be placed.
#[derive(Debug, thiserror::Error)]
pub enum PlaceError {
    /// A value that the host programs could not carry exactly.
    #[error("{what} is `{found}`, wanted {wanted}")]
    Value {
        /// Which value, such as `server.argv[2]`.
        what: String,
        /// What it is, shortened.
        found: String,
        /// What is possible.
        wanted: &'static str,
    },
    /// The number or the name is in use.
    #[error("`{taken}` is in the queue already, wanted a sequence number and a name of its own")]
    Taken {
        /// Folder name of the entry that is there.
        taken: String,
    },
    /// The file system.
    #[error("cannot write `{path}`")]
    Write {
        /// Where.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// A file of a session folder: path below it, and exact bytes.
pub type SessionFile = (PathBuf, Vec<u8>);

/// The files of a session, in the order they are written.
///
/// # Errors
/// The first value that cannot be carried exactly.
pub fn files(input: &SessionInput) -> Result<Vec<SessionFile>, PlaceError> {
    label("session name", &input.name)?;
    let mut files = Vec::new();
    command(&mut files, Path::new(""), "server", &input.server)?;
    line(&mut files, "port", &input.port.to_string());
    for (name, text) in [("cwd", &input.cwd), ("health", &input.health), ("ready-line", &input.ready_line)] {
        if let Some(text) = text {
            one_line(name, text)?;
            line(&mut files, name, text);
        }
    }
    for (name, path) in [("health", &input.health), ("flush-path", &input.flush_path)] {
        if let Some(path) = path {
            url_path(name, path)?;
        }
    }
    if let Some(path) = &input.flush_path {
        line(&mut files, "flush-path", path);
    }
    if let Some(generate) = &input.generate {
        url_path("generate.path", &generate.path)?;
        line(&mut files, "generate-path", &generate.path);
        files.push(("generate".into(), generate.body.clone()));
    }
    let mut info = String::new();
    for (name, path) in &input.info {
        label("info", name)?;
        url_path("info", path)?;
        info.extend([name.as_str(), " ", path, "\n"]);
    }
    files.push(("info".into(), info.into_bytes()));
    files.push(("limits".into(), limits(&input.limits).into_bytes()));
    if let Some(source) = &input.source {
        source_files(&mut files, source)?;
    }
    for (index, each) in input.preflight.iter().enumerate() {
        let folder = numbered("preflight", index, 2, "")?;
        command(&mut files, &folder, &format!("preflight[{index}]"), each)?;
    }
    if let Some(each) = &input.package_path {
        command(&mut files, Path::new("package-path"), "package_path", each)?;
    }
    for (index, trial) in input.trials.iter().enumerate() {
        trial_files(&mut files, index, trial)?;
    }
    Ok(files)
}

fn trial_files(files: &mut Vec<SessionFile>, index: usize, trial: &TrialInput) -> Result<(), PlaceError> {
    label("trial label", &trial.label)?;
    let folder = numbered("trials", index, 2, &trial.label)?;
    command(files, &folder, &format!("trials[{index}].client"), &trial.client)?;
    if let Some(warmup) = &trial.warmup {
        command(files, &folder.join("warmup"), &format!("trials[{index}].warmup"), warmup)?;
    }
    if trial.flush {
        files.push((folder.join("flush"), Vec::new()));
    }
    Ok(())
}

fn source_files(files: &mut Vec<SessionFile>, source: &Source) -> Result<(), PlaceError> {
    one_line("source.repo", &source.repo)?;
    let sha = source.commit.len() == 40 && source.commit.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    if !sha {
        return refuse("source.commit", source.commit.as_bytes(), "a full SHA of 40 lower-case hex digits");
    }
    line(files, "source/repo", &source.repo);
    line(files, "source/commit", &source.commit);
    for (index, (name, bytes)) in source.patches.iter().enumerate() {
        label("source.patches", name)?;
        let mut path = numbered("source/patches", index, 4, name)?;
        if path.extension() != Some(OsStr::new("patch")) {
            path.as_mut_os_string().push(".patch");
        }
        files.push((path, bytes.clone()));
    }
    Ok(())
}

fn command(files: &mut Vec<SessionFile>, folder: &Path, what: &str, command: &Command) -> Result<(), PlaceError> {
    let Some(program) = command.argv.first() else {
        return refuse(&format!("{what}.argv"), b"", "at least a program");
    };
    if program.is_empty() || program.as_bytes().contains(&b'=') {
        return refuse(&format!("{what}.argv[0]"), program.as_bytes(), "a program's name without `=`");
    }
    for (index, argument) in command.argv.iter().enumerate() {
        exact(&format!("{what}.argv[{index}]"), argument, 0)?;
        files.push((folder.join("argv").join(format!("{:04}", index + 1)), argument.as_bytes().to_vec()));
    }
    if command.argv.len() > 9999 {
        return refuse(&format!("{what}.argv"), command.argv.len().to_string().as_bytes(), "at most 9999 arguments");
    }
    for (index, (name, value)) in command.env.iter().enumerate() {
        variable(name)?;
        if command.env[..index].iter().any(|(other, _)| other == name) {
            return refuse(&format!("{what}.env"), name.as_bytes(), "each name once");
        }
        exact(&format!("{what}.env.{name}"), value, name.len() + 1)?;
        files.push((folder.join("env").join(name), value.as_bytes().to_vec()));
    }
    Ok(())
}

fn limits(limits: &Limits) -> String {
    let seconds = |wait: Duration| (wait.as_secs() + u64::from(wait.subsec_nanos() > 0)).max(1);
    format!(
        "ready {}\ntrial {}\nstop {}\npreflight {}\ndisk_kib {}\n",
        seconds(limits.ready),
        seconds(limits.trial),
        seconds(limits.stop),
        seconds(limits.preflight),
        limits.disk_kib
    )
}

fn line(files: &mut Vec<SessionFile>, name: &str, text: &str) {
    files.push((name.into(), format!("{text}\n").into_bytes()));
}

/// `trials/07-c0010-p1`: so that the shell's order is the plan's.
fn numbered(folder: &str, index: usize, digits: usize, label: &str) -> Result<PathBuf, PlaceError> {
    let number = format!("{index:0digits$}");
    if number.len() > digits {
        return refuse(folder, number.as_bytes(), "fewer of them: the number has a fixed width");
    }
    let name = if label.is_empty() { number } else { format!("{number}-{label}") };
    Ok(Path::new(folder).join(name))
}

fn label(what: &str, text: &str) -> Result<(), PlaceError> {
    let plain = text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'));
    if !plain || text.is_empty() || text.starts_with(['.', '-']) || text.len() > 200 {
        return refuse(what, text.as_bytes(), "letters, digits, `.`, `_` and `-`, not beginning with `.` or `-`");
    }
    Ok(())
}

fn variable(name: &str) -> Result<(), PlaceError> {
    let mut bytes = name.bytes();
    let first = bytes.next().is_some_and(|b| b.is_ascii_alphabetic() || b == b'_');
    if !first || !bytes.all(|b| b.is_ascii_alphanumeric() || b == b'_') {
        return refuse("variable", name.as_bytes(), "a name of letters, digits and `_`");
    }
    if name == "LABBOOK_NONCE" {
        return refuse("variable", name.as_bytes(), "another name: the session sets this one");
    }
    Ok(())
}

fn one_line(what: &str, text: &str) -> Result<(), PlaceError> {
    if text.is_empty() || text.contains(['\n', '\0']) {
        return refuse(what, text.as_bytes(), "one line of text");
    }
    Ok(())
}

fn url_path(what: &str, path: &str) -> Result<(), PlaceError> {
    if !path.starts_with('/') || !path.bytes().all(|b| b.is_ascii_graphic()) {
        return refuse(what, path.as_bytes(), "a path that begins with `/`, without blanks, percent-encoded");
    }
    Ok(())
}

fn exact(what: &str, value: &OsStr, more: usize) -> Result<(), PlaceError> {
    if value.as_bytes().contains(&0) {
        return refuse(what, value.as_bytes(), "a value without NUL, which ends an argument");
    }
    if value.len() + more >= LONGEST_STRING {
        return refuse(what, value.as_bytes(), "less than 128 KiB, the kernel's limit: put it in a file");
    }
    Ok(())
}

fn refuse<T>(what: &str, found: &[u8], wanted: &'static str) -> Result<T, PlaceError> {
    let found = String::from_utf8_lossy(found).chars().take(60).collect();
    Err(PlaceError::Value { what: what.to_owned(), found, wanted })
}

/// Places a session in the queue of a host folder and returns its folder, `queue/NNNN-NAME`.
///
/// The entry is complete when it appears. `sequence` (1 to 9999) orders the queue.
///
/// # Errors
/// A value that cannot be carried, a sequence number or name in use, or the file system.
pub fn place(folder: &Path, sequence: u16, input: &SessionInput) -> Result<PathBuf, PlaceError> {
    let files = files(input)?;
    if !(1..=9999).contains(&sequence) {
        return refuse("sequence", sequence.to_string().as_bytes(), "1 to 9999");
    }
    let name = format!("{sequence:04}-{}", input.name);
    let (incoming, queue) = (folder.join("incoming"), folder.join("queue"));
    for path in [&incoming, &queue] {
        at(path, fs::create_dir_all(path))?;
    }
    for entry in at(&queue, fs::read_dir(&queue))? {
        let taken = at(&queue, entry)?.file_name().to_string_lossy().into_owned();
        let (number, rest) = taken.split_once('-').unwrap_or((&taken, ""));
        if number == &name[..4] || rest == input.name {
            return Err(PlaceError::Taken { taken });
        }
    }
    let aside = incoming.join(&name);
    if aside.exists() {
        at(&aside, fs::remove_dir_all(&aside))?; // left by an earlier attempt that did not get to the rename
    }
    for (path, bytes) in &files {
        write_synced(&aside.join(path), bytes)?;
    }
    sync_folders(&aside)?;
    let placed = queue.join(&name);
    at(&placed, fs::rename(&aside, &placed))?;
    sync(&queue)?;
    Ok(placed)
}

fn write_synced(path: &Path, bytes: &[u8]) -> Result<(), PlaceError> {
    let parent = path.parent().expect("a file of a session lies in its folder");
    at(parent, fs::create_dir_all(parent))?;
    let mut file = at(path, fs::File::create_new(path))?;
    at(path, file.write_all(bytes).and_then(|()| file.sync_all()))
}

fn sync_folders(folder: &Path) -> Result<(), PlaceError> {
    for entry in at(folder, fs::read_dir(folder))? {
        let path = at(folder, entry)?.path();
        if path.is_dir() {
            sync_folders(&path)?;
        }
    }
    sync(folder)
}

fn sync(folder: &Path) -> Result<(), PlaceError> {
    at(folder, fs::File::open(folder).and_then(|opened| opened.sync_all()))
}

fn at<T>(path: &Path, result: io::Result<T>) -> Result<T, PlaceError> {
    result.map_err(|source| PlaceError::Write { path: path.to_owned(), source })
}

/// Writes the two programs into a host folder, where they are not there already.
///
/// A shell reads its program while it runs, so a differing file is replaced by rename, never overwritten.
///
/// # Errors
/// The file system.
pub fn install(folder: &Path) -> Result<(), PlaceError> {
    at(folder, fs::create_dir_all(folder))?;
    for (name, text) in [("session.sh", super::SESSION), ("runner.sh", super::RUNNER)] {
        let path = folder.join(name);
        if fs::read(&path).is_ok_and(|found| found == text.as_bytes()) {
            continue;
        }
        let mut part = at(folder, tempfile::NamedTempFile::new_in(folder))?;
        at(&path, part.write_all(text.as_bytes()).and_then(|()| part.as_file().sync_all()))?;
        at(&path, part.persist(&path).map_err(|failed| failed.error))?;
    }
    sync(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session(server: Command) -> SessionInput {
        SessionInput {
            name: "b01-a".to_owned(),
            server,
            cwd: None,
            source: None,
            port: NonZeroU16::new(30_000).unwrap(),
            health: None,
            ready_line: None,
            generate: None,
            info: Vec::new(),
            flush_path: None,
            preflight: Vec::new(),
            package_path: None,
            limits: Limits {
                ready: Duration::from_millis(1500),
                trial: Duration::ZERO,
                stop: Duration::from_secs(9),
                preflight: Duration::from_mins(5),
                disk_kib: 0,
            },
            trials: Vec::new(),
        }
    }

    fn refused(session: &SessionInput) -> String {
        files(session).unwrap_err().to_string()
    }

    #[test]
    fn nothing_to_run_is_refused() {
        assert_eq!(refused(&session(Command::default())), "server.argv is ``, wanted at least a program");
        assert!(refused(&session(Command::new([""]))).contains("argv[0]"));
    }

    #[test]
    fn least_session() {
        let files = files(&session(Command::new(["serve"]))).unwrap();
        let names: Vec<_> = files.iter().map(|(path, _)| path.to_str().unwrap()).collect();
        assert_eq!(names, ["argv/0001", "port", "info", "limits"]);
        assert_eq!(files[0].1, b"serve", "no newline is added");
        assert_eq!(files[3].1, b"ready 2\ntrial 1\nstop 9\npreflight 300\ndisk_kib 0\n", "rounded up, never 0");
    }

    #[test]
    fn what_a_shell_cannot_carry_is_refused() {
        assert!(refused(&session(Command::new(["A=b"]))).contains("without `=`"));
        assert!(refused(&session(Command::new(["a", "b\0c"]))).contains("without NUL"));
        assert!(refused(&session(Command::new(["a".to_owned(), "x".repeat(131_072)]))).contains("128 KiB"));
        let env = |name: &str| Command { argv: vec!["a".into()], env: vec![(name.to_owned(), "v".into()); 2] };
        assert!(refused(&session(env("A"))).contains("each name once"));
        for name in ["", "A=B", "1A", "A/B", "A B", "LABBOOK_NONCE"] {
            assert!(refused(&session(env(name))).starts_with("variable"), "{name}");
        }
        let mut named = session(Command::new(["a"]));
        for name in ["", ".", "..", "a/b", "a b", "-a", "a\n"] {
            named.name = name.to_owned();
            assert!(refused(&named).starts_with("session name"), "{name}");
        }
    }

    #[test]
    fn place_is_whole_and_once() {
        let folder = tempfile::tempdir().unwrap();
        let input = session(Command::new(["a", ""]));
        fs::create_dir_all(folder.path().join("incoming/0003-b01-a/rest of an earlier attempt")).unwrap();
        let placed = place(folder.path(), 3, &input).unwrap();
        assert_eq!(placed, folder.path().join("queue/0003-b01-a"));
        assert_eq!(fs::read(placed.join("argv/0002")).unwrap(), b"");
        assert!(!placed.join("rest of an earlier attempt").exists());
        assert!(matches!(place(folder.path(), 3, &input), Err(PlaceError::Taken { taken }) if taken == "0003-b01-a"));
        assert!(matches!(place(folder.path(), 4, &input), Err(PlaceError::Taken { .. })), "the name is in use");
        assert!(matches!(place(folder.path(), 0, &input), Err(PlaceError::Value { .. })));
    }
}
