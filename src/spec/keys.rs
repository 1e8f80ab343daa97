//! The keys of a spec and of `labbook.yaml`: one table that the readers and the JSON Schema both use.
//!
//! Invariant: a key that is not in a table is refused by the reader, and a bound stands here and nowhere else.

use crate::yaml::{Fields, Node, Reader};

/// One key of a mapping.
#[derive(Debug)]
pub struct Key {
    /// Its name.
    pub name: &'static str,
    /// What it is for, as a fragment that follows "expected".
    pub what: &'static str,
    /// What may stand there.
    pub shape: Shape,
    /// Whether it may be left out.
    pub need: Need,
}

/// Whether a key may be left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// It must be there.
    Required,
    /// Absent means that there is none.
    Optional,
    /// Absent means this YAML value.
    Default(&'static str),
}

/// What may stand at a key.
#[derive(Debug)]
pub enum Shape {
    /// Text that is not empty.
    Text,
    /// A whole number within bounds.
    Whole(u64, u64),
    /// A decimal number within bounds.
    Number(f64, f64),
    /// A percentage, `2%`.
    Percent,
    /// A duration with units, `40m`.
    Duration,
    /// One of these words.
    Word(&'static [&'static str]),
    /// One value of the axis or a list of them: whole numbers within bounds.
    WholeLevels(u64, u64),
    /// One value of the axis or a list of them: positive decimals or `inf`.
    RateLevels,
    /// A value asked for: `unset`, `set`, text, or a list of texts.
    Asked,
    /// A list of texts.
    Texts,
    /// One text or a list of texts.
    TextOrTexts,
    /// A list of whole numbers.
    Wholes,
    /// A mapping of known keys.
    Table(&'static Table),
    /// A mapping of free names to values of one shape.
    Named(&'static Shape),
    /// One asked value for each key of the factor.
    ArmValues,
}

/// The keys of one mapping.
#[derive(Debug)]
pub struct Table {
    /// What the mapping is called in messages, with its article.
    pub noun: &'static str,
    /// Its keys.
    pub keys: &'static [Key],
}

const fn key(name: &'static str, what: &'static str, shape: Shape, need: Need) -> Key {
    Key { name, what, shape, need }
}

use Need::{Default, Optional, Required};
use Shape::{
    ArmValues, Asked, Duration, Named, Number, Percent, RateLevels, Text, TextOrTexts, Texts, Whole, WholeLevels,
    Wholes, Word,
};

/// Engines in specs, in the order of [`crate::question::Engine::NAMES`].
pub(crate) const ENGINES: &[&str] = &["sglang", "vllm", "pocketmoe"];
/// Load clients in specs.
pub(crate) const CLIENTS: &[&str] = &["sglang.bench_serving", "pocketmoe.load"];
/// The two truth values, spelt one way.
pub(crate) const TRUTH: &[&str] = &["true", "false"];
/// What may start a container image.
pub(crate) const VIAS: &[&str] = &["docker", "apptainer", "pyxis"];
/// When arms are primed.
pub(crate) const PRIMES: &[&str] = &["auto", "always", "never"];
/// Expectations, in the order of [`crate::question::Expect::NAMES`].
pub(crate) const EXPECTS: &[&str] = &["higher", "lower", "unchanged", "not_lower", "not_higher"];
/// Ways to reach a host.
pub(crate) const HOST_VIAS: &[&str] = &["local", "ssh", "slurm"];
/// What happens when somebody else uses the host beside our GPUs.
pub(crate) const NEIGHBOURS: &[&str] = &["refuse", "record"];
/// Largest seed: clients take 32 bits with a sign, and passes and warm-up waves add to it.
const LARGEST_SEED: u64 = 2_000_000_000;

/// A spec.
pub static SPEC: Table = Table {
    noun: "a spec",
    keys: &[
        key("title", "one line for tables and pages", Text, Required),
        key("question", "what the experiment asks, in words", Text, Required),
        key("hypothesis", "what you expect, and why", Text, Optional),
        key("host", "a name from labbook.yaml, or a list of names", TextOrTexts, Default("local")),
        key("source", "the code that serves", Shape::Table(&SOURCE), Optional),
        key("environment", "what the server runs in", Shape::Table(&ENVIRONMENT), Optional),
        key("server", "the server", Shape::Table(&SERVER), Required),
        key("workload", "the load", Shape::Table(&WORKLOAD), Required),
        key("factor", "the key that is varied, or a list of keys that move together", TextOrTexts, Required),
        key("arms", "arms by name, each with its value of the factor", Named(&ArmValues), Required),
        key("control", "the arm that the others are compared with", Text, Required),
        key("entails", "outputs that also differ because the factor does", Texts, Default("[]")),
        key("evidence", "proof that a treatment is active, by arm", Named(&Shape::Table(&EVIDENCE)), Optional),
        key("prime", "whether each arm is launched once before block 1", Word(PRIMES), Default("auto")),
        key("repeats", "number of blocks", Whole(1, 1000), Default("5")),
        key("passes", "client runs per level inside a session", Whole(1, 100), Default("1")),
        key("retry", "how often a void or failed block may be queued again", Whole(0, 10), Default("1")),
        key("timeout", "longest time of one client run", Duration, Default("1h")),
        key("margin", "the difference that does not matter", Percent, Optional),
        key("headline", "the one effect that is tested alone", Shape::Table(&HEADLINE), Optional),
        key("claims", "claims by name", Named(&Shape::Table(&CLAIM)), Optional),
        key("references", "numbers from elsewhere by name", Named(&Shape::Table(&REFERENCE)), Optional),
        key("guards", "what else is checked so that quality holds, by name", Named(&Text), Optional),
        key("allow", "unsafe settings by name, each with the reason", Named(&Text), Optional),
    ],
};

/// `source:`.
pub static SOURCE: Table = Table {
    noun: "a source",
    keys: &[
        key("repo", "path of the repository on the host", Text, Required),
        key("commit", "40 hex digits", Text, Optional),
        key("patches", "patch files beside the spec, in the order they are applied", Texts, Default("[]")),
    ],
};

/// `environment:`.
pub static ENVIRONMENT: Table = Table {
    noun: "an environment",
    keys: &[
        key("image", "a container image, `NAME@sha256:DIGEST`", Text, Optional),
        key("via", "what starts the image", Word(VIAS), Default("docker")),
        key("venv", "path of a virtual environment on the host", Text, Optional),
        key("lock", "a lock file beside the spec", Text, Optional),
        key("build", "command that builds the environment from the lock file", Texts, Default("[]")),
    ],
};

/// `server:`.
pub static SERVER: Table = Table {
    noun: "a server",
    keys: &[
        key("engine", "which engine serves", Word(ENGINES), Required),
        key("model", "model name or path", Text, Optional),
        key("args", "arguments by full name, without dashes in front", Named(&Asked), Optional),
        key("env", "variables by name", Named(&Asked), Optional),
        key("ready", "longest time from start to ready", Duration, Default("20m")),
    ],
};

/// `workload:`.
pub static WORKLOAD: Table = Table {
    noun: "a workload",
    keys: &[
        key("client", "who measures", Shape::Table(&CLIENT), Optional),
        key("dataset", "kind of prompts, as the client names it", Text, Default("random-ids")),
        key("dataset_path", "a file beside the spec, or an absolute path on the host", Text, Optional),
        key("input_tokens", "prompt length in tokens, or a list of levels", WholeLevels(1, 10_000_000), Required),
        key("output_tokens", "tokens to generate per request", Whole(1, 1_000_000), Required),
        key("range_ratio", "shortest length as a fraction of the longest", Number(0.0, 1.0), Default("1")),
        key("prompts_per_user", "requests per run for each one in flight", Whole(1, 10_000), Default("8")),
        key("request_rate", "requests per second or `inf`, or a list of levels", RateLevels, Default("inf")),
        key("seed", "seed of prompts and arrivals", Whole(0, LARGEST_SEED), Default("42")),
        key("ignore_eos", "whether each request generates all its tokens", Word(TRUTH), Default("true")),
        key("concurrency", "most requests in flight, or a list of levels", WholeLevels(1, 100_000), Required),
        key("warmup", "what comes before each run", Shape::Table(&WARMUP), Optional),
    ],
};

/// `workload.client:`.
pub static CLIENT: Table = Table {
    noun: "a client",
    keys: &[
        key("use", "which load client", Word(CLIENTS), Required),
        key("python", "the interpreter on the host that has the client", Text, Optional),
        key("version", "the client's version", Text, Optional),
        key("args", "further arguments by full name", Named(&Asked), Optional),
    ],
};

/// `workload.warmup:`.
pub static WARMUP: Table = Table {
    noun: "a warm-up",
    keys: &[
        key("waves", "full waves of requests at the level's own concurrency", Whole(0, 100), Default("1")),
        key("flush_cache", "whether the prefix cache is emptied afterwards", Word(TRUTH), Default("true")),
    ],
};

/// One arm's `evidence:`.
pub static EVIDENCE: Table = Table {
    noun: "evidence",
    keys: &[key("log", "text in the server's log when the treatment is active, and only then", Text, Required)],
};

/// `headline:`.
pub static HEADLINE: Table = Table {
    noun: "a headline",
    keys: &[
        key("metric", "a metric", Text, Required),
        key("treatment", "the arm that is compared with the control", Text, Required),
        key("over", "`all` levels, or one of them", Text, Default("all")),
    ],
};

/// One claim.
pub static CLAIM: Table = Table {
    noun: "a claim",
    keys: &[
        key("metric", "a metric", Text, Required),
        key("treatment", "the arm that is compared with the control", Text, Required),
        key("at", "one of the planned levels", Text, Required),
        key("expect", "the expectation", Word(EXPECTS), Required),
        key("by", "at least how much, with `higher` and `lower`", Percent, Optional),
    ],
};

/// One reference.
pub static REFERENCE: Table = Table {
    noun: "a reference",
    keys: &[
        key("value", "a number", Number(-1e15, 1e15), Required),
        key("unit", "the unit", Text, Required),
        key("at", "one of the planned levels", Text, Optional),
        key("why", "where the number comes from", Text, Required),
    ],
};

/// `labbook.yaml`.
pub static LAB: Table =
    Table { noun: "labbook.yaml", keys: &[key("hosts", "hosts by name", Named(&Shape::Table(&HOST)), Optional)] };

/// One host.
pub static HOST: Table = Table {
    noun: "a host",
    keys: &[
        key("via", "how it is reached", Word(HOST_VIAS), Required),
        key("address", "what `ssh` takes as destination", Text, Optional),
        key("ssh_config", "file that `ssh` reads instead of your own configuration", Text, Optional),
        key("gpus", "indices of the GPUs that experiments may use", Wholes, Optional),
        key("folder", "folder on the host for sessions", Text, Optional),
        key("setup", "shell commands that export variables before the server starts", Text, Optional),
        key("neighbours", "what other work on the host means", Word(NEIGHBOURS), Default("refuse")),
        key("partition", "Slurm partition", Text, Optional),
        key("account", "Slurm account", Text, Optional),
    ],
};

impl Table {
    /// Returns a key of the table.
    ///
    /// # Panics
    ///
    /// When there is none: names in the readers are literals.
    pub(crate) fn key(&self, name: &str) -> &'static Key {
        self.keys.iter().find(|key| key.name == name).expect("the readers ask for keys of their table")
    }

    /// Opens a node as a mapping of this table's keys.
    pub(crate) fn open<'n>(&'static self, reader: &mut Reader, node: &'n Node) -> Option<Section<'n>> {
        let names: Vec<&str> = self.keys.iter().map(|key| key.name).collect();
        reader.fields(node, self.noun, &names).map(|fields| Section { table: self, fields })
    }
}

