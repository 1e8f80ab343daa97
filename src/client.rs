//! The load clients: from a planned trial to the exact command that measures it.
//!
//! Invariant: everything that shapes the load stands in the argv, so that what was measured can be read from the record
//! without knowing any client's defaults; the client runs in the trial's output folder and writes `bench.jsonl` there.

use std::num::NonZeroU16;
use std::path::Path;

use crate::plan::PlannedTrial;
use crate::question::Asked;
use crate::record::RESULT_FILE;
use crate::script::input::Command;
use crate::spec::{ArmSettings, Cache, ClientKind, Eos, Spec};

/// The warm-up wave draws other prompts than any measured pass, so that it warms kernels and not the prefix cache.
const WARMUP_SEED_OFFSET: u64 = 1_000_000;

/// Where a session will run.
#[derive(Debug, Clone)]
pub struct Place<'a> {
    /// Folder of the spec, which patches are relative to.
    pub spec_folder: &'a Path,
    /// Where the files beside the spec are on the host.
    pub files: &'a Path,
    /// Path of this program on the host.
    pub labbook: &'a str,
    /// Port of the server.
    pub port: NonZeroU16,
}

/// Returns the command of the measured client.
pub fn measured(spec: &Spec, settings: &ArmSettings, trial: &PlannedTrial, place: &Place) -> Command {
    let load = Load { num_prompts: trial.num_prompts, seed: trial.seed, tag: trial.label.clone() };
    command(spec, settings, trial, load, place)
}

/// Returns the command of the wave before it; `None` when the spec asks for none.
pub fn warmup(spec: &Spec, settings: &ArmSettings, trial: &PlannedTrial, place: &Place) -> Option<Command> {
    let waves = spec.workload.warmup.waves;
    if waves == 0 {
        return None;
    }
    let load = Load {
        num_prompts: waves * trial.concurrency,
        seed: trial.seed + WARMUP_SEED_OFFSET,
        tag: format!("{}-warmup", trial.label),
    };
    Some(command(spec, settings, trial, load, place))
}

/// Returns whether the prefix cache is flushed between the wave and the measured client.
pub fn flushes(spec: &Spec) -> bool {
    spec.workload.warmup.cache == Cache::Flushed
}

/// Returns a command that succeeds only where the client can run.
pub fn preflight(settings: &ArmSettings, place: &Place) -> Command {
    let mut argv = program(settings, place.labbook);
    argv.push("--help".to_owned());
    Command { argv: argv.into_iter().map(Into::into).collect(), env: environment(settings) }
}

struct Load {
    num_prompts: u64,
    seed: u64,
    tag: String,
}

fn command(spec: &Spec, settings: &ArmSettings, trial: &PlannedTrial, load: Load, place: &Place) -> Command {
    let workload = &spec.workload;
    let mut argv = program(settings, place.labbook);
    let mut option = |name: &str, value: String| argv.extend([format!("--{name}"), value]);
    option("backend", "sglang".to_owned());
    option("base-url", format!("http://127.0.0.1:{}", place.port));
    option("dataset-name", workload.dataset.clone());
    if let Some(path) = &workload.dataset_path {
        // A file beside the spec is part of the design; the client runs elsewhere and needs its whole path.
        let path =
            if spec.files.contains_key(path) { place.files.join(path).display().to_string() } else { path.clone() };
        option("dataset-path", path);
    }
    if settings.client.kind == ClientKind::SglangBenchServing
        && let Some(model) = &settings.model
    {
        option("model", model.clone());
        option("tokenizer", model.clone());
    }
    option("num-prompts", load.num_prompts.to_string());
    option("random-input-len", trial.input_tokens.to_string());
    option("random-output-len", trial.output_tokens.to_string());
    option("random-range-ratio", decimal(workload.range_ratio));
    option("request-rate", trial.request_rate.map_or_else(|| "inf".to_owned(), decimal));
    option("max-concurrency", trial.concurrency.to_string());
    option("seed", load.seed.to_string());
    option("warmup-requests", "0".to_owned());
    option("output-file", RESULT_FILE.to_owned());
    if settings.client.kind == ClientKind::PocketmoeLoad || tags(settings) {
        option("tag", load.tag);
    }
    argv.push("--output-details".to_owned());
    if workload.eos == Eos::Ends {
        argv.push("--disable-ignore-eos".to_owned());
    }
    argv.extend(settings.client.args.iter().flat_map(|(name, asked)| flag(name, asked)));
    Command { argv: argv.into_iter().map(Into::into).collect(), env: environment(settings) }
}

/// `--tag` came with 0.5.5; an older client would refuse it.
fn tags(settings: &ArmSettings) -> bool {
    let Some(version) = &settings.client.version else { return true };
    let parts: Vec<u64> = version.split('.').map_while(|part| part.parse().ok()).collect();
    parts.as_slice() >= [0, 5, 5].as_slice()
}

fn program(settings: &ArmSettings, labbook: &str) -> Vec<String> {
    match settings.client.kind {
        ClientKind::PocketmoeLoad => [labbook, "pocket", "load"].map(str::to_owned).to_vec(),
        ClientKind::SglangBenchServing => {
            let mut argv = python(settings);
            argv.extend(["-m", "sglang.bench_serving"].map(str::to_owned));
            argv
        }
    }
}

/// Returns the interpreter that runs the published client.
pub fn python(settings: &ArmSettings) -> Vec<String> {
    vec![settings.client.python.clone().unwrap_or_else(|| "python3".to_owned())]
}

fn environment(settings: &ArmSettings) -> Vec<(String, std::ffi::OsString)> {
    match settings.client.kind {
        ClientKind::PocketmoeLoad => Vec::new(),
        // A host without a way out would wait for the hub at every start; the model is on the disk.
        ClientKind::SglangBenchServing => {
            vec![("HF_HUB_OFFLINE".to_owned(), "1".into()), ("TRANSFORMERS_OFFLINE".to_owned(), "1".into())]
        }
    }
}

/// Returns the words of one argument: none when it is asked to be absent.
pub fn flag(name: &str, asked: &Asked) -> Vec<String> {
    let flag = format!("--{name}");
    match asked {
        Asked::Unset => Vec::new(),
        Asked::Set => vec![flag],
        Asked::Text(value) => vec![flag, value.clone()],
        Asked::List(values) => std::iter::once(flag).chain(values.iter().cloned()).collect(),
    }
}

/// Prints a number as the clients read it back: `1.0`, `8.5`.
fn decimal(number: f64) -> String {
    format!("{number:?}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_argument_is_as_many_words_as_it_says() {
        assert!(flag("x", &Asked::Unset).is_empty());
        assert_eq!(flag("x", &Asked::Set), ["--x"]);
        assert_eq!(flag("x", &Asked::Text("a b".into())), ["--x", "a b"]);
        assert_eq!(flag("x", &Asked::List(vec!["1".into(), "2".into()])), ["--x", "1", "2"]);
        assert_eq!(decimal(1.0), "1.0");
    }
}
