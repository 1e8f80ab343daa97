//! A link to an SSH host: one shell there that is asked act after act over the master, and further shells for acts that send bytes.
//!
//! Invariant: an answer counts only when it is whole. Everything before a random start marker is somebody else's (a banner, what
//! ~/.bashrc prints), and the code of an act is what stands behind its end marker, never an exit status of `ssh` or of a login shell:
//! fish ends with 0 after a syntax error. A command that arrives late, such as one that was sent into a cut link, does nothing.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom, Write};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use openssh::{Child, ChildStdin, ChildStdout, Session, Stdio};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::runtime::Runtime;

use super::trouble::{Trouble, gist};
use super::{Destination, master};

/// What every shell is given first.
pub(super) const ACTS: &str = include_str!("acts.sh");

/// How a login shell is made to become a plain one; a restricted bash allows only the second.
const LAUNCHERS: [&str; 2] = ["exec /bin/sh -s", "sh -s"];
/// Longest time in which nothing comes; a slow ~/.bashrc and a full disk cache take some of it.
const STALL: Duration = Duration::from_mins(2);
/// How late a command may arrive, by the clock of the host, and still be carried out.
const LATEST_S: u64 = 60;
/// Most of what stands before the start marker: more is no greeting.
const LONGEST_GREETING: usize = 16 << 20;
/// How often a channel is asked for when the host says that too many are open: those just closed take a moment.
const CHANNEL_TRIES: u32 = 6;

/// Why an act has no answer.
#[derive(Debug)]
pub(super) struct Broken {
    /// What is wrong.
    pub(super) trouble: Trouble,
    /// What was said about it.
    pub(super) said: String,
}

impl Broken {
    fn new(trouble: Trouble, said: impl Into<String>) -> Self {
        Self { trouble, said: said.into() }
    }

    fn lost(said: impl std::fmt::Display) -> Self {
        Self::new(Trouble::Lost, said.to_string())
    }
}

/// A call of one function of [`ACTS`].
pub(super) struct Call {
    text: String,
}

impl Call {
    /// Makes a call; the arguments are quoted.
    pub(super) fn new(function: &'static str) -> Self {
        Self { text: function.to_owned() }
    }

    /// Adds an argument.
    pub(super) fn arg(mut self, argument: impl AsRef<std::ffi::OsStr>) -> Self {
        // The shell's text is bytes; what is not UTF-8 does not occur in paths that labbook makes.
        let text = String::from_utf8_lossy(argument.as_ref().as_bytes()).into_owned();
        self.text.push(' ');
        self.text.push_str(&quoted(&text));
        self
    }
}

/// Quotes a word for a POSIX shell.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\0', "").replace('\'', "'\\''"))
}

/// What an act answered.
#[derive(Debug)]
pub(super) struct Answer {
    /// Its code.
    pub(super) code: u32,
    /// What it said on standard error.
    pub(super) said: String,
}

/// What a host says of itself.
#[derive(Debug, Clone)]
pub(super) struct Hello {
    /// `Linux`.
    pub(super) system: String,
    /// `x86_64`.
    pub(super) machine: String,
    /// Programs that labbook needs and that are absent.
    pub(super) missing: String,
    /// The account's home.
    pub(super) home: PathBuf,
    uptime_s: f64,
}

/// A connected host.
pub(super) struct Link {
    session: Arc<Session>,
    shell: Shell,
    launcher: usize,
    hello: Hello,
    since: Instant,
}

impl Link {
    /// Connects, over the master that is there or a new one.
    pub(super) fn open(destination: &Destination, runtime: &Runtime) -> Result<Self, Broken> {
        let program = |trouble: io::Error| Broken::new(Trouble::Program, trouble.to_string());
        let socket = master::socket(destination).map_err(program)?;
        let lock = File::options().create(true).truncate(false).write(true).open(socket.with_extension("lock"));
        let lock = lock.map_err(program)?;
        lock.lock().map_err(program)?;
        if let Some(session) = resumed(&socket, runtime) {
            // It may be the master of a link that died while this machine slept, which shows only now.
            match Self::over(session, runtime) {
                Err(broken) if broken.trouble == Trouble::Lost => retire(&socket, runtime),
                answered => return answered,
            }
        }
        match std::fs::remove_file(&socket) {
            Err(trouble) if trouble.kind() != io::ErrorKind::NotFound => return Err(program(trouble)),
            _ => {}
        }
        master::start(destination, &socket).map_err(|(trouble, said)| Broken::new(trouble, said))?;
        let session = resumed(&socket, runtime).ok_or_else(|| Broken::lost("the ssh master ended at once"))?;
        Self::over(session, runtime)
    }

