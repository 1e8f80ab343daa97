//! The engines: from one arm's settings to the exact command of its server, and how to ask it whether it is ready.
//!
//! The set of engines is closed, so this is a `match`: a newcomer does not compile until every place knows about it.
//! Invariant: a command is a list of words, never shell text, and holds nothing that the spec does not ask for but the
//! address to listen on.

use std::ffi::OsString;
use std::fs;
use std::num::NonZeroU16;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::json;

use crate::client::{self, Place};
use crate::digest::Digest;
use crate::plan::{PlannedSession, PlannedTrial};
use crate::question::{Asked, Engine};
use crate::script::input::{Command, Generate, Limits, SessionInput, Source, TrialInput};
use crate::spec::{ArmSettings, ClientKind, Environment, PatchAsk, Spec};

/// From SIGTERM to SIGKILL, and again until port and GPU memory are free. An `SGLang` server took 2 s on one H200; eight
/// ranks that hold a model of a terabyte take longer.
const STOP: Duration = Duration::from_mins(1);
/// Imports of the real client and the real argument parser take 18 s on a warm disk.
const PREFLIGHT: Duration = Duration::from_mins(5);
/// Logs, rows with details and counters of one session: 100 MB are plenty.
const DISK_KIB: u64 = 100 * 1024;

/// Why a session cannot be started as asked.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The spec asks for something that cannot be run.
    #[error("{what} cannot be run: {why}")]
    CannotRun {
        /// What was asked.
        what: String,
        /// Why not.
        why: &'static str,
    },
    /// A patch is not what it was when the spec was read.
    #[error("the patch `{path}` changed since the spec was read")]
    Patch {
        /// Its path.
        path: PathBuf,
    },
    /// There is no such arm.
    #[error("there is no arm `{0}`")]
    Arm(String),
}

/// Returns the port that an edition uses on its host: fixed, so that a stray server is noticed, and below the range from which
/// Linux takes the ports of clients.
pub fn port_of(edition: &Digest) -> NonZeroU16 {
    let port = 20_000 + (edition.seed() % 12_000) as u16;
    NonZeroU16::new(port).expect("at least 20 000")
}

/// Compiles one planned session into what the host programs are given.
pub fn session(spec: &Spec, planned: &PlannedSession, place: &Place) -> Result<SessionInput, EngineError> {
    let settings = spec.arm(&planned.arm).ok_or_else(|| EngineError::Arm(planned.arm.clone()))?;
    let trials = planned.trials.iter().map(|trial| trial_input(spec, &settings, trial, place)).collect();
    Ok(SessionInput {
        name: planned.name.clone(),
        server: server(spec.server.engine, &settings, place)?,
        cwd: None,
        source: source(&settings, place.spec_folder)?,
        port: place.port,
        health: Some("/health".to_owned()),
        ready_line: Some("The server is fired up and ready to roll!".to_owned()),
        generate: Some(Generate { path: "/generate".to_owned(), body: first_generation() }),
        info: info(spec.server.engine),
        flush_path: Some("/flush_cache".to_owned()),
        preflight: preflight(spec.server.engine, &settings, place),
        package_path: package_path(spec.server.engine, &settings),
        limits: Limits {
            ready: Duration::from_secs(spec.server.ready_s),
            trial: Duration::from_secs(spec.trial_timeout_s),
            stop: STOP,
            preflight: PREFLIGHT,
            disk_kib: DISK_KIB,
        },
        trials,
    })
}

/// Returns the command of an arm's server.
pub fn server(engine: Engine, settings: &ArmSettings, place: &Place) -> Result<Command, EngineError> {
    let mut argv = match engine {
        Engine::Pocketmoe => [place.labbook, "pocket", "serve"].map(str::to_owned).to_vec(),
        Engine::Sglang => [&python(settings)?, "-m", "sglang.launch_server"].map(str::to_owned).to_vec(),
        Engine::Vllm | Engine::Command => {
            return Err(EngineError::CannotRun {
                what: format!("engine `{}`", engine.name()),
                why: "this version starts `pocketmoe` and `sglang`; results of others can be imported",
            });
        }
    };
    argv.extend(["--host".to_owned(), "127.0.0.1".to_owned(), "--port".to_owned(), place.port.to_string()]);
    if let Some(model) = &settings.model {
        argv.extend(["--model-path".to_owned(), model.clone()]);
    }
    argv.extend(settings.args.iter().flat_map(|(name, asked)| client::flag(name, asked)));
    Ok(Command { argv: argv.into_iter().map(OsString::from).collect(), env: environment(engine, settings) })
}

