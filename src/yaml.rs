//! YAML as a tree of nodes that remember where they stand and what was typed.
//!
//! Invariant: a plain scalar is its source text (`0.90`, `12e4567`, `off` and `0123456` stay what they are), whatever the
//! place it stands in; nothing is ever turned into a number, a boolean or null here. Duplicate keys, merge keys and
//! unknown tags are refused with their place.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use granit_parser::{Event, Parser, ScalarStyle, Tag};

use crate::diagnostic::{Diagnostic, Diagnostics, Source, did_you_mean};

/// Deepest nesting that is read; specs need four.
const MAX_DEPTH: usize = 32;
/// Most nodes that are read, after aliases: a manifest of a thousand runs has about 20 000.
const MAX_NODES: usize = 1_000_000;

/// One node and the bytes it stands in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// What it is.
    pub value: Value,
    /// Its bytes in the source text.
    pub span: Range<usize>,
}

/// What a node is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// Text.
    Scalar(Scalar),
    /// A list.
    Sequence(Vec<Node>),
    /// Keys and values in written order; keys are scalars and differ from one another.
    Mapping(Vec<(Key, Node)>),
}

/// A key of a mapping.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Key {
    /// Its text.
    pub text: String,
    /// Its bytes in the source text.
    pub span: Range<usize>,
}

/// A scalar as it was typed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scalar {
    /// Source text of a plain scalar, content of a quoted or block one.
    pub text: String,
    /// How it was written.
    pub style: Written,
}

/// How a scalar was written, which tells `unset` (a word of ours) from `"unset"` and `!text unset` (the text).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Written {
    /// Without quotes.
    Plain,
    /// In quotes, or as a block.
    Quoted,
    /// With the tag `!text`: the text and nothing else.
    Text,
}

/// Reads one document.
///
/// # Errors
///
/// Every problem of syntax found until the parser had to give up, with its place.
pub fn parse(source: &Arc<Source>) -> Result<Node, Diagnostics> {
    let mut composer = Composer {
        diagnostics: Diagnostics::new(Arc::clone(source)),
        anchors: HashMap::new(),
        nodes: 0,
        text: &source.text,
    };
    let root = composer.document();
    match root {
        Some(root) if !composer.diagnostics.has_errors() => Ok(root),
        _ => Err(composer.diagnostics),
    }
}

/// Makes a source of file content: a leading byte order mark is dropped.
pub fn source(name: impl Into<String>, text: &str) -> Arc<Source> {
    Arc::new(Source { name: name.into(), text: text.strip_prefix('\u{feff}').unwrap_or(text).to_owned() })
}

struct Composer<'s> {
    diagnostics: Diagnostics,
    anchors: HashMap<usize, Node>,
    nodes: usize,
    text: &'s str,
}

type Parsed<'s> = Parser<'s, granit_parser::StrInput<'s>>;

impl<'s> Composer<'s> {
    fn document(&mut self) -> Option<Node> {
        let mut events = Parser::new_from_str(self.text);
        let mut root = None;
        while let Some((event, span)) = self.next(&mut events) {
            match event {
                Event::StreamStart | Event::DocumentStart(..) | Event::DocumentEnd => {}
                Event::StreamEnd => break,
                event if root.is_some() => {
                    let _ = event;
                    self.problem(Diagnostic::error(
                        "a second document in one file",
                        span,
                        "only the first would be read",
                    ));
                    return None;
                }
                event => root = Some(self.node(event, span, &mut events, 0)?),
            }
        }
        if root.is_none() && !self.diagnostics.has_errors() {
            self.problem(Diagnostic::error("the file is empty", 0..0, "expected a mapping of keys"));
        }
        root
    }

    /// Returns the next event that is not a comment; `None` at the end or after a syntax error, which is then noted.
    fn next(&mut self, events: &mut Parsed<'s>) -> Option<(Event<'s>, Range<usize>)> {
        loop {
            match events.next_event()? {
                Ok((Event::Comment(..), _)) => {}
                Ok((event, span)) => {
                    let range = span.byte_range().unwrap_or(0..0);
                    return Some((event, range));
                }
                Err(trouble) => {
                    self.syntax(&trouble);
                    return None;
                }
            }
        }
    }

