//! `labbook plan` and the summary of `labbook check`, as text at 80 columns.
//!
//! Invariant: a command is shown exactly as it will be passed, argument by argument; quoting is for display, nothing is ever
//! run through it.

use std::fmt::Write as _;

use crate::plan::{Cost, Kind, Plan, Spread, Timings};
use crate::question::{Asked, Axis};
use crate::spec::Spec;

/// Widest line of running text.
const WIDTH: usize = 80;
/// Where values start.
const VALUES: usize = 12;

/// The commands of one session, as they will be passed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionCommands {
    /// Name of the session.
    pub session: String,
    /// Variables that the spec sets for the server.
    pub env: Vec<(String, String)>,
    /// The server's arguments, the program first.
    pub server: Vec<String>,
    /// For each trial its label and the client's arguments, the program first.
    pub trials: Vec<(String, Vec<String>)>,
}

/// What there is to show of a plan.
#[derive(Debug)]
pub struct PlanView<'a> {
    /// What was asked for.
    pub spec: &'a Spec,
    /// What would run.
    pub plan: &'a Plan,
    /// What it costs.
    pub cost: Cost,
    /// What the cost rests on.
    pub timings: &'a Timings,
    /// What the resolution rests on.
    pub spread: &'a Spread,
    /// Smallest effect that is found in 80 of 100 experiments, as a fraction; `None` below two blocks.
    pub effect: Option<f64>,
    /// Commands of the sessions; empty to leave them out.
    pub commands: &'a [SessionCommands],
}

/// Renders `labbook plan`.
pub fn plan(view: &PlanView<'_>) -> String {
    let mut out = String::new();
    let _ = writeln!(out, "Plan {}  edition {}", view.plan.experiment, view.plan.edition.short(8));
    out.push_str(&wrapped(&view.spec.title, 0));
    out.push('\n');
    meaning(&mut out, view.spec);
    order(&mut out, view);
    cost(&mut out, view);
    resolution(&mut out, view);
    chain(&mut out, view.spec);
    commands(&mut out, view.commands);
    out
}

/// Renders the summary of `labbook check`: what a spec without errors means.
pub fn check(spec: &Spec) -> String {
    let mut out = String::new();
    let _ = writeln!(out, "{}  edition {}", spec.question.experiment, spec.edition().short(8));
    out.push_str(&wrapped(&spec.title, 0));
    out.push('\n');
    meaning(&mut out, spec);
    out
}

fn meaning(out: &mut String, spec: &Spec) {
    let question = &spec.question;
    let factor: Vec<&str> = question.factor.iter().map(crate::fact::FactKey::as_str).collect();
    for (place, key) in factor.iter().enumerate() {
        row(out, if place == 0 { "factor" } else { "" }, key);
    }
    let widest = question.arms.keys().map(|arm| columns(arm)).max().unwrap_or(0);
    for (place, (arm, values)) in question.arms.iter().enumerate() {
        let values: Vec<String> = values.iter().map(Asked::to_string).collect();
        let role = if *arm == question.control {
            "control"
        } else if question.is_null_control(arm) {
            "null control"
        } else {
            "treatment"
        };
        let padding = " ".repeat(widest - columns(arm));
        row(out, if place == 0 { "arms" } else { "" }, &format!("{arm}{padding}  {role:9}  {}", values.join(", ")));
    }
    row(out, "server", &server(spec));
    row(out, "load", &load(spec));
    row(out, "design", &design(spec));
    for (place, (name, claim)) in question.claims.iter().enumerate() {
        let by = claim.by.map(|by| format!(" by {}", percent(by))).unwrap_or_default();
        let axis = question.axis.name();
        let text = format!(
            "{name}: {} of {} at {axis} {} is {}{by}",
            claim.metric,
            claim.treatment,
            claim.at,
            claim.expect.name().replace('_', " ")
        );
        row(out, if place == 0 { "claims" } else { "" }, &text);
    }
    if question.claims.is_empty() && question.headline.is_none() {
        row(out, "claims", "none: every difference will be exploratory");
    }
    let margin = question.margin.map_or_else(|| "the noise floor, at least 1 %".to_owned(), percent);
    row(out, "margin", &margin);
    for (name, reason) in &spec.allow {
        row(out, "unsafe", &format!("{name}: {reason}"));
    }
}

