//! A bed for SSH: a real `sshd` on a loopback port with accounts of its own, and a proxy before it whose link can be cut.
//!
//! Everything is in a temporary folder and goes away with it: the keys, the homes, the accounts, and whatever they still run.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::lab::Lab;
use super::tiny::{SPEC, Tiny, folder_names, until};
use crate::scripts::{find, skipped};

/// A running `sshd` and its accounts.
pub(crate) struct Bed {
    folder: tempfile::TempDir,
    sshd: Child,
    users: Mutex<Vec<String>>,
    /// The link between `ssh` and `sshd`.
    pub(crate) link: Link,
}

const SSHD: &str = "/usr/sbin/sshd";

impl Bed {
    /// Starts one; `None`, with the reason printed, where that cannot be.
    pub(crate) fn start() -> Option<Self> {
        if !rustix::process::getuid().is_root() {
            skipped("accounts can be made by root only");
            return None;
        }
        if !Path::new(SSHD).is_file() || find("ssh").is_none() {
            skipped("no OpenSSH server and client on this machine (Debian package openssh-server)");
            return None;
        }
        let folder = tempfile::tempdir().expect("a folder");
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).expect("others may pass");
        for (name, mode) in [("lease", 0o1777), ("home", 0o755)] {
            fs::create_dir(folder.path().join(name)).expect("a folder");
            fs::set_permissions(folder.path().join(name), fs::Permissions::from_mode(mode)).expect("for all");
        }
        fs::create_dir_all("/run/sshd").expect("where sshd separates its privileges");
        for key in ["hostkey", "id", "other"] {
            done(Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(folder.path().join(key)));
        }
        let (sshd, port) = (0..10).find_map(|_| sshd(folder.path())).expect("a free port");
        let bed = Self { link: Link::to(port), folder, sshd, users: Mutex::default() };
        let key = fs::read_to_string(bed.path("hostkey.pub")).expect("a key");
        let address = format!("[127.0.0.1]:{}", bed.link.port);
        bed.write("known", &format!("{address} {key}"));
        bed.write("config", &bed.config("known", "id", ""));
        Some(bed)
    }

    /// Returns a path of the bed.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes a file of the bed.
    pub(crate) fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).expect("written");
    }

    /// Returns a configuration of ssh for every host, with these files of known hosts and of a key, and more lines.
    pub(crate) fn config(&self, known: &str, key: &str, more: &str) -> String {
        format!(
            "{more}Host *\nHostName 127.0.0.1\nPort {}\nIdentityFile {}\nIdentitiesOnly yes\nUserKnownHostsFile {}\n\
             GlobalKnownHostsFile /dev/null\n",
            self.link.port,
            self.path(key).display(),
            self.path(known).display()
        )
    }

    /// Makes an account with a home of this name in the bed, and text that its shell reads first.
    pub(crate) fn user(&self, shell: &str, home: &str, bashrc: &str) -> String {
        let mut users = self.users.lock().expect("no panic");
        let name = format!("lbt{}-{}", std::process::id(), users.len());
        let home = self.path("home").join(home);
        let lock =
            fs::File::options().create(true).append(true).open("/tmp/labbook-test-accounts.lock").expect("a lock");
        lock.lock().expect("one at a time: the account files have one lock, and nobody waits for it");
        done(Command::new("useradd").args(["-m", "-p", "*", "-s", shell, "-d"]).arg(&home).arg(&name));
        drop(lock);
        if !bashrc.is_empty() {
            fs::write(home.join(".bashrc"), bashrc).expect("written");
        }
        users.push(name.clone());
        name
    }

    /// Makes a lab whose experiment runs on this bed, as this user.
    pub(crate) fn lab(&self, tiny: &Tiny, user: &str) -> Lab {
        let more = format!("{}\nhost: there", tiny.more);
        let mut lab = Lab::new();
        Tiny { more: &more, ..*tiny }.write(&mut lab, SPEC);
        self.reach(&lab, &format!("{user}@bed"), "config");
        lab
    }

    /// Says how a lab reaches the bed.
    pub(crate) fn reach(&self, lab: &Lab, address: &str, config: &str) {
        let config = self.path(config);
        lab.write(
            "labbook.yaml",
            &format!(
                "hosts:\n  local: {{ via: local }}\n  there: {{ via: ssh, address: {address}, ssh_config: {} }}\n",
                config.display()
            ),
        );
    }

    /// Returns the host folders below a home; `bin` is what they share.
    pub(crate) fn host_folders(&self, home: &str) -> Vec<PathBuf> {
        let root = self.path("home").join(home).join(".labbook/host");
        folder_names(&root).iter().filter(|name| *name != "bin").map(|name| root.join(name)).collect()
    }

    /// Returns the processes of an account whose working directory is below its home: runners, sessions, servers.
    pub(crate) fn processes(&self, home: &str) -> Vec<i32> {
        super::lab::processes_of(&self.path("home").join(home))
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        self.link.cut();
        let _ = self.sshd.kill();
        let _ = self.sshd.wait();
        for user in self.users.get_mut().expect("no panic").drain(..) {
            let Ok(id) = Command::new("id").args(["-u", &user]).output() else { continue };
            end_processes_of(String::from_utf8_lossy(&id.stdout).trim());
            let _ = Command::new("userdel").args(["-f", &user]).stderr(Stdio::null()).status();
        }
    }
}

