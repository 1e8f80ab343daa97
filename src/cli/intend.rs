//! `init`, `check SPEC`, `plan` and `schema`: what is intended, before anything runs.

use std::io::Write;
use std::path::{Path, PathBuf};

use super::open::{Opened, check_hosts, open, read_spec};
use super::{Answer, Exit, Failure, Format, Terminal};
use crate::client::Place;
use crate::comparison::{BlockValue, Comparison, Condition};
use crate::diagnostic::printable_lines;
use crate::engine;
use crate::init::{self, Written};
use crate::metric::Metric;
use crate::plan::{self, Plan, Spread, Timings};
use crate::report;
use crate::report::plan::{PlanView, SessionCommands};
use crate::script::input::{Command, SessionInput};
use crate::{schema, stats};

/// Makes a lab.
pub(super) fn init(terminal: &mut Terminal, folder: &Path) -> Answer {
    let written = init::write(folder).map_err(|error| Failure::of(Exit::RunFailed, &error))?;
    for (path, written) in written {
        let word = match written {
            Written::New => "made",
            Written::Kept => "kept",
        };
        writeln!(terminal.err, "{word:>6} {}", folder.join(path).display())?;
    }
    writeln!(terminal.err, "next: labbook run {}", folder.join("experiments/quickstart.yaml").display())?;
    Ok(Exit::Done)
}

/// Checks specs.
pub(super) fn check(terminal: &mut Terminal, specs: &[PathBuf], resolved: bool) -> Answer {
    if specs.is_empty() {
        return Err(Failure::new(Exit::Usage, "`--resolved` needs a spec")
            .hint("labbook check SPEC --resolved")
            .into());
    }
    let mut exit = Exit::Done;
    for path in specs {
        match read_spec(terminal, path).and_then(|(spec, text)| check_hosts(path, &spec).map(|()| (spec, text))) {
            Ok((spec, _)) if resolved => write!(terminal.out, "{}", spec.resolved_yaml())?,
            Ok((spec, _)) => writeln!(terminal.out, "{}", printable_lines(report::plan::check(&spec).trim_end()))?,
            // One wrong spec does not hide the next.
            Err(super::Trouble::Text(diagnostics)) => {
                writeln!(terminal.err, "{}\n", diagnostics.render(terminal.style))?;
                exit = Exit::Usage;
            }
            Err(other) => return Err(other),
        }
    }
    Ok(exit)
}

/// Shows what would run.
pub(super) fn plan(terminal: &mut Terminal, path: &Path, commands: bool, format: Format) -> Answer {
    let opened = open(terminal, path)?;
    let spec = &opened.spec;
    check_hosts(path, spec)?;
    let plan = plan::plan(spec);
    let (timings, spread) = known_from_before(&opened);
    let cost = plan::cost(spec, &plan.sessions, &timings);
    let effect = plan::resolvable_effect(&spread, spec.question.repeats);
    let commands = if commands { session_commands(&opened, &plan)? } else { Vec::new() };
    match format {
        Format::Text => {
            let view =
                PlanView { spec, plan: &plan, cost, timings: &timings, spread: &spread, effect, commands: &commands };
            write!(terminal.out, "{}", printable_lines(&report::plan::plan(&view)))?;
        }
        Format::Json => {
            let mut object = plan.to_json();
            if let Some(members) = object.as_object_mut() {
                members.insert(
                    "cost_s".into(),
                    serde_json::json!({
                        "load": cost.load_s, "prime": cost.prime_s, "warmup": cost.warmup_s, "measure": cost.measure_s,
                    }),
                );
                members.insert("resolvable_effect".into(), effect.into());
                members.insert("spread".into(), serde_json::json!({"sd_log": spread.sd_log, "source": spread.source}));
            }
            writeln!(terminal.out, "{object:#}")?;
        }
    }
    Ok(Exit::Done)
}

/// Returns how long sessions took and how far blocks spread, from this experiment's own record where there is one.
fn known_from_before(opened: &Opened) -> (Timings, Spread) {
    let timings = timings(opened);
    let spread = measured_spread(opened).unwrap_or_else(Spread::assumed);
    (timings, spread)
}

