//! What templates receive: formatted strings and addresses, never a number to compute with.
//!
//! Invariant: a view of a refused condition holds no number; every number has what stands behind it and where it leads.

use serde::Serialize;

use crate::comparison::Reason;
use crate::finding::{ClaimFinding, ConditionFinding, Outcome};
use crate::metric::{Better, Metric};
use crate::question::{Axis, Claim};
use crate::report::comparison::{Notes, families, in_blocks, p_text, refusal_title, refusing, severity, word};
use crate::report::{progress, sentence};
use crate::rules;

use super::library::Study;
use super::place;
use super::text::relative;

/// A word or number that leads somewhere.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Link {
    /// What is written.
    pub text: String,
    /// Relative address.
    pub href: String,
}

/// A number in a sentence.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Number {
    /// The number with its unit, or the word that stands in its place.
    pub text: String,
    /// Unit, interval, n and verdict, for hover and focus.
    pub told: String,
    /// Relative address of its claim or condition.
    pub href: String,
    /// Verdict, as a class of the style.
    pub kind: String,
}

/// One line of a verdict table.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Row {
    /// Where the condition is linked to.
    pub anchor: String,
    /// The level.
    pub level: String,
    /// Means of both arms, or `-`.
    pub control: String,
    /// The treatment's.
    pub treatment: String,
    /// The change, with what stands behind it; nothing where there is none.
    pub ratio: Option<Number>,
    /// Its interval.
    pub interval: String,
    /// Its p.
    pub p: String,
    /// Paired blocks.
    pub n: String,
    /// The verdict as a word.
    pub verdict: String,
    /// The same as a class.
    pub kind: String,
    /// Numbers of the notes below.
    pub notes: Vec<usize>,
    /// Claims about it.
    pub claims: Vec<Link>,
}

/// One note below a table, or one reason of a refusal.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Note {
    /// Number of the note; 0 where there is none.
    pub number: usize,
    /// A fact's key or a rule's id.
    pub name: String,
    /// Address of the rule in the glossary; empty for a fact that has no place there.
    pub href: String,
    /// How severe.
    pub severity: String,
    /// Where it was seen.
    pub place: String,
    /// What was found.
    pub message: String,
    /// What to do.
    pub help: String,
}

/// One metric and treatment over all levels.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Family {
    /// The metric.
    pub metric: String,
    /// Its place in the glossary.
    pub metric_href: String,
    /// Unit and direction.
    pub unit: String,
    /// The arm that is compared.
    pub treatment: String,
    /// The arm that it is compared with.
    pub control: String,
    /// What the levels are of.
    pub axis: String,
    /// Its conditions.
    pub rows: Vec<Row>,
    /// What stands below them.
    pub notes: Vec<Note>,
    /// Why there is no number at all; empty where there is one.
    pub refusal: String,
    /// Charts as SVG, safe to print.
    pub charts: Vec<String>,
    /// How many columns the table has.
    pub has_numbers: bool,
}

/// A claim in a list.
#[derive(Debug, Clone, Serialize)]
pub(super) struct ClaimLine {
    /// Its name.
    pub name: String,
    /// Its page.
    pub href: String,
    /// The verdict.
    pub verdict: String,
    /// What it states.
    pub states: String,
    /// The effect at its condition.
    pub number: Option<Number>,
    /// The same in words, or the word that stands in its place.
    pub interval: String,
}

/// Returns the name of the axis as the head of a column.
pub(super) fn axis(axis: Axis) -> &'static str {
    match axis {
        Axis::Concurrency => "users",
        Axis::RequestRate => "req/s",
        Axis::InputTokens => "prompt tokens",
    }
}

/// Returns unit and direction of a metric.
pub(super) fn unit(metric: Metric) -> String {
    let better = match metric.better() {
        Better::Higher => ", higher is better",
        Better::Lower => ", lower is better",
        Better::Neither => "",
    };
    format!("{}{better}", metric.unit().symbol())
}

/// Returns a condition's number, or the word that stands in its place, as seen from the page `from`; it leads to `to`.
pub(super) fn number(found: &ConditionFinding, from: &str, to: &str) -> Number {
    let verdict = sentence::spelled(found);
    let place = format!("{} of {} at {}", found.condition.metric, found.condition.treatment, found.condition.level);
    let (text, told) = match &found.effect {
        Some(effect) => (sentence::change(effect), format!("{place}: {}", sentence::behind_effect(effect, verdict))),
        None if found.outcome == Outcome::Foreign => {
            (verdict.to_owned(), format!("{place}: measured elsewhere, so there is no ratio and no verdict"))
        }
        None => (verdict.to_owned(), format!("{place}: {verdict}, so there is no number; {}", why(&found.reasons))),
    };
    Number { text, told, href: relative(from, to), kind: class(verdict) }
}

/// Returns a word as a class of the style.
pub(super) fn class(word: &str) -> String {
    word.replace(' ', "-")
}

/// Returns the names of what refuses.
pub(super) fn why(reasons: &[Reason]) -> String {
    use crate::validity::Severity;
    let names: Vec<&str> = reasons
        .iter()
        .filter(|reason| reason.severity <= Severity::Void && reason.name != "S01")
        .map(|reason| reason.name.as_str())
        .collect();
    if names.is_empty() { "no reason is known".to_owned() } else { format!("because of {}", names.join(", ")) }
}

