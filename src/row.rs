//! The row that a load client wrote, as it was written, and what a result file holds.
//!
//! `sglang.bench_serving` (every version since 0.3, Python and Rust) appends one JSON object a run; `pocketmoe.load`
//! writes the same keys. Their files are not quite JSON: Python writes a bare `Infinity` or `NaN`.
//!
//! Invariant: an absent field is absent, never 0; a number is a value only if it is finite; a file with one readable row
//! and something else is not a file with one row.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use serde::de::{self, Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::{Map, Value};

use crate::metric::Metric;

/// Who wrote the row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Client {
    /// `python -m sglang.bench_serving`, or its Rust client.
    #[default]
    SglangBenchServing,
    /// `labbook pocket load`.
    PocketmoeLoad,
}

impl Client {
    /// Returns the name in specs and facts.
    pub fn name(self) -> &'static str {
        match self {
            Self::SglangBenchServing => "sglang.bench_serving",
            Self::PocketmoeLoad => "pocketmoe.load",
        }
    }
}

/// One row of a load client. `None` is absent (or `null`, or not finite), never 0.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Row {
    /// Who wrote it.
    pub client: Client,
    /// Version that the client wrote into the row; only `pocketmoe.load` does.
    pub client_version: Option<String>,
    /// Free text that the client was given to copy.
    pub tag: Option<String>,
    /// The client's name of the server's interface, such as `sglang-oai`.
    pub backend: Option<String>,
    /// Requests sent per second; `f64::INFINITY` is no limit, absent is unknown (or a trace).
    pub request_rate: Option<f64>,
    /// Cap on requests in flight.
    pub max_concurrency: Option<u64>,
    /// Requests asked for; `sglang.bench_serving` does not write it.
    pub num_prompts: Option<u64>,
    /// Requests that the client counted as successes.
    pub completed: Option<u64>,
    /// Requests that failed; `sglang.bench_serving` does not write it.
    pub failed: Option<u64>,
    /// From the first send to the last answer, seconds. The Python client of SGLang includes a `GET /server_info`.
    pub duration_s: Option<f64>,
    /// Prompt tokens of the successes, as the data set counts them.
    pub total_input_tokens: Option<u64>,
    /// Output tokens of the successes; some backends write the *requested* number.
    pub total_output_tokens: Option<u64>,
    /// Output tokens of the successes, by tokenizing the text again.
    pub total_output_tokens_retokenized: Option<u64>,
    /// Prompt length asked for, tokens.
    pub random_input_len: Option<u64>,
    /// Output length asked for, tokens.
    pub random_output_len: Option<u64>,
    /// Lengths are uniform between this share of the length and the whole; 1 is a fixed length, 0 is 1 to the length.
    pub random_range_ratio: Option<f64>,
    /// Values of the closed list of metrics that the row has.
    pub metrics: BTreeMap<Metric, f64>,
    /// One entry a request, where the client was asked for them.
    pub details: Option<Details>,
    /// What the server said about itself after the run, as it is: it may hold secrets.
    pub server_info: Option<Value>,
}

impl Row {
    /// Returns a metric's value.
    pub fn metric(&self, metric: Metric) -> Option<f64> {
        self.metrics.get(&metric).copied()
    }
}

/// One entry a request, in the order of submission. A list that the client did not write is empty.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Details {
    /// Prompt lengths, tokens.
    pub input_lens: Vec<u64>,
    /// Output lengths, tokens; 0 for a request that failed.
    pub output_lens: Vec<u64>,
    /// Times to the first token, seconds; 0 for a request without one (not finite is none).
    pub ttfts_s: Vec<f64>,
    /// Gaps between tokens, seconds, one list a request.
    pub itls_s: Vec<Vec<f64>>,
    /// Generated texts.
    pub texts: Vec<String>,
    /// Errors; empty text for a request that the client counts as a success.
    pub errors: Vec<String>,
    /// Prompt tokens taken from the server's cache, where the client was asked for them.
    pub cached_tokens: Option<Vec<u64>>,
}

