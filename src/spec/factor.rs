//! The factor and its arms: which keys may be varied, and which values each arm asks for.
//!
//! Invariant: an arm has exactly one asked value for each key of the factor, and sets nothing else; a key of the factor is
//! not fixed elsewhere in the spec.

use std::ops::Range;

use indexmap::IndexMap;

use super::ClientKind;
use super::flags::{self, BadFlag, Program, Takes, Unsafe};
use super::keys::Section;
use super::reading::Reading;
use crate::diagnostic::{Diagnostic, did_you_mean};
use crate::fact::{FactKey, canonical};
use crate::question::{Asked, Engine};
use crate::yaml::{Node, Scalar, Value, Written};

/// A place in a spec that an arm may set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Target {
    Commit,
    Patches,
    Image,
    Venv,
    Lock,
    Model,
    Argument(String),
    Variable(String),
    ClientPython,
    ClientVersion,
    ClientArgument(String),
}

/// Targets that are one key, with the key.
const SINGLE: [(&str, Target); 8] = [
    ("source.commit", Target::Commit),
    ("source.patches", Target::Patches),
    ("environment.image", Target::Image),
    ("environment.venv", Target::Venv),
    ("environment.lock", Target::Lock),
    ("server.model", Target::Model),
    ("client.python", Target::ClientPython),
    ("client.version", Target::ClientVersion),
];

/// Targets that are a family of keys, as messages show them.
const FAMILIES: [&str; 3] = ["server.args.NAME", "server.env.NAME", "client.args.NAME"];

impl Target {
    /// Returns the key in specs and questions, with full names.
    pub(super) fn key(&self) -> String {
        match self {
            Self::Argument(name) => format!("server.args.{name}"),
            Self::Variable(name) => format!("server.env.{name}"),
            Self::ClientArgument(name) => format!("client.args.{name}"),
            single => SINGLE.iter().find(|(_, target)| target == single).map_or("", |(key, _)| key).to_owned(),
        }
    }

    /// Reads a key that is already full; `None` for anything else.
    pub(super) fn of_key(key: &str) -> Option<Self> {
        if let Some((_, target)) = SINGLE.iter().find(|(single, _)| *single == key) {
            return Some(target.clone());
        }
        let named = |prefix: &str| key.strip_prefix(prefix).map(str::to_owned);
        named("server.args.")
            .map(Self::Argument)
            .or_else(|| named("server.env.").map(Self::Variable))
            .or_else(|| named("client.args.").map(Self::ClientArgument))
    }

    /// Whether an unknown value of it is ignored in silence, so that asked = observed proves nothing.
    fn needs_evidence(&self) -> bool {
        matches!(self, Self::Variable(_) | Self::Patches)
    }
}

/// The keys that are varied, with their places.
#[derive(Debug)]
pub(super) struct Factor {
    pub(super) targets: Vec<(Target, Range<usize>)>,
    /// Whether it was written as a list, which decides how arms are written.
    written: Shape,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shape {
    One,
    List,
}

impl Factor {
    /// Returns the keys as facts are named.
    pub(super) fn keys(&self) -> Vec<FactKey> {
        self.targets.iter().map(|(target, _)| FactKey::new(target.key())).collect()
    }

    /// Returns whether `key` is varied.
    pub(super) fn has(&self, key: &str) -> bool {
        self.place(key).is_some()
    }

    /// Returns where `key` is said to be varied.
    pub(super) fn place(&self, key: &str) -> Option<Range<usize>> {
        self.targets.iter().find(|(target, _)| target.key() == key).map(|(_, span)| span.clone())
    }

    /// Whether a treatment should prove that it is active.
    pub(super) fn needs_evidence(&self) -> bool {
        self.targets.iter().all(|(target, _)| target.needs_evidence())
    }
}

/// The arms, with the places of their names.
#[derive(Debug)]
pub(super) struct Arms {
    pub(super) values: IndexMap<String, Vec<Asked>>,
    pub(super) places: IndexMap<String, Range<usize>>,
}

impl Reading<'_> {
    /// Reads `factor:`.
    pub(super) fn factor(&mut self, top: &Section<'_>) -> Option<Factor> {
        let node = top.require(&mut self.reader, "factor")?;
        let nodes = self.reader.one_or_many(node);
        if nodes.is_empty() {
            self.reader.expected(node, "the key that is varied, or a list of keys that move together");
            return None;
        }
        let mut targets: Option<Vec<(Target, Range<usize>)>> = Some(Vec::new());
        for element in nodes {
            let wanted = "the key that is varied, such as `server.args.moe-runner-backend`";
            let typed = self.reader.text(element, wanted);
            let target = typed.and_then(|typed| self.target(&typed, &element.span));
            match (target, &mut targets) {
                (Some(target), Some(targets)) => {
                    self.varied_once(&target, element, targets);
                    targets.push((target, element.span.clone()));
                }
                _ => targets = None,
            }
        }
        let written = if matches!(node.value, Value::Sequence(_)) { Shape::List } else { Shape::One };
        Some(Factor { targets: targets?, written })
    }

