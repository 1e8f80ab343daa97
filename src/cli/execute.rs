//! `run`, `try`, `status`, `attach` and `stop`: what is missing is queued on a host, followed, and brought into the record.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use super::bookkeeper::Bookkeeper;
use super::open::{Opened, lab_folder, open, open_all};
use super::reach::{self, Reached};
use super::shown::Shown;
use super::{Answer, Exit, Failure, Format, Terminal, build, infer, intend};
use crate::client::Place;
use crate::digest::Digest;
use crate::engine::{self, EngineError};
use crate::host::{BOOT_ID, Host, HostError};
use crate::ledger::Standing;
use crate::plan::{self, Kind, PlannedSession};
use crate::question::{Engine, Level};
use crate::report::progress;
use crate::runner::missing::Missing;
use crate::runner::{Drive, Ending, Event, Patient, RunError};
use crate::setup::{self, SetupError};
use crate::spec::{ClientKind, Spec};
use crate::store::Store;
use crate::{diagnostic, script};

/// What `labbook run` was asked for besides the spec.
pub(super) struct Wish {
    /// Queue and return.
    pub(super) detach: bool,
    /// Blocks to add.
    pub(super) more: u32,
    /// A block to run again, and why.
    pub(super) redo: Option<(u32, String)>,
}

/// An experiment, its record and its host.
struct Campaign {
    opened: Opened,
    reached: Reached,
}

impl Campaign {
    fn open(terminal: &mut Terminal, spec: &Path) -> Result<Self, super::Trouble> {
        let opened = open(terminal, spec)?;
        runnable(&opened)?;
        let reached = reach::reach(&opened)?;
        Ok(Self { opened, reached })
    }

    /// Takes the lock that keeps a second labbook from driving the same edition.
    fn lock(&self) -> Result<fs::File, Failure> {
        let path = reach::home_folder(&self.opened).join("home.lock");
        let cannot = |error: std::io::Error| Failure::of(Exit::RunFailed, &error).hint(format!("`{}`", path.display()));
        fs::create_dir_all(path.parent().unwrap_or(&path)).map_err(cannot)?;
        let file =
            fs::File::options().create(true).truncate(false).write(true).read(true).open(&path).map_err(cannot)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(fs::TryLockError::WouldBlock) => {
                let name = &self.opened.edition.experiment;
                return Err(Failure::new(
                    Exit::RunFailed,
                    format!("another labbook is driving `{name}` from this lab"),
                )
                .hint("`labbook status` says how far it is; `labbook stop` stops it"));
            }
            Err(fs::TryLockError::Error(error)) => return Err(cannot(error)),
        }
        Ok(file)
    }

    /// Queues what is missing, starts the host's runner and, unless asked to leave at once, follows it to the end.
    fn drive(
        &self,
        keeper: &mut Bookkeeper,
        missing: &Missing,
        shown: &mut Shown,
        detach: bool,
    ) -> Result<Ending, Failure> {
        if missing.sessions.is_empty() {
            return Ok(Ending::Complete);
        }
        let opened = &self.opened;
        let interrupted = Arc::new(AtomicBool::new(false));
        listen(&interrupted)?;
        let port = engine::port_of(&opened.spec.edition());
        let report = RefCell::new(|event: &Event| shown.event(event));
        let host = Patient::new(&*self.reached.host, &report, &interrupted);
        set_up(opened, &host, &self.reached.folder)?;
        let ending = self.placed(&host).map_err(RunError::from).and_then(|placed| {
            let mut drive = Drive {
                spec: &opened.spec,
                host: &host,
                folder: self.reached.folder.clone(),
                place: Place { spec_folder: &opened.spec_folder, files: &placed.files, labbook: &placed.labbook, port },
                keeper,
                report: &report,
                interrupted: &interrupted,
            };
            drive.queue(&missing.sessions)?;
            drive.start()?;
            if detach { Ok(Ending::Detached) } else { drive.follow(&missing.sessions, &missing.begun) }
        });
        shown.clear();
        ending.map_err(|error| run_failure(&error, opened))
    }

    /// Puts on the host what sessions need there beside their own files: this program where it is the engine or the client, and a
    /// data set that lies beside the spec.
    fn placed(&self, host: &dyn Host) -> Result<Placed, HostError> {
        let spec = &self.opened.spec;
        let cannot = |act, path: &Path| {
            let path = path.to_owned();
            move |source| HostError::Files { act, path, source }
        };
        let mut placed = Placed { labbook: "labbook".to_owned(), files: self.opened.spec_folder.clone() };
        if needs_labbook(spec) {
            let this = std::env::current_exe().map_err(cannot("find", Path::new("labbook")))?;
            let (digest, _) = Digest::of_file(&this).map_err(cannot("read", &this))?;
            // The name holds the digest: a program that is rebuilt between two sessions is another file, and seen as such.
            // All editions on a host share it, since a link may be slow.
            let folder = if self.reached.is_here { self.reached.folder.join("bin") } else { host.folder("bin") };
            let program = folder.join(format!("labbook-{}", digest.short(8)));
            host.place_program(&program, &this)?;
            placed.labbook = program.display().to_string();
        }
        if !self.reached.is_here
            && let Some(path) = &spec.workload.dataset_path
            && let Some(digest) = spec.files.get(path)
        {
            placed.files = self.reached.folder.join("files").join(digest.short(12));
            host.place_file(&placed.files.join(path), &self.opened.spec_folder.join(path))?;
        }
        Ok(placed)
    }
}

