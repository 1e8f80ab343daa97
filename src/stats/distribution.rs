//! Distributions: Student's t (central and noncentral), chi-square and binomial, to about 12 digits.
//!
//! Invariant: tails are computed as tails, never as one minus a number near one, so that a small p keeps its digits.
//! Sources: the regularised incomplete beta and gamma functions of `statrs`, whose quantiles are polished here with Newton
//! steps on the distribution function; noncentral t by its definition as a normal mean over a chi density.

use statrs::distribution::{Binomial, ChiSquared, Continuous, ContinuousCDF, DiscreteCDF, StudentsT};
use statrs::function::gamma::{gamma_ur, ln_gamma};

const NEWTON_STEPS: usize = 8;

/// Returns P(T > t) for Student's t with `df` degrees of freedom; an infinite `t` has no mass beyond it.
pub(super) fn t_survival(t: f64, df: f64) -> f64 {
    if t.is_infinite() {
        return if t > 0.0 { 0.0 } else { 1.0 };
    }
    students_t(df).sf(t)
}

/// Returns P(|T| > |t|).
pub(super) fn t_two_sided(t: f64, df: f64) -> f64 {
    (2.0 * t_survival(t.abs(), df)).min(1.0)
}

/// Returns the point above which Student's t has mass `tail`, for 0 < `tail` ≤ 0.5.
pub(super) fn t_upper_quantile(tail: f64, df: f64) -> f64 {
    let distribution = students_t(df);
    let mut t = -distribution.inverse_cdf(tail);
    for _ in 0..NEWTON_STEPS {
        let step = (distribution.sf(t) - tail) / distribution.pdf(t);
        if !step.is_finite() || step.abs() <= f64::EPSILON * t.abs() {
            break;
        }
        t += step;
    }
    t
}

fn students_t(df: f64) -> StudentsT {
    StudentsT::new(0.0, 1.0, df).expect("degrees of freedom are positive")
}

/// Returns the point below which the chi-square distribution has mass `probability`, for 0 < `probability` < 1.
pub(super) fn chi_square_quantile(probability: f64, df: f64) -> f64 {
    let distribution = ChiSquared::new(df).expect("degrees of freedom are positive");
    let mut x = distribution.inverse_cdf(probability);
    for _ in 0..NEWTON_STEPS {
        let step = (probability - distribution.cdf(x)) / distribution.pdf(x);
        if !step.is_finite() || step.abs() <= f64::EPSILON * x || x + step <= 0.0 {
            break;
        }
        x += step;
    }
    x
}

/// Returns P(X ≤ k) for X ~ Binomial(n, probability).
pub(super) fn binomial_cdf(k: u64, n: u64, probability: f64) -> f64 {
    Binomial::new(probability, n).expect("a probability").cdf(k)
}

/// Returns P(T > t) for noncentral t with `df` degrees of freedom and noncentrality `delta`:
/// the mean of Φ(δ − t·s) over the density of s = χ/√df (Johnson, Kotz & Balakrishnan, *Continuous Univariate
/// Distributions* 2, chapter 31), by Gauss–Legendre panels.
pub(super) fn noncentral_t_survival(t: f64, df: f64, delta: f64) -> f64 {
    over_chi(t, df, |s| normal_cdf(delta - t * s))
}

/// Returns P(T ≤ t) for noncentral t; its own integral, so that a small one keeps its digits.
pub(super) fn noncentral_t_cdf(t: f64, df: f64, delta: f64) -> f64 {
    over_chi(t, df, |s| normal_cdf(t * s - delta))
}

/// Φ(z) by the incomplete gamma function: erfc(x) = Q(1/2, x²).
fn normal_cdf(z: f64) -> f64 {
    /// Beyond it the tail is below the smallest number.
    const FAR: f64 = 38.0;
    let half_square = 0.5 * z * z;
    if half_square == 0.0 {
        return 0.5;
    }
    let tail = if z.abs() > FAR { 0.0 } else { 0.5 * gamma_ur(0.5, half_square) };
    if z < 0.0 { tail } else { 1.0 - tail }
}

/// Nodes and weights of the 16-point Gauss–Legendre rule on [−1, 1], the positive half.
const GAUSS_LEGENDRE: [(f64, f64); 8] = [
    (0.095_012_509_837_637_44, 0.189_450_610_455_068_5),
    (0.281_603_550_779_258_9, 0.182_603_415_044_923_6),
    (0.458_016_777_657_227_4, 0.169_156_519_395_002_54),
    (0.617_876_244_402_643_7, 0.149_595_988_816_576_73),
    (0.755_404_408_355_003, 0.124_628_971_255_533_87),
    (0.865_631_202_387_831_7, 0.095_158_511_682_492_78),
    (0.944_575_023_073_232_6, 0.062_253_523_938_647_89),
    (0.989_400_934_991_649_9, 0.027_152_459_411_754_095),
];

/// Integrates `f` over the density of χ/√df; `t` says how steep `f` is.
fn over_chi(t: f64, df: f64, f: impl Fn(f64) -> f64) -> f64 {
    /// Ten standard deviations of χ/√df (at most 1/√df each) leave less than 1e-20 outside.
    const REACH: f64 = 10.0;
    let low = (1.0 - REACH / df.sqrt()).max(0.0);
    let high = 1.0 + REACH / df.sqrt();
    let ln_scale = std::f64::consts::LN_2 + 0.5 * df * (0.5 * df).ln() - ln_gamma(0.5 * df);
    let density = |s: f64| (ln_scale + (df - 1.0) * s.ln() - 0.5 * df * s * s).exp();
    // A panel spans at most half a standard deviation of the normal inside.
    let panels = (48.0 + (high - low) * t.abs() * 2.0).min(50_000.0).ceil();
    let half = (high - low) / (2.0 * panels);
    let mut sum = 0.0;
    for panel in 0..panels as u32 {
        let middle = low + half * (2.0 * f64::from(panel) + 1.0);
        for (node, weight) in GAUSS_LEGENDRE {
            let (left, right) = (middle - half * node, middle + half * node);
            sum += weight * (f(left) * density(left) + f(right) * density(right));
        }
    }
    sum * half
}