/// Returns how long the parts of a session take, from this experiment's own record where there is one.
pub(super) fn timings(opened: &Opened) -> Timings {
    measured_timings(opened).unwrap_or_else(|| Timings::assumed(&opened.spec))
}

fn headline_metric(opened: &Opened) -> Metric {
    opened.spec.question.metrics().first().copied().unwrap_or(Metric::OutputThroughput)
}

fn measured_timings(opened: &Opened) -> Option<Timings> {
    let sealed = opened.edition.all_sealed().ok()?.into_iter().rfind(|sealed| sealed.session.reason.is_none())?;
    let files = opened.edition.files_of(&sealed.session);
    let status = crate::script::output::status(&files.sealed("status")?).lines;
    let at = |wanted: &crate::script::output::Step| {
        status.iter().find(|line| line.step == *wanted).map(|line| line.uptime_s)
    };
    let (idle, facts) = (at(&crate::script::output::Step::Idle)?, at(&crate::script::output::Step::Facts)?);
    let (after, end) = (at(&crate::script::output::Step::FactsAfter)?, at(&crate::script::output::Step::End)?);
    let mut trial_s = std::collections::BTreeMap::new();
    for run in &sealed.runs {
        let time = |name: &str| {
            let bytes = files.sealed(&format!("{}/{name}", run.run.trial))?;
            crate::script::output::instant(&String::from_utf8_lossy(&bytes)).map(|(_, uptime_s)| uptime_s)
        };
        trial_s.insert(run.run.level.clone(), time("ended")? - time("started")?);
    }
    Some(Timings {
        load_s: (facts - idle) + (end - after),
        trial_s,
        source: format!("as in {}", sealed.session.session),
    })
}

fn measured_spread(opened: &Opened) -> Option<Spread> {
    let standing = opened.edition.sound_ledger().ok()?.standing();
    let question = &opened.spec.question;
    let records = opened.edition.records(question, &standing).ok()?;
    let metric = headline_metric(opened);
    let mut noisiest: Option<(f64, usize)> = None;
    for treatment in question.treatments() {
        for level in &question.levels {
            let condition = Condition { metric, treatment: treatment.to_owned(), level: level.clone() };
            let Ok(comparison) = Comparison::check(question, &records, &condition) else { continue };
            let side = |value: fn(&BlockValue) -> f64| comparison.values().iter().map(value).collect::<Vec<f64>>();
            let paired = stats::paired_log_ratio(&side(|block| block.control), &side(|block| block.treatment), 0.95);
            let Ok(paired) = paired else { continue };
            if noisiest.is_none_or(|(sd, _)| paired.sd_log > sd) {
                noisiest = Some((paired.sd_log, comparison.values().len()));
            }
        }
    }
    let (sd_log, blocks) = noisiest?;
    Some(Spread { sd_log, source: format!("{metric}, the noisiest level over {blocks} blocks of this experiment") })
}

fn session_commands(opened: &Opened, plan: &Plan) -> Result<Vec<SessionCommands>, Failure> {
    let place = Place {
        spec_folder: &opened.spec_folder,
        files: &opened.spec_folder,
        labbook: "labbook",
        port: engine::port_of(&opened.spec.edition()),
    };
    let mut commands = Vec::new();
    for planned in &plan.sessions {
        let input = engine::session(&opened.spec, planned, &place).map_err(|error| Failure::of(Exit::Usage, &error))?;
        commands.push(shown(&input));
    }
    Ok(commands)
}

fn shown(input: &SessionInput) -> SessionCommands {
    let text =
        |words: &[std::ffi::OsString]| words.iter().map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>();
    let variables = |command: &Command| {
        command.env.iter().map(|(name, value)| (name.clone(), value.to_string_lossy().into_owned())).collect()
    };
    SessionCommands {
        session: input.name.clone(),
        env: variables(&input.server),
        server: text(&input.server.argv),
        trials: input.trials.iter().map(|trial| (trial.label.clone(), text(&trial.client.argv))).collect(),
    }
}

/// Prints a JSON Schema.
pub(super) fn schema(terminal: &mut Terminal, lab: bool) -> Answer {
    let schema = if lab { schema::lab() } else { schema::spec() };
    writeln!(terminal.out, "{schema:#}")?;
    Ok(Exit::Done)
}
