//! What may be concluded from few launches: mathematics only.
//!
//! The unit is the block: one value of each arm, one server launch each, measured back to back. Everything here works on the
//! values of blocks in one order (`control[b]` and `treatment[b]` are of one block), so that what drifts between blocks cancels.
//! Ratios are treatment / control.
//!
//! Invariant: no function returns NaN, and none guesses: input on which a method is not defined is a [`StatisticsError`].
//! Exchanging the arms inverts every ratio and interval.
//!
//! Sources: Fieller, *Some Problems in Interval Estimation*, JRSS B 16 (1954); Kalibera & Jones, *Rigorous Benchmarking in
//! Reasonable Time*, ISMM 2013, and *Quantifying Performance Changes with Effect Size Confidence Intervals*, arXiv 2007.10899;
//! Holm, Scand. J. Statist. 6 (1979); Benjamini & Hochberg, JRSS B 57 (1995); Schuirmann, J. Pharmacokinet. Biopharm. 15 (1987).

mod components;
mod distribution;
mod multiplicity;
mod planning;
#[cfg(test)]
mod rivals;
mod sample;
#[cfg(test)]
mod tests;

pub use components::{
    Component, MeanInterval, OrderEffect, Repeats, mean_interval, optimal_repeats, order_effect, variance_components,
    without_block_means,
};
pub use multiplicity::{benjamini_hochberg, holm};
pub use planning::{
    MOST_BLOCKS, blocks_for_half_width, blocks_for_power, half_width, minimum_detectable_effect, noise_floor, power,
    sd_upper_bound,
};
pub use sample::{
    Fence, LargestGap, SMALLEST_N_FOR_MODES, largest_gap, mean, median, minimum_n, minimum_n_above, outliers,
    percentile_interval_orders, sample_sd,
};

use distribution::{t_survival, t_two_sided, t_upper_quantile};

/// Input on which a method is not defined.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub enum StatisticsError {
    /// Not enough values.
    #[error("{found} values, but the method needs at least {needed}")]
    TooFew {
        /// How many there are.
        found: usize,
        /// How many it takes.
        needed: usize,
    },
    /// The two lists are not of the same blocks.
    #[error("{control} values of the control and {treatment} of the treatment cannot be paired")]
    Unpaired {
        /// Values of the control.
        control: usize,
        /// Values of the treatment.
        treatment: usize,
    },
    /// A value is infinite or not a number.
    #[error("a value is {0}, expected a finite number")]
    NotFinite(f64),
    /// A ratio needs values above 0.
    #[error("a value is {0}, expected one above 0: a ratio has no meaning there")]
    NotPositive(f64),
    /// A parameter is outside of its range.
    #[error("`{name}` is {value}, expected {expected}")]
    OutOfRange {
        /// The parameter.
        name: &'static str,
        /// What it is.
        value: f64,
        /// What it may be.
        expected: &'static str,
    },
    /// The interval of a ratio has no end: a mean cannot be told from 0 (g ≥ 1).
    #[error("the interval of the ratio is unbounded: a mean cannot be told from 0 (g = {g})")]
    Unbounded {
        /// Fieller's g = q²·v/x̄² of the arm in question.
        g: f64,
    },
    /// All blocks ran in one order, so an effect of the order cannot be told from one of the arms.
    #[error("all blocks ran in the same order, so its effect cannot be told from that of the arms")]
    OneOrder,
    /// The result leaves the range of floating-point numbers.
    #[error("the values are too large or too small to compute with")]
    Overflow,
}

/// Confidence of the intervals shown beside a number.
pub const CONFIDENCE: f64 = 0.95;

/// Two intervals that differ by more than this share of their width make a [`skewed`] effect.
pub const SKEWED_SHARE: f64 = 0.10;

/// Ratio of the means of paired blocks, with Fieller's interval.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Fieller {
    /// ȳ / x̄.
    pub ratio: f64,
    /// Lower end of the interval.
    pub low: f64,
    /// Upper end.
    pub high: f64,
    /// `q²·v_xx/x̄²`: how near the control's mean is to being indistinguishable from 0 (valid below 1).
    pub g: f64,
    /// Number of blocks.
    pub blocks: usize,
    /// Paired t of the differences; infinite when they are all equal and not 0.
    pub t: f64,
    /// Its two-sided p: the test of a ratio of 1.
    pub p: f64,
}

