//! The command line: what is typed, which stages it calls, and how it ends.
//!
//! Invariant: stdout is data and stderr is talk; the exit status is an answer (see [`Exit`]). This is where execution and
//! inference meet, and the only place that reads the process's environment.

use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{CommandFactory as _, Parser, Subcommand, ValueEnum};

use crate::diagnostic::{Diagnostics, Style};
use crate::report::progress::folded;

mod bookkeeper;
mod build;
mod doctor;
mod execute;
mod infer;
mod intend;
mod keep;
mod open;
mod reach;
mod shown;

/// How a command ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// Done.
    Done = 0,
    /// The evidence says no: refuted, stale, altered.
    EvidenceSaysNo = 1,
    /// The spec or the usage is wrong.
    Usage = 2,
    /// A comparison was refused.
    Refused = 3,
    /// Inconclusive, and a verdict was required.
    Inconclusive = 4,
    /// A run or a host failed.
    RunFailed = 5,
    /// Left on Ctrl-C; what was started goes on.
    Interrupted = 130,
}

/// Experiments on LLM serving in which a comparison against a wrong baseline cannot happen silently.
#[derive(Debug, Parser)]
#[command(
    name = "labbook",
    version,
    max_term_width = 100,
    after_help = "\
The usual way:
  labbook check experiments/quickstart.yaml    is the spec what you mean?
  labbook plan experiments/quickstart.yaml     what will run, what it costs, what it can resolve
  labbook run experiments/quickstart.yaml      do what is missing; safe to interrupt and to repeat
  labbook compare quickstart                   the verdict, or the one fact that stands in its way
  labbook build                                the findings book: site/index.html

