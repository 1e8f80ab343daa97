//! What `labbook compare` shows: the table of a comparison, or why there is none.
//!
//! Invariant: a condition that was refused or is void shows no number of its own; nothing that came out of a file reaches a
//! terminal as anything but text; no line is longer than 80 columns, unless a single word is.

use std::io::{self, Write};

use crate::comparison::Reason;
use crate::fact::{FactValue, Fingerprint};
use crate::finding::{ClaimFinding, ConditionFinding, Effect, Findings, HeadlineFinding, Outcome, Verdict};
use crate::metric::{Better, Metric};
use crate::question::{Claim, Expect, Over, Question};
use crate::rules;
use crate::validity::Severity;

use super::progress::significant;

/// Columns of a terminal that everybody has.
const WIDTH: usize = 80;

/// Writes the findings as plain text.
///
/// # Errors
///
/// What the writer reports.
pub fn write(out: &mut dyn Write, question: &Question, findings: &Findings) -> io::Result<()> {
    out.write_all(render(question, findings).as_bytes())
}

/// Returns the findings as plain text, each line harmless to a terminal.
pub fn render(question: &Question, findings: &Findings) -> String {
    let mut page = Page::default();
    header(&mut page, question, findings);
    for conditions in families(&findings.conditions) {
        page.line("");
        family(&mut page, question, conditions);
    }
    if findings.conditions.is_empty() {
        page.wrapped("nothing to compare: neither a claim nor a headline names a metric", "  ");
    }
    claims(&mut page, question, findings);
    footer(&mut page, question, findings);
    page.text
}

/// Text under construction.
#[derive(Default)]
struct Page {
    text: String,
}

impl Page {
    fn line(&mut self, line: &str) {
        self.text.push_str(harmless(line).trim_end());
        self.text.push('\n');
    }

    /// Adds a paragraph; lines after the first start with `indent`.
    fn wrapped(&mut self, paragraph: &str, indent: &str) {
        let paragraph = harmless(paragraph);
        let words = paragraph.trim_start_matches(' ');
        let mut line = paragraph[..paragraph.len() - words.len()].to_owned();
        let mut first_word = true;
        for word in words.split(' ') {
            if !first_word && line.chars().count() + 1 + word.chars().count() > WIDTH {
                self.line(&line);
                indent.clone_into(&mut line);
                first_word = true;
            }
            if !first_word {
                line.push(' ');
            }
            line.push_str(word);
            first_word = false;
        }
        self.line(&line);
    }
}

/// Returns text without anything that a terminal would obey: control characters, and marks that turn or hide text.
pub fn harmless(text: &str) -> String {
    let dangerous = |character: char| {
        character.is_control()
            || matches!(character, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}')
    };
    let mut safe = String::with_capacity(text.len());
    for character in text.chars() {
        if dangerous(character) {
            safe.extend(character.escape_unicode());
        } else {
            safe.push(character);
        }
    }
    safe
}

/// The facts that a reader asks for first, by the word that stands for them.
pub(crate) const HEADER: [(&str, &[&str]); 7] = [
    ("model", &["model.path", "model.quantization"]),
    ("gpu", &["gpu.count", "gpu.0.name"]),
    ("driver", &["gpu.driver"]),
    ("host", &["host.id", "host.kernel"]),
    ("client", &["client.name", "client.version"]),
    ("data", &["client.args.dataset-name", "workload.input_tokens", "workload.output_tokens"]),
    ("source", &["source.commit", "source.dirty"]),
];

