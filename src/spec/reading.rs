//! Reading a spec: from nodes to meaning, with every problem noted on the way.
//!
//! Invariant: each reader returns `None` only after it has noted an error, and reading goes on after an error, so that one
//! look at a file shows all of them.

use std::collections::BTreeSet;
use std::ops::Range;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use indexmap::IndexMap;

use super::factor::Factor;
use super::keys::{self, Section};
use super::{ClientKind, EnvironmentAsk, PatchAsk, Prime, Server, SourceAsk, Spec, Via};
use crate::diagnostic::{Diagnostic, Diagnostics, Source, did_you_mean};
use crate::digest::Digest;
use crate::question::{Asked, Engine, Question};
use crate::yaml::{Node, Reader};

/// What is known while a spec is being read.
pub(super) struct Reading<'a> {
    pub(super) reader: Reader,
    pub(super) folder: &'a Path,
    /// Files beside the spec that were read.
    pub(super) files: IndexMap<String, Digest>,
    /// Keys that the spec fixes, under the names that a factor would have.
    pub(super) fixed: IndexMap<String, Range<usize>>,
    /// Unsafe settings with their reasons, and where they stand.
    pub(super) allow: IndexMap<String, (String, Range<usize>)>,
    pub(super) allowed: BTreeSet<String>,
    pub(super) engine: Option<Engine>,
    pub(super) client: Option<ClientKind>,
}

/// Reads a spec; see [`super::parse`].
pub(super) fn read(source: &Arc<Source>, folder: &Path) -> Result<(Spec, Diagnostics), Diagnostics> {
    let root = crate::yaml::parse(source)?;
    let mut reading = Reading {
        reader: Reader::new(source),
        folder,
        files: IndexMap::new(),
        fixed: IndexMap::new(),
        allow: IndexMap::new(),
        allowed: BTreeSet::new(),
        engine: None,
        client: None,
    };
    let spec = reading.spec(&root);
    let diagnostics = reading.reader.diagnostics;
    match spec {
        Some(spec) if !diagnostics.has_errors() => Ok((spec, diagnostics)),
        _ => Err(diagnostics),
    }
}

