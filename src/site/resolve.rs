//! What a directive says: each call is looked up in the library and printed, or told to be wrong with its place.
//!
//! Invariant: a sentence is never printed from what is not there; a refused condition prints as refused, never as a number.

use std::fmt::Write as _;
use std::ops::Range;
use std::sync::Arc;

use serde::Serialize;

use crate::comparison::{Comparison, Condition};
use crate::diagnostic::{Diagnostic, Diagnostics, Source, did_you_mean};
use crate::directive::{Call, ChartKind, ClaimTarget, Directive, Effect, ExperimentTarget, Provenance, Value, Verdict};
use crate::finding::{ConditionFinding, HeadlineFinding, Outcome as Found};
use crate::metric::Metric;
use crate::question::{Level, Over};
use crate::record::{Outcome, Record, Tier};
use crate::report::sentence as words;
use crate::stats;
use crate::{rules, validity};

use super::experiments;
use super::library::{Library, Study};
use super::place;
use super::templates::{TemplateError, Templates};
use super::text::{inside_markdown, relative};
use super::view::{self, Number};

/// A sentence of a chapter that rests on the record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sentence {
    /// File, line and column of its directive.
    pub place: String,
    /// The line, as it was written.
    pub text: String,
    /// The experiment that it speaks of; `None` for a run, which is named by its id.
    pub experiment: Option<String>,
    /// The claim of it, where one is named.
    pub claim: Option<String>,
    /// Beginning of a run's id.
    pub run: Option<String>,
}

/// Returns what a directive cites and the line that it stands in; `None` for one that cites nothing.
pub(super) fn sentence(source: &Source, directive: &Directive) -> Option<Sentence> {
    let of = |target: &ClaimTarget| (Some(target.of.experiment.clone()), Some(target.claim.clone()), None);
    let whole = |target: &ExperimentTarget| (Some(target.experiment.clone()), None, None);
    let (experiment, claim, run) = match &directive.call {
        Call::Quote { .. } => return None,
        Call::Value(Value::Run { prefix, .. }) | Call::Provenance(Provenance::Run(prefix)) => {
            (None, None, Some(prefix.clone()))
        }
        Call::Claim(target)
        | Call::Value(Value::Claim { target, .. })
        | Call::Effect(Effect::Claim(target))
        | Call::Verdict(Verdict::Claim(target)) => of(target),
        Call::Value(Value::Condition { experiment, .. })
        | Call::Effect(Effect::Headline(experiment) | Effect::Condition { experiment, .. })
        | Call::Verdict(Verdict::Headline(experiment))
        | Call::Table { experiment, .. }
        | Call::Chart { experiment, .. }
        | Call::Provenance(Provenance::Experiment(experiment))
        | Call::Reference { experiment, .. } => whole(experiment),
    };
    let line = source.text.lines().nth(directive.line - 1).unwrap_or("");
    Some(Sentence {
        place: format!("{}:{}:{}", source.name, directive.line, directive.column),
        text: line.trim().to_owned(),
        experiment,
        claim,
        run,
    })
}

/// Resolves the directives of one chapter.
pub(super) struct Resolver<'a> {
    pub(super) library: &'a Library,
    pub(super) templates: &'a Templates,
    pub(super) source: &'a Arc<Source>,
    pub(super) page: &'a str,
}

/// Why a directive says nothing: what is wrong, the name that is, and what to do.
struct Wrong {
    title: String,
    name: String,
    help: Option<String>,
}

/// Why a directive could not be printed.
enum Trouble {
    Wrong(Wrong),
    Template(TemplateError),
}

impl From<TemplateError> for Trouble {
    fn from(error: TemplateError) -> Self {
        Self::Template(error)
    }
}

impl From<Wrong> for Trouble {
    fn from(wrong: Wrong) -> Self {
        Self::Wrong(wrong)
    }
}

fn unknown<'n>(noun: &str, name: &str, known: impl IntoIterator<Item = &'n str>) -> Wrong {
    let known: Vec<&str> = known.into_iter().collect();
    let help = match did_you_mean(name, known.iter().copied()) {
        Some(near) => format!("did you mean `{near}`?"),
        None if known.is_empty() => "there is none".to_owned(),
        None => format!("there are {}", listed(&known)),
    };
    Wrong { title: format!("no {noun} `{name}`"), name: name.to_owned(), help: Some(help) }
}

