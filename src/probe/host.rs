//! The machine: `host.*`, and `client.host.*`, since the client runs where the server does.

use super::{RawFiles, moved};
use crate::fact::{FactValue, Fingerprint};

pub(super) fn facts(files: &RawFiles, facts: &mut Fingerprint) {
    let text = |name: &str| files.text(&format!("out/host/{name}"));
    let boot_id = |look: &str| files.word(&format!("out/{look}/boot-id")).map(FactValue::Text);
    if let Some(value) = moved(boot_id("host"), boot_id("host-after")) {
        facts.insert("host.boot_id", value);
    }
    for (name, value) in [
        ("id", files.word("out/host/machine-id-sha256")),
        ("kernel", text("uname")),
        ("cpu", text("cpuinfo-model")),
        ("governor", text("governor").map(|text| distinct(&text))),
        ("numa", text("numa").map(|text| text.lines().map(str::trim).collect::<Vec<_>>().join("; "))),
        ("load", files.word("out/host/loadavg")),
        ("load_after", files.word("out/host-after/loadavg")),
        ("cores", text("cores")),
        ("affinity", text("affinity")),
        ("nofile", text("nofile")),
    ] {
        let Some(value) = value else { continue };
        if matches!(name, "id" | "cores" | "affinity" | "nofile") {
            facts.text(&format!("client.host.{name}"), &value);
        }
        facts.text(&format!("host.{name}"), value);
    }
    let memory = text("meminfo").unwrap_or_default();
    for (line, name) in [("MemTotal:", "memory_kib"), ("MemAvailable:", "memory_available_kib")] {
        let found = memory.lines().find_map(|each| each.strip_prefix(line)?.split_whitespace().next());
        if let Some(kib) = found {
            facts.text(&format!("host.{name}"), kib);
        }
    }
    for line in text("slurm").unwrap_or_default().lines() {
        if let Some((name, value)) = line.strip_prefix("SLURM_").and_then(|line| line.split_once('=')) {
            facts.text(&format!("host.slurm.{}", name.to_lowercase()), value);
        }
    }
}

/// One word where all cores say the same.
fn distinct(text: &str) -> String {
    let mut words: Vec<&str> = text.split_whitespace().collect();
    words.sort_unstable();
    words.dedup();
    words.join(", ")
}
