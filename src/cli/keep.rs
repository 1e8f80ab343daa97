//! `check` without arguments, and `show`: the record as it is.

use std::io::Write;
use std::path::Path;

use super::open::{Opened, lab_folder, open, specs_of};
use super::{Answer, Exit, Failure, Format, Terminal, Trouble};
use crate::diagnostic::printable;
use crate::digest::Digest;
use crate::report::{progress::counted, record as report};
use crate::site::evidence::claims_on;
use crate::spec;
use crate::store::{Edition, Found, SealedRun, Store, StoreError};
use crate::yaml;

fn failed(error: &StoreError) -> Failure {
    Failure::of(Exit::RunFailed, error)
}

/// Checks every spec and every stored byte of the lab.
pub(super) fn check(terminal: &mut Terminal) -> Answer {
    let root = lab_folder(Path::new("."))?;
    let mut exit = Exit::Done;
    let mut specs = 0_usize;
    for path in specs_of(&root)? {
        specs += 1;
        match open(terminal, &path) {
            Ok(_) => {}
            Err(Trouble::Text(diagnostics)) => {
                writeln!(terminal.err, "{}\n", diagnostics.render(terminal.style))?;
                exit = Exit::Usage;
            }
            Err(other) => return Err(other),
        }
    }
    let store = Store::new(&root);
    let (mut editions, mut runs, mut wrong) = (0_usize, 0_usize, 0_usize);
    for experiment in store.experiments().map_err(|error| failed(&error))? {
        for edition in store.editions(&experiment).map_err(|error| failed(&error))? {
            editions += 1;
            let problems = edition.verify().map_err(|error| failed(&error))?;
            runs += edition
                .all_sealed()
                .map_or(0, |sessions| sessions.iter().map(|sealed| sealed.runs.len()).sum::<usize>());
            for problem in &problems {
                wrong += 1;
                let claims = claims_on(&edition, problem);
                writeln!(terminal.out, "{}", report::problem(&edition.folder, problem, &claims))?;
            }
        }
    }
    for name in store.strangers().map_err(|error| failed(&error))? {
        wrong += 1;
        writeln!(terminal.out, "{}", printable(&format!("results/{name}: not part of the record")))?;
    }
    let imports =
        crate::import::editions(&store.results()).map_err(|error| Failure::of(Exit::RunFailed, &error))?.len();
    for line in crate::import::verify(&store.results()).map_err(|error| Failure::of(Exit::RunFailed, &error))? {
        wrong += 1;
        writeln!(terminal.out, "{}", printable(&line))?;
    }
    if wrong > 0 {
        writeln!(terminal.err, "{} not as sealed", counted(wrong, "file"))?;
        return Ok(Exit::EvidenceSaysNo);
    }
    if exit == Exit::Done {
        writeln!(
            terminal.out,
            "{} read well; {} with {} and {} as sealed",
            counted(specs, "spec"),
            counted(editions, "edition"),
            counted(runs, "run"),
            counted(imports, "import")
        )?;
    }
    Ok(exit)
}

/// Shows a run, a file of it, or the runs of an experiment.
pub(super) fn show(terminal: &mut Terminal, what: &str, file: Option<&str>, format: Format) -> Answer {
    let root = lab_folder(Path::new("."))?;
    let store = Store::new(&root);
    let editions = store.editions(what).map_err(|error| failed(&error))?;
    if !editions.is_empty() {
        return show_experiment(terminal, &editions, format);
    }
    let (edition, run) = find(&store, what)?;
    let sealed = edition.sealed(&run.run.session).map_err(|error| failed(&error))?;
    let files = edition.files_of(&sealed.session);
    if let Some(file) = file {
        let within = [format!("{}/{file}", run.run.trial), file.to_owned()];
        let Some(bytes) = within.iter().find_map(|path| files.sealed(path)) else {
            let known: Vec<&str> =
                run.run.files.keys().chain(sealed.session.files.keys()).map(String::as_str).collect();
            let mut failure =
                Failure::new(Exit::Usage, format!("run {} has no file `{}`", run.id.short(8), printable(file)));
            failure.hints.push(crate::diagnostic::did_you_mean(file, known.iter().copied()).map_or_else(
                || format!("`labbook show {}` lists its files", run.id.short(8)),
                |near| format!("did you mean `{near}`?"),
            ));
            return Err(failure.into());
        };
        terminal.out.write_all(&bytes)?;
        return Ok(Exit::Done);
    }
    match format {
        Format::Json => {
            let object = serde_json::json!({"id": run.id, "run": run.run, "session": sealed.session});
            writeln!(terminal.out, "{object:#}")?;
        }
        Format::Text => {
            let opened = frozen(&edition)?;
            let standing = edition.sound_ledger().map_err(|error| failed(&error))?.standing();
            let records = edition.records_of(&sealed, &opened.question, &standing);
            let record = records.iter().find(|record| record.id == run.id);
            write!(terminal.out, "{}", report::run(&run, &sealed.session, record))?;
        }
    }
    Ok(Exit::Done)
}

