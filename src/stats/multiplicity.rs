//! Many tests of one family: Holm's and Benjamini & Hochberg's adjusted p values.
//!
//! Invariant: a planned test that could not be made still counts; the family is what was planned, not what worked.

use super::StatisticsError;

/// Returns the p values adjusted for a family of `planned` tests so that the chance of any false claim stays below α under
/// every dependence (Holm 1979). In the order of `p_values`, each at least its own p and at most 1.
///
/// No p values give none back. Planned tests without a p (failed cells) count as p = 1.
///
/// # Errors
/// A p outside of 0..=1, or fewer planned tests than p values.
pub fn holm(p_values: &[f64], planned: usize) -> Result<Vec<f64>, StatisticsError> {
    let order = ascending(p_values, planned)?;
    let mut adjusted = vec![0.0; p_values.len()];
    let mut largest: f64 = 0.0;
    for (rank, at) in order.into_iter().enumerate() {
        largest = largest.max((planned - rank) as f64 * p_values[at]).min(1.0);
        adjusted[at] = largest;
    }
    Ok(adjusted)
}

/// Returns the p values adjusted for a family of `planned` tests so that the share of false discoveries among the claims
/// stays below α (Benjamini & Hochberg 1995, for independent or positively dependent tests). For exploratory tables only.
///
/// Shape, order, edge cases and errors as in [`holm`].
pub fn benjamini_hochberg(p_values: &[f64], planned: usize) -> Result<Vec<f64>, StatisticsError> {
    let order = ascending(p_values, planned)?;
    let mut adjusted = vec![0.0; p_values.len()];
    let mut smallest: f64 = 1.0;
    for (rank, at) in order.into_iter().enumerate().rev() {
        smallest = smallest.min(p_values[at] * (planned as f64 / (rank + 1) as f64));
        adjusted[at] = smallest;
    }
    Ok(adjusted)
}

/// Returns the places of the p values from the smallest on.
fn ascending(p_values: &[f64], planned: usize) -> Result<Vec<usize>, StatisticsError> {
    if planned < p_values.len() {
        return Err(StatisticsError::OutOfRange {
            name: "planned",
            value: planned as f64,
            expected: "at least as many tests as there are p values",
        });
    }
    if let Some(p) = p_values.iter().find(|p| !(0.0..=1.0).contains(*p)) {
        return Err(StatisticsError::OutOfRange { name: "p", value: *p, expected: "a share of 0 to 1" });
    }
    let mut order: Vec<usize> = (0..p_values.len()).collect();
    order.sort_by(|one, two| p_values[*one].total_cmp(&p_values[*two]));
    Ok(order)
}
