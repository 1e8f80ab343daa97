//! labbook: experiments on LLM serving in which a comparison against a wrong baseline cannot happen silently.
//!
//! Each stage has one noun, and the noun is proof that the stage passed: `Spec → Plan → Run → Comparison | Refusal →
//! Finding`. The order of the modules is the order of dependence: a module uses only modules above it.

pub mod digest;
pub mod metric;
pub mod fact;
pub mod noise;
pub mod stats;

pub mod diagnostic;
pub mod yaml;
pub mod question;
pub mod spec;
pub mod plan;
pub mod schema;
pub mod init;

pub mod redact;
pub mod row;
pub mod record;
pub mod validity;
pub mod run;
pub mod ledger;
pub mod script;
pub mod probe;
pub mod store;

pub mod host;
pub mod setup;
pub mod doctor;
pub mod client;
pub mod engine;
pub mod runner;

pub mod rules;
pub mod comparison;
pub mod finding;

pub mod chart;
pub mod directive;
pub mod import;
pub mod report;
pub mod site;
pub mod cli;