/// One mapping that is being read by its table.
#[derive(Debug)]
pub(crate) struct Section<'n> {
    table: &'static Table,
    /// The pairs.
    pub(crate) fields: Fields<'n>,
}

/// Every method that reads returns `None` after it has reported a problem.
impl<'n> Section<'n> {
    /// Returns the node of a key, if it is there.
    pub(crate) fn get(&self, name: &str) -> Option<&'n Node> {
        self.fields.get(self.table.key(name).name)
    }

    /// Returns the node of a key, or reports that it is missing.
    pub(crate) fn require(&self, reader: &mut Reader, name: &str) -> Option<&'n Node> {
        self.fields.require(reader, name, self.table.key(name).what)
    }

    /// Returns the text of a key that must be there.
    pub(crate) fn text(&self, reader: &mut Reader, name: &str) -> Option<String> {
        let node = self.require(reader, name)?;
        reader.text(node, self.table.key(name).what)
    }

    /// Returns the text of a key that may be absent.
    #[expect(clippy::option_option, reason = "outside: whether it could be read; inside: whether it is there")]
    pub(crate) fn maybe_text(&self, reader: &mut Reader, name: &str) -> Option<Option<String>> {
        match self.get(name) {
            None => Some(None),
            Some(node) => reader.text(node, self.table.key(name).what).map(Some),
        }
    }

    /// Returns the whole number of a key, or its default.
    pub(crate) fn whole(&self, reader: &mut Reader, name: &str) -> Option<u64> {
        let key = self.table.key(name);
        let (Shape::Whole(low, high) | Shape::WholeLevels(low, high)) = key.shape else {
            unreachable!("`{name}` is a whole number")
        };
        match (self.get(name), key.need) {
            (Some(node), _) => reader.whole(node, low..=high),
            (None, Need::Default(text)) => text.parse().ok(),
            (None, _) => self.require(reader, name).and(None),
        }
    }

    /// Returns the number of a key, or its default.
    pub(crate) fn number(&self, reader: &mut Reader, name: &str) -> Option<f64> {
        let key = self.table.key(name);
        let Shape::Number(low, high) = key.shape else { unreachable!("`{name}` is a number") };
        match (self.get(name), key.need) {
            (Some(node), _) => reader.number(node, low..=high),
            (None, Need::Default(text)) => text.parse().ok(),
            (None, _) => self.require(reader, name).and(None),
        }
    }

    /// Returns the percentage of a key as a fraction, above 0 and at most one half.
    #[expect(clippy::option_option, reason = "outside: whether it could be read; inside: whether it is there")]
    pub(crate) fn maybe_percent(&self, reader: &mut Reader, name: &str) -> Option<Option<f64>> {
        match self.get(name) {
            None => Some(None),
            Some(node) => reader.percent(node, SMALLEST_PERCENT..=0.5).map(Some),
        }
    }

    /// Returns the seconds of a key, or of its default; 0 is refused.
    pub(crate) fn duration_s(&self, reader: &mut Reader, name: &str) -> Option<u64> {
        let key = self.table.key(name);
        let Some(node) = self.get(name) else {
            return match key.need {
                Need::Default(text) => crate::yaml::duration_s(text),
                _ => self.require(reader, name).and(None),
            };
        };
        let seconds = reader.duration_s(node)?;
        // A week: longer is a slip of the unit, and no deadline at all.
        if !(1..=604_800).contains(&seconds) {
            reader.expected(node, &format!("{}, from `1s` to `168h`", key.what));
            return None;
        }
        Some(seconds)
    }

    /// Returns the place of the word of a key among its words, or that of its default.
    pub(crate) fn word(&self, reader: &mut Reader, name: &str) -> Option<usize> {
        let key = self.table.key(name);
        let Shape::Word(words) = key.shape else { unreachable!("`{name}` is a word") };
        match (self.get(name), key.need) {
            (Some(node), _) => reader.one_of(node, &format!("a value of `{name}`"), words),
            (None, Need::Default(default)) => words.iter().position(|word| *word == default),
            (None, _) => self.require(reader, name).and(None),
        }
    }
}

/// Smallest margin: 0.01 %, below what any number of launches resolves.
const SMALLEST_PERCENT: f64 = 0.0001;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::question::{Engine, Expect};

    #[test]
    fn words_are_in_the_order_of_their_meaning() {
        assert!(ENGINES.iter().zip(Engine::NAMES).all(|(word, (name, _))| *word == name));
        assert_eq!(EXPECTS, Expect::NAMES.map(|(name, _)| name));
    }
}