/// Returns the tables of a study, as seen from the page `from`; only one metric's where one is asked for.
pub(super) fn tables(study: &Study, from: &str, metric: Option<Metric>) -> Vec<Family> {
    families(&study.findings.conditions)
        .into_iter()
        .filter(|conditions| {
            conditions.first().is_some_and(|first| metric.is_none_or(|metric| first.condition.metric == metric))
        })
        .map(|conditions| family(study, from, conditions))
        .collect()
}

fn family(study: &Study, from: &str, conditions: &[ConditionFinding]) -> Family {
    let first = &conditions[0].condition;
    let has_numbers = conditions.iter().any(|found| found.effect.is_some() || found.outcome == Outcome::Foreign);
    let mut notes = Notes::default();
    let rows = conditions.iter().map(|found| row(study, from, found, &mut notes)).collect();
    let notes = if has_numbers {
        let numbered = notes.reasons.iter().enumerate();
        numbered.map(|(at, reason)| note(reason, at + 1, from, in_blocks(&reason.blocks))).collect()
    } else {
        let told = refusing(conditions).into_iter();
        told.map(|(reason, place)| note(reason, 0, from, format!(" at {place}{}", in_blocks(&reason.blocks)))).collect()
    };
    Family {
        metric: first.metric.name(),
        metric_href: relative(from, &format!("{}#{}", place::GLOSSARY, first.metric.name())),
        unit: unit(first.metric),
        treatment: first.treatment.clone(),
        control: study.question.control.clone(),
        axis: axis(study.question.axis).to_owned(),
        rows,
        notes,
        refusal: if has_numbers { String::new() } else { refusal_title(&study.question, conditions) },
        charts: Vec::new(),
        has_numbers,
    }
}

/// Returns a reason as a note.
pub(super) fn note(reason: &Reason, number: usize, from: &str, place: String) -> Note {
    let anchor = if rules::says(&reason.name).is_some() {
        Some(reason.name.clone())
    } else {
        crate::fact::table::row_of(&reason.name).map(|row| row.id.to_owned())
    };
    Note {
        number,
        name: reason.name.clone(),
        href: anchor.map_or(String::new(), |anchor| relative(from, &format!("{}#{anchor}", place::GLOSSARY))),
        severity: severity(reason.severity).to_owned(),
        place,
        message: reason.message.clone(),
        help: reason.help.clone(),
    }
}

fn row(study: &Study, from: &str, found: &ConditionFinding, notes: &mut Notes) -> Row {
    let condition = &found.condition;
    let claims: Vec<(&String, &Claim)> = study
        .question
        .claims
        .iter()
        .filter(|(_, claim)| study.condition_of(claim).is_some_and(|about| about.condition == *condition))
        .collect();
    let to = claims.first().map_or_else(
        || place::condition(&study.name, &study.edition, condition),
        |(name, _)| place::claim(&study.name, &study.edition, name),
    );
    let cell = |text: Option<String>| text.unwrap_or_default();
    let verdict = word(found);
    Row {
        anchor: place::anchor(condition),
        level: condition.level.to_string(),
        control: found.means.map_or("-".to_owned(), |(control, _)| progress::significant(control)),
        treatment: found.means.map_or("-".to_owned(), |(_, treatment)| progress::significant(treatment)),
        ratio: found.effect.is_some().then(|| number(found, from, &to)),
        interval: cell(found.effect.as_ref().map(sentence::interval)),
        p: cell(found.effect.as_ref().and_then(|effect| effect.p_holm).map(p_text)),
        n: cell(found.effect.as_ref().map(|effect| effect.blocks.to_string())),
        verdict: verdict.to_owned(),
        kind: class(sentence::spelled(found)),
        notes: if found.effect.is_some() || found.outcome != Outcome::Refused {
            notes.numbers(&found.reasons)
        } else {
            Vec::new()
        },
        claims: claims
            .into_iter()
            .map(|(name, _)| Link {
                text: name.clone(),
                href: relative(from, &place::claim(&study.name, &study.edition, name)),
            })
            .collect(),
    }
}

/// Returns the claims of a study in written order, as seen from the page `from`.
pub(super) fn claims(study: &Study, from: &str) -> Vec<ClaimLine> {
    study.findings.claims.iter().filter_map(|(name, found)| claim_line(study, from, name, found)).collect()
}

fn claim_line(study: &Study, from: &str, name: &str, found: &ClaimFinding) -> Option<ClaimLine> {
    let claim = study.question.claims.get(name)?;
    let to = place::claim(&study.name, &study.edition, name);
    let condition = study.condition_of(claim);
    Some(ClaimLine {
        name: name.to_owned(),
        href: relative(from, &to),
        verdict: found.verdict.name().to_owned(),
        states: crate::report::comparison::claim_text(claim, found),
        number: condition.map(|condition| number(condition, from, &to)),
        interval: condition.and_then(|found| found.effect.as_ref()).map_or(String::new(), sentence::interval),
    })
}
