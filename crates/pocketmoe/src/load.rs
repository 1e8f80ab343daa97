//! `pocketmoe load`: a load client with the flags and the row of `sglang.bench_serving` 0.5.23.
//!
//! Where it departs from that client, on purpose:
//! - a request fails when the stream brings an error, no token, or no finish reason; `failed` and `num_prompts` are in
//!   the row, and `completed` counts true successes only;
//! - all token counts are the server's;
//! - `GET /server_info` comes after the timed window, so that `duration` is the requests alone;
//! - no warm-up request unless asked for, and no pause after it;
//! - `--output-file` is opened before the run, so that a result cannot be lost at its end;
//! - connections are reused.

mod plan;
mod request;
mod row;
mod summary;

pub use plan::{PlannedRequest, plan_requests, read_requests};

use plan::Arrivals;
use request::{Outcome, Target};
use row::Row;
use serde_json::{Map, Value};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

/// Arguments of `pocketmoe load`, under the names of `sglang.bench_serving`.
#[derive(Clone, Debug, clap::Args)]
pub struct LoadArgs {
    /// Interface to speak
    #[arg(long, value_enum, default_value_t)]
    pub backend: LoadBackend,
    /// Server as http://HOST:PORT; wins over --host and --port
    #[arg(long, value_name = "URL")]
    pub base_url: Option<String>,
    /// Address of the server
    #[arg(long, default_value = "127.0.0.1")]
    pub host: String,
    /// Port of the server
    #[arg(long, default_value_t = 30000)]
    pub port: u16,
    /// Seconds to wait for /v1/models to answer
    #[arg(long, default_value_t = 60, value_name = "SECONDS")]
    pub ready_check_timeout_sec: u64,
    /// Seconds until a request is given up
    #[arg(long, default_value_t = 21600, value_name = "SECONDS")]
    pub request_timeout_sec: u64,
    /// Where prompts come from
    #[arg(long, value_enum, default_value_t)]
    pub dataset_name: DatasetName,
    /// For --dataset-name custom: JSON lines with `prompt` (text) and `output_len` (tokens)
    #[arg(long, value_name = "FILE")]
    pub dataset_path: Option<PathBuf>,
    /// Requests to send
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..), value_name = "N")]
    pub num_prompts: u32,
    /// Tokens of a prompt, at most
    #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..), value_name = "N")]
    pub random_input_len: u32,
    /// Tokens of an output, at most
    #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..), value_name = "N")]
    pub random_output_len: u32,
    /// Lengths are uniform from this share of the most to the most; 1 fixes them
    #[arg(long, default_value_t = 0.0, value_parser = ratio, value_name = "RATIO")]
    pub random_range_ratio: f64,
    /// Requests a second with exponential gaps; inf sends all at once
    #[arg(long, default_value_t = f64::INFINITY, value_parser = rate, value_name = "RATE")]
    pub request_rate: f64,
    /// Requests in flight, at most
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..), value_name = "N")]
    pub max_concurrency: Option<u32>,
    /// Seed of prompts, lengths and gaps
    #[arg(long, default_value_t = 42)]
    pub seed: u64,
    /// Times that the first prompt is sent before the run, with at most 32 output tokens
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub warmup_requests: u32,
    /// Empty the prefix cache before the run; a refusal is an error
    #[arg(long)]
    pub flush_cache: bool,
    /// File to append the row to; its folder must exist
    #[arg(long, value_name = "FILE")]
    pub output_file: Option<PathBuf>,
    /// Add the values of each request to the row
    #[arg(long)]
    pub output_details: bool,
    /// Free text for the row
    #[arg(long)]
    pub tag: Option<String>,
    /// JSON object whose keys replace those of each request's body
    #[arg(long, value_parser = object, value_name = "JSON")]
    pub extra_request_body: Option<Map<String, Value>>,
    /// Let outputs end early
    #[arg(long)]
    pub disable_ignore_eos: bool,
    /// Sampling temperature
    #[arg(long, default_value_t = 0.0)]
    pub temperature: f32,
    /// Bearer token of the server
    #[arg(long, env = "OPENAI_API_KEY", hide_env_values = true, value_name = "KEY")]
    pub api_key: Option<String>,
}