    fn syntax(&mut self, trouble: &granit_parser::ScanError) {
        let offset = trouble.marker().byte_offset().unwrap_or(self.text.len()).min(self.text.len());
        let line = self.text[..offset].rfind('\n').map_or(0, |newline| newline + 1);
        // The scanner notices a tab in the indentation only at the word after it.
        let indent = self.text[line..].len() - self.text[line..].trim_start_matches([' ', '\t']).len();
        let offset = self.text[line..line + indent].find('\t').map_or(offset, |tab| line + tab);
        let character = self.text.get(offset..).and_then(|rest| rest.chars().next());
        let label = match character {
            Some('\t') => "a tab here; YAML indents by blanks".to_owned(),
            Some('\u{a0}') => "a no-break space here, which looks like a blank and is none".to_owned(),
            Some(other) if !other.is_ascii() => format!("`{}` (U+{:04X}) here", other.escape_debug(), other as u32),
            Some(_) => "here".to_owned(),
            None => "the text ends here".to_owned(),
        };
        let end = offset + character.map_or(0, char::len_utf8);
        self.problem(Diagnostic::error(format!("not YAML: {}", trouble.info()), offset..end, label));
    }

    fn problem(&mut self, problem: Diagnostic) {
        self.diagnostics.problems.push(problem);
    }

    fn node(&mut self, event: Event<'s>, span: Range<usize>, events: &mut Parsed<'s>, depth: usize) -> Option<Node> {
        self.nodes += 1;
        if depth > MAX_DEPTH || self.nodes > MAX_NODES {
            self.problem(Diagnostic::error(
                "too deeply nested or too large to be a spec",
                span,
                format!("more than {MAX_DEPTH} levels or {MAX_NODES} nodes"),
            ));
            return None;
        }
        let (node, anchor) = match event {
            Event::Scalar(text, style, anchor, tag) => (self.scalar(&text, style, tag.as_deref(), span)?, anchor),
            Event::SequenceStart(_, anchor, tag) => {
                self.no_tag(tag.as_deref(), &span)?;
                (self.sequence(span, events, depth)?, anchor)
            }
            Event::MappingStart(_, anchor, tag) => {
                self.no_tag(tag.as_deref(), &span)?;
                (self.mapping(span, events, depth)?, anchor)
            }
            Event::Alias(id) => (self.alias(id, span)?, 0),
            other => {
                self.problem(Diagnostic::error(format!("unexpected {other:?}"), span, "here"));
                return None;
            }
        };
        if anchor != 0 {
            self.anchors.insert(anchor, node.clone());
        }
        Some(node)
    }

    fn scalar(&mut self, text: &str, style: ScalarStyle, tag: Option<&Tag>, span: Range<usize>) -> Option<Node> {
        let written = match (tag, style) {
            (Some(tag), _) if tag.original() == "!text" => Written::Text,
            (Some(tag), _) => {
                self.unknown_tag(tag, &span);
                return None;
            }
            (None, ScalarStyle::Plain) => Written::Plain,
            (None, _) => Written::Quoted,
        };
        Some(Node { value: Value::Scalar(Scalar { text: text.to_owned(), style: written }), span })
    }

    fn no_tag(&mut self, tag: Option<&Tag>, span: &Range<usize>) -> Option<()> {
        if let Some(tag) = tag {
            self.unknown_tag(tag, span);
            return None;
        }
        Some(())
    }

    fn unknown_tag(&mut self, tag: &Tag, span: &Range<usize>) {
        self.problem(
            Diagnostic::error(format!("unknown tag `{}`", tag.original()), span.clone(), "tagged here")
                .help("the only tag is `!text`, before an environment value that is literally `unset` or `set`"),
        );
    }

    fn alias(&mut self, id: usize, span: Range<usize>) -> Option<Node> {
        let Some(target) = self.anchors.get(&id).cloned() else {
            self.problem(Diagnostic::error("an alias inside its own anchor", span, "here"));
            return None;
        };
        self.nodes += count(&target);
        if self.nodes > MAX_NODES {
            self.problem(Diagnostic::error("aliases multiply beyond measure", span, "here"));
            return None;
        }
        // The alias is where a reader looks, so problems with its content are shown there.
        Some(Node { span, ..target })
    }

    fn sequence(&mut self, span: Range<usize>, events: &mut Parsed<'s>, depth: usize) -> Option<Node> {
        let mut elements = Vec::new();
        loop {
            match self.next(events)? {
                (Event::SequenceEnd, end) => {
                    return Some(Node { value: Value::Sequence(elements), span: span.start..end.end.max(span.end) });
                }
                (event, span) => elements.push(self.node(event, span, events, depth + 1)?),
            }
        }
    }

