//! A new lab: the files that `labbook init` writes.
//!
//! Invariant: nothing that exists is overwritten.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use crate::schema;

/// One file of a new lab.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewFile {
    /// Path in the lab's folder.
    pub path: &'static str,
    /// Its content.
    pub text: String,
}

/// What became of one file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Written {
    /// It was written.
    New,
    /// It was there before and was left alone.
    Kept,
}

/// Why the lab could not be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write `{}`: {source}", path.display())]
pub struct InitError {
    /// Which file.
    pub path: PathBuf,
    /// What the system said.
    pub source: io::Error,
}

const LAB: &str = "\
# yaml-language-server: $schema=schema/labbook.json
# Hosts that experiments may name. `local` is this machine and needs no entry; another one may look like this:
#
#   blackwell: { via: ssh, address: user@host, gpus: [0, 1, 2, 3, 4, 5, 6, 7] }
hosts:
  local: { via: local }
";

const README: &str = "\
# A lab

One file in `experiments/` is one question. What was measured is in `results/`, and nothing there is ever changed or deleted.

    labbook check experiments/quickstart.yaml    what the experiment means, and what is wrong with it
    labbook plan experiments/quickstart.yaml     the order, the commands, the cost, and what it can resolve
    labbook run experiments/quickstart.yaml      does what is missing
    labbook compare quickstart                   the verdicts
    labbook build                                the findings book, site/index.html
";

/// Returns the files of a new lab.
pub fn files() -> Vec<NewFile> {
    let file = |path, text: &str| NewFile { path, text: text.to_owned() };
    let json = |path, schema: &serde_json::Value| NewFile { path, text: format!("{schema:#}\n") };
    vec![
        file("labbook.yaml", LAB),
        file("experiments/quickstart.yaml", include_str!("../experiments/quickstart.yaml")),
        json("schema/experiment.json", &schema::spec()),
        json("schema/labbook.json", &schema::lab()),
        // Git keeps no empty folder.
        file("results/.gitkeep", ""),
        file(".gitignore", "/.labbook/\n/results/.aside/\n/site/\n/.site-aside-*/\n"),
        file("README.md", README),
    ]
}

/// Writes the files of a new lab into `folder`, which is made if it is not there.
///
/// # Errors
///
/// The first file that cannot be written; those before it stay.
pub fn write(folder: &Path) -> Result<Vec<(&'static str, Written)>, InitError> {
    let mut done = Vec::new();
    for file in files() {
        let path = folder.join(file.path);
        let written = write_new(&path, &file.text).map_err(|source| InitError { path, source })?;
        done.push((file.path, written));
    }
    Ok(done)
}

fn write_new(path: &Path, text: &str) -> io::Result<Written> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    match OpenOptions::new().write(true).create_new(true).open(path) {
        Ok(mut file) => file.write_all(text.as_bytes()).map(|()| Written::New),
        Err(trouble) if trouble.kind() == io::ErrorKind::AlreadyExists => Ok(Written::Kept),
        Err(trouble) => Err(trouble),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_lab_checks_and_an_old_one_is_left_alone() {
        let folder = tempfile::tempdir().expect("a folder");
        let lab = folder.path().join("lab");
        fs::create_dir_all(&lab).expect("made");
        fs::write(lab.join("README.md"), "mine").expect("written");
        let first = write(&lab).expect("written");
        assert_eq!(first.iter().filter(|(_, written)| *written == Written::Kept).count(), 1);
        assert_eq!(fs::read_to_string(lab.join("README.md")).expect("text"), "mine");
        let second = write(&lab).expect("written");
        assert!(second.iter().all(|(_, written)| *written == Written::Kept));

        let read = |name: &str| crate::yaml::source(name, &fs::read_to_string(lab.join(name)).expect("text"));
        let (parsed, warnings) = crate::spec::parse_lab(&read("labbook.yaml")).expect("a lab");
        assert!(parsed.hosts.contains_key("local") && warnings.problems.is_empty());
        let quickstart = read("experiments/quickstart.yaml");
        let (_, warnings) = crate::spec::parse(&quickstart, &lab.join("experiments")).expect("a spec");
        assert!(warnings.problems.is_empty());
    }

    #[test]
    fn a_folder_that_is_a_file_is_an_error_with_its_path() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("file");
        fs::write(&file, "x").expect("written");
        assert!(write(&file).expect_err("refused").to_string().contains("labbook.yaml"));
    }
}
