//! Failures are data: whatever a server or a client does wrong is named, recorded, and leaves nothing behind.

use std::fs;

use serde_json::Value;

use super::lab::{Lab, Told};
use super::tiny::{
    Tiny, add_words, assert_nothing_left, compare, edition, events, folder_names, queue_only, queued, reasons,
    refused_for, replace_words, run,
};

/// One arm without and one with a fault of its server.
fn with_fault(arms: &str) -> Lab {
    Tiny { factor: "server.args.fault", arms, prompts: 4, ready: "3s", ..Tiny::default() }.lab()
}

/// The sessions that failed, with their reasons, as the ledger has them.
fn failed(lab: &Lab) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let events = events(lab);
    let failed = events.iter().filter_map(|event| event.get("failed"));
    failed.map(|failed| (text(&failed["session"]), text(&failed["reason"]))).collect()
}

/// A server that is never ready: twice alike, and the plan stops.
fn never_ready(arms: &str, reason: &str) -> Told {
    let lab = with_fault(arms);
    let told = run(&lab).fails(5).says("FAILED").says(reason).says("failed twice alike").says("recorded as failed run");
    let failed = failed(&lab);
    assert_eq!(failed.len(), 2, "{failed:?}");
    assert!(failed.iter().all(|(session, why)| session.contains("other") && why.contains(reason)), "{failed:?}");
    let shown = lab.run(&["show", "tiny"]).success().says("failed");
    assert!(shown.out.contains(reason), "{}", shown.out);
    lab.run(&["status"]).success().says(reason);
    assert_nothing_left(&lab);
    lab.run(&["check"]).success();
    told
}

#[test]
fn a_server_that_runs_out_of_memory() {
    never_ready("one: unset, other: oom", "ready").says("torch.OutOfMemoryError");
}

#[test]
fn a_server_that_hangs() {
    never_ready("one: unset, other: hang", "not ready within 3 s").says("| ");
}

#[test]
fn a_server_that_exits() {
    never_ready("one: unset, other: exit", "ready").says("Load weight begin");
}

#[test]
fn a_server_that_is_ready_too_late() {
    never_ready("one: unset, other: slow-start=9", "not ready within 3 s");
}

#[test]
fn a_server_that_is_ready_late_but_in_time() {
    let lab = Tiny { factor: "server.args.fault", arms: "one: unset, other: slow-start=0.5", ..Tiny::default() }.lab();
    run(&lab).success();
}

#[test]
fn an_arm_that_fails_its_prime_stops_the_plan() {
    let lab =
        Tiny { factor: "server.args.fault", arms: "one: unset, other: exit", more: "prime: always", ..Tiny::default() }
            .lab();
    run(&lab).fails(5).says("failed its prime");
    assert!(failed(&lab).iter().all(|(session, _)| session.starts_with("prime-other")), "{:?}", failed(&lab));
    assert!(!folder_names(&lab.path(&edition(&lab))).iter().any(|name| name.starts_with("b0")), "no block was begun");
    assert_nothing_left(&lab);
}

#[test]
fn a_server_that_dies_while_it_is_measured() {
    // It dies in its first trial, whichever level the order of this edition begins with: no level has whole runs.
    let lab = with_fault("one: unset, other: crash-after=3");
    run(&lab).fails(5).says("FAILED").says("b01-other");
    assert!(failed(&lab).iter().all(|(_, why)| why.contains("trial")), "{:?}", failed(&lab));
    // Whether the client still wrote a row, and of which level, depends on who was faster: no level may have a number.
    let compared = refused_for(&lab, "run.outcome");
    let conditions = compared["conditions"].as_array().expect("conditions");
    assert!(conditions.iter().all(|condition| condition["effect"].is_null()), "{compared:#}");
    assert_nothing_left(&lab);
}

#[test]
fn a_client_that_ends_with_an_error() {
    let lab = Tiny::default().lab();
    let host = queue_only(&lab);
    let trials = queued(&host, "b01-other").join("trials");
    let last = folder_names(&trials).pop().expect("a trial");
    add_words(&trials.join(last).join("argv"), &["--no-such-flag"]);
    // The block is tried again as a whole, with a client that is as planned.
    run(&lab).success().says("FAILED").says("ended with code").says("AGAIN");
    let failed = failed(&lab);
    assert!(
        matches!(failed.as_slice(), [(session, why)] if session == "b01-other" && why.contains("client")),
        "{failed:?}"
    );
    let folder = lab.path(&edition(&lab));
    assert!(folder.join("b01-one.2").exists() && folder.join("b01-other.2").exists(), "both arms again");
    let (_, compared) = compare(&lab);
    assert_eq!(compared["outcome"], "exploratory", "{compared:#}");
}

