//! Experiments on a host over SSH: a real `sshd`, accounts with every kind of shell, and a link that breaks.
//!
//! `LABBOOK_CUT_S=30` is how long a link is cut (3 by default), `LABBOOK_CUT_POINTS=20` at how many moments a start is sent into a
//! cut link (3 by default).

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;

use super::bed::Bed;
use super::lab::{Lab, Told};
use super::tiny::{SPEC, Tiny, compare, edition, ended, events, folder_names, run, signal, spawn, until};
use crate::scripts::skipped;

fn number(variable: &str, default: u64) -> u64 {
    std::env::var_os(variable).and_then(|text| text.to_str()?.parse().ok()).unwrap_or(default)
}

fn tiny() -> Tiny<'static> {
    Tiny { levels: "[1]", ready: "60s", ..Tiny::default() }
}

fn look(lab: &Lab) -> Told {
    lab.run(&["try", SPEC, "--arm", "one", "--at", "1"])
}

/// Demands that every session of the user's only host folder ran once, is in the record once, and that nothing is left.
#[track_caller]
fn assert_whole(lab: &Lab, bed: &Bed, home: &str, host: &Path) {
    until("nothing of ours is alive", || bed.processes(home).is_empty());
    assert!(folder_names(&bed.path("lease")).is_empty(), "the lease is still held");
    assert!(folder_names(&host.join("incoming")).is_empty(), "{:?}", folder_names(&host.join("incoming")));
    let journal = fs::read_to_string(host.join("journal")).expect("a journal");
    let times =
        |event: &str, name: &str| journal.lines().filter(|line| line.contains(&format!(" {event} {name} "))).count();
    let queue = folder_names(&host.join("queue"));
    let sealed: Vec<String> = events(lab)
        .iter()
        .flat_map(|event| ["finished", "failed"].map(|word| event[word]["session"].as_str().map(str::to_owned)))
        .flatten()
        .collect();
    for entry in &queue {
        assert_eq!((times("session-start", entry), times("session-end", entry)), (1, 1), "{entry}:\n{journal}");
        assert_eq!(sealed.iter().filter(|name| **name == entry[5..]).count(), 1, "{entry} of {sealed:?}");
    }
    assert_eq!(sealed.len(), queue.len(), "{sealed:?} of {queue:?}");
    lab.run(&["check"]).success();
}

fn only_folder(bed: &Bed, home: &str) -> PathBuf {
    let mut folders = bed.host_folders(home);
    assert_eq!(folders.len(), 1, "{folders:?}");
    folders.remove(0)
}

/// What a comparison says apart from its numbers.
fn cells(compared: &Value) -> Vec<String> {
    let conditions = compared["conditions"].as_array().expect("conditions");
    let cell = |each: &Value| {
        format!(
            "{} {} {} {} {}",
            each["metric"], each["concurrency"], each["treatment"], each["outcome"], each["verdict"]
        )
    };
    conditions
        .iter()
        .map(cell)
        .chain([compared["outcome"].to_string(), compared["claims"]["same"]["verdict"].to_string()])
        .collect()
}

#[test]
fn an_experiment_as_a_user_with_fish_gives_the_cells_of_a_local_one() {
    let Some(bed) = Bed::start() else { return };
    let shell = "/usr/bin/fish";
    if !Path::new(shell).is_file() {
        return skipped("no fish on this machine (Debian package fish)");
    }
    let user = bed.user(shell, "h", "");
    let lab = bed.lab(&Tiny { repeats: 3, ..tiny() }, &user);
    run(&lab).success().says("3 of 3 blocks complete").says("Host there");
    assert_whole(&lab, &bed, "h", &only_folder(&bed, "h"));
    let (status, there) = compare(&lab);
    let here = Tiny { repeats: 3, ..tiny() }.lab();
    run(&here).success();
    let (status_here, local) = compare(&here);
    assert_eq!((status, cells(&there)), (status_here, cells(&local)), "{there:#}");
    assert_eq!(there["outcome"], "comparable", "{there:#}");
    let names = |lab: &Lab| {
        let session = format!("{}/b01-one/c0001-p1", edition(lab));
        lab.files(&session).iter().map(|path| path.display().to_string()).collect::<Vec<_>>()
    };
    assert_eq!(names(&lab), names(&here), "a run has the same files");
    run(&lab).success().does_not_say("launches finished; 0");
}

