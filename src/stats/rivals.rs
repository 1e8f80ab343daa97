//! What others use, so that tests can show what it would have concluded: never called by the program.
//!
//! Welch's t, the exact Mann–Whitney test, the exact sign-flip and Wilcoxon tests, and the percentile bootstrap.

use super::distribution::t_two_sided;
use super::{Moments, log_ratios};

/// Welch's two-sided p of two independent samples.
pub(super) fn welch_p(x: &[f64], y: &[f64]) -> f64 {
    let (x, y) = (Moments::of(x.iter().copied()), Moments::of(y.iter().copied()));
    let (vx, vy) = (x.standard_error().powi(2), y.standard_error().powi(2));
    let df = (vx + vy).powi(2) / (vx * vx / (x.n as f64 - 1.0) + vy * vy / (y.n as f64 - 1.0));
    t_two_sided((y.mean - x.mean) / (vx + vy).sqrt(), df)
}

/// Exact two-sided Mann–Whitney p, by enumerating which ranks the first sample holds (samples of 10 at most).
pub(super) fn mann_whitney_p(x: &[f64], y: &[f64]) -> f64 {
    let all: Vec<f64> = x.iter().chain(y).copied().collect();
    let ranks = twice_the_ranks(&all);
    let observed: u64 = ranks[..x.len()].iter().sum();
    let expected = ranks.iter().sum::<u64>() * x.len() as u64;
    // Distance from the expected sum, times n so that it is whole.
    let away = |sum: u64| (sum * all.len() as u64).abs_diff(expected);
    let (mut as_far, mut count) = (0_u64, 0_u64);
    for chosen in 0_u32..1 << all.len() {
        if chosen.count_ones() as usize == x.len() {
            let sum = (0..all.len()).filter(|at| chosen >> at & 1 == 1).map(|at| ranks[at]).sum();
            count += 1;
            as_far += u64::from(away(sum) >= away(observed));
        }
    }
    as_far as f64 / count as f64
}

/// Exact two-sided Wilcoxon signed-rank p of log ratios (no zeros).
pub(super) fn wilcoxon_p(control: &[f64], treatment: &[f64]) -> f64 {
    let d: Vec<f64> = control.iter().zip(treatment).map(|(control, treatment)| treatment - control).collect();
    let ranks = twice_the_ranks(&d.iter().map(|d| d.abs()).collect::<Vec<f64>>());
    let total: u64 = ranks.iter().sum();
    let observed: u64 = d.iter().zip(&ranks).filter(|(d, _)| **d > 0.0).map(|(_, rank)| rank).sum();
    let away = |sum: u64| (2 * sum).abs_diff(total);
    let as_far = (0_u32..1 << d.len())
        .filter(|signs| {
            let sum = (0..d.len()).filter(|at| signs >> at & 1 == 1).map(|at| ranks[at]).sum();
            away(sum) >= away(observed)
        })
        .count();
    as_far as f64 / f64::from(1_u32 << d.len())
}

/// Exact two-sided sign-flip p of log ratios; its smallest value is 2/2^B.
pub(super) fn sign_flip_p(control: &[f64], treatment: &[f64]) -> f64 {
    let d: Vec<f64> = log_ratios(control, treatment).collect();
    let observed = d.iter().sum::<f64>().abs();
    let as_far = (0_u32..1 << d.len())
        .filter(|signs| {
            let sum: f64 = d.iter().enumerate().map(|(at, d)| if signs >> at & 1 == 1 { *d } else { -d }).sum();
            sum.abs() >= observed - 1e-15
        })
        .count();
    as_far as f64 / f64::from(1_u32 << d.len())
}

/// Percentile bootstrap interval (95 %) of the mean log ratio over paired blocks.
pub(super) fn bootstrap_interval(control: &[f64], treatment: &[f64], random: &mut Random) -> (f64, f64) {
    const RESAMPLES: usize = 400;
    let d: Vec<f64> = log_ratios(control, treatment).collect();
    let mut means: Vec<f64> = (0..RESAMPLES)
        .map(|_| d.iter().map(|_| d[(random.uniform() * d.len() as f64) as usize]).sum::<f64>() / d.len() as f64)
        .collect();
    means.sort_by(f64::total_cmp);
    (means[RESAMPLES / 40], means[RESAMPLES - 1 - RESAMPLES / 40])
}

/// Ranks from 1, ties averaged, doubled so that they are whole.
fn twice_the_ranks(values: &[f64]) -> Vec<u64> {
    let rank = |value: &f64| {
        let below = values.iter().filter(|other| *other < value).count();
        let equal = values.iter().filter(|other| other.total_cmp(value).is_eq()).count();
        (2 * below + equal + 1) as u64
    };
    values.iter().map(rank).collect()
}

/// A small generator (xorshift64*, Vigna 2016), so that simulations repeat.
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    /// Uniform in 0..1.
    pub(super) fn uniform(&mut self) -> f64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Standard normal, by Box and Muller.
    pub(super) fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.uniform()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.uniform()).cos()
    }
}