fn listed(names: &[&str]) -> String {
    const MOST: usize = 12;
    let mut text = names.iter().take(MOST).map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
    if names.len() > MOST {
        let _ = write!(text, " and {} more", names.len() - MOST);
    }
    text
}

/// What a claim's sentence is made of.
#[derive(Serialize)]
struct Badge {
    at: String,
    treatment: String,
    verb: String,
    control: String,
    number: Option<Number>,
    interval: String,
    verdict: String,
    href: String,
    name: String,
}

impl<'a> Resolver<'a> {
    /// Returns the chapter with every directive replaced by what it says.
    ///
    /// # Errors
    ///
    /// A template that asks for what is not there; directives that cannot be resolved are the inner error.
    pub(super) fn chapter(&self, directives: &[Directive]) -> Result<Result<String, Diagnostics>, TemplateError> {
        let text = &self.source.text;
        let mut resolved = String::with_capacity(text.len() * 2);
        let mut wrong = Diagnostics::new(Arc::clone(self.source));
        let mut from = 0;
        for directive in directives {
            resolved.push_str(&text[from..directive.span.start]);
            from = directive.span.end;
            match self.one(directive) {
                Ok(said) => resolved.push_str(&said),
                Err(Trouble::Template(error)) => return Err(error),
                Err(Trouble::Wrong(found)) => wrong.problems.push(self.problem(directive, found)),
            }
        }
        resolved.push_str(&text[from..]);
        Ok(if wrong.problems.is_empty() { Ok(resolved) } else { Err(wrong) })
    }

    fn problem(&self, directive: &Directive, wrong: Wrong) -> Diagnostic {
        let typed = &self.source.text[directive.span.clone()];
        let place = typed.find(&wrong.name).filter(|_| !wrong.name.is_empty()).map_or_else(
            || directive.span.clone(),
            |at| directive.span.start + at..directive.span.start + at + wrong.name.len(),
        );
        let problem = Diagnostic::error(wrong.title, place, "here");
        match wrong.help {
            Some(help) => problem.help(help),
            None => problem,
        }
    }

    fn one(&self, directive: &Directive) -> Result<String, Trouble> {
        match &directive.call {
            Call::Value(value) => self.number(&self.value(value)?),
            Call::Claim(target) => self.claim(target),
            Call::Effect(effect) => self.number(&self.effect(effect)?),
            Call::Verdict(verdict) => self.number(&self.verdict(verdict)?),
            Call::Reference { experiment, name } => self.number(&self.reference(experiment, name)?),
            Call::Quote { value, source, date } => self.number(&Number {
                text: format!("{value} ({source}, {date})"),
                told: format!("quoted, not measured here: {source}, {date}; it is nobody's baseline"),
                href: String::new(),
                kind: "quoted".to_owned(),
            }),
            Call::Table { experiment, metric } => self.block(directive, &self.table(experiment, *metric)?),
            Call::Chart { experiment, kind, metric } => {
                self.block(directive, &self.chart(experiment, *kind, *metric, directive.span.start)?)
            }
            Call::Provenance(Provenance::Experiment(experiment)) => {
                let study = self.study(experiment)?;
                self.block(
                    directive,
                    &self.templates.print("provenance.html", &experiments::provenance(study, self.page))?,
                )
            }
            Call::Provenance(Provenance::Run(prefix)) => {
                let (study, record) = self.run(prefix)?;
                let view = experiments::provenance_of_run(study, record, self.page);
                self.block(directive, &self.templates.print("provenance.html", &view)?)
            }
        }
    }

    fn number(&self, number: &Number) -> Result<String, Trouble> {
        Ok(inside_markdown(&self.templates.print("number.html", &serde_json::json!({ "number": number }))?))
    }

    /// A block stands alone in its line, since Markdown would take it apart anywhere else.
    fn block(&self, directive: &Directive, html: &str) -> Result<String, Trouble> {
        let text = &self.source.text;
        let Range { start, end } = directive.span;
        let before = text[..start].rsplit('\n').next().unwrap_or("");
        let behind = text[end..].split('\n').next().unwrap_or("");
        if !before.is_empty() || !behind.trim().is_empty() {
            return Err(Wrong {
                title: "a table, chart or provenance inside a line".to_owned(),
                name: String::new(),
                help: Some("let it stand in a line of its own, without blanks in front".to_owned()),
            }
            .into());
        }
        // A brace is not taken for a preprocessor's own, wherever it came from.
        Ok(format!("\n<div class=\"lb\">\n{}\n</div>\n", html.replace('{', "&#123;")))
    }