#[test]
fn setup_runs_there_and_doctor_looks_there() {
    let Some(bed) = Bed::start() else { return };
    let user = bed.user("/usr/bin/fish", "h h", "");
    let lab = bed.lab(&tiny(), &user);
    let hosts = fs::read_to_string(lab.path("labbook.yaml")).expect("hosts");
    let with = |setup: &str| lab.write("labbook.yaml", &hosts.replace(" }\n", &format!(", setup: \"{setup}\" }}\n")));
    with("echo about to fail; false");
    look(&lab).fails(5).says("`setup:` of host `there` ended with code 1").says("about to fail");
    with("export SITE='a  b'");
    look(&lab).success();
    assert_whole(&lab, &bed, "h h", &only_folder(&bed, "h h"));
    let facts = lab.run(&["show", "tiny", "--format", "json"]).success().json();
    let id = facts[0]["id"].as_str().expect("a run").to_owned();
    lab.run(&["show", &id]).success().says("server.env.SITE");
    let told = lab.run(&["doctor", "there", "--format", "json"]).success().json();
    assert_eq!((&told["via"], &told["ready"]), (&"ssh".into(), &true.into()), "{told:#}");
    lab.run(&["doctor", "there"]).success().says("1 of a spec, 0 stale");
}

/// One launch over SSH: installs, uploads, queues, starts, reads, fetches.
fn account(shell: &str, home: &str, bashrc: &str) {
    let Some(bed) = Bed::start() else { return };
    if !Path::new(shell).is_file() {
        return skipped(&format!("no {shell} on this machine"));
    }
    let user = bed.user(shell, home, bashrc);
    let lab = bed.lab(&tiny(), &user);
    look(&lab).success();
    assert_whole(&lab, &bed, home, &only_folder(&bed, home));
}

#[test]
fn account_with_bash() {
    account("/bin/bash", "h", "");
}

#[test]
fn account_with_dash() {
    account("/bin/dash", "h", "");
}

#[test]
fn account_with_zsh() {
    account("/usr/bin/zsh", "h", "");
}

#[test]
fn account_with_fish() {
    account("/usr/bin/fish", "h", "");
}

#[test]
fn account_with_tcsh() {
    account("/usr/bin/tcsh", "h", "");
}

#[test]
fn account_with_a_noisy_bashrc() {
    account("/bin/bash", "h", "echo '*** Welcome ***'; echo quota >&2; printf 'labbook-start- and no newline'\n");
}

#[test]
fn account_with_a_slow_bashrc() {
    account("/bin/bash", "h", "sleep 2\n");
}

#[test]
fn account_with_a_restricted_bash() {
    account("/bin/rbash", "h", "");
}

#[test]
fn account_with_an_odd_path() {
    account("/bin/bash", "h", "export PATH=/opt/only\n");
}

#[test]
fn account_with_blanks_and_quotes_in_its_home() {
    account("/bin/bash", "it's $HOME \"here\"", "");
}

#[test]
fn a_host_behind_a_jump_host() {
    let Some(bed) = Bed::start() else { return };
    let user = bed.user("/bin/bash", "h", "");
    let lab = bed.lab(&tiny(), &user);
    bed.write("jump", &bed.config("known", "id", &format!("Host behind\nProxyJump {user}@jump\n")));
    bed.reach(&lab, &format!("{user}@behind"), "jump");
    look(&lab).success();
}

#[test]
fn an_account_that_runs_no_commands_is_told_with_its_words() {
    let Some(bed) = Bed::start() else { return };
    for (shell, home, bashrc, said) in [
        ("/usr/sbin/nologin", "a", "", "This account is currently not available."),
        (
            "/bin/bash",
            "b",
            "echo 'interactive use only'; exit 3\n",
            "ended with code 3 and said `interactive use only`",
        ),
    ] {
        let user = bed.user(shell, home, bashrc);
        let lab = bed.lab(&tiny(), &user);
        look(&lab).fails(5).says("the account runs no commands").says(said).says("~/.bashrc");
        lab.run(&["status", SPEC]).fails(5).says(said).says("what runs there");
        assert!(bed.host_folders(home).is_empty());
    }
}

