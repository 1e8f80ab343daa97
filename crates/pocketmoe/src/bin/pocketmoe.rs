//! The pocket engine and its load client as a program of their own; `labbook pocket` is the same.

use clap::{Parser, Subcommand};
use std::io::Write as _;
use std::process::ExitCode;

/// A pocket mixture-of-experts engine behind SGLang's interface, and a load client
#[derive(Parser)]
#[command(version)]
struct Line {
    #[command(subcommand)]
    act: Act,
}

#[derive(Subcommand)]
enum Act {
    /// Serve the model over HTTP until SIGTERM
    Serve(pocketmoe::serve::ServeArgs),
    /// Send requests to a server and append a row of results
    Load(Box<pocketmoe::load::LoadArgs>),
}

fn main() -> ExitCode {
    let outcome = match Line::parse().act {
        Act::Serve(args) => pocketmoe::serve::run(args).map_err(|error| error.to_string()),
        Act::Load(args) => pocketmoe::load::run(*args).map_err(|error| error.to_string()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            let _ = writeln!(std::io::stderr(), "error: {message}");
            ExitCode::FAILURE
        }
    }
}
