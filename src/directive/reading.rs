//! Reads one call: its name, its arguments, and what they mean together.
//!
//! Invariant: reading moves only forwards and ends within the paragraph; a problem's span is never empty unless the text ends there.

use std::ops::Range;

use crate::diagnostic::{Diagnostic, did_you_mean};
use crate::metric::Metric;
use crate::question::Level;
use crate::spec::bad_name;

use super::{Call, ChartKind, ClaimTarget, Effect, ExperimentTarget, Provenance, Value, Verdict, wrong};

/// What stands at a `{{`.
pub(super) enum Found {
    /// Nothing of ours.
    Text,
    /// A directive, and where it ends.
    Call(Call, usize),
    /// Problems, and where to read on.
    Wrong(Vec<Diagnostic>, usize),
}

/// The arguments that a name takes: those that may stand without a key come first.
struct Signature {
    name: &'static str,
    positional: &'static [&'static str],
    named: &'static [&'static str],
    example: &'static str,
}

const SIGNATURES: [Signature; 9] = [
    Signature {
        name: "value",
        positional: &["target"],
        named: &["run", "metric", "arm", "at"],
        example: r#"{{ value("quickstart", metric="output_throughput", arm="loop", at=16) }}"#,
    },
    Signature {
        name: "claim",
        positional: &["target"],
        named: &[],
        example: r#"{{ claim("quickstart/faster-at-16") }}"#,
    },
    Signature {
        name: "effect",
        positional: &["target"],
        named: &["metric", "treatment", "at"],
        example: r#"{{ effect("quickstart/faster-at-16") }}"#,
    },
    Signature {
        name: "verdict",
        positional: &["target"],
        named: &[],
        example: r#"{{ verdict("quickstart/faster-at-16") }}"#,
    },
    Signature {
        name: "table",
        positional: &["experiment"],
        named: &["metric"],
        example: r#"{{ table("quickstart") }}"#,
    },
    Signature {
        name: "chart",
        positional: &["experiment", "kind"],
        named: &["metric"],
        example: r#"{{ chart("quickstart", "throughput") }}"#,
    },
    Signature {
        name: "provenance",
        positional: &["experiment"],
        named: &["run"],
        example: r#"{{ provenance("quickstart") }}"#,
    },
    Signature {
        name: "reference",
        positional: &["experiment", "name"],
        named: &[],
        example: r#"{{ reference("cutedsl", "ceiling") }}"#,
    },
    Signature {
        name: "quote",
        positional: &["value", "source", "date"],
        named: &[],
        example: r#"{{ quote("352.79 tok/s", "notes of the team", "2026-02-11") }}"#,
    },
];

/// Reads what stands at the `{{` at byte `start`.
pub(super) fn call(text: &str, start: usize) -> Found {
    let mut cursor = Cursor { text, at: start + 2 };
    let escapes = text[..start].bytes().rev().take_while(|byte| *byte == b'\\').count();
    cursor.skip_blanks();
    let name = cursor.word();
    if name.is_empty() || escapes % 2 == 1 {
        return Found::Text;
    }
    let name_span = cursor.at - name.len()..cursor.at;
    let signature = SIGNATURES.iter().find(|signature| signature.name == name);
    if !cursor.eat("(") {
        return call_with_a_gap(cursor, name_span, signature);
    }
    let Some(signature) = signature else {
        return near_miss(cursor, name, name_span);
    };
    let mut reading = Reading { whole: start..cursor.at, signature, arguments: Vec::new(), problems: Vec::new() };
    if let Err(problem) = reading.arguments(&mut cursor) {
        reading.problems.push(problem.help(format!("write it like {}", signature.example)));
        return Found::Wrong(reading.problems, cursor.recover());
    }
    reading.whole.end = cursor.at;
    let call = reading.understand();
    match call {
        Some(call) if reading.problems.is_empty() => Found::Call(call, cursor.at),
        _ => Found::Wrong(reading.problems, cursor.at),
    }
}

/// `claim ("…")` is a slip of ours; `quote (default …)` is Helm's.
fn call_with_a_gap(mut cursor: Cursor, name_span: Range<usize>, signature: Option<&Signature>) -> Found {
    let Some(signature) = signature else { return Found::Text };
    let behind_the_name = cursor.at;
    cursor.skip_blanks();
    let parenthesis = cursor.at;
    if !cursor.eat("(") {
        return Found::Text;
    }
    cursor.skip_blanks();
    if !cursor.rest().starts_with('"') {
        return Found::Text;
    }
    let problem = wrong(
        format!("a blank between `{}` and `(`", signature.name),
        name_span.start..parenthesis.max(behind_the_name),
        "expected `(` right behind the name",
    );
    Found::Wrong(vec![problem.help(format!("write it like {}", signature.example))], cursor.recover())
}

