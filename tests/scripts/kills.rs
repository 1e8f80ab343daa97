//! Every step dies: SIGKILL of runner, session, server or all of them at each step, then a new runner.

use std::path::Path;
use std::thread;
use std::time::Duration;

use labbook::script::output::Step;

use super::{Bed, Shell, alive, kill, pids, read, shell, steps, under_each_shell, until, word};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Victim {
    Runner,
    Session,
    Server,
    All,
}

const STEPS: usize = 13;

under_each_shell!(runner_dies, session_dies, server_dies, all_die);

fn runner_dies(shell: Shell) {
    at_each_step(shell, Victim::Runner);
}

fn session_dies(shell: Shell) {
    at_each_step(shell, Victim::Session);
}

fn server_dies(shell: Shell) {
    at_each_step(shell, Victim::Server);
}

fn all_die(shell: Shell) {
    at_each_step(shell, Victim::All);
}

fn at_each_step(shell: Shell, victim: Victim) {
    thread::scope(|scope| {
        for step in 0..STEPS {
            scope.spawn(move || at_step(shell, victim, step));
        }
    });
}

/// Kills while step number `step` (of idle, source, …, end) is under way.
fn at_step(under: Shell, victim: Victim, step: usize) {
    let Some(mut bed) = Bed::new(under) else { return };
    let mut first = bed.session("b01-first", &["delay=0.3", "orphans=1"]);
    first.preflight = vec![shell("sleep 0.2")];
    first.trials[0].warmup = Some(shell("sleep 0.1"));
    let first = bed.place(1, &first);
    let mut second = bed.session("b01-second", &[]);
    (second.generate, second.flush_path) = (None, None);
    second.info.clear();
    second.trials.truncate(1);
    let second = bed.place(2, &second);
    let runner = bed.start();
    let out = first.join("out");
    let ended = || steps(&out.join("status")).len();
    until("the step", &bed, || out.exists() && ended() >= step);
    // Half of them a little later: a fixed delay, so that a failure can be repeated.
    if step % 2 == 1 {
        thread::sleep(Duration::from_millis((step as u64 * 37) % 90));
    }
    let session = session_of(&bed.host, runner);
    let server = word(&out.join("server.pid"), 0).parse().ok().filter(|&pid| alive(pid));
    let seen = ended();
    if matches!(victim, Victim::Runner | Victim::All) {
        kill(runner);
    }
    if matches!(victim, Victim::Session | Victim::All) {
        session.into_iter().for_each(kill);
    }
    if matches!(victim, Victim::Server | Victim::All) {
        server.into_iter().for_each(kill);
    }
    if matches!(victim, Victim::Runner | Victim::All) {
        bed.ended();
    }
    // At the last step the runner may be at the second session already, which is then the one that was hit.
    let moved_on = second.join("out").exists();
    assert_eq!(bed.run(), Some(0), "{victim:?} at {step}\n{}", bed.tell());
    if matches!(victim, Victim::Session | Victim::Server) {
        assert_eq!(bed.ended(), Some(0), "{victim:?} at {step}\n{}", bed.tell());
    }
    bed.assert_clean();
    let status = steps(&out.join("status"));
    let completed = status.iter().any(|line| line.step == Step::End && line.code == 0);
    let done = read(&first.join("done"));
    assert_eq!(done, if completed { "0\n" } else { "70\n" }, "{victim:?} at {step} (saw {seen})\n{}", bed.tell());
    if !completed {
        assert!(!read(&out.join("fail")).is_empty(), "{victim:?} at {step}: no reason\n{}", bed.tell());
    }
    // From the stop on, a session needs neither its runner nor its server any more.
    let last = if matches!(victim, Victim::Runner | Victim::Server) { 9 } else { STEPS - 1 };
    let too_late = (victim == Victim::Server && server.is_none()) || seen >= last || session.is_none();
    assert!(too_late || !completed, "{victim:?} at {step} (saw {seen}) had no effect\n{}", bed.tell());
    let of_second = read(&second.join("done"));
    let sound = of_second == "0\n" || (moved_on && of_second == "70\n");
    assert!(sound, "{victim:?} at {step}: the second session ended with {of_second}\n{}", bed.tell());
}

/// The shell that runs a session of this host folder for this runner.
fn session_of(host: &Path, runner: u32) -> Option<u32> {
    pids().into_iter().find(|pid| {
        let stat = read(Path::new(&format!("/proc/{pid}/stat")));
        let parent = stat.rsplit_once(") ").and_then(|(_, rest)| rest.split(' ').nth(1)?.parse().ok());
        parent == Some(runner)
            && read(Path::new(&format!("/proc/{pid}/cmdline"))).contains("session.sh\0run\0")
            && std::fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|cwd| cwd == host)
    })
}
