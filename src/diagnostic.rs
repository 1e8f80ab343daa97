//! A diagnostic: what is wrong in text that a person wrote, with its place and its remedy.
//!
//! Invariant: each problem has a file, a line and a column; nothing here prints.

use std::ops::Range;
use std::sync::Arc;

use annotate_snippets::{AnnotationKind, Group, Level, Renderer, Snippet};

/// One text that a person wrote, and the name to show for it.
#[derive(Debug, PartialEq, Eq)]
pub struct Source {
    /// Path as given on the command line.
    pub name: String,
    /// Whole text, without a byte order mark.
    pub text: String,
}

/// Whether a problem stops the work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Severity {
    /// The text cannot be used.
    Error,
    /// The text can be used, and probably does not mean what it says.
    Warning,
}

/// One problem, with the bytes it is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Diagnostic {
    /// Whether it stops the work.
    pub severity: Severity,
    /// What is wrong: a lower-case fragment that states the value found.
    pub title: String,
    /// Byte range in the source text, and what to write below it.
    pub primary: (Range<usize>, String),
    /// Other places that belong to it.
    pub context: Vec<(Range<usize>, String)>,
    /// What to do about it.
    pub help: Option<String>,
}

impl Diagnostic {
    /// Makes an error at `span`; `label` stands below the marked text.
    pub fn error(title: impl Into<String>, span: Range<usize>, label: impl Into<String>) -> Self {
        Self {
            severity: Severity::Error,
            title: title.into(),
            primary: (span, label.into()),
            context: Vec::new(),
            help: None,
        }
    }

    /// Makes a warning at `span`.
    pub fn warning(title: impl Into<String>, span: Range<usize>, label: impl Into<String>) -> Self {
        Self { severity: Severity::Warning, ..Self::error(title, span, label) }
    }

    /// Adds another place.
    #[must_use]
    pub fn and(mut self, span: Range<usize>, label: impl Into<String>) -> Self {
        self.context.push((span, label.into()));
        self
    }

    /// Says what to do.
    #[must_use]
    pub fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }
}

/// The problems of one source, in the order they were found.
#[derive(Debug, Clone)]
pub struct Diagnostics {
    /// The text that they are about.
    pub source: Arc<Source>,
    /// Each problem; empty when nothing is wrong.
    pub problems: Vec<Diagnostic>,
}

impl Diagnostics {
    /// Makes an empty list for `source`.
    pub fn new(source: Arc<Source>) -> Self {
        Self { source, problems: Vec::new() }
    }

    /// Returns whether any of them stops the work.
    pub fn has_errors(&self) -> bool {
        self.problems.iter().any(|problem| problem.severity == Severity::Error)
    }

    /// Returns the 1-based line and column (in characters) of a byte offset.
    pub fn line_column(&self, offset: usize) -> (usize, usize) {
        let before = &self.source.text[..floor_boundary(&self.source.text, offset)];
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().unwrap_or("").chars().count() + 1;
        (line, column)
    }

    /// Renders all of them as text, one after the other, with the source lines and a caret.
    pub fn render(&self, style: Style) -> String {
        let renderer = match style {
            Style::Plain => Renderer::plain(),
            Style::Coloured => Renderer::styled(),
        };
        let rendered: Vec<String> =
            self.problems.iter().map(|problem| renderer.render(&self.report(problem))).collect();
        rendered.join("\n\n")
    }

    fn report<'a>(&'a self, problem: &'a Diagnostic) -> Vec<Group<'a>> {
        let text = &self.source.text;
        let mut snippet = Snippet::source(text.as_str()).path(self.source.name.as_str()).annotation(
            AnnotationKind::Primary.span(visible(text, &problem.primary.0)).label(problem.primary.1.as_str()),
        );
        for (span, label) in &problem.context {
            snippet = snippet.annotation(AnnotationKind::Context.span(visible(text, span)).label(label.as_str()));
        }
        let level = match problem.severity {
            Severity::Error => Level::ERROR,
            Severity::Warning => Level::WARNING,
        };
        let mut groups = vec![level.primary_title(problem.title.as_str()).element(snippet)];
        if let Some(help) = &problem.help {
            groups.push(Group::with_title(Level::HELP.secondary_title(help.as_str())));
        }
        groups
    }
}