fn server(spec: &Spec) -> String {
    let model = spec.server.model.as_ref().map(|model| format!(" with {model}")).unwrap_or_default();
    format!("{}{model} on {}", spec.server.engine.name(), spec.hosts.join(", "))
}

fn load(spec: &Spec) -> String {
    let load = &spec.workload;
    let levels: Vec<&str> = spec.question.levels.iter().map(|level| level.0.as_str()).collect();
    let mut parts = vec![format!("{} {}", spec.question.axis.name(), levels.join(", "))];
    if let (Some(concurrency), true) = (load.concurrency, spec.question.axis != Axis::Concurrency) {
        parts.push(format!("concurrency {concurrency}"));
    }
    let input = load.input_tokens.map(|tokens| format!("{tokens} tokens in, ")).unwrap_or_default();
    parts.push(format!("{input}{} out", load.output_tokens));
    parts.push(format!("{} requests per user", load.prompts_per_user));
    if let Some(rate) = load.request_rate {
        parts.push(format!("{rate} requests per second"));
    }
    parts.push(format!("by {}", load.client.kind.name()));
    parts.join("; ")
}

fn design(spec: &Spec) -> String {
    let question = &spec.question;
    let (arms, levels) = (question.arms.len(), question.levels.len());
    let launches = arms * question.repeats as usize;
    let trials = launches * levels * question.passes as usize;
    format!(
        "{} × {} × {} × {} = {} in {}",
        counted(arms, "arm"),
        counted(question.repeats as usize, "block"),
        counted(levels, "level"),
        if question.passes == 1 { "1 pass".to_owned() } else { format!("{} passes", question.passes) },
        counted(trials, "trial"),
        if launches == 1 { "1 launch".to_owned() } else { format!("{launches} launches") }
    )
}

fn order(out: &mut String, view: &PlanView<'_>) {
    out.push_str("\nOrder\n");
    let primes: Vec<&str> =
        view.plan.sessions.iter().filter(|session| session.kind == Kind::Prime).map(|session| &*session.arm).collect();
    if !primes.is_empty() {
        row(out, "prime", &format!("{}  (recorded, never averaged)", primes.join(", ")));
    }
    let mut blocks: Vec<u32> = view.plan.sessions.iter().filter_map(|session| session.block).collect();
    blocks.dedup();
    for block in blocks {
        let sessions: Vec<_> = view.plan.sessions.iter().filter(|session| session.block == Some(block)).collect();
        let arms: Vec<&str> = sessions.iter().map(|session| &*session.arm).collect();
        let host = if view.spec.hosts.len() > 1 { format!(" on {}", sessions[0].host) } else { String::new() };
        let levels: Vec<&str> = sessions[0].trials.iter().map(|trial| &*trial.level.0).collect();
        row(out, &format!("b{block:02}"), &format!("{}{host}  at {}", arms.join(", then "), levels.join(" ")));
    }
}

fn cost(out: &mut String, view: &PlanView<'_>) {
    out.push_str("\nCost\n");
    let cost = &view.cost;
    let launches = view.plan.sessions.iter().filter(|session| session.kind != Kind::Prime).count();
    let primes = view.plan.sessions.len() - launches;
    let waves = view.spec.workload.warmup.waves as usize;
    let parts = [
        ("load", cost.load_s, format!("{launches} launches")),
        ("prime", cost.prime_s, counted(primes, "session")),
        ("warm-up", cost.warmup_s, format!("{} before each run", counted(waves, "wave"))),
        ("measure", cost.measure_s, String::new()),
        ("total", cost.total_s(), String::new()),
    ];
    for (name, seconds, note) in parts {
        row(out, name, format!("{:>8}  {note}", duration(seconds)).trim_end());
    }
    row(out, "from", &view.timings.source);
}

fn resolution(out: &mut String, view: &PlanView<'_>) {
    out.push_str("\nResolution\n");
    let blocks = view.spec.question.repeats;
    let sd = percent(view.spread.sd_log);
    let text = match view.effect {
        Some(effect) => format!(
            "{} or more is found in 80 of 100 such experiments ({}; the log ratio varies by SD {sd} from block to block: {})",
            percent(effect),
            counted(blocks as usize, "block"),
            view.spread.source
        ),
        None => "nothing: an interval needs at least two blocks".to_owned(),
    };
    row(out, "effect", &text);
    if let (Some(effect), Some(margin)) = (view.effect, view.spec.question.margin)
        && effect > margin
    {
        let text = format!(
            "the margin of {} is finer than that: claims of `unchanged` will be inconclusive; more blocks help",
            percent(margin)
        );
        row(out, "warning", &text);
    }
}

