//! The programs as text.

use std::process::Command as Process;

use labbook::script::{RUNNER, SESSION, digest};

use super::{find, skipped};

#[test]
fn they_are_short() {
    let lines = RUNNER.lines().count() + SESSION.lines().count();
    assert!(lines < 400, "{lines} lines, wanted less than 400 so that one can read them");
}

#[test]
fn their_digest_is_what_a_person_computes() {
    let folder = tempfile::tempdir().unwrap();
    labbook::script::input::install(folder.path()).unwrap();
    let text = "cat runner.sh session.sh | sha256sum";
    let output = Process::new("sh").args(["-c", text]).current_dir(folder.path()).output().unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap().split(' ').next(), Some(digest().as_str()));
}

#[test]
fn shellcheck_finds_nothing() {
    if find("shellcheck").is_none() {
        return skipped("no shellcheck on this machine");
    }
    let folder = tempfile::tempdir().unwrap();
    labbook::script::input::install(folder.path()).unwrap();
    let output = Process::new("shellcheck")
        .args(["-s", "sh", "runner.sh", "session.sh"])
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/src/host/ssh/acts.sh"))
        .current_dir(folder.path())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}
