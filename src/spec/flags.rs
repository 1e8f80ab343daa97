//! Flags and variables of engines and clients: full names, aliases, what labbook sets itself, and what fakes results.
//!
//! Invariant: one flag has one name everywhere. An abbreviation is never expanded: argument parsers accept any prefix, and
//! which flag a prefix means changes with the version.
//! Source: `ServerArgs` of SGLang 0.5.8 to 0.5.23, `bench_serving` 0.3.0 to 0.5.23, and `pocketmoe serve --help`.

use crate::question::{Asked, Engine};

/// Second spellings of server flags that mean the same in every version that knows both.
const ALIASES: &[(&str, &str)] = &[
    ("tp", "tp-size"),
    ("tensor-parallel-size", "tp-size"),
    ("dp", "dp-size"),
    ("data-parallel-size", "dp-size"),
    ("pp", "pp-size"),
    ("pipeline-parallel-size", "pp-size"),
    ("ep", "ep-size"),
    ("expert-parallel-size", "ep-size"),
    ("model", "model-path"),
];

/// Flags of SGLang's server that an abbreviation is likely to mean; not all it has.
const SGLANG: &[&str] = &[
    "attention-backend",
    "attn-dp-size",
    "chunked-prefill-size",
    "context-length",
    "cuda-graph-backend-decode",
    "cuda-graph-backend-prefill",
    "cuda-graph-bs",
    "cuda-graph-bs-decode",
    "cuda-graph-bs-prefill",
    "cuda-graph-config",
    "cuda-graph-max-bs",
    "cuda-graph-max-bs-decode",
    "cuda-graph-max-bs-prefill",
    "decode-attention-backend",
    "decode-log-interval",
    "disable-cuda-graph",
    "disable-flashinfer-autotune",
    "disable-overlap-schedule",
    "disable-radix-cache",
    "dp-size",
    "dtype",
    "enable-deterministic-inference",
    "enable-dp-attention",
    "enable-metrics",
    "enable-mixed-chunk",
    "enable-torch-compile",
    "ep-size",
    "fp4-gemm-backend",
    "fp8-gemm-backend",
    "json-model-override-args",
    "kv-cache-dtype",
    "load-format",
    "max-prefill-tokens",
    "max-running-requests",
    "max-total-tokens",
    "mem-fraction-static",
    "moe-a2a-backend",
    "moe-runner-backend",
    "num-continuous-decode-steps",
    "page-size",
    "pp-size",
    "prefill-attention-backend",
    "quantization",
    "radix-eviction-policy",
    "random-seed",
    "schedule-conservativeness",
    "schedule-policy",
    "served-model-name",
    "skip-server-warmup",
    "speculative-algorithm",
    "speculative-draft-model-path",
    "speculative-eagle-topk",
    "speculative-num-draft-tokens",
    "speculative-num-steps",
    "stream-interval",
    "tokenizer-path",
    "tp-size",
    "trust-remote-code",
    "watchdog-timeout",
];

/// All flags of the pocket engine's server that a spec may set, and whether they take a value.
const POCKETMOE: &[(&str, Takes)] = &[
    ("served-model-name", Takes::Value),
    ("tokenizer-path", Takes::Value),
    ("random-seed", Takes::Value),
    ("moe-runner-backend", Takes::Value),
    ("router-scoring", Takes::Value),
    ("max-running-requests", Takes::Value),
    ("max-total-tokens", Takes::Value),
    ("context-length", Takes::Value),
    ("chunked-prefill-size", Takes::Value),
    ("disable-radix-cache", Takes::Nothing),
    ("decode-log-interval", Takes::Value),
    ("skip-server-warmup", Takes::Nothing),
    ("compute-threads", Takes::Value),
    ("fault", Takes::Value),
];