/// Where on a host the things are that sessions share.
struct Placed {
    labbook: String,
    files: PathBuf,
}

/// Returns whether a server or a client of a spec is this program.
fn needs_labbook(spec: &Spec) -> bool {
    let arms = spec.question.arms.keys();
    spec.server.engine == Engine::Pocketmoe
        || arms.filter_map(|arm| spec.arm(arm)).any(|settings| settings.client.kind == ClientKind::PocketmoeLoad)
}

/// What a host could not do, and the remedy.
pub(super) fn host_failure(error: &HostError) -> Failure {
    error.remedy().into_iter().fold(Failure::of(Exit::RunFailed, error), Failure::hint)
}

/// Refuses what this version cannot start, before anything is begun.
fn runnable(opened: &Opened) -> Result<(), Failure> {
    let spec = &opened.spec;
    let place = Place {
        spec_folder: &opened.spec_folder,
        files: &opened.spec_folder,
        labbook: "labbook",
        port: engine::port_of(&opened.spec.edition()),
    };
    engine::runnable(spec, &place).map_err(|error| {
        let failure = Failure::of(Exit::RunFailed, &error);
        match error {
            EngineError::CannotRun { what, .. } if what.contains("environment:") => {
                failure.hint("build it there by hand and write `environment: { venv: PATH }`")
            }
            _ => failure.hint("`labbook plan` shows what would run"),
        }
    })
}

pub(super) fn failed(error: impl std::error::Error) -> Failure {
    Failure::of(Exit::RunFailed, &error)
}

/// Runs the host's `setup:`, whose variables every server and client there gets. Those of a runner that lives stay as they are.
fn set_up(opened: &Opened, host: &dyn Host, folder: &Path) -> Result<(), Failure> {
    if host.alive(folder).map_err(|error| host_failure(&error))? {
        return Ok(());
    }
    let setup = opened.lab.hosts.get(host.name()).and_then(|entry| entry.setup.as_deref());
    setup::apply(host, folder, setup).map_err(|error| {
        let mut failure = Failure::of(Exit::RunFailed, &error);
        if let SetupError::Failed { said, .. } = &error {
            failure.causes.extend(said.iter().cloned());
            failure = failure.hint(
                "it runs in a clean shell that ends with the first command that fails; what a login would bring (such as \
                 `module`) it has to read itself, as with `. /etc/profile`",
            );
        }
        failure
    })
}

