//! labbook: experiments on LLM serving in which a comparison against a wrong baseline cannot happen silently.
pub mod script;
