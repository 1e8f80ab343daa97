//! The client and what it sent: `client.*` and `workload.*` of one trial.
//!
//! Invariant: what was asked is read from the argv that ran; a default that does not stand there is not assumed, except
//! that both clients ignore the end of text unless told otherwise.

use std::collections::BTreeMap;

use pocketmoe::load::plan_requests;

use super::{Ask, RawFiles, arguments, record_unset, server};
use crate::digest::Digest;
use crate::fact::{FactValue, Fingerprint};
use crate::noise::is_noise;
use crate::question::Engine;
use crate::record::Written;
use crate::row::{self, Client, Row};
use crate::spec::flags::full_client_name;

/// The most prompt tokens that are planned again to know their digest: a number in a file must not cost memory.
const MOST_PLANNED_TOKENS: u64 = 50_000_000;

/// What the measured client left.
pub(super) fn written(files: &RawFiles, folder: &str) -> Written {
    row::written(files.read(&format!("out/{folder}/{}", crate::record::RESULT_FILE)).as_deref())
}

fn row_of(written: &Written) -> Option<&Row> {
    match written {
        Written::Row(row) => Some(row),
        _ => None,
    }
}

/// The client that a command starts.
fn client_of(words: &[String]) -> Option<Client> {
    let is = |word: &str, other: &str| word == other;
    if words.windows(2).any(|pair| is(&pair[0], "pocket") && is(&pair[1], "load")) {
        return Some(Client::PocketmoeLoad);
    }
    let modules = ["sglang.bench_serving", "sglang.benchmark.serving"];
    words.iter().any(|word| modules.contains(&word.as_str())).then_some(Client::SglangBenchServing)
}

/// `client.*`.
pub(super) fn client(files: &RawFiles, folder: &str, ask: &Ask, written: &Written, facts: &mut Fingerprint) {
    let words = arguments::of_files(files, &format!("{folder}/argv"));
    let row = row_of(written);
    let name = |client: Client| FactValue::text(client.name());
    // A row that another client wrote shows.
    if let Some(value) = super::moved(client_of(&words).map(name), row.map(|row| name(row.client))) {
        facts.insert("client.name", value);
    }
    if let Some(version) = row.and_then(|row| row.client_version.as_ref()) {
        facts.text("client.version", version);
    }
    if words.is_empty() {
        return;
    }
    facts.text("client.argv", arguments::as_text(&words));
    for (name, value) in arguments::named(&words, full_client_name) {
        let key = format!("client.args.{name}");
        if is_noise(&key).is_none() {
            facts.insert(key, value);
        }
    }
    record_unset("client.args.", ask, facts);
    if let Some(digest) = same_program_as_server(files, ask, &words) {
        facts.text("client.module_sha256", digest);
    }
}

/// The pocket client is the program that serves, when it was started by the same path.
fn same_program_as_server(files: &RawFiles, ask: &Ask, words: &[String]) -> Option<String> {
    if ask.engine != Engine::Pocketmoe || client_of(words) != Some(Client::PocketmoeLoad) {
        return None;
    }
    let pid = server::pid(files)?;
    let served_by = arguments::of_cmdline(&files.read(&format!("out/proc/{pid}/cmdline"))?);
    (served_by.first() == words.first()).then(|| files.word(&format!("out/proc/{pid}/exe-sha256"))).flatten()
}

/// `workload.*`.
pub(super) fn load(files: &RawFiles, folder: &str, written: &Written, facts: &mut Fingerprint) {
    let words = arguments::of_files(files, &format!("{folder}/argv"));
    if words.is_empty() {
        return;
    }
    let arguments = arguments::named(&words, full_client_name);
    for (flag, name) in [
        ("num-prompts", "num_prompts"),
        ("max-concurrency", "concurrency"),
        ("request-rate", "request_rate"),
        ("random-input-len", "input_tokens"),
        ("random-output-len", "output_tokens"),
        ("random-range-ratio", "range_ratio"),
        ("seed", "seed"),
        ("dataset-name", "dataset"),
        ("extra-request-body", "sampling"),
    ] {
        if let Some(value) = arguments.get(flag) {
            facts.insert(format!("workload.{name}"), value.clone());
        }
    }
    let ignores_eos = !arguments.contains_key("disable-ignore-eos");
    facts.text("workload.ignore_eos", ignores_eos.to_string());
    if let Some(requests) = warmup(files, folder) {
        facts.text("workload.warmup", requests);
    }
    if let Some(status) = flush(files, folder) {
        facts.text("workload.flush_status", status);
    }
    let sent = match client_of(&words) {
        Some(Client::PocketmoeLoad) => planned(&arguments),
        Some(Client::SglangBenchServing) => {
            row_of(written).and_then(|row| lengths(row, &arguments, ignores_eos)).map(|lengths| (lengths, None))
        }
        None => None,
    };
    if let Some((lengths, prompts)) = sent {
        facts.text("workload.lengths_sha256", lengths.to_string());
        if let Some(prompts) = prompts {
            facts.text("workload.prompts_sha256", prompts.to_string());
        }
    }
}