/// The class of a factor's key: what moves with it.
fn class(key: &str) -> &'static str {
    match key {
        key if key.starts_with("source.") => "source",
        key if key.starts_with("environment.") => "environment",
        key if key.starts_with("server.env.") => "env",
        key if key.starts_with("server.args.") => "args",
        "server.model" => "model",
        _ => "client",
    }
}

/// A bundle of several classes is a package: no part of it can be credited alone.
fn chain(out: &mut String, spec: &Spec) {
    let mut classes: Vec<&str> = spec.question.factor.iter().map(|key| class(key.as_str())).collect();
    classes.sort_unstable();
    classes.dedup();
    if classes.len() < 2 {
        return;
    }
    out.push_str("\nPackage\n");
    let text = format!(
        "the arms differ in {}: a claim is about all of it together. To credit one part, add arms between: old/off, new/off, new/on",
        classes.join(" and ")
    );
    row(out, "note", &text);
}

fn commands(out: &mut String, commands: &[SessionCommands]) {
    if commands.is_empty() {
        return;
    }
    out.push_str("\nCommands\n");
    let mut shown: Vec<(&SessionCommands, Vec<&str>)> = Vec::new();
    for session in commands {
        match shown.iter_mut().find(|(other, _)| same_commands(other, session)) {
            Some((_, names)) => names.push(&session.session),
            None => shown.push((session, vec![&session.session])),
        }
    }
    for (session, names) in shown {
        out.push_str(&wrapped(&names.join(", "), 2));
        let env = session.env.iter().map(|(name, value)| format!("{name}={}", quoted(value)));
        let words: Vec<String> = env.chain(session.server.iter().map(|argument| quoted(argument))).collect();
        out.push_str(&command(&words));
        for (label, arguments) in &session.trials {
            let _ = writeln!(out, "    # {label}");
            out.push_str(&command(&arguments.iter().map(|argument| quoted(argument)).collect::<Vec<_>>()));
        }
    }
}

/// Two sessions differ in name and order of trials only.
fn same_commands(one: &SessionCommands, other: &SessionCommands) -> bool {
    let sorted = |session: &SessionCommands| {
        let mut trials = session.trials.clone();
        trials.sort();
        trials
    };
    one.env == other.env && one.server == other.server && sorted(one) == sorted(other)
}

/// One command over several lines, continued as a shell would; a word that is longer than a line stays whole.
fn command(words: &[String]) -> String {
    let mut lines: Vec<String> = Vec::new();
    for word in words {
        match lines.last_mut() {
            Some(line) if columns(line) + 1 + columns(word) + 2 <= WIDTH => {
                line.push(' ');
                line.push_str(word);
            }
            Some(_) => lines.push(format!("      {word}")),
            None => lines.push(format!("    {word}")),
        }
    }
    lines.join(" \\\n") + "\n"
}

/// Returns an argument as a POSIX shell would have to be given it. For display alone.
pub fn quoted(argument: &str) -> String {
    let plain = |character: char| character.is_ascii_alphanumeric() || "-_./:=,@%+".contains(character);
    if !argument.is_empty() && argument.chars().all(plain) {
        return argument.to_owned();
    }
    format!("'{}'", argument.replace('\'', "'\\''"))
}

fn row(out: &mut String, name: &str, value: &str) {
    let text = wrapped(value, VALUES);
    let label = format!("  {name:<width$}", width = VALUES - 2);
    out.push_str(&label);
    out.push_str(text.trim_start_matches(' '));
}

/// Breaks text at blanks into lines of at most 80 columns, each indented; runs of blanks inside a line are kept.
fn wrapped(text: &str, indent: usize) -> String {
    let margin = " ".repeat(indent);
    let mut lines = vec![margin.clone()];
    for word in text.split(' ') {
        let line = lines.last_mut().expect("there is always a line");
        if columns(line) > indent && columns(line) + columns(word) > WIDTH {
            lines.push(format!("{margin}{word} "));
        } else {
            line.push_str(word);
            line.push(' ');
        }
    }
    lines.iter().flat_map(|line| [line.trim_end(), "\n"]).collect()
}