    fn over(session: Session, runtime: &Runtime) -> Result<Self, Broken> {
        let session = Arc::new(session);
        let mut silent = None;
        for launcher in 0..LAUNCHERS.len() {
            let mut shell = runtime.block_on(Shell::open(&session, launcher))?;
            let mut answer = Vec::new();
            match runtime.block_on(shell.ask(&Call::new("act_hello"), None, None, &mut answer)) {
                Ok(_) => {
                    let hello = Hello::parse(&answer)?;
                    return Ok(Self { session, shell, launcher, hello, since: Instant::now() });
                }
                Err(broken) if broken.trouble == Trouble::Account => silent = silent.or(Some(broken)),
                Err(broken) => return Err(broken),
            }
        }
        Err(silent.unwrap_or_else(|| Broken::lost("no shell answered")))
    }

    /// Returns what the host said of itself.
    pub(super) fn hello(&self) -> &Hello {
        &self.hello
    }

    /// Carries out an act; its output goes to `sink`, as it comes. After an error nothing more may be asked over this link.
    pub(super) fn ask(&mut self, runtime: &Runtime, call: &Call, sink: &mut dyn Write) -> Result<Answer, Broken> {
        let latest = self.latest();
        runtime.block_on(self.shell.ask(call, Some(latest), None, sink))
    }

    /// Carries out an act that reads bytes from its standard input. It has a shell of its own, which ends with it, so that bytes
    /// that an act leaves unread are never taken for its next words.
    pub(super) fn give(
        &mut self,
        runtime: &Runtime,
        call: &Call,
        bytes: &mut dyn io::Read,
        sink: &mut dyn Write,
    ) -> Result<Answer, Broken> {
        let latest = self.latest();
        runtime.block_on(async {
            let mut shell = Shell::open(&self.session, self.launcher).await?;
            shell.ask(call, Some(latest), Some(bytes), sink).await
        })
    }

    /// Returns the host's time since boot, in whole seconds, until which a command that is sent now may be carried out.
    fn latest(&self) -> u64 {
        self.hello.uptime_s as u64 + self.since.elapsed().as_secs() + LATEST_S
    }
}

/// Returns the session of a master that answers.
fn resumed(socket: &Path, runtime: &Runtime) -> Option<Session> {
    let session = Session::resume_mux(socket.into(), None);
    let alive = runtime.block_on(async { tokio::time::timeout(Duration::from_secs(5), session.check()).await });
    matches!(alive, Ok(Ok(()))).then_some(session)
}

/// Tells a master to take nothing more; it ends when its last channel does.
fn retire(socket: &Path, runtime: &Runtime) {
    let session = Session::resume_mux(socket.into(), None);
    let _ = runtime.block_on(async { tokio::time::timeout(Duration::from_secs(2), session.close()).await });
}

impl Hello {
    fn parse(answer: &[u8]) -> Result<Self, Broken> {
        let text = String::from_utf8_lossy(answer);
        let mut lines = text.lines();
        let mut line = || lines.next().unwrap_or_default().to_owned();
        let (uptime, system, machine, missing, home) = (line(), line(), line(), line(), line());
        let home = PathBuf::from(home);
        if !home.is_absolute() {
            return Err(Broken::new(Trouble::Account, format!("its HOME is `{}`", gist(home.as_os_str().as_bytes()))));
        }
        Ok(Self { system, machine, missing, home, uptime_s: uptime.parse().unwrap_or(0.0) })
    }
}

