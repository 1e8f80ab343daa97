//! `labbook doctor`, as text at 80 columns and as JSON.

use std::fmt::Write as _;

use serde_json::{Value, json};

use crate::doctor::{FactSight, ProgramSight, Seen, Sight};

/// Widest line.
const WIDTH: usize = 80;
/// Where values start.
const VALUES: usize = 18;

/// What there is to show of a host.
#[derive(Debug)]
pub struct DoctorView<'a> {
    /// Its name in labbook.yaml.
    pub host: &'a str,
    /// How it is reached.
    pub via: &'a str,
    /// What was seen there.
    pub seen: &'a Seen,
    /// Its host folders.
    pub editions: &'a [HostFolder],
}

/// The folder of an edition on a host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostFolder {
    /// `EXPERIMENT-EDITION`.
    pub name: String,
    /// Whether its runner lives.
    pub alive: bool,
    /// Whether no spec of the lab stands for it any more.
    pub stale: bool,
    /// Sessions that ended there and are not in the record.
    pub not_home: usize,
}

/// Renders what was seen.
pub fn text(view: &DoctorView<'_>) -> String {
    let mut out = format!("{}  via {}\n", view.host, view.via);
    let programs = view.seen.programs();
    let every: Vec<&ProgramSight> = programs.iter().filter(|program| program.purpose.is_none()).collect();
    let absent: Vec<&str> =
        every.iter().filter(|program| program.path.is_none()).map(|program| program.name.as_str()).collect();
    let count = format!("{} of {} that every session needs", every.len() - absent.len(), every.len());
    let missing = if absent.is_empty() { String::new() } else { format!("; absent: {}", absent.join(", ")) };
    row(&mut out, "programs", &format!("{count}{missing}"));
    for program in programs.iter().filter(|program| program.purpose.is_some()) {
        let path = program.path.as_deref().unwrap_or(if program.required { "absent, and required" } else { "absent" });
        row(&mut out, &format!("  {}", program.name), &format!("{path}: {}", program.purpose.unwrap_or_default()));
    }
    facts(&mut out, &view.seen.facts());
    state(&mut out, view);
    let ready = if view.seen.is_ready() {
        "ready: everything that a verdict needs can be observed here"
    } else {
        "not ready: something that a verdict needs is absent or hidden here"
    };
    let _ = writeln!(out, "\n{ready}");
    out
}

fn facts(out: &mut String, facts: &[FactSight]) {
    for (sight, name) in
        [(Sight::Observed, "observed now"), (Sight::WithServer, "with a server"), (Sight::NotHere, "none here")]
    {
        let here: Vec<&FactSight> = facts.iter().filter(|fact| fact.sight == sight).collect();
        // What is seen now is worth its names; of the rest those that a verdict needs.
        let named = |fact: &&&FactSight| fact.required || sight == Sight::Observed;
        let mut keys: Vec<String> = here.iter().filter(named).map(|fact| fact.key.to_owned()).collect();
        let others = here.len() - keys.len();
        if sight == Sight::NotHere {
            let mut families: Vec<&str> = here.iter().map(|fact| family(fact.key)).collect();
            families.dedup();
            keys = families.into_iter().map(str::to_owned).collect();
        } else if others > 0 {
            let and = if keys.is_empty() { "" } else { "and " };
            keys.push(format!("{and}{others} that no verdict needs"));
        }
        if !keys.is_empty() {
            row(out, name, &keys.join(", "));
        }
    }
    let mut hidden: Vec<(String, Vec<&str>)> = Vec::new();
    for fact in facts.iter().filter(|fact| fact.sight == Sight::Hidden) {
        let need = if fact.required { "required" } else { "not required" };
        let remedy = format!("({need}): {}", fact.remedy.as_deref().unwrap_or_default());
        match hidden.iter_mut().find(|(other, _)| *other == remedy) {
            Some((_, keys)) => keys.push(fact.key),
            None => hidden.push((remedy, vec![fact.key])),
        }
    }
    for (remedy, keys) in hidden {
        row(out, "not observable", &format!("{} {remedy}", keys.join(", ")));
    }
}

