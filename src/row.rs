//! The row that a load client wrote, as it was written.
//!
//! Invariant: an absent field is absent, never 0.

use std::collections::BTreeMap;

use crate::metric::Metric;

/// One row of a load client.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Row {
    /// Values of the closed list of metrics that the row has.
    pub metrics: BTreeMap<Metric, f64>,
}