    fn varied_once(&mut self, target: &Target, node: &Node, before: &[(Target, Range<usize>)]) {
        let key = target.key();
        if let Some((_, first)) = before.iter().find(|(other, _)| other == target) {
            self.reader.problem(
                Diagnostic::error(format!("`{key}` is varied twice"), node.span.clone(), "again here")
                    .and(first.clone(), "first here"),
            );
        }
        if let Some(fixed) = self.fixed.get(&key) {
            self.reader.problem(
                Diagnostic::error(format!("`{key}` is varied and fixed"), node.span.clone(), "varied here")
                    .and(fixed.clone(), "fixed here")
                    .help("remove the fixed value: the arms set it"),
            );
        }
    }

    /// Reads a key of the factor, or the full key of a fixed setting; reports what is wrong with it.
    pub(super) fn target(&mut self, typed: &str, span: &Range<usize>) -> Option<Target> {
        let typed = if typed.starts_with("workload.client.") { &typed["workload.".len()..] } else { typed };
        let Some(target) = Target::of_key(typed) else {
            self.not_a_factor(typed, span);
            return None;
        };
        match target {
            Target::Argument(name) => {
                let Some(engine) = self.engine else { return Some(Target::Argument(flags::full_client_name(&name))) };
                self.flag(Program::Server(engine), &name, span).map(Target::Argument)
            }
            Target::ClientArgument(name) => {
                let program = match self.client {
                    Some(ClientKind::PocketmoeLoad) => Program::PocketmoeLoad,
                    Some(ClientKind::SglangBenchServing) | None => Program::BenchServing,
                };
                self.flag(program, &name, span).map(Target::ClientArgument)
            }
            Target::Variable(name) => self.variable(&name, span).map(Target::Variable),
            single => Some(single),
        }
    }

    fn flag(&mut self, program: Program, typed: &str, span: &Range<usize>) -> Option<String> {
        let bad = match flags::flag(program, typed) {
            Ok(full) => return Some(full),
            Err(bad) => bad,
        };
        let listed = |names: &[&str]| names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
        let (title, label, help) = match bad {
            BadFlag::Name(meant) => (
                format!("`{typed}` is not the name of a flag"),
                "small letters, digits and dashes, none in front",
                (!meant.is_empty()).then(|| format!("write `{meant}`")),
            ),
            BadFlag::Reserved(instead) => {
                (format!("`{typed}` is not for a spec to set"), "labbook sets it", Some(instead.to_owned()))
            }
            BadFlag::Abbreviated(full) => (
                format!("`{typed}` is an abbreviation"),
                "which flag this means depends on the version",
                Some(format!("write the full name: {}", listed(&full))),
            ),
            BadFlag::Unknown(known) => {
                let near = did_you_mean(typed, known.iter().copied()).map(|near| format!("did you mean `{near}`?"));
                let all = if known.is_empty() {
                    "it has no flags beyond those that labbook sets".to_owned()
                } else {
                    format!("the flags are {}", listed(&known))
                };
                (format!("there is no flag `{typed}`"), "not a flag of this program", Some(near.unwrap_or(all)))
            }
        };
        let mut problem = Diagnostic::error(title, span.clone(), label);
        problem.help = help;
        self.reader.problem(problem);
        None
    }

    fn variable(&mut self, name: &str, span: &Range<usize>) -> Option<String> {
        let letters = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
        if name.is_empty() || !letters || name.as_bytes()[0].is_ascii_digit() {
            self.reader.problem(Diagnostic::error(
                format!("`{name}` is not the name of a variable"),
                span.clone(),
                "expected letters, digits and `_`",
            ));
            return None;
        }
        if name.starts_with("LABBOOK_") {
            self.reader.problem(Diagnostic::error(
                format!("`{name}` is not for a spec to set"),
                span.clone(),
                "labbook recognises its processes by these variables",
            ));
            return None;
        }
        Some(name.to_owned())
    }

