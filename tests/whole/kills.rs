//! SIGKILL at any point: of labbook, of the runner, of the shell of a session, of the server; then `labbook run` again.
//!
//! Each target dies at [`points`] moments that are spread over a whole run, with a fixed seed. `LABBOOK_KILL_POINTS=20` is the full
//! set, which takes three minutes on two cores; the default takes less than one.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Child;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;

use super::lab::Lab;
use super::tiny::{
    SPEC, Tiny, add_words, assert_nothing_left, edition, ended, events, folder_names, host_folder, queue_only,
    replace_words, run, signal, spawn, until, words,
};

/// How many moments each target dies at.
fn points() -> usize {
    std::env::var_os("LABBOOK_KILL_POINTS").and_then(|text| text.to_str()?.parse().ok()).unwrap_or(5)
}

/// How often `labbook run` may be needed in all.
const INVOCATIONS: usize = 3;
/// Labs that run beside each other within one test.
const BESIDE: usize = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Target {
    Labbook,
    Runner,
    Session,
    Server,
}

#[test]
fn labbook_dies() {
    at_points(Target::Labbook);
}

#[test]
fn the_runner_dies() {
    at_points(Target::Runner);
}

#[test]
fn the_shell_of_a_session_dies() {
    at_points(Target::Session);
}

#[test]
fn the_server_dies() {
    at_points(Target::Server);
}

fn tiny() -> Tiny<'static> {
    Tiny { levels: "[1]", ..Tiny::default() }
}

/// How many steps the sessions of a run have: each appends a line to its status.
const STEPS: usize = 2 * 12;
/// Longest time from a step to the kill; a step takes 10 to 500 ms.
const JITTER_MS: u64 = 150;

#[expect(clippy::print_stderr, reason = "how often a kill hit is part of the result")]
fn at_points(target: Target) {
    let next = AtomicUsize::new(0);
    let told = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..BESIDE {
            scope.spawn(|| {
                loop {
                    let point = next.fetch_add(1, Ordering::Relaxed);
                    if point >= points() {
                        return;
                    }
                    let outcome = at_point(target, moment(target, point));
                    told.lock().expect("no panic").push(outcome);
                }
            });
        }
    });
    let told = told.into_inner().expect("no panic");
    let hits = told.iter().filter(|(hit, _)| *hit).count();
    let mut needed: BTreeMap<usize, usize> = BTreeMap::new();
    for (_, invocations) in &told {
        *needed.entry(*invocations).or_default() += 1;
    }
    eprintln!("{target:?}: {hits} of {} kills hit; invocations needed (times): {needed:?}", told.len());
    assert_eq!(told.len(), points(), "every point was tried");
    assert!(hits * 2 >= told.len(), "only {hits} of {} kills hit a living {target:?}", told.len());
}

/// After how many steps of the run, and how long after the last of them, the kill comes: evenly spread over the run, and moved a
/// little by a generator with a fixed seed. Steps rather than seconds, since a machine may be busy.
fn moment(target: Target, point: usize) -> (usize, Duration) {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(1 + target as u64 * 1000 + point as u64);
    state ^= state >> 30;
    state = state.wrapping_mul(0xbf58_476d_1ce4_e5b9);
    state ^= state >> 27;
    (point * STEPS / points(), Duration::from_millis(state % JITTER_MS))
}

/// Returns how many steps have ended.
fn steps(lab: &Lab) -> usize {
    let root = lab.path(".labbook/host");
    let Some(host) = folder_names(&root).into_iter().next() else { return 0 };
    let queue = root.join(host).join("queue");
    let lines =
        |entry: &String| fs::read_to_string(queue.join(entry).join("out/status")).unwrap_or_default().lines().count();
    folder_names(&queue).iter().map(lines).sum()
}

/// Kills once, then runs until all is there. Returns whether the kill hit, and how many invocations were needed.
fn at_point(target: Target, (after, jitter): (usize, Duration)) -> (bool, usize) {
    let lab = tiny().lab();
    let mut first = spawn(&lab, &["run", SPEC]);
    while steps(&lab) < after && first.try_wait().expect("a child").is_none() {
        std::thread::sleep(Duration::from_millis(2));
    }
    std::thread::sleep(jitter);
    let hit = kill_one(&lab, target, &mut first);
    let mut told = ended(first);
    let mut invocations = 1;
    while told.status != 0 && invocations < INVOCATIONS {
        invocations += 1;
        told = run(&lab);
    }
    let place = format!("{target:?} {jitter:?} after step {after} (hit: {hit}, {invocations} invocations)");
    assert_eq!(told.status, 0, "{place}\n{}\n{}", told.out, told.err);
    assert_whole(&lab, &place);
    (hit, invocations)
}

