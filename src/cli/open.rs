//! Opening what a command names: the lab, a spec in it, and the edition it stands for.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use super::{Exit, Failure, Terminal, Trouble};
use crate::diagnostic::{Diagnostics, did_you_mean, printable};
use crate::spec::{self, Lab, Spec};
use crate::store::{Edition, Store};
use crate::yaml;

/// A spec, the lab it belongs to, and its edition.
pub(super) struct Opened {
    /// Folder of the lab.
    pub(super) root: PathBuf,
    /// The spec's path, as it was given.
    pub(super) path: PathBuf,
    /// Folder of the spec.
    pub(super) spec_folder: PathBuf,
    /// The spec's text.
    pub(super) text: String,
    /// The spec.
    pub(super) spec: Spec,
    /// The lab's hosts.
    pub(super) lab: Lab,
    /// The edition that the spec stands for, which may have no results yet.
    pub(super) edition: Edition,
}

/// Opens a spec; its warnings are shown.
pub(super) fn open(terminal: &mut Terminal, path: &Path) -> Result<Opened, Trouble> {
    let (spec, text) = read_spec(terminal, path)?;
    let spec_folder = fs::canonicalize(folder_of(path)).map_err(|error| Failure::of(Exit::Usage, &error))?;
    let root = lab_folder(&spec_folder).or_else(|_| lab_folder(Path::new(".")))?;
    let lab = read_lab(&root)?;
    let edition = Store::new(&root).edition(&spec.question.experiment, &spec.edition().short(8));
    Ok(Opened { root, path: path.to_owned(), spec_folder, text, spec, lab, edition })
}

/// Opens one spec, or every spec of experiments/ that has results.
pub(super) fn open_all(terminal: &mut Terminal, path: Option<&Path>) -> Result<Vec<Opened>, Trouble> {
    if let Some(path) = path {
        return Ok(vec![open(terminal, path)?]);
    }
    let root = lab_folder(Path::new("."))?;
    let mut opened = Vec::new();
    for path in specs_of(&root)? {
        match open(terminal, &path) {
            Ok(one) if one.edition.exists() => opened.push(one),
            Ok(_) => {}
            // One wrong spec does not hide the others.
            Err(Trouble::Text(diagnostics)) => writeln!(terminal.err, "{}\n", diagnostics.render(terminal.style))?,
            Err(other) => return Err(other),
        }
    }
    Ok(opened)
}

/// Demands that the lab of a spec, where it has one, names its hosts.
pub(super) fn check_hosts(path: &Path, spec: &Spec) -> Result<(), Trouble> {
    let Ok(root) = lab_folder(&folder_of(path)) else { return Ok(()) };
    let lab = read_lab(&root)?;
    let Some(name) = spec.hosts.iter().find(|name| !lab.hosts.contains_key(*name)) else { return Ok(()) };
    let known: Vec<&str> = lab.hosts.keys().map(String::as_str).collect();
    let hint = did_you_mean(name, known.iter().copied())
        .map_or_else(|| format!("the hosts are {}", known.join(", ")), |near| format!("did you mean `{near}`?"));
    let what = format!("host `{name}` of `{}` is not in labbook.yaml", path.display());
    Err(Failure::new(Exit::Usage, what).hint(hint).into())
}

/// Returns the specs of a lab, by name.
pub(super) fn specs_of(root: &Path) -> Result<Vec<PathBuf>, Failure> {
    let folder = root.join("experiments");
    let Ok(entries) = fs::read_dir(&folder) else { return Ok(Vec::new()) };
    let mut paths = Vec::new();
    for entry in entries {
        let path = entry.map_err(|error| Failure::of(Exit::RunFailed, &error))?.path();
        if path.extension().is_some_and(|extension| extension == "yaml" || extension == "yml") {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths)
}

/// Reads a spec and shows its warnings.
pub(super) fn read_spec(terminal: &mut Terminal, path: &Path) -> Result<(Spec, String), Trouble> {
    let (spec, text, warnings) = parse_spec(path)?;
    if !warnings.problems.is_empty() {
        writeln!(terminal.err, "{}\n", warnings.render(terminal.style))?;
    }
    Ok((spec, text))
}

/// Reads a spec; also returns its text and its warnings.
pub(super) fn parse_spec(path: &Path) -> Result<(Spec, String, Diagnostics), Trouble> {
    // A pipe or a device would keep us waiting for ever.
    let plain = match fs::metadata(path) {
        Ok(found) if !found.is_file() && !found.is_dir() => Err(std::io::Error::other("not a plain file")),
        _ => fs::read(path),
    };
    let bytes = plain.map_err(|error| {
        let failure = Failure::new(Exit::Usage, format!("cannot read `{}`: {error}", path.display()));
        failure.hint("a spec is a YAML file, such as experiments/quickstart.yaml")
    })?;
    let text = String::from_utf8(bytes).map_err(|error| {
        let before = String::from_utf8_lossy(&error.as_bytes()[..error.utf8_error().valid_up_to()]).into_owned();
        let (line, column) = (before.split('\n').count(), before.rsplit('\n').next().unwrap_or("").chars().count() + 1);
        Failure::new(Exit::Usage, format!("not UTF-8 text: {}:{line}:{column}", path.display()))
    })?;
    let source = yaml::source(path.display().to_string(), &text);
    let (spec, warnings) = spec::parse(&source, &folder_of(path))?;
    // A spec is frozen into the record as it is, so that a secret in it would be published.
    if let Some(secret) = crate::redact::redact(text.as_bytes(), "").1.first() {
        let what = format!("`{}` holds what looks like a secret: `{}`", path.display(), printable(&secret.name));
        return Err(Failure::new(Exit::Usage, what)
            .hint("specs are stored in clear: let the host export it instead")
            .into());
    }
    Ok((spec, text, warnings))
}

pub(super) fn read_lab(root: &Path) -> Result<Lab, Trouble> {
    let path = root.join("labbook.yaml");
    let text = fs::read_to_string(&path)
        .map_err(|error| Failure::new(Exit::Usage, format!("cannot read `{}`: {error}", path.display())))?;
    let (lab, _) = spec::parse_lab(&yaml::source(path.display().to_string(), &text))?;
    Ok(lab)
}

fn folder_of(path: &Path) -> PathBuf {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder.to_owned(),
        _ => PathBuf::from("."),
    }
}

/// Returns the folder of the lab: the nearest one upward from `start` that holds labbook.yaml.
pub(super) fn lab_folder(start: &Path) -> Result<PathBuf, Failure> {
    let here = fs::canonicalize(start).map_err(|error| Failure::of(Exit::Usage, &error))?;
    here.ancestors().find(|folder| folder.join("labbook.yaml").is_file()).map(Path::to_owned).ok_or_else(|| {
        Failure::new(Exit::Usage, format!("no labbook.yaml in `{}` or above it", here.display()))
            .hint("`labbook init` makes a lab here")
    })
}