/// What the client left behind.
#[derive(Debug, Clone, PartialEq)]
pub enum Written {
    /// One readable row.
    Row(Box<Row>),
    /// Numbers transcribed from a text.
    Values(BTreeMap<Metric, f64>),
    /// No file, or a file of zero bytes (or of nothing but white space).
    Nothing,
    /// A file that holds no readable row; what is wrong with it.
    Unreadable(String),
    /// A file with this many rows although one run writes one.
    Several(usize),
}

/// Why a result file cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {reason}")]
pub struct RowError {
    /// Line of the file, from 1.
    pub line: usize,
    /// What was found and what was expected.
    pub reason: String,
}

/// Returns what a result file holds, for the record. `None` is a file that does not exist.
pub fn written(bytes: Option<&[u8]>) -> Written {
    let Some(bytes) = bytes else { return Written::Nothing };
    match parse_rows(bytes) {
        Err(error) => Written::Unreadable(error.to_string()),
        Ok(mut rows) => match rows.len() {
            0 => Written::Nothing,
            1 => rows.pop().map_or(Written::Nothing, |row| Written::Row(Box::new(row))),
            several => Written::Several(several),
        },
    }
}

/// Reads every row of a result file, in file order. An empty file has none.
///
/// Bare `Infinity`, `-Infinity` and `NaN` outside of text are read as "no finite number".
///
/// # Errors
/// One thing that is not a row (a cut line, another tool's object, a known key of the wrong type, a key that stands there
/// twice, more than 128 levels of nesting) makes the whole file unreadable: half a file is never taken for a result.
pub fn parse_rows(bytes: &[u8]) -> Result<Vec<Row>, RowError> {
    let json = quote_bare_numbers(bytes);
    let mut stream = serde_json::Deserializer::from_slice(&json).into_iter::<Fields>();
    let (mut rows, mut counted_to, mut line) = (Vec::new(), 0, 1);
    while let Some(fields) = stream.next() {
        let Fields(fields) = fields.map_err(|error| RowError { line: error.line(), reason: in_words(&error) })?;
        let row = row_of(fields).map_err(|reason| {
            let start = counted_to + json[counted_to..].iter().take_while(|byte| byte.is_ascii_whitespace()).count();
            RowError { line: line + newlines(&json[counted_to..start]), reason }
        })?;
        rows.push(row);
        line += newlines(&json[counted_to..stream.byte_offset()]);
        counted_to = stream.byte_offset();
    }
    Ok(rows)
}

fn newlines(bytes: &[u8]) -> usize {
    bytes.split(|byte| *byte == b'\n').count() - 1
}

/// Returns the parser's complaint without its place, which we report ourselves.
fn in_words(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let place = format!(" at line {} column {}", error.line(), error.column());
    let reason = text.strip_suffix(&place).unwrap_or(&text);
    if error.is_eof() { format!("the row is cut off ({reason})") } else { format!("not a row: {reason}") }
}

/// Puts quotes around the words with which Python writes numbers that JSON has not; text is left alone.
fn quote_bare_numbers(bytes: &[u8]) -> Cow<'_, [u8]> {
    const WORDS: [&[u8]; 3] = [b"-Infinity", b"Infinity", b"NaN"];
    let (mut copy, mut copied_to, mut at, mut in_text) = (Vec::new(), 0, 0, false);
    while at < bytes.len() {
        match bytes[at] {
            b'\\' if in_text => at += 1,
            b'"' => in_text = !in_text,
            b'-' | b'I' | b'N' if !in_text => {
                if let Some(word) = WORDS.iter().find(|word| bytes[at..].starts_with(word)) {
                    copy.extend_from_slice(&bytes[copied_to..at]);
                    copy.push(b'"');
                    copy.extend_from_slice(word);
                    copy.push(b'"');
                    at += word.len();
                    copied_to = at;
                    continue;
                }
            }
            _ => {}
        }
        at += 1;
    }
    if copied_to == 0 {
        return Cow::Borrowed(bytes);
    }
    copy.extend_from_slice(&bytes[copied_to..]);
    Cow::Owned(copy)
}