/// Geometric mean of the ratios of paired blocks, with the t interval of their logarithms.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LogRatio {
    /// exp d̄.
    pub ratio: f64,
    /// Lower end of the interval.
    pub low: f64,
    /// Upper end.
    pub high: f64,
    /// Number of blocks.
    pub blocks: usize,
    /// d̄, the mean log ratio.
    pub mean_log: f64,
    /// `s_d`, the sample standard deviation of the log ratios.
    pub sd_log: f64,
    /// `d̄ / (s_d/√B)`; infinite when the ratios are all equal and not 1.
    pub t: f64,
    /// Its two-sided p.
    pub p: f64,
}

/// A t test.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TTest {
    /// The statistic.
    pub t: f64,
    /// Degrees of freedom.
    pub df: usize,
    /// Two-sided p.
    pub p: f64,
}

/// Two one-sided tests of "no change within δ".
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Equivalence {
    /// p of the null that the ratio is 1/(1+δ) or less; a small one shows *not lower*.
    pub p_lower: f64,
    /// p of the null that the ratio is 1+δ or more; a small one shows *not higher*.
    pub p_upper: f64,
    /// The larger of the two; below α the arms are equivalent within δ.
    pub p: f64,
    /// Lower end of the interval of confidence 1−2α.
    pub low: f64,
    /// Upper end.
    pub high: f64,
    /// Whether p < α, which is whether that interval lies inside (1/(1+δ), 1+δ).
    pub equivalent: bool,
}

/// Which direction a claim is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// The treatment's values are larger.
    Higher,
    /// The treatment's values are smaller.
    Lower,
}

/// A test of "at least δ better".
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Superiority {
    /// `(d̄ ∓ ln(1+δ)) / (s_d/√B)`, positive in the claim's direction.
    pub t: f64,
    /// One-sided p, to be compared with α/2.
    pub p_one_sided: f64,
    /// Twice that, at most 1: what stands beside two-sided p values in a family.
    pub p: f64,
}

/// Ratio of two independent sets of launches.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct UnpairedRatio {
    /// ȳ / x̄.
    pub ratio: f64,
    /// Lower end of the interval.
    pub low: f64,
    /// Upper end.
    pub high: f64,
}

/// Returns the ratio of means of paired blocks with Fieller's interval, and the paired t test of a ratio of 1
/// (STATISTICS 5.4, *primary*; Fieller 1954).
///
/// At least 2 blocks of positive values. Constant differences that are not 0 have an infinite t and p = 0; equal arms have
/// t = 0 and p = 1. Blocks that do not vary at all give an interval of width 0.
///
/// # Errors
/// [`StatisticsError::Unbounded`] when either mean cannot be told from 0, so that exchanging the arms fails alike.
pub fn paired_fieller(control: &[f64], treatment: &[f64], confidence: f64) -> Result<Fieller, StatisticsError> {
    let blocks = positive_pairs(control, treatment)?;
    let df = blocks as f64 - 1.0;
    let q = t_upper_quantile(tail_of(confidence)?, df);
    let (x, y) = (mean_of(control), mean_of(treatment));
    let (mut sxx, mut syy, mut sxy, mut suu) = (0.0, 0.0, 0.0, 0.0);
    for (one, two) in control.iter().zip(treatment) {
        let (dx, dy) = (one / x - 1.0, two / y - 1.0);
        sxx += dx * dx;
        syy += dy * dy;
        sxy += dx * dy;
        suu += (dy - dx) * (dy - dx);
    }
    // Variances of the means, in units of the means, so that nothing large cancels.
    let scale = df * (df + 1.0);
    let (vxx, vyy, vxy, vuu) = (sxx / scale, syy / scale, sxy / scale, suu / scale);
    // Fieller's a, m and c, in units of x̄², x̄ȳ and ȳ².
    let (lead, middle, last) = (1.0 - q * q * vxx, 1.0 - q * q * vxy, 1.0 - q * q * vyy);
    if lead <= 0.0 || last <= 0.0 {
        return Err(StatisticsError::Unbounded { g: q * q * vxx.max(vyy) });
    }
    // m² − ac, written so that it cannot lose its digits: q²·var(ȳ/y − x̄/x) − q⁴·(v_xx·v_yy − v_xy²).
    let root = (q * q * vuu - q.powi(4) * (vxx * vyy - vxy * vxy)).max(0.0).sqrt();
    let test = paired_t(control, treatment)?;
    let ratio = y / x;
    // The two roots' product is c/a: the smaller follows from the larger without a difference.
    let larger = middle + root;
    let found = Fieller {
        ratio,
        low: ratio * last / larger,
        high: ratio * larger / lead,
        g: q * q * vxx,
        blocks,
        t: test.t,
        p: test.p,
    };
    representable(&[found.ratio, found.low, found.high]).map(|()| found)
}