#[test]
fn a_client_that_does_not_end_within_its_time() {
    let lab = Tiny { more: "prime: never\ntimeout: 2s\nretry: 0", ..Tiny::default() }.lab();
    let host = queue_only(&lab);
    let trials = queued(&host, "b01-other").join("trials");
    let first = folder_names(&trials).remove(0);
    replace_words(&trials.join(first).join("argv"), &["sleep", "100"]);
    run(&lab).fails(5).says("FAILED").says("124");
    assert_nothing_left(&lab);
    run(&lab).success();
}

#[test]
fn answers_that_end_early_block() {
    let lab = with_fault("one: unset, other: early-eos");
    run(&lab).success();
    refused_for(&lab, "S15");
}

#[test]
fn requests_that_fail_block() {
    for fault in ["error-in-stream", "http-500", "drop", "empty-stream"] {
        let lab = with_fault(&format!("one: unset, other: {fault}"));
        let told = run(&lab);
        assert!(told.status == 0 || told.status == 5, "{fault}: {}{}", told.out, told.err);
        let (status, compared) = compare(&lab);
        assert_eq!(status, 3, "{fault}: {compared:#}");
        assert!(reasons(&compared).iter().any(|name| name == "S14"), "{fault}: {compared:#}");
        assert_nothing_left(&lab);
    }
}

#[test]
fn a_flush_that_is_refused() {
    let more = "prime: never\nretry: 0";
    let arms = "one: unset, other: flush-refused";
    let lab = Tiny { factor: "server.args.fault", arms, levels: "[1]", more, ..Tiny::default() }.lab();
    run(&lab).success();
    refused_for(&lab, "workload.flush_status");
    assert_nothing_left(&lab);
}

#[test]
fn a_server_that_ignores_the_signal_to_end() {
    let lab = Tiny { args: ", fault: ignore-term", ..Tiny::default() }.lab();
    let host = queue_only(&lab);
    for entry in folder_names(&host.join("queue")) {
        // Not a minute each: the spec has no word for it.
        let limits = host.join("queue").join(entry).join("limits");
        let text = fs::read_to_string(&limits).expect("limits");
        let short: String = text
            .lines()
            .map(|line| if line.starts_with("stop ") { "stop 1\n".to_owned() } else { format!("{line}\n") })
            .collect();
        fs::write(&limits, short).expect("written");
    }
    run(&lab).success();
    assert_nothing_left(&lab);
    assert_eq!(lab.read(&format!("{}/b01-one/raw/how", edition(&lab))).trim(), "kill");
}

#[test]
fn a_server_that_leaves_a_child_behind() {
    let lab = Tiny { args: ", fault: orphan", ..Tiny::default() }.lab();
    run(&lab).success();
    assert_nothing_left(&lab);
}

#[test]
fn results_that_are_not_what_one_run_writes() {
    let shapes: [(&str, &str); 5] = [
        ("nothing", ": >bench.jsonl"),
        ("half a row", "\"$@\" && head -c 200 bench.jsonl >half && mv half bench.jsonl"),
        ("two rows", "\"$@\" && cp bench.jsonl one && cat one >>bench.jsonl && rm one"),
        ("another's row", "echo '{\"hello\": [1, 2], \"duration\": \"long\"}' >bench.jsonl"),
        ("no text", "printf '\\377\\376\\000' >bench.jsonl"),
    ];
    for (name, script) in shapes {
        let lab = Tiny { more: "prime: never\nretry: 0", levels: "[1]", ..Tiny::default() }.lab();
        let host = queue_only(&lab);
        let trials = queued(&host, "b01-other").join("trials");
        let argv = trials.join(folder_names(&trials).remove(0)).join("argv");
        let mut wrapped = vec!["sh".to_owned(), "-c".to_owned(), script.to_owned(), "sh".to_owned()];
        wrapped.extend(super::tiny::words(&argv));
        replace_words(&argv, &wrapped.iter().map(String::as_str).collect::<Vec<_>>());
        let told = run(&lab);
        assert!(matches!(told.status, 0 | 5), "{name}: {} {}{}", told.status, told.out, told.err);
        let (status, compared) = compare(&lab);
        assert_eq!(status, 3, "{name}: {compared:#}");
        assert!(!reasons(&compared).is_empty(), "{name}: {compared:#}");
        lab.run(&["compare", "tiny"]).fails(3);
        lab.run(&["show", "tiny"]).success();
        lab.run(&["check"]).success();
    }
}