fn columns(text: &str) -> usize {
    text.chars().count()
}

fn counted(number: usize, noun: &str) -> String {
    if number == 1 { format!("1 {noun}") } else { format!("{number} {noun}s") }
}

fn percent(fraction: f64) -> String {
    let text = format!("{:.2}", fraction * 100.0);
    let text = text.trim_end_matches('0').trim_end_matches('.');
    format!("{text} %")
}

fn duration(seconds: f64) -> String {
    let whole = seconds.max(0.0).round() as u64;
    match whole {
        0..60 => format!("{whole} s"),
        60..3600 => format!("{}m {:02}s", whole / 60, whole % 60),
        _ => format!("{}h {:02}m", whole / 3600, whole / 60 % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan;

    fn spec(name: &str, text: &str) -> Spec {
        crate::spec::parse(&crate::yaml::source(name, text), std::path::Path::new("experiments")).expect("a spec").0
    }

    fn pinned(name: &str, text: &str) {
        insta::with_settings!({ omit_expression => true }, { insta::assert_snapshot!(name, text) });
    }

    fn quickstart() -> Spec {
        spec("experiments/quickstart.yaml", include_str!("../../experiments/quickstart.yaml"))
    }

    fn rendered(spec: &Spec, commands: &[SessionCommands]) -> String {
        let planned = plan::plan(spec);
        let timings = Timings::assumed(spec);
        let spread = Spread::assumed();
        let effect = plan::resolvable_effect(&spread, spec.question.repeats);
        let cost = plan::cost(spec, &planned.sessions, &timings);
        super::plan(&PlanView { spec, plan: &planned, cost, timings: &timings, spread: &spread, effect, commands })
    }

    #[test]
    fn the_quickstart_is_planned() {
        let spec = quickstart();
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let of = |session: &str, backend: &str| SessionCommands {
            session: session.into(),
            env: vec![("NOTE".into(), "it's".into())],
            server: words(&format!("labbook pocket serve --moe-runner-backend {backend} --random-seed 1 --port 30000")),
            trials: vec![("c0001-p1".into(), words("labbook pocket load --max-concurrency 1 --num-prompts 8"))],
        };
        let commands = [of("b01-loop", "loop"), of("b01-grouped", "grouped"), of("b02-loop", "loop")];
        let text = rendered(&spec, &commands);
        assert!(text.lines().all(|line| columns(line) <= WIDTH), "{text}");
        pinned("quickstart", &text);
    }

    #[test]
    fn every_experiment_of_the_repository_fits_80_columns() {
        let cases = [
            ("oea", include_str!("../../experiments/oea.yaml")),
            ("aa", include_str!("../../experiments/aa.yaml")),
            ("cutedsl", include_str!("../../experiments/cutedsl.yaml")),
        ];
        for (name, text) in cases {
            let text = rendered(&spec(&format!("{name}.yaml"), text), &[]);
            assert!(text.lines().all(|line| columns(line) <= WIDTH), "{text}");
            pinned(name, &text);
        }
    }

    #[test]
    fn a_check_says_what_the_spec_means() {
        pinned("check", &check(&quickstart()));
    }

    #[test]
    fn a_package_is_called_one() {
        let text = include_str!("../../experiments/oea.yaml")
            .replace("server.env.SGLANG_OEA_MIN_BATCH", "server.args.compute-threads")
            .replace("[unset, unset]", "[unset, 1]");
        assert!(rendered(&spec("oea.yaml", &text), &[]).contains("Package"));
    }

    #[test]
    fn quoting_shows_each_argument_as_one_word() {
        assert_eq!(quoted(""), "''");
        assert_eq!(quoted("--tp-size"), "--tp-size");
        assert_eq!(quoted("it's $HOME"), "'it'\\''s $HOME'");
        assert_eq!(wrapped("", 2), "\n");
        assert_eq!((duration(0.0), duration(59.6), duration(3700.0)), ("0 s".into(), "1m 00s".into(), "1h 01m".into()));
    }
}
