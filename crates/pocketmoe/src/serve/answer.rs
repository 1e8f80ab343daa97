//! Bodies of generation requests and of their answers, whole and streamed.

use super::App;
use crate::VOCABULARY;
use crate::fault::Fault;
use crate::sampling::Sampling;
use crate::scheduler::{Event, Finish, Origin, Request};
use crate::vocabulary::{END, decode, encode, word};
use serde::Deserialize;
use serde_json::{Value, json};
use std::time::{Instant, SystemTime, UNIX_EPOCH};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

/// Body of `POST /generate`. Keys that SGLang has and this engine does not need are ignored.
#[derive(Deserialize)]
pub(super) struct GenerateBody {
    text: Option<String>,
    input_ids: Option<Vec<u32>>,
    #[serde(default)]
    sampling_params: SamplingBody,
    #[serde(default)]
    pub(super) stream: bool,
    rid: Option<String>,
}

/// `sampling_params`, with SGLang's defaults; an unknown key is an error, as it is there.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, default)]
struct SamplingBody {
    max_new_tokens: usize,
    ignore_eos: bool,
    temperature: f32,
    top_p: f32,
    top_k: i64,
    sampling_seed: Option<u64>,
}

impl Default for SamplingBody {
    fn default() -> Self {
        Self { max_new_tokens: 128, ignore_eos: false, temperature: 1.0, top_p: 1.0, top_k: -1, sampling_seed: None }
    }
}

/// Body of `POST /v1/completions`. Other keys are ignored.
#[derive(Deserialize)]
pub(super) struct CompletionBody {
    prompt: Prompt,
    #[serde(default = "sixteen")]
    max_tokens: usize,
    #[serde(default)]
    ignore_eos: bool,
    #[serde(default = "one")]
    temperature: f32,
    #[serde(default = "one")]
    top_p: f32,
    seed: Option<u64>,
    #[serde(default)]
    pub(super) stream: bool,
    #[serde(default)]
    stream_options: StreamOptions,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Prompt {
    Text(String),
    Ids(Vec<u32>),
}

#[derive(Deserialize, Default)]
struct StreamOptions {
    #[serde(default)]
    include_usage: bool,
}

fn sixteen() -> usize {
    16
}

fn one() -> f32 {
    1.0
}

/// How answers look.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    /// SGLang's own: the text so far in each event.
    Native,
    /// OpenAI's completions: the new text in each event.
    Completion,
    /// The same, with a last event that holds the usage.
    CompletionWithUsage,
}

/// A generation that was handed to the scheduler.
pub(super) struct Generation {
    shape: Shape,
    id: String,
    model: String,
    created: u64,
    prompt_tokens: usize,
    ids: Vec<u32>,
    text: String,
    cached: usize,
    events: UnboundedReceiver<Event>,
    arrived: Instant,
}

impl GenerateBody {
    /// Checks the request and hands it to the scheduler; `number` counts requests from 1.
    pub(super) fn submit(self, app: &App, number: u64) -> Result<Generation, String> {
        let prompt = match (self.text, self.input_ids) {
            (Some(text), None) => encode(&text),
            (None, Some(ids)) => ids,
            _ => return Err("either text or input_ids should be provided, and not both".into()),
        };
        let sampling = self.sampling_params;
        Asked { prompt, shape: Shape::Native, id: self.rid, sampling }.submit(app, number)
    }
}

impl CompletionBody {
    /// As [`GenerateBody::submit`].
    pub(super) fn submit(self, app: &App, number: u64) -> Result<Generation, String> {
        let prompt = match self.prompt {
            Prompt::Text(text) => encode(&text),
            Prompt::Ids(ids) => ids,
        };
        let shape = if self.stream_options.include_usage { Shape::CompletionWithUsage } else { Shape::Completion };
        let sampling = SamplingBody {
            max_new_tokens: self.max_tokens,
            ignore_eos: self.ignore_eos,
            temperature: self.temperature,
            top_p: self.top_p,
            top_k: -1,
            sampling_seed: self.seed,
        };
        Asked { prompt, shape, id: None, sampling }.submit(app, number)
    }
}

/// Either body, read.
struct Asked {
    prompt: Vec<u32>,
    shape: Shape,
    id: Option<String>,
    sampling: SamplingBody,
}