/// Returns the paired t test of equal means, df = blocks − 1.
///
/// Constant differences that are not 0 have an infinite t and p = 0; equal arms have t = 0 and p = 1. Allocates nothing.
pub fn paired_t(control: &[f64], treatment: &[f64]) -> Result<TTest, StatisticsError> {
    let blocks = pairs(control, treatment)?;
    let differences = || control.iter().zip(treatment).map(|(control, treatment)| treatment - control);
    let moments = Moments::of(differences());
    in_range(&[moments.mean, moments.sd])?;
    let t = moments.t(0.0);
    Ok(TTest { t, df: blocks - 1, p: t_two_sided(t, blocks as f64 - 1.0) })
}

/// Returns the geometric mean ratio of paired blocks with the t interval of the log ratios (STATISTICS 5.4, *cross-check*).
///
/// At least 2 blocks of positive values; degenerate differences as in [`paired_t`].
pub fn paired_log_ratio(control: &[f64], treatment: &[f64], confidence: f64) -> Result<LogRatio, StatisticsError> {
    positive_pairs(control, treatment)?;
    log_ratio_of(Moments::of(log_ratios(control, treatment)), confidence)
}

/// Returns whether the two intervals of one effect differ by more than 10 % of their width (the mean of the two): then both
/// are shown. Two intervals of width 0 are skewed when they differ at all beyond rounding.
pub fn skewed(fieller: &Fieller, log_ratio: &LogRatio) -> bool {
    let apart = (fieller.low - log_ratio.low).abs().max((fieller.high - log_ratio.high).abs());
    let width = 0.5 * ((fieller.high - fieller.low) + (log_ratio.high - log_ratio.low));
    apart > SKEWED_SHARE * width && apart > 1e-12 * fieller.ratio
}

/// Returns the geometric mean over levels of the paired ratio: paired t on `g_b`, the mean
/// over levels of `d_{b,c}`
/// (STATISTICS 5.4, *family*: the headline).
///
/// `levels` holds (control, treatment) of each level over the same blocks; a block that lost a level must be left out of all.
pub fn geometric_mean_over_levels(levels: &[(&[f64], &[f64])], confidence: f64) -> Result<LogRatio, StatisticsError> {
    let Some((first, _)) = levels.first() else { return Err(StatisticsError::TooFew { found: 0, needed: 1 }) };
    let mut sums = vec![0.0; first.len()];
    for (control, treatment) in levels {
        positive_pairs(control, treatment)?;
        if control.len() != sums.len() {
            return Err(StatisticsError::Unpaired { control: sums.len(), treatment: control.len() });
        }
        for (sum, log) in sums.iter_mut().zip(log_ratios(control, treatment)) {
            *sum += log;
        }
    }
    log_ratio_of(Moments::of(sums.iter().map(|sum| sum / levels.len() as f64)), confidence)
}

/// Returns the two one-sided tests of equivalence within `margin` on the log ratio, at level `alpha` (Schuirmann 1987):
/// equivalent when the interval of confidence 1−2α lies inside (1/(1+δ), 1+δ).
///
/// Log ratios that do not vary have p = 0 inside the margin, 1 outside, and 0.5 exactly on it.
pub fn equivalence(
    control: &[f64],
    treatment: &[f64],
    margin: f64,
    alpha: f64,
) -> Result<Equivalence, StatisticsError> {
    positive_pairs(control, treatment)?;
    let delta = ln_margin(margin)?;
    let df = control.len() as f64 - 1.0;
    let moments = Moments::of(log_ratios(control, treatment));
    in_range(&[moments.mean, moments.sd])?;
    let p_lower = t_survival(moments.t(-delta), df);
    let p_upper = t_survival(-moments.t(delta), df);
    let p = p_lower.max(p_upper);
    let interval = log_ratio_of(moments, 1.0 - 2.0 * in_open("alpha", alpha, 0.5, "a share between 0 and 0.5")?)?;
    Ok(Equivalence { p_lower, p_upper, p, low: interval.low, high: interval.high, equivalent: p < alpha })
}

