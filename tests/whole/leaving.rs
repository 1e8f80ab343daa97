//! Leaving and coming back: Ctrl-C, attach, stop, status, looks, more blocks, and what the command line itself promises.

use std::process::{Command, Stdio};

use rustix::process::Signal;

use super::lab::Lab;
use super::tiny::{SPEC, Tiny, assert_nothing_left, edition, ended, events, folder_names, run, signal, spawn, until};

fn under_way(lab: &Lab) -> bool {
    let status = lab.run(&["status", SPEC, "--format", "json"]).success().json();
    status[0]["running"].is_string()
}

#[test]
fn ctrl_c_leaves_and_the_runner_goes_on() {
    let lab = Tiny { repeats: 2, ..Tiny::default() }.lab();
    lab.run(&["status", SPEC]).success().says("0 launches finished");
    lab.run(&["attach", SPEC]).success().says("nothing of `tiny` is under way");
    let first = spawn(&lab, &["run", SPEC]);
    until("a session runs", || under_way(&lab));
    lab.run(&["status"]).success().says("running");
    signal(first.id(), Signal::INT);
    ended(first).fails(130).says("the runner goes on").says(&format!("labbook attach {SPEC}"));
    let status = lab.run(&["status", SPEC, "--format", "json"]).success().json();
    assert_eq!(status[0]["runner_lives"], true, "{status:#}");

    lab.run(&["attach", SPEC]).success().says("2 of 2 blocks complete").says("claims");
    let status = lab.run(&["status", SPEC, "--format", "json"]).success().json();
    assert_eq!((&status[0]["finished"], &status[0]["runner_lives"]), (&4.into(), &false.into()), "{status:#}");
    lab.run(&["status"]).success().says("4 launches finished, 0 failed, 0 open");
    assert_nothing_left(&lab);
}

#[test]
fn detach_returns_at_once_and_run_picks_up() {
    let lab = Tiny::default().lab();
    lab.run(&["run", SPEC, "--detach"]).success().says("labbook attach");
    until("nobody at home is needed", || {
        !lab.path("labbook-lease/owner").exists() && {
            let status = lab.run(&["status", SPEC, "--format", "json"]).success().json();
            status[0]["runner_lives"] == false
        }
    });
    assert_nothing_left(&lab);
    run(&lab).success().says("1 of 1 blocks complete");
    assert_eq!(events(&lab).iter().filter(|event| event.get("finished").is_some()).count(), 2);
}

#[test]
fn stop_stops_and_run_goes_on_with_what_is_missing() {
    let lab = Tiny { repeats: 2, ..Tiny::default() }.lab();
    lab.run(&["stop", SPEC]).success().says("nothing of `tiny` is running");
    lab.run(&["run", SPEC, "--detach"]).success();
    until("a session runs", || under_way(&lab));
    lab.run(&["stop", SPEC]).success().says("stopped");
    assert_nothing_left(&lab);
    run(&lab).success().says("2 of 2 blocks complete");
    assert_nothing_left(&lab);
    lab.run(&["check"]).success();
}

#[test]
fn stop_while_another_follows() {
    let lab = Tiny { repeats: 2, ..Tiny::default() }.lab();
    let first = spawn(&lab, &["run", SPEC]);
    until("a session runs", || under_way(&lab));
    lab.run(&["stop", SPEC]).success().says("stopped");
    ended(first).fails(5).says("stopped on request");
    assert_nothing_left(&lab);
    run(&lab).success().says("2 of 2 blocks complete");
}

#[test]
fn a_look_ends_by_naming_the_nearest_run() {
    let lab = Tiny::default().lab();
    lab.run(&["try", SPEC, "--arm", "other", "--at", "2"]).success();
    run(&lab).success();
    let told = lab.run(&["try", SPEC, "--arm", "other", "--at", "2", "--format", "json"]).success();
    let last = told.out.rfind("\n{\n").map_or(told.out.as_str(), |at| &told.out[at..]);
    let look: serde_json::Value =
        serde_json::from_str(last).unwrap_or_else(|trouble| panic!("{trouble}: {}", told.out));
    assert_eq!(look["tier"], "look");
    assert!(look["nearest"]["one"]["run"].is_string(), "{look:#}");
    lab.run(&["try", SPEC, "--arm", "other", "--at", "2"]).success().says("b01-other");
    lab.run(&["try", SPEC, "--arm", "nobody", "--at", "2"]).fails(2).says("one, other");
    lab.run(&["try", SPEC, "--arm", "other", "--at", "many"]).fails(2).says("not a level");
    // Looks are recorded, and never part of a comparison.
    let looks: Vec<String> =
        folder_names(&lab.path(&edition(&lab))).into_iter().filter(|name| name.starts_with("look-")).collect();
    assert_eq!(looks, ["look-other-c0002", "look-other-c0002.2", "look-other-c0002.3"]);
    let shown = lab.run(&["compare", "tiny", "--format", "json"]).success().json();
    assert_eq!(shown["conditions"].as_array().map(Vec::len), Some(2));
    lab.run(&["check"]).success();
    assert_nothing_left(&lab);
}

