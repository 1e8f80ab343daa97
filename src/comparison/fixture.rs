//! A clean experiment in code, for tests that break one thing in it.

use indexmap::IndexMap;

use crate::digest::Digest;
use crate::fact::{FactValue, Fingerprint};
use crate::metric::Metric;
use crate::question::{Asked, Axis, Claim, Engine, Evidence, Expect, Headline, Level, Over, Question};
use crate::record::{Outcome, Record, Tier, Written};
use crate::row::Row;

use super::Condition;

pub(crate) const KEY: &str = "server.env.SGLANG_OEA_K0";
pub(crate) const METRIC: Metric = Metric::OutputThroughput;

/// Two arms, two levels, five blocks, one claim a level.
pub(crate) fn question() -> Question {
    let claim =
        |at: &str, expect| Claim { metric: METRIC, treatment: "on".into(), at: Level(at.into()), expect, by: None };
    Question {
        experiment: "oea".into(),
        engine: Some(Engine::Sglang),
        factor: vec![KEY.into()],
        arms: IndexMap::from([("off".into(), vec![Asked::Unset]), ("on".into(), vec![Asked::Text("4".into())])]),
        control: "off".into(),
        entails: vec![],
        evidence: IndexMap::from([("on".into(), Evidence { log: "OEA active".into() })]),
        axis: Axis::Concurrency,
        levels: vec![Level("4".into()), Level("16".into())],
        repeats: 5,
        passes: 1,
        margin: Some(0.02),
        headline: Some(Headline { metric: METRIC, treatment: "on".into(), over: Over::All }),
        claims: IndexMap::from([
            ("faster-at-16".into(), claim("16", Expect::Higher)),
            ("same-at-4".into(), claim("4", Expect::Unchanged)),
        ]),
    }
}

pub(crate) fn at(level: &str) -> Condition {
    Condition { metric: METRIC, treatment: "on".into(), level: Level(level.into()) }
}

const SAME: [(&str, &str); 46] = [
    ("source.commit", "1bd907624d1bfdbfd579b311ee26769de33ad146"),
    ("source.dirty", "clean"),
    ("source.submodules", "none"),
    ("packages.sglang", "0.5.23"),
    ("binaries.common_ops.abi3.so", "03599b78"),
    ("image.digest", "sha256:4e399aca"),
    ("nccl.version", "2.28.3"),
    ("server.args.model-path", "example/moe"),
    ("server.args.random-seed", "1"),
    ("server.env.NCCL_ALGO", "Ring"),
    ("server.resolved.attention_backend", "fa3"),
    ("server.capacity.kv_tokens", "367509"),
    ("server.capacity.max_running_requests", "256"),
    ("server.nice", "0"),
    ("server.scheduling", "normal"),
    ("server.affinity", "0-63"),
    ("server.limits.open_files", "1048576"),
    ("server.identity", "own"),
    ("model.path", "example/moe"),
    ("model.config_sha256", "5ef9dd99"),
    ("model.revision", "0d6fc2f4"),
    ("workload.lengths_sha256", "1107b530"),
    ("workload.seed", "43"),
    ("workload.warmup", "8"),
    ("workload.flush_status", "200 Cache flushed"),
    ("workload.sampling", "temperature=0"),
    ("labbook.session_sha256", "79ea33cf"),
    ("client.name", "sglang.bench_serving"),
    ("client.version", "0.5.23"),
    ("client.host.id", "m:2e8da8b6"),
    ("gpu.count", "1"),
    ("gpu.driver", "590.48.01"),
    ("gpu.topology_sha256", "1575b72d"),
    ("gpu.0.name", "NVIDIA H200"),
    ("gpu.0.uuid", "GPU-3a26caad"),
    ("gpu.0.ecc", "enabled"),
    ("gpu.0.mig", "disabled"),
    ("gpu.0.power_limit_w", "700"),
    ("gpu.0.foreign_mib", "0"),
    ("host.id", "m:2e8da8b6"),
    ("host.boot_id", "813efcaa"),
    ("host.kernel", "6.1.0"),
    ("host.cpu", "Xeon"),
    ("host.governor", "performance"),
    ("host.numa", "2 nodes"),
    ("host.nodes", "1"),
];

/// One run, as clean as can be.
pub(crate) fn record(arm: &str, block: u32, level: &str, rate: f64) -> Record {
    let mut facts = Fingerprint::default();
    for (key, value) in SAME {
        facts.text(key, value);
    }
    let treated = arm == "on";
    facts.insert(KEY, if treated { FactValue::text("4") } else { FactValue::Unset });
    facts.text("treatment.evidence", if treated { "present" } else { "absent" });
    facts.text("workload.concurrency", level);
    let prompts = 8 * Level(level.into()).number() as u64;
    facts.text("workload.num_prompts", prompts.to_string());
    facts.text("labbook.rules", "1");
    facts.text("time.utc_start", format!("2026-04-17T0{block}:05:0{}Z", u8::from(treated)));
    let name = format!("b{block:02}-{arm}");
    let place = format!("{name}-c{level}");
    Record {
        id: Digest::of(&place),
        experiment: "oea".into(),
        edition: Some("4f2a91c0".into()),
        arm: arm.into(),
        block: Some(block),
        attempt: 1,
        session: name,
        position: None,
        level: Level(level.into()),
        pass: 1,
        tier: Tier::Measured,
        outcome: Outcome::Finished,
        facts,
        written: row(rate, prompts),
        result_sha256: Some(Digest::of(format!("row of {place}"))),
        decode_rate: None,
    }
}

/// A row of `prompts` requests of 1024 tokens each, so that no identity is broken and no run is short.
pub(crate) fn row(rate: f64, prompts: u64) -> Written {
    let tokens = prompts * 1024;
    Written::Row(Box::new(Row {
        completed: Some(prompts),
        duration_s: Some(tokens as f64 / rate),
        total_output_tokens: Some(tokens),
        metrics: [(METRIC, rate)].into(),
        ..Row::default()
    }))
}

/// Five blocks: 5 % faster at 16, equal at 4, with a drift that pairing removes and noise of some per mille.
pub(crate) fn records() -> Vec<Record> {
    let mut records = Vec::new();
    for block in 1..=5_u32 {
        let drift = 1.0 + 0.01 * f64::from(block);
        for (level, base, gain) in [("4", 120.0, 1.0), ("16", 400.0, 1.05)] {
            let wobble = 1.0 + 0.002 * f64::from(block * block * 7 % 5) - 0.004;
            records.push(record("off", block, level, base * drift));
            records.push(record("on", block, level, base * drift * gain * wobble));
        }
    }
    records
}

/// Standard normal numbers from a seed: `SplitMix64` and Box and Muller.
pub(crate) struct Normal(u64);

impl Normal {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn uniform(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^= mixed >> 31;
        ((mixed >> 11) as f64 + 0.5) / (1_u64 << 53) as f64
    }

    pub(crate) fn next(&mut self) -> f64 {
        let (one, two) = (self.uniform(), self.uniform());
        (-2.0 * one.ln()).sqrt() * (2.0 * std::f64::consts::PI * two).cos()
    }
}
