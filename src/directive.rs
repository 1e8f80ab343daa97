//! Directives: the places of a chapter where the record speaks, `{{ claim("quickstart/faster-at-16") }}` and its like.
//!
//! Invariant: what stands in code (a block, a span, raw `<pre>`) or in an HTML comment is text, and so is every `{{ … }}` that does not
//! call one of our names: chat templates, Jinja, Helm and `{{#include}}` pass untouched. A call of one of our names is either
//! understood wholly or an error with its place; nothing is guessed. Nothing here knows whether what is named exists.

mod reading;

use std::ops::Range;
use std::sync::Arc;

use pulldown_cmark::{CodeBlockKind, Event, Options, Parser, Tag};

use crate::diagnostic::{Diagnostic, Diagnostics, Source};
use crate::metric::Metric;
use crate::question::Level;

/// One directive of a chapter and where it stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Directive {
    /// Bytes of the source, from `{{` to `}}`.
    pub span: Range<usize>,
    /// 1-based line of its first byte.
    pub line: usize,
    /// 1-based column of its first byte, in characters.
    pub column: usize,
    /// What it asks for.
    pub call: Call,
}

/// What a directive asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Call {
    /// One measured value: of a run, or the mean of an arm.
    Value(Value),
    /// `claim("experiment/claim")`: the whole sentence of a claim with its effect and verdict.
    Claim(ClaimTarget),
    /// The ratio of two arms with its interval.
    Effect(Effect),
    /// The verb that the verdict allows.
    Verdict(Verdict),
    /// `table("experiment", metric="…")`: each condition, its means, effect and verdict.
    Table {
        /// Whose conditions.
        experiment: ExperimentTarget,
        /// Only this metric; all that claims and headline name where absent.
        metric: Option<Metric>,
    },
    /// `chart("experiment", "throughput")`.
    Chart {
        /// Whose conditions.
        experiment: ExperimentTarget,
        /// What is drawn.
        kind: ChartKind,
        /// This metric; that of the headline or of the first claim where absent.
        metric: Option<Metric>,
    },
    /// `provenance("experiment")` or `provenance(run="1a2b3c4d")`: which facts agree and which differ.
    Provenance(Provenance),
    /// `reference("experiment", "name")`: a number that the spec states with its reason.
    Reference {
        /// Whose reference.
        experiment: ExperimentTarget,
        /// Its key in the spec.
        name: String,
    },
    /// `quote("352.79 tok/s", "where it stands", "2026-02-11")`: a number that nobody measured here.
    Quote {
        /// The number and its unit, as they stand there.
        value: String,
        /// Where it stands.
        source: String,
        /// When it was read there or published.
        date: jiff::civil::Date,
    },
}

/// An experiment, and the edition if another than that of the spec is meant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExperimentTarget {
    /// Its name.
    pub experiment: String,
    /// First digits of the edition, at least four; `None` is the edition of the spec as it stands.
    pub edition: Option<String>,
}

/// A claim of an experiment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimTarget {
    /// The experiment.
    pub of: ExperimentTarget,
    /// Its key in the spec.
    pub claim: String,
}

/// Which value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// `value(run="1a2b3c4d", metric="output_throughput")`: of one run.
    Run {
        /// First digits of the run's id, at least four.
        prefix: String,
        /// Which metric of it.
        metric: Metric,
    },
    /// `value("experiment/claim", arm="grouped")`: the mean of an arm where a claim looks.
    Claim {
        /// The claim, which fixes metric and level.
        target: ClaimTarget,
        /// The arm.
        arm: String,
    },
    /// `value("experiment", metric="…", arm="…", at=16)`: the mean of an arm at a level.
    Condition {
        /// The experiment.
        experiment: ExperimentTarget,
        /// The metric.
        metric: Metric,
        /// The arm.
        arm: String,
        /// The level, as the spec writes it.
        at: Level,
    },
}

/// Which effect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// `effect("experiment/claim")`.
    Claim(ClaimTarget),
    /// `effect("experiment")`: of the headline.
    Headline(ExperimentTarget),
    /// `effect("experiment", metric="…", treatment="…", at=16)`.
    Condition {
        /// The experiment.
        experiment: ExperimentTarget,
        /// The metric.
        metric: Metric,
        /// The arm that is compared with the control.
        treatment: String,
        /// The level, as the spec writes it.
        at: Level,
    },
}