/// A call of a name that is one or two slips away from ours; others belong to somebody else.
fn near_miss(mut cursor: Cursor, name: &str, span: Range<usize>) -> Found {
    let slips = |known: &str| strsim::osa_distance(&name.to_lowercase(), known);
    let allowed = |known: &str| if known.len() <= 6 { 1 } else { 2 };
    let near = SIGNATURES.iter().map(|signature| signature.name).filter(|known| slips(known) <= allowed(known));
    let Some(near) = near.min_by_key(|known| slips(known)) else { return Found::Text };
    let problem = wrong(format!("`{name}` is not a directive"), span, "not a name of ours")
        .help(format!("did you mean `{near}`? (text that shall stay as it is goes into code)"));
    Found::Wrong(vec![problem], cursor.recover())
}

/// Reads forward through the text.
struct Cursor<'t> {
    text: &'t str,
    at: usize,
}

impl<'t> Cursor<'t> {
    fn rest(&self) -> &'t str {
        &self.text[self.at..]
    }

    fn eat(&mut self, token: &str) -> bool {
        let found = self.rest().starts_with(token);
        if found {
            self.at += token.len();
        }
        found
    }

    /// Skips blanks and single line ends; an empty line ends the paragraph, and nothing is skipped beyond it.
    fn skip_blanks(&mut self) {
        let blanks = self.rest().len() - self.rest().trim_start_matches([' ', '\t', '\r', '\n']).len();
        let skipped = &self.rest()[..blanks];
        let mut ends = skipped.match_indices('\n');
        let second = ends.nth(1).map_or(blanks, |(second, _)| second);
        self.at += second;
    }

    fn word(&mut self) -> &'t str {
        let letter = |character: char| character.is_ascii_alphanumeric() || matches!(character, '_' | '-');
        let rest = self.rest();
        let length = rest.find(|character| !letter(character)).unwrap_or(rest.len());
        self.at += length;
        &rest[..length]
    }

    /// Returns the span of what stands here, for a problem's place: one word, or one character.
    fn here(&self) -> Range<usize> {
        let rest = self.rest();
        let word = rest.find(|character: char| !character.is_alphanumeric() && character != '_').unwrap_or(rest.len());
        let length = if word > 0 { word } else { rest.chars().next().map_or(0, char::len_utf8) };
        self.at..self.at + length
    }

    /// Says what stands here, for a problem's title.
    fn found(&self) -> String {
        let here = &self.text[self.here()];
        match here {
            "" => "the end of the text".to_owned(),
            "\n" | "\r" => "the end of the paragraph".to_owned(),
            other => format!("`{}`", other.escape_debug()),
        }
    }

    /// Returns where to read on after a problem: behind the next `}}` of the paragraph, or right here.
    fn recover(&mut self) -> usize {
        let rest = self.rest();
        let paragraph = rest.find("\n\n").unwrap_or(rest.len());
        let next = rest[..paragraph].find("{{").unwrap_or(paragraph);
        self.at + rest[..next].find("}}").map_or(0, |length| length + 2)
    }
}

/// One argument as it was typed.
struct Argument {
    key: &'static str,
    literal: Literal,
    span: Range<usize>,
}

enum Literal {
    Text(String),
    Number(String),
}

struct Reading<'s> {
    whole: Range<usize>,
    signature: &'s Signature,
    arguments: Vec<Argument>,
    problems: Vec<Diagnostic>,
}

