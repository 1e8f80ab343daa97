//! From a spec to a verdict, and from a verdict back to the bytes it rests on.

use std::fs;
use std::process::Command;

use serde_json::Value;

use super::lab::Lab;
use super::tiny::{SPEC, Tiny, assert_nothing_left, compare, edition, events, run};

fn ids(lab: &Lab) -> Vec<Value> {
    lab.run(&["show", "tiny", "--format", "json"]).success().json().as_array().expect("a list").clone()
}

#[test]
fn a_run_ends_with_a_verdict_and_running_again_does_nothing() {
    let lab = Tiny { repeats: 2, ..Tiny::default() }.lab();
    let told = run(&lab).success().says("2 of 2 blocks complete").says("claims").says("same");
    assert!(told.out.contains("output_throughput"), "the verdict is data: {}", told.out);
    assert!(!told.out.contains('\u{1b}') && !told.err.contains('\u{1b}'), "no escape codes where nobody watches");
    assert_nothing_left(&lab);

    let before = lab.files("results");
    let told = run(&lab).success().says("0 launches");
    assert!(told.out.contains("claims"), "{}", told.out);
    assert_eq!(lab.files("results"), before, "nothing was added");
    assert_eq!(events(&lab).iter().filter(|event| event.get("finished").is_some()).count(), 4);

    // The real tool, on the real files: its output is the id by which the run is known.
    for run in ids(&lab) {
        let folder =
            format!("{}/{}/{}", edition(&lab), run["session"].as_str().unwrap(), run["trial"].as_str().unwrap());
        let output = Command::new("sha256sum").arg(lab.path(&folder).join("run.json")).output().expect("sha256sum");
        let printed = String::from_utf8(output.stdout).expect("text");
        let id = run["id"].as_str().expect("an id");
        assert_eq!(printed.split(' ').next(), Some(id), "{folder}");
        lab.run(&["show", &id[..12], "--format", "json"]).success().says(id);
    }
}

#[test]
fn compare_speaks_the_stable_form() {
    let lab = Tiny::default().lab();
    lab.run(&["compare", SPEC]).fails(3).says("labbook run");
    run(&lab).success();
    let (status, compared) = compare(&lab);
    assert_eq!(status, 0, "{compared:#}");
    assert_eq!(keys(&compared), ["experiment", "edition", "rules", "outcome", "conditions", "claims", "headline"]);
    assert_eq!(compared["experiment"], "tiny");
    assert!(edition(&lab).ends_with(compared["edition"].as_str().expect("an edition")));
    assert_eq!(compared["outcome"], "exploratory", "one block has no right to a verdict: {compared:#}");
    let conditions = compared["conditions"].as_array().expect("a list");
    assert_eq!(conditions.len(), 2, "one metric, one treatment, two levels");
    for (condition, level) in conditions.iter().zip([1, 2]) {
        let known = ["control", "treatment", "metric", "concurrency", "outcome", "reasons", "effect", "verdict"];
        assert_eq!(keys(condition), known);
        assert_eq!(condition["concurrency"], level);
        assert_eq!(keys(&condition["effect"]), ["ratio", "low", "high", "blocks", "p", "p_holm"]);
        for reason in condition["reasons"].as_array().expect("a list") {
            assert_eq!(keys(reason), ["name", "severity", "blocks", "message", "help"]);
        }
    }
    assert_eq!(compared["claims"]["same"]["verdict"], "exploratory");
    assert_eq!(keys(&compared["headline"]), ["metric", "treatment", "verdict", "effect"]);
    lab.run(&["compare", "tiny", "--require-verdict"]).fails(4);
}

fn keys(value: &Value) -> Vec<&str> {
    value.as_object().map(|object| object.keys().map(String::as_str).collect()).unwrap_or_default()
}