/// Runs what is missing.
pub(super) fn run(terminal: &mut Terminal, spec: &Path, wish: &Wish, format: Format) -> Answer {
    let campaign = Campaign::open(terminal, spec)?;
    let _lock = campaign.lock()?;
    let mut keeper = Bookkeeper::open(&campaign.opened)?;
    let boot_id = campaign.reached.host.read(Path::new(BOOT_ID), 0).map_err(|error| host_failure(&error))?;
    let mut missing = keeper.plan(wish, String::from_utf8_lossy(&boot_id).trim())?;
    let left = left_on_the_host(&campaign, &keeper.standing, &missing)?;
    missing.sessions.splice(..0, left);
    carry_out(terminal, &campaign, keeper, &missing, wish.detach, format)
}

/// Returns the sessions in the host's queue that the record lacks and that are not wanted any more, such as the other arm of an
/// attempt that another invocation gave up: the host has run them or will, and no run is lost.
fn left_on_the_host(
    campaign: &Campaign,
    standing: &Standing,
    missing: &Missing,
) -> Result<Vec<PlannedSession>, Failure> {
    let queue =
        campaign.reached.host.list(&campaign.reached.folder.join("queue")).map_err(|error| host_failure(&error))?;
    let queued =
        |name: &str| queue.iter().any(|entry| entry.split_once('-').is_some_and(|(_, session)| session == name));
    let wanted = |name: &str| missing.sessions.iter().any(|session| session.name == name);
    let spec = &campaign.opened.spec;
    let mut left = all_planned(spec, standing);
    let names = queue.iter().filter_map(|entry| Some(entry.split_once('-')?.1));
    left.extend(names.filter_map(|name| look_named(spec, name)));
    left.retain(|session| !standing.is_sealed(&session.name) && !wanted(&session.name) && queued(&session.name));
    Ok(left)
}

/// Returns the look that has this name.
fn look_named(spec: &Spec, name: &str) -> Option<PlannedSession> {
    let rest = name.strip_prefix("look-")?;
    spec.question.arms.keys().find_map(|arm| {
        let label = rest.strip_prefix(arm.as_str())?.strip_prefix('-')?;
        // A label is a letter and the level with zeros in front; another attempt has a number behind it.
        let level =
            |text: &str| Level(text.trim_start_matches(|letter: char| !('1'..='9').contains(&letter)).to_owned());
        let whole = plan::look(spec, arm, &level(label));
        if whole.name == name {
            return Some(whole);
        }
        let (label, attempt) = label.rsplit_once('.')?;
        let mut again = plan::look(spec, arm, &level(label));
        again.attempt = attempt.parse().ok()?;
        again.name = format!("{}.{attempt}", again.name);
        (again.name == name).then_some(again)
    })
}

/// Follows what goes on.
pub(super) fn attach(terminal: &mut Terminal, spec: &Path, format: Format) -> Answer {
    let campaign = Campaign::open(terminal, spec)?;
    let _lock = campaign.lock()?;
    let keeper = Bookkeeper::open(&campaign.opened)?;
    let standing = &keeper.standing;
    let open: Vec<PlannedSession> = all_planned(&campaign.opened.spec, standing)
        .into_iter()
        .filter(|session| !standing.is_sealed(&session.name))
        .collect();
    if open.is_empty() {
        writeln!(terminal.err, "nothing of `{}` is under way", campaign.opened.edition.experiment)?;
        return Ok(Exit::Done);
    }
    let begun = open.iter().filter_map(|session| Some((session.block?, session.attempt))).collect();
    let missing = Missing { sessions: open, superseded: Vec::new(), begun };
    carry_out(terminal, &campaign, keeper, &missing, false, format)
}

