//! Arguments of the server, and what they mean once everything left open is decided.

use crate::experts::Backend;
use crate::fault::Fault;
use crate::forward::Mixture;
use crate::model::Dimensions;
use crate::router::{InvalidVariable, Oea, Scoring};
use crate::scheduler::{Prefixes, Settings};
use serde_json::{Map, Value, json};
use std::hash::{BuildHasher as _, Hasher as _};

/// The architecture that the model claims.
pub(super) const ARCHITECTURE: &str = "PocketMoeForCausalLM";

/// Arguments of `pocketmoe serve`, under SGLang's names where SGLang has them.
#[derive(Clone, Debug, clap::Args)]
pub struct ServeArgs {
    /// The model: pocket-moe, or pocket-moe-tiny for tests
    #[arg(long, visible_alias = "model", default_value = "pocket-moe", value_name = "PRESET")]
    pub model_path: String,
    /// The name in answers and in /v1/models; the model's own when absent
    #[arg(long, value_name = "NAME")]
    pub served_model_name: Option<String>,
    /// What `/model_info` reports as the tokenizer, for clients that load one
    #[arg(long, value_name = "PATH")]
    pub tokenizer_path: Option<String>,
    /// Address to listen on
    #[arg(long, default_value = "127.0.0.1")]
    pub host: String,
    /// Port to listen on; 0 lets the system choose, and the log says which
    #[arg(long, default_value_t = 30000)]
    pub port: u16,
    /// Seed of weights and sampling; chosen at random when absent, as SGLang does
    #[arg(long, value_name = "SEED")]
    pub random_seed: Option<u32>,
    /// How routed experts are computed
    #[arg(long, value_enum, default_value_t)]
    pub moe_runner_backend: MoeRunnerBackend,
    /// How router outputs become scores
    #[arg(long, value_enum, default_value_t)]
    pub router_scoring: Scoring,
    /// Sequences that may run together
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=4096), value_name = "N")]
    pub max_running_requests: u32,
    /// Tokens that the key and value cache holds
    #[arg(long, default_value_t = 16384, value_parser = clap::value_parser!(u32).range(2..=1_000_000), value_name = "N")]
    pub max_total_tokens: u32,
    /// Longest sequence, prompt and output together
    #[arg(long, default_value_t = 4096, value_parser = clap::value_parser!(u32).range(2..=1_000_000), value_name = "N")]
    pub context_length: u32,
    /// Prompt tokens in one prefill step; -1 does not cut prompts
    #[arg(long, default_value_t = 512, allow_negative_numbers = true, value_name = "N",
          value_parser = clap::value_parser!(i64).range(-1..=1_000_000))]
    pub chunked_prefill_size: i64,
    /// Do not keep prefixes
    #[arg(long)]
    pub disable_radix_cache: bool,
    /// Decode steps between two lines of the log
    #[arg(long, default_value_t = 40, value_parser = clap::value_parser!(u32).range(1..), value_name = "STEPS")]
    pub decode_log_interval: u32,
    /// Do not generate once before being ready
    #[arg(long)]
    pub skip_server_warmup: bool,
    /// Bearer token that requests must bring; `/server_info` shows it, as SGLang's does
    #[arg(long, value_name = "KEY")]
    pub api_key: Option<String>,
    /// Threads that compute experts
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=256), value_name = "N")]
    pub compute_threads: u32,
    /// Something to do wrong, for tests; may be repeated
    #[arg(long, value_name = "NAME[=VALUE]")]
    pub fault: Vec<Fault>,
}

/// `--moe-runner-backend`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum MoeRunnerBackend {
    /// The server decides: grouped
    #[default]
    Auto,
    /// Token by token
    Loop,
    /// Expert by expert
    Grouped,
}

