//! GPUs: `gpu.*`, from what nvidia-smi said before and after the trials.
//!
//! Both looks are at a server at rest, so clocks and power of that moment have `at_rest` in their names: they are not the
//! means over a window that rules compare. Throttle times are counters, and their growth covers the whole session.

use std::collections::{BTreeMap, BTreeSet};

use super::info::Info;
use super::{RawFiles, moved};
use crate::digest::Digest;
use crate::fact::{FactValue, Fingerprint};
use crate::script::output::Proof;

/// Memory that a driver may hold on a GPU which nobody uses, MiB (rule S24).
const IDLE_MIB: u64 = 500;

/// Column of `smi.csv`, tag of `smi-q.xml` (behind its section, if any), and name of the fact; none of them may move.
const FIXED: [(&str, &str, &str); 9] = [
    ("name", "product_name", "name"),
    ("uuid", "uuid", "uuid"),
    ("vbios_version", "vbios_version", "vbios"),
    ("ecc.mode.current", "ecc_mode/current_ecc", "ecc"),
    ("mig.mode.current", "mig_mode/current_mig", "mig"),
    ("persistence_mode", "persistence_mode", "persistence"),
    ("memory.total", "fb_memory_usage/total", "memory_mib"),
    ("power.limit", "gpu_power_readings/current_power_limit", "power_limit_w"),
    ("driver_version", "", "driver"),
];

/// The state of a moment.
const STATE: [(&str, &str, &str); 5] = [
    ("clocks.current.sm", "clocks/sm_clock", "sm_clock_at_rest_mhz"),
    ("clocks.current.memory", "clocks/mem_clock", "mem_clock_at_rest_mhz"),
    ("power.draw", "gpu_power_readings/instant_power_draw", "power_at_rest_w"),
    ("temperature.gpu", "temperature/gpu_temp", "temperature_at_rest_c"),
    ("memory.used", "fb_memory_usage/used", "used_mib"),
];

/// Counters of microseconds in `smi-q.xml`, and the reason in `gpu.<i>.throttle_us.<reason>`.
const THROTTLES: [(&str, &str); 5] = [
    ("sw_power_cap", "sw_power_cap"),
    ("sync_boost", "sync_boost"),
    ("sw_therm_slowdown", "sw_thermal"),
    ("hw_therm_slowdown", "hw_thermal"),
    ("hw_power_brake", "hw_power_brake"),
];

/// Values of one GPU by the names of facts.
type Gpu = BTreeMap<String, String>;

pub(super) fn facts(files: &RawFiles, info: &Info, facts: &mut Fingerprint) {
    let (before, after) = (look(files, "out/gpu"), look(files, "out/gpu-after"));
    let Some(before) = before else {
        if info.runs_on_cpu() {
            facts.text("gpu.count", "0");
        }
        return;
    };
    let count = |gpus: &Vec<Gpu>| FactValue::text(gpus.len().to_string());
    facts.insert("gpu.count", moved(Some(count(&before)), after.as_ref().map(count)).expect("one was counted"));
    let after = after.unwrap_or_default();
    for (index, gpu) in before.iter().enumerate() {
        let later = after.get(index);
        for (name, value) in gpu {
            let is_fixed = FIXED.iter().any(|(_, _, fixed)| fixed == name);
            let then = later.filter(|_| is_fixed).and_then(|gpu| gpu.get(name)).map(FactValue::text);
            if let (Some(value), false) = (moved(Some(FactValue::text(value)), then), name.starts_with("throttle")) {
                let key = if name == "driver" { "gpu.driver".to_owned() } else { format!("gpu.{index}.{name}") };
                facts.insert(key, value);
            }
        }
        for (_, reason) in THROTTLES {
            let name = format!("throttle_us.{reason}");
            let at = |gpu: &Gpu| gpu.get(&name)?.parse::<u64>().ok();
            if let Some(grown) = later.and_then(at).zip(at(gpu)).and_then(|(then, first)| then.checked_sub(first)) {
                facts.text(&format!("gpu.{index}.{name}"), grown.to_string());
            }
        }
    }
    if let Some(topology) = files.text("out/gpu/topo") {
        facts.text("gpu.topology_sha256", Digest::of(plain(&topology)).to_string());
    }
    others(files, &before, facts);
}

/// The GPUs of one look in the order of the listing; `None` where nothing was listed.
fn look(files: &RawFiles, folder: &str) -> Option<Vec<Gpu>> {
    let table = smi_csv(&files.text(&format!("{folder}/smi.csv")).unwrap_or_default());
    let query = smi_xml(&files.text(&format!("{folder}/smi-q.xml")).unwrap_or_default());
    let count = if table.is_empty() { query.len() } else { table.len() };
    let merged = (0..count).map(|index| {
        let mut gpu = query.get(index).cloned().unwrap_or_default();
        gpu.extend(table.get(index).cloned().unwrap_or_default());
        gpu
    });
    (count > 0).then(|| merged.collect())
}