fn header(page: &mut Page, question: &Question, findings: &Findings) {
    let edition = findings.edition.as_deref().map_or(String::new(), |edition| format!("   edition {edition}"));
    page.line(&format!("{}{edition}   rules {}   {}", findings.experiment, rules::VERSION, findings.outcome.name()));
    let shared = shared(&findings.conditions);
    for (name, keys) in HEADER {
        if let Some(value) = joined(&shared, keys) {
            page.wrapped(&format!("{name}: {value}"), "  ");
        }
    }
    let arms = question.arms.iter().map(|(arm, asked)| {
        let values: Vec<String> = asked.iter().map(ToString::to_string).collect();
        format!("{arm} = {}", values.join(", "))
    });
    let factor: Vec<&str> = question.factor.iter().map(crate::fact::FactKey::as_str).collect();
    page.wrapped(&format!("varies: {}: {}", factor.join(" + "), arms.collect::<Vec<_>>().join(" | ")), "  ");
    differences(page, &findings.conditions);
}

/// Facts on which all conditions agree.
pub(crate) fn shared(conditions: &[ConditionFinding]) -> Fingerprint {
    let mut known = conditions.iter().map(|found| &found.context.shared).filter(|shared| !shared.is_empty());
    let Some(mut shared) = known.next().cloned() else { return Fingerprint::default() };
    known.for_each(|other| shared.keep_equal(other));
    shared
}

pub(crate) fn joined(shared: &Fingerprint, keys: &[&str]) -> Option<String> {
    let shown = |value: &FactValue| value.to_string();
    let values: Vec<String> = keys.iter().filter_map(|key| shared.get(key).map(shown)).collect();
    let between = if keys[0] == "gpu.count" { " × " } else { ", " };
    (!values.is_empty()).then(|| values.join(between))
}

/// What else differs, and what nobody looked at.
fn differences(page: &mut Page, conditions: &[ConditionFinding]) {
    let mut consequences: Vec<&str> = Vec::new();
    let mut unobserved: Vec<&str> = Vec::new();
    let mut between: Vec<&str> = Vec::new();
    for found in conditions {
        between.extend(found.context.between_blocks.iter().map(String::as_str));
        consequences.extend(found.context.consequences.iter().map(|difference| difference.key.as_str()));
        unobserved.extend(found.context.unobserved.iter().map(String::as_str));
    }
    for keys in [&mut consequences, &mut unobserved, &mut between] {
        keys.sort_unstable();
        keys.dedup();
    }
    let confounded = conditions.iter().any(|found| found.outcome == Outcome::Refused);
    if !consequences.is_empty() {
        page.wrapped(&format!("follows from it: {}", consequences.join(", ")), "  ");
    }
    if !confounded && !conditions.is_empty() && conditions.iter().all(|found| found.outcome != Outcome::Foreign) {
        page.line("other observed differences: none");
    }
    if !between.is_empty() {
        page.wrapped(&format!("the same in both arms, another from block to block: {}", between.join(", ")), "  ");
    }
    if !unobserved.is_empty() {
        page.wrapped(&format!("not observed in either arm: {}", unobserved.join(", ")), "  ");
    }
}

/// Splits conditions into runs of one metric and treatment.
pub(crate) fn families(conditions: &[ConditionFinding]) -> Vec<&[ConditionFinding]> {
    conditions
        .chunk_by(|one, two| {
            one.condition.metric == two.condition.metric && one.condition.treatment == two.condition.treatment
        })
        .collect()
}

fn family(page: &mut Page, question: &Question, conditions: &[ConditionFinding]) {
    let Some(first) = conditions.first() else { return };
    let condition = &first.condition;
    let better = match condition.metric.better() {
        Better::Higher => ", higher is better",
        Better::Lower => ", lower is better",
        Better::Neither => "",
    };
    let unit = condition.metric.unit().symbol();
    page.wrapped(
        &format!("{} ({unit}{better}): {} against {}", condition.metric, condition.treatment, question.control),
        "  ",
    );
    let mut notes = Notes::default();
    if conditions.iter().any(|found| found.effect.is_some() || found.outcome == Outcome::Foreign) {
        table(page, question, conditions, &mut notes);
    } else {
        refusal(page, question, conditions);
        return;
    }
    notes.write(page);
}

