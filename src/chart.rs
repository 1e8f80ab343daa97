//! Charts of the findings book: a rate against the load, and the change at each condition.
//!
//! Invariant: every planned point is drawn or a note says why not; what has no number is shown without one; nothing is smoothed; a
//! value that is not finite never reaches the drawing. The same view gives the same bytes. The caller gives identifiers that are
//! unique in the page. Colours come from `templates/chart.css`.

mod axis;
mod effect;
mod svg;
mod throughput;

use std::error::Error;

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use svg::{Role, SCALE, SvgBackend};

pub use effect::{EffectChart, EffectRow, Interval, ShownEffect, effect};
pub use throughput::{Arm, Point, Shown, ThroughputChart, throughput};

/// plotters gave up; its reason.
#[derive(Debug, thiserror::Error)]
#[error("the chart cannot be drawn: {0}")]
pub struct ChartError(String);

/// How wide a chart is drawn. Text keeps its size, so a chart for a small screen is another chart, not a smaller one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Size {
    /// For a page: 700 pixels.
    Wide,
    /// For a telephone: 340 pixels.
    Narrow,
}

impl Size {
    fn width(self) -> i32 {
        match self {
            Self::Wide => 700,
            Self::Narrow => 340,
        }
    }

    fn suffix(self) -> &'static str {
        match self {
            Self::Wide => "wide",
            Self::Narrow => "narrow",
        }
    }
}

/// Draws a chart for both sizes, as HTML of which the style sheet shows the one that fits.
///
/// # Errors
///
/// As `draw`.
pub fn for_page(draw: impl Fn(Size) -> Result<String, ChartError>) -> Result<String, ChartError> {
    let (wide, narrow) = (draw(Size::Wide)?, draw(Size::Narrow)?);
    Ok(format!(
        "<div class=\"lb-chart-box\">\n<div class=\"lb-chart-wide\">\n{wide}</div>\n<div class=\"lb-chart-narrow\">\n{narrow}</div>\n</div>\n"
    ))
}

type Canvas<'b> = DrawingArea<SvgBackend<'b>, Shift>;

/// Size of text that names something, pixels.
const TEXT: f64 = 13.0;
/// Size of notes and of tick labels, pixels.
const SMALL_TEXT: f64 = 12.0;
/// Height of a line of notes, pixels.
const NOTE_LINE: i32 = 17;

/// Returns the room in pixels that the widest of these texts needs.
fn widest<'t>(texts: impl Iterator<Item = &'t str>, size: f64) -> i32 {
    texts.map(|text| svg::room(text, size)).fold(0.0, f64::max).ceil() as i32
}

/// Returns the height of `count` lines of `each` pixels.
fn stack(count: usize, each: i32) -> i32 {
    // A canvas of a hundred million pixels is beyond what its units can count.
    i32::try_from(count.min(1_000_000)).unwrap_or(0) * each
}

/// Converts pixels to units of the canvas.
fn units(pixels: i32) -> i32 {
    pixels * SCALE
}

fn text_style(size: f64, role: Role, across: HPos, down: VPos) -> TextStyle<'static> {
    let font = ("Helvetica", size * f64::from(SCALE)).into_font();
    let mut style = TextStyle::from(font).pos(Pos::new(across, down));
    style.color = role.colour().to_backend_color();
    style
}

fn line_style(role: Role, tenths: i32) -> ShapeStyle {
    role.colour().stroke_width((SCALE * tenths / 10) as u32)
}

/// Draws with plotters on a canvas of `width` × `height` pixels and returns the elements.
fn drawn(
    (width, height): (i32, i32),
    draw: impl for<'b> FnOnce(&Canvas<'b>) -> Result<(), Box<dyn Error>>,
) -> Result<String, ChartError> {
    let mut body = String::new();
    let canvas = SvgBackend::new(&mut body, width as u32, height as u32).into_drawing_area();
    let outcome = draw(&canvas).map_err(|error| ChartError(error.to_string()));
    drop(canvas);
    outcome.map(|()| body)
}

/// Draws lines of notes below `top`.
fn draw_notes(canvas: &Canvas<'_>, notes: &[String], left: i32, top: i32) -> Result<(), Box<dyn Error>> {
    let style = text_style(SMALL_TEXT, Role::Muted, HPos::Left, VPos::Top);
    for (index, note) in (0..).zip(notes) {
        canvas.draw_text(note, &style, (units(left), units(top + index * NOTE_LINE)))?;
    }
    Ok(())
}

/// Says that there is nothing to draw.
fn draw_nothing(canvas: &Canvas<'_>) -> Result<(), Box<dyn Error>> {
    let style = text_style(TEXT, Role::Muted, HPos::Left, VPos::Top);
    canvas.draw_text("No number to draw.", &style, (units(2), units(4)))?;
    Ok(())
}

/// Breaks notes into lines for a width.
fn note_lines(notes: &[String], width: i32) -> Vec<String> {
    notes.iter().flat_map(|note| svg::wrapped(note, f64::from(width), SMALL_TEXT)).collect()
}

/// Draws the mark of a series at a place of the canvas; hollow ones stand on too little for a verdict.
fn draw_mark(canvas: &Canvas<'_>, series: usize, (x, y): (i32, i32), hollow: bool) -> Result<(), Box<dyn Error>> {
    let radius = units(4);
    let corners: Vec<(i32, i32)> = match series % 4 {
        1 => vec![(-7, -7), (7, -7), (7, 7), (-7, 7)],
        2 => vec![(0, -11), (11, 0), (0, 11), (-11, 0)],
        3 => vec![(0, -10), (10, 8), (-10, 8)],
        _ => Vec::new(),
    };
    let at = |(across, down): &(i32, i32)| (x + across * radius / 8, y + down * radius / 8);
    let mut outline: Vec<(i32, i32)> = corners.iter().map(at).collect();
    let (filled, stroke) = (Role::Series(series).colour().filled(), line_style(Role::Series(series), 16));
    match (outline.first().copied(), hollow) {
        (None, false) => canvas.draw(&Circle::new((x, y), radius, filled))?,
        (None, true) => canvas.draw(&Circle::new((x, y), radius, stroke))?,
        (Some(_), false) => canvas.draw(&Polygon::new(outline, filled))?,
        (Some(first), true) => {
            outline.push(first);
            canvas.draw(&PathElement::new(outline, stroke))?;
        }
    }
    Ok(())
}

/// Draws the cross that stands for a planned point without a number.
fn draw_cross(canvas: &Canvas<'_>, role: Role, (x, y): (i32, i32)) -> Result<(), Box<dyn Error>> {
    let arm = units(7) / 2;
    let style = line_style(role, 16);
    canvas.draw(&PathElement::new(vec![(x - arm, y - arm), (x + arm, y + arm)], style))?;
    canvas.draw(&PathElement::new(vec![(x - arm, y + arm), (x + arm, y - arm)], style))?;
    Ok(())
}

#[cfg(test)]
mod tests;