    /// Reads `arms:`.
    pub(super) fn arms(&mut self, top: &Section<'_>, factor: &Factor) -> Option<Arms> {
        let node = top.require(&mut self.reader, "arms")?;
        let pairs = self.reader.mapping(node, "arms by name, each with its value of the factor")?;
        let mut arms = Arms { values: IndexMap::new(), places: IndexMap::new() };
        let mut complete = true;
        for (key, value) in pairs {
            self.check_arm_name(&key.text, &key.span);
            arms.places.insert(key.text.clone(), key.span.clone());
            match self.arm_values(&key.text, value, factor) {
                Some(asked) => {
                    arms.values.insert(key.text.clone(), asked);
                }
                None => complete = false,
            }
        }
        if pairs.len() < 2 {
            self.reader.problem(
                Diagnostic::error(
                    format!("an experiment compares arms, found {}", pairs.len()),
                    top.fields.key_span("arms").unwrap_or(node.span.clone()),
                    "expected at least two",
                )
                .help("for one launch without a comparison there is `labbook try`"),
            );
            return None;
        }
        if !complete {
            return None;
        }
        self.check_each_key_moves(factor, &arms);
        self.check_equal_arms(&arms);
        Some(arms)
    }

    fn check_arm_name(&mut self, name: &str, span: &Range<usize>) {
        let attempt = name.rsplit_once('.').is_some_and(|(_, end)| end.bytes().all(|byte| byte.is_ascii_digit()));
        if self.check_name(name, span, "an arm").is_some() && attempt {
            self.reader.problem(
                Diagnostic::error(
                    format!("`{name}` cannot name an arm: it ends like an attempt"),
                    span.clone(),
                    "here",
                )
                .help("`b03-ARM.2` is the second attempt at a block; write `-` for the last `.`"),
            );
        }
    }

    fn arm_values(&mut self, arm: &str, node: &Node, factor: &Factor) -> Option<Vec<Asked>> {
        let keys: Vec<String> = factor.targets.iter().map(|(target, _)| format!("`{}`", target.key())).collect();
        if matches!(node.value, Value::Mapping(_)) {
            self.reader.problem(
                Diagnostic::error(format!("arm `{arm}` is a mapping"), node.span.clone(), "expected a value")
                    .and(factor.targets[0].1.clone(), "of this factor")
                    .help(format!(
                        "an arm sets {} and nothing else; to move several keys together, make `factor` a list",
                        keys.join(" and ")
                    )),
            );
            return None;
        }
        if factor.written == Shape::One {
            return self.asked(&factor.targets[0].0, node).map(|asked| vec![asked]);
        }
        let nodes = match &node.value {
            Value::Sequence(elements) => elements.iter().collect(),
            _ => vec![node],
        };
        let listed = matches!(node.value, Value::Sequence(_));
        if nodes.len() != factor.targets.len() || !listed {
            let (found, wanted) = (nodes.len(), factor.targets.len());
            let found = if listed { format!("a list of {found}") } else { "one value, not a list".to_owned() };
            self.reader.problem(
                Diagnostic::error(
                    format!("arm `{arm}` needs a list of {wanted}, found {found}"),
                    node.span.clone(),
                    "one value for each key of the factor",
                )
                .and(factor.targets[0].1.clone(), "of this factor")
                .help(format!("in this order: {}; `unset` where the arm leaves one out", keys.join(", "))),
            );
            return None;
        }
        let mut values = Some(Vec::new());
        for ((target, _), element) in factor.targets.iter().zip(nodes) {
            match (self.asked(target, element), &mut values) {
                (Some(asked), Some(values)) => values.push(asked),
                _ => values = None,
            }
        }
        values
    }

    fn check_each_key_moves(&mut self, factor: &Factor, arms: &Arms) {
        let null_control =
            arms.values.values().all(|values| Some(values) == arms.values.first().map(|(_, first)| first));
        for (place, (target, span)) in factor.targets.iter().enumerate() {
            let mut asked = arms.values.values().map(|values| &values[place]);
            let first = asked.next();
            let key = target.key();
            if !asked.all(|other| Some(other) == first) {
                continue;
            }
            if first == Some(&Asked::Unset) {
                self.reader.problem(
                    Diagnostic::error(format!("no arm sets `{key}`"), span.clone(), "a factor that no arm sets")
                        .help("give at least one arm a value other than `unset`"),
                );
            } else if !null_control {
                self.reader.problem(
                    Diagnostic::warning(format!("`{key}` is the same in every arm"), span.clone(), "does not vary")
                        .help("fix it where it belongs and take it out of the factor"),
                );
            }
        }
    }