/// What the server is asked about itself. Servers before 0.5.6 know the older names alone.
fn info(engine: Engine) -> Vec<(String, String)> {
    let names: &[&str] = match engine {
        Engine::Sglang => &["server_info", "get_server_info", "model_info", "get_model_info", "metrics"],
        _ => &["server_info", "model_info", "metrics"],
    };
    names.iter().map(|name| ((*name).to_owned(), format!("/{name}"))).collect()
}

/// Says whether every arm can be started by this version, before anything is begun.
///
/// # Errors
///
/// The first arm that cannot.
pub fn runnable(spec: &Spec, place: &Place) -> Result<(), EngineError> {
    for arm in spec.question.arms.keys() {
        let settings = spec.arm(arm).ok_or_else(|| EngineError::Arm(arm.clone()))?;
        server(spec.server.engine, &settings, place)?;
    }
    Ok(())
}

fn environment(engine: Engine, settings: &ArmSettings) -> Vec<(String, OsString)> {
    let mut env: Vec<(String, OsString)> = Vec::new();
    // The package is imported from the clean tree that the session makes and starts in.
    if engine == Engine::Sglang && settings.source.is_some() && !settings.env.contains_key("PYTHONPATH") {
        env.push(("PYTHONPATH".to_owned(), "python".into()));
    }
    for (name, asked) in &settings.env {
        match asked {
            Asked::Text(value) => env.push((name.clone(), value.into())),
            Asked::Set => env.push((name.clone(), "".into())),
            Asked::Unset | Asked::List(_) => {}
        }
    }
    env
}

fn python(settings: &ArmSettings) -> Result<String, EngineError> {
    let cannot = |what: &str, why| Err(EngineError::CannotRun { what: what.to_owned(), why });
    match &settings.environment {
        None => Ok("python3".to_owned()),
        Some(Environment::Venv { path }) => Ok(format!("{}/bin/python", path.trim_end_matches('/'))),
        Some(Environment::Image { image, .. }) => {
            cannot(&format!("`environment: {{ image: {image} }}`"), "this version starts no containers")
        }
        Some(Environment::Lock { path, .. }) => {
            cannot(&format!("`environment: {{ lock: {path} }}`"), "this version builds no environments")
        }
    }
}

fn source(settings: &ArmSettings, spec_folder: &Path) -> Result<Option<Source>, EngineError> {
    let Some(asked) = &settings.source else { return Ok(None) };
    let patches = asked.patches.iter().map(|patch| read_patch(patch, spec_folder)).collect::<Result<_, _>>()?;
    Ok(Some(Source { repo: asked.repo.clone(), commit: asked.commit.clone(), patches }))
}

fn read_patch(patch: &PatchAsk, spec_folder: &Path) -> Result<(String, Vec<u8>), EngineError> {
    let path = spec_folder.join(&patch.path);
    let bytes = fs::read(&path).unwrap_or_default();
    if Digest::of(&bytes) != patch.sha256 {
        return Err(EngineError::Patch { path });
    }
    // The digest is the identity; the label only has to be a harmless file name.
    Ok((patch.sha256.short(12), bytes))
}

fn trial_input(spec: &Spec, settings: &ArmSettings, trial: &PlannedTrial, place: &Place) -> TrialInput {
    TrialInput {
        label: trial.label.clone(),
        client: client::measured(spec, settings, trial, place),
        warmup: client::warmup(spec, settings, trial, place),
        flush: client::flushes(spec),
    }
}

/// One token for a short prompt: it proves that the server answers, and is over in a moment.
fn first_generation() -> Vec<u8> {
    json!({"text": "w1 w2 w3", "sampling_params": {"max_new_tokens": 1, "temperature": 0}}).to_string().into_bytes()
}

fn preflight(engine: Engine, settings: &ArmSettings, place: &Place) -> Vec<Command> {
    let mut commands = vec![client::preflight(settings, place)];
    if engine == Engine::Sglang
        && let Ok(python) = python(settings)
    {
        // The target interpreter parses the arguments before any weights load: a misspelt flag costs seconds, not minutes.
        let mut argv = vec![python.clone(), "-c".to_owned(), PARSE_ARGUMENTS.to_owned()];
        argv.extend(settings.model.iter().flat_map(|model| ["--model-path".to_owned(), model.clone()]));
        argv.extend(settings.args.iter().flat_map(|(name, asked)| client::flag(name, asked)));
        let argv = argv.into_iter().map(OsString::from).collect();
        commands.push(Command { argv, env: environment(engine, settings) });
        let model = settings.model.clone().unwrap_or_default();
        let argv = [python.as_str(), "-c", PRINT_FACTS, model.as_str()].map(OsString::from).to_vec();
        commands.push(Command { argv, env: environment(engine, settings) });
    }
    if settings.client.kind == ClientKind::SglangBenchServing {
        let mut argv = client::python(settings);
        argv.extend(["-c".to_owned(), PRINT_CLIENT_FACTS.to_owned()]);
        argv.extend(settings.client.version.clone());
        commands.push(Command { argv: argv.into_iter().map(OsString::from).collect(), env: Vec::new() });
    }
    commands
}

