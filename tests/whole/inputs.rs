//! Bad input and bad surroundings: each is named with its place, and nothing is lost.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::Signal;

use super::lab::Lab;
use super::tiny::{
    PATIENCE, SPEC, Tiny, assert_nothing_left, ended, events, hold_lease, host_folder, run, signal, spawn, until,
};
use crate::scripts::skipped;

/// A spec in which one text is replaced by another, and the place that the message must name.
#[track_caller]
fn refused(from: &str, to: &str, place: &str, says: &[&str]) {
    let lab = Lab::empty();
    lab.write("labbook.yaml", "hosts:\n  local: { via: local }\n");
    let text = Tiny::default().yaml(1);
    assert!(text.contains(from), "no `{from}` in:\n{text}");
    lab.write("bad.yaml", &text.replacen(from, to, 1));
    let mut told = lab.run(&["check", "bad.yaml"]).fails(2).says(&format!("bad.yaml:{place}"));
    for text in says {
        told = told.says(text);
    }
    assert!(told.out.is_empty(), "talk is not data: {}", told.out);
    assert!(!told.err.contains('\u{1b}'), "no colours where nobody watches");
    lab.run(&["run", "bad.yaml"]).fails(2);
    assert!(!lab.path("results").exists() && !lab.path(".labbook").exists(), "nothing was begun");
}

#[test]
fn keys_that_are_unknown_misspelt_double_or_empty() {
    refused("control: one", "contrul: one", "15:1", &["contrul", "did you mean `control`"]);
    refused("control: one", "control: one\nxyzzy: 1", "16:1", &["xyzzy"]);
    refused("control: one", "control: one\ncontrol: other", "16:1", &["control", "twice"]);
    refused("title: Tiny", "title:", "1:", &["title"]);
    refused("control: one", "control: \"\"", "15:10", &["control"]);
    refused("random-seed: 1", "randon-seed: 1", "6:11", &["randon-seed", "random-seed"]);
}

#[test]
fn commits_that_are_cut_short_or_read_as_numbers() {
    for commit in ["61e9540", "0123456", "HEAD"] {
        refused("workload:", &format!("source: {{ repo: ., commit: {commit} }}\nworkload:"), "8:28", &[commit, "40"]);
    }
}

#[test]
fn variables_that_yaml_would_take_for_something_else() {
    // The source text counts: `no` is the text `no`, and the spec is fine.
    let lab = Lab::new();
    lab.write(
        SPEC,
        &Tiny::default().yaml(1).replace("  ready:", "  env: { A: no, B: 0x10, C: 1e3, D: 0.90 }\n  ready:"),
    );
    let told = lab.run(&["check", SPEC, "--resolved"]).success();
    for text in ["no", "0x10", "1e3", "0.90"] {
        assert!(told.out.contains(text), "`{text}` in {}", told.out);
    }
    refused("  ready:", "  env: { A: [1] }\n  ready:", "7:13", &["A"]);
    refused("  ready:", "  env: { A: }\n  ready:", "7:", &["A"]);
}

#[test]
fn a_factor_that_no_arm_sets_and_arms_that_do_not_fit() {
    refused("one: loop, other: grouped", "one: unset, other: unset", "13:9", &["server.args.moe-runner-backend"]);
    refused("control: one", "control: nobody", "15:10", &["nobody", "one"]);
    refused("factor: server.args.moe-runner-backend", "factor: server.nothing", "13:9", &["server.nothing"]);
    refused(
        "factor: server.args.moe-runner-backend",
        "factor: server.args.random-seed",
        "13:9",
        &["random-seed", "varied and fixed"],
    );
}

#[test]
fn an_input_is_never_entailed() {
    refused("prime: never", "prime: never\nentails: [server.args.tp-size]", "22:11", &["server.args.tp-size", "input"]);
}

#[test]
fn claims_on_what_is_not_planned() {
    refused("treatment: other, at: 1", "treatment: nobody, at: 1", "20:49", &["nobody", "other"]);
    refused("same: { metric: output_throughput", "same: { metric: output_throughptu", "20:19", &["output_throughput"]);
    refused("other, at: 1,", "other, at: 7,", "20:60", &["7"]);
    refused("expect: unchanged", "expect: bigger", "20:71", &["bigger", "higher"]);
}

#[test]
fn a_patch_that_is_not_there() {
    let source =
        "source: { repo: ., commit: 0123456789012345678901234567890123456789, patches: [no-such.patch] }\nworkload:";
    refused("workload:", source, "8:", &["no-such.patch"]);
}

#[test]
fn files_that_are_no_specs() {
    let lab = Lab::new();
    lab.run(&["check", "no-such.yaml"]).fails(2).says("no-such.yaml");
    for (name, bytes) in
        [("empty", &b""[..]), ("list", b"[1, 2]"), ("bytes", b"title: \xff\xfe"), ("open", b"title: [")]
    {
        fs::write(lab.path("bad.yaml"), bytes).expect("written");
        let told = lab.run(&["check", "bad.yaml"]).fails(2).says("bad.yaml");
        assert!(!told.err.contains("panicked"), "{name}: {}", told.err);
    }
    Lab::empty().run(&["status"]).fails(2).says("labbook init");
}

#[test]
fn a_lease_that_another_holds() {
    let lab = Tiny::default().lab();
    let lease = hold_lease(&lab);
    run(&lab).fails(5).says("another labbook measures").says(&std::process::id().to_string());
    fs::remove_dir_all(lease).expect("given back");
    run(&lab).success();
    assert_nothing_left(&lab);
}