impl Asked {
    fn check(&self, longest: usize) -> Result<(), String> {
        let SamplingBody { max_new_tokens, temperature, top_p, top_k, .. } = self.sampling;
        if self.prompt.is_empty() {
            return Err("the prompt has no tokens".into());
        }
        if let Some(id) = self.prompt.iter().find(|id| **id as usize >= VOCABULARY) {
            return Err(format!("token id {id} is outside the vocabulary of {VOCABULARY}"));
        }
        if max_new_tokens == 0 {
            return Err("max_new_tokens must be at least 1".into());
        }
        if !(temperature.is_finite() && temperature >= 0.0 && top_p > 0.0 && top_p <= 1.0) {
            return Err("temperature must be non-negative and top_p in (0, 1]".into());
        }
        if top_k != -1 && top_k < 1 {
            return Err("top_k must be -1 (all) or at least 1".into());
        }
        let input = self.prompt.len();
        // Also true of a sum that would overflow.
        if max_new_tokens > longest || input + max_new_tokens > longest {
            return Err(format!(
                "requested {input} input and {max_new_tokens} output tokens, more than the longest sequence of {longest}"
            ));
        }
        Ok(())
    }

    fn submit(self, app: &App, number: u64) -> Result<Generation, String> {
        self.check(app.resolved.longest())?;
        let Self { prompt, shape, id, sampling } = self;
        let (events, receiver) = unbounded_channel();
        let (prompt_tokens, arrived) = (prompt.len(), Instant::now());
        app.submit(Request {
            prompt,
            max_new_tokens: sampling.max_new_tokens,
            ignore_eos: sampling.ignore_eos,
            stop_at: app.has(&Fault::EarlyEos).then_some((sampling.max_new_tokens / 2).max(1)),
            sampling: Sampling {
                temperature: sampling.temperature,
                top_p: sampling.top_p,
                top_k: usize::try_from(sampling.top_k).ok(),
                seed: sampling.sampling_seed,
            },
            origin: Origin::Client(number),
            events,
            arrived,
        });
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Ok(Generation {
            shape,
            id: id.unwrap_or_else(|| format!("{:016x}{number:016x}", since.as_nanos() as u64)),
            model: app.resolved.served_model_name.clone(),
            created: since.as_secs(),
            prompt_tokens,
            ids: Vec::new(),
            text: String::new(),
            cached: 0,
            events: receiver,
            arrived,
        })
    }
}

impl Generation {
    /// The next event as JSON, and whether it is the last of the generation; nothing if the engine is gone.
    pub(super) async fn next(&mut self) -> Option<(Value, Option<Finish>)> {
        let event = self.events.recv().await?;
        let delta = if self.ids.is_empty() { word(event.token) } else { format!(" {}", word(event.token)) };
        self.text.push_str(&delta);
        self.ids.push(event.token);
        self.cached = event.cached;
        let json = if self.shape == Shape::Native {
            self.native(event.finish)
        } else {
            json!({
                "id": self.id, "object": "text_completion", "created": self.created, "model": self.model,
                "choices": [Self::choice(&delta, event.finish)],
            })
        };
        Some((json, event.finish))
    }

    /// The whole answer, once the generation has ended; nothing if the engine is gone.
    pub(super) async fn whole(mut self) -> Option<Value> {
        let finish = loop {
            if let (_, Some(finish)) = self.next().await? {
                break finish;
            }
        };
        if self.shape == Shape::Native {
            return Some(self.native(Some(finish)));
        }
        Some(json!({
            "id": self.id, "object": "text_completion", "created": self.created, "model": self.model,
            "choices": [Self::choice(&decode(&self.ids), Some(finish))],
            "usage": self.usage(),
        }))
    }

    /// The extra last event, where it was asked for.
    pub(super) fn usage_event(&self) -> Option<Value> {
        (self.shape == Shape::CompletionWithUsage).then(|| {
            json!({
                "id": self.id, "object": "text_completion", "created": self.created, "model": self.model,
                "choices": [], "usage": self.usage(),
            })
        })
    }

    fn native(&self, finish: Option<Finish>) -> Value {
        let reason = finish.map(|finish| match finish {
            Finish::Length => json!({ "type": "length", "length": self.ids.len() }),
            Finish::Stop => json!({ "type": "stop", "matched": END }),
        });
        let mut meta = json!({
            "id": self.id,
            "finish_reason": reason,
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.ids.len(),
            "cached_tokens": self.cached,
        });
        if finish.is_some() {
            meta["e2e_latency"] = json!(self.arrived.elapsed().as_secs_f64());
        }
        json!({ "text": self.text, "output_ids": self.ids, "meta_info": meta })
    }

    fn choice(text: &str, finish: Option<Finish>) -> Value {
        let reason = finish.map(|finish| match finish {
            Finish::Length => "length",
            Finish::Stop => "stop",
        });
        let matched = (finish == Some(Finish::Stop)).then_some(END);
        json!({ "index": 0, "text": text, "logprobs": null, "finish_reason": reason, "matched_stop": matched })
    }

    fn usage(&self) -> Value {
        json!({
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.ids.len(),
            "total_tokens": self.prompt_tokens + self.ids.len(),
            "prompt_tokens_details": { "cached_tokens": self.cached },
        })
    }
}