impl Reading<'_> {
    fn spec(&mut self, root: &Node) -> Option<Spec> {
        let top = keys::SPEC.open(&mut self.reader, root)?;
        let experiment = self.experiment();
        let title = top.text(&mut self.reader, "title");
        let asks = top.text(&mut self.reader, "question");
        let hypothesis = top.maybe_text(&mut self.reader, "hypothesis");
        let hosts = self.hosts(&top);
        self.read_allow(&top);
        self.peek_engine(&top);
        let source = self.source(&top);
        let environment = self.environment(&top);
        let server = self.server(&top);
        let workload = self.workload(&top);
        let factor = self.factor(&top);
        let arms = factor.as_ref().and_then(|factor| self.arms(&top, factor));
        if let (Some(factor), Some(server), Some(environment)) = (&factor, &server, &environment) {
            self.needs(&top, factor, server, source.as_ref().and_then(Option::as_ref), environment.as_ref());
        }
        if let (Some(factor), Some((workload, _))) = (&factor, &workload) {
            let at = top.fields.key_span("workload").unwrap_or(0..0);
            self.needs_of_client(at, &workload.client, |key| factor.has(key));
        }
        let known = arms.as_ref().zip(workload.as_ref()).map(|(arms, (_, load))| (arms, load));
        let judged = self.judged(&top, factor.as_ref(), known);
        let prime = top.word(&mut self.reader, "prime").map(|place| [Prime::Auto, Prime::Always, Prime::Never][place]);
        let retry = top.whole(&mut self.reader, "retry");
        let trial_timeout_s = top.duration_s(&mut self.reader, "timeout");
        let references = self.references(&top, known.map(|(_, load)| load));
        let guards = self.guards(&top);
        self.unused_allowances();

        let (arms, factor, judged, (workload, load)) = (arms?, factor?, judged?, workload?);
        let question = Question {
            experiment: experiment?,
            engine: self.engine,
            factor: factor.keys(),
            arms: arms.values,
            control: judged.control,
            entails: judged.entails,
            evidence: judged.evidence,
            axis: load.axis,
            levels: load.levels,
            repeats: judged.repeats,
            passes: judged.passes,
            margin: judged.margin,
            headline: judged.headline,
            claims: judged.claims,
        };
        Some(Spec {
            title: title?,
            asks: asks?,
            hypothesis: hypothesis?,
            question,
            hosts: hosts?,
            source: source?,
            environment: environment?,
            server: server?,
            workload,
            prime: prime?,
            retry: retry? as u32,
            trial_timeout_s: trial_timeout_s?,
            allow: self.allow.iter().map(|(name, (reason, _))| (name.clone(), reason.clone())).collect(),
            references: references?,
            guards: guards?,
            files: std::mem::take(&mut self.files),
        })
    }

    /// The name of the experiment is the stem of the file.
    fn experiment(&mut self) -> Option<String> {
        let name = self.reader.diagnostics.source.name.clone();
        let stem = Path::new(&name).file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
        if let Some(trouble) = bad_name(&stem) {
            self.reader.problem(
                Diagnostic::error(format!("`{stem}` cannot name an experiment: {trouble}"), 0..0, "in this file")
                    .help("rename the file: its name is that of the experiment and of its folder under `results/`"),
            );
            return None;
        }
        Some(stem)
    }

    fn hosts(&mut self, top: &Section<'_>) -> Option<Vec<String>> {
        let Some(node) = top.get("host") else { return Some(vec!["local".to_owned()]) };
        let nodes = self.reader.one_or_many(node);
        if nodes.is_empty() {
            self.reader.expected(node, "a name from labbook.yaml, or a list of names");
            return None;
        }
        let mut names: Vec<String> = Vec::new();
        for node in &nodes {
            let name = self.name(node, "a host")?;
            if names.contains(&name) {
                self.reader.problem(Diagnostic::error(
                    format!("host `{name}` stands twice"),
                    node.span.clone(),
                    "again here",
                ));
                return None;
            }
            names.push(name);
        }
        Some(names)
    }

    fn read_allow(&mut self, top: &Section<'_>) {
        let Some(node) = top.get("allow") else { return };
        let Some(pairs) = self.reader.mapping(node, "unsafe settings by name, each with the reason") else { return };
        for (key, value) in pairs {
            if let Some(reason) = self.reader.text(value, "the reason why this setting may be used") {
                self.allow.insert(key.text.clone(), (reason, key.span.clone()));
            }
        }
    }

    fn unused_allowances(&mut self) {
        for (name, (_, span)) in &self.allow {
            if !self.allowed.contains(name) {
                self.reader.diagnostics.problems.push(
                    Diagnostic::warning(format!("`{name}` is allowed but not used"), span.clone(), "nothing needs it")
                        .help("remove it: what is listed here stands as a banner on pages"),
                );
            }
        }
    }

    /// The engine decides how flags are read, also where the server's other keys have problems.
    fn peek_engine(&mut self, top: &Section<'_>) {
        let server = top.get("server").and_then(|node| match &node.value {
            crate::yaml::Value::Mapping(pairs) => pairs.iter().find(|(key, _)| key.text == "engine"),
            _ => None,
        });
        if let Some((_, Node { value: crate::yaml::Value::Scalar(scalar), .. })) = server {
            self.engine = Engine::NAMES.iter().find(|(name, _)| *name == scalar.text).map(|(_, engine)| *engine);
        }
    }

    #[expect(clippy::option_option, reason = "outside: whether it could be read; inside: whether it is there")]
    fn source(&mut self, top: &Section<'_>) -> Option<Option<SourceAsk>> {
        let Some(node) = top.get("source") else { return Some(None) };
        let section = keys::SOURCE.open(&mut self.reader, node)?;
        let repo = section.text(&mut self.reader, "repo");
        let commit = match section.get("commit") {
            None => Some(None),
            Some(node) => {
                self.fix("source.commit", node);
                self.commit(node).map(Some)
            }
        };
        let patches = match section.get("patches") {
            None => Some(None),
            Some(node) => {
                self.fix("source.patches", node);
                match self.reader.sequence(node, "a list of patch files beside the spec") {
                    Some(elements) => self.patches(&elements.iter().collect::<Vec<_>>()).map(Some),
                    None => None,
                }
            }
        };
        Some(Some(SourceAsk { repo: repo?, commit: commit?, patches: patches? }))
    }

    #[expect(clippy::option_option, reason = "outside: whether it could be read; inside: whether it is there")]
    fn environment(&mut self, top: &Section<'_>) -> Option<Option<EnvironmentAsk>> {
        let Some(node) = top.get("environment") else { return Some(None) };
        let section = keys::ENVIRONMENT.open(&mut self.reader, node)?;
        for key in ["image", "venv", "lock"] {
            if let Some(node) = section.get(key) {
                self.fix(&format!("environment.{key}"), node);
            }
        }
        let image = match section.get("image") {
            None => Some(None),
            Some(node) => self.image(node).map(Some),
        };
        let via = section.word(&mut self.reader, "via").map(|place| [Via::Docker, Via::Apptainer, Via::Pyxis][place]);
        let venv = section.maybe_text(&mut self.reader, "venv");
        let lock = match section.get("lock") {
            None => Some(None),
            Some(node) => self.beside(node, "a lock file beside the spec").map(|(path, _)| Some(path)),
        };
        let build = match section.get("build") {
            None => Some(Vec::new()),
            Some(node) => self.texts(node, "command that builds the environment, one argument an element"),
        };
        Some(Some(EnvironmentAsk { image: image?, via: via?, venv: venv?, lock: lock?, build: build? }))
    }

    fn server(&mut self, top: &Section<'_>) -> Option<Server> {
        let node = top.require(&mut self.reader, "server")?;
        let section = keys::SERVER.open(&mut self.reader, node)?;
        let engine = section.word(&mut self.reader, "engine").map(|place| Engine::NAMES[place].1);
        if let Some(node) = section.get("model") {
            self.fix("server.model", node);
        }
        let model = section.maybe_text(&mut self.reader, "model");
        let args = self.asked_map(section.get("args"), "server.args");
        let env = self.asked_map(section.get("env"), "server.env");
        let ready_s = section.duration_s(&mut self.reader, "ready");
        Some(Server { engine: engine?, model: model?, args: args?, env: env?, ready_s: ready_s? })
    }

    /// Reads the fixed arguments or variables under `prefix` (`server.args`, `server.env`, `client.args`).
    pub(super) fn asked_map(&mut self, node: Option<&Node>, prefix: &str) -> Option<IndexMap<String, Asked>> {
        let Some(node) = node else { return Some(IndexMap::new()) };
        let pairs = self.reader.mapping(node, prefix)?;
        let mut asked = Some(IndexMap::new());
        for (key, value) in pairs {
            let Some(target) = self.target(&format!("{prefix}.{}", key.text), &key.span) else {
                asked = None;
                continue;
            };
            let full = target.key();
            if let Some(first) = self.fixed.insert(full.clone(), key.span.clone()) {
                self.reader.problem(
                    Diagnostic::error(format!("`{full}` stands twice"), key.span.clone(), "again here")
                        .and(first, "first here")
                        .help("two spellings of one name; keep one"),
                );
            }
            match (self.asked(&target, value), &mut asked) {
                (Some(value), Some(asked)) => {
                    let name = full[prefix.len() + 1..].to_owned();
                    asked.insert(name, value);
                }
                _ => asked = None,
            }
        }
        asked
    }

    pub(super) fn fix(&mut self, key: &str, node: &Node) {
        self.fixed.insert(key.to_owned(), node.span.clone());
    }

    /// What the engine cannot do without.
    fn needs(
        &mut self,
        top: &Section<'_>,
        factor: &Factor,
        server: &Server,
        source: Option<&SourceAsk>,
        environment: Option<&EnvironmentAsk>,
    ) {
        let at = top.fields.key_span("server").unwrap_or(0..0);
        let varied = |key: &str| factor.has(key);
        let real = matches!(server.engine, Engine::Sglang | Engine::Vllm);
        if real && server.model.is_none() && !varied("server.model") {
            self.reader.problem(
                Diagnostic::error(format!("engine `{}` needs a model", server.engine.name()), at.clone(), "in here")
                    .help("add `model:` under `server:`"),
            );
        }
        let runs_in = ["environment.image", "environment.venv", "environment.lock"];
        let said: Vec<&str> = runs_in.into_iter().filter(|key| self.fixed.contains_key(*key) || varied(key)).collect();
        let environment_at = top.fields.key_span("environment").unwrap_or(at.clone());
        if said.len() > 1 {
            let said = said.iter().map(|key| format!("`{key}`")).collect::<Vec<_>>().join(" and ");
            self.reader.problem(Diagnostic::error(
                format!("the server can run in one environment only, found {said}"),
                environment_at.clone(),
                "in here",
            ));
        } else if said.is_empty() && environment.is_some() {
            self.reader.problem(
                Diagnostic::error("the environment says nothing", environment_at.clone(), "in here")
                    .help("add one of `image:`, `venv:` and `lock:`"),
            );
        }
        if environment.is_some_and(|asked| !asked.build.is_empty()) && !said.contains(&"environment.lock") {
            self.reader.problem(
                Diagnostic::error("`build` without a lock file", environment_at, "in here")
                    .help("add `lock:`, which says what is built"),
            );
        }
        if real && top.get("source").is_none() && top.get("environment").is_none() && said.is_empty() {
            self.reader.problem(
                Diagnostic::error(
                    format!("engine `{}` needs `source` or `environment`", server.engine.name()),
                    at,
                    "nothing says which code this server is",
                )
                .help("add `source: {repo: …, commit: …}`, or `environment: {image: NAME@sha256:…}`"),
            );
        }
        self.needs_of_source(top, factor, source);
    }

    fn needs_of_source(&mut self, top: &Section<'_>, factor: &Factor, source: Option<&SourceAsk>) {
        match source {
            Some(source) if source.commit.is_none() && !factor.has("source.commit") => {
                let at = top.fields.key_span("source").unwrap_or(0..0);
                self.reader.problem(
                    Diagnostic::error("the source has no commit", at, "in here")
                        .help("add `commit:` with 40 hex digits; `git rev-parse HEAD` prints them"),
                );
            }
            // A problem inside `source` has been reported at its place.
            None if top.get("source").is_none() => {
                if let Some(span) = factor.place("source.commit").or_else(|| factor.place("source.patches")) {
                    self.reader.problem(
                        Diagnostic::error("the factor is of the source, and there is no `source`", span, "varied here")
                            .help("add `source: {repo: PATH}`: the repository on the host"),
                    );
                }
            }
            _ => {}
        }
    }

    fn guards(&mut self, top: &Section<'_>) -> Option<IndexMap<String, String>> {
        let Some(node) = top.get("guards") else { return Some(IndexMap::new()) };
        let pairs = self.reader.mapping(node, "guards by name")?;
        let mut guards = IndexMap::new();
        for (key, value) in pairs {
            self.check_name(&key.text, &key.span, "a guard");
            guards.insert(key.text.clone(), self.reader.text(value, "what is checked, and how")?);
        }
        if let Some((key, _)) = pairs.first() {
            self.reader.problem(
                Diagnostic::warning("guards are declared, not run", key.span.clone(), "labbook does not check this")
                    .help("claims stay marked `quality unchecked`"),
            );
        }
        Some(guards)
    }

    /// Reads 40 hex digits.
    pub(super) fn commit(&mut self, node: &Node) -> Option<String> {
        let text = self.reader.text(node, "a commit: 40 hex digits")?;
        let hex = text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        if text.len() == 40 && hex {
            return Some(text);
        }
        let help = if text.len() == 40 && text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            format!("write the letters small: `{}`", text.to_lowercase())
        } else {
            let what = if hex && text.len() >= 4 { "a short hash" } else { "a tag or a branch" };
            format!("{what} may mean another commit later; `git rev-parse {text}^{{commit}}` prints the full hash")
        };
        let label = format!("expected 40 hex digits, found {} characters", text.chars().count());
        self.reader.problem(
            Diagnostic::error(format!("`{text}` is not a full commit hash"), node.span.clone(), label).help(help),
        );
        None
    }

    /// Reads an image named by digest.
    pub(super) fn image(&mut self, node: &Node) -> Option<String> {
        let text = self.reader.text(node, "a container image, `NAME@sha256:DIGEST`")?;
        let named =
            text.split_once("@sha256:").filter(|(name, digest)| !name.is_empty() && Digest::parse(digest).is_some());
        if named.is_none() {
            self.reader.problem(
                Diagnostic::error(
                    format!("image `{text}` is not named by digest"),
                    node.span.clone(),
                    "expected `NAME@sha256:` and 64 hex digits",
                )
                .help("a tag may mean another image later; `docker inspect --format '{{.RepoDigests}}' IMAGE` prints the digest"),
            );
            return None;
        }
        Some(text)
    }

    /// Reads paths of patches and their digests.
    pub(super) fn patches(&mut self, nodes: &[&Node]) -> Option<Vec<PatchAsk>> {
        let mut patches: Option<Vec<PatchAsk>> = Some(Vec::new());
        for node in nodes {
            match (self.beside(node, "a patch file beside the spec"), &mut patches) {
                (Some((path, sha256)), Some(patches)) => patches.push(PatchAsk { path, sha256 }),
                _ => patches = None,
            }
        }
        patches
    }

    /// Reads the path of a file beside the spec, and the file.
    pub(super) fn beside(&mut self, node: &Node, what: &str) -> Option<(String, Digest)> {
        let path = self.reader.text(node, what)?;
        let inside = Path::new(&path).components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
        if !inside {
            self.reader.problem(
                Diagnostic::error(format!("`{path}` is not beside the spec"), node.span.clone(), "leads elsewhere")
                    .help("copy the file into the spec's folder: it is part of the design"),
            );
            return None;
        }
        match file_digest(&self.folder.join(&path)) {
            Ok(sha256) => {
                self.files.insert(path.clone(), sha256);
                Some((path, sha256))
            }
            Err(trouble) => {
                let folder = shown(self.folder);
                self.reader.problem(
                    Diagnostic::error(format!("cannot use `{path}`: {trouble}"), node.span.clone(), "named here")
                        .help(format!("paths are relative to the spec's folder, {folder}")),
                );
                None
            }
        }
    }

    /// Reads a list of texts that are not empty.
    pub(super) fn texts(&mut self, node: &Node, what: &str) -> Option<Vec<String>> {
        let elements = self.reader.sequence(node, &format!("a list: {what}"))?;
        elements.iter().map(|element| self.reader.text(element, what)).collect()
    }

    /// Reads the name of an arm, a host or a claim.
    pub(super) fn name(&mut self, node: &Node, noun: &str) -> Option<String> {
        let text = self.reader.text(node, &format!("the name of {noun}"))?;
        self.check_name(&text, &node.span, noun)?;
        Some(text)
    }

    /// Notes what is wrong with a name.
    pub(super) fn check_name(&mut self, text: &str, span: &Range<usize>, noun: &str) -> Option<()> {
        let Some(trouble) = bad_name(text) else { return Some(()) };
        self.reader.problem(
            Diagnostic::error(format!("`{text}` cannot name {noun}: {trouble}"), span.clone(), "here")
                .help("names are parts of folder names: small letters, digits, `.`, `_` and `-`, at most 64"),
        );
        None
    }

    /// Reads the name of something that exists among `names`.
    pub(super) fn existing(&mut self, node: &Node, noun: &str, names: &[&str]) -> Option<String> {
        let text = self.reader.text(node, noun)?;
        if names.contains(&text.as_str()) {
            return Some(text);
        }
        let listed = names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
        let mut problem = Diagnostic::error(
            format!("`{text}` is not {noun}"),
            node.span.clone(),
            format!("expected one of {listed}"),
        );
        problem.help = did_you_mean(&text, names.iter().copied()).map(|near| format!("did you mean `{near}`?"));
        self.reader.problem(problem);
        None
    }
}

