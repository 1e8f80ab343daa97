//! labbook: experiments on LLM serving in which a comparison against a wrong baseline cannot happen silently.
//!
//! The order of the modules is the order of dependence: a module uses only modules above it.

pub mod digest;
pub mod fact;
pub mod metric;
pub mod noise;
pub mod stats;

pub mod diagnostic;
pub mod question;
pub mod yaml;

pub mod redact;
pub mod row;

pub mod record;
pub mod validity;

pub mod rules;

pub mod comparison;
pub mod finding;

pub mod import;
