//! The change at each condition: a row each, with its interval, the line of no change, and the band of changes that do not matter.
//!
//! Invariant: a condition without a number has a row that says why; an interval that has no end on one side is drawn open there.

use std::error::Error;

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, VPos};

use super::axis::{self, Axis};
use super::svg::{self, Role, SvgBackend};
use super::{
    Canvas, ChartError, NOTE_LINE, SMALL_TEXT, Size, TEXT, draw_cross, draw_mark, draw_notes, draw_nothing, drawn,
    line_style, note_lines, stack, text_style, units, widest,
};

/// What is drawn.
#[derive(Debug, Clone, PartialEq)]
pub struct EffectChart {
    /// Identifier, unique in the page.
    pub id: String,
    /// One line that names the chart.
    pub title: String,
    /// What the chart shows, in words, for readers who do not see it.
    pub description: String,
    /// What changes, and that it is in percent.
    pub x_label: String,
    /// Changes up to this one do not matter, percent; `None` draws no band.
    pub margin_percent: Option<f64>,
    /// Every planned condition, the first on top.
    pub rows: Vec<EffectRow>,
}

/// One condition.
#[derive(Debug, Clone, PartialEq)]
pub struct EffectRow {
    /// The condition: `c=64`.
    pub label: String,
    /// Its effect, or why there is none.
    pub shown: ShownEffect,
}

/// What there is to draw of a condition.
#[derive(Debug, Clone, PartialEq)]
pub enum ShownEffect {
    /// A change.
    Measured {
        /// The change, percent.
        change_percent: f64,
        /// Its interval, where there is a right to one.
        interval: Option<Interval>,
        /// The same as text, at the right of the row: `+1.7 % [+1.5, +1.9]`.
        text: String,
        /// Whether a verdict may stand on it; hollow if not.
        firm: bool,
    },
    /// No number, and why: `refused (source.commit)`.
    Absent {
        /// The reason.
        why: String,
    },
}

/// Ends of an interval in percent; an end that is not finite is open.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Interval {
    /// Lower end.
    pub low_percent: f64,
    /// Upper end.
    pub high_percent: f64,
}

/// A row that can be drawn as it is.
enum Row<'v> {
    Change { at: f64, whisker: Option<(Option<f64>, Option<f64>)>, text: &'v str, firm: bool },
    Absent { why: String },
}

/// Where things are, in pixels.
struct Layout {
    width: i32,
    height: i32,
    plot_left: i32,
    plot_right: i32,
    plot_bottom: i32,
    /// Whether there is room for the changes as text.
    with_text: bool,
    notes: Vec<String>,
    notes_top: i32,
}

/// Height of a row, pixels.
const ROW: i32 = 26;
/// Room above the rows, pixels.
const ABOVE: i32 = 6;
/// Room for tick labels and the axis' name below the plot, pixels.
const BELOW: i32 = 42;
/// Between columns, pixels.
const GAP: i32 = 10;

type Plot<'a, 'b> = ChartContext<'a, SvgBackend<'b>, Cartesian2d<Axis, Axis>>;

/// Draws the chart as one SVG element.
///
/// # Errors
///
/// When plotters gives up, which no view is known to cause.
pub fn effect(view: &EffectChart, size: Size) -> Result<String, ChartError> {
    let rows: Vec<Row<'_>> = view.rows.iter().map(row).collect();
    let margin = view.margin_percent.filter(|margin| axis::drawable(*margin) && *margin > 0.0);
    let layout = Layout::of(view, &rows, margin, size);
    let body = drawn((layout.width, layout.height), |canvas| {
        if rows.is_empty() {
            draw_nothing(canvas)?;
        } else {
            draw_plot(canvas, view, &rows, margin, &layout)?;
        }
        draw_notes(canvas, &layout.notes, 2, layout.notes_top)
    })?;
    let id = format!("{}-{}", view.id, size.suffix());
    Ok(svg::picture(&id, &view.title, &view.description, (layout.width as u32, layout.height as u32), &body))
}

