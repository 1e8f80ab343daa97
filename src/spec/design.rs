//! The design and the protocol as JSON, and what each arm runs with.
//!
//! Invariant: a field at its default is left out of the design, so that a field added later never renames an edition; what
//! changes only how runs are judged, reached or waited for is not in it at all.

use indexmap::IndexMap;
use serde_json::{Map, Value, json};

use super::factor::Target;
use super::{
    ArmSettings, ArmSource, Cache, ClientAsk, ClientKind, Environment, EnvironmentAsk, Eos, PatchAsk, Prime, SourceAsk,
    Spec, Via, Workload,
};
use crate::question::{Asked, Axis, Claim, Headline, Over};

/// Returns `Unset` as null, `Set` as true, text and lists as they are: the JSON that facts have.
fn asked(value: &Asked) -> Value {
    match value {
        Asked::Unset => Value::Null,
        Asked::Set => Value::Bool(true),
        Asked::Text(text) => json!(text),
        Asked::List(elements) => json!(elements),
    }
}

fn asked_map(values: &IndexMap<String, Asked>) -> Value {
    Value::Object(values.iter().map(|(name, value)| (name.clone(), asked(value))).collect())
}

/// Adds a member unless it is null, empty, or equal to its default.
fn put(object: &mut Map<String, Value>, name: &str, value: impl Into<Value>, default: impl Into<Value>) {
    let value = value.into();
    let empty = match &value {
        Value::Null => true,
        Value::Array(elements) => elements.is_empty(),
        Value::Object(members) => members.is_empty(),
        _ => false,
    };
    if !empty && value != default.into() {
        object.insert(name.to_owned(), value);
    }
}

impl Via {
    /// Returns the word in specs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Docker => "docker",
            Self::Apptainer => "apptainer",
            Self::Pyxis => "pyxis",
        }
    }
}

impl ClientKind {
    /// Returns the word in specs and the fact `client.name`.
    pub fn name(self) -> &'static str {
        match self {
            Self::SglangBenchServing => "sglang.bench_serving",
            Self::PocketmoeLoad => "pocketmoe.load",
        }
    }
}

impl Prime {
    /// Returns the word in specs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Always => "always",
            Self::Never => "never",
        }
    }
}

fn source(source: &SourceAsk) -> Value {
    let mut object = Map::new();
    object.insert("repo".into(), json!(source.repo));
    put(&mut object, "commit", source.commit.clone(), Value::Null);
    let paths: Vec<&str> = source.patches.iter().flatten().map(|patch| patch.path.as_str()).collect();
    put(&mut object, "patches", paths, Value::Null);
    Value::Object(object)
}

fn environment(environment: &EnvironmentAsk) -> Value {
    let mut object = Map::new();
    put(&mut object, "image", environment.image.clone(), Value::Null);
    put(&mut object, "via", environment.via.name(), Via::default().name());
    put(&mut object, "venv", environment.venv.clone(), Value::Null);
    put(&mut object, "lock", environment.lock.clone(), Value::Null);
    put(&mut object, "build", environment.build.clone(), Value::Null);
    Value::Object(object)
}

fn client(client: &ClientAsk) -> Value {
    let mut object = Map::new();
    object.insert("use".into(), json!(client.kind.name()));
    put(&mut object, "python", client.python.clone(), Value::Null);
    put(&mut object, "version", client.version.clone(), Value::Null);
    put(&mut object, "args", asked_map(&client.args), Value::Null);
    Value::Object(object)
}

fn workload(spec: &Spec) -> Value {
    let Workload { warmup, .. } = &spec.workload;
    let load = &spec.workload;
    let mut object = Map::new();
    object.insert("client".into(), client(&load.client));
    put(&mut object, "dataset", load.dataset.clone(), "random-ids");
    put(&mut object, "dataset_path", load.dataset_path.clone(), Value::Null);
    put(&mut object, "input_tokens", load.input_tokens, Value::Null);
    object.insert("output_tokens".into(), json!(load.output_tokens));
    put(&mut object, "range_ratio", load.range_ratio, 1.0);
    put(&mut object, "prompts_per_user", load.prompts_per_user, 8);
    put(&mut object, "concurrency", load.concurrency, Value::Null);
    put(&mut object, "request_rate", load.request_rate, Value::Null);
    put(&mut object, "seed", load.seed, 42);
    put(&mut object, "ignore_eos", load.eos == Eos::Ignored, true);
    let mut before = Map::new();
    put(&mut before, "waves", warmup.waves, 1);
    put(&mut before, "flush_cache", warmup.cache == Cache::Flushed, true);
    put(&mut object, "warmup", before, Value::Null);
    let axis = spec.question.axis;
    let levels: Vec<&str> = spec.question.levels.iter().map(|level| level.0.as_str()).collect();
    // One fixed concurrency and a list of one are the same load.
    object.insert("axis".into(), json!({ axis_name(axis): levels }));
    Value::Object(object)
}

fn axis_name(axis: Axis) -> &'static str {
    axis.name()
}

fn server(spec: &Spec) -> Value {
    let mut object = Map::new();
    object.insert("engine".into(), json!(spec.server.engine.name()));
    put(&mut object, "model", spec.server.model.clone(), Value::Null);
    put(&mut object, "args", asked_map(&spec.server.args), Value::Null);
    put(&mut object, "env", asked_map(&spec.server.env), Value::Null);
    Value::Object(object)
}