    fn mapping(&mut self, span: Range<usize>, events: &mut Parsed<'s>, depth: usize) -> Option<Node> {
        let mut pairs: Vec<(Key, Node)> = Vec::new();
        // A hundred thousand keys must not take a quadratic time to compare.
        let mut seen: HashMap<String, Range<usize>> = HashMap::new();
        loop {
            let (event, key_span) = self.next(events)?;
            let key = match event {
                Event::MappingEnd => {
                    return Some(Node { value: Value::Mapping(pairs), span: span.start..key_span.end.max(span.end) });
                }
                Event::Scalar(text, ..) => Key { text: text.into_owned(), span: key_span },
                _ => {
                    self.problem(Diagnostic::error("a key that is not plain text", key_span, "expected a name here"));
                    return None;
                }
            };
            let (event, value_span) = self.next(events)?;
            let value = self.node(event, value_span, events, depth + 1)?;
            if key.text == "<<" {
                self.problem(
                    Diagnostic::error("merge key `<<` is not supported", key.span.clone(), "here")
                        .help("write the keys out: a spec shows what it asks for"),
                );
            }
            if let Some(first) = seen.get(&key.text) {
                let problem =
                    Diagnostic::error(format!("key `{}` stands twice", key.text), key.span.clone(), "again here")
                        .and(first.clone(), "first here")
                        .help("remove one of them: neither can be known to be the one that was meant");
                self.problem(problem);
            }
            seen.entry(key.text.clone()).or_insert_with(|| key.span.clone());
            pairs.push((key, value));
        }
    }
}

fn count(node: &Node) -> usize {
    match &node.value {
        Value::Scalar(_) => 1,
        Value::Sequence(elements) => 1 + elements.iter().map(count).sum::<usize>(),
        Value::Mapping(pairs) => 1 + pairs.iter().map(|(_, value)| count(value)).sum::<usize>(),
    }
}

/// Reads typed values out of nodes and collects every problem, so that one look at a file shows all of them.
#[derive(Debug)]
pub struct Reader {
    /// What was found so far.
    pub diagnostics: Diagnostics,
}

impl Reader {
    /// Makes a reader for `source`.
    pub fn new(source: &Arc<Source>) -> Self {
        Self { diagnostics: Diagnostics::new(Arc::clone(source)) }
    }

    /// Notes a problem.
    pub fn problem(&mut self, problem: Diagnostic) {
        self.diagnostics.problems.push(problem);
    }