/// Whether rendered text may carry terminal colours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    /// Text only, for pipes and files.
    Plain,
    /// With escape sequences, for a terminal.
    Coloured,
}

/// Clips a span to the text, to character boundaries, and to its first line, so that a caret always has something to stand under.
fn visible(text: &str, span: &Range<usize>) -> Range<usize> {
    let start = floor_boundary(text, span.start);
    let first_line = text[start..].find('\n').map_or(text.len(), |length| start + length);
    let end = floor_boundary(text, span.end.max(start)).min(first_line.max(start));
    start..end
}

fn floor_boundary(text: &str, offset: usize) -> usize {
    let mut offset = offset.min(text.len());
    while !text.is_char_boundary(offset) {
        offset -= 1;
    }
    offset
}

/// Returns text from elsewhere as one harmless line: control characters, which could move a terminal's cursor or colour it, are
/// written as escapes.
pub fn printable(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for character in text.trim().chars() {
        if character.is_control() || matches!(character, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}') {
            line.extend(character.escape_default());
        } else {
            line.push(character);
        }
    }
    line
}

/// Returns lines from elsewhere with nothing in them that could steer a terminal.
pub fn printable_lines(text: &str) -> String {
    let steers = |character: char| {
        (character.is_control() && character != '\n')
            || matches!(character, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    text.replace(steers, "\u{fffd}")
}

/// Returns the candidate that a person most likely meant by `found`, if one is close.
pub fn did_you_mean<'a>(found: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // 0.8 accepts one or two slips in words of our lengths, and nothing between unrelated keys. In words of three or four letters
    // one slip weighs more than that.
    let close = |candidate: &&str| {
        let (found, candidate) = (found.to_lowercase(), candidate.to_lowercase());
        let similarity = strsim::jaro_winkler(&found, &candidate);
        let one_slip = found.chars().count() >= 3 && strsim::damerau_levenshtein(&found, &candidate) <= 1;
        if one_slip { similarity.max(0.8) } else { similarity }
    };
    candidates
        .into_iter()
        .map(|candidate| (close(&candidate), candidate))
        .filter(|(similarity, _)| *similarity >= 0.8)
        .max_by(|one, other| one.0.total_cmp(&other.0))
        .map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_is_shown_under_its_line() {
        let source = Arc::new(Source { name: "x.yaml".into(), text: "title: é\nrepeat: 5\n".into() });
        let mut list = Diagnostics::new(source);
        assert_eq!(list.render(Style::Plain), "");
        list.problems.push(
            Diagnostic::error("unknown key `repeat`", 10..16, "not a key of a spec").help("did you mean `repeats`?"),
        );
        assert_eq!(list.line_column(10), (2, 1));
        assert!(list.has_errors());
        insta::assert_snapshot!(list.render(Style::Plain), @r"
        error: unknown key `repeat`
         --> x.yaml:2:1
          |
        2 | repeat: 5
          | ^^^^^^ not a key of a spec
          |
        help: did you mean `repeats`?
        ");
    }

    #[test]
    fn a_place_beyond_the_text_does_not_panic() {
        let mut list = Diagnostics::new(Arc::new(Source { name: "x".into(), text: "é".into() }));
        list.problems.push(Diagnostic::error("cut off", 1..99, "here"));
        assert!(list.render(Style::Plain).contains("cut off"));
        assert_eq!(list.line_column(99), (1, 2));
    }

    #[test]
    fn text_from_elsewhere_cannot_steer_a_terminal() {
        assert_eq!(printable(""), "");
        assert_eq!(printable(" a\u{1b}[31mb\nc\u{202e}d é "), "a\\u{1b}[31mb\\nc\\u{202e}d é");
    }

    #[test]
    fn suggestions_are_close_or_absent() {
        assert_eq!(did_you_mean("repeat", ["repeats", "passes"]), Some("repeats"));
        assert_eq!(did_you_mean("SGLANG_OEA_KO", ["SGLANG_OEA_K0"]), Some("SGLANG_OEA_K0"));
        assert_eq!(did_you_mean("zzz", ["repeats", "passes"]), None);
        assert_eq!(did_you_mean("oae", ["aa", "oea"]), Some("oea"));
        assert_eq!(did_you_mean("", []), None);
    }
}