    fn study(&self, target: &ExperimentTarget) -> Result<&'a Study, Wrong> {
        let name = &target.experiment;
        let library: &'a Library = self.library;
        let studies: Vec<&'a Study> = library.studies.iter().filter(|study| study.name == *name).collect();
        let names = library.names();
        if !names.contains(&name.as_str()) {
            return Err(unknown("experiment", name, names));
        }
        match &target.edition {
            Some(prefix) => {
                let mut found =
                    studies.iter().filter(|study| study.edition.starts_with(first(prefix, study.edition.len())));
                match (found.next(), found.next()) {
                    (Some(study), None) => Ok(study),
                    (Some(_), Some(_)) => Err(Wrong {
                        title: format!("several editions of `{name}` begin with `{prefix}`"),
                        name: prefix.clone(),
                        help: Some(format!("they are {}", listed(&editions(&studies)))),
                    }),
                    (None, _) => Err(unknown("edition", prefix, editions(&studies))),
                }
            }
            None => studies.iter().find(|study| study.current).copied().ok_or_else(|| {
                let newest = studies.iter().max_by_key(|study| study.latest.clone());
                let now = self.library.specs.iter().find(|planned| planned.name == *name);
                let title = now.map_or_else(
                    || format!("`{name}` has no spec here, so its name alone means no edition"),
                    |now| format!("edition {} of `{name}`, which the spec stands for, has no results", now.edition),
                );
                let help = newest.map_or_else(
                    || format!("`labbook run experiments/{name}.yaml` measures it"),
                    |newest| format!("the newest edition with results is `{name}@{}`", newest.edition),
                );
                Wrong { title, name: name.clone(), help: Some(help) }
            }),
        }
    }

    fn claim_of(&self, target: &ClaimTarget) -> Result<(&'a Study, &'a ConditionFinding), Wrong> {
        let study = self.study(&target.of)?;
        let Some(claim) = study.question.claims.get(&target.claim) else {
            let known = study.question.claims.keys().map(String::as_str);
            let noun = format!("claim in edition {} of `{}` named", study.edition, study.name);
            return Err(unknown(&noun, &target.claim, known));
        };
        let condition = study.condition_of(claim).ok_or_else(|| Wrong {
            title: format!("claim `{}` is about a level that is not planned", target.claim),
            name: target.claim.clone(),
            help: None,
        })?;
        Ok((study, condition))
    }

    fn claim(&self, target: &ClaimTarget) -> Result<String, Trouble> {
        let (study, condition) = self.claim_of(target)?;
        let (claim, found) = (&study.question.claims[&target.claim], &study.findings.claims[&target.claim]);
        let to = place::claim(&study.name, &study.edition, &target.claim);
        let badge = Badge {
            at: words::at_level(study.question.axis, &claim.at.0),
            treatment: claim.treatment.clone(),
            verb: words::claim_verb(claim, found, condition),
            control: study.question.control.clone(),
            number: condition.effect.is_some().then(|| view::number(condition, self.page, &to)),
            interval: condition.effect.as_ref().map_or(String::new(), words::interval),
            verdict: found.verdict.name().to_owned(),
            href: relative(self.page, &to),
            name: target.claim.clone(),
        };
        Ok(inside_markdown(&self.templates.print("badge.html", &badge)?))
    }

    fn effect(&self, effect: &Effect) -> Result<Number, Wrong> {
        let with_interval = |found: &ConditionFinding, to: &str| {
            let mut number = view::number(found, self.page, to);
            if let Some(effect) = found.effect.as_ref().filter(|effect| effect.interval.is_some()) {
                number.text = format!("{} {}", number.text, words::interval(effect));
            }
            number
        };
        match effect {
            Effect::Claim(target) => {
                let (study, condition) = self.claim_of(target)?;
                Ok(with_interval(condition, &place::claim(&study.name, &study.edition, &target.claim)))
            }
            Effect::Headline(experiment) => {
                let (study, headline) = self.headline(experiment)?;
                Ok(self.headline_number(study, headline, None))
            }
            Effect::Condition { experiment, metric, treatment, at } => {
                let study = self.study(experiment)?;
                let condition = condition(study, *metric, treatment, at)?;
                Ok(with_interval(condition, &place::condition(&study.name, &study.edition, &condition.condition)))
            }
        }
    }

    fn headline(&self, target: &ExperimentTarget) -> Result<(&'a Study, &'a HeadlineFinding), Wrong> {
        let study = self.study(target)?;
        let headline = study.findings.headline.as_ref().ok_or_else(|| Wrong {
            title: format!("`{}` has no headline", study.name),
            name: study.name.clone(),
            help: Some("name a claim, as in `experiment/claim`".to_owned()),
        })?;
        Ok((study, headline))
    }

    /// The effect of a headline, or `said` with the same behind it.
    fn headline_number(&self, study: &Study, headline: &HeadlineFinding, said: Option<String>) -> Number {
        let verdict = headline.verdict.name();
        let place = match &headline.over {
            Over::All => format!("geometric mean over {} levels", study.question.levels.len()),
            Over::At(level) => words::at_level(study.question.axis, &level.0),
        };
        let about = format!("{} of {}, {place}", headline.metric, headline.treatment);
        let (text, told) = match &headline.effect {
            Some(effect) => (
                format!("{} {}", words::change(effect), words::interval(effect)).trim_end().to_owned(),
                format!("{about}: {}", words::behind_effect(effect, verdict)),
            ),
            None => (
                verdict.to_owned(),
                format!("{about}: {verdict}, so there is no number; {}", headline.reasons.join(", ")),
            ),
        };
        let to = format!("{}#headline", place::experiment(&study.name, &study.edition));
        Number { text: said.unwrap_or(text), told, href: relative(self.page, &to), kind: verdict.to_owned() }
    }

    fn verdict(&self, verdict: &Verdict) -> Result<Number, Wrong> {
        match verdict {
            Verdict::Claim(target) => {
                let (study, condition) = self.claim_of(target)?;
                let (claim, found) = (&study.question.claims[&target.claim], &study.findings.claims[&target.claim]);
                let to = place::claim(&study.name, &study.edition, &target.claim);
                let number = view::number(condition, self.page, &to);
                let told = format!("claim {}: {}; {}", target.claim, found.verdict.name(), number.told);
                Ok(Number {
                    text: words::claim_verb(claim, found, condition),
                    told,
                    kind: found.verdict.name().to_owned(),
                    ..number
                })
            }
            Verdict::Headline(target) => {
                let (study, headline) = self.headline(target)?;
                let verb = words::verb(headline.metric, headline.verdict, headline.effect.as_ref());
                Ok(self.headline_number(study, headline, Some(verb)))
            }
        }
    }

    fn value(&self, value: &Value) -> Result<Number, Wrong> {
        match value {
            Value::Run { prefix, metric } => self.value_of_run(prefix, *metric),
            Value::Claim { target, arm } => {
                let (study, condition) = self.claim_of(target)?;
                let to = place::claim(&study.name, &study.edition, &target.claim);
                self.mean(study, condition, arm, &to)
            }
            Value::Condition { experiment, metric, arm, at } => {
                let study = self.study(experiment)?;
                let first = study.question.treatments().next().unwrap_or("");
                let treatment = if *arm == study.question.control { first } else { arm };
                let condition = condition(study, *metric, treatment, at)?;
                self.mean(study, condition, arm, &place::condition(&study.name, &study.edition, &condition.condition))
            }
        }
    }

    /// The mean of an arm over the blocks of a comparison.
    fn mean(&self, study: &Study, found: &ConditionFinding, arm: &str, to: &str) -> Result<Number, Wrong> {
        let control = &study.question.control;
        if arm != control && arm != found.condition.treatment {
            return Err(unknown("arm of this comparison", arm, [control.as_str(), found.condition.treatment.as_str()]));
        }
        let Some(compared) = study.compared(&found.condition) else { return Ok(view::number(found, self.page, to)) };
        let values = sides(&compared, arm == control);
        let metric = found.condition.metric;
        let Ok(mean) = stats::mean(&values) else { return Ok(view::number(found, self.page, to)) };
        let interval = match stats::mean_interval(&values, stats::CONFIDENCE) {
            Ok(of_mean) if found.outcome != Found::Foreign => {
                format!("95 % interval {} to {}", words::value(metric, of_mean.low), words::value(metric, of_mean.high))
            }
            _ => "no interval".to_owned(),
        };
        let at = words::at_level(study.question.axis, &found.condition.level.0);
        let tier = if found.outcome == Found::Foreign { " (foreign)" } else { "" };
        Ok(Number {
            text: format!("{}{tier}", words::value(metric, mean)),
            told: format!(
                "{metric} of {arm} at {at}: {}, {interval}, n = {} blocks, {}; to compare arms read the ratio",
                words::value(metric, mean),
                values.len(),
                words::spelled(found)
            ),
            href: relative(self.page, to),
            kind: view::class(words::spelled(found)),
        })
    }

    fn run(&self, prefix: &str) -> Result<(&'a Study, &'a Record), Wrong> {
        let all = self.library.studies.iter();
        let found: Vec<(&'a Study, &'a Record)> = all
            .flat_map(|study| study.all_records().map(move |record| (study, record)))
            .filter(|(_, record)| record.id.to_string().starts_with(prefix))
            .collect();
        match found.as_slice() {
            [one] => Ok(*one),
            [] => {
                let ids: Vec<String> = self
                    .library
                    .studies
                    .iter()
                    .flat_map(Study::all_records)
                    .map(|record| record.id.short(prefix.len().max(8)))
                    .collect();
                let near = did_you_mean(prefix, ids.iter().map(String::as_str));
                let help = near.map_or_else(
                    || "`labbook show EXPERIMENT` lists the runs".to_owned(),
                    |near| format!("did you mean `{near}`?"),
                );
                Err(Wrong {
                    title: format!("no run begins with `{prefix}`"),
                    name: prefix.to_owned(),
                    help: Some(help),
                })
            }
            several => {
                let ids: Vec<String> = several.iter().map(|(_, record)| record.id.short(12)).collect();
                let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
                Err(Wrong {
                    title: format!("{} runs begin with `{prefix}`", several.len()),
                    name: prefix.to_owned(),
                    help: Some(format!("type more of it: {}", listed(&ids))),
                })
            }
        }
    }

    fn value_of_run(&self, prefix: &str, metric: Metric) -> Result<Number, Wrong> {
        let (study, record) = self.run(prefix)?;
        if record.tier == Tier::Look {
            return Err(Wrong {
                title: format!("run `{prefix}` is a look"),
                name: prefix.to_owned(),
                help: Some("a look is recorded and never cited; measure it in blocks".to_owned()),
            });
        }
        let lost = match &record.outcome {
            Outcome::Finished => validity::judge(record)
                .into_iter()
                .find(|fired| {
                    fired.severity == validity::Severity::Void && fired.metric.is_none_or(|about| about == metric)
                })
                .map(|fired| ("void", format!("{}: {}", fired.rule, fired.message))),
            Outcome::Failed(why) => Some(("failed", why.clone())),
            Outcome::Superseded(why) => Some(("superseded", why.clone())),
            Outcome::Excluded(why) => Some(("excluded", why.clone())),
        };
        let to = place::run(&study.name, &study.edition, &record.session, &study.trial(record));
        let href = relative(self.page, &to);
        let at = words::at_level(study.question.axis, &record.level.0);
        let about = format!("{metric} of {} at {at} in run {}", record.arm, record.id.short(8));
        if let Some((word, why)) = lost {
            return Ok(Number {
                text: word.to_owned(),
                told: format!("{about}: {word}: {why}"),
                href,
                kind: word.to_owned(),
            });
        }
        let value = rules::value(record, metric).ok_or_else(|| Wrong {
            title: format!("run `{prefix}` has no {metric}"),
            name: metric.name(),
            help: Some("absent is not zero".to_owned()),
        })?;
        let told = format!("{about}: {}, no interval, n = 1 run, no verdict", words::value(metric, value));
        let tier = if record.tier == Tier::Foreign { " (foreign)" } else { "" };
        Ok(Number { text: format!("{}{tier}", words::value(metric, value)), told, href, kind: "single".to_owned() })
    }

    fn reference(&self, target: &ExperimentTarget, name: &str) -> Result<Number, Wrong> {
        let planned = self.library.specs.iter().find(|planned| planned.name == target.experiment);
        let (spec, page) = match (self.study(target), planned) {
            (Ok(study), _) => {
                let spec = study.measured.as_ref().map(|measured| &measured.spec).ok_or_else(|| Wrong {
                    title: format!("`{}` was brought in and has no references", study.name),
                    name: study.name.clone(),
                    help: None,
                })?;
                (spec, place::experiment(&study.name, &study.edition))
            }
            // A reference needs no runs.
            (Err(_), Some(planned)) if target.edition.is_none() => (&planned.spec, place::planned(&planned.name)),
            (Err(wrong), _) => return Err(wrong),
        };
        let Some(reference) = spec.references.get(name) else {
            return Err(unknown("reference", name, spec.references.keys().map(String::as_str)));
        };
        Ok(Number {
            text: format!("{} {}", words::plain(reference.value), reference.unit),
            told: format!("reference {name}, not measured: {}", reference.why),
            href: relative(self.page, &format!("{page}#references")),
            kind: "quoted".to_owned(),
        })
    }

    fn table(&self, target: &ExperimentTarget, metric: Option<Metric>) -> Result<String, Trouble> {
        let study = self.study(target)?;
        let metrics = named(study);
        if let Some(metric) = metric.filter(|metric| !metrics.contains(metric)) {
            return Err(not_asked(study, metric, &metrics).into());
        }
        let mut text = String::new();
        for family in view::tables(study, self.page, metric) {
            let view = serde_json::json!({ "family": family, "anchors": false });
            text.push_str(&self.templates.print("family.html", &view)?);
            text.push('\n');
        }
        Ok(text)
    }

    fn chart(
        &self,
        target: &ExperimentTarget,
        kind: ChartKind,
        metric: Option<Metric>,
        at: usize,
    ) -> Result<String, Trouble> {
        let study = self.study(target)?;
        let metrics = named(study);
        let Some(metric) = metric.or_else(|| metrics.first().copied()).filter(|metric| metrics.contains(metric)) else {
            let asked = metric.unwrap_or(Metric::OutputThroughput);
            return Err(not_asked(study, asked, &metrics).into());
        };
        let mut text = String::new();
        for chart in super::charts::of(study, metric, kind, &format!("-{at}"))? {
            text.push_str(&chart);
            text.push('\n');
        }
        // The table twin, for who cannot see the chart.
        text.push_str("<details><summary>the same as a table</summary>\n");
        text.push_str(&self.table(target, Some(metric))?);
        text.push_str("</details>");
        Ok(text)
    }
}

