//! What a person reads: pure functions from results to text. Nothing here computes a result, and nothing else shows one.

pub mod progress;
pub mod comparison;