/// Why the server did not start.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// No such model.
    #[error("`--model-path` is `{0}`, want one of `pocket-moe`, `pocket-moe-tiny`")]
    Model(String),
    /// A variable of opportunistic expert activation is not usable.
    #[error(transparent)]
    Variable(#[from] InvalidVariable),
    /// A chunk of no tokens would never finish a prompt.
    #[error("`--chunked-prefill-size` is `0`, want at least 1, or -1 to not cut prompts")]
    Chunk,
    /// The address is not free or not ours.
    #[error("cannot listen on `{address}`: {source}; choose another `--port`, or stop what listens there")]
    Bind {
        /// `host:port`.
        address: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// The engine's thread ended.
    #[error("the scheduler panicked; the message above says where. This is a bug of `pocketmoe`")]
    Engine,
    /// Signals, threads or sockets of the system.
    #[error(transparent)]
    System(#[from] std::io::Error),
}

/// All settings, decided.
pub(super) struct Resolved {
    pub(super) dimensions: Dimensions,
    pub(super) model_path: String,
    pub(super) served_model_name: String,
    pub(super) tokenizer_path: String,
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) random_seed: u64,
    pub(super) backend: Backend,
    pub(super) scoring: Scoring,
    pub(super) max_running_requests: usize,
    pub(super) max_total_tokens: usize,
    pub(super) context_length: usize,
    pub(super) chunked_prefill_size: i64,
    pub(super) prefixes: Prefixes,
    pub(super) decode_log_interval: u32,
    pub(super) skip_server_warmup: bool,
    pub(super) api_key: Option<String>,
    pub(super) compute_threads: usize,
    pub(super) oea: Option<Oea>,
    pub(super) faults: Vec<Fault>,
    pub(super) launch_command: String,
}

impl Resolved {
    /// Decides what was left open and reads the two variables of opportunistic expert activation.
    pub(super) fn new(args: ServeArgs) -> Result<Self, ServeError> {
        let dimensions =
            Dimensions::preset(&args.model_path).ok_or_else(|| ServeError::Model(args.model_path.clone()))?;
        if args.chunked_prefill_size == 0 {
            return Err(ServeError::Chunk);
        }
        let asked = match args.moe_runner_backend {
            MoeRunnerBackend::Loop => Backend::Loop,
            MoeRunnerBackend::Auto | MoeRunnerBackend::Grouped => Backend::Grouped,
        };
        let backend = if args.fault.contains(&Fault::WrongBackend) { asked.other() } else { asked };
        let [k0, min_batch] = ["SGLANG_OEA_K0", "SGLANG_OEA_MIN_BATCH"].map(variable);
        let oea = Oea::from_values(k0.as_deref(), min_batch.as_deref(), dimensions.top_k)?;
        Ok(Self {
            dimensions,
            served_model_name: args.served_model_name.unwrap_or_else(|| args.model_path.clone()),
            tokenizer_path: args.tokenizer_path.unwrap_or_else(|| args.model_path.clone()),
            model_path: args.model_path,
            host: args.host,
            port: args.port,
            random_seed: args.random_seed.map_or_else(random_seed, u64::from),
            backend,
            scoring: args.router_scoring,
            max_running_requests: args.max_running_requests as usize,
            max_total_tokens: args.max_total_tokens as usize,
            context_length: args.context_length as usize,
            chunked_prefill_size: args.chunked_prefill_size,
            prefixes: if args.disable_radix_cache { Prefixes::Dropped } else { Prefixes::Kept },
            decode_log_interval: args.decode_log_interval,
            skip_server_warmup: args.skip_server_warmup,
            api_key: args.api_key,
            compute_threads: args.compute_threads as usize,
            oea,
            faults: args.fault,
            launch_command: std::env::args().collect::<Vec<_>>().join(" "),
        })
    }

    /// The port that was really bound.
    pub(super) fn set_port(&mut self, port: u16) {
        self.port = port;
    }

    /// What the scheduler needs.
    pub(super) fn scheduler(&self) -> Settings {
        let stall = |fault: &Fault| match fault {
            Fault::Stall { pause, request } => Some((*pause, *request)),
            _ => None,
        };
        Settings {
            max_running_requests: self.max_running_requests,
            chunked_prefill_size: usize::try_from(self.chunked_prefill_size).unwrap_or(usize::MAX),
            max_total_tokens: self.max_total_tokens,
            prefixes: self.prefixes,
            decode_log_interval: u64::from(self.decode_log_interval),
            mixture: Mixture { backend: self.backend, threads: self.compute_threads, scoring: self.scoring, k0: None },
            oea: self.oea,
            random_seed: self.random_seed,
            stall: self.faults.iter().find_map(stall),
        }
    }

    /// Longest prompt and output together that can be served.
    pub(super) fn longest(&self) -> usize {
        self.context_length.min(self.max_total_tokens)
    }

    /// Every argument with the value in force, in the order of the command line's help.
    pub(super) fn arguments(&self) -> Map<String, Value> {
        let arguments = json!({
            "model_path": self.model_path,
            "served_model_name": self.served_model_name,
            "tokenizer_path": self.tokenizer_path,
            "host": self.host,
            "port": self.port,
            "random_seed": self.random_seed,
            "moe_runner_backend": self.backend.name(),
            "router_scoring": self.scoring.name(),
            "max_running_requests": self.max_running_requests,
            "max_total_tokens": self.max_total_tokens,
            "context_length": self.context_length,
            "chunked_prefill_size": self.chunked_prefill_size,
            "disable_radix_cache": self.prefixes == Prefixes::Dropped,
            "decode_log_interval": self.decode_log_interval,
            "skip_server_warmup": self.skip_server_warmup,
            "api_key": self.api_key,
            "compute_threads": self.compute_threads,
        });
        arguments.as_object().cloned().unwrap_or_default()
    }

    /// The arguments as the log's `server_args` line writes them.
    pub(super) fn python_repr(&self) -> String {
        let pairs: Vec<_> = self.arguments().iter().map(|(name, value)| format!("{name}={}", python(value))).collect();
        pairs.join(", ")
    }
}

fn python(value: &Value) -> String {
    match value {
        Value::Null => "None".into(),
        Value::Bool(true) => "True".into(),
        Value::Bool(false) => "False".into(),
        Value::String(text) => format!("'{}'", text.replace('\\', "\\\\").replace('\'', "\\'")),
        other => other.to_string(),
    }
}

#[expect(clippy::disallowed_methods, reason = "the engine's own switches are variables; read once, at the start")]
fn variable(name: &str) -> Option<String> {
    match std::env::var(name) {
        Ok(value) => Some(value),
        Err(std::env::VarError::NotPresent) => None,
        // Not text, so not a number either: let the check refuse it by name.
        Err(std::env::VarError::NotUnicode(raw)) => Some(raw.to_string_lossy().into_owned()),
    }
}

/// SGLang draws a seed below 2^30 when none is given. The hasher's keys are the standard library's random numbers.
fn random_seed() -> u64 {
    std::collections::hash_map::RandomState::new().build_hasher().finish() >> 34
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: ServeArgs,
    }

    fn parsed(words: &str) -> Result<ServeArgs, clap::Error> {
        Line::try_parse_from(std::iter::once("serve").chain(words.split_whitespace())).map(|line| line.args)
    }

    fn resolved(words: &str) -> Resolved {
        Resolved::new(parsed(words).unwrap()).unwrap()
    }

    #[test]
    fn no_arguments_resolve_to_definite_values() {
        let arguments = resolved("").arguments();
        assert_eq!(arguments["moe_runner_backend"], "grouped");
        assert_eq!(arguments["port"], 30000);
        assert!(arguments["random_seed"].as_u64().unwrap() < 1 << 30);
        assert_eq!(arguments["api_key"], Value::Null);
    }

    #[test]
    fn abbreviated_and_unknown_flags_are_refused() {
        for words in ["--random-s 1", "--moe-runner-backend triton", "--tp-size 2", "--fault nothing", "extra"] {
            assert!(parsed(words).is_err(), "{words}");
        }
        assert!(parsed("--chunked-prefill-size -1").is_ok());
    }

    #[test]
    fn what_cannot_work_is_an_error() {
        assert!(Resolved::new(parsed("--chunked-prefill-size 0").unwrap()).is_err());
        assert!(Resolved::new(parsed("--model-path gpt").unwrap()).is_err());
    }

    #[test]
    fn the_wrong_backend_is_the_other_one() {
        assert_eq!(resolved("--fault wrong-backend").backend, Backend::Loop);
        assert_eq!(resolved("--fault wrong-backend --moe-runner-backend loop").backend, Backend::Grouped);
        assert_eq!(resolved("--moe-runner-backend loop").backend, Backend::Loop);
    }

    #[test]
    fn arguments_are_written_as_python_writes_them() {
        let text = resolved("--random-seed 3 --api-key a'b --disable-radix-cache").python_repr();
        assert!(text.starts_with("model_path='pocket-moe', "), "{text}");
        assert!(text.contains("random_seed=3, ") && text.contains("disable_radix_cache=True"), "{text}");
        assert!(text.contains("api_key='a\\'b'"), "{text}");
    }
}