/// Flags of `bench_serving` in any version that a spec may set.
const BENCH_SERVING: &[&str] = &[
    "agentic-max-turns",
    "apply-chat-template",
    "cache-report",
    "dataset-offset",
    "disable-stream",
    "disable-tqdm",
    "extra-request-body",
    "fake-prefill",
    "flush-cache-timeout",
    "goodput",
    "gsp-fast-prepare",
    "gsp-group-distribution",
    "gsp-num-groups",
    "gsp-num-turns",
    "gsp-ordered",
    "gsp-output-len",
    "gsp-prompts-per-group",
    "gsp-question-len",
    "gsp-range-ratio",
    "gsp-send-routing-key",
    "gsp-system-prompt-len",
    "gsp-zipf-alpha",
    "header",
    "image-content",
    "image-count",
    "image-format",
    "image-resolution",
    "logprob-start-len",
    "lora-name",
    "lora-request-distribution",
    "lora-zipf-alpha",
    "mooncake-num-rounds",
    "mooncake-slowdown-factor",
    "mooncake-workload",
    "pd-separated",
    "plot-throughput",
    "print-requests",
    "profile",
    "profile-activities",
    "profile-by-stage",
    "profile-decode-url",
    "profile-num-steps",
    "profile-output-dir",
    "profile-prefill-url",
    "profile-prefix",
    "profile-stages",
    "profile-start-step",
    "profile-steps",
    "prompt-suffix",
    "random-image-count",
    "return-logprob",
    "return-routed-experts",
    "rust-client",
    "rust-worker-threads",
    "served-model-name",
    "sharegpt-context-len",
    "sharegpt-output-len",
    "speed-bench-category",
    "speed-bench-output-len",
    "temperature",
    "token-ids-logprob",
    "tokenize-prompt",
    "tokenizer",
    "top-logprobs-num",
    "top-p",
    "use-trace-timestamps",
];

/// Server flags that labbook sets, and where a spec says it instead.
const SERVER_RESERVED: &[(&str, &str)] = &[
    ("host", "the server listens on 127.0.0.1, where the client is"),
    ("port", "labbook chooses a free port and proves that the server that answers is ours"),
    ("api-key", "a key in a spec would be published, and the client would need it too"),
    ("admin-api-key", "a key in a spec would be published"),
    ("config", "settings in another file would not be seen; write them under `server.args`"),
    ("model-path", "write `server.model`"),
];

/// Client flags that labbook sets, and where a spec says it instead.
const CLIENT_RESERVED: &[(&str, &str)] = &[
    ("backend", "it follows from `server.engine`"),
    ("host", "labbook sets it to where the server listens"),
    ("port", "labbook sets it to where the server listens"),
    ("base-url", "labbook sets it to where the server listens"),
    ("model", "write `server.model`"),
    ("dataset-name", "write `workload.dataset`"),
    ("dataset-path", "write `workload.dataset_path`"),
    ("num-prompts", "write `workload.prompts_per_user`; the number is that times the concurrency"),
    ("random-input-len", "write `workload.input_tokens`"),
    ("random-output-len", "write `workload.output_tokens`"),
    ("random-range-ratio", "write `workload.range_ratio`"),
    ("request-rate", "write `workload.request_rate`"),
    ("max-concurrency", "write `workload.concurrency`"),
    ("seed", "write `workload.seed`"),
    ("disable-ignore-eos", "write `workload.ignore_eos: false`"),
    ("warmup-requests", "write `workload.warmup`"),
    ("flush-cache", "write `workload.warmup`"),
    ("output-file", "labbook sets it to a file of the run"),
    ("output-details", "labbook always asks for them"),
    ("tag", "labbook sets it to the trial's name"),
    ("ready-check-timeout-sec", "labbook starts the client when the server is ready"),
];

/// Whether a flag is followed by a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Takes {
    /// `--flag value`.
    Value,
    /// `--flag`.
    Nothing,
}

/// Whose flag it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Program {
    /// The server of an engine.
    Server(Engine),
    /// `sglang.bench_serving`.
    BenchServing,
    /// `pocketmoe load`.
    PocketmoeLoad,
}