/// The keys of one object, none of them twice: a JSON map would keep the last in silence.
struct Fields(Map<String, Value>);

impl<'de> Deserialize<'de> for Fields {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Keys;
        impl<'de> Visitor<'de> for Keys {
            type Value = Fields;

            fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                out.write_str("one JSON object a run")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Fields, A::Error> {
                let mut fields = Map::new();
                while let Some((key, value)) = access.next_entry::<String, Value>()? {
                    if fields.contains_key(&key) {
                        return Err(de::Error::custom(format!("the key `{key}` stands there twice")));
                    }
                    fields.insert(key, value);
                }
                Ok(Fields(fields))
            }
        }
        deserializer.deserialize_map(Keys)
    }
}

/// Keys that only rows of `vllm.bench_serve` have.
const VLLM_KEYS: [&str; 3] = ["endpoint_type", "tokenizer_id", "total_token_throughput"];

fn row_of(mut fields: Map<String, Value>) -> Result<Row, String> {
    let client = client_of(&fields)?;
    let fields = &mut fields;
    let mut metrics = BTreeMap::new();
    for metric in Metric::all() {
        let Some(key) = metric.row_key() else { continue };
        if let Some(value) = number(fields, &key)? {
            metrics.insert(metric, value);
        }
    }
    Ok(Row {
        client,
        client_version: text(fields, "client_version")?,
        tag: text(fields, "tag")?,
        backend: text(fields, "backend")?,
        request_rate: rate(fields)?,
        max_concurrency: count(fields, "max_concurrency")?,
        num_prompts: count(fields, "num_prompts")?,
        completed: count(fields, "completed")?,
        failed: count(fields, "failed")?,
        duration_s: number(fields, "duration")?,
        total_input_tokens: count(fields, "total_input_tokens")?,
        total_output_tokens: count(fields, "total_output_tokens")?,
        total_output_tokens_retokenized: count(fields, "total_output_tokens_retokenized")?,
        random_input_len: count(fields, "random_input_len")?,
        random_output_len: count(fields, "random_output_len")?,
        random_range_ratio: number(fields, "random_range_ratio")?,
        metrics,
        details: details(fields)?,
        server_info: fields.get_mut("server_info").map(Value::take).filter(|info| !info.is_null()),
    })
}

fn client_of(fields: &Map<String, Value>) -> Result<Client, String> {
    if let Some(key) = VLLM_KEYS.iter().find(|key| fields.contains_key(**key)) {
        return Err(format!("a row of `vllm.bench_serve` (it has `{key}`), expected one of `sglang.bench_serving`"));
    }
    match fields.get("client") {
        Some(Value::String(name)) if name == Client::PocketmoeLoad.name() => Ok(Client::PocketmoeLoad),
        Some(Value::String(name)) if name == Client::SglangBenchServing.name() => Ok(Client::SglangBenchServing),
        Some(other) => Err(format!("`client` is {}, expected \"pocketmoe.load\"", shortened(other))),
        None if fields.contains_key("backend") && fields.contains_key("completed") => Ok(Client::SglangBenchServing),
        None => Err("not a row of `sglang.bench_serving` (which has `backend` and `completed`) \
             and not one of `pocketmoe.load` (which has `client`)"
            .to_owned()),
    }
}

/// Finite numbers only; the words of Python and of the Rust client are numbers without a value.
fn number(fields: &Map<String, Value>, key: &str) -> Result<Option<f64>, String> {
    match fields.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => {
            let number = any_number(value).ok_or_else(|| wrong(key, value, "a number"))?;
            Ok(number.is_finite().then_some(number))
        }
    }
}

/// Returns a number that may be infinite or NaN.
fn any_number(value: &Value) -> Option<f64> {
    match value {
        Value::Number(number) => number.as_f64(),
        Value::String(word) if is_not_finite(word) => Some(f64::NAN),
        _ => None,
    }
}

