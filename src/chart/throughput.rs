//! A metric against the load: one line an arm, straight between the points that were measured.
//!
//! Invariant: a line ends where a planned point is absent; labels at the lines' ends never touch.

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
pub struct ThroughputChart {
    /// Identifier, unique in the page.
    pub id: String,
    /// One line that names the chart.
    pub title: String,
    /// What the chart shows, in words, for readers who do not see it.
    pub description: String,
    /// The load and its unit.
    pub x_label: String,
    /// The metric and its unit.
    pub y_label: String,
    /// The control first.
    pub arms: Vec<Arm>,
}

/// One line.
#[derive(Debug, Clone, PartialEq)]
pub struct Arm {
    /// Stands at the line's end.
    pub name: String,
    /// Every planned point, in any order.
    pub points: Vec<Point>,
}

/// One planned point.
#[derive(Debug, Clone, PartialEq)]
pub struct Point {
    /// The load.
    pub level: f64,
    /// The load as notes call it: `c=64`.
    pub label: String,
    /// Its number, or why there is none.
    pub shown: Shown,
}

/// What there is to draw of a point.
#[derive(Debug, Clone, PartialEq)]
pub enum Shown {
    /// A mean with the ends of its interval, where it has one.
    Measured {
        /// The mean.
        mean: f64,
        /// Ends of its interval.
        interval: Option<(f64, f64)>,
    },
    /// No number, and why: `refused (source.commit)`.
    Absent {
        /// The reason.
        why: String,
    },
}

/// A point that can be drawn as it is.
struct Placed {
    level: f64,
    mean: f64,
    whisker: Option<(f64, f64)>,
}

/// The view after everything that cannot be drawn has become a note.
struct Clean<'v> {
    view: &'v ThroughputChart,
    /// Lines of each arm: points in order, cut at absent ones.
    lines: Vec<Vec<Vec<Placed>>>,
    /// Levels at which an arm has no number.
    absent: Vec<Vec<f64>>,
    notes: Vec<String>,
}

/// Where things are, in pixels.
struct Layout {
    width: i32,
    height: i32,
    plot_top: i32,
    plot_bottom: i32,
    plot_left: i32,
    plot_right: i32,
    notes: Vec<String>,
    notes_top: i32,
}

/// Distance of two labels, pixels.
const LABEL_LINE: i32 = 17;
/// Room for tick labels and the axis' name below the plot, pixels.
const BELOW: i32 = 42;
/// From the plot to the label of a line, pixels.
const LABEL_GAP: i32 = 10;
/// Room for the mark of a label, pixels.
const MARK: i32 = 13;

type Plot<'a, 'b> = ChartContext<'a, SvgBackend<'b>, Cartesian2d<Axis, Axis>>;

/// Draws the chart as one SVG element.
///
/// # Errors
///
/// When plotters gives up, which no view is known to cause.
pub fn throughput(view: &ThroughputChart, size: Size) -> Result<String, ChartError> {
    let clean = Clean::of(view);
    let placed = || clean.lines.iter().flatten().flatten();
    let ends = |point: &Placed| point.whisker.map_or([point.mean; 3], |(low, high)| [low, point.mean, high]);
    let y_axis = Axis::from_zero(placed().flat_map(ends), 5);
    let mut x_axis = Axis::log2(placed().map(|point| point.level).chain(clean.absent.iter().flatten().copied()));
    let empty = placed().next().is_none();
    let layout = Layout::of(&clean, &y_axis, size, empty);
    let plot_width = f64::from(layout.plot_right - layout.plot_left);
    x_axis.thin_labels(plot_width, 6.0, |label| svg::room(label, SMALL_TEXT));
    let body = drawn((layout.width, layout.height), |canvas| {
        if empty {
            draw_nothing(canvas)?;
        } else {
            draw_plot(canvas, &clean, &layout, x_axis, y_axis)?;
        }
        draw_notes(canvas, &layout.notes, 2, layout.notes_top)
    })?;
    let id = format!("{}-{}", view.id, size.suffix());
    Ok(svg::picture(&id, &view.title, &view.description, (layout.width as u32, layout.height as u32), &body))
}

