//! `labbook.yaml`: the hosts that specs name.
//!
//! Invariant: `local` always exists; a name is unique and safe as part of a folder name.

use std::path::Path;
use std::sync::Arc;

use indexmap::IndexMap;

use super::keys::{self, HOST_VIAS, Section};
use super::reading::bad_name;
use crate::diagnostic::{Diagnostic, Diagnostics, Source};
use crate::yaml::{Node, Reader};

/// A lab: what `labbook.yaml` says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lab {
    /// Hosts by name; `local` is always among them.
    pub hosts: IndexMap<String, HostEntry>,
}

/// One host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostEntry {
    /// How it is reached.
    pub via: HostVia,
    /// What `ssh` takes as destination; the host's name where absent.
    pub address: Option<String>,
    /// Configuration that `ssh` reads instead of the user's: a path from the lab's folder, or one that starts with `~/`.
    pub ssh_config: Option<String>,
    /// Indices of the GPUs that experiments may use; `None` means all.
    pub gpus: Option<Vec<u32>>,
    /// Folder on the host for sessions; `None` is labbook's own choice.
    pub folder: Option<String>,
    /// Shell commands that export variables before the server starts.
    pub setup: Option<String>,
    /// What other work on the host means.
    pub neighbours: Neighbours,
    /// Slurm partition.
    pub partition: Option<String>,
    /// Slurm account.
    pub account: Option<String>,
}

/// How a host is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HostVia {
    /// It is this machine.
    Local,
    /// Over SSH.
    Ssh,
    /// As a job of Slurm.
    Slurm,
}

impl HostVia {
    /// Returns the word in `labbook.yaml`.
    pub fn name(self) -> &'static str {
        HOST_VIAS[self as usize]
    }
}

/// What other work on the host, beside our GPUs, means for a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Neighbours {
    /// The session does not start.
    Refuse,
    /// It is recorded.
    Record,
}

impl Default for Lab {
    /// Returns the lab of a folder without `labbook.yaml`: this machine alone.
    fn default() -> Self {
        Self { hosts: IndexMap::from([("local".to_owned(), HostEntry::new(HostVia::Local))]) }
    }
}

impl HostEntry {
    fn new(via: HostVia) -> Self {
        Self {
            via,
            address: None,
            ssh_config: None,
            gpus: None,
            folder: None,
            setup: None,
            neighbours: Neighbours::Refuse,
            partition: None,
            account: None,
        }
    }
}

/// Reads `labbook.yaml`. Returns the lab and warnings.
///
/// # Errors
///
/// Every problem found, each with its place.
pub fn parse_lab(source: &Arc<Source>) -> Result<(Lab, Diagnostics), Diagnostics> {
    let root = crate::yaml::parse(source)?;
    let mut reader = Reader::new(source);
    let lab = lab(&mut reader, &root);
    match lab {
        Some(lab) if !reader.diagnostics.has_errors() => Ok((lab, reader.diagnostics)),
        _ => Err(reader.diagnostics),
    }
}

fn lab(reader: &mut Reader, root: &Node) -> Option<Lab> {
    let top = keys::LAB.open(reader, root)?;
    let mut lab = Lab::default();
    let Some(node) = top.get("hosts") else { return Some(lab) };
    let mut complete = true;
    for (key, value) in reader.mapping(node, "hosts by name")? {
        if let Some(trouble) = bad_name(&key.text) {
            reader.problem(
                Diagnostic::error(format!("`{}` cannot name a host: {trouble}", key.text), key.span.clone(), "here")
                    .help("names are small letters, digits, `.`, `_` and `-`"),
            );
        }
        let Some(entry) = host(reader, value) else {
            complete = false;
            continue;
        };
        if key.text == "local" && entry.via != HostVia::Local {
            reader.problem(
                Diagnostic::error("`local` is this machine", key.span.clone(), "reached in another way")
                    .help("give the other machine another name"),
            );
        }
        lab.hosts.insert(key.text.clone(), entry);
    }
    complete.then_some(lab)
}

fn host(reader: &mut Reader, node: &Node) -> Option<HostEntry> {
    let section = keys::HOST.open(reader, node)?;
    let vias = [HostVia::Local, HostVia::Ssh, HostVia::Slurm];
    let via = section.word(reader, "via").map(|place| vias[place]);
    let address = section.maybe_text(reader, "address");
    let ssh_config = section.maybe_text(reader, "ssh_config");
    let gpus = gpus(reader, &section);
    let folder = section.maybe_text(reader, "folder");
    let setup = section.maybe_text(reader, "setup");
    let neighbours = section.word(reader, "neighbours").map(|place| [Neighbours::Refuse, Neighbours::Record][place]);
    let partition = section.maybe_text(reader, "partition");
    let account = section.maybe_text(reader, "account");
    let via = via?;
    for (key, wanted) in [
        ("address", HostVia::Ssh),
        ("ssh_config", HostVia::Ssh),
        ("partition", HostVia::Slurm),
        ("account", HostVia::Slurm),
    ] {
        let fits = via == wanted || (matches!(key, "address" | "ssh_config") && via == HostVia::Slurm);
        if let (Some(node), false) = (section.get(key), fits) {
            reader.problem(Diagnostic::error(
                format!("`{key}` means nothing with `via: {}`", via.name()),
                node.span.clone(),
                format!("only with `via: {}`", wanted.name()),
            ));
        }
    }
    let folder = folder?;
    if let (Some(folder), Some(node)) = (&folder, section.get("folder"))
        && !Path::new(folder).is_absolute()
        && !folder.starts_with("~/")
    {
        reader.expected(node, "an absolute path, or one that starts with `~/`");
    }
    let address = address?;
    if let (Some(text), Some(node)) = (&address, section.get("address"))
        && (text.starts_with('-') || text.is_empty() || text.chars().any(|each| each.is_control() || each == ' '))
    {
        reader.expected(node, "a destination of `ssh`, such as `user@host` or an alias of its configuration");
    }
    Some(HostEntry {
        via,
        address,
        ssh_config: ssh_config?,
        gpus: gpus?,
        folder,
        setup: setup?,
        neighbours: neighbours?,
        partition: partition?,
        account: account?,
    })
}

#[expect(clippy::option_option, reason = "outside: whether it could be read; inside: whether it is there")]
fn gpus(reader: &mut Reader, section: &Section<'_>) -> Option<Option<Vec<u32>>> {
    let Some(node) = section.get("gpus") else { return Some(None) };
    let elements = reader.sequence(node, "a list of GPU indices, such as `[0, 1]`")?;
    if elements.is_empty() {
        reader.expected(node, "at least one GPU index; without the key all GPUs are used");
        return None;
    }
    let mut indices: Vec<u32> = Vec::new();
    for element in elements {
        let index = reader.whole(element, 0..=1023)? as u32;
        if indices.contains(&index) {
            reader.problem(Diagnostic::error(format!("GPU {index} stands twice"), element.span.clone(), "again here"));
            return None;
        }
        indices.push(index);
    }
    Some(Some(indices))
}