fn first(prefix: &str, length: usize) -> &str {
    &prefix[..prefix.len().min(length)]
}

fn editions<'a>(studies: &[&'a Study]) -> Vec<&'a str> {
    studies.iter().map(|study| study.edition.as_str()).collect()
}

fn sides(compared: &Comparison, control: bool) -> Vec<f64> {
    compared.values().iter().map(|value| if control { value.control } else { value.treatment }).collect()
}

fn named(study: &Study) -> Vec<Metric> {
    study.question.metrics()
}

fn not_asked(study: &Study, metric: Metric, known: &[Metric]) -> Wrong {
    let names: Vec<String> = known.iter().map(|metric| metric.name()).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    Wrong {
        title: format!("no claim and no headline of `{}` is about `{metric}`", study.name),
        name: metric.name(),
        help: Some(format!("they are about {}", listed(&names))),
    }
}

/// Returns what was found at a condition, or which part of it does not exist.
fn condition<'s>(study: &'s Study, metric: Metric, treatment: &str, at: &Level) -> Result<&'s ConditionFinding, Wrong> {
    let question = &study.question;
    let metrics = named(study);
    if !metrics.contains(&metric) {
        return Err(not_asked(study, metric, &metrics));
    }
    if !question.treatments().any(|arm| arm == treatment) {
        return Err(unknown("treatment", treatment, question.treatments()));
    }
    let same = |level: &&Level| **level == *at || level.number().total_cmp(&at.number()).is_eq();
    let level = question.levels.iter().find(same).ok_or_else(|| Wrong {
        title: format!("level {at} is not planned"),
        name: at.0.clone(),
        help: Some(format!(
            "the levels are {}",
            question.levels.iter().map(|level| level.0.as_str()).collect::<Vec<_>>().join(", ")
        )),
    })?;
    let wanted = Condition { metric, treatment: treatment.to_owned(), level: level.clone() };
    study.findings.conditions.iter().find(|found| found.condition == wanted).ok_or_else(|| Wrong {
        title: "nothing was compared there".to_owned(),
        name: String::new(),
        help: None,
    })
}