impl Reading<'_> {
    /// Reads up to and with the closing `}}`; unknown keys are noted and skipped, anything that is no argument ends the reading.
    fn arguments(&mut self, cursor: &mut Cursor) -> Result<(), Diagnostic> {
        cursor.skip_blanks();
        let mut first = true;
        while !cursor.eat(")") {
            if !first && !cursor.eat(",") {
                return Err(self.unclosed(cursor, "expected `,` or `)`"));
            }
            cursor.skip_blanks();
            if !first && cursor.eat(")") {
                break;
            }
            self.argument(cursor)?;
            cursor.skip_blanks();
            first = false;
        }
        cursor.skip_blanks();
        if cursor.eat("}}") { Ok(()) } else { Err(self.unclosed(cursor, "expected `}}`")) }
    }

    fn unclosed(&self, cursor: &Cursor, expected: &str) -> Diagnostic {
        let title = format!("`{}(…)` is not closed: found {}", self.signature.name, cursor.found());
        wrong(title, cursor.here(), expected).and(self.whole.clone(), "it begins here")
    }

    fn argument(&mut self, cursor: &mut Cursor) -> Result<(), Diagnostic> {
        let start = cursor.at;
        let word_start = cursor.rest().starts_with(|character: char| character.is_ascii_alphabetic());
        let key = if word_start { cursor.word() } else { "" };
        let key_span = start..cursor.at;
        cursor.skip_blanks();
        if !key.is_empty() && !cursor.eat("=") {
            return Err(wrong(
                format!("`{key}` is neither text nor a number"),
                key_span,
                "expected `\"text\"`, a number, or `key=value`",
            ));
        }
        cursor.skip_blanks();
        let value_start = cursor.at;
        let literal = literal(cursor)?;
        let span = value_start..cursor.at;
        let known = if key.is_empty() { self.next_position(&span) } else { self.key(key, &key_span) };
        if let Some(known) = known {
            if self.arguments.iter().any(|argument| argument.key == known) {
                self.problems.push(wrong(format!("`{known}` is given twice"), start..span.end, "the second one"));
            }
            self.arguments.push(Argument { key: known, literal, span });
        }
        Ok(())
    }

    fn next_position(&mut self, span: &Range<usize>) -> Option<&'static str> {
        let position = self.arguments.len();
        let next = self.signature.positional.get(position).copied();
        if next.is_none() {
            let expected = match (self.signature.named, position) {
                ([], _) => "expected `)`".to_owned(),
                (named, _) => format!("expected `key=value`; keys: {}", listed(named)),
            };
            let title = format!("`{}` takes {} without a key", self.signature.name, counted(self.signature.positional));
            self.problems.push(wrong(title, span.clone(), expected));
        }
        next
    }

    fn key(&mut self, key: &str, span: &Range<usize>) -> Option<&'static str> {
        let known: Vec<&'static str> = self.signature.positional.iter().chain(self.signature.named).copied().collect();
        let found = known.iter().find(|known| **known == key).copied();
        if found.is_none() {
            let title = format!("`{}` has no argument `{key}`", self.signature.name);
            let mut problem = wrong(title, span.clone(), format!("expected {}", listed(&known)));
            problem.help = did_you_mean(key, known).map(|near| format!("did you mean `{near}`?"));
            self.problems.push(problem);
        }
        found
    }

    /// Gives the arguments their meaning; `None` after a problem.
    fn understand(&mut self) -> Option<Call> {
        if !self.problems.is_empty() {
            return None;
        }
        match self.signature.name {
            "value" => self.value().map(Call::Value),
            "claim" => self.claim_target().map(Call::Claim),
            "effect" => self.effect().map(Call::Effect),
            "verdict" => self.verdict().map(Call::Verdict),
            "table" => {
                let experiment = self.experiment("experiment")?;
                Some(Call::Table { experiment, metric: self.optional_metric() })
            }
            "chart" => self.chart(),
            "provenance" if self.has("run") => {
                self.only("run", &[])?;
                self.run_prefix().map(|prefix| Call::Provenance(Provenance::Run(prefix)))
            }
            "provenance" => self.experiment("experiment").map(|of| Call::Provenance(Provenance::Experiment(of))),
            "reference" => {
                let experiment = self.experiment("experiment")?;
                Some(Call::Reference { experiment, name: self.text("name")?.0 })
            }
            "quote" => self.quote(),
            _ => None,
        }
    }

    fn value(&mut self) -> Option<Value> {
        if self.has("run") {
            self.only("run", &["metric"])?;
            return Some(Value::Run { prefix: self.run_prefix()?, metric: self.metric()? });
        }
        let (experiment, claim) = self.target("target")?;
        if let Some(claim) = claim {
            self.only("target", &["arm"])?;
            return Some(Value::Claim { target: ClaimTarget { of: experiment, claim }, arm: self.text("arm")?.0 });
        }
        Some(Value::Condition { experiment, metric: self.metric()?, arm: self.text("arm")?.0, at: self.level()? })
    }

    fn effect(&mut self) -> Option<Effect> {
        let (experiment, claim) = self.target("target")?;
        if let Some(claim) = claim {
            self.only("target", &[])?;
            return Some(Effect::Claim(ClaimTarget { of: experiment, claim }));
        }
        if self.arguments.len() == 1 {
            return Some(Effect::Headline(experiment));
        }
        let (metric, treatment) = (self.metric()?, self.text("treatment")?.0);
        Some(Effect::Condition { experiment, metric, treatment, at: self.level()? })
    }

    fn verdict(&mut self) -> Option<Verdict> {
        let (experiment, claim) = self.target("target")?;
        Some(match claim {
            Some(claim) => Verdict::Claim(ClaimTarget { of: experiment, claim }),
            None => Verdict::Headline(experiment),
        })
    }

    fn chart(&mut self) -> Option<Call> {
        let experiment = self.experiment("experiment")?;
        let (kind, span) = self.text("kind")?;
        let names = ChartKind::NAMES.map(|(name, _)| name);
        let Some((_, kind)) = ChartKind::NAMES.into_iter().find(|(name, _)| *name == kind) else {
            return self.unknown_word("a kind of chart", &kind, span, &names);
        };
        Some(Call::Chart { experiment, kind, metric: self.optional_metric() })
    }

    fn quote(&mut self) -> Option<Call> {
        let value = match &self.required("value")?.literal {
            Literal::Number(digits) => digits.clone(),
            Literal::Text(_) => self.text("value")?.0,
        };
        let source = self.text("source")?.0;
        let (date, span) = self.text("date")?;
        if let Ok(date) = date.parse::<jiff::civil::Date>() {
            return Some(Call::Quote { value, source, date });
        }
        self.problems.push(wrong(format!("`{}` is not a date", date.escape_debug()), span, "expected `YYYY-MM-DD`"));
        None
    }

    fn has(&self, key: &str) -> bool {
        self.arguments.iter().any(|argument| argument.key == key)
    }

    /// Refuses arguments that mean nothing beside `given`.
    fn only(&mut self, given: &str, beside: &[&str]) -> Option<()> {
        let other = self.arguments.iter().find(|argument| argument.key != given && !beside.contains(&argument.key));
        let Some(other) = other else { return Some(()) };
        let problem = match given {
            "run" => wrong(
                format!("`{}` beside `run`", other.key),
                other.span.clone(),
                "a run has one experiment, arm and level",
            ),
            _ => wrong(
                format!("`{}` beside a claim", other.key),
                other.span.clone(),
                "the claim fixes metric, treatment and level",
            )
            .help("name the experiment alone to choose them here"),
        };
        self.problems.push(problem);
        None
    }

    fn required(&mut self, key: &str) -> Option<&Argument> {
        let place = self.arguments.iter().position(|argument| argument.key == key);
        if place.is_none() {
            let title = format!("`{}` has no `{key}`", self.signature.name);
            self.problems.push(
                wrong(title, self.whole.clone(), format!("expected `{key}`"))
                    .help(format!("write it like {}", self.signature.example)),
            );
        }
        place.map(|place| &self.arguments[place])
    }

    /// Returns a text that is not empty, and its place.
    fn text(&mut self, key: &str) -> Option<(String, Range<usize>)> {
        let argument = self.required(key)?;
        let span = argument.span.clone();
        let problem = match &argument.literal {
            Literal::Text(text) if !text.trim().is_empty() => return Some((text.clone(), span)),
            Literal::Text(_) => wrong(format!("`{key}` is empty"), span, "expected text"),
            Literal::Number(digits) => {
                wrong(format!("`{key}` is the number {digits}"), span, "expected text in double quotes")
            }
        };
        self.problems.push(problem);
        None
    }

    fn level(&mut self) -> Option<Level> {
        let argument = self.required("at")?;
        let span = argument.span.clone();
        let (Literal::Text(text) | Literal::Number(text)) = &argument.literal;
        let (level, typed) = (Level(text.clone()), text.escape_debug().to_string());
        if level.number() > 0.0 {
            return Some(level);
        }
        self.problems.push(wrong(format!("`at` is `{typed}`"), span, "expected a positive number, or \"inf\""));
        None
    }

    fn optional_metric(&mut self) -> Option<Metric> {
        if self.has("metric") { self.metric() } else { None }
    }

    fn metric(&mut self) -> Option<Metric> {
        let (name, span) = self.text("metric")?;
        if let Some(metric) = Metric::parse(&name) {
            return Some(metric);
        }
        let names: Vec<String> = Metric::all().into_iter().map(Metric::name).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let near = did_you_mean(&name, names.iter().copied());
        let mut problem =
            wrong(format!("`{}` is not a metric", name.escape_debug()), span, "expected a name of the glossary");
        problem.help = near.map(|near| format!("did you mean `{near}`?"));
        self.problems.push(problem);
        None
    }

    fn run_prefix(&mut self) -> Option<String> {
        let (prefix, span) = self.text("run")?;
        if is_prefix(&prefix) {
            return Some(prefix);
        }
        let title = format!("`{}` is not the beginning of a run's id", prefix.escape_debug());
        self.problems.push(wrong(title, span, "expected 4 to 64 hex digits in small letters"));
        None
    }

    fn experiment(&mut self, key: &str) -> Option<ExperimentTarget> {
        let (experiment, claim) = self.target(key)?;
        let Some(claim) = claim else { return Some(experiment) };
        let span = self.required(key)?.span.clone();
        let problem = wrong(format!("`/{claim}` behind an experiment"), span, "expected the experiment alone");
        self.problems.push(problem.help(format!("`{}` is about a whole experiment", self.signature.name)));
        None
    }

    fn claim_target(&mut self) -> Option<ClaimTarget> {
        let (of, claim) = self.target("target")?;
        if let Some(claim) = claim {
            return Some(ClaimTarget { of, claim });
        }
        let span = self.required("target")?.span.clone();
        let title = format!("`{}` names no claim", of.experiment);
        self.problems.push(
            wrong(title, span, "expected `experiment/claim`").help(format!("write it like {}", self.signature.example)),
        );
        None
    }

    /// Reads `experiment[@edition][/claim]`.
    fn target(&mut self, key: &str) -> Option<(ExperimentTarget, Option<String>)> {
        let (text, span) = self.text(key)?;
        let (head, claim) = text.split_once('/').map_or((text.as_str(), None), |(head, claim)| (head, Some(claim)));
        let (experiment, edition) =
            head.split_once('@').map_or((head, None), |(experiment, edition)| (experiment, Some(edition)));
        let names = [("an experiment", Some(experiment)), ("a claim", claim)];
        for (noun, name) in names.into_iter().filter_map(|(noun, name)| Some((noun, name?))) {
            if let Some(trouble) = bad_name(name) {
                let title = format!("`{}` cannot name {noun}: {trouble}", name.escape_debug());
                self.problems.push(wrong(title, span.clone(), "expected `experiment[@edition][/claim]`"));
                return None;
            }
        }
        if let Some(edition) = edition.filter(|edition| !is_prefix(edition)) {
            let title = format!("`{}` is not an edition", edition.escape_debug());
            let problem = wrong(title, span, "expected 4 to 64 hex digits in small letters behind `@`");
            self.problems
                .push(problem.help(format!("leave out `@{}` for the spec as it stands", edition.escape_debug())));
            return None;
        }
        let of = ExperimentTarget { experiment: experiment.to_owned(), edition: edition.map(str::to_owned) };
        Some((of, claim.map(str::to_owned)))
    }

    fn unknown_word<T>(&mut self, noun: &str, word: &str, span: Range<usize>, known: &[&str]) -> Option<T> {
        let title = format!("`{}` is not {noun}", word.escape_debug());
        let mut problem = wrong(title, span, format!("expected {}", listed(known)));
        problem.help = did_you_mean(word, known.iter().copied()).map(|near| format!("did you mean `{near}`?"));
        self.problems.push(problem);
        None
    }
}