fn show_experiment(terminal: &mut Terminal, editions: &[Edition], format: Format) -> Answer {
    let mut objects = Vec::new();
    for edition in editions {
        let standing = edition.sound_ledger().map_err(|error| failed(&error))?.standing();
        let mut sealed = edition.all_sealed().map_err(|error| failed(&error))?;
        // In the order of the plan; looks, which no plan has, come last.
        let planned = |name: &String| standing.planned.iter().position(|other| other == name).unwrap_or(usize::MAX);
        sealed.sort_by_key(|sealed| planned(&sealed.session.session));
        match format {
            Format::Text => {
                let opened = frozen(edition)?;
                let records: Vec<_> =
                    sealed.iter().flat_map(|sealed| edition.records_of(sealed, &opened.question, &standing)).collect();
                write!(terminal.out, "{}", report::edition(edition, &sealed, &records))?;
            }
            Format::Json => objects.extend(sealed.iter().flat_map(|sealed| &sealed.runs).map(|run| {
                serde_json::json!({
                    "id": run.id, "edition": edition.edition, "session": run.run.session, "trial": run.run.trial,
                    "arm": run.run.arm, "block": run.run.block, "attempt": run.run.attempt, "level": run.run.level,
                    "status": run.run.status, "reason": run.run.reason,
                    "superseded": run.run.block.is_some_and(|block| standing.superseded.contains_key(&(block, run.run.attempt))),
                })
            })),
        }
    }
    if format == Format::Json {
        writeln!(terminal.out, "{:#}", serde_json::Value::Array(objects))?;
    }
    Ok(Exit::Done)
}

/// Finds one run by a prefix of its id.
pub(super) fn find(store: &Store, prefix: &str) -> Result<(Edition, SealedRun), Failure> {
    if prefix.len() < 4 || !prefix.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        let mut failure =
            Failure::new(Exit::Usage, format!("`{}` is no experiment with results and no run id", printable(prefix)));
        let names = store.experiments().unwrap_or_default();
        let experiment = prefix.split('@').next().unwrap_or(prefix);
        if crate::import::editions(&store.results()).is_ok_and(|found| found.iter().any(|(name, _)| name == experiment))
        {
            failure =
                Failure::new(Exit::Usage, format!("`{}` was imported, and has no runs of ours", printable(prefix)));
            return Err(failure.hint(format!(
                "`labbook compare {0}` judges it; what came in stands in results/{experiment}/",
                printable(prefix)
            )));
        }
        failure.hints.push(match crate::diagnostic::did_you_mean(prefix, names.iter().map(String::as_str)) {
            Some(near) => format!("did you mean `{near}`?"),
            None if names.is_empty() => "nothing was run or imported in this lab".to_owned(),
            None => format!("experiments with results: {}; a run id has at least 4 hex digits", names.join(", ")),
        });
        return Err(failure);
    }
    match store.find(prefix).map_err(|error| failed(&error))? {
        Found::One(found) => Ok(*found),
        Found::None => Err(Failure::new(Exit::Usage, format!("no run has an id that starts with `{prefix}`"))
            .hint("`labbook show EXPERIMENT` lists the runs of an experiment")),
        Found::Many(ids) => {
            let ids: Vec<String> = ids.iter().map(|id: &Digest| id.short(12)).collect();
            Err(Failure::new(Exit::Usage, format!("{} runs have an id that starts with `{prefix}`", ids.len()))
                .hint(format!("type more of it: {}", ids.join(", "))))
        }
    }
}

/// Reads the spec that an edition was frozen with.
pub(super) fn frozen(edition: &Edition) -> Result<spec::Spec, Trouble> {
    let path = edition.folder.join("spec.yaml");
    let text = std::fs::read_to_string(&path).map_err(|error| {
        Failure::new(Exit::EvidenceSaysNo, format!("cannot read `{}`: {error}", path.display()))
            .hint("`labbook check` verifies the record")
    })?;
    // The file's stem is the experiment's name.
    let source = yaml::source(format!("{}.yaml", edition.experiment), &text);
    let (spec, _) = spec::parse(&source, &edition.inputs())?;
    Ok(spec)
}

/// Returns the records of a spec's edition.
pub(super) fn records(opened: &Opened) -> Result<Vec<crate::record::Record>, Failure> {
    let standing = opened.edition.sound_ledger().map_err(|error| failed(&error))?.standing();
    opened.edition.records(&opened.spec.question, &standing).map_err(|error| failed(&error))
}