/// Ends every process of an account that the bed made.
fn end_processes_of(uid: &str) {
    if uid.parse::<u32>().is_ok_and(|uid| uid >= 1000) {
        for entry in fs::read_dir("/proc").expect("/proc").flatten() {
            let status = fs::read_to_string(entry.path().join("status")).unwrap_or_default();
            let theirs = status
                .lines()
                .any(|line| line.strip_prefix("Uid:").is_some_and(|ids| ids.split('\t').nth(1) == Some(uid)));
            let pid = entry.file_name().to_str().and_then(|name| name.parse().ok());
            if let (true, Some(pid)) = (theirs, pid.and_then(rustix::process::Pid::from_raw)) {
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            }
        }
    }
}

fn done(command: &mut Command) {
    let output = command.output().expect("it starts");
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Starts `sshd` on a port that is free now; `None` when another took it meanwhile.
fn sshd(folder: &Path) -> Option<(Child, u16)> {
    let port = TcpListener::bind(("127.0.0.1", 0)).expect("a port").local_addr().expect("an address").port();
    let at = |name: &str| folder.join(name).display().to_string();
    let config = format!(
        "ListenAddress 127.0.0.1:{port}\nHostKey {}\nPidFile none\nUsePAM no\nStrictModes no\nAuthorizedKeysFile {}\n\
         PasswordAuthentication no\nKbdInteractiveAuthentication no\nSetEnv LABBOOK_LEASE_DIR={}\nBanner {}\n\
         MaxStartups 100\nUseDNS no\nLogLevel ERROR\n",
        at("hostkey"),
        at("id.pub"),
        at("lease"),
        at("banner"),
    );
    fs::write(folder.join("banner"), "*** labbook-start- a banner ***\n").expect("written");
    fs::write(folder.join("sshd_config"), config).expect("written");
    let log = fs::File::options().create(true).append(true).open(folder.join("sshd.log")).expect("a log");
    let mut command = Command::new(SSHD);
    command.args(["-D", "-e", "-f"]).arg(folder.join("sshd_config"));
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().expect("sshd starts");
    let mut connected = false;
    until("sshd listens", || {
        connected = TcpStream::connect(("127.0.0.1", port)).is_ok();
        connected || child.try_wait().expect("a child").is_some()
    });
    connected.then_some((child, port))
}

/// A link that can be cut: it passes bytes on, keeps them, or ends every connection.
pub(crate) struct Link {
    /// Where `ssh` connects to.
    pub(crate) port: u16,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    mode: AtomicU8,
    /// Bytes passed towards the host.
    sent: AtomicU64,
    /// After so many of them nothing more passes, in either direction; 0 is never.
    freeze_at: AtomicU64,
    open: Mutex<BTreeMap<u64, (TcpStream, TcpStream)>>,
}

const PASS: u8 = 0;
const FREEZE: u8 = 1;
const CUT: u8 = 2;

impl Link {
    fn to(port: u16) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
        let own = listener.local_addr().expect("an address").port();
        let state = Arc::new(State::default());
        let shared = Arc::clone(&state);
        std::thread::spawn(move || {
            for (number, client) in (0..).zip(listener.incoming()) {
                let Ok(client) = client else { continue };
                if shared.mode.load(Ordering::SeqCst) == CUT {
                    continue;
                }
                let Ok(host) = TcpStream::connect(("127.0.0.1", port)) else { continue };
                let copies = || Some((client.try_clone().ok()?, host.try_clone().ok()?));
                let Some(pair) = copies() else { continue };
                shared.open.lock().expect("no panic").insert(number, pair);
                let Some((from_client, to_client)) = client.try_clone().ok().zip(client.try_clone().ok()) else {
                    continue;
                };
                let Some((from_host, to_host)) = host.try_clone().ok().zip(host.try_clone().ok()) else { continue };
                let (one, other) = (Arc::clone(&shared), Arc::clone(&shared));
                std::thread::spawn(move || pump(&one, from_client, to_host, true));
                std::thread::spawn(move || {
                    pump(&other, from_host, to_client, false);
                    other.open.lock().expect("no panic").remove(&number);
                });
            }
        });
        Self { port: own, state }
    }

    /// Keeps all bytes from now on, until [`Self::heal`]; nobody is told.
    pub(crate) fn freeze(&self) {
        self.state.mode.store(FREEZE, Ordering::SeqCst);
    }

    /// Freezes when so many more bytes have passed towards the host.
    pub(crate) fn freeze_after(&self, bytes: u64) {
        self.state.freeze_at.store(self.sent() + bytes.max(1), Ordering::SeqCst);
    }

    /// Returns whether the link is frozen.
    pub(crate) fn is_frozen(&self) -> bool {
        self.state.mode.load(Ordering::SeqCst) == FREEZE
    }

    /// Ends every connection and takes no new one, until [`Self::heal`].
    pub(crate) fn cut(&self) {
        self.state.mode.store(CUT, Ordering::SeqCst);
        for (client, host) in self.state.open.lock().expect("no panic").values() {
            let _ = client.shutdown(Shutdown::Both);
            let _ = host.shutdown(Shutdown::Both);
        }
    }

    /// Passes bytes again, those kept first.
    pub(crate) fn heal(&self) {
        self.state.freeze_at.store(0, Ordering::SeqCst);
        self.state.mode.store(PASS, Ordering::SeqCst);
    }

    /// Returns how many bytes have passed towards the host.
    pub(crate) fn sent(&self) -> u64 {
        self.state.sent.load(Ordering::SeqCst)
    }
}

fn pump(state: &State, mut from: TcpStream, mut to: TcpStream, towards_host: bool) {
    let mut buffer = [0; 16 << 10];
    while let Ok(read) = from.read(&mut buffer) {
        let mut bytes = &buffer[..read];
        if towards_host {
            let freeze_at = state.freeze_at.load(Ordering::SeqCst);
            let sent = state.sent.fetch_add(read as u64, Ordering::SeqCst);
            if freeze_at != 0 && sent + read as u64 >= freeze_at {
                // What was sent before the cut has arrived; the rest comes when the link is healed.
                let (before, rest) = bytes.split_at((freeze_at.saturating_sub(sent) as usize).min(read));
                let _ = to.write_all(before);
                bytes = rest;
                state.mode.store(FREEZE, Ordering::SeqCst);
            }
        }
        while state.mode.load(Ordering::SeqCst) == FREEZE {
            std::thread::sleep(Duration::from_millis(2));
        }
        if to.write_all(bytes).is_err() || read == 0 {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
}