    /// Opens a mapping of which only `known` keys are allowed; others are reported with the nearest known one.
    /// `noun` names the mapping in messages, as in "not a key of a claim".
    pub fn fields<'n>(&mut self, node: &'n Node, noun: &str, known: &[&str]) -> Option<Fields<'n>> {
        let pairs = self.mapping(node, noun)?;
        for (key, _) in pairs {
            if !known.contains(&key.text.as_str()) {
                let mut problem = Diagnostic::error(
                    format!("unknown key `{}`", key.text),
                    key.span.clone(),
                    format!("not a key of {noun}"),
                );
                problem.help = Some(match did_you_mean(&key.text, known.iter().copied()) {
                    Some(near) => format!("did you mean `{near}`?"),
                    None => format!("the keys are {}", listed(known)),
                });
                self.problem(problem);
            }
        }
        Some(Fields { pairs, span: node.span.clone(), noun: noun.to_owned() })
    }

    /// Returns the pairs of a mapping whose keys are free, or reports what stands there instead.
    pub fn mapping<'n>(&mut self, node: &'n Node, noun: &str) -> Option<&'n [(Key, Node)]> {
        if let Value::Mapping(pairs) = &node.value {
            return Some(pairs);
        }
        self.expected(node, &format!("{noun}: keys and values"));
        None
    }

    /// Returns the elements of a list, or reports.
    pub fn sequence<'n>(&mut self, node: &'n Node, wanted: &str) -> Option<&'n [Node]> {
        if let Value::Sequence(elements) = &node.value {
            return Some(elements);
        }
        self.expected(node, wanted);
        None
    }

    /// Returns the elements of a list, or the one node that is not a list.
    pub fn one_or_many<'n>(&mut self, node: &'n Node) -> Vec<&'n Node> {
        match &node.value {
            Value::Sequence(elements) => elements.iter().collect(),
            _ => vec![node],
        }
    }

    /// Returns the scalar of a node, or reports; an empty one (`key:`) is a problem too.
    pub fn scalar<'n>(&mut self, node: &'n Node, wanted: &str) -> Option<&'n Scalar> {
        match &node.value {
            Value::Scalar(scalar) if scalar.style == Written::Plain && is_null(&scalar.text) => {
                self.expected(node, wanted);
                None
            }
            Value::Scalar(scalar) => Some(scalar),
            _ => {
                self.expected(node, wanted);
                None
            }
        }
    }

    /// Returns the text of a scalar that is not empty, or reports.
    pub fn text(&mut self, node: &Node, wanted: &str) -> Option<String> {
        let scalar = self.scalar(node, wanted)?;
        if scalar.text.trim().is_empty() {
            self.expected(node, wanted);
            return None;
        }
        Some(scalar.text.clone())
    }

    /// Returns a whole number within `allowed`, or reports. Leading zeros, signs, underscores, hex and octal are refused:
    /// tools read them differently.
    pub fn whole(&mut self, node: &Node, allowed: std::ops::RangeInclusive<u64>) -> Option<u64> {
        let wanted = if *allowed.end() == u64::MAX {
            format!("a whole number, at least {}", allowed.start())
        } else {
            format!("a whole number from {} to {}", allowed.start(), allowed.end())
        };
        let scalar = self.scalar(node, &wanted)?;
        let digits = !scalar.text.is_empty() && scalar.text.bytes().all(|byte| byte.is_ascii_digit());
        let plain = digits && (scalar.text == "0" || !scalar.text.starts_with('0'));
        match scalar.text.parse::<u64>() {
            Ok(number) if plain && scalar.style == Written::Plain && allowed.contains(&number) => Some(number),
            _ => {
                self.expected(node, &wanted);
                None
            }
        }
    }

    /// Returns a finite decimal number within `allowed`, or reports.
    pub fn number(&mut self, node: &Node, allowed: std::ops::RangeInclusive<f64>) -> Option<f64> {
        let wanted = format!("a number from {} to {}", allowed.start(), allowed.end());
        let scalar = self.scalar(node, &wanted)?;
        match scalar.text.parse::<f64>() {
            Ok(number) if number.is_finite() && allowed.contains(&number) => Some(number),
            _ => {
                self.expected(node, &wanted);
                None
            }
        }
    }

    /// Returns a fraction written in percent (`2%` is 0.02), or reports; a number without the sign is ambiguous and refused.
    pub fn percent(&mut self, node: &Node, allowed: std::ops::RangeInclusive<f64>) -> Option<f64> {
        let wanted =
            format!("a percentage from {}% to {}%, such as `2%`", allowed.start() * 100.0, allowed.end() * 100.0);
        let scalar = self.scalar(node, &wanted)?;
        let fraction = scalar
            .text
            .strip_suffix('%')
            // Dividing by 100 would turn `0.7%` into 0.006999999999999999.
            .and_then(|number| format!("{}e-2", number.trim()).parse::<f64>().ok());
        match fraction {
            Some(fraction) if fraction.is_finite() && allowed.contains(&fraction) => Some(fraction),
            _ => {
                self.expected(node, &wanted);
                None
            }
        }
    }

    /// Returns a duration in seconds, written with units (`40m`, `1h30m`, `12m30s`, `90s`), or reports.
    pub fn duration_s(&mut self, node: &Node) -> Option<u64> {
        const WANTED: &str = "a duration with units, such as `90s`, `40m` or `1h30m`";
        let scalar = self.scalar(node, WANTED)?;
        let seconds = duration_s(&scalar.text);
        if seconds.is_none() {
            self.expected(node, WANTED);
        }
        seconds
    }

    /// Returns the index of the word among `words`, or reports with the nearest one.
    pub fn one_of(&mut self, node: &Node, noun: &str, words: &[&str]) -> Option<usize> {
        let text = self.text(node, &format!("{noun}: one of {}", listed(words)))?;
        let found = words.iter().position(|word| *word == text);
        if found.is_none() {
            let mut problem = Diagnostic::error(
                format!("`{text}` is not {noun}"),
                node.span.clone(),
                format!("expected {}", listed(words)),
            );
            problem.help = did_you_mean(&text, words.iter().copied()).map(|near| format!("did you mean `{near}`?"));
            self.problem(problem);
        }
        found
    }

    /// Reports that something else was expected at `node`, and states what was found.
    pub fn expected(&mut self, node: &Node, wanted: &str) {
        let found = match &node.value {
            Value::Scalar(scalar) if scalar.text.is_empty() || node.span.is_empty() => "nothing".to_owned(),
            Value::Scalar(scalar) => format!("`{}`", scalar.text.escape_debug()),
            Value::Sequence(elements) if elements.is_empty() => "an empty list".to_owned(),
            Value::Sequence(_) => "a list".to_owned(),
            Value::Mapping(_) => "a mapping".to_owned(),
        };
        self.problem(Diagnostic::error(
            format!("expected {wanted}, found {found}"),
            node.span.clone(),
            "here".to_owned(),
        ));
    }
}