    fn check_equal_arms(&mut self, arms: &Arms) {
        for (later, (arm, values)) in arms.values.iter().enumerate() {
            for (other, other_values) in arms.values.iter().take(later) {
                let (span, first) = (arms.places[arm].clone(), arms.places[other].clone());
                if values == other_values {
                    self.reader.problem(
                        Diagnostic::warning(
                            format!("arms `{other}` and `{arm}` ask for the same values"),
                            span,
                            "a null control (A/A)",
                        )
                        .and(first, "as here")
                        .help(
                            "a null control measures the noise floor; if none is meant, give one of them another value",
                        ),
                    );
                } else if values.iter().zip(other_values).all(|(one, two)| means_the_same(one, two)) {
                    self.reader.problem(
                        Diagnostic::error(
                            format!("arms `{other}` and `{arm}` ask for the same values in two spellings"),
                            span,
                            "the same number",
                        )
                        .and(first, "as here")
                        .help("spell them alike for a null control, or give one of them another value"),
                    );
                }
            }
        }
    }

    /// Reads the value that is asked for at a target.
    pub(super) fn asked(&mut self, target: &Target, node: &Node) -> Option<Asked> {
        let asked = match target {
            Target::Commit => self.commit(node).map(Asked::Text),
            Target::Image => self.image(node).map(Asked::Text),
            Target::Lock => self.beside(node, "a lock file beside the spec").map(|(path, _)| Asked::Text(path)),
            Target::Patches => self.asked_patches(node),
            Target::Venv => self.reader.text(node, "path of a virtual environment on the host").map(Asked::Text),
            Target::Model => self.reader.text(node, "model name or path").map(Asked::Text),
            Target::ClientPython => self.reader.text(node, "path of an interpreter on the host").map(Asked::Text),
            Target::ClientVersion => self.reader.text(node, "a version").map(Asked::Text),
            Target::Argument(name) => self.asked_argument(name, node, self.engine),
            Target::ClientArgument(name) => self.asked_argument(name, node, None),
            Target::Variable(name) => self.asked_variable(name, node),
        }?;
        let found = match target {
            Target::Argument(name) => flags::unsafe_argument(name, &asked),
            Target::Variable(name) => flags::unsafe_variable(name, &asked),
            Target::ClientArgument(name) => flags::unsafe_client_argument(name, &asked),
            _ => None,
        };
        if let Some(found) = found {
            self.check_allowed(&found, target, node)?;
        }
        Some(asked)
    }

    fn check_allowed(&mut self, found: &Unsafe, target: &Target, node: &Node) -> Option<()> {
        if self.allow.contains_key(&found.allowed_as) {
            self.allowed.insert(found.allowed_as.clone());
            return Some(());
        }
        self.reader.problem(
            Diagnostic::error(
                format!("`{}` is unsafe: {}", target.key(), found.why),
                node.span.clone(),
                "asked for here",
            )
            .help(format!(
                "if that is meant, add `allow: {{{}: \"the reason\"}}`; it will stand on every page",
                found.allowed_as
            )),
        );
        None
    }

    fn asked_patches(&mut self, node: &Node) -> Option<Asked> {
        let nodes = match &node.value {
            Value::Scalar(scalar) if is_word(scalar, "unset") => Vec::new(),
            _ => self.reader.one_or_many(node),
        };
        let patches = self.patches(&nodes)?;
        Some(Asked::List(patches.into_iter().map(|patch| patch.path).collect()))
    }

    fn asked_argument(&mut self, name: &str, node: &Node, engine: Option<Engine>) -> Option<Asked> {
        const WANTED: &str = "a value, a list, `set` (a flag without value) or `unset`";
        if let Value::Sequence(elements) = &node.value {
            if elements.is_empty() {
                self.reader.expected(node, WANTED);
                return None;
            }
            let texts: Option<Vec<String>> =
                elements.iter().map(|element| self.argument_text(element, WANTED)).collect();
            return texts.map(Asked::List);
        }
        if let Value::Scalar(scalar) = &node.value {
            if is_word(scalar, "unset") {
                return Some(Asked::Unset);
            }
            if is_word(scalar, "set") {
                return self.check_takes(name, engine, Takes::Nothing, node).map(|()| Asked::Set);
            }
        }
        let text = self.argument_text(node, WANTED)?;
        self.check_takes(name, engine, Takes::Value, node)?;
        if matches!(text.as_str(), "true" | "false" | "True" | "False") {
            self.reader.problem(
                Diagnostic::warning(
                    format!("`{name}` gets the word `{text}` as its value"),
                    node.span.clone(),
                    format!("passed as `--{name} {text}`"),
                )
                .help("a flag without a value is `set`, an absent one `unset`; quote the word if it is meant"),
            );
        }
        Some(Asked::Text(text))
    }

