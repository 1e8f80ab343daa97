//! The pocket engine and its load client as programs: real processes, real sockets.

mod client;
mod faults;
mod server;
mod support;
