//! How many blocks an effect takes: half-widths, power, the smallest effect that can be seen, the noise floor.
//!
//! Effects and standard deviations are of log ratios (0.01 is about 1 %). Invariant: what is planned with an estimated
//! standard deviation says with which one; [`sd_upper_bound`] is the careful choice.

use super::distribution::{chi_square_quantile, noncentral_t_cdf, noncentral_t_survival, t_upper_quantile};
use super::{StatisticsError, in_open, tail_of};

/// No plan has more blocks; a smaller effect is reported as out of reach.
pub const MOST_BLOCKS: u32 = 1_000;

/// Returns the half-width q·s/√B of the interval of a mean log ratio over `blocks` blocks with standard deviation `sd`.
///
/// # Errors
/// Fewer than 2 blocks, or an `sd` below 0.
pub fn half_width(sd: f64, blocks: u32, confidence: f64) -> Result<f64, StatisticsError> {
    let (sd, n) = design(sd, blocks)?;
    Ok(t_upper_quantile(tail_of(confidence)?, n - 1.0) * sd / n.sqrt())
}

/// Returns the noise floor at `planned_blocks`: effects below `t_{.975,B−1}·s_AA/√B` are what an arm shows against itself.
/// `sd_null` is the standard deviation of the log ratios of a null control.
pub fn noise_floor(sd_null: f64, planned_blocks: u32) -> Result<f64, StatisticsError> {
    half_width(sd_null, planned_blocks, super::CONFIDENCE)
}

/// Returns the fewest blocks whose interval is at most ± `half`; `None` beyond [`MOST_BLOCKS`].
pub fn blocks_for_half_width(sd: f64, half: f64, confidence: f64) -> Result<Option<u32>, StatisticsError> {
    let half_wanted = in_open("half", half, f64::INFINITY, "a number above 0")?;
    for blocks in 2..=MOST_BLOCKS {
        if half_width(sd, blocks, confidence)? <= half_wanted {
            return Ok(Some(blocks));
        }
    }
    Ok(None)
}

/// Returns the chance that the two-sided paired t test at level `alpha` rejects when the log ratio is really `effect`
/// (noncentral t, both sides). With `sd` = 0 every effect but 0 is seen.
pub fn power(effect: f64, sd: f64, blocks: u32, alpha: f64) -> Result<f64, StatisticsError> {
    let (sd, n) = design(sd, blocks)?;
    let alpha = in_open("alpha", alpha, 1.0, "a share between 0 and 1")?;
    if !effect.is_finite() {
        return Err(StatisticsError::NotFinite(effect));
    }
    if sd == 0.0 {
        return Ok(if effect == 0.0 { alpha } else { 1.0 });
    }
    Ok(rejects(effect, sd, n, t_upper_quantile(alpha / 2.0, n - 1.0)))
}

fn rejects(effect: f64, sd: f64, n: f64, q: f64) -> f64 {
    let delta = effect.abs() / sd * n.sqrt();
    (noncentral_t_survival(q, n - 1.0, delta) + noncentral_t_cdf(-q, n - 1.0, delta)).clamp(0.0, 1.0)
}

/// Returns the smallest log ratio that is detected with the given power.
///
/// # Errors
/// As [`power`]; `wanted` must lie between `alpha` and 1.
pub fn minimum_detectable_effect(sd: f64, blocks: u32, alpha: f64, wanted: f64) -> Result<f64, StatisticsError> {
    let (sd, n) = design(sd, blocks)?;
    let alpha = in_open("alpha", alpha, 1.0, "a share between 0 and 1")?;
    let wanted = power_wanted(wanted, alpha)?;
    if sd == 0.0 {
        return Ok(0.0);
    }
    let q = t_upper_quantile(alpha / 2.0, n - 1.0);
    let (mut low, mut high) = (0.0, sd);
    while rejects(high, sd, n, q) < wanted {
        (low, high) = (high, 2.0 * high);
    }
    while high - low > 1e-13 * high {
        let middle = low + (high - low) / 2.0;
        if middle <= low || middle >= high {
            break;
        }
        if rejects(middle, sd, n, q) < wanted { low = middle } else { high = middle }
    }
    Ok(low + (high - low) / 2.0)
}

/// Returns the fewest blocks (at least 2) that detect a log ratio of `effect` with the given power; `None` beyond
/// [`MOST_BLOCKS`].
pub fn blocks_for_power(effect: f64, sd: f64, alpha: f64, wanted: f64) -> Result<Option<u32>, StatisticsError> {
    let wanted = power_wanted(wanted, alpha)?;
    if power(effect, sd, MOST_BLOCKS, alpha)? < wanted {
        return Ok(None);
    }
    // Power grows with the number of blocks, so the fewest are found by halving.
    let (mut too_few, mut enough) = (1, MOST_BLOCKS);
    while enough - too_few > 1 {
        let middle = u32::midpoint(too_few, enough);
        if power(effect, sd, middle, alpha)? < wanted { too_few = middle } else { enough = middle }
    }
    Ok(Some(enough))
}

/// Returns the bound s·√((B−1)/χ²_{1−p,B−1}) that the true standard deviation exceeds with chance 1 − `probability` only
/// (normal blocks). Plans are made with it, since s of five blocks is often half the truth.
pub fn sd_upper_bound(sd: f64, blocks: u32, probability: f64) -> Result<f64, StatisticsError> {
    let (sd, n) = design(sd, blocks)?;
    let probability = in_open("probability", probability, 1.0, "a share between 0 and 1")?;
    Ok(sd * ((n - 1.0) / chi_square_quantile(1.0 - probability, n - 1.0)).sqrt())
}

fn design(sd: f64, blocks: u32) -> Result<(f64, f64), StatisticsError> {
    if blocks < 2 {
        return Err(StatisticsError::TooFew { found: blocks as usize, needed: 2 });
    }
    if !(sd.is_finite() && sd >= 0.0) {
        return Err(StatisticsError::OutOfRange { name: "sd", value: sd, expected: "a number of at least 0" });
    }
    Ok((sd, f64::from(blocks)))
}

fn power_wanted(wanted: f64, alpha: f64) -> Result<f64, StatisticsError> {
    if wanted > alpha && wanted < 1.0 {
        Ok(wanted)
    } else {
        Err(StatisticsError::OutOfRange { name: "power", value: wanted, expected: "a share above alpha and below 1" })
    }
}
