//! Reaching the host that a spec names: this machine, or one over SSH.

use std::path::{Path, PathBuf};

use super::execute::host_failure;
use super::open::Opened;
use super::{Exit, Failure};
use crate::digest::Digest;
use crate::host::{Destination, Host, Local, Ssh};
use crate::spec::{HostEntry, HostVia};

/// A host that answers.
pub(super) struct Reached {
    /// The host.
    pub(super) host: Box<dyn Host>,
    /// Its folder for the edition.
    pub(super) folder: PathBuf,
    /// Whether it is this machine, so that paths here are paths there.
    pub(super) is_here: bool,
}

/// Folder on an SSH host, where labbook.yaml names none.
const FOLDER: &str = "~/.labbook/host";

/// Reaches the host of a spec.
pub(super) fn reach(opened: &Opened) -> Result<Reached, Failure> {
    let (name, entry) = the_host(opened)?;
    let host = connect(&opened.root, name, entry)?;
    let is_here = entry.via == HostVia::Local;
    let folder = host.folder(&format!("{}{}", label(opened), suffix(&opened.root, entry)));
    Ok(Reached { host, folder, is_here })
}

/// Connects to a host of a lab.
pub(super) fn connect(root: &Path, name: &str, entry: &HostEntry) -> Result<Box<dyn Host>, Failure> {
    match entry.via {
        HostVia::Local => Ok(Box::new(Local::new(name, root.join(".labbook/host"), entry.gpus.clone()))),
        HostVia::Slurm => {
            let what = format!("host `{name}` is reached by slurm, and this version reaches hosts directly or by ssh");
            Err(Failure::new(Exit::RunFailed, what).hint("`labbook plan` shows what would run"))
        }
        HostVia::Ssh => {
            let destination = Destination {
                name: name.to_owned(),
                address: entry.address.clone().unwrap_or_else(|| name.to_owned()),
                config: entry.ssh_config.as_deref().map(|path| config(root, path)),
                sockets: socket_folder(),
                folder: entry.folder.clone().unwrap_or_else(|| FOLDER.to_owned()),
                gpus: entry.gpus.clone(),
            };
            Ok(Box::new(Ssh::connect(destination).map_err(|error| host_failure(&error))?))
        }
    }
}

/// Returns what stands behind an edition's label in the name of its folder on a host: two labs of one account there must not find
/// each other's sessions, even of the same edition.
pub(super) fn suffix(root: &Path, entry: &HostEntry) -> String {
    if entry.via == HostVia::Local { String::new() } else { format!("-{}", lab_id(root)) }
}

/// Returns the folder on this machine for what belongs to an edition and is not in the record.
pub(super) fn home_folder(opened: &Opened) -> PathBuf {
    opened.root.join(".labbook/host").join(label(opened))
}

fn label(opened: &Opened) -> String {
    format!("{}-{}", opened.edition.experiment, opened.edition.edition)
}

/// Returns the one host of a spec.
fn the_host(opened: &Opened) -> Result<(&str, &HostEntry), Failure> {
    let mut found = None;
    for name in &opened.spec.hosts {
        let Some(entry) = opened.lab.hosts.get(name) else {
            let what = format!("host `{name}` is not in labbook.yaml");
            return Err(Failure::new(Exit::Usage, what).hint("add it under `hosts:`, or use `host: local`"));
        };
        found = found.or(Some((name.as_str(), entry)));
    }
    let hosts = &opened.spec.hosts;
    let over_ssh = hosts.iter().filter_map(|name| opened.lab.hosts.get(name)).any(|entry| entry.via == HostVia::Ssh);
    if hosts.len() > 1 && over_ssh {
        let what = format!("{} hosts, and this version runs an experiment on one", hosts.len());
        return Err(Failure::new(Exit::RunFailed, what).hint("name one of them: `host: NAME`"));
    }
    found.ok_or_else(|| Failure::new(Exit::Usage, "the spec names no host"))
}

fn config(root: &Path, path: &str) -> PathBuf {
    match (path.strip_prefix("~/"), std::env::var_os("HOME")) {
        (Some(below), Some(home)) => PathBuf::from(home).join(below),
        _ => root.join(path),
    }
}

/// Returns the folder for sockets: short, and of this user alone.
fn socket_folder() -> PathBuf {
    match std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|folder| folder.is_dir()) {
        Some(folder) => folder.join("labbook"),
        None => PathBuf::from(format!("/tmp/labbook-{}", rustix::process::getuid().as_raw())),
    }
}

/// Returns six hex digits that tell this lab on this machine from others.
fn lab_id(root: &Path) -> String {
    let machine = std::fs::read_to_string("/etc/machine-id").unwrap_or_default();
    Digest::of(format!("{machine}\0{}", root.display())).short(6)
}