/// Prints what only the server's interpreter can know: where it and the engine's package are, the versions of the engine's
/// dependencies as installed (of a bare checkout, what its pyproject.toml wants), the digest of a wheel's RECORD where the
/// package comes from one, and digests of the model's files where its name is a folder.
const PRINT_FACTS: &str = "import hashlib, importlib.metadata as m, importlib.util, os, re, sys
def fact(key, value): print('labbook-fact ' + key, value)
def digest(path): return hashlib.sha256(open(path, 'rb').read()).hexdigest()
def normal(name): return re.sub(r'[-_.]+', '-', name).lower()
fact('binaries.interpreter', sys.executable)
spec = importlib.util.find_spec('sglang')
origin = os.path.realpath(spec.origin) if spec and spec.origin else ''
here = os.path.realpath('.') + os.sep
fact('packages.sglang.path', origin[len(here):] if origin.startswith(here) else origin)
seen, queue = set(), ['sglang']
while queue:
    name = normal(queue.pop())
    if name in seen: continue
    seen.add(name)
    try: d = m.distribution(name)
    except m.PackageNotFoundError:
        wanted = os.path.join(os.path.dirname(os.path.dirname(origin)), 'pyproject.toml')
        if name != 'sglang' or not os.path.isfile(wanted): continue
        import tomllib
        requires = tomllib.load(open(wanted, 'rb')).get('project', {}).get('dependencies', [])
    else:
        fact('packages.' + name, d.version)
        requires = d.requires or []
        if name == 'sglang' and os.path.realpath(d.locate_file('sglang/__init__.py')) == origin and d.read_text('RECORD'):
            fact('packages.sglang.record_sha256', hashlib.sha256(d.read_text('RECORD').encode()).hexdigest())
    for r in requires:
        if 'extra ==' not in r: queue.append(re.split(r'[^A-Za-z0-9._-]', r, maxsplit=1)[0])
for key, file in (('config', 'config.json'), ('tokenizer', 'tokenizer.json'), ('chat_template', 'chat_template.jinja'),
                  ('index', 'model.safetensors.index.json')):
    path = os.path.join(sys.argv[1], file)
    if not os.path.isfile(path):
        try:
            from huggingface_hub import try_to_load_from_cache
            path = try_to_load_from_cache(sys.argv[1], file)
        except Exception: path = None
    if isinstance(path, str) and os.path.isfile(path):
        fact('model.' + key + '_sha256', digest(path))";

/// Prints which client measures: its version, which must be the pinned one, and the digest of the module that runs.
const PRINT_CLIENT_FACTS: &str = "import hashlib, importlib.metadata as m, importlib.util, os, sys
version = m.version('sglang')
if sys.argv[1:] and version != sys.argv[1]:
    sys.exit('client.version is ' + version + ' in ' + sys.executable + ', and the spec pins ' + sys.argv[1])
print('labbook-fact client.version', version)
spec = importlib.util.find_spec('sglang')
for folder in spec.submodule_search_locations or []:
    paths = [os.path.join(folder, *file) for file in (('benchmark', 'serving.py'), ('bench_serving.py',))]
    for path in [path for path in paths if os.path.isfile(path)][:1]:
        print('labbook-fact client.module_sha256', hashlib.sha256(open(path, 'rb').read()).hexdigest())";

const PARSE_ARGUMENTS: &str = "import argparse, sys
from sglang.srt.server_args import ServerArgs
parser = argparse.ArgumentParser(allow_abbrev=False)
ServerArgs.add_cli_args(parser)
parser.parse_args(sys.argv[1:])";

fn package_path(engine: Engine, settings: &ArmSettings) -> Option<Command> {
    if engine != Engine::Sglang {
        return None;
    }
    let python = python(settings).ok()?;
    let find = "import importlib.util; print(importlib.util.find_spec('sglang').origin)";
    let argv = [python.as_str(), "-c", find].map(OsString::from).to_vec();
    Some(Command { argv, env: environment(engine, settings) })
}