/// The keys of one mapping.
#[derive(Debug)]
pub struct Fields<'n> {
    pairs: &'n [(Key, Node)],
    /// Bytes of the whole mapping.
    pub span: Range<usize>,
    noun: String,
}

impl<'n> Fields<'n> {
    /// Returns the node of a key, if it is there.
    pub fn get(&self, key: &str) -> Option<&'n Node> {
        self.pairs.iter().find(|(found, _)| found.text == key).map(|(_, node)| node)
    }

    /// Returns the place of a key, if it is there.
    pub fn key_span(&self, key: &str) -> Option<Range<usize>> {
        self.pairs.iter().find(|(found, _)| found.text == key).map(|(found, _)| found.span.clone())
    }

    /// Returns the node of a key, or reports that it is missing and what it is for.
    pub fn require(&self, reader: &mut Reader, key: &str, what_for: &str) -> Option<&'n Node> {
        let node = self.get(key);
        if node.is_none() {
            let start = self.pairs.first().map_or(self.span.clone(), |(first, _)| first.span.clone());
            reader.problem(
                Diagnostic::error(format!("key `{key}` is missing"), start, format!("in {}", self.noun))
                    .help(format!("add `{key}:` ({what_for})")),
            );
        }
        node
    }
}

fn is_null(text: &str) -> bool {
    matches!(text, "" | "~" | "null" | "Null" | "NULL")
}

fn listed(words: &[&str]) -> String {
    words.iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(", ")
}

