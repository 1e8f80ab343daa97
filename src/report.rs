//! What a person reads: pure functions from results to text. Nothing here computes a result, and nothing else shows one.

pub mod comparison;
pub mod doctor;
pub mod pair;
pub mod plan;
pub mod progress;
pub mod record;
pub mod sentence;