fn is_not_finite(word: &str) -> bool {
    matches!(word, "Infinity" | "-Infinity" | "NaN" | "inf" | "-inf" | "nan")
}

/// Whole and not negative; `128.0` is a count too.
fn count(fields: &Map<String, Value>, key: &str) -> Result<Option<u64>, String> {
    match fields.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => whole(value).map(Some).ok_or_else(|| wrong(key, value, "a whole number of at least 0")),
    }
}

fn whole(value: &Value) -> Option<u64> {
    /// Above 2^53 a float no longer tells neighbours apart.
    const EXACT: f64 = 9_007_199_254_740_992.0;
    value.as_u64().or_else(|| {
        let number = value.as_f64()?;
        (number.fract() == 0.0 && (0.0..=EXACT).contains(&number)).then_some(number as u64)
    })
}

fn text(fields: &mut Map<String, Value>, key: &str) -> Result<Option<String>, String> {
    match fields.get_mut(key).map(Value::take) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(other) => Err(wrong(key, &other, "text")),
    }
}

fn rate(fields: &Map<String, Value>) -> Result<Option<f64>, String> {
    match fields.get("request_rate") {
        Some(Value::String(word)) if matches!(word.as_str(), "inf" | "Infinity") => Ok(Some(f64::INFINITY)),
        Some(Value::String(word)) if word == "trace" => Ok(None),
        _ => number(fields, "request_rate"),
    }
}

fn details(fields: &mut Map<String, Value>) -> Result<Option<Details>, String> {
    if !fields.contains_key("ttfts") && !fields.contains_key("output_lens") {
        return Ok(None);
    }
    let seconds = |value: &Value| any_number(value).map(|number| if number.is_finite() { number } else { 0.0 });
    let words = |value: &Value| match value {
        Value::String(text) => Some(text.clone()),
        Value::Null => Some(String::new()),
        _ => None,
    };
    let gaps = |value: &Value| value.as_array()?.iter().map(seconds).collect::<Option<Vec<f64>>>();
    let cached = match fields.get("cached_tokens") {
        None | Some(Value::Null) => None,
        Some(_) => Some(list(fields, "cached_tokens", "whole numbers of at least 0", whole)?),
    };
    Ok(Some(Details {
        input_lens: list(fields, "input_lens", "whole numbers of at least 0", whole)?,
        output_lens: list(fields, "output_lens", "whole numbers of at least 0", whole)?,
        ttfts_s: list(fields, "ttfts", "numbers", seconds)?,
        itls_s: list(fields, "itls", "lists of numbers", gaps)?,
        texts: list(fields, "generated_texts", "text", words)?,
        errors: list(fields, "errors", "text", words)?,
        cached_tokens: cached,
    }))
}

fn list<T>(
    fields: &Map<String, Value>,
    key: &str,
    wanted: &str,
    read: impl Fn(&Value) -> Option<T>,
) -> Result<Vec<T>, String> {
    let expected = format!("a list of {wanted}");
    match fields.get(key) {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::Array(values)) => values
            .iter()
            .enumerate()
            .map(|(at, value)| read(value).ok_or_else(|| wrong(&format!("{key}[{at}]"), value, wanted)))
            .collect(),
        Some(other) => Err(wrong(key, other, &expected)),
    }
}

fn wrong(key: &str, found: &Value, expected: &str) -> String {
    format!("`{key}` is {}, expected {expected}", shortened(found))
}

/// Result files are untrusted: a message quotes at most this much of one, and no secret of a whole object.
fn shortened(value: &Value) -> String {
    const LONGEST: usize = 40;
    match value {
        Value::Array(_) => "a list".to_owned(),
        Value::Object(_) => "an object".to_owned(),
        other => {
            let text = other.to_string();
            match text.char_indices().nth(LONGEST) {
                Some((end, _)) => format!("{}…", &text[..end]),
                None => text,
            }
        }
    }
}

#[cfg(test)]
mod tests;