Exit status: 0 done, 1 the evidence says no, 2 spec or usage, 3 comparison refused, 4 inconclusive (with
--require-verdict), 5 a run or a host failed, 101 a bug, 130 left on Ctrl-C (the run goes on)."
)]
struct Arguments {
    /// Work in this folder instead of the current one.
    #[arg(short = 'C', long, global = true, value_name = "FOLDER")]
    directory: Option<PathBuf>,
    /// When to use colours; the variable `NO_COLOR` is respected.
    #[arg(long, global = true, value_enum, default_value_t = Colour::Auto, value_name = "WHEN")]
    color: Colour,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Colour {
    Auto,
    Always,
    Never,
}

/// How data is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// For people.
    Text,
    /// For programs: one stable object, or one event a line while running.
    Json,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Make a lab: labbook.yaml, an experiment that runs anywhere, and the folders around them.
    #[command(after_help = "Example: labbook init my-lab && cd my-lab && labbook run experiments/quickstart.yaml")]
    Init {
        /// Folder to make it in; nothing that is there is overwritten.
        #[arg(default_value = ".")]
        folder: PathBuf,
    },
    /// Check specs and the whole record; without arguments, every spec and every stored byte. Offline.
    #[command(after_help = "Examples:\n  labbook check experiments/oea.yaml --resolved\n  labbook check")]
    Check {
        /// Specs to check; none means all of experiments/ and results/.
        specs: Vec<PathBuf>,
        /// Print the spec with every default written out.
        #[arg(long)]
        resolved: bool,
    },
    /// Show what would run: order, exact commands, cost, and the smallest effect the design resolves.
    #[command(after_help = "Example: labbook plan experiments/cutedsl.yaml --commands")]
    Plan {
        /// The spec.
        spec: PathBuf,
        /// Print the exact command of every server and client.
        #[arg(long)]
        commands: bool,
        /// How to print.
        #[arg(long, value_enum, default_value_t = Format::Text)]
        format: Format,
    },
    /// Print the JSON Schema of specs (or of labbook.yaml) for editors.
    #[command(after_help = "Example: labbook schema > schema/experiment.json")]
    Schema {
        /// The schema of labbook.yaml instead.
        #[arg(long)]
        lab: bool,
    },
    /// Run what is missing of an experiment; picks up where it was, whatever happened in between.
    #[command(after_help = "Ctrl-C detaches: the runner goes on. `labbook stop` stops it.\n\
        Example: labbook run experiments/quickstart.yaml")]
    Run {
        /// The spec.
        spec: PathBuf,
        /// Queue everything and return; `labbook attach` follows it.
        #[arg(long)]
        detach: bool,
        /// Add this many blocks beyond those planned so far.
        #[arg(long, value_name = "BLOCKS", default_value_t = 0)]
        more: u32,
        /// Run this block again as a whole, because of …; its runs are superseded.
        #[arg(long, value_name = "BLOCK", requires = "because")]
        redo: Option<u32>,
        /// Why (for --redo).
        #[arg(long, value_name = "WHY")]
        because: Option<String>,
        /// How to print.
        #[arg(long, value_enum, default_value_t = Format::Text)]
        format: Format,
    },
    /// Launch one arm once at one level: a look, recorded with all its facts, never cited and never a control.
    #[command(after_help = "Example: labbook try experiments/oea.yaml --arm k0-4 --at 16")]
    Try {
        /// The spec.
        spec: PathBuf,
        /// The arm.
        #[arg(long)]
        arm: String,
        /// The level.
        #[arg(long, value_name = "LEVEL")]
        at: String,
        /// How to print.
        #[arg(long, value_enum, default_value_t = Format::Text)]
        format: Format,
    },
    /// Say what is planned, running, done and failed.
    #[command(after_help = "Example: labbook status experiments/quickstart.yaml")]
    Status {
        /// The spec; none means every experiment of the lab.
        spec: Option<PathBuf>,
        /// How to print.
        #[arg(long, value_enum, default_value_t = Format::Text)]
        format: Format,
    },
    /// Follow a run that goes on without us.
    #[command(after_help = "Example: labbook attach experiments/quickstart.yaml")]
    Attach {
        /// The spec.
        spec: PathBuf,
        /// How to print.
        #[arg(long, value_enum, default_value_t = Format::Text)]
        format: Format,
    },
    /// Stop a run that goes on without us: the session that runs is ended cleanly and counts as failed.
    #[command(after_help = "Example: labbook stop experiments/quickstart.yaml")]
    Stop {
        /// The spec.
        spec: PathBuf,
    },
    /// Say what can be observed on a host, which programs are absent there, who holds it and what is left over. Changes nothing.
    #[command(after_help = "Examples:\n  labbook doctor\n  labbook doctor blackwell --format json\n\n\
        Exit status 0: everything that is required can be observed there; 5: not, and the remedy is named.")]
    Doctor {
        /// A host of labbook.yaml.
        #[arg(default_value = "local")]
        host: String,
        /// How to print.
        #[arg(long, value_enum, default_value_t = Format::Text)]
        format: Format,
    },
    /// Show a run, one of its files, or an experiment's runs; ids may be shortened.
    #[command(
        after_help = "Examples:\n  labbook show quickstart\n  labbook show 91be04d\n  labbook show 91be04d server.log"
    )]
    Show {
        /// A run id (any unique prefix), or the name of an experiment.
        what: String,
        /// A file of the run to print.
        file: Option<String>,
        /// How to print.
        #[arg(long, value_enum, default_value_t = Format::Text)]
        format: Format,
    },
    /// Compare the arms of an experiment: the verdict, or every reason why there is none. Two run ids show how they differ.
    #[command(after_help = "Examples:\n  labbook compare quickstart\n  labbook compare quickstart --format json\n  \
        labbook compare 91be04d 5a7c330 --metric output_throughput\n\n\
        A pair of runs is never a verdict; RUN:METRIC reads another metric from one side, which is refused\nunless both count the same thing.")]
    Compare {
        /// Name of an experiment, its spec, or two run ids.
        #[arg(required = true, num_args = 1..=2)]
        what: Vec<String>,
        /// The metric for two runs.
        #[arg(long, value_name = "METRIC")]
        metric: Option<String>,
        /// Exit with status 4 when a claim is inconclusive.
        #[arg(long)]
        require_verdict: bool,
        /// How to print.
        #[arg(long, value_enum, default_value_t = Format::Text)]
        format: Format,
    },
    /// Build the findings book: every byte is verified first, and a sentence that no run backs fails it.
    #[command(after_help = "The lab's chapters stand in book/src; the site works from a folder, without a server.\n\
        Example: labbook build")]
    Build {
        /// Where the site goes, instead of site/ in the lab; only a site that labbook made is replaced.
        #[arg(long, value_name = "DIR")]
        out: Option<PathBuf>,
    },
    /// Bring in results that were measured elsewhere, as a manifest with raw client output.
    #[command(after_help = "Example: labbook import their-numbers/manifest.yaml")]
    Import {
        /// Manifests.
        #[arg(required = true)]
        files: Vec<PathBuf>,
    },
    /// The instruments: a small real engine that runs on any machine, and a load client for it.
    Pocket {
        #[command(subcommand)]
        instrument: Instrument,
    },
    /// Print completions for a shell.
    #[command(after_help = "Example: labbook completions bash > ~/.local/share/bash-completion/completions/labbook")]
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
}