/// `--backend`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum LoadBackend {
    /// `POST /generate`, streamed
    #[default]
    Sglang,
}

/// `--dataset-name`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum DatasetName {
    /// Random words of the pocket vocabulary
    #[default]
    RandomIds,
    /// The file --dataset-path
    Custom,
}

fn ratio(text: &str) -> Result<f64, String> {
    text.parse().ok().filter(|ratio| (0.0..=1.0).contains(ratio)).ok_or_else(|| "want a number from 0 to 1".into())
}

fn rate(text: &str) -> Result<f64, String> {
    text.parse().ok().filter(|rate| *rate > 0.0).ok_or_else(|| "want a positive number or `inf`".into())
}

fn object(text: &str) -> Result<Map<String, Value>, String> {
    serde_json::from_str(text).map_err(|error| format!("want a JSON object: {error}"))
}

/// Why there is no row.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The output file cannot be written.
    #[error("cannot write `{path}`: {source}")]
    Output {
        /// `--output-file`.
        path: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// The prompts cannot be read.
    #[error("`{path}`: {problem}")]
    Dataset {
        /// `--dataset-path`.
        path: String,
        /// What is wrong, with the line.
        problem: String,
    },
    /// `--dataset-path` and `--dataset-name custom` go together.
    #[error("`--dataset-name custom` and `--dataset-path` go together; give both or neither")]
    DatasetPath,
    /// The server does not answer.
    #[error(
        "`{url}` did not answer within {seconds} s ({problem}); start the server, or correct `--host` and `--port`"
    )]
    NotReady {
        /// What was asked.
        url: String,
        /// How long.
        seconds: u64,
        /// The last answer.
        problem: String,
    },
    /// No warm-up request succeeded.
    #[error("the warm-up failed: {0}")]
    WarmUp(String),
    /// The prefix cache was not emptied.
    #[error("`/flush_cache` answered {0}; wait until nothing runs on the server")]
    Flush(String),
    /// Nothing to report.
    #[error("no request succeeded: {failed} of {failed} failed, the first with: {first}")]
    NothingSucceeded {
        /// How many.
        failed: usize,
        /// The first reason.
        first: String,
    },
    /// Standard output or the runtime.
    #[error(transparent)]
    System(#[from] std::io::Error),
    /// The HTTP client could not be set up.
    #[error("cannot set up the HTTP client: {0}")]
    Client(String),
}

/// Runs the load, prints a summary to standard output and appends the row.
///
/// # Errors
///
/// When there is no row: see [`LoadError`]. Failed requests beside successful ones are not an error.
pub fn run(args: LoadArgs) -> Result<(), LoadError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let outcome = runtime.block_on(load(args, &mut std::io::stdout()));
    runtime.shutdown_background();
    outcome
}

