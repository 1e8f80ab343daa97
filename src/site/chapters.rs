//! The generated chapters: the dashboard, a chapter for each experiment and claim, the glossary.
//!
//! Invariant: a chapter is a function of the library; nothing of it is written into the lab's `book/src`.

use serde::Serialize;

use crate::fact::table::{FACTS, Policy, Required};
use crate::finding::{ClaimVerdict, Outcome};
use crate::metric::Metric;
use crate::report::{comparison as report, sentence};
use crate::rules;

use super::claims;
use super::experiments;
use super::library::{Library, Study};
use super::place;
use super::templates::{TemplateError, Templates};
use super::text::relative;
use super::view::{self, ClaimLine, Link};

/// One generated chapter.
#[derive(Debug)]
pub(super) struct Chapter {
    /// Its name in the table of contents: a name that may stand in a file name, so that nothing in it can be interpreted.
    pub name: String,
    /// Its page, ending in `.html`.
    pub page: String,
    /// Its text: one HTML block.
    pub text: String,
    /// Chapters below it.
    pub below: Vec<Chapter>,
}

/// Returns all generated chapters in the order of the table of contents.
///
/// # Errors
///
/// A template that asks for what is not there.
pub(super) fn all(library: &Library, templates: &Templates) -> Result<Vec<Chapter>, TemplateError> {
    let mut chapters = vec![Chapter {
        name: "Dashboard".to_owned(),
        page: place::DASHBOARD.to_owned(),
        text: templates.print("dashboard.html", &dashboard(library))?,
        below: Vec::new(),
    }];
    for study in &library.studies {
        let mut below = Vec::new();
        for name in study.question.claims.keys() {
            below.push(Chapter {
                name: name.clone(),
                page: place::claim(&study.name, &study.edition, name),
                text: claims::page(library, study, name, templates)?,
                below: Vec::new(),
            });
        }
        let name = if study.current { study.name.clone() } else { format!("{}@{}", study.name, study.edition) };
        let page = place::experiment(&study.name, &study.edition);
        chapters.push(Chapter { name, page, text: experiments::page(library, study, templates)?, below });
    }
    for planned in library.unmeasured() {
        chapters.push(Chapter {
            name: planned.name.clone(),
            page: place::planned(&planned.name),
            text: experiments::planned(planned, templates)?,
            below: Vec::new(),
        });
    }
    chapters.push(Chapter {
        name: "Glossary".to_owned(),
        page: place::GLOSSARY.to_owned(),
        text: templates.print("glossary.html", &glossary())?,
        below: Vec::new(),
    });
    Ok(chapters)
}

/// Returns the first page of a lab without a book of its own.
///
/// # Errors
///
/// A template that asks for what is not there.
pub(super) fn front(templates: &Templates) -> Result<Chapter, TemplateError> {
    #[derive(Serialize)]
    struct View {
        dashboard: String,
        glossary: String,
    }
    let view = View { dashboard: place::DASHBOARD.to_owned(), glossary: place::GLOSSARY.to_owned() };
    let text = templates.print("front.html", &view)?;
    Ok(Chapter { name: "Front page".to_owned(), page: "front.html".to_owned(), text, below: Vec::new() })
}

#[derive(Serialize)]
struct Dashboard {
    counts: Vec<Count>,
    groups: Vec<Group>,
    experiments: Vec<Card>,
    planned: Vec<Link>,
    empty: bool,
}

#[derive(Serialize)]
struct Count {
    verdict: String,
    number: String,
}

#[derive(Serialize)]
struct Group {
    verdict: String,
    means: String,
    claims: Vec<Finding>,
}

#[derive(Serialize)]
struct Finding {
    experiment: Link,
    line: ClaimLine,
    n: String,
}

#[derive(Serialize)]
struct Card {
    link: Link,
    title: String,
    outcome: String,
    headline: String,
    kind: String,
}

const STATES: [(ClaimVerdict, &str); 5] = [
    (ClaimVerdict::Supported, "shown by the runs, by what was registered before them"),
    (ClaimVerdict::Refuted, "the runs show the opposite"),
    (ClaimVerdict::Inconclusive, "the runs show neither; more blocks may"),
    (ClaimVerdict::Exploratory, "too few blocks to conclude anything"),
    (ClaimVerdict::Refused, "there is no right to a verdict; each says why"),
];

