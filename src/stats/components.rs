//! Where the variation comes from: the order inside a block, and the levels of repetition (launch, pass).
//!
//! Invariant: a level of repetition is estimated from the means of the level below, so that passes never pass for launches.
//! Source: Kalibera & Jones 2013, sections 5 and 6 (the revised estimators).

use super::distribution::{t_two_sided, t_upper_quantile};
use super::{Moments, StatisticsError, at_least, finite, in_range, tail_of};

/// Effect of the arms and of their order, from one log ratio a block.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct OrderEffect {
    /// μ̂: log ratio of the arms with the order removed.
    pub mean_log: f64,
    /// ô: half of what running first is worth, as a log ratio; positive when the treatment looks better after the control.
    pub order_log: f64,
    /// Standard error of both.
    pub standard_error: f64,
    /// Degrees of freedom, blocks − 2.
    pub df: usize,
    /// Lower end of the interval of `mean_log`.
    pub low: f64,
    /// Upper end.
    pub high: f64,
    /// Two-sided p of "the order has no effect".
    pub p_order: f64,
}

/// Returns the order effect of log ratios `d`, where `control_first[b]` says which arm ran first in block b: least squares of
/// `d_b = μ + o·z_b` with z = +1 when the control ran first. In a balanced plan μ̂ is the plain mean.
///
/// At least 3 blocks (6 to be worth showing), both orders among them. Without residuals the p is 0, or 1 for an order of 0.
pub fn order_effect(d: &[f64], control_first: &[bool], confidence: f64) -> Result<OrderEffect, StatisticsError> {
    if d.len() != control_first.len() {
        return Err(StatisticsError::Unpaired { control: control_first.len(), treatment: d.len() });
    }
    at_least(3, d)?;
    let tail = tail_of(confidence)?;
    let n = d.len() as f64;
    let signs = || control_first.iter().map(|first| if *first { 1.0 } else { -1.0 });
    let sum_z: f64 = signs().sum();
    let determinant = n * n - sum_z * sum_z;
    if determinant <= 0.0 {
        return Err(StatisticsError::OneOrder);
    }
    let sum_d: f64 = d.iter().sum();
    let sum_dz: f64 = d.iter().zip(signs()).map(|(d, z)| d * z).sum();
    let mean_log = (n * sum_d - sum_z * sum_dz) / determinant;
    let order_log = (n * sum_dz - sum_z * sum_d) / determinant;
    let squares: f64 = d.iter().zip(signs()).map(|(d, z)| (d - mean_log - order_log * z).powi(2)).sum();
    let df = n - 2.0;
    let standard_error = (squares / df * n / determinant).sqrt();
    in_range(&[mean_log, order_log, standard_error])?;
    let half = t_upper_quantile(tail, df) * standard_error;
    // What is left of the order by rounding is no order.
    let largest = d.iter().fold(0.0, |largest: f64, d| largest.max(d.abs()));
    let t = if order_log.abs() <= 1e-14 * largest { 0.0 } else { order_log / standard_error };
    Ok(OrderEffect {
        mean_log,
        order_log,
        standard_error,
        df: d.len() - 2,
        low: mean_log - half,
        high: mean_log + half,
        p_order: t_two_sided(t, df),
    })
}

/// Variance at one level of repetition.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Component {
    /// S²: mean over the units above of the sample variance of this level's means.
    pub s2: f64,
    /// T²: what is left of S² after the level below has had its share; below 0 by chance.
    pub t2: f64,
}

impl Component {
    /// Returns T² with a negative estimate counted as 0; pages say "not distinguishable from 0" then.
    pub fn variance(&self) -> f64 {
        self.t2.max(0.0)
    }

    /// Returns whether the level adds any variance that can be seen.
    pub fn is_distinguishable(&self) -> bool {
        self.t2 > 0.0
    }
}