/// Returns the row as it can be drawn.
fn row(row: &EffectRow) -> Row<'_> {
    match &row.shown {
        ShownEffect::Absent { why } => Row::Absent { why: why.clone() },
        ShownEffect::Measured { change_percent, .. } if !axis::drawable(*change_percent) => {
            Row::Absent { why: "its change is no finite number".to_owned() }
        }
        ShownEffect::Measured { change_percent, interval, text, firm } => {
            let whisker = interval.map(|Interval { low_percent: low, high_percent: high }| {
                let (low, high) = if low > high { (high, low) } else { (low, high) };
                (Some(low).filter(|low| axis::drawable(*low)), Some(high).filter(|high| axis::drawable(*high)))
            });
            Row::Change { at: *change_percent, whisker, text, firm: *firm }
        }
    }
}

impl Layout {
    fn of(view: &EffectChart, rows: &[Row<'_>], margin: Option<f64>, size: Size) -> Self {
        let width = size.width();
        let names = widest(view.rows.iter().map(|row| row.label.as_str()), TEXT).min(width / 3);
        let texts = rows.iter().filter_map(|row| if let Row::Change { text, .. } = row { Some(*text) } else { None });
        let text = widest(texts, SMALL_TEXT);
        let with_text = text <= width * 2 / 5;
        let mut notes = Vec::new();
        if let Some(margin) = margin.filter(|_| !rows.is_empty()) {
            notes.push(format!("Grey band: changes of at most {margin} % do not matter here."));
        }
        if rows.iter().any(|row| matches!(row, Row::Change { firm: false, .. })) {
            notes.push("Hollow: too little for a verdict.".to_owned());
        }
        let plot_left = names + GAP + 2;
        for (row, named) in rows.iter().zip(&view.rows) {
            if let Row::Absent { why } = row
                && svg::room(why, SMALL_TEXT) > reason_width(width, plot_left)
            {
                notes.push(format!("{}: {why}", named.label));
            }
        }
        let notes = note_lines(&notes, width - 4);
        let plot_bottom = ABOVE + stack(rows.len(), ROW);
        let notes_top = if rows.is_empty() { 28 } else { plot_bottom + BELOW + 4 };
        Self {
            width,
            height: notes_top + stack(notes.len(), NOTE_LINE) + 4,
            plot_left,
            plot_right: if with_text && text > 0 { width - text - GAP - 2 } else { width - GAP },
            plot_bottom,
            with_text,
            notes,
            notes_top,
        }
    }
}

/// Width in pixels that the reason in a row without a number may take.
fn reason_width(width: i32, plot_left: i32) -> f64 {
    f64::from(width - plot_left - 20)
}

fn draw_plot<'b>(
    canvas: &Canvas<'b>,
    view: &EffectChart,
    rows: &[Row<'_>],
    margin: Option<f64>,
    layout: &Layout,
) -> Result<(), Box<dyn Error>> {
    let plot_width = layout.plot_right - layout.plot_left;
    let ticks = (plot_width / 60).clamp(2, 6) as u32;
    let mut x_axis = Axis::around_zero(placed(rows).chain(margin).chain(margin.map(|margin| -margin)), ticks);
    x_axis.thin_labels(f64::from(plot_width), 8.0, |label| svg::room(label, SMALL_TEXT));
    let mut plot: Plot<'_, 'b> = ChartBuilder::on(canvas)
        .margin_top(units(ABOVE))
        .margin_right(units(layout.width - layout.plot_right))
        .margin_bottom(units(layout.height - layout.plot_bottom - BELOW))
        .set_label_area_size(LabelAreaPosition::Left, units(layout.plot_left))
        .set_label_area_size(LabelAreaPosition::Bottom, units(BELOW))
        .build_cartesian_2d(x_axis, Axis::rows(rows.len()))?;
    let (bottom, top) = (-0.5, rows.len() as f64 - 0.5);
    if let Some(margin) = margin {
        let band = Role::Band.colour().mix(0.18).filled();
        plot.draw_series([Rectangle::new([(-margin, bottom), (margin, top)], band)])?;
    }
    plot.configure_mesh()
        .disable_y_mesh()
        .disable_y_axis()
        .bold_line_style(line_style(Role::Grid, 10))
        .light_line_style(TRANSPARENT)
        .axis_style(line_style(Role::Muted, 10))
        .label_style(text_style(SMALL_TEXT, Role::Muted, HPos::Center, VPos::Top))
        .set_all_tick_mark_size(units(4))
        .draw()?;
    plot.draw_series([PathElement::new(vec![(0.0, bottom), (0.0, top)], line_style(Role::Muted, 12))])?;
    let middle = i32::midpoint(layout.plot_left, layout.plot_right);
    let x_label = svg::fitted(&view.x_label, f64::from(2 * middle.min(layout.width - middle)), SMALL_TEXT);
    let centred = text_style(SMALL_TEXT, Role::Muted, HPos::Center, VPos::Top);
    canvas.draw_text(&x_label, &centred, (units(middle), units(layout.plot_bottom + 25)))?;
    for (index, (row, named)) in rows.iter().zip(&view.rows).enumerate() {
        draw_row(canvas, &plot, row, &named.label, rows.len() - 1 - index, layout)?;
    }
    Ok(())
}

/// Returns every number that has to be within the axis.
fn placed<'r>(rows: &'r [Row<'_>]) -> impl Iterator<Item = f64> + 'r {
    rows.iter()
        .flat_map(|row| match row {
            Row::Absent { .. } => [None; 3],
            Row::Change { at, whisker, .. } => {
                let (low, high) = whisker.unwrap_or_default();
                [Some(*at), low, high]
            }
        })
        .flatten()
}

fn draw_row<'b>(
    canvas: &Canvas<'b>,
    plot: &Plot<'_, 'b>,
    row: &Row<'_>,
    label: &str,
    place: usize,
    layout: &Layout,
) -> Result<(), Box<dyn Error>> {
    let (_, y) = plot.backend_coord(&(0.0, place as f64));
    let name = svg::fitted(label, f64::from(layout.plot_left - GAP - 2) + 0.5, TEXT);
    let named = text_style(TEXT, Role::Ink, HPos::Right, VPos::Center);
    canvas.draw_text(&name, &named, (units(layout.plot_left - GAP), y))?;
    match row {
        Row::Absent { why } => {
            let left = layout.plot_left + 8;
            draw_cross(canvas, Role::Muted, (units(left), y))?;
            let why = svg::fitted(why, reason_width(layout.width, layout.plot_left), SMALL_TEXT);
            let style = text_style(SMALL_TEXT, Role::Muted, HPos::Left, VPos::Center);
            canvas.draw_text(&why, &style, (units(left + 10), y))?;
        }
        Row::Change { at, whisker, text, firm } => {
            if let Some(whisker) = whisker {
                draw_whisker(canvas, plot, *whisker, y)?;
            }
            let (x, _) = plot.backend_coord(&(*at, place as f64));
            draw_mark(canvas, 0, (x, y), !firm)?;
            if layout.with_text {
                let style = text_style(SMALL_TEXT, Role::Ink, HPos::Left, VPos::Center);
                canvas.draw_text(text, &style, (units(layout.plot_right + GAP), y))?;
            }
        }
    }
    Ok(())
}

/// Draws an interval: a bar across at an end, an arrow where it has none.
fn draw_whisker<'b>(
    canvas: &Canvas<'b>,
    plot: &Plot<'_, 'b>,
    (low, high): (Option<f64>, Option<f64>),
    y: i32,
) -> Result<(), Box<dyn Error>> {
    let style = line_style(Role::Series(0), 16);
    let edges = plot.plotting_area().get_x_range();
    let across = |value: f64| plot.backend_coord(&(value, 0.0)).0;
    let (left, right) = (across(low.unwrap_or(edges.start)), across(high.unwrap_or(edges.end)));
    canvas.draw(&PathElement::new(vec![(left, y), (right, y)], style))?;
    for (end, x, inwards) in [(low, left, 1), (high, right, -1)] {
        let (half, back) = (units(5), if end.is_some() { 0 } else { inwards * units(5) });
        let across = vec![(x + back, y - half), (x, y), (x + back, y + half)];
        canvas.draw(&PathElement::new(across, style))?;
    }
    Ok(())
}