impl<'v> Clean<'v> {
    fn of(view: &'v ThroughputChart) -> Self {
        let mut clean = Self { view, lines: Vec::new(), absent: Vec::new(), notes: Vec::new() };
        let mut reasons: Vec<Reason<'v>> = Vec::new();
        for arm in &view.arms {
            let mut points: Vec<(f64, &str, Result<Placed, String>)> =
                arm.points.iter().map(|point| (point.level, point.label.as_str(), placed(point))).collect();
            points.extend(forgotten(view, arm));
            points.sort_by(|one, other| one.0.total_cmp(&other.0));
            let (mut line, mut lines, mut absent) = (Vec::new(), Vec::new(), Vec::new());
            for (level, label, point) in points {
                match point {
                    Ok(point) => line.push(point),
                    Err(why) => {
                        lines.push(std::mem::take(&mut line));
                        absent.extend(Some(level).filter(|level| axis::drawable_on_log(*level)));
                        reasons.push(Reason { level, label, why, arm: &arm.name });
                    }
                }
            }
            lines.push(line);
            clean.lines.push(lines);
            clean.absent.push(absent);
        }
        clean.notes = notes(&reasons, view.arms.len());
        clean
    }
}

/// Why a point is absent.
struct Reason<'v> {
    level: f64,
    label: &'v str,
    why: String,
    arm: &'v str,
}

/// Returns the point as it can be drawn, or why it cannot.
fn placed(point: &Point) -> Result<Placed, String> {
    let (mean, interval) = match &point.shown {
        Shown::Absent { why } => return Err(why.clone()),
        Shown::Measured { mean, interval } => (*mean, *interval),
    };
    if !axis::drawable_on_log(point.level) {
        return Err("not on a logarithmic axis".to_owned());
    }
    if !axis::drawable(mean) {
        return Err("its mean is no finite number".to_owned());
    }
    let whisker = interval.filter(|(low, high)| axis::drawable(*low) && axis::drawable(*high));
    let whisker = whisker.map(|(low, high)| (low.min(high), low.max(high)));
    Ok(Placed { level: point.level, mean, whisker })
}

/// Returns the levels that other arms have and this one does not.
fn forgotten<'v>(
    view: &'v ThroughputChart,
    arm: &'v Arm,
) -> impl Iterator<Item = (f64, &'v str, Result<Placed, String>)> {
    let same = |one: &Point, other: &Point| one.level.total_cmp(&other.level).is_eq();
    let mut elsewhere: Vec<&Point> = view.arms.iter().flat_map(|arm| &arm.points).collect();
    elsewhere.sort_by(|one, other| one.level.total_cmp(&other.level));
    elsewhere.dedup_by(|one, other| same(one, other));
    elsewhere.retain(|point| !arm.points.iter().any(|own| same(own, point)));
    elsewhere.into_iter().map(|point| (point.level, point.label.as_str(), Err("no run".to_owned())))
}