/// A plain shell on the host.
struct Shell {
    child: Option<Child<Arc<Session>>>,
    stdin: Option<ChildStdin>,
    stdout: ChildStdout,
    /// What came on standard error; a file, so that nobody has to read it while it comes.
    stderr: File,
    /// Read and not yet used.
    pending: Vec<u8>,
    fresh: bool,
}

impl Shell {
    async fn open(session: &Arc<Session>, launcher: usize) -> Result<Self, Broken> {
        let program = |trouble: io::Error| Broken::new(Trouble::Program, trouble.to_string());
        let stderr = tempfile::tempfile().map_err(program)?;
        let mut tries = 0;
        let mut child = loop {
            let mut command = Arc::clone(session).arc_raw_command(LAUNCHERS[launcher]);
            command.stdin(Stdio::piped()).stdout(Stdio::piped());
            command.stderr(Stdio::from(stderr.try_clone().map_err(program)?));
            tries += 1;
            match tokio::time::timeout(STALL, command.spawn()).await {
                Ok(Ok(child)) => break child,
                // `MaxSessions`: the channel before is not quite closed yet.
                Ok(Err(openssh::Error::SshMux(_))) if tries < CHANNEL_TRIES => {
                    tokio::time::sleep(Duration::from_millis(50 << tries)).await;
                }
                Ok(Err(trouble)) => return Err(Broken::lost(told(&trouble))),
                Err(_) => return Err(Broken::lost("no channel was opened in time")),
            }
        };
        let (Some(stdin), Some(stdout)) = (child.stdin().take(), child.stdout().take()) else {
            return Err(Broken::new(Trouble::Program, "a channel without its pipes"));
        };
        Ok(Self { child: Some(child), stdin: Some(stdin), stdout, stderr, pending: Vec::new(), fresh: true })
    }

    /// Carries out one act. With `bytes` the shell ends with it.
    async fn ask(
        &mut self,
        call: &Call,
        latest: Option<u64>,
        bytes: Option<&mut dyn io::Read>,
        sink: &mut dyn Write,
    ) -> Result<Answer, Broken> {
        let mark = nonce().map_err(|trouble| Broken::new(Trouble::Program, trouble.to_string()))?;
        let mut text = if std::mem::take(&mut self.fresh) { ACTS.to_owned() } else { String::new() };
        text.push_str(&framed(call, &mark, latest, bytes.is_some()));
        // A shell that ended has said why, or its link is gone: reading tells.
        let _ = self.write(text.as_bytes()).await;
        let start = format!("\nlabbook-start-{mark}\n");
        let mut greeting = Vec::new();
        if !self.copy_until(start.as_bytes(), &mut Limited(&mut greeting)).await? {
            return Err(self.no_start(&greeting).await);
        }
        if let Some(bytes) = bytes {
            self.send(bytes).await?;
            self.stdin = None;
        }
        let unfinished = || Broken::lost("the answer is not whole");
        if !self.copy_until(format!("\nlabbook-end-{mark} ").as_bytes(), sink).await? {
            return Err(unfinished());
        }
        let mut tail = Vec::new();
        if !self.copy_until(format!("\nlabbook-over-{mark}\n").as_bytes(), &mut Limited(&mut tail)).await? {
            return Err(unfinished());
        }
        let tail = String::from_utf8_lossy(&tail);
        let (code, said) = tail.split_once('\n').unwrap_or((&tail, ""));
        if code == "late" {
            return Err(Broken::lost("a command arrived too late, and was not carried out"));
        }
        let code = code.parse().map_err(|_| unfinished())?;
        Ok(Answer { code, said: gist(said.as_bytes()) })
    }

