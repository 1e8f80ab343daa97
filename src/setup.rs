//! A host's `setup:`: shell text that exports variables, run once before sessions and kept as the host folder's `env/`.
//!
//! Invariant: it runs in a clean shell, so that what it exports does not depend on who started labbook; a server still starts under
//! `env -i` and gets exactly these variables, and each of them is a fact of its process. A setup that fails stops everything.

use std::path::Path;

use crate::diagnostic::printable;
use crate::host::{Host, HostError};
use crate::script::SETUP;

/// How many lines of what a setup printed are told.
const TOLD: usize = 12;

/// Why the variables of a host cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// The host.
    #[error(transparent)]
    Host(#[from] HostError),
    /// The setup failed.
    #[error("{}", match code {
        70 => format!("the `setup:` of host `{host}` ended its shell before its own end"),
        74 => format!("cannot keep what the `setup:` of host `{host}` exports"),
        code => format!("the `setup:` of host `{host}` ended with code {code}"),
    })]
    Failed {
        /// Name of the host.
        host: String,
        /// Its code; 70 where it left by `exit 0`, 74 where its folder cannot be written.
        code: i32,
        /// The last lines that it printed.
        said: Vec<String>,
    },
}

/// Runs the setup of a host and keeps what it exports in a host folder; without a setup nothing is kept there.
///
/// # Errors
///
/// The host, or a setup that fails.
pub fn apply(host: &dyn Host, folder: &Path, setup: Option<&str>) -> Result<(), SetupError> {
    if setup.is_none() && host.list(&folder.join("env"))?.is_empty() {
        return Ok(());
    }
    let input = format!("{}\n{}\n", folder.display(), setup.unwrap_or_default());
    let said = host.shell(SETUP, input.as_bytes())?;
    if said.code == 0 {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&[said.out, said.err].concat()).into_owned();
    let lines: Vec<String> = text.lines().filter(|line| !line.trim().is_empty()).map(printable).collect();
    let said_last = lines[lines.len().saturating_sub(TOLD)..].to_vec();
    Err(SetupError::Failed { host: host.name().to_owned(), code: said.code, said: said_last })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::host::Local;

    #[test]
    fn exactly_what_is_exported_is_kept() {
        let root = tempfile::tempdir().expect("a folder");
        let host = Local::new("local", root.path(), None);
        let folder = host.folder("a b");
        apply(&host, &folder, None).expect("nothing to do");
        assert!(!folder.exists(), "nothing was asked for");
        let setup =
            "inner=1\necho loud\nexport A='x  y\n\tz' B= C=\"$HOME\" PATH=\"/opt/it's:$PATH\"\nexport LANG=\"$LANG\"\n";
        apply(&host, &folder, Some(setup)).expect("it ran");
        let read = |name: &str| fs::read_to_string(folder.join("env").join(name)).expect(name);
        assert_eq!(host.list(&folder.join("env")).expect("listed"), ["A", "B", "C", "PATH"]);
        assert_eq!((read("A"), read("B")), ("x  y\n\tz".to_owned(), String::new()));
        assert!(read("PATH").starts_with("/opt/it's:/"));
        apply(&host, &folder, Some("export D=1")).expect("it ran");
        assert_eq!(host.list(&folder.join("env")).expect("listed"), ["D"], "nothing stays from before");
        apply(&host, &folder, None).expect("it ran");
        assert!(host.list(&folder.join("env")).expect("listed").is_empty(), "and nothing without a setup");
    }

    #[test]
    fn a_setup_that_fails_says_why_and_changes_nothing() {
        let root = tempfile::tempdir().expect("a folder");
        let host = Local::new("local", root.path(), None);
        let folder = host.folder("x");
        apply(&host, &folder, Some("export A=1")).expect("it ran");
        for (setup, wanted) in
            [("export A=2\nfalse\nexport B=3", 1), ("export A=2; exit 0", 70), ("exit 7", 7), ("if", 2)]
        {
            let failed = apply(&host, &folder, Some(&format!("echo 'about to \u{1b}[31mfail'\n{setup}")));
            let Err(SetupError::Failed { code, said, .. }) = failed else { panic!("{setup}: {failed:?}") };
            // Shells disagree about the code of a text that they cannot read.
            assert!(code == wanted || setup == "if", "{setup}: {code}");
            assert!(setup == "if" || said[0] == "about to \\u{1b}[31mfail", "{said:?}");
            assert_eq!(fs::read(folder.join("env/A")).expect("kept"), b"1");
        }
    }
}
