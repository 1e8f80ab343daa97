//! The connection itself: an `ssh` master of ours, which outlives this program for a while and is shared by the next ones.
//!
//! Invariant: it asks nobody anything, notices within half a minute that its link is dead, and its socket lies in a folder that
//! nobody else can write. The user's ssh configuration (keys, `ProxyJump`, known hosts) holds; ssh itself reads it.

use std::fs;
use std::io::{self, Read as _, Seek as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::Destination;
use super::trouble::{Trouble, gist};
use crate::digest::Digest;

/// What a person would type.
pub(super) fn by_hand(destination: &Destination) -> String {
    match &destination.config {
        Some(config) => format!("ssh -F {} {}", config.display(), destination.address),
        None => format!("ssh {}", destination.address),
    }
}

/// Longest time from the start of `ssh` to a connection; a jump host and a slow directory service take some of it.
const CONNECT: Duration = Duration::from_mins(1);

/// Options that labbook needs; whatever else the user's configuration says holds. `BatchMode` makes an unknown host key a refusal
/// unless that configuration says otherwise, since nobody can be asked.
const OPTIONS: &[&str] = &[
    "BatchMode=yes",
    "ConnectTimeout=10",
    "ServerAliveInterval=5",
    "ServerAliveCountMax=3",
    "ControlPersist=600",
    "ClearAllForwardings=yes",
    "PermitLocalCommand=no",
    "RemoteCommand=none",
    "RequestTTY=no",
    "LogLevel=ERROR",
];

/// Returns the socket of a destination's master. OpenSSH binds it under a name that is 17 bytes longer, and 108 are the most.
pub(super) fn socket(destination: &Destination) -> Result<PathBuf, io::Error> {
    let folder = &destination.sockets;
    match fs::DirBuilder::new().mode(0o700).create(folder) {
        Err(trouble) if trouble.kind() != io::ErrorKind::AlreadyExists => return Err(trouble),
        _ => {}
    }
    let found = fs::symlink_metadata(folder)?;
    if !found.is_dir() || found.uid() != rustix::process::getuid().as_raw() || found.mode() & 0o077 != 0 {
        let what = format!("`{}` must be a folder that belongs to you alone (mode 0700)", folder.display());
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, what));
    }
    let config = destination.config.as_ref().map(|config| config.display().to_string()).unwrap_or_default();
    let name = Digest::of(format!("{config}\0{}", destination.address)).short(12);
    let path = folder.join(format!("{name}.sock"));
    if path.as_os_str().len() > 90 {
        let what = format!("`{}` is too long for a socket: set XDG_RUNTIME_DIR to a shorter folder", path.display());
        return Err(io::Error::new(io::ErrorKind::InvalidFilename, what));
    }
    Ok(path)
}

/// Starts a master and returns when it is connected. The caller holds the lock beside the socket, since a second master on one
/// socket would stay for ever without one.
pub(super) fn start(destination: &Destination, socket: &Path) -> Result<(), (Trouble, String)> {
    let program = |trouble: io::Error| (Trouble::Program, trouble.to_string());
    // A file and not a pipe, which the master would keep open.
    let mut said = tempfile::tempfile().map_err(program)?;
    let mut command = Command::new("ssh");
    command.args(["-M", "-f", "-N", "-T", "-x", "-S"]).arg(socket);
    for option in OPTIONS {
        command.args(["-o", option]);
    }
    if let Some(config) = &destination.config {
        command.arg("-F").arg(config);
    }
    command.arg("--").arg(&destination.address);
    // A group of its own: Ctrl-C in the terminal is for labbook, and would end the ssh of a jump host.
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(said.try_clone().map_err(program)?).process_group(0);
    let mut child = command.spawn().map_err(program)?;
    let began = Instant::now();
    let ended = loop {
        if let Some(status) = child.try_wait().map_err(program)? {
            break Some(status);
        }
        if began.elapsed() > CONNECT {
            if let Some(group) = rustix::process::Pid::from_raw(child.id().cast_signed()) {
                let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
            }
            let _ = child.wait();
            break None;
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    let mut text = Vec::new();
    said.rewind().and_then(|()| said.read_to_end(&mut text)).map_err(program)?;
    match ended {
        Some(status) if status.success() => Ok(()),
        Some(_) => Err((Trouble::of_connecting(&String::from_utf8_lossy(&text)), gist(&text))),
        None => Err((Trouble::NoConnection, format!("no answer within {} s {}", CONNECT.as_secs(), gist(&text)))),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn destination(sockets: PathBuf) -> Destination {
        Destination { name: "h".into(), address: "a@h".into(), config: None, sockets, folder: "/x".into(), gpus: None }
    }

    #[test]
    fn a_socket_is_short_its_own_and_in_a_private_folder() {
        let root = tempfile::tempdir().expect("a folder");
        let one = destination(root.path().join("s"));
        let path = socket(&one).expect("made");
        assert_eq!(socket(&one).expect("made again"), path);
        assert_eq!(path.file_name().map(std::ffi::OsStr::len), Some(17));
        let other = Destination { config: Some("/c".into()), ..destination(root.path().join("s")) };
        assert_ne!(socket(&other).expect("made"), path);
        fs::set_permissions(root.path().join("s"), fs::Permissions::from_mode(0o755)).expect("changed");
        assert!(socket(&one).expect_err("refused").to_string().contains("0700"));
        std::os::unix::fs::symlink(root.path(), root.path().join("link")).expect("a link");
        assert!(socket(&destination(root.path().join("link"))).is_err());
        assert!(
            socket(&destination(root.path().join("n".repeat(90)))).expect_err("refused").to_string().contains("long")
        );
    }
}
