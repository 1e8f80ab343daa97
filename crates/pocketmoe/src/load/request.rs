//! One request: sent, streamed, timed and judged.

use super::{LoadArgs, LoadError, PlannedRequest};
use reqwest::{Client, RequestBuilder, Response};
use serde_json::{Map, Value, json};
use std::time::{Duration, Instant};

/// What became of a request. Times are seconds.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Outcome {
    /// From the start of the run to the sending.
    pub(super) start: f64,
    /// From the sending to the first text.
    pub(super) first_token: f64,
    /// Gaps between later chunks with text, divided by the tokens they brought and repeated for each.
    pub(super) gaps: Vec<f64>,
    /// From the sending to the last event.
    pub(super) latency: f64,
    /// The server's count of the prompt.
    pub(super) input_tokens: usize,
    /// The server's count of the output.
    pub(super) output_tokens: usize,
    pub(super) text: String,
    /// Why it failed; nothing when it succeeded.
    pub(super) error: Option<String>,
}

/// The server.
pub(super) struct Target {
    client: Client,
    base: String,
    api_key: Option<String>,
    extra: Map<String, Value>,
    ignore_eos: Value,
    temperature: f32,
}

impl Target {
    pub(super) fn new(args: &LoadArgs) -> Result<Self, LoadError> {
        let base = args.base_url.clone().unwrap_or_else(|| format!("http://{}:{}", args.host, args.port));
        // A proxy between the client and the server would be measured with it.
        let client = Client::builder()
            .no_proxy()
            .tcp_nodelay(true)
            .pool_max_idle_per_host(usize::MAX)
            .timeout(Duration::from_secs(args.request_timeout_sec));
        Ok(Self {
            client: client.build().map_err(|error| LoadError::Client(error.to_string()))?,
            base: base.trim_end_matches('/').to_owned(),
            api_key: args.api_key.clone(),
            extra: args.extra_request_body.clone().unwrap_or_default(),
            ignore_eos: Value::Bool(!args.disable_ignore_eos),
            temperature: args.temperature,
        })
    }

    fn get(&self, path: &str) -> RequestBuilder {
        self.keyed(self.client.get(format!("{}{path}", self.base)))
    }

    fn post(&self, path: &str) -> RequestBuilder {
        self.keyed(self.client.post(format!("{}{path}", self.base)))
    }

    fn keyed(&self, request: RequestBuilder) -> RequestBuilder {
        match &self.api_key {
            Some(key) => request.bearer_auth(key),
            None => request,
        }
    }

    /// Asks `/v1/models` until it answers 200.
    pub(super) async fn wait_until_ready(&self, limit: Duration) -> Result<(), LoadError> {
        let begin = Instant::now();
        loop {
            let problem = match self.get("/v1/models").timeout(Duration::from_secs(5)).send().await {
                Ok(response) if response.status().is_success() => return Ok(()),
                Ok(response) => format!("status {}", response.status().as_u16()),
                Err(error) => causes(&error),
            };
            if begin.elapsed() >= limit {
                let url = format!("{}/v1/models", self.base);
                return Err(LoadError::NotReady { url, seconds: limit.as_secs(), problem });
            }
            tokio::time::sleep(Duration::from_millis(250)).await;
        }
    }

    /// Empties the prefix cache.
    pub(super) async fn flush(&self) -> Result<(), LoadError> {
        match self.post("/flush_cache?timeout=60").send().await {
            Ok(response) if response.status().is_success() => Ok(()),
            Ok(response) => Err(LoadError::Flush(format!("status {}", response.status().as_u16()))),
            Err(error) => Err(LoadError::Flush(causes(&error))),
        }
    }

    /// What the server says about itself, or null.
    pub(super) async fn server_info(&self) -> Value {
        match self.get("/server_info").send().await {
            Ok(response) if response.status().is_success() => response.json().await.unwrap_or(Value::Null),
            _ => Value::Null,
        }
    }

    /// Sends one request and follows its stream; `begin` is the start of the run.
    pub(super) async fn generate(&self, request: &PlannedRequest, begin: Instant) -> Outcome {
        let mut body = json!({
            "text": request.prompt,
            "sampling_params": {
                "temperature": self.temperature,
                "max_new_tokens": request.output_tokens,
                "ignore_eos": self.ignore_eos,
            },
            "stream": true,
        });
        for (key, value) in &self.extra {
            body[key] = value.clone();
        }
        let post = self.post("/generate").json(&body);
        let sent = Instant::now();
        let mut reader = Reader { sent, last: sent, counted: 0, finished: false, outcome: Outcome::default() };
        reader.outcome.start = (sent - begin).as_secs_f64();
        let error = match post.send().await {
            Ok(response) => reader.follow(response).await.err(),
            Err(error) => Some(causes(&error)),
        };
        let mut outcome = reader.outcome;
        outcome.error = error;
        outcome
    }
}