/// Reads a duration such as `1h30m`; units in falling order, each at most once.
pub fn duration_s(text: &str) -> Option<u64> {
    let mut rest = text;
    let mut seconds: u64 = 0;
    let mut read_one = false;
    for (unit, factor) in [('h', 3600), ('m', 60), ('s', 1)] {
        let digits = rest.len() - rest.trim_start_matches(|character: char| character.is_ascii_digit()).len();
        if digits > 0 && rest[digits..].starts_with(unit) {
            seconds = seconds.checked_add(rest[..digits].parse::<u64>().ok()?.checked_mul(factor)?)?;
            rest = &rest[digits + 1..];
            read_one = true;
        }
    }
    (read_one && rest.is_empty()).then_some(seconds)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diagnostic::Style;

    fn tree(text: &str) -> Node {
        parse(&source("x.yaml", text)).expect("valid YAML")
    }

    fn refused(text: &str) -> String {
        parse(&source("x.yaml", text)).expect_err("refused").render(Style::Plain)
    }

    fn texts(node: &Node) -> Vec<String> {
        match &node.value {
            Value::Scalar(scalar) => vec![scalar.text.clone()],
            Value::Sequence(elements) => elements.iter().flat_map(texts).collect(),
            Value::Mapping(pairs) => pairs.iter().flat_map(|(_, value)| texts(value)).collect(),
        }
    }

    #[test]
    fn scalars_keep_their_source_text_in_scalar_and_list_places() {
        let typed = [
            "0.90",
            "12e4567",
            "off",
            "0123456",
            "61e9540",
            "1e5",
            "no",
            "0x1f",
            "12:30",
            "1_000",
            "18446744073709551616",
        ];
        for scalar in typed {
            let node = tree(&format!("one: {scalar}\nmany: [{scalar}, {scalar}]\nblock:\n  - {scalar}\n"));
            assert_eq!(texts(&node), vec![scalar; 4]);
            let Value::Mapping(pairs) = &node.value else { panic!("a mapping") };
            let mut reader = Reader::new(&source("x", ""));
            assert_eq!(reader.one_or_many(&pairs[0].1).len(), 1);
            assert_eq!(reader.one_or_many(&pairs[1].1).len(), 2);
        }
    }

    #[test]
    fn the_span_of_a_scalar_is_its_source() {
        let text = "é: 1\nmargin: '2%' # why\n";
        let node = tree(text);
        let Value::Mapping(pairs) = &node.value else { panic!("a mapping") };
        assert_eq!(&text[pairs[1].0.span.clone()], "margin");
        assert_eq!(&text[pairs[1].1.span.clone()], "'2%'");
    }

    #[test]
    fn unset_and_its_quoted_forms_differ() {
        let node = tree("a: [unset, \"unset\", !text unset]");
        let Value::Mapping(pairs) = &node.value else { panic!("a mapping") };
        let Value::Sequence(elements) = &pairs[0].1.value else { panic!("a list") };
        let styles: Vec<Written> = elements
            .iter()
            .map(|element| match &element.value {
                Value::Scalar(scalar) => scalar.style,
                _ => panic!("a scalar"),
            })
            .collect();
        assert_eq!(styles, [Written::Plain, Written::Quoted, Written::Text]);
    }

    #[test]
    fn duplicate_keys_are_refused_at_every_depth() {
        insta::assert_snapshot!(refused("env:\n  A: \"0\"\n  B: 1\n  A: \"1\"\n"), @r#"
        error: key `A` stands twice
         --> x.yaml:4:3
          |
        2 |   A: "0"
          |   - first here
        3 |   B: 1
        4 |   A: "1"
          |   ^ again here
          |
        help: remove one of them: neither can be known to be the one that was meant
        "#);
    }

    #[test]
    fn merge_keys_tags_second_documents_tabs_and_nothing_are_refused() {
        assert!(refused("a: &x {b: 1}\nc: {<<: *x}\n").contains("merge key `<<`"));
        assert!(refused("a: !foo b\n").contains("unknown tag `!foo`"));
        assert!(refused("a: 1\n---\nb: 2\n").contains("second document"));
        assert!(refused("a:\n\tb: 1\n").contains("x.yaml:2:1"));
        assert!(refused("").contains("the file is empty"));
        assert!(refused("# only a comment\n").contains("the file is empty"));
        assert!(refused("a: [1, 2\n").contains("not YAML"));
        assert!(refused("{a: {[1]: 2}}").contains("not plain text"));
    }

    #[test]
    fn a_bomb_of_aliases_is_refused() {
        let mut text = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n".to_owned();
        for level in 1..9 {
            let before = level - 1;
            let many = vec![format!("*a{before}"); 9].join(", ");
            text.push_str(&["a", &level.to_string(), ": &a", &level.to_string(), " [", &many, "]\n"].concat());
        }
        assert!(refused(&text).contains("beyond measure"));
        assert!(refused(&format!("{}{}", "[".repeat(200), "]".repeat(200))).contains("deeply nested"));
    }

    #[test]
    fn numbers_durations_and_percentages_are_exact() {
        let read = |text: &str| {
            let made = source("x", text);
            let node = parse(&made).expect("valid");
            let mut reader = Reader::new(&made);
            (reader.whole(&node, 1..=100), reader.percent(&node, 0.0..=1.0), reader.duration_s(&node))
        };
        assert_eq!(read("7").0, Some(7));
        for wrong in ["0", "101", "007", "+7", "1.5", "1_0", "0x1", "'7'", "18446744073709551616", "~", "[7]"] {
            assert_eq!(read(wrong).0, None, "{wrong}");
        }
        assert_eq!(read("2%").1, Some(0.02));
        assert_eq!(read("0.7%").1, Some(0.007));
        assert_eq!(read("2").1, None);
        assert_eq!(read("1h30m").2, Some(5400));
        assert_eq!(read("90s").2, Some(90));
        for wrong in ["90", "12:30", "30s1h", "h", "-1s", "1.5h", "99999999999999999999h"] {
            assert_eq!(read(wrong).2, None, "{wrong}");
        }
    }

    #[test]
    fn unknown_keys_are_named_with_the_nearest_known_one() {
        let made = source("x.yaml", "repeat: 5\nzzz: 1\n");
        let node = parse(&made).expect("valid");
        let mut reader = Reader::new(&made);
        let fields = reader.fields(&node, "a spec", &["repeats", "passes"]).expect("a mapping");
        assert!(fields.require(&mut reader, "repeats", "how many blocks").is_none());
        let told = reader.diagnostics.render(Style::Plain);
        assert!(told.contains("did you mean `repeats`?") && told.contains("the keys are `repeats`, `passes`"));
        assert!(told.contains("key `repeats` is missing"));
    }
}