/// Reads `nvidia-smi --query-gpu=… --format=csv`, whatever its columns. A value in brackets is none.
fn smi_csv(text: &str) -> Vec<Gpu> {
    let mut lines = text.lines();
    let columns: Vec<&str> = lines.next().unwrap_or_default().split(", ").map(str::trim).collect();
    let names: Vec<Option<&str>> = columns
        .iter()
        .map(|column| {
            let column = column.split(" [").next().unwrap_or_default();
            FIXED.iter().chain(&STATE).find(|(known, _, _)| *known == column).map(|(_, _, name)| *name)
        })
        .collect();
    let rows = lines.map(|line| line.split(", ").collect::<Vec<_>>()).filter(|row| row.len() == columns.len());
    let gpus = rows.map(|row| {
        names.iter().zip(row).filter_map(|(name, value)| Some(((*name)?.to_owned(), bare((*name)?, value)?))).collect()
    });
    gpus.filter(|gpu: &Gpu| !gpu.is_empty()).take(1024).collect()
}

/// Reads `nvidia-smi -q -x`: no XML of other kinds, and no entity or nesting matters here.
fn smi_xml(text: &str) -> Vec<Gpu> {
    let driver = tag(text, "driver_version").unwrap_or_default();
    let sections = text.split("<gpu ").skip(1).take(1024);
    sections
        .map(|section| {
            let mut gpu = Gpu::new();
            for (_, place, name) in FIXED.iter().chain(&STATE) {
                let value = place.split('/').try_fold(section, |within, part| tag(within, part));
                if let Some(value) = value.and_then(|value| bare(name, value)) {
                    gpu.insert((*name).to_owned(), value);
                }
            }
            if let Some(driver) = bare("driver", driver) {
                gpu.insert("driver".to_owned(), driver);
            }
            for (counter, reason) in THROTTLES {
                let names = ["clocks_event_reasons_counters_", "clocks_throttle_reasons_counters_"];
                let value = names.iter().find_map(|prefix| tag(section, &format!("{prefix}{counter}")));
                if let Some(us) = value.and_then(|value| value.split_whitespace().next()?.parse::<u64>().ok()) {
                    gpu.insert(format!("throttle_us.{reason}"), us.to_string());
                }
            }
            gpu
        })
        .filter(|gpu| !gpu.is_empty())
        .collect()
}

fn tag<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    if name.is_empty() {
        return None;
    }
    let open = format!("<{name}>");
    let start = text.find(&open)? + open.len();
    let end = text[start..].find(&format!("</{name}>"))? + start;
    Some(text[start..end].trim())
}

/// A value without its unit, words in lower case; `None` for what nvidia-smi writes where it does not know.
fn bare(name: &str, value: &str) -> Option<String> {
    let value = value.trim();
    if value.is_empty() || value.starts_with('[') || value == "N/A" || value.starts_with("Unknown") {
        return None;
    }
    Some(match name {
        "name" | "uuid" | "vbios" | "driver" => value.to_owned(),
        "ecc" | "mig" | "persistence" => value.to_lowercase(),
        _ => value.split_whitespace().next()?.to_owned(),
    })
}

/// Without the escapes that underline a heading.
fn plain(text: &str) -> String {
    let mut parts = text.split("\u{1b}[");
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        plain += part.split_once('m').map_or(part, |(_, rest)| rest);
    }
    plain.lines().map(str::trim_end).collect::<Vec<_>>().join("\n")
}

/// One line of `apps.csv`.
struct App {
    pid: String,
    uuid: String,
    /// `None` where the driver does not tell.
    mib: Option<u64>,
}

fn apps(files: &RawFiles, folder: &str) -> Option<Vec<App>> {
    let text = files.text(&format!("{folder}/apps.csv"))?;
    let lines = text.lines().skip(1);
    let read = lines.filter_map(|line| {
        let mut words = line.splitn(3, ", ");
        let (pid, uuid, rest) = (words.next()?.trim(), words.next()?.trim(), words.next()?);
        // A process name may hold anything, also a comma.
        let mib = rest.rsplit(", ").next()?.split_whitespace().next().and_then(|mib| mib.parse().ok());
        Some(App { pid: pid.to_owned(), uuid: uuid.to_owned(), mib })
    });
    Some(read.collect())
}