/// Returns the design; see [`Spec::design`].
pub(super) fn design(spec: &Spec) -> Value {
    let question = &spec.question;
    let mut object = Map::new();
    put(&mut object, "source", spec.source.as_ref().map(source), Value::Null);
    put(&mut object, "environment", spec.environment.as_ref().map(environment), Value::Null);
    object.insert("server".into(), server(spec));
    object.insert("workload".into(), workload(spec));
    object.insert("factor".into(), json!(question.factor));
    let arms: Map<String, Value> = question
        .arms
        .iter()
        .map(|(arm, values)| (arm.clone(), Value::Array(values.iter().map(asked).collect())))
        .collect();
    object.insert("arms".into(), Value::Object(arms));
    object.insert("control".into(), json!(question.control));
    put(&mut object, "entails", question.entails.clone(), Value::Null);
    let evidence: Map<String, Value> =
        question.evidence.iter().map(|(arm, evidence)| (arm.clone(), json!({ "log": evidence.log }))).collect();
    put(&mut object, "evidence", evidence, Value::Null);
    put(&mut object, "prime", spec.prime.name(), Prime::Auto.name());
    put(&mut object, "passes", question.passes, 1);
    let files: Map<String, Value> =
        spec.files.iter().map(|(path, digest)| (path.clone(), json!(digest.to_string()))).collect();
    put(&mut object, "files", files, Value::Null);
    Value::Object(object)
}

fn claim(claim: &Claim) -> Value {
    let mut object = Map::new();
    object.insert("metric".into(), json!(claim.metric.name()));
    object.insert("treatment".into(), json!(claim.treatment));
    object.insert("at".into(), json!(claim.at));
    object.insert("expect".into(), json!(claim.expect.name()));
    put(&mut object, "by", claim.by, Value::Null);
    Value::Object(object)
}

fn headline(headline: &Headline) -> Value {
    let over = match &headline.over {
        Over::All => "all",
        Over::At(level) => &level.0,
    };
    json!({ "metric": headline.metric.name(), "treatment": headline.treatment, "over": over })
}

/// Returns the protocol; see [`Spec::protocol`].
pub(super) fn protocol(spec: &Spec) -> Value {
    let question = &spec.question;
    let claims: Map<String, Value> =
        question.claims.iter().map(|(name, stated)| (name.clone(), claim(stated))).collect();
    json!({
        "repeats": question.repeats,
        "margin": question.margin,
        "headline": question.headline.as_ref().map(headline),
        "claims": claims,
        "guards": spec.guards,
    })
}

/// Returns what `arm` runs with; see [`Spec::arm`].
pub(super) fn arm(spec: &Spec, arm: &str) -> Option<ArmSettings> {
    let values = spec.question.arms.get(arm)?;
    let mut source = spec.source.clone();
    let mut environment = spec.environment.clone();
    let (mut model, mut args, mut env) = (spec.server.model.clone(), spec.server.args.clone(), spec.server.env.clone());
    let mut client = spec.workload.client.clone();
    for (key, value) in spec.question.factor.iter().zip(values) {
        let text = || match value {
            Asked::Text(text) => Some(text.clone()),
            _ => None,
        };
        match Target::of_key(key.as_str())? {
            Target::Commit => source.as_mut()?.commit = text(),
            Target::Patches => source.as_mut()?.patches = Some(patches(spec, value)?),
            Target::Image => environment.get_or_insert_default().image = text(),
            Target::Venv => environment.get_or_insert_default().venv = text(),
            Target::Lock => environment.get_or_insert_default().lock = text(),
            Target::Model => model = text(),
            Target::Argument(name) => drop(args.insert(name, value.clone())),
            Target::Variable(name) => drop(env.insert(name, value.clone())),
            Target::ClientPython => client.python = text(),
            Target::ClientVersion => client.version = text(),
            Target::ClientArgument(name) => drop(client.args.insert(name, value.clone())),
        }
    }
    let source = match source {
        None => None,
        Some(SourceAsk { repo, commit, patches }) => {
            Some(ArmSource { repo, commit: commit?, patches: patches.unwrap_or_default() })
        }
    };
    let environment = match environment {
        None => None,
        Some(asked) => Some(settled(spec, asked)?),
    };
    Some(ArmSettings { source, environment, model, args, env, client })
}

fn patches(spec: &Spec, value: &Asked) -> Option<Vec<PatchAsk>> {
    let Asked::List(paths) = value else { return None };
    paths.iter().map(|path| Some(PatchAsk { path: path.clone(), sha256: *spec.files.get(path)? })).collect()
}

fn settled(spec: &Spec, asked: EnvironmentAsk) -> Option<Environment> {
    match asked {
        EnvironmentAsk { image: Some(image), via, .. } => Some(Environment::Image { image, via }),
        EnvironmentAsk { venv: Some(path), .. } => Some(Environment::Venv { path }),
        EnvironmentAsk { lock: Some(path), build, .. } => {
            Some(Environment::Lock { sha256: *spec.files.get(&path)?, path, build })
        }
        _ => None,
    }
}