    async fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let Some(stdin) = &mut self.stdin else { return Err(io::ErrorKind::BrokenPipe.into()) };
        match tokio::time::timeout(STALL, stdin.write_all(bytes)).await {
            Ok(written) => written,
            Err(_) => Err(io::ErrorKind::TimedOut.into()),
        }
    }

    /// Sends bytes to an act that reads them. One that ends early says why behind its end marker.
    async fn send(&mut self, bytes: &mut dyn io::Read) -> Result<(), Broken> {
        let mut buffer = vec![0; 256 << 10];
        loop {
            let read = bytes.read(&mut buffer).map_err(|trouble| Broken::new(Trouble::Program, trouble.to_string()))?;
            if read == 0 {
                return Ok(());
            }
            match self.write(&buffer[..read]).await {
                Ok(()) => {}
                Err(trouble) if trouble.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
                Err(trouble) => return Err(Broken::lost(trouble)),
            }
        }
    }

    /// Copies what comes into `sink` until a marker, which is swallowed. Returns whether it came before the end.
    async fn copy_until(&mut self, marker: &[u8], sink: &mut dyn Write) -> Result<bool, Broken> {
        let write = |sink: &mut dyn Write, bytes: &[u8]| {
            sink.write_all(bytes).map_err(|trouble| Broken::new(Trouble::Content, trouble.to_string()))
        };
        let mut buffer = vec![0; 64 << 10];
        loop {
            if let Some(place) = find(&self.pending, marker) {
                write(sink, &self.pending[..place])?;
                self.pending.drain(..place + marker.len());
                return Ok(true);
            }
            // All but what may be the beginning of the marker.
            let safe = self.pending.len().saturating_sub(marker.len() - 1);
            write(sink, &self.pending[..safe])?;
            self.pending.drain(..safe);
            match tokio::time::timeout(STALL, self.stdout.read(&mut buffer)).await {
                Ok(Ok(0)) => {
                    write(sink, &self.pending)?;
                    return Ok(false);
                }
                Ok(Ok(read)) => self.pending.extend_from_slice(&buffer[..read]),
                Ok(Err(trouble)) => return Err(Broken::lost(trouble)),
                Err(_) => return Err(Broken::lost(format!("nothing came for {} s", STALL.as_secs()))),
            }
        }
    }

    /// Tells why no start marker came: the account's own shell ended, or the link did.
    async fn no_start(&mut self, greeting: &[u8]) -> Broken {
        let Some(child) = self.child.take() else { return Broken::lost("the shell ended") };
        let ended = tokio::time::timeout(Duration::from_secs(30), child.wait()).await;
        let code = match ended {
            Ok(Ok(status)) => status.code(),
            Ok(Err(openssh::Error::Remote(_))) => Some(127),
            Ok(Err(trouble)) => return Broken::lost(told(&trouble)),
            Err(_) => return Broken::lost("the shell did not end"),
        };
        let mut said = greeting.to_vec();
        said.push(b'\n');
        let _ = self.stderr.seek(SeekFrom::Start(0)).and_then(|_| (&self.stderr).take(1 << 20).read_to_end(&mut said));
        let code = code.map_or_else(|| "a signal".to_owned(), |code| format!("code {code}"));
        let words = match gist(&said) {
            words if words.is_empty() => "and said nothing".to_owned(),
            words => format!("and said `{words}`"),
        };
        Broken::new(Trouble::Account, format!("its shell ended with {code} {words}"))
    }
}

/// Returns the text of a call between its markers, none of which stands in the text as it will be printed. It is one compound
/// command, so that a shell that reads ahead has read all of it, and nothing behind it, when it begins.
fn framed(call: &Call, mark: &str, latest: Option<u64>, last: bool) -> String {
    let mut text = format!("{{\nNONCE={mark}\nprintf '\\n%s%s\\n' labbook-start- {mark}\ncode=late said='' up=0\n");
    if let Some(latest) = latest {
        let _ = write!(
            text,
            "[ ! -r /proc/uptime ] || read -r up _ </proc/uptime\nif [ \"${{up%%.*}}\" -le {latest} ]; then\n"
        );
    } else {
        text.push_str("if :; then\n");
    }
    let input = if last { "" } else { " </dev/null" };
    let _ =
        write!(text, "exec 4>&1\nsaid=$( {{ ( {} ){input}; }} 2>&1 >&4 4>&- ); code=$?\nexec 4>&-\nfi\n", call.text);
    let _ = writeln!(
        text,
        "printf '\\n%s%s %s\\n%.4000s\\n%s%s\\n' labbook-end- {mark} \"$code\" \"$said\" labbook-over- {mark}"
    );
    text.push_str(if last { "exit 0\n}\n" } else { "}\n" });
    text
}

