//! What the server says about itself: resolved settings, capacity, model.

use serde_json::{Map, Value};

use super::{RawFiles, moved};
use crate::digest::{Digest, canonical_json};
use crate::fact::{FactValue, Fingerprint};
use crate::noise::is_noise;
use crate::question::Engine;
use crate::redact::is_secret_name;

/// Dimensions of the pocket model: together they are its configuration.
const POCKET_DIMENSIONS: [&str; 7] = [
    "vocab_size",
    "hidden_size",
    "num_attention_heads",
    "num_hidden_layers",
    "num_experts",
    "num_experts_per_tok",
    "moe_intermediate_size",
];

/// Members that other facts hold: what runs (`source.*`) and the state at the moment of asking.
const ELSEWHERE: [&str; 3] = ["commit", "dirty", "internal_states"];

/// `/server_info` and `/model_info` before the trials, and `/server_info` after them.
pub(super) struct Info {
    before: Map<String, Value>,
    after: Map<String, Value>,
    model: Map<String, Value>,
}

impl Info {
    pub(super) fn read(files: &RawFiles) -> Self {
        let object = |look: &str, names: [&str; 2]| {
            let answer = names.into_iter().find_map(|name| files.answer(&format!("out/{look}/{name}")));
            match answer {
                Some(Value::Object(members)) => members,
                _ => Map::new(),
            }
        };
        let server = ["server_info", "get_server_info"];
        Self {
            before: object("http", server),
            after: object("http-after", server),
            model: object("http", ["model_info", "get_model_info"]),
        }
    }

    /// A member that is text.
    pub(super) fn text(&self, name: &str) -> Option<String> {
        self.before.get(name).and_then(Value::as_str).map(str::to_owned)
    }

    fn scalar(&self, name: &str) -> Option<FactValue> {
        let value =
            |members: &Map<String, Value>| members.get(name).filter(|value| !value.is_null()).map(FactValue::of_json);
        moved(value(&self.before), value(&self.after))
    }

    /// A member of the first rank's state.
    fn state(&self, name: &str) -> Option<&Value> {
        self.before.get("internal_states")?.get(0)?.get(name).filter(|value| !value.is_null())
    }

    /// `server.resolved.*`: everything that is not noise and no secret; an object is its canonical text.
    pub(super) fn resolved(&self, facts: &mut Fingerprint) {
        for (name, value) in &self.before {
            let key = format!("server.resolved.{name}");
            if is_noise(&key).is_some() || is_secret_name(name) || ELSEWHERE.contains(&name.as_str()) {
                continue;
            }
            let after = self.after.get(name).map(|value| FactValue::of_json(&without_secrets(value)));
            if let Some(value) = moved(Some(FactValue::of_json(&without_secrets(value))), after) {
                facts.insert(key, value);
            }
        }
    }

    /// `server.capacity.*`, from the answer, else from the start log.
    pub(super) fn capacity(&self, files: &RawFiles, facts: &mut Fingerprint) {
        let log = files.read("out/server.log").unwrap_or_default();
        let logged = |mark: &str| {
            let start = log.windows(mark.len()).position(|window| window == mark.as_bytes())? + mark.len();
            let digits: Vec<u8> = log[start..].iter().copied().take_while(u8::is_ascii_digit).take(20).collect();
            (!digits.is_empty()).then(|| FactValue::text(String::from_utf8_lossy(&digits)))
        };
        let kv_tokens = self.scalar("max_total_num_tokens").or_else(|| {
            self.state("memory_usage").and_then(|usage| usage.get("token_capacity")).map(FactValue::of_json)
        });
        let running = self.state("effective_max_running_requests_per_dp").map(FactValue::of_json);
        let capacities = [
            ("kv_tokens", kv_tokens.or_else(|| logged("max_total_num_tokens="))),
            ("max_running_requests", running.or_else(|| self.scalar("max_running_requests"))),
            ("chunked_prefill", self.scalar("chunked_prefill_size")),
            ("graph_sizes", self.graph_sizes(&log)),
        ];
        for (name, value) in capacities {
            if let Some(value) = value {
                facts.insert(format!("server.capacity.{name}"), value);
            }
        }
    }

    /// The captured batch sizes; a setting for graphs that are switched off is none.
    fn graph_sizes(&self, log: &[u8]) -> Option<FactValue> {
        if self.before.get("disable_cuda_graph") == Some(&Value::Bool(true)) {
            return None;
        }
        let settings = ["cuda_graph_bs_decode", "cuda_graph_bs"].into_iter().find_map(|name| self.scalar(name));
        settings.filter(|sizes| matches!(sizes, FactValue::List(_))).or_else(|| {
            const MARK: &[u8] = b"Capture cuda graph bs [";
            let start = log.windows(MARK.len()).position(|window| window == MARK)? + MARK.len();
            let end = log[start..].iter().take(65_536).position(|byte| *byte == b']')? + start;
            let sizes = String::from_utf8_lossy(&log[start..end]);
            Some(FactValue::List(sizes.split(',').map(|size| size.trim().to_owned()).collect()))
        })
    }

    /// `model.*`.
    pub(super) fn model(&self, engine: Engine, facts: &mut Fingerprint) {
        let path = self.text("model_path").or_else(|| self.model.get("model_path")?.as_str().map(str::to_owned));
        if let Some(path) = path {
            facts.text("model.path", path);
        }
        for (member, key) in [
            ("revision", "model.revision"),
            ("dtype", "model.dtype"),
            ("quantization", "model.quantization"),
            ("speculative_draft_model_path", "draft.path"),
            ("speculative_draft_model_revision", "draft.revision"),
        ] {
            if let Some(value) = self.scalar(member) {
                facts.insert(key, value);
            }
        }
        if engine == Engine::Pocketmoe {
            let dimensions = POCKET_DIMENSIONS.map(|name| Some((name.to_owned(), self.before.get(name)?.clone())));
            if let Some(dimensions) = dimensions.into_iter().collect::<Option<Map<_, _>>>() {
                facts.text("model.config_sha256", Digest::of(canonical_json(&Value::Object(dimensions))).to_string());
            }
            if let Some(bytes) = self.scalar("weight_bytes_per_token") {
                facts.insert("model.weight_bytes", bytes);
            }
        }
    }

    /// Whether the server says that it runs without a GPU.
    pub(super) fn runs_on_cpu(&self) -> bool {
        self.text("device").is_some_and(|device| device == "cpu")
    }
}

/// The same value without members that are secrets by name.
fn without_secrets(value: &Value) -> Value {
    match value {
        Value::Object(members) => {
            let kept = members.iter().filter(|(name, _)| !is_secret_name(name));
            Value::Object(kept.map(|(name, value)| (name.clone(), without_secrets(value))).collect())
        }
        Value::Array(elements) => Value::Array(elements.iter().map(without_secrets).collect()),
        other => other.clone(),
    }
}
