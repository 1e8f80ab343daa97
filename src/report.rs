//! Text for people: what the pure stages found, at 80 columns.
//!
//! Invariant: nothing here computes; each renderer is a function of what it shows.

pub mod comparison;
pub mod pair;
pub mod plan;
pub mod progress;
pub mod record;