#[test]
fn two_at_the_same_time() {
    let lab = Tiny { repeats: 2, ..Tiny::default() }.lab();
    let first = spawn(&lab, &["run", SPEC]);
    until("the first one runs", || lab.path("labbook-lease/owner").exists());
    run(&lab).fails(5).says("another labbook is driving `tiny`");
    lab.run(&["attach", SPEC]).fails(5).says("another labbook is driving");
    // Another lab on the same host: its runner does not get the lease.
    let second = Tiny::default().lab();
    let told = second.command(&["run", SPEC]).env("LABBOOK_LEASE_DIR", lab.path("")).output().expect("it ends");
    let told = super::lab::Told::of(&told).fails(5).says("another labbook measures");
    assert!(told.err.contains("try again"), "{}", told.err);
    ended(first).success().says("2 of 2 blocks complete");
    assert_nothing_left(&lab);
    let told = second.command(&["run", SPEC]).env("LABBOOK_LEASE_DIR", lab.path("")).output().expect("it ends");
    super::lab::Told::of(&told).success();
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

#[test]
fn a_results_folder_that_cannot_be_written() {
    let lab = Tiny::default().lab();
    if is_root() {
        // Modes mean nothing to root; a read-only mount does.
        let Some(mount) = Mount::new(&lab.path("results"), "size=1m,ro") else { return };
        run(&lab).fails(5).says("results").says("ead-only");
        drop(mount);
    } else {
        fs::set_permissions(lab.path("results"), fs::Permissions::from_mode(0o555)).expect("changed");
        run(&lab).fails(5).says("results").says("ermission denied");
        fs::set_permissions(lab.path("results"), fs::Permissions::from_mode(0o755)).expect("changed");
    }
    run(&lab).success().says("1 of 1 blocks complete");
    lab.run(&["check"]).success();
}

/// The session ends on the host while the record cannot be written: it stays there, and is brought home later.
#[test]
fn a_results_folder_that_becomes_read_only_meanwhile() {
    if !is_root() {
        return skipped("mounting needs root");
    }
    let lab = Tiny::default().lab();
    let Some(mount) = Mount::new(&lab.path("results"), "size=64m") else { return };
    let first = spawn(&lab, &["run", SPEC]);
    until("it runs", || lab.path("labbook-lease/owner").exists());
    mount.remount("ro");
    ended(first).fails(5).says("cannot").says("nothing is lost");
    until("the host is done", || !lab.path("labbook-lease/owner").exists());
    mount.remount("rw");
    run(&lab).success().says("1 of 1 blocks complete");
    let sessions =
        fs::read_to_string(host_folder(&lab).join("journal")).expect("a journal").matches("session-start").count();
    assert_eq!(sessions, 2, "no session had to run again");
    assert_eq!(events(&lab).iter().filter(|event| event.get("finished").is_some()).count(), 2);
    lab.run(&["check"]).success();
    drop(mount);
}

#[test]
fn a_disk_that_is_full_where_the_host_works() {
    if !is_root() {
        return skipped("mounting needs root");
    }
    let lab = Tiny::default().lab();
    fs::create_dir_all(lab.path(".labbook/host")).expect("made");
    // Room for the program, and for less than a session wants.
    let Some(mount) = Mount::new(&lab.path(".labbook/host"), "size=90m") else { return };
    run(&lab).fails(5).says("KiB of disk are free");
    mount.remount("size=400m");
    run(&lab).success();
    assert_nothing_left(&lab);
    drop(mount);
}

/// `size` is full at different points: before anything is frozen, and while a session is sealed.
#[test]
fn a_disk_that_is_full_where_results_are_kept() {
    if !is_root() {
        return skipped("mounting needs root");
    }
    for size in ["size=8k", "size=64k", "size=300k"] {
        let lab = Tiny::default().lab();
        let Some(mount) = Mount::new(&lab.path("results"), size) else { return };
        run(&lab).fails(5).says("results").says("No space left");
        until("the host is done", || !lab.path("labbook-lease/owner").exists());
        mount.remount("size=64m");
        run(&lab).success().says("1 of 1 blocks complete");
        lab.run(&["check"]).success();
        assert_nothing_left(&lab);
        drop(mount);
    }
}

/// A small file system in memory, unmounted at the end.
struct Mount(PathBuf);

impl Mount {
    fn new(path: &Path, options: &str) -> Option<Self> {
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", options, "labbook-test"]).arg(path).status();
        if mounted.is_ok_and(|status| status.success()) {
            return Some(Self(path.to_owned()));
        }
        skipped("this machine mounts no tmpfs");
        None
    }

    fn remount(&self, options: &str) {
        let done = Command::new("mount").args(["-o", &format!("remount,{options}")]).arg(&self.0).status();
        assert!(done.expect("mount").success(), "remount {options}");
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// A runner that is stopped in the middle of something is neither dead nor done.
#[test]
fn a_runner_that_is_paused_is_waited_for() {
    let lab = Tiny::default().lab();
    let first = spawn(&lab, &["run", SPEC]);
    until("it runs", || lab.path("labbook-lease/owner").exists());
    let owner = lab.read("labbook-lease/owner");
    let runner: u32 = owner.split(' ').next().and_then(|pid| pid.parse().ok()).expect("a pid");
    signal(runner, Signal::STOP);
    std::thread::sleep(PATIENCE / 40);
    signal(runner, Signal::CONT);
    ended(first).success();
    assert_nothing_left(&lab);
}