fn table(page: &mut Page, question: &Question, conditions: &[ConditionFinding], notes: &mut Notes) {
    let treatment = conditions.first().map_or("", |found| found.condition.treatment.as_str());
    let verdictless =
        conditions.iter().all(|found| found.effect.as_ref().is_none_or(|effect| effect.interval.is_none()));
    let interval = if verdictless { "" } else { "[95 % interval]" };
    let axis = match question.axis.name() {
        "concurrency" => "users",
        "request_rate" => "rate",
        _ => "tokens",
    };
    let row = |cells: [&str; 8]| {
        let [level, control, treatment, effect, interval, p, blocks, verdict] = cells;
        format!("{level:>7} │ {control:>7} │ {treatment:>7} {effect:>8} {interval:>16} {p:>5} {blocks:>2} {verdict}")
    };
    let foreign = conditions.iter().all(|found| found.effect.is_none());
    let [ratio, p, n] = if foreign { [""; 3] } else { ["ratio", "p", "n"] };
    page.line(&row([axis, &cut(&question.control, 7), &cut(treatment, 7), ratio, interval, p, n, "verdict"]));
    for found in conditions {
        let level = found.condition.level.to_string();
        let verdict = format!("{}{}", word(found), notes.marks(&found.reasons));
        let Some((effect, means)) = found.effect.as_ref().zip(found.means) else {
            let [control, treatment] = match found.means {
                Some(means) => [significant(means.0), significant(means.1)],
                None => ["-".to_owned(), "-".to_owned()],
            };
            page.line(&row([&level, &control, &treatment, "", "", "", "", &verdict]));
            continue;
        };
        page.line(&row([
            &level,
            &significant(means.0),
            &significant(means.1),
            &change(effect.ratio),
            &effect.interval.map_or(String::new(), |(low, high)| format!("[{}, {}]", bare(low), bare(high))),
            &effect.p_holm.map_or(String::new(), p_text),
            &effect.blocks.to_string(),
            &verdict,
        ]));
    }
}

/// What is written for a condition: `~` where nothing can be told, so that the eye does not stop there.
pub(crate) fn word(found: &ConditionFinding) -> &'static str {
    match (found.outcome, found.verdict) {
        (Outcome::Refused | Outcome::Void | Outcome::Foreign, _) => found.outcome.name(),
        (_, Verdict::Inconclusive) => "~",
        // The interval stands; what was refused is the right to claim something.
        (_, Verdict::Refused) => "no claim",
        (_, verdict) => verdict.name(),
    }
}

fn cut(text: &str, most: usize) -> String {
    let text = harmless(text);
    if text.chars().count() <= most { text } else { text.chars().take(most - 1).chain(['…']).collect() }
}

pub(crate) fn change(ratio: f64) -> String {
    format!("{} %", bare(ratio))
}

/// A ratio as a signed change in percent.
pub(crate) fn bare(ratio: f64) -> String {
    let percent = (ratio - 1.0) * 100.0;
    // Not "-0.00".
    let percent = if percent.abs() < 0.005 { 0.0 } else { percent };
    if percent.abs() < 100.0 { format!("{percent:+.2}") } else { format!("{percent:+.1}") }
}

pub(crate) fn p_text(p: f64) -> String {
    if p < 0.001 { "<.001".to_owned() } else { format!("{p:.3}") }
}

/// Footnotes: one a name, at its first place.
#[derive(Default)]
pub(crate) struct Notes {
    /// The reason of each number, from 1.
    pub(crate) reasons: Vec<Reason>,
}

impl Notes {
    /// Returns the numbers of reasons as they stand behind a verdict: ` (1,3)`.
    fn marks(&mut self, reasons: &[Reason]) -> String {
        let numbers: Vec<String> = self.numbers(reasons).iter().map(usize::to_string).collect();
        if numbers.is_empty() { String::new() } else { format!(" ({})", numbers.join(",")) }
    }