/// What is wrong with the name of a flag.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum BadFlag {
    /// Not letters, digits and dashes; the name that was probably meant.
    Name(String),
    /// labbook sets it; where the spec says it instead.
    Reserved(&'static str),
    /// A prefix of these.
    Abbreviated(Vec<&'static str>),
    /// The program has no such flag; all it has.
    Unknown(Vec<&'static str>),
}

/// Returns the one name of a server flag: no dashes in front, dashes for underscores, and the alias resolved (`tp` is
/// `tp-size`). Observed arguments go through the same function.
pub fn full_name(engine: Engine, flag: &str) -> String {
    let name = flag.trim_start_matches('-').replace('_', "-");
    let known = matches!(engine, Engine::Sglang | Engine::Vllm | Engine::Pocketmoe);
    let aliased = ALIASES.iter().find(|(alias, _)| known && *alias == name);
    aliased.map_or(name, |(_, full)| (*full).to_owned())
}

/// Returns the one name of a client flag: no dashes in front, dashes for underscores.
pub fn full_client_name(flag: &str) -> String {
    flag.trim_start_matches('-').replace('_', "-")
}

/// Returns the full name of a typed flag, or what is wrong with it.
pub(crate) fn flag(program: Program, typed: &str) -> Result<String, BadFlag> {
    let (full, reserved) = match program {
        Program::Server(engine) => (full_name(engine, typed), SERVER_RESERVED),
        Program::BenchServing | Program::PocketmoeLoad => (full_client_name(typed), CLIENT_RESERVED),
    };
    let plain = |character: char| character.is_ascii_lowercase() || character.is_ascii_digit() || character == '-';
    if typed.starts_with('-') || full.is_empty() || !full.chars().all(plain) {
        return Err(BadFlag::Name(full.to_lowercase()));
    }
    if let Some((_, instead)) = reserved.iter().find(|(name, _)| *name == full) {
        return Err(BadFlag::Reserved(instead));
    }
    let known = known(program);
    if known.contains(&full.as_str()) {
        return Ok(full);
    }
    let meant = |name: &&&'static str| name.starts_with(full.as_str());
    // `num-prompt` is as much an abbreviation of a flag that labbook sets.
    let set_here = reserved.iter().map(|(name, _)| name).filter(meant).count();
    let longer: Vec<&str> = known.iter().filter(meant).copied().collect();
    if !longer.is_empty() || set_here > 0 {
        let reserved = reserved.iter().map(|(name, _)| name).filter(meant).copied();
        return Err(BadFlag::Abbreviated(longer.iter().copied().chain(reserved).collect()));
    }
    let complete = matches!(program, Program::Server(Engine::Pocketmoe) | Program::PocketmoeLoad);
    if complete { Err(BadFlag::Unknown(known)) } else { Ok(full) }
}

fn known(program: Program) -> Vec<&'static str> {
    match program {
        Program::Server(Engine::Sglang) => SGLANG.to_vec(),
        Program::Server(Engine::Pocketmoe) => POCKETMOE.iter().map(|(name, _)| *name).collect(),
        Program::BenchServing => BENCH_SERVING.to_vec(),
        // `pocketmoe load` has the flags that labbook sets, and no others.
        Program::Server(_) | Program::PocketmoeLoad => Vec::new(),
    }
}

/// Returns whether a flag of a server takes a value, where that is known.
pub fn takes(engine: Engine, full: &str) -> Option<Takes> {
    match engine {
        Engine::Pocketmoe => POCKETMOE.iter().find(|(name, _)| *name == full).map(|(_, takes)| *takes),
        _ => None,
    }
}

/// An argument or variable that fabricates or distorts results.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Unsafe {
    /// Its name under `allow:`.
    pub(crate) allowed_as: String,
    /// What it does.
    pub(crate) why: &'static str,
}

/// Returns what is unsafe about a server argument.
pub(crate) fn unsafe_argument(full: &str, asked: &Asked) -> Option<Unsafe> {
    let why = match (full, asked) {
        (_, Asked::Unset) => return None,
        ("load-format", Asked::Text(format)) if format == "dummy" => "weights are made up",
        ("load-format", Asked::List(formats)) if formats.iter().any(|format| format == "dummy") => {
            "weights are made up"
        }
        ("json-model-override-args", _) => "it changes the model under its name",
        ("fault", _) => "the server does something wrong on purpose",
        _ => return None,
    };
    let allowed_as = if full == "load-format" { "load-format-dummy".to_owned() } else { full.to_owned() };
    Some(Unsafe { allowed_as, why })
}

/// Returns what is unsafe about an argument of the client.
pub(crate) fn unsafe_client_argument(full: &str, asked: &Asked) -> Option<Unsafe> {
    let why = match (full, asked) {
        (_, Asked::Unset) => return None,
        ("fake-prefill", _) => "prompts are not computed",
        ("profile", _) => "the profiler runs, and its end is counted in the duration",
        _ => return None,
    };
    Some(Unsafe { allowed_as: full.to_owned(), why })
}

/// Returns what is unsafe about a server variable.
pub(crate) fn unsafe_variable(name: &str, asked: &Asked) -> Option<Unsafe> {
    if *asked == Asked::Unset {
        return None;
    }
    // SGLang rewrites `SGL_X` to `SGLANG_X` at start.
    let rest = name.strip_prefix("SGLANG_").or_else(|| name.strip_prefix("SGL_"))?;
    let why = if rest.starts_with("SIMULATE_") {
        "it replaces a part of the work by a simulation"
    } else if rest.starts_with("TEST_") || rest.starts_with("DIAG_") {
        "it is for the engine's own tests"
    } else if rest == "RADIX_FORCE_MISS" {
        "it defeats the prefix cache"
    } else if rest == "IS_IN_CI" {
        "it changes server and client in silence (the client then flushes the cache)"
    } else {
        return None;
    };
    Some(Unsafe { allowed_as: name.to_owned(), why })
}