/// Which verdict.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// `verdict("experiment/claim")`.
    Claim(ClaimTarget),
    /// `verdict("experiment")`: of the headline.
    Headline(ExperimentTarget),
}

/// Whose provenance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Provenance {
    /// Of all arms of an experiment.
    Experiment(ExperimentTarget),
    /// Of one run, by the first digits of its id, at least four.
    Run(String),
}

/// What a chart shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChartKind {
    /// Each arm's rate against the load.
    Throughput,
    /// The change at each level with its interval.
    Effect,
}

impl ChartKind {
    /// Every kind and its name.
    pub const NAMES: [(&'static str, Self); 2] = [("throughput", Self::Throughput), ("effect", Self::Effect)];

    /// Returns the name in chapters.
    pub fn name(self) -> &'static str {
        Self::NAMES.iter().find(|(_, kind)| *kind == self).map_or("", |(name, _)| *name)
    }
}

/// Finds the directives of a chapter, in written order.
///
/// # Errors
///
/// Every call of one of our names that cannot be understood, and every call that is nearly one, with its place.
pub fn find(source: &Arc<Source>) -> Result<Vec<Directive>, Diagnostics> {
    let text = source.text.as_str();
    let mut diagnostics = Diagnostics::new(Arc::clone(source));
    let mut directives = Vec::new();
    if !text.contains("{{") {
        return Ok(directives);
    }
    let literal = literal_ranges(text);
    let mut from = 0;
    while let Some(found) = text[from..].find("{{") {
        let start = from + found;
        if let Some(range) = literal.iter().find(|range| range.contains(&start)) {
            from = range.end.max(start + 2);
            continue;
        }
        match reading::call(text, start) {
            reading::Found::Text => from = start + 2,
            reading::Found::Call(call, end) => {
                let (line, column) = diagnostics.line_column(start);
                directives.push(Directive { span: start..end, line, column, call });
                from = end;
            }
            reading::Found::Wrong(problems, end) => {
                diagnostics.problems.extend(problems);
                from = end;
            }
        }
    }
    if diagnostics.has_errors() { Err(diagnostics) } else { Ok(directives) }
}

/// Returns the bytes that a reader sees as they are typed, or does not see: code and comments, in order. The options are mdBook's.
fn literal_ranges(text: &str) -> Vec<Range<usize>> {
    let options = Options::ENABLE_TABLES
        | Options::ENABLE_FOOTNOTES
        | Options::ENABLE_STRIKETHROUGH
        | Options::ENABLE_TASKLISTS
        | Options::ENABLE_HEADING_ATTRIBUTES
        | Options::ENABLE_SMART_PUNCTUATION
        | Options::ENABLE_DEFINITION_LIST
        | Options::ENABLE_GFM;
    let mut ranges = Vec::new();
    for (event, range) in Parser::new_ext(text, options).into_offset_iter() {
        match event {
            Event::Start(Tag::CodeBlock(CodeBlockKind::Fenced(_) | CodeBlockKind::Indented)) | Event::Code(_) => {
                ranges.push(range);
            }
            Event::Start(Tag::HtmlBlock) if is_raw(&text[range.clone()]) => ranges.push(range),
            Event::Start(Tag::HtmlBlock) => comments(text, range, &mut ranges),
            Event::InlineHtml(html) if html.starts_with("<!--") => ranges.push(range),
            _ => {}
        }
    }
    ranges.sort_by_key(|range| range.start);
    ranges
}

/// Returns whether an HTML block is one whose content is never Markdown.
fn is_raw(html: &str) -> bool {
    let html = html.trim_start().to_ascii_lowercase();
    ["<pre", "<script", "<style", "<textarea"].iter().any(|tag| html.starts_with(tag))
}

/// Adds the comments that start in `block`. One may end behind it: for Markdown a blank line ends most HTML blocks, for a browser
/// only `-->` ends a comment.
fn comments(text: &str, block: Range<usize>, ranges: &mut Vec<Range<usize>>) {
    let mut from = block.start;
    while let Some(found) = text[from..block.end].find("<!--") {
        let start = from + found;
        let end = text[start..].find("-->").map_or(text.len(), |length| start + length + "-->".len());
        ranges.push(start..end);
        if end >= block.end {
            return;
        }
        from = end;
    }
}

/// An error about a directive; all of them stop the build.
fn wrong(title: impl Into<String>, span: Range<usize>, expected: impl Into<String>) -> Diagnostic {
    Diagnostic::error(title, span, expected)
}

#[cfg(test)]
mod tests;
