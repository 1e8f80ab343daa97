//! The `labbook` program.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, Subcommand, ValueEnum};
use labbook::diagnostic::Style;
use labbook::finding::{Findings, Outcome};
use labbook::import;

/// Experiments on LLM serving whose comparisons cannot silently be against a wrong baseline.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    #[command(subcommand)]
    act: Act,
}

#[derive(Subcommand)]
enum Act {
    /// Make a folder a lab.
    Init { folder: PathBuf },
    /// Bring in results that were measured elsewhere.
    Import { files: Vec<PathBuf> },
    /// Compare the arms of an experiment.
    Compare {
        experiment: String,
        #[arg(long, default_value = "text")]
        format: Format,
    },
}

#[derive(Clone, Copy, ValueEnum)]
enum Format {
    Text,
    Json,
}

const RESULTS: &str = "results";

fn main() -> ExitCode {
    match act(&Arguments::parse()) {
        Ok(code) => ExitCode::from(code),
        Err(trouble) => {
            let _ = writeln!(std::io::stderr(), "error: {trouble}");
            ExitCode::from(2)
        }
    }
}

fn act(arguments: &Arguments) -> Result<u8, Box<dyn std::error::Error>> {
    let mut out = std::io::stdout().lock();
    match &arguments.act {
        Act::Init { folder } => std::fs::create_dir_all(folder.join(RESULTS))?,
        Act::Import { files } => {
            for file in files {
                let made = import::import(file, Path::new(RESULTS), jiff::Timestamp::now())?;
                write!(std::io::stderr(), "{}", made.warnings.render(Style::Plain))?;
                writeln!(out, "{}  {} runs, {} files", made.folder.display(), made.runs, made.files)?;
            }
        }
        Act::Compare { experiment, format } => {
            let (question, records) = import::load(Path::new(RESULTS), experiment)?;
            let findings = Findings::of(&question, &records);
            match format {
                Format::Json => writeln!(out, "{:#}", findings.to_json(question.axis))?,
                Format::Text => labbook::report::comparison::write(&mut out, &question, &findings)?,
            }
            return Ok(match findings.outcome {
                Outcome::Refused | Outcome::Void => 3,
                _ => u8::from(findings.any_refuted()),
            });
        }
    }
    Ok(0)
}