/// Returns the p of the null that the treatment is lower by the margin or more (ratio ≤ 1/(1+δ)): a small one shows that it
/// is *not lower*. One side of [`equivalence`].
pub fn p_not_lower(control: &[f64], treatment: &[f64], margin: f64) -> Result<f64, StatisticsError> {
    equivalence(control, treatment, margin, 0.05).map(|tests| tests.p_lower)
}

/// Returns the p of the null that the treatment is higher by the margin or more (ratio ≥ 1+δ): a small one shows that it is
/// *not higher*. One side of [`equivalence`].
pub fn p_not_higher(control: &[f64], treatment: &[f64], margin: f64) -> Result<f64, StatisticsError> {
    equivalence(control, treatment, margin, 0.05).map(|tests| tests.p_upper)
}

/// Returns the test of "at least `by` better" on the log ratio: the null is ratio ≤ 1+δ for [`Direction::Higher`] and
/// ratio ≥ 1/(1+δ) for [`Direction::Lower`] (STATISTICS 5.4, *minimum effect*). It agrees with the end of the log-ratio interval.
pub fn at_least_better(
    control: &[f64],
    treatment: &[f64],
    by: f64,
    direction: Direction,
) -> Result<Superiority, StatisticsError> {
    positive_pairs(control, treatment)?;
    let delta = ln_margin(by)?;
    let moments = Moments::of(log_ratios(control, treatment));
    in_range(&[moments.mean, moments.sd])?;
    let t = match direction {
        Direction::Higher => moments.t(delta),
        Direction::Lower => -moments.t(-delta),
    };
    let p_one_sided = t_survival(t, control.len() as f64 - 1.0);
    Ok(Superiority { t, p_one_sided, p: (2.0 * p_one_sided).min(1.0) })
}

/// Returns the ratio of two independent sets of launch means, for data without blocks (Kalibera & Jones 2013, section 8):
/// Fieller's interval without covariance and with each side's own q. Pages say "unpaired".
pub fn kalibera_jones_ratio(
    control: &[f64],
    treatment: &[f64],
    confidence: f64,
) -> Result<UnpairedRatio, StatisticsError> {
    let tail = tail_of(confidence)?;
    let side = |values: &[f64]| -> Result<(f64, f64), StatisticsError> {
        positive(values)?;
        let moments = Moments::of(values.iter().copied());
        in_range(&[moments.mean, moments.sd])?;
        let h = t_upper_quantile(tail, values.len() as f64 - 1.0) * moments.standard_error() / moments.mean;
        Ok((moments.mean, h * h))
    };
    let ((x, gx), (y, gy)) = (side(control)?, side(treatment)?);
    if gx >= 1.0 || gy >= 1.0 {
        return Err(StatisticsError::Unbounded { g: gx.max(gy) });
    }
    let (a, c) = (1.0 - gx, 1.0 - gy);
    let root = (gx + gy - gx * gy).sqrt();
    let ratio = y / x;
    let found = UnpairedRatio { ratio, low: ratio * c / (1.0 + root), high: ratio * (1.0 + root) / a };
    representable(&[found.ratio, found.low, found.high]).map(|()| found)
}

fn log_ratio_of(moments: Moments, confidence: f64) -> Result<LogRatio, StatisticsError> {
    let df = moments.n as f64 - 1.0;
    let half = t_upper_quantile(tail_of(confidence)?, df) * moments.standard_error();
    in_range(&[moments.mean, moments.sd, half])?;
    let t = moments.t(0.0);
    let found = LogRatio {
        ratio: moments.mean.exp(),
        low: (moments.mean - half).exp(),
        high: (moments.mean + half).exp(),
        blocks: moments.n,
        mean_log: moments.mean,
        sd_log: moments.sd,
        t,
        p: t_two_sided(t, df),
    };
    representable(&[found.ratio, found.low, found.high]).map(|()| found)
}