/// Returns the digest of a plain file that is not empty.
fn file_digest(path: &PathBuf) -> Result<Digest, String> {
    let kind = std::fs::metadata(path).map_err(|trouble| match trouble.kind() {
        std::io::ErrorKind::NotFound => "there is no such file".to_owned(),
        _ => trouble.to_string(),
    })?;
    // Reading from a pipe or a device may never end.
    if !kind.is_file() {
        return Err("it is not a plain file".to_owned());
    }
    let (digest, size) = Digest::of_file(path).map_err(|trouble| trouble.to_string())?;
    if size == 0 { Err("the file is empty".to_owned()) } else { Ok(digest) }
}

fn shown(folder: &Path) -> String {
    if folder.as_os_str().is_empty() { "the current one".to_owned() } else { format!("`{}`", folder.display()) }
}

/// Returns what is wrong with a name that becomes part of a folder name.
pub(crate) fn bad_name(name: &str) -> Option<String> {
    let allowed = |character: char| {
        character.is_ascii_lowercase() || character.is_ascii_digit() || matches!(character, '.' | '_' | '-')
    };
    if name.is_empty() {
        return Some("it is empty".to_owned());
    }
    if name.len() > 64 {
        return Some("it is longer than 64 characters".to_owned());
    }
    if let Some(other) = name.chars().find(|character| !allowed(*character)) {
        return Some(format!("it contains `{}`", other.escape_debug()));
    }
    if !name.starts_with(|character: char| character.is_ascii_alphanumeric()) {
        return Some("it starts with a sign".to_owned());
    }
    if name.ends_with('.') || name.contains("..") {
        return Some("its dots mean another folder".to_owned());
    }
    let block = name.strip_prefix('b').and_then(|rest| rest.split_once('-'));
    let block = block.is_some_and(|(digits, _)| !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()));
    if block || name.starts_with("prime-") || name.starts_with("look-") {
        return Some("it looks like the name of a session".to_owned());
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_safe_as_folders_and_never_those_of_sessions() {
        for good in ["a", "k0-4", "flash_infer", "v0.5.23-rc", "b200", "0", "primed"] {
            assert_eq!(bad_name(good), None, "{good}");
        }
        let long = "x".repeat(65);
        for bad in ["", "..", ".", "-a", "a..b", "a/b", "A", "é", "a b", "a.", "b01-x", "prime-x", "look-x", &long] {
            assert!(bad_name(bad).is_some(), "{bad}");
        }
    }

    #[test]
    fn only_plain_files_with_content_are_read() {
        let folder = tempfile::tempdir().expect("a folder");
        assert_eq!(file_digest(&folder.path().to_path_buf()), Err("it is not a plain file".into()));
        assert_eq!(file_digest(&folder.path().join("none")), Err("there is no such file".into()));
        std::fs::write(folder.path().join("empty"), "").expect("written");
        assert_eq!(file_digest(&folder.path().join("empty")), Err("the file is empty".into()));
        std::fs::write(folder.path().join("abc"), "abc").expect("written");
        assert_eq!(file_digest(&folder.path().join("abc")), Ok(Digest::of("abc")));
    }
}