    /// Returns the numbers of reasons, rising.
    pub(crate) fn numbers(&mut self, reasons: &[Reason]) -> Vec<usize> {
        let mut numbers = Vec::new();
        for reason in reasons.iter().filter(|reason| reason.name != "S01") {
            let same = |known: &Reason| known.name == reason.name && known.severity == reason.severity;
            let at = self.reasons.iter().position(same).unwrap_or_else(|| {
                self.reasons.push(reason.clone());
                self.reasons.len() - 1
            });
            numbers.push(at + 1);
        }
        numbers.sort_unstable();
        numbers.dedup();
        numbers
    }

    fn write(&self, page: &mut Page) {
        for (at, reason) in self.reasons.iter().enumerate() {
            let severity = severity(reason.severity);
            let text =
                format!("({}) {}, {severity}{}: {}", at + 1, reason.name, in_blocks(&reason.blocks), reason.message);
            page.wrapped(&text, "    ");
            if !reason.help.is_empty() {
                page.wrapped(&format!("    help: {}", reason.help), "      ");
            }
        }
    }
}

pub(crate) fn severity(severity: Severity) -> &'static str {
    match severity {
        Severity::Block => "refuses",
        Severity::Claim => "no claim",
        Severity::Void => "void",
        Severity::Warn => "warning",
        Severity::Note => "note",
    }
}

pub(crate) fn in_blocks(blocks: &[u32]) -> String {
    let numbers: Vec<String> = blocks.iter().map(u32::to_string).collect();
    match numbers.as_slice() {
        [] => String::new(),
        [one] => format!(", block {one}"),
        several => format!(", blocks {}", several.join(" ")),
    }
}

/// All levels refused or void: each reason once, with the levels and blocks it was seen in, and no number.
fn refusal(page: &mut Page, question: &Question, conditions: &[ConditionFinding]) {
    page.wrapped(&refusal_title(question, conditions), "  ");
    for (reason, place) in refusing(conditions) {
        page.wrapped(&format!("  {}  (at {place}{})", reason.name, in_blocks(&reason.blocks)), "    ");
        page.wrapped(&format!("    {}", reason.message), "    ");
        if !reason.help.is_empty() {
            page.wrapped(&format!("    help: {}", reason.help), "      ");
        }
    }
}

/// Returns why no level of a family has a number, in one sentence.
pub(crate) fn refusal_title(question: &Question, conditions: &[ConditionFinding]) -> String {
    let factor: Vec<&str> = question.factor.iter().map(crate::fact::FactKey::as_str).collect();
    let treatment = conditions.first().map_or("", |found| found.condition.treatment.as_str());
    let undeclared = conditions.iter().any(|found| found.has("S01"));
    let void = conditions.iter().all(|found| found.outcome == Outcome::Void);
    let (control, factor) = (&question.control, factor.join("` and `"));
    match (void, undeclared) {
        (true, _) => format!("void: no complete block of valid runs of `{control}` and `{treatment}` is left"),
        (_, true) => format!("refused: `{control}` and `{treatment}` differ in more than `{factor}`"),
        _ => format!("refused: `{control}` and `{treatment}` cannot be compared"),
    }
}

/// Returns each reason that refuses, once, with the levels it was seen at.
pub(crate) fn refusing(conditions: &[ConditionFinding]) -> Vec<(&Reason, String)> {
    let mut shown: Vec<(&Reason, Vec<String>)> = Vec::new();
    for found in conditions {
        let own = found.reasons.iter().filter(|reason| reason.severity <= Severity::Void && reason.name != "S01");
        for reason in own {
            let level = found.condition.level.to_string();
            match shown.iter_mut().find(|(known, _)| known.name == reason.name) {
                Some((_, levels)) => levels.push(level),
                None => shown.push((reason, vec![level])),
            }
        }
    }
    // Facts first: they say what differs; the rules beside them say why that matters.
    shown.sort_by_key(|(reason, _)| (rules::says(&reason.name).is_some(), reason.severity, reason.name.clone()));
    let place = |levels: Vec<String>| {
        if levels.len() == conditions.len() { "every level".to_owned() } else { levels.join(" ") }
    };
    shown.into_iter().map(|(reason, levels)| (reason, place(levels))).collect()
}