#[derive(Debug, Subcommand)]
enum Instrument {
    /// Serve: a mixture-of-experts decoder on the CPU behind the interface of `SGLang`.
    Serve(pocketmoe::serve::ServeArgs),
    /// Load: a client that writes rows like `sglang.bench_serving`.
    Load(Box<pocketmoe::load::LoadArgs>),
}

/// Where a command reads and writes.
struct Terminal {
    out: Box<dyn Write>,
    err: Box<dyn Write>,
    style: Style,
    /// Whether standard error is a terminal that can show a live footer.
    live: bool,
}

/// Why a command did not do what was asked: what happened, and what to do about it.
#[derive(Debug)]
struct Failure {
    what: String,
    causes: Vec<String>,
    hints: Vec<String>,
    exit: Exit,
}

impl Failure {
    fn new(exit: Exit, what: impl Into<String>) -> Self {
        Self { what: what.into(), causes: Vec::new(), hints: Vec::new(), exit }
    }

    fn of(exit: Exit, error: &dyn std::error::Error) -> Self {
        let mut failure = Self::new(exit, error.to_string());
        let mut source = error.source();
        while let Some(cause) = source {
            failure.causes.push(cause.to_string());
            source = cause.source();
        }
        failure
    }

    fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hints.push(hint.into());
        self
    }

    fn render(&self) -> String {
        let labelled = std::iter::once(format!("error: {}", self.what))
            .chain(self.causes.iter().map(|cause| format!("  caused by: {cause}")))
            .chain(self.hints.iter().map(|hint| format!("help: {hint}")));
        let mut text = String::new();
        for line in labelled.flat_map(|part| part.lines().map(str::to_owned).collect::<Vec<_>>()) {
            let _ = writeln!(text, "{}", folded(&line, "  "));
        }
        text
    }
}

/// Problems of a text that a person wrote.
enum Trouble {
    Failure(Failure),
    Text(Diagnostics),
    /// The reader of our output went away: nothing is wrong.
    Closed,
}

impl From<Failure> for Trouble {
    fn from(failure: Failure) -> Self {
        Self::Failure(failure)
    }
}

impl From<Diagnostics> for Trouble {
    fn from(diagnostics: Diagnostics) -> Self {
        Self::Text(diagnostics)
    }
}

impl From<io::Error> for Trouble {
    fn from(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe {
            return Self::Closed;
        }
        Self::Failure(Failure::of(Exit::RunFailed, &error))
    }
}

type Answer = Result<Exit, Trouble>;