/// Returns every session that the ledger plans, as the plan makes it.
fn all_planned(spec: &Spec, standing: &Standing) -> Vec<PlannedSession> {
    let mut sessions = plan::primes(spec);
    for block in 1..=standing.blocks.max(spec.question.repeats) {
        let mut attempt = 1;
        loop {
            let of_block = plan::retry_block(spec, block, attempt);
            if of_block.is_empty() || !of_block.iter().all(|session| standing.planned.contains(&session.name)) {
                break;
            }
            sessions.extend(of_block);
            attempt += 1;
        }
    }
    sessions.retain(|session| standing.planned.contains(&session.name));
    sessions
}

fn carry_out(
    terminal: &mut Terminal,
    campaign: &Campaign,
    mut keeper: Bookkeeper,
    missing: &Missing,
    detach: bool,
    format: Format,
) -> Answer {
    let began = Instant::now();
    let opened = &campaign.opened;
    let mut shown = Shown::new(terminal, format, missing);
    shown.event(&Event::Plan {
        experiment: opened.edition.experiment.clone(),
        edition: opened.edition.edition.clone(),
        arms: opened.spec.question.arms.keys().cloned().collect(),
        blocks: keeper.standing.blocks,
        levels: opened.spec.question.levels.len(),
        sessions: missing.sessions.len(),
        trials: missing.sessions.iter().map(|session| session.trials.len()).sum(),
        estimate_s: (!missing.sessions.is_empty())
            .then(|| plan::cost(&opened.spec, &missing.sessions, &intend::timings(opened)).total_s()),
    });
    let folder = campaign.reached.folder.display().to_string();
    shown.event(&Event::Host { host: campaign.reached.host.name().to_owned(), folder });
    let attach_with = format!("labbook attach {}", opened.path.display());
    let ending = campaign.drive(&mut keeper, missing, &mut shown, detach)?;
    if ending == Ending::Detached {
        shown.event(&Event::Detached { attach: attach_with });
        return Ok(if detach { Exit::Done } else { Exit::Interrupted });
    }
    let complete = keeper.complete_blocks()?;
    let blocks = keeper.standing.blocks;
    shown.event(&Event::Done {
        finished: keeper.finished,
        failed: keeper.failed,
        complete_blocks: complete,
        blocks,
        seconds: began.elapsed().as_secs_f64(),
    });
    if let Ending::Stopped(because) = ending {
        let what = format!("the plan was stopped: {because}");
        return Err(Failure::new(Exit::RunFailed, what)
            .hint("after a fix, `labbook run` goes on with what is missing")
            .into());
    }
    if complete < blocks {
        let what = format!("{} of {blocks} blocks have no usable attempt", blocks - complete);
        return Err(Failure::new(Exit::RunFailed, what).hint("`labbook run` tries them again").into());
    }
    drop(shown);
    if format == Format::Text {
        infer::show(terminal, opened)?;
        build::after_run(terminal, &opened.root)?;
    }
    Ok(Exit::Done)
}

/// Sets `interrupted` on the first Ctrl-C (or SIGTERM, or a closed terminal); the second one ends this program at once.
pub(super) fn listen(interrupted: &Arc<AtomicBool>) -> Result<(), Failure> {
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM, signal_hook::consts::SIGHUP] {
        signal_hook::flag::register_conditional_shutdown(signal, 128 + signal, Arc::clone(interrupted))
            .map_err(failed)?;
        signal_hook::flag::register(signal, Arc::clone(interrupted)).map_err(failed)?;
    }
    Ok(())
}

fn run_failure(error: &RunError, opened: &Opened) -> Failure {
    let failure = Failure::of(Exit::RunFailed, error);
    let spec = opened.path.display();
    match error {
        RunError::Busy { .. } => failure.hint("two experiments never measure together; try again when it is over"),
        RunError::Dirty { .. } => failure
            .hint(format!("remove what is left, then `labbook run {spec}`: it verifies before it starts anything")),
        RunError::Record(_) => {
            failure.hint(format!("nothing is lost: the session stays on the host; `labbook run {spec}` brings it home"))
        }
        RunError::Host(error) => {
            let failure = error.remedy().into_iter().fold(failure, Failure::hint);
            failure.hint(format!("`labbook run {spec}` goes on with what is missing"))
        }
        _ => failure.hint(format!("`labbook run {spec}` goes on with what is missing")),
    }
}

