//! labbook: experiments on LLM serving in which a comparison against a wrong baseline cannot happen silently.
//!
//! The order of the modules is the order of dependence: a module uses only modules above it.

pub mod digest;
pub mod fact;
pub mod metric;

pub mod diagnostic;
pub mod yaml;

pub mod question;
pub mod spec;

pub mod plan;
pub mod schema;

pub mod init;

pub mod record;
pub mod row;

pub mod report;