fn claims(page: &mut Page, question: &Question, findings: &Findings) {
    if let Some(headline) = &findings.headline {
        page.line("");
        page.wrapped(&headline_text(question, headline), "  ");
    }
    if findings.claims.is_empty() {
        return;
    }
    page.line("");
    page.line("claims");
    let width = findings.claims.keys().map(|name| name.chars().count()).max().unwrap_or(0).min(24);
    for (name, found) in &findings.claims {
        let Some(claim) = question.claims.get(name) else { continue };
        page.wrapped(&format!("  {name:<width$}  {:<12}  {}", found.verdict.name(), claim_text(claim, found)), "    ");
    }
}

pub(crate) fn claim_text(claim: &Claim, found: &ClaimFinding) -> String {
    let by = claim.by.map_or(String::new(), |by| format!(" by {} %", by * 100.0));
    let told: Vec<&str> = found.reasons.iter().map(String::as_str).filter(|name| *name != "S01").collect();
    let reasons = if told.is_empty() { String::new() } else { format!("; {}", told.join(", ")) };
    let less = if found.within_margin && claim.expect != Expect::Unchanged { ", by less than the margin" } else { "" };
    format!(
        "{} of {} at {}: {}{by}{less}{reasons}",
        claim.metric,
        claim.treatment,
        claim.at,
        claim.expect.name().replace('_', " ")
    )
}

pub(crate) fn headline_text(question: &Question, headline: &HeadlineFinding) -> String {
    let over = match &headline.over {
        Over::All => format!("geometric mean over {} levels", question.levels.len()),
        Over::At(level) => format!("at {level}"),
    };
    let number = headline.effect.as_ref().map_or(String::new(), |effect| format!(" {}", effect_text(effect)));
    let reasons =
        if headline.reasons.is_empty() { String::new() } else { format!(" ({})", headline.reasons.join(", ")) };
    format!(
        "headline, {over}, {} of {}:{number} {}{reasons}",
        headline.metric,
        headline.treatment,
        headline.verdict.name()
    )
}

fn effect_text(effect: &Effect) -> String {
    let interval = effect.interval.map_or(String::new(), |(low, high)| format!(" [{}, {}]", bare(low), bare(high)));
    let p = effect.p.map_or(String::new(), |p| format!(", p {}", p_text(p)));
    format!("{}{interval}{p}, n {},", change(effect.ratio), effect.blocks)
}

fn footer(page: &mut Page, question: &Question, findings: &Findings) {
    page.line("");
    page.wrapped(&summary(question, findings), "  ");
    if findings.conditions.iter().all(|found| found.effect.is_none()) {
        return;
    }
    let floors: std::collections::BTreeSet<String> = findings
        .conditions
        .iter()
        .filter_map(|found| {
            Some(format!(
                "{} {:.2} % at {}",
                found.condition.metric,
                found.floor?.exp_m1() * 100.0,
                found.condition.level
            ))
        })
        .collect();
    if findings.conditions.iter().any(|found| found.verdict == Verdict::Inconclusive) {
        page.wrapped("~ nothing can be told: neither a difference, nor that there is none", "  ");
    }
    if findings.outcome != Outcome::Foreign {
        let floor = if floors.is_empty() {
            "noise floor: not measured; an arm that asks for the control's values would give it".to_owned()
        } else {
            format!("noise floor (the control against itself): {}", floors.into_iter().collect::<Vec<_>>().join(", "))
        };
        page.wrapped(&floor, "  ");
        page.wrapped(
            "the means are for context: read the ratio, which is paired by block. p is adjusted for the planned levels (Holm), the \
             interval is not, and a verdict follows p; the headline is one number and needs no adjustment",
            "  ",
        );
    }
}