    fn check_takes(&mut self, name: &str, engine: Option<Engine>, given: Takes, node: &Node) -> Option<()> {
        let takes = engine.and_then(|engine| flags::takes(engine, name));
        let (title, help) = match takes {
            Some(Takes::Nothing) if given == Takes::Value => {
                (format!("`{name}` is a flag without a value"), "write `set`, or `unset` for its absence")
            }
            Some(Takes::Value) if given == Takes::Nothing => {
                (format!("`{name}` needs a value"), "write the value, or `unset` for its absence")
            }
            _ => return Some(()),
        };
        self.reader.problem(Diagnostic::error(title, node.span.clone(), "here").help(help));
        None
    }

    fn argument_text(&mut self, node: &Node, wanted: &str) -> Option<String> {
        let scalar = self.reader.scalar(node, wanted)?;
        let text = scalar.text.clone();
        self.no_nul(&text, node)?;
        Some(text)
    }

    fn asked_variable(&mut self, name: &str, node: &Node) -> Option<Asked> {
        let scalar = self.reader.scalar(node, "the variable's text, or `unset`; \"\" for empty text")?.clone();
        if is_word(&scalar, "unset") {
            return Some(Asked::Unset);
        }
        if is_word(&scalar, "set") {
            self.reader.problem(
                Diagnostic::error("a variable is not a flag", node.span.clone(), "`set` means a flag without a value")
                    .help("write the value; `!text set` if it is these three letters"),
            );
            return None;
        }
        if flags::is_secret(name) {
            self.reader.problem(
                Diagnostic::error(format!("`{name}` holds a secret"), node.span.clone(), "a spec is published")
                    .help("export it in the host's `setup:`"),
            );
            return None;
        }
        self.no_nul(&scalar.text, node)?;
        let word = scalar.text.to_lowercase();
        if scalar.style == Written::Plain && ["yes", "no", "on", "off", "true", "false", "y", "n"].contains(&&*word) {
            self.reader.problem(
                Diagnostic::warning(
                    format!("`{name}` gets the word `{}`", scalar.text),
                    node.span.clone(),
                    format!("passed as the {} letters {}", scalar.text.len(), scalar.text),
                )
                .help("quote it if that is meant; programs differ in which words they take for true"),
            );
        }
        Some(Asked::Text(scalar.text))
    }

    fn no_nul(&mut self, text: &str, node: &Node) -> Option<()> {
        if !text.contains('\0') {
            return Some(());
        }
        self.reader.problem(Diagnostic::error(
            "a NUL character cannot be passed to a program",
            node.span.clone(),
            "in this text",
        ));
        None
    }

    /// Reports a key that no arm can set.
    fn not_a_factor(&mut self, typed: &str, span: &Range<usize>) {
        let help = if typed.starts_with("workload.") {
            "the load is the same in every arm; vary it along the axis, such as `concurrency: [1, 16]`".to_owned()
        } else if typed.starts_with("environment") {
            "say which: `environment.image`, `environment.venv` or `environment.lock`".to_owned()
        } else {
            near_key(typed).unwrap_or_else(|| {
                let all: Vec<String> =
                    SINGLE.iter().map(|(key, _)| *key).chain(FAMILIES).map(|key| format!("`{key}`")).collect();
                format!("the keys that can be varied are {}", all.join(", "))
            })
        };
        self.reader
            .problem(Diagnostic::error(format!("`{typed}` cannot be varied"), span.clone(), "not a factor").help(help));
    }
}

/// Suggests the key that was probably meant: of a family by the part before the name, else one of the single keys.
fn near_key(typed: &str) -> Option<String> {
    let mut dots = typed.match_indices('.').map(|(place, _)| place);
    let family = dots.nth(1).and_then(|dot| {
        let (prefix, name) = typed.split_at(dot);
        did_you_mean(prefix, ["server.args", "server.env", "client.args"]).map(|near| format!("{near}{name}"))
    });
    let near = family.or_else(|| did_you_mean(typed, SINGLE.iter().map(|(key, _)| *key)).map(str::to_owned))?;
    Some(format!("did you mean `{near}`?"))
}

fn means_the_same(one: &Asked, two: &Asked) -> bool {
    match (one, two) {
        (Asked::Text(one), Asked::Text(two)) => canonical(one) == canonical(two),
        (Asked::List(one), Asked::List(two)) => {
            one.len() == two.len() && one.iter().zip(two).all(|(one, two)| canonical(one) == canonical(two))
        }
        _ => one == two,
    }
}

fn is_word(scalar: &Scalar, word: &str) -> bool {
    scalar.style == Written::Plain && scalar.text == word
}