/// Returns the components of balanced nested repetitions, the lowest level first.
///
/// `shape` counts the units from the highest level to the lowest (`[launches, passes]`); `values` are in that order, the
/// lowest level fastest. Block drift must be taken out before ([`without_block_means`]), or it counts as launches.
///
/// # Errors
/// A level with fewer than 2 units, or a number of values that is not the product of the shape.
pub fn variance_components(values: &[f64], shape: &[usize]) -> Result<Vec<Component>, StatisticsError> {
    if let Some(units) = shape.iter().find(|units| **units < 2) {
        return Err(StatisticsError::TooFew { found: *units, needed: 2 });
    }
    let wanted = shape.iter().try_fold(1_usize, |product, units| product.checked_mul(*units));
    if shape.is_empty() || wanted != Some(values.len()) {
        return Err(StatisticsError::TooFew { found: values.len(), needed: wanted.unwrap_or(usize::MAX) });
    }
    finite(values)?;
    let mut means = values.to_vec();
    let mut components: Vec<Component> = Vec::with_capacity(shape.len());
    let mut below = None;
    for units in shape.iter().rev() {
        let groups: Vec<Moments> = means.chunks(*units).map(|group| Moments::of(group.iter().copied())).collect();
        let s2 = groups.iter().map(|group| group.sd * group.sd).sum::<f64>() / groups.len() as f64;
        let share = below.map_or(0.0, |(s2, units): (f64, usize)| s2 / units as f64);
        in_range(&[s2, share])?;
        components.push(Component { s2, t2: s2 - share });
        below = Some((s2, *units));
        means = groups.iter().map(|group| group.mean).collect();
    }
    Ok(components)
}

/// How often to repeat at a level.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Repeats {
    /// √((c₂/c₁)·(T₁²/T₂²)).
    pub exact: f64,
    /// That, rounded up to a whole number of at least 1.
    pub count: u64,
}

/// Returns the cheapest number of repetitions at each level below the highest, the lowest first (Kalibera & Jones 2013,
/// section 6): `costs` are what one more unit costs at each level, the lowest first (a pass, a launch), in any one unit.
///
/// `None` where the level above adds no variance: then repeating there buys nothing, and this level may take all.
///
/// # Errors
/// Another number of costs than levels, or a cost that is not positive.
pub fn optimal_repeats(components: &[Component], costs: &[f64]) -> Result<Vec<Option<Repeats>>, StatisticsError> {
    if costs.len() != components.len() {
        return Err(StatisticsError::Unpaired { control: components.len(), treatment: costs.len() });
    }
    finite(costs)?;
    if let Some(cost) = costs.iter().find(|cost| **cost <= 0.0) {
        return Err(StatisticsError::NotPositive(*cost));
    }
    let levels = components.windows(2).zip(costs.windows(2));
    Ok(levels
        .map(|(component, cost)| {
            let (here, above) = (component[0].variance(), component[1].variance());
            let exact = (cost[1] / cost[0] * (here / above)).sqrt();
            (above > 0.0 && exact.is_finite()).then(|| Repeats { exact, count: (exact.ceil() as u64).max(1) })
        })
        .collect())
}

/// Returns the values with their block's mean taken out, so that drift between blocks is not mistaken for launches.
/// `per_block` values follow one another in each block.
///
/// # Errors
/// `per_block` is 0 or does not divide the number of values.
pub fn without_block_means(values: &[f64], per_block: usize) -> Result<Vec<f64>, StatisticsError> {
    finite(values)?;
    if per_block == 0 || !values.len().is_multiple_of(per_block) {
        return Err(StatisticsError::TooFew { found: values.len(), needed: per_block.max(1) });
    }
    let residuals = values.chunks(per_block).flat_map(|block| {
        let mean = block.iter().sum::<f64>() / block.len() as f64;
        block.iter().map(move |value| value - mean)
    });
    Ok(residuals.collect())
}

/// A mean and the ends of its interval.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MeanInterval {
    /// Lower end.
    pub low: f64,
    /// The mean.
    pub mean: f64,
    /// Upper end.
    pub high: f64,
}

/// Returns the t interval of the mean of independent units, such as launch means.
pub fn mean_interval(values: &[f64], confidence: f64) -> Result<MeanInterval, StatisticsError> {
    at_least(2, values)?;
    let moments = Moments::of(values.iter().copied());
    let half = t_upper_quantile(tail_of(confidence)?, moments.n as f64 - 1.0) * moments.standard_error();
    in_range(&[moments.mean, half])?;
    Ok(MeanInterval { low: moments.mean - half, mean: moments.mean, high: moments.mean + half })
}
