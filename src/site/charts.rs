//! The charts of a study: what its findings say, as views that the drawing takes.
//!
//! Invariant: every planned point is there, with its number or the reason why it has none.

use crate::chart::{self, ChartError, EffectChart, EffectRow, Interval, Point, Shown, ShownEffect, ThroughputChart};
use crate::comparison::Comparison;
use crate::directive::ChartKind;
use crate::finding::{ConditionFinding, Outcome};
use crate::metric::Metric;
use crate::question::Axis;
use crate::report::sentence;
use crate::stats;

use super::library::Study;
use super::templates::TemplateError;
use super::view;

/// Differences below 1 % do not matter where the spec says nothing.
const DEFAULT_MARGIN: f64 = 0.01;

/// Draws one metric of a study, a chart for each picture that it takes. `suffix` keeps identifiers apart in a page that shows it
/// several times.
///
/// # Errors
///
/// A chart that cannot be drawn.
pub(super) fn of(study: &Study, metric: Metric, kind: ChartKind, suffix: &str) -> Result<Vec<String>, TemplateError> {
    let failed = |error: ChartError| TemplateError::Wrong { name: kind.name().to_owned(), trouble: error.to_string() };
    let found: Vec<&ConditionFinding> =
        study.findings.conditions.iter().filter(|found| found.condition.metric == metric).collect();
    let id = format!("chart-{}-{}-{metric}-{}{suffix}", study.name, study.edition, kind.name());
    if found.is_empty() {
        return Ok(Vec::new());
    }
    match kind {
        ChartKind::Throughput => {
            let view = throughput(study, metric, &found, id);
            Ok(vec![one_block(&chart::for_page(|size| chart::throughput(&view, size)).map_err(failed)?)])
        }
        ChartKind::Effect => {
            let mut charts = Vec::new();
            for (number, treatment) in study.question.treatments().enumerate() {
                let rows = found.iter().copied().filter(|found| found.condition.treatment == treatment);
                let view = effect(study, metric, treatment, rows, format!("{id}-{number}"));
                charts.push(one_block(&chart::for_page(|size| chart::effect(&view, size)).map_err(failed)?));
            }
            Ok(charts)
        }
    }
}

/// Returns HTML without the blank lines that would end a block of it in a chapter.
fn one_block(html: &str) -> String {
    html.lines().filter(|line| !line.trim().is_empty()).collect::<Vec<_>>().join("\n")
}

fn label(axis: Axis, level: &str) -> String {
    format!("{}={level}", axis.letter())
}

/// Why a condition has no number.
fn why(found: &ConditionFinding) -> String {
    match found.outcome {
        Outcome::Foreign => "foreign: no ratio".to_owned(),
        _ => format!("{} {}", sentence::spelled(found), view::why(&found.reasons)),
    }
}

fn throughput(study: &Study, metric: Metric, found: &[&ConditionFinding], id: String) -> ThroughputChart {
    let question = &study.question;
    let compared: Vec<(&ConditionFinding, Option<Comparison>)> = found
        .iter()
        .map(|found| (*found, found.means.is_some().then(|| study.compared(&found.condition)).flatten()))
        .collect();
    let point = |found: &ConditionFinding, values: Option<Vec<f64>>| Point {
        level: found.condition.level.number(),
        label: label(question.axis, &found.condition.level.0),
        shown: match values.and_then(|values| Some((stats::mean(&values).ok()?, values))) {
            Some((mean, values)) => Shown::Measured { mean, interval: whiskers(found, &values) },
            None => Shown::Absent { why: why(found) },
        },
    };
    let first = question.treatments().next().unwrap_or("").to_owned();
    let side = |compared: &Comparison, control: bool| -> Vec<f64> {
        compared.values().iter().map(|value| if control { value.control } else { value.treatment }).collect()
    };
    let arm = |name: &str| {
        let is_control = name == question.control;
        let of = if is_control { first.as_str() } else { name };
        let points = compared
            .iter()
            .filter(|(found, _)| found.condition.treatment == of)
            .map(|(found, compared)| point(found, compared.as_ref().map(|compared| side(compared, is_control))));
        chart::Arm { name: name.to_owned(), points: points.collect() }
    };
    let others = question.treatments().map(str::to_owned).collect::<Vec<_>>();
    let arms: Vec<chart::Arm> =
        std::iter::once(question.control.as_str()).chain(others.iter().map(String::as_str)).map(arm).collect();
    let said = arms.iter().map(|arm| {
        let points = arm.points.iter().map(|point| match &point.shown {
            Shown::Measured { mean, .. } => format!("{} {}", point.label, sentence::value(metric, *mean)),
            Shown::Absent { why } => format!("{} {why}", point.label),
        });
        format!("{}: {}", arm.name, points.collect::<Vec<_>>().join(", "))
    });
    ThroughputChart {
        id,
        title: format!("{metric} of each arm"),
        description: format!("Means over blocks with 95 % intervals. {}.", said.collect::<Vec<_>>().join("; ")),
        x_label: view::axis(question.axis).to_owned(),
        y_label: format!("{metric}, {}", metric.unit().symbol()),
        arms,
    }
}

fn whiskers(found: &ConditionFinding, values: &[f64]) -> Option<(f64, f64)> {
    let of_mean = stats::mean_interval(values, stats::CONFIDENCE).ok()?;
    (found.outcome != Outcome::Foreign).then_some((of_mean.low, of_mean.high))
}

fn effect<'f>(
    study: &Study,
    metric: Metric,
    treatment: &str,
    found: impl Iterator<Item = &'f ConditionFinding>,
    id: String,
) -> EffectChart {
    let question = &study.question;
    let rows: Vec<EffectRow> = found
        .map(|found| EffectRow {
            label: label(question.axis, &found.condition.level.0),
            shown: match &found.effect {
                Some(effect) => ShownEffect::Measured {
                    change_percent: (effect.ratio - 1.0) * 100.0,
                    interval: effect.interval.map(|(low, high)| Interval {
                        low_percent: (low - 1.0) * 100.0,
                        high_percent: (high - 1.0) * 100.0,
                    }),
                    text: format!("{} {}", sentence::change(effect), sentence::interval(effect)).trim_end().to_owned(),
                    firm: found.outcome == Outcome::Comparable,
                },
                None => ShownEffect::Absent { why: why(found) },
            },
        })
        .collect();
    let said = rows.iter().map(|row| match &row.shown {
        ShownEffect::Measured { text, .. } => format!("{} {text}", row.label),
        ShownEffect::Absent { why } => format!("{} {why}", row.label),
    });
    EffectChart {
        id,
        title: format!("{metric}: {treatment} against {}", question.control),
        description: format!("Change in percent with its 95 % interval. {}.", said.collect::<Vec<_>>().join("; ")),
        x_label: format!("change of {metric}, percent"),
        margin_percent: Some(question.margin.unwrap_or(DEFAULT_MARGIN) * 100.0),
        rows,
    }
}