/// Writes one note for each level and reason; arms are named unless it holds for all of them.
fn notes(reasons: &[Reason<'_>], arms: usize) -> Vec<String> {
    let mut sorted: Vec<&Reason<'_>> = reasons.iter().collect();
    sorted.sort_by(|one, other| one.level.total_cmp(&other.level).then_with(|| one.why.cmp(&other.why)));
    let same = |one: &&Reason<'_>, other: &&Reason<'_>| one.label == other.label && one.why == other.why;
    let note = |group: &[&Reason<'_>]| {
        let names: Vec<&str> = group.iter().map(|reason| reason.arm).collect();
        let of = if group.len() == arms { String::new() } else { format!(", {}", names.join(", ")) };
        format!("{}{of}: {}", group[0].label, group[0].why)
    };
    sorted.chunk_by(same).map(note).collect()
}

impl Layout {
    fn of(clean: &Clean<'_>, y_axis: &Axis, size: Size, empty: bool) -> Self {
        let width = size.width();
        let ticks = widest(y_axis.ticks().iter().map(|(_, label)| label.as_str()), SMALL_TEXT);
        let names = widest(clean.view.arms.iter().map(|arm| arm.name.as_str()), TEXT).min(width / 4);
        let (plot_left, plot_top) = (ticks + 10, 30);
        let labels = stack(clean.view.arms.len(), LABEL_LINE);
        let plot_height = if empty { 0 } else { (if size == Size::Wide { 260 } else { 200 }).max(labels) };
        let plot_bottom = plot_top + plot_height;
        let notes = note_lines(&clean.notes, width - 4);
        let notes_top = if empty { 28 } else { plot_bottom + BELOW + 4 };
        Self {
            width,
            height: notes_top + stack(notes.len(), NOTE_LINE) + 4,
            plot_top,
            plot_bottom,
            plot_left,
            plot_right: width - names - LABEL_GAP - MARK,
            notes,
            notes_top,
        }
    }

    /// Width in pixels that the name of an arm may take.
    fn name_width(&self) -> f64 {
        f64::from(self.width - self.plot_right - LABEL_GAP - MARK)
    }
}

fn draw_plot<'b>(
    canvas: &Canvas<'b>,
    clean: &Clean<'_>,
    layout: &Layout,
    x_axis: Axis,
    y_axis: Axis,
) -> Result<(), Box<dyn Error>> {
    let y_ticks = y_axis.ticks().to_vec();
    let mut plot: Plot<'_, 'b> = ChartBuilder::on(canvas)
        .margin_top(units(layout.plot_top))
        .margin_right(units(layout.width - layout.plot_right))
        .margin_bottom(units(layout.height - layout.plot_bottom - BELOW))
        .set_label_area_size(LabelAreaPosition::Left, units(layout.plot_left))
        .set_label_area_size(LabelAreaPosition::Bottom, units(BELOW))
        .build_cartesian_2d(x_axis, y_axis)?;
    plot.configure_mesh()
        .disable_x_mesh()
        .disable_y_axis()
        .bold_line_style(line_style(Role::Grid, 10))
        .light_line_style(TRANSPARENT)
        .axis_style(line_style(Role::Muted, 10))
        .label_style(text_style(SMALL_TEXT, Role::Muted, HPos::Center, VPos::Top))
        .set_all_tick_mark_size(units(4))
        .draw()?;
    // With its axis plotters leaves out the labels too.
    let beside = text_style(SMALL_TEXT, Role::Muted, HPos::Right, VPos::Center);
    for (value, label) in &y_ticks {
        let (x, y) = plot.backend_coord(&(plot.plotting_area().get_x_range().start, *value));
        canvas.draw_text(label, &beside, (x - units(8), y))?;
    }
    let named = text_style(SMALL_TEXT, Role::Muted, HPos::Left, VPos::Top);
    let y_label = svg::fitted(&clean.view.y_label, f64::from(layout.width - 4), SMALL_TEXT);
    canvas.draw_text(&y_label, &named, (units(2), units(4)))?;
    let middle = i32::midpoint(layout.plot_left, layout.plot_right);
    let x_label = svg::fitted(&clean.view.x_label, f64::from(2 * middle.min(layout.width - middle)), SMALL_TEXT);
    let centred = text_style(SMALL_TEXT, Role::Muted, HPos::Center, VPos::Top);
    canvas.draw_text(&x_label, &centred, (units(middle), units(layout.plot_bottom + 25)))?;
    for (series, lines) in clean.lines.iter().enumerate() {
        draw_lines(canvas, &mut plot, series, lines)?;
    }
    draw_absent(canvas, &plot, clean)?;
    draw_labels(canvas, &plot, clean, layout)
}

fn draw_lines<'b>(
    canvas: &Canvas<'b>,
    plot: &mut Plot<'_, 'b>,
    series: usize,
    lines: &[Vec<Placed>],
) -> Result<(), Box<dyn Error>> {
    let role = Role::Series(series);
    for line in lines {
        if line.len() > 1 {
            let points = line.iter().map(|point| (point.level, point.mean));
            plot.draw_series(LineSeries::new(points, line_style(role, 20)))?;
        }
        for point in line {
            draw_whisker(canvas, plot, series, point)?;
            draw_mark(canvas, series, plot.backend_coord(&(point.level, point.mean)), false)?;
        }
    }
    Ok(())
}

