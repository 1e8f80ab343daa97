//! The load: who measures, what is sent, and along which axis it is varied.
//!
//! Invariant: exactly one load key is the axis; its levels differ from one another as numbers, and none is 0.

use std::ops::Range;

use super::keys::{self, Section, Shape};
use super::reading::Reading;
use super::{Cache, ClientAsk, ClientKind, Eos, Warmup, Workload};
use crate::diagnostic::Diagnostic;
use crate::fact::canonical;
use crate::question::{Axis, Engine, Level};
use crate::yaml::{Node, Value};

/// The axis and its levels.
#[derive(Debug)]
pub(super) struct Load {
    pub(super) axis: Axis,
    pub(super) levels: Vec<Level>,
    /// Requests in a run at each level, for warnings about percentiles.
    pub(super) requests: Vec<u64>,
}

impl Load {
    /// Returns the planned level that `text` means.
    pub(super) fn level(&self, text: &str) -> Option<&Level> {
        self.levels.iter().find(|level| canonical(&level.0) == canonical(text))
    }
}

/// What stands at one of the three load keys.
enum Axial {
    Absent,
    One(Level),
    Levels(Vec<Level>),
}

impl Reading<'_> {
    /// Reads `workload:`.
    pub(super) fn workload(&mut self, top: &Section<'_>) -> Option<(Workload, Load)> {
        let node = top.require(&mut self.reader, "workload")?;
        let section = keys::WORKLOAD.open(&mut self.reader, node)?;
        let client = self.client(&section);
        let dataset = match section.get("dataset") {
            None => Some("random-ids".to_owned()),
            Some(_) => section.text(&mut self.reader, "dataset"),
        };
        let dataset_path = self.dataset_path(&section);
        let output_tokens = section.whole(&mut self.reader, "output_tokens");
        let range_ratio = section.number(&mut self.reader, "range_ratio");
        let prompts_per_user = section.whole(&mut self.reader, "prompts_per_user");
        let seed = section.whole(&mut self.reader, "seed");
        let eos = section.word(&mut self.reader, "ignore_eos").map(|place| [Eos::Ignored, Eos::Ends][place]);
        let warmup = self.warmup(&section);
        let axes = self.axes(&section);
        self.downloads(&section, dataset.as_deref());

        let (axis, levels, [concurrency, rate, input]) = axes?;
        let whole = |level: &Option<Level>| level.as_ref().and_then(|level| level.0.parse::<u64>().ok());
        let (concurrency, prompts_per_user) = (whole(&concurrency), prompts_per_user?);
        let users = |level: &Level| concurrency.or_else(|| level.0.parse().ok()).unwrap_or(1);
        let requests = levels.iter().map(|level| users(level) * prompts_per_user).collect();
        let workload = Workload {
            client: client?,
            dataset: dataset?,
            dataset_path: dataset_path?,
            input_tokens: whole(&input),
            output_tokens: output_tokens?,
            range_ratio: range_ratio?,
            prompts_per_user,
            concurrency,
            request_rate: rate.map(|level| level.number()).filter(|rate| rate.is_finite()),
            seed: seed?,
            eos: eos?,
            warmup: warmup?,
        };
        Some((workload, Load { axis, levels, requests }))
    }

    fn client(&mut self, workload: &Section<'_>) -> Option<ClientAsk> {
        let Some(node) = workload.get("client") else {
            if self.engine == Some(Engine::Pocketmoe) {
                self.client = Some(ClientKind::PocketmoeLoad);
                let kind = ClientKind::PocketmoeLoad;
                return Some(ClientAsk { kind, python: None, version: None, args: indexmap::IndexMap::new() });
            }
            return workload.require(&mut self.reader, "client").and(None);
        };
        let section = keys::CLIENT.open(&mut self.reader, node)?;
        let kinds = [ClientKind::SglangBenchServing, ClientKind::PocketmoeLoad];
        let kind = section.word(&mut self.reader, "use").map(|place| kinds[place]);
        self.client = kind;
        for key in ["python", "version"] {
            let Some(node) = section.get(key) else { continue };
            self.fix(&format!("client.{key}"), node);
            if kind == Some(ClientKind::PocketmoeLoad) {
                self.reader.problem(
                    Diagnostic::error(format!("`pocketmoe.load` has no `{key}`"), node.span.clone(), "not needed")
                        .help("remove it: this client is built in, and its version is that of labbook"),
                );
            }
        }
        let python = section.maybe_text(&mut self.reader, "python");
        let version = section.maybe_text(&mut self.reader, "version");
        let args = self.asked_map(section.get("args"), "client.args");
        Some(ClientAsk { kind: kind?, python: python?, version: version?, args: args? })
    }

    /// `sglang.bench_serving` is pinned apart from the source, so that a newer SGLang does not change who measures.
    pub(super) fn needs_of_client(&mut self, at: Range<usize>, client: &ClientAsk, varied: impl Fn(&str) -> bool) {
        if client.kind != ClientKind::SglangBenchServing {
            return;
        }
        for (key, given) in [("python", &client.python), ("version", &client.version)] {
            if given.is_none() && !varied(&format!("client.{key}")) {
                let what = keys::CLIENT.key(key).what;
                self.reader.problem(
                    Diagnostic::error(format!("key `{key}` of the client is missing"), at.clone(), "in here").help(
                        format!("add `{key}:` ({what}); the client is pinned apart from the source, so that a newer source does not change who measures"),
                    ),
                );
            }
        }
    }

    #[expect(clippy::option_option, reason = "outside: whether it could be read; inside: whether it is there")]
    fn dataset_path(&mut self, section: &Section<'_>) -> Option<Option<String>> {
        let Some(path) = section.maybe_text(&mut self.reader, "dataset_path")? else { return Some(None) };
        if path.starts_with('/') || path.starts_with('~') {
            return Some(Some(path));
        }
        let node = section.get("dataset_path")?;
        self.beside(node, "a data set beside the spec").map(|(path, _)| Some(path))
    }

    fn downloads(&mut self, section: &Section<'_>, dataset: Option<&str>) {
        let bench = self.client != Some(ClientKind::PocketmoeLoad);
        let Some(node) = section.get("dataset") else { return };
        if bench && section.get("dataset_path").is_none() && matches!(dataset, Some("random" | "sharegpt")) {
            self.reader.problem(
                Diagnostic::warning(
                    format!("data set `{}` is downloaded by the client", dataset.unwrap_or_default()),
                    node.span.clone(),
                    "from ShareGPT, whatever that is on the day",
                )
                .help("add `dataset_path:`, or use `random-ids`, which needs no file"),
            );
        }
    }

    fn warmup(&mut self, workload: &Section<'_>) -> Option<Warmup> {
        let Some(node) = workload.get("warmup") else { return Some(Warmup { waves: 1, cache: Cache::Flushed }) };
        let section = keys::WARMUP.open(&mut self.reader, node)?;
        let waves = section.whole(&mut self.reader, "waves");
        let cache = section.word(&mut self.reader, "flush_cache").map(|place| [Cache::Flushed, Cache::Kept][place]);
        Some(Warmup { waves: waves?, cache: cache? })
    }

    /// Finds the axis: the load key with a list, or the concurrency when none has one.
    fn axes(&mut self, section: &Section<'_>) -> Option<(Axis, Vec<Level>, [Option<Level>; 3])> {
        let axes = [Axis::Concurrency, Axis::RequestRate, Axis::InputTokens];
        let found = axes.map(|axis| self.axial(section, axis.name()));
        let [Some(concurrency), Some(rate), Some(input)] = found else { return None };
        let mut listed: Option<(Axis, Vec<Level>)> = None;
        let mut fixed = [None, None, None];
        for (place, (axis, axial)) in axes.into_iter().zip([concurrency, rate, input]).enumerate() {
            match (axial, &listed) {
                (Axial::Levels(_), Some((first, _))) => {
                    let at = |axis: Axis| section.fields.key_span(axis.name()).unwrap_or(0..0);
                    self.reader.problem(
                        Diagnostic::error("two load keys have a list", at(axis), "a second axis")
                            .and(at(*first), "the first axis")
                            .help("one key is varied along the axis; make two experiments of it"),
                    );
                    return None;
                }
                (Axial::Levels(levels), None) => listed = Some((axis, levels)),
                (Axial::One(level), _) => fixed[place] = Some(level),
                (Axial::Absent, _) if axis == Axis::RequestRate => {}
                (Axial::Absent, _) => return section.require(&mut self.reader, axis.name()).and(None),
            }
        }
        let (axis, levels) = match listed {
            Some(listed) => listed,
            None => (Axis::Concurrency, vec![fixed[0].take()?]),
        };
        Some((axis, levels, fixed))
    }

    fn axial(&mut self, section: &Section<'_>, key: &str) -> Option<Axial> {
        let Some(node) = section.get(key) else { return Some(Axial::Absent) };
        let Value::Sequence(elements) = &node.value else { return self.level(node, key).map(Axial::One) };
        if elements.is_empty() {
            self.reader.expected(node, "at least one level");
            return None;
        }
        let mut levels: Option<Vec<Level>> = Some(Vec::new());
        let mut places: Vec<(String, Range<usize>)> = Vec::new();
        for element in elements {
            let Some(level) = self.level(element, key) else {
                levels = None;
                continue;
            };
            let number = canonical(&level.0);
            if let Some((_, first)) = places.iter().find(|(other, _)| *other == number) {
                self.reader.problem(
                    Diagnostic::error(format!("level {number} stands twice"), element.span.clone(), "again here")
                        .and(first.clone(), "first here")
                        .help("for several runs of a level there is `passes`, and for several launches `repeats`"),
                );
                levels = None;
            }
            places.push((number, element.span.clone()));
            if let Some(levels) = &mut levels {
                levels.push(level);
            }
        }
        levels.map(Axial::Levels)
    }

    fn level(&mut self, node: &Node, key: &str) -> Option<Level> {
        if let Value::Scalar(scalar) = &node.value
            && scalar.text.contains(',')
        {
            self.reader.problem(
                Diagnostic::error(format!("`{}` is a text, not a list", scalar.text), node.span.clone(), "here")
                    .help(format!("write `{key}: [{}]`", scalar.text)),
            );
            return None;
        }
        match keys::WORKLOAD.key(key).shape {
            Shape::WholeLevels(low, high) => {
                self.reader.whole(node, low..=high).map(|number| Level(number.to_string()))
            }
            _ => self.rate(node),
        }
    }

    fn rate(&mut self, node: &Node) -> Option<Level> {
        let wanted = "requests per second, such as `8` or `2.5`, or `inf`";
        let text = self.reader.text(node, wanted)?;
        let decimal = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.')
            && text.starts_with(|character: char| character.is_ascii_digit())
            && text.ends_with(|character: char| character.is_ascii_digit());
        let leading_zero = text.len() > 1 && text.starts_with('0') && !text.starts_with("0.");
        let number = text.parse::<f64>().ok().filter(|number| *number > 0.0 && *number <= 1e6);
        if text == "inf" || (decimal && !leading_zero && number.is_some() && text.len() <= 16) {
            return Some(Level(text));
        }
        self.reader.expected(node, wanted);
        None
    }
}