/// Launches one arm once.
pub(super) fn look(terminal: &mut Terminal, spec: &Path, arm: &str, at: &str, format: Format) -> Answer {
    let campaign = Campaign::open(terminal, spec)?;
    let opened = &campaign.opened;
    let question = &opened.spec.question;
    let level = question.levels.iter().find(|level| level.0 == at).cloned().unwrap_or_else(|| Level(at.to_owned()));
    if !question.arms.contains_key(arm) {
        let arms: Vec<&str> = question.arms.keys().map(String::as_str).collect();
        return Err(Failure::new(Exit::Usage, format!("there is no arm `{arm}`"))
            .hint(format!("the arms are {}", arms.join(", ")))
            .into());
    }
    if !(level.number().is_finite() && level.number() > 0.0) {
        let what = format!("`{at}` is not a level of {}", question.axis.name());
        return Err(Failure::new(Exit::Usage, what).hint("a number above 0, such as 16").into());
    }
    let _lock = campaign.lock()?;
    let keeper = Bookkeeper::open(opened)?;
    let mut session = plan::look(&opened.spec, arm, &level);
    debug_assert_eq!(session.kind, Kind::Look);
    let base = session.name.clone();
    while keeper.standing.is_sealed(&session.name) || keeper.standing.planned.contains(&session.name) {
        session.attempt += 1;
        session.name = format!("{base}.{}", session.attempt);
    }
    let name = session.name.clone();
    let missing = Missing { sessions: vec![session], superseded: Vec::new(), begun: BTreeMap::new() };
    follow_look(terminal, &campaign, keeper, &missing, format)?;
    let sealed = opened.edition.sealed(&name).map_err(failed)?;
    if let Some(reason) = &sealed.session.reason {
        return Err(Failure::new(Exit::RunFailed, format!("`{name}` failed: {reason}")).into());
    }
    infer::nearest(terminal, opened, &sealed, format)
}

fn follow_look(
    terminal: &mut Terminal,
    campaign: &Campaign,
    mut keeper: Bookkeeper,
    missing: &Missing,
    format: Format,
) -> Result<(), super::Trouble> {
    let mut shown = Shown::new(terminal, format, missing);
    match campaign.drive(&mut keeper, missing, &mut shown, false)? {
        Ending::Detached => Err(Failure::new(Exit::Interrupted, "left before the look was over")
            .hint("it is brought home by the next `labbook run`, `try` or `attach`")
            .into()),
        _ => Ok(()),
    }
}

/// Says how far everything is.
pub(super) fn status(terminal: &mut Terminal, spec: Option<&Path>, format: Format) -> Answer {
    let mut lines = Vec::new();
    let mut objects = Vec::new();
    let mut unreached = None;
    for opened in open_all(terminal, spec)? {
        let standing = opened.edition.sound_ledger().map_err(failed)?.standing();
        let mut view = progress::Standing {
            experiment: opened.edition.experiment.clone(),
            edition: opened.edition.edition.clone(),
            planned: standing.planned.len(),
            finished: standing.finished.len(),
            failed: standing.failed.iter().map(|(name, (reason, _))| (name.clone(), reason.clone())).collect(),
            blocks: standing.blocks,
            superseded: standing.superseded.len(),
            running: None,
            runner_lives: false,
            dirty: None,
            unreached: None,
        };
        // What is recorded is told even where the host does not answer.
        if let Err(failure) = reach::reach(&opened).and_then(|reached| look_at(&reached, &mut view)) {
            view.unreached = Some(failure.what.clone());
            unreached = Some(failure);
        }
        lines.push(progress::standing(&view));
        objects.push(view);
    }
    match format {
        Format::Json => writeln!(terminal.out, "{}", serde_json::to_string_pretty(&objects).map_err(failed)?)?,
        Format::Text => {
            let others = if spec.is_none() { other_editions(&objects)? } else { Vec::new() };
            match (lines.is_empty(), others.is_empty()) {
                (true, true) => writeln!(terminal.out, "nothing was run in this lab")?,
                (false, _) => writeln!(terminal.out, "{}", lines.join("\n\n"))?,
                (true, false) => {}
            }
            for other in others {
                writeln!(terminal.out, "{other}")?;
            }
        }
    }
    match unreached {
        Some(failure) => Err(failure.into()),
        None => Ok(Exit::Done),
    }
}