/// What a host without GPUs lacks is one thing.
fn family(key: &'static str) -> &'static str {
    if key.starts_with("gpu.") { "gpu.*" } else { key }
}

fn state(out: &mut String, view: &DoctorView<'_>) {
    if view.seen.leases.is_empty() {
        row(out, "lease", "free");
    }
    for lease in &view.seen.leases {
        let state = if lease.alive {
            format!("held by process {} for {}", lease.pid, lease.folder)
        } else {
            format!("its owner died (process {}, {}); the next runner sweeps", lease.pid, lease.folder)
        };
        row(out, "lease", &format!("{}: {state}", lease.path));
    }
    if view.seen.left_over.is_empty() {
        row(out, "left over", "no process of ours");
    }
    for process in &view.seen.left_over {
        row(out, "left over", &format!("process {}: {}", process.pid, process.command));
    }
    if !view.seen.left_over.is_empty() {
        row(out, "", "`labbook run` ends what its own folder left; end others by their number");
    }
    let of_a_spec = view.editions.iter().filter(|edition| !edition.stale).count();
    row(out, "editions", &format!("{of_a_spec} of a spec, {} stale", view.editions.len() - of_a_spec));
    for edition in view.editions {
        let mut words = Vec::new();
        if edition.alive {
            words.push("runs now".to_owned());
        }
        if edition.stale {
            words.push("its spec says another design now, or is gone".to_owned());
        }
        if edition.not_home > 0 {
            words.push(format!("{} sessions ended there and are not in the record", edition.not_home));
        }
        if !words.is_empty() {
            row(out, "", &format!("{}: {}", edition.name, words.join("; ")));
        }
    }
}

/// Returns what was seen, for programs.
pub fn json(view: &DoctorView<'_>) -> Value {
    let editions: Vec<Value> = view
        .editions
        .iter()
        .map(|edition| {
            json!({ "name": edition.name, "alive": edition.alive, "stale": edition.stale, "not_home": edition.not_home })
        })
        .collect();
    json!({
        "host": view.host,
        "via": view.via,
        "ready": view.seen.is_ready(),
        "programs": view.seen.programs(),
        "facts": view.seen.facts(),
        "leases": view.seen.leases,
        "left_over": view.seen.left_over,
        "editions": editions,
    })
}

/// A name, and text behind it that is broken at blanks into lines of at most 80 columns.
fn row(out: &mut String, name: &str, value: &str) {
    let columns = |text: &str| text.chars().count();
    let mut line = format!("  {name:<width$}", width = VALUES - 2);
    let mut begun = false;
    for word in value.split(' ').filter(|word| !word.is_empty()) {
        if begun && columns(&line) + 1 + columns(word) > WIDTH {
            let _ = writeln!(out, "{line}");
            line = " ".repeat(VALUES);
        } else if begun {
            line.push(' ');
        }
        line.push_str(word);
        begun = true;
    }
    let _ = writeln!(out, "{}", line.trim_end());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::{Lease, Process};

    fn seen(present: &[&str], absent: &[&str], facts: &[&str]) -> Seen {
        let mut seen = Seen::default();
        seen.programs.extend(present.iter().map(|name| ((*name).to_owned(), Some(format!("/usr/bin/{name}")))));
        seen.programs.extend(absent.iter().map(|name| ((*name).to_owned(), None)));
        for key in facts {
            seen.facts.text(key, "x");
        }
        seen
    }

    #[track_caller]
    fn fits(text: &str) {
        let long: Vec<&str> = text.lines().filter(|line| line.chars().count() > WIDTH).collect();
        assert!(long.is_empty(), "{long:#?}");
    }

    #[test]
    fn a_host_without_anything() {
        let seen = Seen::default();
        let shown = text(&DoctorView { host: "h", via: "ssh", seen: &seen, editions: &[] });
        fits(&shown);
        assert!(shown.contains("not ready") && shown.contains("0 of 0"));
    }

    #[test]
    fn a_good_host() {
        let here = [
            "host.id",
            "host.boot_id",
            "host.kernel",
            "host.cpu",
            "host.numa",
            "server.identity",
            "server.argv",
            "server.env.HOME",
            "server.nice",
            "client.host.cores",
            "time.utc_start",
        ];
        let seen = seen(&["sh", "awk", "setsid", "curl", "git", "python3", "bash"], &["nvidia-smi"], &here);
        let view = DoctorView { host: "local", via: "local", seen: &seen, editions: &[] };
        let shown = text(&view);
        fits(&shown);
        insta::assert_snapshot!(shown);
        assert_eq!(json(&view)["ready"], true);
    }

    #[test]
    fn a_host_in_trouble() {
        let mut seen =
            seen(&["sh", "awk"], &["setsid", "curl", "git", "python3", "bash", "nvidia-smi"], &["host.kernel"]);
        let lease = |alive, pid: &str| {
            Lease::new("/var/tmp/labbook-lease", alive, pid, "/home/a/lab/.labbook/host/oea-12345678")
        };
        seen.leases = vec![lease(true, "1234"), lease(false, "99")];
        let command =
            "/home/a/serving/bin/python -m sglang.launch_server --host 127.0.0.1 --port 31999 --model-path /m";
        seen.left_over = vec![Process::new("4711", command)];
        let folder = |name: &str, alive, stale, not_home| HostFolder { name: name.into(), alive, stale, not_home };
        let editions = [folder("oea-12345678", true, false, 0), folder("oea-9abcdef0", false, true, 3)];
        let view = DoctorView { host: "blackwell", via: "ssh", seen: &seen, editions: &editions };
        let shown = text(&view);
        fits(&shown);
        insta::assert_snapshot!(shown);
        assert_eq!(json(&view)["ready"], false);
        assert_eq!(json(&view)["editions"][1]["not_home"], 3);
    }
}