#[test]
fn a_host_that_cannot_be_trusted_or_does_not_trust_us_is_refused_with_the_remedy() {
    let Some(bed) = Bed::start() else { return };
    let user = bed.user("/bin/bash", "h", "");
    let lab = bed.lab(&tiny(), &user);
    let refused = |config: &str, what: &str, remedy: &str| {
        bed.write("bad", config);
        bed.reach(&lab, &format!("{user}@bed"), "bad");
        run(&lab).fails(5).says(what).says(remedy);
    };
    refused(&bed.config("nobody", "id", ""), "its host key is not known here", "compare the fingerprint");
    let other = fs::read_to_string(bed.path("other.pub")).expect("a key");
    bed.write("moved", &format!("[127.0.0.1]:{} {other}", bed.link.port));
    refused(&bed.config("moved", "id", ""), "its host key is not the one that is known here", "ssh-keygen -R");
    refused(&bed.config("known", "other", ""), "it accepts no key that ssh offers", "ssh-copy-id");
    refused(&bed.config("known", "id", "NoSuchOption yes\n"), "ssh cannot be used", "nosuchoption");
    refused(&bed.config("known", "id", "Host bed\nPort 1\n"), "there is no connection to it", "address:");
    bed.reach(&lab, "no-such-host.invalid", "/dev/null");
    run(&lab).fails(5).says("its name cannot be resolved");
    assert!(bed.host_folders("h").is_empty());
    lab.write("labbook.yaml", "hosts:\n  there: { via: ssh, address: -oProxyCommand=touch }\n");
    run(&lab).fails(2).says("a destination of `ssh`");
}

#[test]
fn a_run_is_left_found_again_and_stopped() {
    let Some(bed) = Bed::start() else { return };
    let user = bed.user("/bin/bash", "h", "");
    let lab = bed.lab(&Tiny { args: ", fault: \"slow-start=2\"", repeats: 2, ..tiny() }, &user);
    lab.run(&["run", SPEC, "--detach"]).success().says("the runner goes on");
    let host = only_folder(&bed, "h");
    until("a session runs", || {
        folder_names(&host.join("queue")).iter().any(|name| host.join("queue").join(name).join("out").exists())
    });
    let told = lab.run(&["status", SPEC, "--format", "json"]).success().json();
    assert_eq!(told[0]["runner_lives"], Value::Bool(true), "{told}");
    lab.run(&["stop", SPEC]).success().says("stopped");
    let told = lab.run(&["status", SPEC, "--format", "json"]).success().json();
    assert_eq!(told[0]["runner_lives"], Value::Bool(false), "{told}");
    run(&lab).success().says("2 of 2 blocks complete");
    assert_whole(&lab, &bed, "h", &host);
    lab.run(&["attach", SPEC]).success().says("nothing of `tiny` is under way");
}

#[test]
fn labbook_dies_in_the_middle_and_the_next_one_brings_everything_home() {
    let Some(bed) = Bed::start() else { return };
    let user = bed.user("/bin/bash", "h", "");
    let lab = bed.lab(&Tiny { repeats: 2, ..tiny() }, &user);
    let first = spawn(&lab, &["run", SPEC]);
    until("a session is over", || {
        bed.host_folders("h")
            .iter()
            .any(|host| fs::read_to_string(host.join("journal")).is_ok_and(|text| text.contains("session-end")))
    });
    signal(first.id(), Signal::KILL);
    ended(first);
    run(&lab).success().says("2 of 2 blocks complete");
    assert_whole(&lab, &bed, "h", &only_folder(&bed, "h"));
}

/// Runs while the link is cut as soon as a session is over.
fn with_a_cut(cut: fn(&Bed)) -> (Bed, Lab, Told) {
    let bed = Bed::start().expect("it was asked before");
    let user = bed.user("/bin/bash", "h", "");
    let lab = bed.lab(&Tiny { args: ", fault: \"slow-start=1\"", repeats: 3, ..tiny() }, &user);
    let running = spawn(&lab, &["run", SPEC]);
    until("a session runs", || {
        bed.host_folders("h")
            .iter()
            .any(|host| fs::read_to_string(host.join("journal")).is_ok_and(|text| text.contains("session-start")))
    });
    cut(&bed);
    std::thread::sleep(Duration::from_secs(number("LABBOOK_CUT_S", 3)));
    bed.link.heal();
    let told = ended(running);
    (bed, lab, told)
}

#[test]
fn a_link_that_breaks_is_waited_for() {
    if Bed::start().is_none() {
        return;
    }
    let (bed, lab, told) = with_a_cut(|bed| bed.link.cut());
    told.success().says("LOST").says("goes on by itself").says("BACK").says("3 of 3 blocks complete");
    assert_whole(&lab, &bed, "h", &only_folder(&bed, "h"));
}