/// Adds what the host says.
fn look_at(reached: &Reached, view: &mut progress::Standing) -> Result<(), Failure> {
    let (host, folder) = (&*reached.host, &reached.folder);
    view.runner_lives = host.alive(folder).map_err(|error| host_failure(&error))?;
    if view.runner_lives {
        view.running = running(host, folder);
    }
    let dirty = host.read(&folder.join("dirty"), 0).map_err(|error| host_failure(&error))?;
    view.dirty = (!dirty.is_empty()).then(|| diagnostic::printable(&String::from_utf8_lossy(&dirty)));
    Ok(())
}

/// Returns a line for each stored edition that no spec stands for as it is now.
fn other_editions(shown: &[progress::Standing]) -> Result<Vec<String>, Failure> {
    let store = Store::new(lab_folder(Path::new("."))?);
    let mut lines = Vec::new();
    for experiment in store.experiments().map_err(failed)? {
        for edition in store.editions(&experiment).map_err(failed)? {
            if shown.iter().any(|view| (&view.experiment, &view.edition) == (&experiment, &edition.edition)) {
                continue;
            }
            lines.push(format!(
                "{experiment} {}  stored; experiments/ asks for another edition by now",
                edition.edition
            ));
        }
    }
    lines.extend(
        crate::import::editions(&store.results())
            .map_err(failed)?
            .into_iter()
            .map(|(experiment, edition)| format!("{experiment} {edition}  imported")),
    );
    Ok(lines)
}

/// Returns the session that runs, and its last step.
fn running(host: &dyn Host, folder: &Path) -> Option<String> {
    let journal = host.read(&folder.join("journal"), 0).ok()?;
    let last =
        script::output::journal(&journal).lines.into_iter().rev().find(|line| {
            matches!(line.event, script::output::Event::SessionStart | script::output::Event::SessionEnd)
        })?;
    if last.event == script::output::Event::SessionEnd {
        return None;
    }
    let status = host.read(&folder.join("queue").join(&last.name).join("out/status"), 0).ok()?;
    let text = String::from_utf8_lossy(&status).into_owned();
    let step = text.lines().last().and_then(|line| line.split_whitespace().nth(2)).unwrap_or("starting");
    Some(format!("{} (after `{}`)", last.name, diagnostic::printable(step)))
}

/// Stops what goes on.
pub(super) fn stop(terminal: &mut Terminal, spec: &Path) -> Answer {
    let opened = open(terminal, spec)?;
    let reached = reach::reach(&opened)?;
    let (host, folder) = (&*reached.host, &reached.folder);
    if !host.alive(folder).map_err(|error| host_failure(&error))? {
        writeln!(terminal.err, "nothing of `{}` is running", opened.edition.experiment)?;
        return Ok(Exit::Done);
    }
    host.request_stop(folder).map_err(|error| host_failure(&error))?;
    writeln!(terminal.err, "asked `{}` to stop; waiting until its server is gone", opened.edition.experiment)?;
    let began = Instant::now();
    while host.alive(folder).map_err(|error| host_failure(&error))? {
        if began.elapsed().as_secs() > 180 {
            return Err(Failure::new(Exit::RunFailed, "it is still stopping after 180 s")
                .hint("`labbook status` says when it is over")
                .into());
        }
        std::thread::sleep(host.pace());
    }
    writeln!(terminal.err, "stopped; `labbook run {}` goes on with what is missing", spec.display())?;
    Ok(Exit::Done)
}
