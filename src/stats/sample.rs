//! What one set of values looks like: percentiles and their intervals, outliers, two modes.
//!
//! Invariant: nothing is ever deleted here; a flag is a flag. Sources: order-statistic intervals (David & Nagaraja, *Order
//! Statistics*, section 7.1); the median absolute deviation rule (Iglewicz & Hoaglin 1993; the severe fence is hyperfine's).

use super::distribution::binomial_cdf;
use super::{Moments, StatisticsError, at_least, in_open, in_range, mean_of, tail_of};

/// The largest gap says nothing below this many values: 27 % of normal samples of 6 have one above half their range.
pub const SMALLEST_N_FOR_MODES: usize = 10;

/// A gap above this share of the range separates two modes.
const MODES_SHARE: f64 = 0.5;

/// Scales the median absolute deviation to the standard deviation of normal values.
const MAD_TO_SD: f64 = 1.4826;

/// Returns the arithmetic mean of at least one value.
pub fn mean(values: &[f64]) -> Result<f64, StatisticsError> {
    at_least(1, values)?;
    let mean = mean_of(values);
    in_range(&[mean]).map(|()| mean)
}

/// Returns the sample standard deviation (divisor n − 1) of at least two values.
pub fn sample_sd(values: &[f64]) -> Result<f64, StatisticsError> {
    at_least(2, values)?;
    let sd = Moments::of(values.iter().copied()).sd;
    in_range(&[sd]).map(|()| sd)
}

/// Returns the median of at least one value; of an even number, the mean of the middle two.
pub fn median(values: &[f64]) -> Result<f64, StatisticsError> {
    at_least(1, values)?;
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    Ok(median_of_sorted(&sorted))
}

fn median_of_sorted(sorted: &[f64]) -> f64 {
    let middle = sorted.len() / 2;
    if sorted.len().is_multiple_of(2) { f64::midpoint(sorted[middle - 1], sorted[middle]) } else { sorted[middle] }
}

/// How far from the median a value must lie to be flagged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fence {
    /// 3.5 · 1.4826 · MAD; never among fewer than 5 values.
    Flagged,
    /// 14.826 · MAD, whatever the number of values.
    Severe,
}

/// Returns the places of the values beyond the fence, ascending. Where more than half of the values are equal (MAD 0) every
/// other one is flagged, differences of rounding aside. Empty input has none.
pub fn outliers(values: &[f64], fence: Fence) -> Result<Vec<usize>, StatisticsError> {
    at_least(0, values)?;
    let (factor, needed) = match fence {
        Fence::Flagged => (3.5 * MAD_TO_SD, 5),
        Fence::Severe => (10.0 * MAD_TO_SD, 1),
    };
    if values.len() < needed {
        return Ok(vec![]);
    }
    let middle = median(values)?;
    let deviations: Vec<f64> = values.iter().map(|value| (value - middle).abs()).collect();
    let allowed = (factor * median(&deviations)?).max(1e-12 * middle.abs());
    Ok((0..values.len()).filter(|at| deviations[*at] > allowed).collect())
}

/// The largest gap between neighbours of the sorted values.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LargestGap {
    /// The gap.
    pub gap: f64,
    /// The gap over the range; 0 when all values are equal.
    pub share: f64,
    /// How many values lie below it.
    pub below: usize,
    /// Whether that makes two modes: above half of the range, among at least 10 values.
    pub two_modes: bool,
}

/// Returns the largest gap of at least two values (STATISTICS 5.5); of equal gaps, the lowest.
pub fn largest_gap(values: &[f64]) -> Result<LargestGap, StatisticsError> {
    at_least(2, values)?;
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let range = sorted[sorted.len() - 1] - sorted[0];
    let (mut gap, mut below) = (0.0, 0);
    for (at, pair) in sorted.windows(2).enumerate() {
        if pair[1] - pair[0] > gap {
            (gap, below) = (pair[1] - pair[0], at + 1);
        }
    }
    in_range(&[range])?;
    let share = if range > 0.0 { gap / range } else { 0.0 };
    let two_modes = share > MODES_SHARE && values.len() >= SMALLEST_N_FOR_MODES;
    Ok(LargestGap { gap, share, below, two_modes })
}

/// Returns the 1-based order statistics (l, u) with `P(x_(l) ≤ x_q < x_(u)) ≥ confidence` and equal tails, whatever the
/// distribution; `None` for an end that n values cannot give.
///
/// # Errors
/// A `quantile` or `confidence` that is not between 0 and 1, or no values.
pub fn percentile_interval_orders(
    n: u64,
    quantile: f64,
    confidence: f64,
) -> Result<(Option<u64>, Option<u64>), StatisticsError> {
    let tail = tail_of(confidence)?;
    let quantile = in_open("quantile", quantile, 1.0, "a share between 0 and 1")?;
    if n == 0 {
        return Err(StatisticsError::TooFew { found: 0, needed: 1 });
    }
    // The largest l with P(X ≤ l−1) ≤ tail, and the smallest u with P(X ≤ u−1) ≥ 1 − tail.
    let low = (1..=n).first_that(|l| binomial_cdf(l - 1, n, quantile) > tail).unwrap_or(n + 1) - 1;
    let high = (1..=n).first_that(|u| binomial_cdf(u - 1, n, quantile) >= 1.0 - tail);
    Ok(((low > 0).then_some(low), high))
}

/// Finding the first number of a range from which on a condition holds, by halving.
trait FirstThat {
    fn first_that(self, holds: impl Fn(u64) -> bool) -> Option<u64>;
}

impl FirstThat for std::ops::RangeInclusive<u64> {
    fn first_that(self, holds: impl Fn(u64) -> bool) -> Option<u64> {
        let (mut low, mut high) = (*self.start(), *self.end() + 1);
        while low < high {
            let middle = low + (high - low) / 2;
            if holds(middle) { high = middle } else { low = middle + 1 }
        }
        (low <= *self.end()).then_some(low)
    }
}

/// Returns the fewest values for a two-sided distribution-free interval of a quantile: below it the reported percentile is
/// essentially the maximum (95 %: p50 6, p90 36, p95 72, p99 368, p99.9 3688).
pub fn minimum_n(quantile: f64, confidence: f64) -> Result<u64, StatisticsError> {
    let quantile = in_open("quantile", quantile, 1.0, "a share between 0 and 1")?;
    Ok((tail_of(confidence)?.ln() / quantile.max(1.0 - quantile).ln()).ceil() as u64)
}

/// Returns the fewest values that show, with the given confidence, that a quantile lies below a bound which `over` of them
/// exceed: the smallest n with P(X ≤ over) ≤ 1 − confidence for X ~ Binomial(n, 1 − quantile) (`LoadGen`'s rule).
pub fn minimum_n_above(quantile: f64, confidence: f64, over: u64) -> Result<u64, StatisticsError> {
    let quantile = in_open("quantile", quantile, 1.0, "a share between 0 and 1")?;
    let allowed = 2.0 * tail_of(confidence)?;
    let enough = |n: u64| binomial_cdf(over, n, 1.0 - quantile) <= allowed;
    let mut most = (over + 1).max(2);
    while !enough(most) {
        most = most.checked_mul(2).ok_or(StatisticsError::Overflow)?;
    }
    Ok((over + 1..=most).first_that(enough).unwrap_or(most))
}