/// An error with what caused it: the outermost text alone is "error sending request".
fn causes(error: &reqwest::Error) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

/// Reads a stream of events.
struct Reader {
    sent: Instant,
    /// When text came last.
    last: Instant,
    /// Tokens that had come by then.
    counted: usize,
    finished: bool,
    outcome: Outcome,
}

impl Reader {
    async fn follow(&mut self, mut response: Response) -> Result<(), String> {
        let status = response.status().as_u16();
        if status != 200 {
            let body = response.text().await.unwrap_or_default();
            return Err(format!("status {status}: {}", body.chars().take(400).collect::<String>().trim()));
        }
        let mut rest: Vec<u8> = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(|error| causes(&error))? {
            rest.extend_from_slice(&chunk);
            let Some(end) = rest.iter().rposition(|byte| *byte == b'\n') else { continue };
            let lines: Vec<u8> = rest.drain(..=end).collect();
            for line in lines.split(|byte| *byte == b'\n') {
                self.line(line.trim_ascii(), Instant::now())?;
            }
        }
        self.line(rest.trim_ascii(), Instant::now())?;
        if self.outcome.output_tokens == 0 {
            return Err("the stream brought no token".into());
        }
        if !self.finished {
            return Err("the stream ended without a finish reason".into());
        }
        Ok(())
    }

    fn line(&mut self, line: &[u8], now: Instant) -> Result<(), String> {
        if line.is_empty() {
            return Ok(());
        }
        self.outcome.latency = (now - self.sent).as_secs_f64();
        let data = line.strip_prefix(b"data:").unwrap_or(line).trim_ascii();
        if data == b"[DONE]" {
            return Ok(());
        }
        let event: Value = serde_json::from_slice(data).map_err(|error| format!("not an event: {error}"))?;
        if let Some(error) = event.get("error") {
            let message = error.get("message").and_then(Value::as_str).map_or_else(|| error.to_string(), str::to_owned);
            return Err(format!("error in the stream: {message}"));
        }
        let meta = &event["meta_info"];
        let count = |key: &str| meta.get(key).and_then(Value::as_u64).map(|count| count as usize);
        if let Some(tokens) = count("prompt_tokens") {
            self.outcome.input_tokens = tokens;
        }
        if !meta["finish_reason"].is_null() {
            self.finished = true;
        }
        let Some(text) = event["text"].as_str().filter(|text| !text.is_empty()) else { return Ok(()) };
        let tokens = count("completion_tokens").ok_or("an event has no `meta_info.completion_tokens`")?;
        text.clone_into(&mut self.outcome.text);
        if self.counted == 0 {
            self.outcome.first_token = self.outcome.latency;
        } else if tokens > self.counted {
            let new = tokens - self.counted;
            let gap = (now - self.last).as_secs_f64() / new as f64;
            self.outcome.gaps.extend(std::iter::repeat_n(gap, new));
        } else {
            return Ok(());
        }
        (self.last, self.counted, self.outcome.output_tokens) = (now, tokens, tokens);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reader() -> Reader {
        let now = Instant::now();
        Reader { sent: now, last: now, counted: 0, finished: false, outcome: Outcome::default() }
    }

    fn event(text: &str, tokens: usize) -> String {
        format!("data: {{\"text\":\"{text}\",\"meta_info\":{{\"prompt_tokens\":5,\"completion_tokens\":{tokens}}}}}")
    }

    #[test]
    fn empty_lines_are_nothing() {
        let mut reader = reader();
        reader.line(b"", Instant::now()).unwrap();
        assert_eq!(reader.outcome, Outcome::default());
    }

    #[test]
    fn a_chunk_of_three_tokens_is_three_gaps() {
        let mut reader = reader();
        let at = |ms: u64| reader_start(&reader) + Duration::from_millis(ms);
        let (first, second, done) = (at(10), at(40), at(50));
        reader.line(event("w1", 1).as_bytes(), first).unwrap();
        reader.line(event("w1 w2 w3 w4", 4).as_bytes(), second).unwrap();
        reader.line(b"data: [DONE]", done).unwrap();
        let outcome = reader.outcome;
        assert_eq!((outcome.input_tokens, outcome.output_tokens, outcome.gaps.len()), (5, 4, 3));
        assert!((outcome.first_token - 0.01).abs() < 1e-9 && (outcome.gaps[0] - 0.01).abs() < 1e-9);
        assert!((outcome.latency - 0.05).abs() < 1e-9);
    }

    fn reader_start(reader: &Reader) -> Instant {
        reader.sent
    }

    #[test]
    fn an_error_event_is_a_failure() {
        let error = reader().line(b"data: {\"error\": {\"message\": \"too long\"}}", Instant::now()).unwrap_err();
        assert_eq!(error, "error in the stream: too long");
        assert!(reader().line(b"data: what", Instant::now()).is_err());
    }
}