/// One sentence that can be quoted.
pub(crate) fn summary(question: &Question, findings: &Findings) -> String {
    let control = &question.control;
    let spoken = findings
        .headline
        .as_ref()
        .filter(|headline| !matches!(headline.verdict, Verdict::Refused | Verdict::Exploratory | Verdict::None));
    if let Some(headline) = spoken
        && let Some(effect) = &headline.effect
        && let Some((low, high)) = effect.interval
    {
        let place = match &headline.over {
            Over::All => "over all levels".to_owned(),
            Over::At(level) => format!("at {level}"),
        };
        return format!(
            "{} had {:.4} × [{low:.4}, {high:.4}] the {} of {control} {place}: {} paired blocks, {} launches",
            headline.treatment,
            effect.ratio,
            quantity(headline.metric),
            effect.blocks,
            2 * effect.blocks
        );
    }
    match findings.outcome {
        Outcome::Refused => {
            "no number is shown for what was refused: a comparison against a wrong baseline is none".to_owned()
        }
        Outcome::Void => "no number is shown: the runs are kept, and none of them counts".to_owned(),
        Outcome::Foreign => {
            "foreign: these numbers were measured elsewhere; they carry no ratio and no verdict, and are nobody's baseline"
                .to_owned()
        }
        Outcome::Exploratory => "exploratory: too few blocks to conclude anything".to_owned(),
        Outcome::Comparable if findings.headline.is_none() => {
            "each level stands for itself; no headline was declared".to_owned()
        }
        Outcome::Comparable => "each level stands for itself; the headline is not to be quoted".to_owned(),
    }
}

fn quantity(metric: Metric) -> String {
    metric.name().replace('_', " ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::comparison::fixture::{question, records};
    use crate::question::Asked;
    use crate::record::{Record, Tier, Written};

    fn shown(question: &Question, records: &[Record]) -> String {
        let text = render(question, &Findings::of(question, records));
        assert!(text.lines().all(|line| line.chars().count() <= WIDTH), "{text}");
        text
    }

    #[test]
    fn supported() {
        insta::assert_snapshot!(shown(&question(), &records()));
    }

    #[test]
    fn refuted_and_inconclusive() {
        let mut question = question();
        question.claims.get_mut("faster-at-16").expect("a claim").expect = Expect::Lower;
        question.claims.get_mut("same-at-4").expect("a claim").expect = Expect::Higher;
        insta::assert_snapshot!(shown(&question, &records()));
    }

    #[test]
    fn refused() {
        let mut records = records();
        for run in records.iter_mut().filter(|run| run.arm == "on") {
            run.facts.text("source.commit", "63251b2e691cbd308ac837bbb9433697a0bfa4dc");
            run.facts.remove("gpu.driver");
        }
        let text = shown(&question(), &records);
        assert!(!text.contains('%'), "a refused comparison has no percentage: {text}");
        insta::assert_snapshot!(text);
    }

    #[test]
    fn void_foreign_and_exploratory() {
        let mut void = records();
        void.iter_mut().filter(|run| run.arm == "on").for_each(|run| run.written = Written::Nothing);
        let mut foreign = records();
        for run in &mut foreign {
            run.tier = Tier::Foreign;
        }
        let few = Question { repeats: 2, ..question() };
        let two: Vec<Record> = records().into_iter().filter(|run| run.block <= Some(2)).collect();
        let pages = [shown(&question(), &void), shown(&question(), &foreign), shown(&few, &two)];
        insta::assert_snapshot!(pages.join("\n================\n\n"));
    }

    #[test]
    fn nothing_from_a_file_commands_the_terminal() {
        let mut question = question();
        question.arms.insert("on".into(), vec![Asked::Text("4\u{1b}[2J\u{202e}".into())]);
        let mut records = records();
        records[1].facts.text("source.commit", "\u{1b}]0;owned\u{7}\r\nno reason at all");
        let text = shown(&question, &records);
        assert!(text.contains("\\u{1b}") && text.chars().all(|character| character == '\n' || !character.is_control()));
        assert!(!text.contains('\u{202e}'));
        assert_eq!(harmless(""), "");
    }
}
