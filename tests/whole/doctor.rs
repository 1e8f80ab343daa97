//! `labbook doctor` on this machine: good, without a program that it needs, and with something left over.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Stdio};

use super::lab::{Lab, Told};
use super::tiny::{SPEC, Tiny, hold_lease, host_folder, run};
use crate::scripts::find;

#[test]
fn this_machine_is_ready_and_nothing_is_changed() {
    let lab = Lab::new();
    let before = lab.files(".");
    let told = lab.run(&["doctor"]).success().says("ready: everything").says("free");
    assert!(told.err.is_empty() && told.out.lines().all(|line| line.chars().count() <= 80), "{}", told.out);
    assert_eq!(lab.files("."), before);
    let json = lab.run(&["doctor", "--format", "json"]).success().json();
    assert_eq!((&json["host"], &json["via"], &json["ready"]), (&"local".into(), &"local".into(), &true.into()));
    let facts = json["facts"].as_array().expect("facts");
    let sight = |key: &str| facts.iter().find(|fact| fact["key"] == key).map(|fact| fact["sight"].clone());
    assert_eq!(sight("host.boot_id"), Some("observed".into()));
    assert_eq!(sight("server.env.<name>"), Some("observed".into()));
    assert_eq!(sight("server.args.<name>"), Some("with_server".into()));
    lab.run(&["doctor", "locla"]).fails(2).says("did you mean `local`");
    lab.run(&["doctor", "--help"]).success().says("Example");
}

#[test]
fn a_program_that_every_session_needs_is_named() {
    let lab = Lab::new();
    // Every program of this machine but two.
    let bin = lab.path("bin");
    fs::create_dir(&bin).expect("a folder");
    for folder in ["/bin", "/usr/bin"] {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let name = entry.file_name();
            if name != "git" && name != "setsid" {
                let _ = symlink(entry.path(), bin.join(name));
            }
        }
    }
    let mut command = lab.command(&["doctor"]);
    let told = Told::of(&command.env("PATH", &bin).output().expect("it starts"));
    let told = told.fails(5).says("absent: setsid").says("not ready");
    told.says("source.dirty (required): install git");
}

#[test]
fn leases_left_over_processes_and_stale_editions_are_told() {
    let mut lab = Tiny { levels: "[1]", ..Tiny::default() }.lab();
    run(&lab).success();
    let old = host_folder(&lab).file_name().expect("a name").to_string_lossy().into_owned();
    lab.run(&["doctor"]).success().says("1 of a spec, 0 stale").does_not_say(&old);
    Tiny { levels: "[2]", ..Tiny::default() }.write(&mut lab, SPEC);
    hold_lease(&lab);
    let sleep = find("sleep").expect("sleep");
    let mut stray = Command::new(&sleep)
        .arg("300")
        .env("LABBOOK_NONCE", "00112233445566778899aabbccddeeff")
        .stdin(Stdio::null())
        .current_dir(lab.path(""))
        .spawn()
        .expect("it starts");
    let told = lab.run(&["doctor"]).success();
    let json = lab.run(&["doctor", "--format", "json"]).success().json();
    stray.kill().expect("ended");
    stray.wait().expect("ended");
    let pid = stray.id().to_string();
    let told = told.says(&format!("process {pid}: {} 300", sleep.display()));
    told.says(&format!("held by process {}", std::process::id())).says("1 stale").says(&old);
    assert_eq!(json["editions"][0]["stale"], true, "{json:#}");
    assert!(
        json["left_over"]
            .as_array()
            .is_some_and(|left| left.iter().any(|each| each["pid"].as_str() == Some(pid.as_str())))
    );
    assert!(Path::new(&lab.path("labbook-lease/owner")).exists(), "the doctor takes nothing away");
}
