//! A pocket mixture-of-experts engine behind the interface of `SGLang`, and a load client for it.