fn dashboard(library: &Library) -> Dashboard {
    let from = place::DASHBOARD;
    let mut groups = Vec::new();
    for (verdict, means) in STATES {
        let mut found = Vec::new();
        for study in library.studies.iter().filter(|study| study.current) {
            let link = Link {
                text: study.name.clone(),
                href: relative(from, &place::experiment(&study.name, &study.edition)),
            };
            for line in view::claims(study, from).into_iter().filter(|line| line.verdict == verdict.name()) {
                let condition = study.question.claims.get(&line.name).and_then(|claim| study.condition_of(claim));
                let n = condition.and_then(|found| found.effect.as_ref());
                found.push(Finding {
                    experiment: link.clone(),
                    n: n.map_or(String::new(), |effect| format!("n {}", effect.blocks)),
                    line,
                });
            }
        }
        groups.push(Group { verdict: verdict.name().to_owned(), means: means.to_owned(), claims: found });
    }
    let counts = groups
        .iter()
        .map(|group| Count { verdict: group.verdict.clone(), number: group.claims.len().to_string() })
        .collect();
    groups.retain(|group| !group.claims.is_empty());
    Dashboard {
        counts,
        groups,
        experiments: library.studies.iter().map(|study| card(study, from)).collect(),
        planned: library
            .unmeasured()
            .map(|planned| Link { text: planned.name.clone(), href: relative(from, &place::planned(&planned.name)) })
            .collect(),
        empty: library.studies.is_empty(),
    }
}

fn card(study: &Study, from: &str) -> Card {
    let name = if study.current { study.name.clone() } else { format!("{}@{}", study.name, study.edition) };
    let headline = study.findings.headline.as_ref().map_or_else(
        || report::summary(&study.question, &study.findings),
        |headline| report::headline_text(&study.question, headline),
    );
    Card {
        link: Link { text: name, href: relative(from, &place::experiment(&study.name, &study.edition)) },
        title: study.title().to_owned(),
        outcome: study.findings.outcome.name().to_owned(),
        kind: kind(study.findings.outcome).to_owned(),
        headline,
    }
}

/// Returns the class of the style for an outcome.
pub(super) fn kind(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Comparable => "comparable",
        other => other.name(),
    }
}

#[derive(Serialize)]
struct Glossary {
    verdicts: Vec<Term>,
    metrics: Vec<Term>,
    rules: Vec<Term>,
    facts: Vec<Term>,
    version: String,
}

#[derive(Serialize)]
struct Term {
    anchor: String,
    name: String,
    beside: String,
    text: String,
    more: String,
}

fn glossary() -> Glossary {
    let metrics = Metric::all().into_iter().map(|metric| Term {
        anchor: metric.name(),
        name: metric.name(),
        beside: view::unit(metric),
        text: metric.definition(),
        more: String::new(),
    });
    let mut seen: Vec<&str> = Vec::new();
    let rules = rules::RULES.iter().map(|rule| {
        // Some ids have two rows; the first is what is linked to.
        let anchor = if seen.contains(&rule.id) { String::new() } else { rule.id.to_owned() };
        seen.push(rule.id);
        Term {
            anchor,
            name: rule.id.to_owned(),
            beside: report::severity(rule.severity).to_owned(),
            text: rule.says.to_owned(),
            more: format!("threshold: {}", rule.threshold),
        }
    });
    let mut seen: Vec<&str> = Vec::new();
    let facts = FACTS.iter().map(|row| {
        let anchor = if seen.contains(&row.id) { String::new() } else { row.id.to_owned() };
        seen.push(row.id);
        let required = match row.required {
            Required::Never => "",
            Required::Always => ", required",
            Required::WithGpu => ", required with a GPU",
            Required::EngineTells => ", required where the engine tells it",
        };
        Term {
            anchor,
            name: row.keys.join(", "),
            beside: format!("{}{required}", policy(row.policy)),
            text: format!("{}. {}", row.what, row.why),
            more: format!("observed by {}", row.observe),
        }
    });
    let verdicts = STATES.map(|(verdict, means)| Term {
        anchor: verdict.name().to_owned(),
        name: verdict.name().to_owned(),
        beside: "claim".to_owned(),
        text: means.to_owned(),
        more: String::new(),
    });
    Glossary {
        verdicts: verdicts.into_iter().collect(),
        metrics: metrics.collect(),
        rules: rules.collect(),
        facts: facts.collect(),
        version: rules::VERSION.to_string(),
    }
}

fn policy(policy: Policy) -> String {
    match policy {
        Policy::Equal => "must agree".to_owned(),
        Policy::Near(tolerance) => format!("must agree within {} %", sentence::plain(tolerance * 100.0)),
        Policy::Recorded => "recorded".to_owned(),
        Policy::Must(value) => format!("must be {value}"),
    }
}