/// Runs the command line of this process and returns its exit status.
pub fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let mut terminal = Terminal::of_process(arguments.color);
    if let Some(folder) = &arguments.directory
        && let Err(error) = std::env::set_current_dir(folder)
    {
        let failure = Failure::of(Exit::Usage, &error).hint(format!("`-C {}` names no folder", folder.display()));
        let _ = terminal.err.write_all(failure.render().as_bytes());
        return ExitCode::from(Exit::Usage as u8);
    }
    let answer = dispatch(arguments.command, &mut terminal);
    let exit = match answer {
        Ok(exit) => exit,
        Err(Trouble::Closed) => Exit::Done,
        Err(Trouble::Failure(failure)) => {
            let _ = terminal.err.write_all(failure.render().as_bytes());
            failure.exit
        }
        Err(Trouble::Text(diagnostics)) => {
            let _ = writeln!(terminal.err, "{}", diagnostics.render(terminal.style));
            Exit::Usage
        }
    };
    let exit = match terminal.out.flush() {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            let failure = Failure::of(Exit::RunFailed, &error).hint("the output is not complete");
            let _ = terminal.err.write_all(failure.render().as_bytes());
            failure.exit
        }
        _ => exit,
    };
    ExitCode::from(exit as u8)
}

fn dispatch(command: Command, terminal: &mut Terminal) -> Answer {
    match command {
        Command::Init { folder } => intend::init(terminal, &folder),
        Command::Check { specs, resolved } if specs.is_empty() && !resolved => keep::check(terminal),
        Command::Check { specs, resolved } => intend::check(terminal, &specs, resolved),
        Command::Plan { spec, commands, format } => intend::plan(terminal, &spec, commands, format),
        Command::Schema { lab } => intend::schema(terminal, lab),
        Command::Run { spec, detach, more, redo, because, format } => {
            let wish = execute::Wish { detach, more, redo: redo.zip(because) };
            execute::run(terminal, &spec, &wish, format)
        }
        Command::Try { spec, arm, at, format } => execute::look(terminal, &spec, &arm, &at, format),
        Command::Status { spec, format } => execute::status(terminal, spec.as_deref(), format),
        Command::Attach { spec, format } => execute::attach(terminal, &spec, format),
        Command::Stop { spec } => execute::stop(terminal, &spec),
        Command::Doctor { host, format } => doctor::doctor(terminal, &host, format),
        Command::Show { what, file, format } => keep::show(terminal, &what, file.as_deref(), format),
        Command::Compare { what, metric, require_verdict, format } => match what.as_slice() {
            [one, other] => infer::pair(terminal, one, other, metric.as_deref(), format),
            [one] => infer::compare(terminal, one, require_verdict, format),
            _ => Err(Failure::new(Exit::Usage, "compare takes one experiment or two runs").into()),
        },
        Command::Build { out } => build::build(terminal, out.as_deref()),
        Command::Import { files } => infer::import(terminal, &files),
        Command::Pocket { instrument } => pocket(instrument),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Arguments::command(), "labbook", &mut script);
            terminal.out.write_all(&script)?;
            Ok(Exit::Done)
        }
    }
}

fn pocket(instrument: Instrument) -> Answer {
    let ended = match instrument {
        Instrument::Serve(arguments) => pocketmoe::serve::run(arguments).map_err(|error| error.to_string()),
        Instrument::Load(arguments) => pocketmoe::load::run(*arguments).map_err(|error| error.to_string()),
    };
    match ended {
        Ok(()) => Ok(Exit::Done),
        Err(what) => Err(Failure::new(Exit::EvidenceSaysNo, what).into()),
    }
}

impl Terminal {
    fn of_process(colour: Colour) -> Self {
        let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
        let live = io::stderr().is_terminal();
        let styled = match colour {
            Colour::Always => true,
            Colour::Never => false,
            Colour::Auto => live && io::stdout().is_terminal() && variable("NO_COLOR").is_none(),
        };
        Self {
            out: Box::new(io::BufWriter::new(io::stdout())),
            err: Box::new(io::stderr()),
            style: if styled { Style::Coloured } else { Style::Plain },
            live,
        }
    }
}