/// How many requests the wave before the run had; only a wave that ended well is one.
fn warmup(files: &RawFiles, folder: &str) -> Option<String> {
    let words = arguments::of_files(files, &format!("{folder}/warmup/argv"));
    if words.is_empty() {
        return files.list(&format!("out/{folder}/warmup")).is_empty().then(|| "0".to_owned());
    }
    if files.word(&format!("out/{folder}/warmup/code"))? != "0" {
        return None;
    }
    match arguments::named(&words, full_client_name).remove("num-prompts")? {
        FactValue::Text(requests) => Some(requests),
        _ => None,
    }
}

/// `CODE BODY` of the flush, in one line.
fn flush(files: &RawFiles, folder: &str) -> Option<String> {
    const LONGEST: usize = 80;
    if let Some(code) = files.word(&format!("out/{folder}/flush.code")) {
        let body = files.text(&format!("out/{folder}/flush.body")).unwrap_or_default();
        let line = std::iter::once(code.as_str()).chain(body.split_whitespace()).collect::<Vec<_>>().join(" ");
        return Some(line.chars().take(LONGEST).collect::<String>().trim_end().to_owned());
    }
    let asked = files.read(&format!("{folder}/flush")).is_some() && files.read("flush-path").is_some();
    (!asked).then(|| "not asked".to_owned())
}

fn number(arguments: &BTreeMap<String, FactValue>, flag: &str) -> Option<f64> {
    arguments.get(flag)?.number()
}

fn whole(arguments: &BTreeMap<String, FactValue>, flag: &str) -> Option<u64> {
    match arguments.get(flag)? {
        FactValue::Text(text) => text.parse().ok(),
        _ => None,
    }
}

/// Digests of the lengths and of the prompts that the pocket client plans for these arguments.
fn planned(arguments: &BTreeMap<String, FactValue>) -> Option<(Digest, Option<Digest>)> {
    let count = |flag: &str| whole(arguments, flag).filter(|count| u32::try_from(*count).is_ok());
    if arguments.get("dataset-name").is_some_and(|name| *name != FactValue::text("random-ids")) {
        return None;
    }
    let (requests, input, output) = (count("num-prompts")?, count("random-input-len")?, count("random-output-len")?);
    let ratio = number(arguments, "random-range-ratio").filter(|ratio| (0.0..=1.0).contains(ratio))?;
    if requests.saturating_mul(input.max(1)) > MOST_PLANNED_TOKENS {
        return None;
    }
    let plan = plan_requests(whole(arguments, "seed")?, requests as usize, input as usize, output as usize, ratio);
    let lengths = plan.iter().map(|request| (request.input_tokens as u64, request.output_tokens as u64));
    let prompts: Vec<u8> = plan.iter().flat_map(|request| request.prompt.bytes().chain([0])).collect();
    Some((digest_of_lengths(lengths), Some(Digest::of(prompts))))
}

/// The planned lengths as the details of the row show them: prompts as the client counted them, outputs as asked when
/// they were fixed, else as they came when every request had to go to its planned end.
fn lengths(row: &Row, arguments: &BTreeMap<String, FactValue>, ignores_eos: bool) -> Option<Digest> {
    let details = row.details.as_ref()?;
    let inputs = &details.input_lens;
    if inputs.is_empty() || whole(arguments, "num-prompts") != Some(inputs.len() as u64) {
        return None;
    }
    let fixed = number(arguments, "random-range-ratio").is_some_and(|ratio| ratio.total_cmp(&1.0).is_eq());
    let outputs = if fixed {
        vec![whole(arguments, "random-output-len")?; inputs.len()]
    } else {
        let all_ended = details.output_lens.iter().all(|tokens| *tokens > 0)
            && details.errors.iter().all(String::is_empty)
            && details.output_lens.len() == inputs.len();
        if !ignores_eos || !all_ended {
            return None;
        }
        details.output_lens.clone()
    };
    Some(digest_of_lengths(inputs.iter().copied().zip(outputs)))
}

/// SHA-256 of the lines `INPUT,OUTPUT` in the order of submission.
fn digest_of_lengths(lengths: impl Iterator<Item = (u64, u64)>) -> Digest {
    use std::fmt::Write as _;
    let mut lines = String::new();
    for (input, output) in lengths {
        writeln!(lines, "{input},{output}").expect("a String takes everything");
    }
    Digest::of(lines)
}