/// ln T − ln A, and not ln(T/A): then exchanging the arms changes the sign and nothing else.
fn log_ratios<'a>(control: &'a [f64], treatment: &'a [f64]) -> impl Iterator<Item = f64> + Clone + 'a {
    control.iter().zip(treatment).map(|(control, treatment)| treatment.ln() - control.ln())
}

/// Mean and sample standard deviation of n ≥ 2 values.
#[derive(Debug, Clone, Copy)]
struct Moments {
    n: usize,
    mean: f64,
    sd: f64,
}

impl Moments {
    /// Two passes over the values, nothing allocated.
    fn of(values: impl Iterator<Item = f64> + Clone) -> Self {
        let (n, sum) = values.clone().fold((0_usize, 0.0), |(n, sum), value| (n + 1, sum + value));
        let mean = sum / n as f64;
        let squares: f64 = values.map(|value| (value - mean) * (value - mean)).sum();
        Self { n, mean, sd: (squares / (n as f64 - 1.0)).sqrt() }
    }

    fn standard_error(&self) -> f64 {
        self.sd / (self.n as f64).sqrt()
    }

    /// Returns (mean − null) / standard error. Where nothing varies: infinite with the sign of the difference, 0 on the null.
    fn t(&self, null: f64) -> f64 {
        let away = self.mean - null;
        if away == 0.0 {
            0.0
        } else if self.sd > 0.0 {
            away / self.standard_error()
        } else {
            away.signum() * f64::INFINITY
        }
    }
}

fn mean_of(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// Checks that values can be paired; returns how many blocks there are.
fn pairs(control: &[f64], treatment: &[f64]) -> Result<usize, StatisticsError> {
    if control.len() != treatment.len() {
        return Err(StatisticsError::Unpaired { control: control.len(), treatment: treatment.len() });
    }
    at_least(2, control)?;
    finite(treatment)?;
    Ok(control.len())
}

fn positive_pairs(control: &[f64], treatment: &[f64]) -> Result<usize, StatisticsError> {
    let blocks = pairs(control, treatment)?;
    positive(control)?;
    positive(treatment)?;
    Ok(blocks)
}

/// Checks for at least two positive values.
fn positive(values: &[f64]) -> Result<(), StatisticsError> {
    at_least(2, values)?;
    values.iter().find(|value| **value <= 0.0).map_or(Ok(()), |value| Err(StatisticsError::NotPositive(*value)))
}

/// Checks for at least `needed` finite values.
fn at_least(needed: usize, values: &[f64]) -> Result<(), StatisticsError> {
    if values.len() < needed {
        return Err(StatisticsError::TooFew { found: values.len(), needed });
    }
    finite(values)
}

fn finite(values: &[f64]) -> Result<(), StatisticsError> {
    values.iter().find(|value| !value.is_finite()).map_or(Ok(()), |value| Err(StatisticsError::NotFinite(*value)))
}

/// Checks that arithmetic on finite input stayed finite.
fn in_range(results: &[f64]) -> Result<(), StatisticsError> {
    if results.iter().all(|result| result.is_finite()) { Ok(()) } else { Err(StatisticsError::Overflow) }
}

/// Checks that a ratio and its ends did not leave the range of numbers, at either end of it.
fn representable(ratios: &[f64]) -> Result<(), StatisticsError> {
    if ratios.iter().all(|ratio| ratio.is_finite() && *ratio > 0.0) { Ok(()) } else { Err(StatisticsError::Overflow) }
}

/// Returns what a two-sided interval leaves on each side.
fn tail_of(confidence: f64) -> Result<f64, StatisticsError> {
    in_open("confidence", confidence, 1.0, "a share between 0 and 1").map(|confidence| (1.0 - confidence) / 2.0)
}

fn in_open(name: &'static str, value: f64, below: f64, expected: &'static str) -> Result<f64, StatisticsError> {
    if value > 0.0 && value < below { Ok(value) } else { Err(StatisticsError::OutOfRange { name, value, expected }) }
}

fn ln_margin(margin: f64) -> Result<f64, StatisticsError> {
    if margin.is_finite() && margin >= 0.0 {
        Ok(margin.ln_1p())
    } else {
        Err(StatisticsError::OutOfRange { name: "margin", value: margin, expected: "a share of at least 0" })
    }
}