/// Returns whether the value of a variable of this name is a secret, which a committed file must not hold.
pub(crate) fn is_secret(name: &str) -> bool {
    let name = name.to_uppercase();
    name == "HF_TOKEN"
        || ["_API_KEY", "_ACCESS_KEY", "_AUTH_TOKEN", "_HUB_TOKEN", "_SECRET_KEY"].iter().any(|end| name.ends_with(end))
        || name == "API_KEY"
        || ["PASSWORD", "PASSWD"].iter().any(|word| name.contains(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SGLANG_SERVER: Program = Program::Server(Engine::Sglang);

    #[test]
    fn every_spelling_of_a_flag_is_one_name() {
        for spelling in ["tp", "--tp", "--tp-size", "tp_size", "--tensor_parallel_size"] {
            assert_eq!(full_name(Engine::Sglang, spelling), "tp-size");
        }
        assert_eq!(full_name(Engine::Command, "tp"), "tp");
        assert_eq!(full_name(Engine::Sglang, ""), "");
        assert_eq!(flag(SGLANG_SERVER, "moe_runner_backend"), Ok("moe-runner-backend".into()));
        assert_eq!(flag(SGLANG_SERVER, "a-flag-of-next-year"), Ok("a-flag-of-next-year".into()));
    }

    #[test]
    fn names_that_are_none_abbreviations_and_reserved_ones_are_refused() {
        assert!(matches!(flag(SGLANG_SERVER, ""), Err(BadFlag::Name(_))));
        assert_eq!(flag(SGLANG_SERVER, "--tp-size"), Err(BadFlag::Name("tp-size".into())));
        assert_eq!(flag(SGLANG_SERVER, "mem-fraction"), Err(BadFlag::Abbreviated(vec!["mem-fraction-static"])));
        assert!(matches!(flag(SGLANG_SERVER, "port"), Err(BadFlag::Reserved(_))));
        assert!(matches!(flag(SGLANG_SERVER, "model"), Err(BadFlag::Reserved(_))));
        assert!(matches!(flag(Program::Server(Engine::Pocketmoe), "tp-size"), Err(BadFlag::Unknown(_))));
        assert!(matches!(flag(Program::BenchServing, "num-prompt"), Err(BadFlag::Abbreviated(_))));
        assert!(matches!(flag(Program::PocketmoeLoad, "temperature"), Err(BadFlag::Unknown(_))));
    }

    #[test]
    #[expect(clippy::print_stderr, reason = "a skipped test says so")]
    fn no_real_flag_of_the_client_is_taken_for_an_abbreviation() {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/field/versions.json");
        let Ok(text) = std::fs::read_to_string(&path) else {
            eprintln!("skipped: {} is not here", path.display());
            return;
        };
        let versions: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        let newest = versions["0.5.23"]["flags"].as_object().expect("flags");
        assert!(newest.len() > 50);
        for name in newest.keys() {
            let found = flag(Program::BenchServing, name.trim_start_matches('-'));
            assert!(matches!(found, Ok(_) | Err(BadFlag::Reserved(_))), "{name}: {found:?}");
        }
    }

    #[test]
    fn settings_that_fake_results_are_known() {
        let text = |value: &str| Asked::Text(value.into());
        assert!(unsafe_argument("load-format", &text("auto")).is_none());
        assert!(unsafe_argument("load-format", &text("dummy")).is_some());
        assert!(unsafe_argument("load-format", &Asked::List(vec!["dummy".into()])).is_some());
        assert!(unsafe_client_argument("fake-prefill", &Asked::Set).is_some());
        assert!(unsafe_client_argument("profile-prefix", &text("x")).is_none());
        for name in ["SGLANG_SIMULATE_ACC_LEN", "SGL_TEST_RETRACT", "SGLANG_IS_IN_CI", "SGLANG_DIAG_X"] {
            assert!(unsafe_variable(name, &text("1")).is_some(), "{name}");
            assert!(unsafe_variable(name, &Asked::Unset).is_none());
        }
        assert!(unsafe_variable("SGLANG_OEA_K0", &text("4")).is_none());
        assert!(unsafe_variable("", &text("4")).is_none());
        assert!(
            is_secret("HF_TOKEN") && is_secret("OPENAI_API_KEY") && !is_secret("SGLANG_TOKEN_STEP") && !is_secret("")
        );
    }
}