/// Returns sixteen random hex digits.
fn nonce() -> io::Result<String> {
    let mut bytes = [0; 8];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(format!("{:016x}", u64::from_ne_bytes(bytes)))
}

fn told(trouble: &openssh::Error) -> String {
    let mut text = trouble.to_string();
    let mut source = std::error::Error::source(trouble);
    while let Some(cause) = source {
        let _ = write!(text, ": {cause}");
        source = cause.source();
    }
    text
}

/// A buffer that takes so much and not more.
struct Limited<'b>(&'b mut Vec<u8>);

impl Write for Limited<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.len() + bytes.len() > LONGEST_GREETING {
            return Err(io::Error::other("it prints without end instead of an answer"));
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn find(bytes: &[u8], marker: &[u8]) -> Option<usize> {
    let first = *marker.first()?;
    let mut from = 0;
    while let Some(step) = bytes[from..].iter().position(|byte| *byte == first) {
        let place = from + step;
        if bytes[place..].starts_with(marker) {
            return Some(place);
        }
        from = place + 1;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_and_markers_do_not_stand_in_the_text() {
        assert_eq!(Call::new("f").arg("").arg("a b").arg("it's $(x) `y`\n\0").text, "f '' 'a b' 'it'\\''s $(x) `y`\n'");
        let text = framed(&Call::new("act_list").arg("/x"), "0123", Some(9), false);
        for marker in ["labbook-start-0123", "labbook-end-0123", "labbook-over-0123"] {
            assert!(!text.contains(marker), "{text}");
        }
    }

    #[test]
    fn a_marker_is_found_wherever_it_stands() {
        assert_eq!(find(b"", b"\nm\n"), None);
        assert_eq!(find(b"\nm", b"\nm\n"), None);
        assert_eq!(find(b"\n\nm\nrest", b"\nm\n"), Some(1));
    }

    /// The framing, by the shells of this machine: an act that succeeds, one that fails, one that is late, one that reads.
    #[test]
    fn shells_answer_between_the_markers() {
        use std::process::{Command, Stdio};
        for shell in ["sh", "dash", "bash", "busybox"] {
            let mut command = Command::new(shell);
            if shell == "busybox" {
                command.arg("sh");
            }
            let child = command.arg("-s").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
            let Ok(mut child) = child else { continue };
            let root = tempfile::tempdir().expect("a folder");
            let file = root.path().join("it's a file");
            std::fs::write(&file, b"\0binary\n").expect("written");
            let mut text = ACTS.to_owned();
            text.push_str(&framed(&Call::new("act_read").arg(&file).arg("2"), "one", Some(u64::from(u32::MAX)), false));
            text.push_str(&framed(&Call::new("act_read").arg(&file).arg("x"), "two", None, false));
            text.push_str(&framed(&Call::new("act_read").arg(&file).arg("1"), "three", Some(0), false));
            let call = Call::new("act_read_all").arg(root.path()).arg(&file).arg(&file);
            text.push_str(&framed(&call, "four", None, false));
            child.stdin.take().expect("piped").write_all(text.as_bytes()).expect("written");
            let output = child.wait_with_output().expect("ended");
            let told = String::from_utf8_lossy(&output.stdout);
            assert!(
                told.starts_with("\nlabbook-start-one\nbinary\n\nlabbook-end-one 0\n\nlabbook-over-one\n"),
                "{shell}: {told}"
            );
            assert!(!told.contains("labbook-end-two 0") && told.contains("labbook-end-two "), "{shell}: {told}");
            assert!(told.contains("\nlabbook-start-three\n\nlabbook-end-three late\n"), "{shell}: {told}");
            let several = "\nlabbook-start-four\n0\n8\n8\n\0binary\n\0binary\n\nlabbook-end-four 0\n";
            assert!(told.contains(several), "{shell}: {told}");
            assert!(output.stderr.is_empty(), "{shell}: {}", String::from_utf8_lossy(&output.stderr));
        }
    }
}