#[test]
fn a_link_that_falls_silent_is_waited_for() {
    if Bed::start().is_none() {
        return;
    }
    let (bed, lab, told) = with_a_cut(|bed| bed.link.freeze());
    told.success().says("3 of 3 blocks complete");
    assert_whole(&lab, &bed, "h", &only_folder(&bed, "h"));
}

/// What is sent into a cut link arrives when it is healed, after its sender was given up: whatever that was, nothing is lost,
/// doubled or left.
#[test]
#[expect(clippy::print_stderr, reason = "how often a command was cut in two is part of the result")]
fn a_start_into_a_cut_link_loses_and_doubles_nothing() {
    let Some(bed) = Bed::start() else { return };
    let points = number("LABBOOK_CUT_POINTS", 3);
    // What an undisturbed start sends: the programs, two sessions, the start.
    let user = bed.user("/bin/bash", "measured", "");
    let lab = bed.lab(&tiny(), &user);
    look(&lab).success();
    let before = bed.link.sent();
    lab.run(&["run", SPEC, "--detach"]).success();
    let bytes = bed.link.sent() - before;
    run(&lab).success();
    let mut frozen = 0;
    for point in 0..points {
        let home = format!("h{point}");
        let user = bed.user("/bin/bash", &home, "");
        let lab = bed.lab(&tiny(), &user);
        look(&lab).success();
        let host = only_folder(&bed, &home);
        // Evenly spread, and moved a little by a generator with a fixed seed.
        let seed = (point + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33;
        bed.link.freeze_after(bytes * point / points + seed % (bytes / points).max(1));
        let mut sender = spawn(&lab, &["run", SPEC, "--detach"]);
        until("the link is cut, or all was sent", || {
            bed.link.is_frozen() || sender.try_wait().expect("a child").is_some()
        });
        frozen += usize::from(bed.link.is_frozen());
        std::thread::sleep(Duration::from_millis(100));
        signal(sender.id(), Signal::KILL);
        ended(sender);
        bed.link.heal();
        run(&lab).success().says("1 of 1 blocks complete");
        assert_whole(&lab, &bed, &home, &host);
    }
    eprintln!("{frozen} of {points} starts were cut in two, within {bytes} bytes");
    assert!(frozen as u64 * 2 >= points, "only {frozen} of {points} were cut");
}

/// An archive with one file, and one entry as a hostile host would send it.
fn hostile_archive(name: &str, kind: tar::EntryType) -> Vec<u8> {
    let mut header = tar::Header::new_gnu();
    header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
    header.set_entry_type(kind);
    header.set_link_name("/etc/passwd").expect("short");
    header.set_size(0);
    header.set_mode(0o666);
    header.set_cksum();
    let mut archive = header.as_bytes().to_vec();
    archive.extend([0; 1024]);
    archive
}

#[test]
fn hostile_content_is_refused_and_nothing_of_it_is_kept() {
    let Some(bed) = Bed::start() else { return };
    let home = bed.path("home/h");
    let user = bed.user("/bin/bash", "h", &format!("export PATH={}/bin:$PATH\n", home.display()));
    let lab = bed.lab(&tiny(), &user);
    fs::create_dir(home.join("bin")).expect("a folder");
    let archive = home.join("archive");
    for (name, kind) in [
        ("out/link", tar::EntryType::Symlink),
        ("../../../../x", tar::EntryType::Regular),
        ("/tmp/labbook-hostile", tar::EntryType::Regular),
        ("out/device", tar::EntryType::Char),
    ] {
        fs::write(&archive, hostile_archive(name, kind)).expect("written");
        let tar = home.join("bin/tar");
        let text = "#!/bin/sh\ncase $1 in -cf) exec cat \"$HOME/archive\" ;; *) exec /bin/tar \"$@\" ;; esac\n";
        fs::write(&tar, text).expect("written");
        fs::set_permissions(&tar, std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("executable");
        run(&lab).fails(5).says("what it sent is refused").says(name);
        assert!(!folder_names(&lab.path(&edition(&lab))).iter().any(|name| name.starts_with('b')), "nothing is kept");
        assert!(lab.files("").iter().all(|path| path.file_name().is_none_or(|name| name != "x")));
        assert!(!Path::new("/tmp/labbook-hostile").exists());
    }
    fs::remove_file(home.join("bin/tar")).expect("removed");
    run(&lab).success().says("1 of 1 blocks complete");
    assert_whole(&lab, &bed, "h", &only_folder(&bed, "h"));
}