async fn load(args: LoadArgs, out: &mut dyn Write) -> Result<(), LoadError> {
    writeln!(out, "benchmark_args={}", summary::namespace(&args))?;
    let output = args.output_file.as_ref().map(|path| open(path)).transpose()?;
    let requests = requests(&args)?;
    let tokens = |count: fn(&PlannedRequest) -> usize| requests.iter().map(count).sum::<usize>();
    writeln!(out, "#Input tokens: {}", tokens(|request| request.input_tokens))?;
    writeln!(out, "#Output tokens: {}", tokens(|request| request.output_tokens))?;
    let target = Arc::new(Target::new(&args)?);
    target.wait_until_ready(Duration::from_secs(args.ready_check_timeout_sec)).await?;
    if args.warmup_requests > 0 {
        writeln!(out, "Starting warmup with {} sequences...", args.warmup_requests)?;
        warm_up(&args, &target, &requests[0]).await?;
        writeln!(out, "Warmup completed with {} sequences.", args.warmup_requests)?;
    }
    if args.flush_cache {
        target.flush().await?;
    }
    let (outcomes, duration) = send(&args, &target, &requests).await;
    let failed = outcomes.iter().filter(|outcome| outcome.error.is_some()).count();
    if failed == outcomes.len() {
        let first = outcomes.into_iter().find_map(|outcome| outcome.error).unwrap_or_default();
        return Err(LoadError::NothingSucceeded { failed, first });
    }
    let server_info = target.server_info().await;
    let row = Row::new(&outcomes, duration, server_info);
    summary::print(&args, &row, out)?;
    if let (Some(mut file), Some(path)) = (output, &args.output_file) {
        let line = row.line(&args, &outcomes);
        let written = file.write_all(line.as_bytes()).and_then(|()| file.sync_all());
        written.map_err(|source| LoadError::Output { path: path.display().to_string(), source })?;
    }
    Ok(())
}

fn open(path: &std::path::Path) -> Result<File, LoadError> {
    let file = OpenOptions::new().create(true).append(true).open(path);
    file.map_err(|source| LoadError::Output { path: path.display().to_string(), source })
}

fn requests(args: &LoadArgs) -> Result<Vec<PlannedRequest>, LoadError> {
    match (args.dataset_name, &args.dataset_path) {
        (DatasetName::RandomIds, None) => Ok(plan_requests(
            args.seed,
            args.num_prompts as usize,
            args.random_input_len as usize,
            args.random_output_len as usize,
            args.random_range_ratio,
        )),
        (DatasetName::Custom, Some(path)) => {
            let problem = |problem| LoadError::Dataset { path: path.display().to_string(), problem };
            let text = std::fs::read_to_string(path).map_err(|error| problem(error.to_string()))?;
            read_requests(&text, args.num_prompts as usize).map_err(problem)
        }
        _ => Err(LoadError::DatasetPath),
    }
}

async fn warm_up(args: &LoadArgs, target: &Arc<Target>, first: &PlannedRequest) -> Result<(), LoadError> {
    let request = PlannedRequest { output_tokens: first.output_tokens.min(32), ..first.clone() };
    let requests = vec![request; args.warmup_requests as usize];
    let at_once = LoadArgs { request_rate: f64::INFINITY, ..args.clone() };
    let (outcomes, _) = send(&at_once, target, &requests).await;
    if outcomes.iter().any(|outcome| outcome.error.is_none()) {
        return Ok(());
    }
    Err(LoadError::WarmUp(outcomes.into_iter().find_map(|outcome| outcome.error).unwrap_or_default()))
}

/// Sends all requests; their outcomes in the order of the plan, and the seconds from the first to the end of the last.
async fn send(args: &LoadArgs, target: &Arc<Target>, requests: &[PlannedRequest]) -> (Vec<Outcome>, f64) {
    let permits = args.max_concurrency.map_or(Semaphore::MAX_PERMITS, |most| most as usize);
    let permits = Arc::new(Semaphore::new(permits));
    let mut gaps = Arrivals::new(args.seed, args.request_rate);
    let mut tasks = JoinSet::new();
    let begin = Instant::now();
    for (place, request) in requests.iter().enumerate() {
        let (target, permits, request) = (Arc::clone(target), Arc::clone(&permits), request.clone());
        tasks.spawn(async move {
            let _permit = permits.acquire().await.expect("the semaphore is never closed");
            (place, target.generate(&request, begin).await)
        });
        if let Some(gap) = gaps.next().filter(|_| place + 1 < requests.len()) {
            tokio::time::sleep(gap).await;
        }
    }
    let mut outcomes: Vec<(usize, Outcome)> = tasks.join_all().await;
    let duration = begin.elapsed().as_secs_f64();
    outcomes.sort_by_key(|(place, _)| *place);
    (outcomes.into_iter().map(|(_, outcome)| outcome).collect(), duration)
}
