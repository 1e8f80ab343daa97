//! `doctor`: a look at a host.

use std::fs;
use std::io::Write;
use std::path::Path;

use super::execute::host_failure;
use super::open::{lab_folder, read_lab, specs_of};
use super::{Answer, Exit, Failure, Format, Terminal, reach};
use crate::diagnostic::{did_you_mean, printable};
use crate::host::Host;
use crate::report::doctor::{self as report, DoctorView, HostFolder};
use crate::spec;
use crate::store::Store;
use crate::{doctor, yaml};

/// Looks at a host of the lab.
pub(super) fn doctor(terminal: &mut Terminal, name: &str, format: Format) -> Answer {
    let root = lab_folder(Path::new("."))?;
    let lab = read_lab(&root)?;
    let Some(entry) = lab.hosts.get(name) else {
        let failure = Failure::new(Exit::Usage, format!("there is no host `{}` in labbook.yaml", printable(name)));
        let near = did_you_mean(name, lab.hosts.keys().map(String::as_str));
        let known: Vec<&str> = lab.hosts.keys().map(String::as_str).collect();
        let hint = near
            .map_or_else(|| format!("the hosts are {}", known.join(", ")), |near| format!("did you mean `{near}`?"));
        return Err(failure.hint(hint).into());
    };
    let host = reach::connect(&root, name, entry)?;
    let seen = doctor::look(&*host).map_err(|error| host_failure(&error))?;
    let current = labels(&root)?;
    let editions = editions(&root, &*host, &current, &reach::suffix(&root, entry))?;
    let view = DoctorView { host: name, via: entry.via.name(), seen: &seen, editions: &editions };
    match format {
        Format::Text => write!(terminal.out, "{}", report::text(&view))?,
        Format::Json => writeln!(terminal.out, "{:#}", report::json(&view))?,
    }
    Ok(if seen.is_ready() { Exit::Done } else { Exit::RunFailed })
}

/// Returns what the lab's specs stand for, `EXPERIMENT-EDITION`. One with mistakes is the business of `check`.
fn labels(root: &Path) -> Result<Vec<String>, Failure> {
    let mut labels = Vec::new();
    for path in specs_of(root)? {
        let Ok(text) = fs::read_to_string(&path) else { continue };
        let folder = path.parent().unwrap_or(root);
        if let Ok((spec, _)) = spec::parse(&yaml::source(path.display().to_string(), &text), folder) {
            labels.push(format!("{}-{}", spec.question.experiment, spec.edition().short(8)));
        }
    }
    Ok(labels)
}

/// Returns the host folders of this lab's experiments; `current` are the labels that its specs stand for.
fn editions(root: &Path, host: &dyn Host, current: &[String], suffix: &str) -> Result<Vec<HostFolder>, Failure> {
    let folder = host.folder("x");
    let mut found = Vec::new();
    for name in host.list(folder.parent().unwrap_or(&folder)).map_err(|error| host_failure(&error))? {
        let Some(label) = name.strip_suffix(suffix) else { continue };
        let Some((experiment, edition)) = label.rsplit_once('-') else { continue };
        if edition.len() != 8 || !edition.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            continue;
        }
        let folder = host.folder(&name);
        let sealed = Store::new(root).edition(experiment, edition).sound_ledger().map(|ledger| ledger.standing()).ok();
        let is_home = |session: &str| sealed.as_ref().is_some_and(|standing| standing.is_sealed(session));
        let mut not_home = 0;
        for entry in host.list(&folder.join("queue")).map_err(|error| host_failure(&error))? {
            let Some((_, session)) = entry.split_once('-') else { continue };
            if !is_home(session)
                && !host
                    .read(&folder.join("queue").join(&entry).join("done"), 0)
                    .map_err(|error| host_failure(&error))?
                    .is_empty()
            {
                not_home += 1;
            }
        }
        let alive = host.alive(&folder).map_err(|error| host_failure(&error))?;
        found.push(HostFolder {
            stale: !current.iter().any(|other| other == label),
            name: printable(&name),
            alive,
            not_home,
        });
    }
    Ok(found)
}