/// `gpu.<i>.foreign_mib`, `gpu.idle_mib` and how it was seen: memory that is not ours.
///
/// The list of processes tells it where it shows one of ours. In a container it may show none, or show them under the
/// host's numbers; then an idle GPU before the start and after the stop tells that nobody else was there, except for
/// processes that came while the session ran.
fn others(files: &RawFiles, gpus: &[Gpu], facts: &mut Fingerprint) {
    let idle = files.word("out/gpu/idle-mib").and_then(|mib| mib.parse::<u64>().ok());
    if let Some(idle) = idle {
        facts.text("gpu.idle_mib", idle.to_string());
        if gpus.len() == 1 {
            facts.text("gpu.0.idle_mib", idle.to_string());
        }
    }
    let Some(before) = apps(files, "out/gpu") else { return };
    let after = apps(files, "out/gpu-after").unwrap_or_default();
    let ours = our_pids(files);
    let sees_ours = before.iter().chain(&after).any(|app| ours.contains(&app.pid));
    let stopped = files.text("out/proof").and_then(|proof| Proof::parse(&proof).gpu_mib);
    if !sees_ours && (idle.is_none() || stopped.is_none()) {
        return;
    }
    facts.text("gpu.foreign_by", if sees_ours { "processes" } else { "memory before and after" });
    let known: BTreeSet<&String> =
        if sees_ours { ours.iter().collect() } else { before.iter().map(|app| &app.pid).collect() };
    let left = if sees_ours { 0 } else { idle.max(stopped).filter(|mib| *mib > IDLE_MIB).unwrap_or(0) };
    for (index, gpu) in gpus.iter().enumerate() {
        let on_it = |app: &&App| gpu.get("uuid") == Some(&app.uuid) && !known.contains(&app.pid);
        let sum =
            |apps: &[App]| apps.iter().filter(on_it).try_fold(0, |sum: u64, app| Some(sum.saturating_add(app.mib?)));
        let foreign = sum(&before).zip(sum(&after)).map(|(before, after)| before.max(after).max(left));
        // A foreign process whose memory the driver does not tell is there all the same.
        facts.text(&format!("gpu.{index}.foreign_mib"), foreign.map_or("unknown".to_owned(), |mib| mib.to_string()));
    }
}

fn our_pids(files: &RawFiles) -> BTreeSet<String> {
    let seen = files.text("pids").unwrap_or_default();
    let seen = seen.lines().filter_map(|line| line.split_whitespace().next().map(str::to_owned));
    let looks = ["out/proc", "out/proc-after"].into_iter().flat_map(|folder| files.list(folder));
    seen.chain(looks).chain(files.word("out/server.pid")).collect()
}

#[cfg(test)]
#[expect(clippy::print_stderr, reason = "a test that skips says why")]
mod tests {
    use super::*;

    #[test]
    fn nothing_listed_is_no_gpu() {
        assert!(smi_csv("").is_empty() && smi_xml("").is_empty() && plain("").is_empty());
        assert!(smi_csv("index, uuid\nNo devices were found").is_empty());
        assert!(smi_csv("index, uuid, name\n0, [N/A], [N/A]\n").is_empty());
        assert!(smi_xml("<gpu id=\"0\"><product_name>N/A</product_name><uuid>cut off").is_empty());
    }

    #[test]
    fn a_real_listing_is_read() {
        let real = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/real/h200-sglang");
        let read = |name: &str| std::fs::read_to_string(real.join(name)).ok();
        let (Some(csv), Some(xml), Some(topo)) =
            (read("smi-A1-triton-after.csv"), read("machine/nvidia-smi-q.xml"), read("machine/nvidia-smi-topo.txt"))
        else {
            eprintln!("skipped: {} is not here", real.display());
            return;
        };
        let (table, query) = (smi_csv(&csv), smi_xml(&xml));
        assert_eq!((table.len(), query.len()), (1, 1));
        for name in ["name", "uuid", "ecc", "mig", "persistence", "memory_mib", "power_limit_w", "driver"] {
            assert_eq!(table[0].get(name), query[0].get(name), "{name}");
        }
        let at = |name: &str| query[0].get(name).map(String::as_str);
        assert_eq!((at("name"), at("driver")), (Some("NVIDIA H200"), Some("580.159.04")));
        assert_eq!((at("ecc"), at("power_limit_w")), (Some("enabled"), Some("700.00")));
        assert_eq!((at("vbios"), at("throttle_us.hw_thermal")), (Some("96.00.A5.00.1A"), Some("0")));
        assert_eq!(table[0].get("sm_clock_at_rest_mhz").map(String::as_str), Some("1980"));
        assert!(plain(&topo).starts_with("\tGPU0\t") && !plain(&topo).contains('\u{1b}'));
    }
}