#[test]
fn a_look_that_was_left_is_brought_home_later() {
    let lab = Tiny::default().lab();
    let look = spawn(&lab, &["try", SPEC, "--arm", "other", "--at", "3"]);
    until("the look runs", || lab.path("labbook-lease/owner").exists());
    signal(look.id(), Signal::INT);
    ended(look).fails(130).says("brought home");
    run(&lab).success().says("1 of 1 blocks complete");
    let names = folder_names(&lab.path(&edition(&lab)));
    assert!(names.contains(&"look-other-c0003".to_owned()), "{names:?}");
    lab.run(&["check"]).success();
}

#[test]
fn a_look_that_fails_says_so() {
    let lab = Tiny { factor: "server.args.fault", arms: "one: unset, other: exit", ..Tiny::default() }.lab();
    lab.run(&["try", SPEC, "--arm", "other", "--at", "1"])
        .fails(5)
        .says("`look-other-c0001` failed")
        .does_not_say("prime");
    lab.run(&["try", SPEC, "--arm", "one", "--at", "1"]).success();
    assert_nothing_left(&lab);
}

#[test]
fn blocks_are_added_and_done_again() {
    let lab = Tiny::default().lab();
    run(&lab).success();
    lab.run(&["run", SPEC, "--redo", "1"]).fails(2).says("--because");
    lab.run(&["run", SPEC, "--redo", "7", "--because", "no such block"]).fails(2).says("the plan has 1");
    lab.run(&["run", SPEC, "--redo", "1", "--because", "a neighbour was loud"]).success();
    let names = folder_names(&lab.path(&edition(&lab)));
    assert!(names.contains(&"b01-one.2".to_owned()) && names.contains(&"b01-one".to_owned()), "{names:?}");
    lab.run(&["show", "tiny"]).success().says("superseded: a neighbour was loud");
    lab.run(&["run", SPEC, "--more", "1"]).success().says("2 of 2 blocks complete");
    let shown = lab.run(&["compare", "tiny", "--format", "json"]).success().json();
    assert_eq!(shown["conditions"][0]["effect"]["blocks"], 2, "{shown:#}");
    run(&lab).success().says("0 launches").says("2 of 2 blocks complete");
    lab.run(&["check"]).success();
}

#[test]
fn events_are_one_object_a_line() {
    let lab = Tiny::default().lab();
    let told = lab.run(&["run", SPEC, "--format", "json"]).success();
    let events: Vec<serde_json::Value> = told
        .out
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|trouble| panic!("{trouble}: {line}")))
        .collect();
    let names: Vec<&str> = events.iter().filter_map(|event| event["event"].as_str()).collect();
    for name in ["plan", "host", "session", "ready", "trial", "sealed", "done"] {
        assert!(names.contains(&name), "{name} in {names:?}");
    }
    assert_eq!(names.iter().filter(|name| **name == "trial").count(), 4);
}

#[test]
fn every_command_has_help_with_an_example() {
    let lab = Lab::new();
    let commands = [
        "init",
        "check",
        "plan",
        "schema",
        "run",
        "try",
        "status",
        "attach",
        "stop",
        "show",
        "compare",
        "import",
        "completions",
    ];
    let help = lab.run(&["--help"]).success();
    for command in commands {
        assert!(help.out.contains(command), "{command} in {}", help.out);
        let told = lab.run(&[command, "--help"]).success().says("Usage:").says("xample");
        assert!(told.out.lines().all(|line| line.chars().count() <= 100), "{command}: {}", told.out);
    }
    lab.run(&["pocket", "--help"]).success();
    lab.run(&["pocket", "serve", "--help"]).success();
    lab.run(&["pocket", "load", "--help"]).success();
    lab.run(&["frobnicate"]).fails(2);
    lab.run(&[]).fails(2);
}

#[test]
fn plans_schemas_and_completions() {
    let lab = Tiny { repeats: 3, ..Tiny::default() }.lab();
    let told = lab.run(&["plan", SPEC, "--commands"]).success().says("pocket serve").says("--moe-runner-backend");
    assert!(!told.out.contains('\u{1b}'));
    let plan = lab.run(&["plan", SPEC, "--format", "json"]).success().json();
    assert!(plan["cost_s"].is_object() && plan["resolvable_effect"].is_number(), "{plan:#}");
    assert!(!lab.path("results/tiny").exists() && !lab.path(".labbook").exists(), "a plan starts nothing");
    for arguments in [&["schema"][..], &["schema", "--lab"]] {
        assert!(lab.run(arguments).success().json()["$schema"].is_string());
    }
    for shell in ["bash", "zsh", "fish"] {
        lab.run(&["completions", shell]).success().says("labbook");
    }
    for spec in ["quickstart", "tiny"] {
        lab.run(&["check", &format!("experiments/{spec}.yaml")]).success();
    }
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let lab = Lab::new();
    let binary = env!("CARGO_BIN_EXE_labbook");
    for arguments in ["schema", "completions bash", "--help", "plan experiments/quickstart.yaml --format json"] {
        let output = Command::new("sh")
            .args(["-c", &format!("{{ \"$0\" {arguments}; echo \"status $?\" >&2; }} | head -1 >/dev/null"), binary])
            .current_dir(lab.path(""))
            .stdin(Stdio::null())
            .output()
            .expect("a shell");
        let err = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!err.contains("panicked"), "{arguments}: {err}");
        assert!(err.contains("status 0") || err.contains("status 141"), "{arguments}: {err}");
    }
}