fn draw_whisker<'b>(
    canvas: &Canvas<'b>,
    plot: &Plot<'_, 'b>,
    series: usize,
    point: &Placed,
) -> Result<(), Box<dyn Error>> {
    let Some((low, high)) = point.whisker else { return Ok(()) };
    let style = line_style(Role::Series(series), 14);
    let ((x, bottom), (_, top)) = (plot.backend_coord(&(point.level, low)), plot.backend_coord(&(point.level, high)));
    canvas.draw(&PathElement::new(vec![(x, bottom), (x, top)], style))?;
    for y in [bottom, top] {
        canvas.draw(&PathElement::new(vec![(x - units(5), y), (x + units(5), y)], style))?;
    }
    Ok(())
}

/// Draws a cross above the axis for each planned point without a number, those of several arms above each other.
fn draw_absent<'b>(canvas: &Canvas<'b>, plot: &Plot<'_, 'b>, clean: &Clean<'_>) -> Result<(), Box<dyn Error>> {
    let mut taken: Vec<i32> = Vec::new();
    for (series, absent) in clean.absent.iter().enumerate() {
        for level in absent {
            let (x, y) = plot.backend_coord(&(*level, 0.0));
            let below = taken.iter().filter(|other| **other == x).count();
            taken.push(x);
            draw_cross(canvas, Role::Series(series), (x, y - units(9 + stack(below, 11))))?;
        }
    }
    Ok(())
}

/// Names each arm beside its last point.
fn draw_labels<'b>(
    canvas: &Canvas<'b>,
    plot: &Plot<'_, 'b>,
    clean: &Clean<'_>,
    layout: &Layout,
) -> Result<(), Box<dyn Error>> {
    let last = |lines: &Vec<Vec<Placed>>| {
        lines.iter().flatten().last().map(|point| plot.backend_coord(&(point.level, point.mean)))
    };
    let mut ends: Vec<(usize, (i32, i32))> =
        clean.lines.iter().enumerate().filter_map(|(series, lines)| Some((series, last(lines)?))).collect();
    ends.sort_by_key(|(_, (_, y))| *y);
    let heights: Vec<i32> = ends.iter().map(|(_, (_, y))| *y).collect();
    let half = units(LABEL_LINE) / 2;
    let heights = apart(&heights, units(LABEL_LINE), units(layout.plot_top) + half, units(layout.plot_bottom) - half);
    let left = units(layout.plot_right + LABEL_GAP);
    let style = text_style(TEXT, Role::Ink, HPos::Left, VPos::Center);
    for ((series, (x, y)), height) in ends.into_iter().zip(heights) {
        let (from, to) = (x + units(7), left - units(3));
        if (y - height).abs() > units(3) || to - from > units(30) {
            let leader = Role::Series(series).colour().mix(0.6).stroke_width(units(1) as u32);
            canvas.draw(&PathElement::new(vec![(from, y), (to, height)], leader))?;
        }
        draw_mark(canvas, series, (left + units(4), height), false)?;
        let name = svg::fitted(&clean.view.arms[series].name, layout.name_width(), TEXT);
        canvas.draw_text(&name, &style, (left + units(MARK), height))?;
    }
    Ok(())
}

/// Moves sorted places so that each is at least `gap` from the next and all stay between `low` and `high`, where they fit.
fn apart(places: &[i32], gap: i32, low: i32, high: i32) -> Vec<i32> {
    let mut moved: Vec<i32> = places.iter().map(|place| (*place).clamp(low, high.max(low))).collect();
    for index in 1..moved.len() {
        moved[index] = moved[index].max(moved[index - 1] + gap);
    }
    let mut limit = high;
    for place in moved.iter_mut().rev() {
        *place = (*place).min(limit);
        limit = *place - gap;
    }
    moved
}