/// Waits until the target is there, or until the run is over, and kills it.
fn kill_one(lab: &Lab, target: Target, labbook: &mut Child) -> bool {
    loop {
        if labbook.try_wait().expect("a child").is_some() {
            return false;
        }
        let pid = match target {
            Target::Labbook => Some(labbook.id()),
            _ => pid_of(lab, target),
        };
        if let Some(pid) = pid {
            signal(pid, Signal::KILL);
            return true;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn pid_of(lab: &Lab, target: Target) -> Option<u32> {
    let root = lab.path(".labbook/host");
    let host = root.join(folder_names(&root).first()?);
    let runner: u32 = first_word(&host.join("runner"))?;
    match target {
        Target::Labbook => None,
        Target::Runner => Some(runner).filter(|pid| lives_in(*pid, &host)),
        Target::Session => children(runner).into_iter().find(|pid| {
            let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&command).contains("session.sh\0run\0") && lives_in(*pid, &host)
        }),
        Target::Server => {
            let queue = host.join("queue");
            let running = folder_names(&queue)
                .into_iter()
                .map(|name| queue.join(name))
                .find(|entry| entry.join("out/server.pid").exists() && !entry.join("done").exists())?;
            first_word(&running.join("out/server.pid")).filter(|pid| lives_in(*pid, &host))
        }
    }
}

fn first_word(file: &Path) -> Option<u32> {
    fs::read_to_string(file).ok()?.split_whitespace().next()?.parse().ok()
}

fn lives_in(pid: u32, host: &Path) -> bool {
    let living = fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X'])));
    living && fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|cwd| cwd == host)
}

fn children(parent: u32) -> Vec<u32> {
    folder_names(Path::new("/proc"))
        .iter()
        .filter_map(|name| name.parse().ok())
        .filter(|pid: &u32| {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            stat.rsplit_once(") ").and_then(|(_, rest)| rest.split(' ').nth(1)?.parse().ok()) == Some(parent)
        })
        .collect()
}

/// The plan is complete, every session is sealed once, everything that ran is in the record, and nothing is alive.
fn assert_whole(lab: &Lab, place: &str) {
    assert_nothing_left(lab);
    let events = events(lab);
    let mut sealed: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for event in &events {
        for word in ["finished", "failed"] {
            if let Some(session) = event[word]["session"].as_str() {
                sealed.entry(session.to_owned()).or_default().push(word);
            }
        }
    }
    assert!(sealed.values().all(|times| times.len() == 1), "{place}: sealed twice: {sealed:?}");
    let journal = fs::read_to_string(host_folder(lab).join("journal")).expect("a journal");
    for line in journal.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        if let [_, _, "session-end", name, _] = words.as_slice() {
            assert!(sealed.contains_key(&name[5..]), "{place}: {name} ran and is not in the record: {sealed:?}");
        }
    }
    let on_disk: Vec<String> =
        folder_names(&lab.path(&edition(lab))).into_iter().filter(|name| name.starts_with('b')).collect();
    assert_eq!(on_disk, sealed.keys().cloned().collect::<Vec<_>>(), "{place}");
    let sound = |attempt: &str| {
        ["one", "other"]
            .iter()
            .all(|arm| sealed.get(&format!("b01-{arm}{attempt}")).is_some_and(|times| times == &["finished"]))
    };
    assert!(["", ".2", ".3", ".4"].iter().any(|attempt| sound(attempt)), "{place}: no sound attempt: {sealed:?}");
    let shown = lab.run(&["status", SPEC, "--format", "json"]).success().json();
    assert_eq!(shown[0]["runner_lives"], Value::Bool(false), "{place}");
    lab.run(&["check"]).success();
}

/// The first arm fails, labbook dies, the second arm ends: that run belongs to an attempt that counts no more, and is still a run.
#[test]
fn what_an_attempt_ran_that_was_given_up_is_in_the_record() {
    let lab = tiny().lab();
    let host = queue_only(&lab);
    let queue = folder_names(&host.join("queue"));
    let trial = |entry: &str| {
        let trials = host.join("queue").join(entry).join("trials");
        trials.join(folder_names(&trials).remove(0)).join("argv")
    };
    add_words(&trial(&queue[0]), &["--no-such-flag"]);
    let slow = trial(&queue[1]);
    let mut wrapped = ["sh", "-c", "sleep 3; exec \"$@\"", "sh"].map(str::to_owned).to_vec();
    wrapped.extend(words(&slow));
    replace_words(&slow, &wrapped.iter().map(String::as_str).collect::<Vec<_>>());
    let first = spawn(&lab, &["run", SPEC]);
    until("the first arm is in the record", || events(&lab).iter().any(|event| event.get("failed").is_some()));
    signal(first.id(), Signal::KILL);
    ended(first);
    run(&lab).success().says("1 of 1 blocks complete");
    assert_whole(&lab, "after a failed arm");
    let names = folder_names(&lab.path(&edition(&lab)));
    assert!(names.contains(&queue[1][5..].to_owned()), "{names:?}");
}