#[test]
fn one_flipped_byte_is_found_with_the_claims_that_rest_on_it() {
    let lab = Tiny::default().lab();
    run(&lab).success();
    lab.run(&["check"]).success().says("as sealed");
    let edition = edition(&lab);
    let session = format!("{edition}/b01-other");
    let pick = |ending: &str| {
        let found = lab.files(&edition).into_iter().find(|path| path.to_string_lossy().ends_with(ending));
        format!("{edition}/{}", found.unwrap_or_else(|| panic!("no {ending}")).display())
    };
    let ledger = lab.files(&format!("{edition}/ledger"));
    let finished =
        ledger.iter().find(|name| name.to_string_lossy().contains("finished")).expect("an event").display().to_string();
    let planned =
        ledger.iter().find(|name| name.to_string_lossy().contains("planned")).expect("an event").display().to_string();
    let of_the_session = [
        format!("{session}/c0001-p1/bench.jsonl"),
        format!("{session}/c0001-p1/run.json"),
        format!("{session}/c0001-p1/after/metrics"),
        format!("{session}/server.log.zst"),
        format!("{session}/session.json"),
        format!("{session}/facts.json"),
        format!("{session}/status"),
        format!("{session}/raw/http/server_info"),
        format!("{session}/raw/manifest"),
        pick("raw/input/argv/0001"),
    ];
    for path in &of_the_session {
        flipped(&lab, path, |told| told.says("tiny/same"));
    }
    for path in [format!("{edition}/ledger/{finished}"), format!("{edition}/ledger/{planned}")] {
        flipped(&lab, &path, |told| told.says("tiny/same"));
    }
    // A form that cannot even be read hides neither itself nor what rests on it.
    for path in [format!("{session}/session.json"), format!("{session}/c0001-p1/run.json")] {
        let bytes = fs::read(lab.path(&path)).expect("read");
        fs::write(lab.path(&path), b"?").expect("written");
        lab.run(&["check"]).fails(1).says(&path).says("altered").says("tiny/same").does_not_say("not part of");
        fs::write(lab.path(&path), bytes).expect("written");
    }
    // Of the other level alone: the claim about level 1 does not rest on it.
    flipped(&lab, &format!("{session}/c0002-p1/bench.jsonl"), |told| told.does_not_say("tiny/same"));
    lab.run(&["check"]).success();

    let lost = format!("{session}/c0001-p1/bench.jsonl");
    let bytes = fs::read(lab.path(&lost)).expect("read");
    fs::remove_file(lab.path(&lost)).expect("removed");
    lab.run(&["check"]).fails(1).says(&lost).says("missing").says("tiny/same");
    fs::write(lab.path(&lost), bytes).expect("written");
    lab.write(&format!("{session}/c0001-p1/more.jsonl"), "{}");
    lab.run(&["check"]).fails(1).says("more.jsonl").says("not part of the record");
}

/// Flips one bit of a byte in the middle of a file, checks, and puts it back.
fn flipped(lab: &Lab, path: &str, judge: impl Fn(super::lab::Told) -> super::lab::Told) {
    let bytes = fs::read(lab.path(path)).unwrap_or_else(|trouble| panic!("{path}: {trouble}"));
    let mut altered = bytes.clone();
    assert!(!altered.is_empty(), "{path} is empty");
    let middle = altered.len() / 2;
    altered[middle] ^= 1;
    fs::write(lab.path(path), &altered).expect("written");
    judge(lab.run(&["check"]).fails(1).says(path).says("altered"));
    fs::write(lab.path(path), &bytes).expect("written");
}

#[test]
fn frozen_files_of_an_edition_are_part_of_what_check_verifies() {
    let lab = Tiny::default().lab();
    run(&lab).success();
    let edition = edition(&lab);
    flipped(&lab, &format!("{edition}/spec.yaml"), |told| told);
    for name in ["design.json", "plan.json"] {
        flipped(&lab, &format!("{edition}/{name}"), |told| told.says("tiny/same"));
    }
}
