//! The page of a claim: what was claimed, the effect, and the runs of each block.

use serde::Serialize;

use crate::comparison::{BlockValue, Comparison};
use crate::report::{comparison as report, progress, sentence};

use super::experiments::{Pair, pair, rules_version};
use super::library::{Library, Study};
use super::place;
use super::templates::{TemplateError, Templates};
use super::text::relative;
use super::view::{self, Link, Note, Number};

#[derive(Serialize)]
struct View {
    name: String,
    experiment: Link,
    edition: String,
    title: String,
    states: String,
    sentence: String,
    verdict: String,
    decided_by: Vec<String>,
    number: Option<Number>,
    interval: String,
    told: Vec<Pair>,
    control: String,
    treatment: String,
    unit: String,
    blocks: Vec<Block>,
    reasons: Vec<Note>,
    banner: String,
    cite: String,
}

#[derive(Serialize)]
struct Block {
    anchor: String,
    name: String,
    control: String,
    treatment: String,
    ratio: String,
    control_runs: Vec<Link>,
    treatment_runs: Vec<Link>,
}

/// Prints the page of a claim.
///
/// # Errors
///
/// A template that asks for what is not there.
pub(super) fn page(
    library: &Library,
    study: &Study,
    name: &str,
    templates: &Templates,
) -> Result<String, TemplateError> {
    templates.print("claim.html", &view(library, study, name))
}

fn view(library: &Library, study: &Study, name: &str) -> View {
    let from = &place::claim(&study.name, &study.edition, name);
    let experiment = place::experiment(&study.name, &study.edition);
    let (claim, found) = (&study.question.claims[name], &study.findings.claims[name]);
    let condition = study.condition_of(claim);
    let effect = condition.and_then(|condition| condition.effect.as_ref());
    let at = sentence::at_level(study.question.axis, &claim.at.0);
    let verb = condition
        .map_or("cannot be compared with".to_owned(), |condition| sentence::claim_verb(claim, found, condition));
    let compared = condition.filter(|found| found.means.is_some()).and_then(|found| study.compared(&found.condition));
    let blocks =
        compared.iter().flat_map(Comparison::values).map(|value| block(study, from, value, effect.is_some())).collect();
    let margin = study.question.margin.map_or_else(
        || "1 %, or the noise floor if that is larger".to_owned(),
        |margin| format!("{} %", sentence::plain(margin * 100.0)),
    );
    let mut told = vec![
        pair("metric", claim.metric.name()),
        pair("treatment", claim.treatment.clone()),
        pair("control", study.question.control.clone()),
        pair("at", at.clone()),
        pair("expected", claim.expect.name().replace('_', " ")),
    ];
    told.extend(claim.by.map(|by| pair("by at least", format!("{} %", sentence::plain(by * 100.0)))));
    told.push(pair("margin", margin));
    if let Some(effect) = effect {
        told.push(pair("effect", sentence::change(effect)));
        told.push(pair("95 % interval", sentence::interval(effect)));
        told.extend(effect.p.map(|p| pair("p", report::p_text(p))));
        told.extend(effect.p_holm.map(|p| pair("p, adjusted for the planned levels", report::p_text(p))));
        told.push(pair("paired blocks", effect.blocks.to_string()));
        if let Some((low, high)) = effect.skewed {
            told.push(pair("interval by the log ratio", format!("[{}, {}] %", report::bare(low), report::bare(high))));
        }
    }
    if let Some(condition) = condition {
        let floor = condition.floor.map_or_else(
            || "not measured".to_owned(),
            |floor| format!("{} %", sentence::plain(floor.exp_m1() * 100.0)),
        );
        told.push(pair("noise floor", floor));
        told.push(pair("verdict of the condition", sentence::spelled(condition)));
    }
    told.push(pair("rules", format!("version {}", rules_version())));
    let pinned = if study.current { String::new() } else { format!("@{}", study.edition) };
    View {
        name: name.to_owned(),
        experiment: Link { text: study.name.clone(), href: relative(from, &experiment) },
        edition: study.edition.clone(),
        title: study.title().to_owned(),
        states: report::claim_text(claim, found),
        sentence: format!("At {at}, {} {verb} {}.", claim.treatment, study.question.control),
        verdict: found.verdict.name().to_owned(),
        decided_by: found.reasons.clone(),
        number: condition.map(|condition| {
            view::number(condition, from, &place::condition(&study.name, &study.edition, &condition.condition))
        }),
        interval: effect.map_or(String::new(), sentence::interval),
        told,
        control: study.question.control.clone(),
        treatment: claim.treatment.clone(),
        unit: claim.metric.unit().symbol().to_owned(),
        blocks,
        reasons: condition.map_or_else(Vec::new, |condition| {
            let reasons = condition.reasons.iter();
            reasons.map(|reason| view::note(reason, 0, from, report::in_blocks(&reason.blocks))).collect()
        }),
        banner: banner(library, study),
        cite: format!("{{{{ claim(\"{}{pinned}/{name}\") }}}}", study.name),
    }
}

fn banner(library: &Library, study: &Study) -> String {
    if study.current || !library.specs.iter().any(|planned| planned.name == study.name) {
        return String::new();
    }
    "the spec has another design by now: this claim is of an earlier edition".to_owned()
}

fn block(study: &Study, from: &str, value: &BlockValue, has_ratio: bool) -> Block {
    let name = value.block.map_or_else(|| "?".to_owned(), |block| block.to_string());
    let runs = |wanted_control: bool| -> Vec<Link> {
        let records = value.runs.iter().filter_map(|id| study.record(*id));
        records
            .filter(|record| (record.arm == study.question.control) == wanted_control)
            .map(|record| Link {
                text: record.id.short(8),
                href: relative(from, &place::run(&study.name, &study.edition, &record.session, &study.trial(record))),
            })
            .collect()
    };
    Block {
        anchor: format!("block-{name}"),
        name,
        control: progress::significant(value.control),
        treatment: progress::significant(value.treatment),
        ratio: if has_ratio { format!("{} %", report::bare(value.treatment / value.control)) } else { String::new() },
        control_runs: runs(true),
        treatment_runs: runs(false),
    }
}