/// Reads `"text"` with the escapes `\"` and `\\`, or a number.
fn literal(cursor: &mut Cursor) -> Result<Literal, Diagnostic> {
    let start = cursor.at;
    if cursor.eat("\"") {
        return quoted(cursor, start);
    }
    let rest = cursor.rest();
    let digits = rest.find(|character: char| !matches!(character, '0'..='9' | '.' | '-')).unwrap_or(rest.len());
    let typed = &rest[..digits];
    if typed.parse::<f64>().is_ok_and(f64::is_finite) && !typed.ends_with('.') {
        cursor.at += digits;
        return Ok(Literal::Number(typed.to_owned()));
    }
    Err(wrong(format!("found {}", cursor.found()), cursor.here(), "expected `\"text\"` or a number"))
}

fn quoted(cursor: &mut Cursor, start: usize) -> Result<Literal, Diagnostic> {
    let mut text = String::new();
    let mut escaped = false;
    for (offset, character) in cursor.rest().char_indices() {
        match character {
            '\n' => break,
            '"' | '\\' if escaped => text.push(character),
            other if escaped => text.extend(['\\', other]),
            '\\' => {}
            '"' => {
                cursor.at += offset + 1;
                return Ok(Literal::Text(text));
            }
            other => text.push(other),
        }
        escaped = character == '\\' && !escaped;
    }
    Err(wrong("text without its closing `\"`", start..start + 1, "expected a second `\"` in this line"))
}

fn is_prefix(text: &str) -> bool {
    (4..=64).contains(&text.len()) && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

fn listed(words: &[&str]) -> String {
    words.iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(", ")
}

fn counted(words: &[&str]) -> String {
    match words.len() {
        1 => "one argument".to_owned(),
        count => format!("{count} arguments"),
    }
}
