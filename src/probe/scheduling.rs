//! What the kernel gives the server: priority, scheduling class, cores, limits.
//!
//! Invariant: the server and each of its children are looked at, before and after the trials; where they do not agree, all
//! values are listed, the server's first. None of it shows in an argv: `nice server` has the argv of `server`.

use std::collections::{BTreeMap, BTreeSet};

use super::server::{is_helper, pid};
use super::{RawFiles, moved_all};
use crate::fact::{FactValue, Fingerprint};

/// `server.nice`, `server.scheduling`, `server.affinity`, `server.limits.*`.
pub(super) fn facts(files: &RawFiles, facts: &mut Fingerprint) {
    let Some(server) = pid(files) else { return };
    let before = of_all(files, "out/proc", &server);
    let after = of_all(files, "out/proc-after", &server);
    for (name, value) in moved_all(before, (!after.is_empty()).then_some(after)) {
        facts.insert(format!("server.{name}"), value);
    }
}

/// What all processes of the server were given, by name.
fn of_all(files: &RawFiles, processes: &str, server: &str) -> BTreeMap<String, FactValue> {
    let own = of(files, &format!("{processes}/{server}"));
    let children = files.list(processes);
    let children = children.iter().filter(|pid| *pid != server && !is_helper(files, processes, pid));
    let children: Vec<_> = children.map(|pid| of(files, &format!("{processes}/{pid}"))).collect();
    let value = |(name, ours): (String, String)| {
        let others: BTreeSet<&String> =
            children.iter().filter_map(|child| child.get(&name)).filter(|theirs| **theirs != ours).collect();
        let value = if others.is_empty() {
            FactValue::Text(ours)
        } else {
            FactValue::List(std::iter::once(ours).chain(others.into_iter().cloned()).collect())
        };
        (name, value)
    };
    own.into_iter().map(value).collect()
}

/// What one process was given.
fn of(files: &RawFiles, process: &str) -> BTreeMap<String, String> {
    let text = |name: &str| files.text(&format!("{process}/{name}")).unwrap_or_default();
    let mut found = limits(&text("limits"));
    let affinity = text("status").lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:").map(str::to_owned));
    found.extend(affinity.map(|cores| ("affinity".to_owned(), cores.trim().to_owned())));
    found.extend(priority(&text("stat")));
    found
}

/// `nice` and `scheduling` of `/proc/PID/stat` (proc(5)): fields 19, 40 and 41. The name in the second field may hold
/// anything, so they are counted from the last parenthesis, after which the third field follows.
fn priority(stat: &str) -> Vec<(String, String)> {
    let fields: Vec<&str> = stat.rsplit_once(") ").map_or("", |(_, rest)| rest).split_whitespace().collect();
    let field = |number: usize| fields.get(number - 3).filter(|text| text.parse::<i64>().is_ok());
    let mut found = Vec::new();
    found.extend(field(19).map(|nice| ("nice".to_owned(), (*nice).to_owned())));
    if let (Some(priority), Some(policy)) = (field(40), field(41)) {
        let class = match *policy {
            "0" => "normal".to_owned(),
            "1" => format!("fifo {priority}"),
            "2" => format!("round robin {priority}"),
            "3" => "batch".to_owned(),
            "5" => "idle".to_owned(),
            "6" => "deadline".to_owned(),
            other => format!("class {other}"),
        };
        found.push(("scheduling".to_owned(), class));
    }
    found
}

/// `limits.NAME` of `/proc/PID/limits`: the soft limit, in the unit that the kernel says.
fn limits(text: &str) -> BTreeMap<String, String> {
    // Columns are separated by at least two blanks; the names hold single ones.
    let columns =
        |line: &str| line.split("  ").map(str::trim).filter(|part| !part.is_empty()).map(str::to_owned).collect();
    let line = |line: &str| {
        let columns: Vec<String> = columns(line);
        let name = columns.first()?.strip_prefix("Max ")?.replace(' ', "_");
        let sound = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
        sound.then(|| Some((format!("limits.{name}"), columns.get(1)?.clone())))?
    };
    text.lines().filter_map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_read_by_their_columns() {
        let text = "Limit                     Soft Limit           Hard Limit           Units     \n\
                    Max cpu time              unlimited            unlimited            seconds   \n\
                    Max open files            1024                 1048576              files     \n\
                    Max <b>                   7                    7                    x\n";
        let found = limits(text);
        assert_eq!(found.len(), 2, "{found:?}");
        assert_eq!(found["limits.cpu_time"], "unlimited");
        assert_eq!(found["limits.open_files"], "1024");
        assert!(limits("").is_empty());
    }

    #[test]
    fn priority_is_read_behind_any_name() {
        let field = |number: u32| match number {
            3 => "S".to_owned(),
            19 => "10".to_owned(),
            40 => "0".to_owned(),
            41 => "3".to_owned(),
            other => (other + 1000).to_string(),
        };
        let fields: Vec<String> = (3..=52).map(field).collect();
        let stat = format!("77 (a ) R 1 (b)) {}", fields.join(" "));
        let found: BTreeMap<String, String> = priority(&stat).into_iter().collect();
        assert_eq!(found["nice"], "10", "{found:?}");
        assert_eq!(found["scheduling"], "batch", "{found:?}");
        assert!(priority("").is_empty() && priority("1 (x) S").is_empty());
    }
}
