//! Axes that plotters may be given: every bound is finite, no range is empty or reversed, and the ticks are counted beforehand.
//!
//! Invariant: an [`Axis`] comes from one of the constructors below, which accept any number; plotters hangs on an infinite range.

use std::ops::Range;

use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};

/// Largest magnitude that is drawn; nothing that is measured comes near it.
const LARGEST: f64 = 1e12;
/// Smallest span of a linear axis.
const SMALLEST_SPAN: f64 = 1e-6;

/// One axis with its ticks.
#[derive(Debug, Clone)]
pub(super) struct Axis {
    low: f64,
    high: f64,
    logarithmic: bool,
    ticks: Vec<(f64, String)>,
}

/// Returns whether a value can be placed on a linear axis.
pub(super) fn drawable(value: f64) -> bool {
    value.is_finite() && value.abs() <= LARGEST
}

/// Returns whether a value can be placed on a logarithmic axis.
pub(super) fn drawable_on_log(value: f64) -> bool {
    drawable(value) && value >= 1.0 / LARGEST
}

impl Axis {
    /// From zero, or below it if values are, to a tick at or above the highest value.
    pub(super) fn from_zero(values: impl IntoIterator<Item = f64>, ticks: u32) -> Self {
        let (low, high) = bounds(values);
        let step = step((high - low) / f64::from(ticks.max(1)));
        let (low, high) = ((low / step).floor() * step, (high / step).ceil() * step);
        Self { low, high, logarithmic: false, ticks: linear_ticks(low, high, step, "") }
    }

    /// Around zero, with some room at both ends; positive ticks have their sign.
    pub(super) fn around_zero(values: impl IntoIterator<Item = f64>, ticks: u32) -> Self {
        let (low, high) = bounds(values);
        let room = (high - low) * 0.06;
        let (low, high) = (low - room, high + room);
        let step = step((high - low) / f64::from(ticks.max(1)));
        Self { low, high, logarithmic: false, ticks: linear_ticks(low, high, step, "+") }
    }

    /// Powers of two apart, from the smallest to the largest positive value, a tick at each of them.
    pub(super) fn log2(values: impl IntoIterator<Item = f64>) -> Self {
        let mut values: Vec<f64> = values.into_iter().filter(|value| drawable_on_log(*value)).collect();
        values.sort_by(f64::total_cmp);
        values.dedup();
        let (first, last) = (values.first().copied().unwrap_or(1.0), values.last().copied().unwrap_or(1.0));
        let room = ((last / first).log2() * 0.04).max(0.1).exp2();
        let ticks = values.into_iter().map(|value| (value, value.to_string())).collect();
        Self { low: first / room, high: last * room, logarithmic: true, ticks }
    }

    /// `count` rows; the first is at `count - 1`, so that it is drawn at the top.
    pub(super) fn rows(count: usize) -> Self {
        Self { low: -0.5, high: count.max(1) as f64 - 0.5, logarithmic: false, ticks: Vec::new() }
    }

    /// Returns the ticks and their labels.
    pub(super) fn ticks(&self) -> &[(f64, String)] {
        &self.ticks
    }

    /// Removes labels that would touch their right neighbour: `widths` of them and of the axis, with the gap, in one unit.
    pub(super) fn thin_labels(&mut self, length: f64, gap: f64, width: impl Fn(&str) -> f64) {
        let mut free_until = f64::INFINITY;
        let places: Vec<f64> = self.ticks.iter().map(|(value, _)| self.fraction(*value) * length).collect();
        for ((_, label), place) in self.ticks.iter_mut().zip(places).rev() {
            let half = width(label) / 2.0;
            if place + half > free_until {
                label.clear();
            } else {
                free_until = place - half - gap;
            }
        }
    }

    fn fraction(&self, value: f64) -> f64 {
        let scaled = |value: f64| if self.logarithmic { value.log2() } else { value };
        let (low, high) = (scaled(self.low), scaled(self.high));
        ((scaled(value) - low) / (high - low)).clamp(0.0, 1.0)
    }
}

impl Ranged for Axis {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        limit.0 + (self.fraction(*value) * f64::from(limit.1 - limit.0)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, _: Hint) -> Vec<f64> {
        self.ticks.iter().map(|(value, _)| *value).collect()
    }

    fn range(&self) -> Range<f64> {
        self.low..self.high
    }
}

impl ValueFormatter<f64> for Axis {
    fn format_ext(&self, value: &f64) -> String {
        let tick = self.ticks.iter().find(|(at, _)| at.to_bits() == value.to_bits());
        tick.map_or_else(String::new, |(_, label)| label.clone())
    }
}

/// Returns the ends of the drawable values and zero, a little apart in any case.
fn bounds(values: impl IntoIterator<Item = f64>) -> (f64, f64) {
    let ends = |(low, high): (f64, f64), value: f64| (low.min(value), high.max(value));
    let (low, high) = values.into_iter().filter(|value| drawable(*value)).fold((0.0, 0.0), ends);
    if high - low < SMALLEST_SPAN { (low, low + 1.0) } else { (low, high) }
}

/// Rounds a step up to 1, 2 or 5 times a power of ten.
fn step(rough: f64) -> f64 {
    let power = 10f64.powi(rough.log10().floor() as i32);
    let nice = [1.0, 2.0, 5.0].into_iter().find(|factor| factor * power >= rough * (1.0 - 1e-9));
    nice.unwrap_or(10.0) * power
}

fn linear_ticks(low: f64, high: f64, step: f64, sign: &str) -> Vec<(f64, String)> {
    let decimals = (-step.log10().floor()).max(0.0) as usize;
    let first = (low / step - 1e-9).ceil() as i64;
    let last = (high / step + 1e-9).floor() as i64;
    let label = |count: i64, value: f64| match count {
        0 => "0".to_owned(),
        _ if step >= 1e6 => format!("{value:e}").replace('-', "−"),
        1.. => format!("{sign}{value:.decimals$}"),
        _ => format!("−{:.decimals$}", value.abs()),
    };
    (first..=last).map(|count| (count as f64 * step, label(count, count as f64 * step))).collect()
}
