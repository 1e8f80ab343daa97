//! `build`: the findings book, from a record in which every byte is as it was sealed.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::execute::listen;
use super::open::{lab_folder, parse_spec, specs_of};
use super::{Answer, Exit, Failure, Terminal, Trouble};
use crate::diagnostic::printable;
use crate::report::record as report;
use crate::site::evidence::{Broken, Sound};
use crate::site::{self, Change, Sentence, SiteError, TreeError, tree};

/// Where the book is, if nobody says otherwise.
const TARGET: &str = "site";
/// Most sentences that are named below one damaged file.
const MOST_SENTENCES: usize = 20;

/// Builds the book of the lab.
pub(super) fn build(terminal: &mut Terminal, out: Option<&Path>) -> Answer {
    let root = lab_folder(Path::new("."))?;
    let target = match out {
        Some(out) => std::path::absolute(out).map_err(|error| Failure::of(Exit::Usage, &error))?,
        None => root.join(TARGET),
    };
    apart(&root, &target)?;
    let change = match made(&root, &target) {
        Ok(change) => change,
        Err(Unbuilt::Broken(broken)) => return say_broken(terminal, &root, &broken),
        Err(Unbuilt::Site(error)) => return Err(of_site(terminal, error)),
        Err(Unbuilt::Other(trouble)) => return Err(trouble),
    };
    say(terminal, &target, change)?;
    Ok(Exit::Done)
}

/// Demands that a site is no part of what it is made from, and the other way round.
fn apart(root: &Path, target: &Path) -> Result<(), Failure> {
    let target = real(target);
    let inputs =
        ["results", "experiments", "book", "templates", "imports", ".labbook"].map(|name| real(&root.join(name)));
    let Some(input) = inputs.iter().find(|input| target.starts_with(input) || input.starts_with(&target)) else {
        return Ok(());
    };
    let what = format!("`{}` and `{}` lie in each other", target.display(), input.display());
    Err(Failure::new(Exit::Usage, what).hint("a site is made from these folders, so it stands beside them"))
}

/// Returns a path with links followed as far as it exists.
fn real(path: &Path) -> PathBuf {
    let there = path.ancestors().find_map(|ancestor| Some((ancestor, std::fs::canonicalize(ancestor).ok()?)));
    there.map_or_else(
        || path.to_owned(),
        |(ancestor, found)| match path.strip_prefix(ancestor) {
            Ok(rest) if !rest.as_os_str().is_empty() => found.join(rest),
            _ => found,
        },
    )
}

/// Ends a run: builds the book of a lab that has one, or says in a word why there is none. How the run ended stays as it was.
pub(super) fn after_run(terminal: &mut Terminal, root: &Path) -> Result<(), Trouble> {
    if !root.join("book").is_dir() {
        writeln!(terminal.err, "next: labbook build")?;
        return Ok(());
    }
    let target = root.join(TARGET);
    let why = match made(root, &target) {
        Ok(change) => return say(terminal, &target, change),
        Err(Unbuilt::Broken(broken)) => format!("{} files are not as they were sealed", broken.len()),
        Err(Unbuilt::Site(SiteError::Prose(chapters))) => {
            let names: Vec<String> = chapters.iter().map(|wrong| printable(&wrong.source.name)).collect();
            format!("no run backs what {} says", names.join(", "))
        }
        Err(Unbuilt::Site(error)) => printable(&error.to_string()),
        Err(Unbuilt::Other(Trouble::Failure(failure))) => failure.what,
        Err(Unbuilt::Other(Trouble::Text(wrong))) => format!("{} cannot be read", printable(&wrong.source.name)),
        Err(Unbuilt::Other(closed)) => return Err(closed),
    };
    writeln!(terminal.err, "book: not built: {why}; `labbook build` says more")?;
    Ok(())
}

/// Why there is no new site.
enum Unbuilt {
    Broken(Vec<Broken>),
    Site(SiteError),
    Other(Trouble),
}

impl From<SiteError> for Unbuilt {
    fn from(error: SiteError) -> Self {
        Self::Site(error)
    }
}

impl From<Trouble> for Unbuilt {
    fn from(trouble: Trouble) -> Self {
        Self::Other(trouble)
    }
}

impl From<Failure> for Unbuilt {
    fn from(failure: Failure) -> Self {
        Self::Other(failure.into())
    }
}

/// Verifies the record of the lab at `root` and makes its site at `target`.
fn made(root: &Path, target: &Path) -> Result<Change, Unbuilt> {
    let interrupted = Arc::new(AtomicBool::new(false));
    listen(&interrupted)?;
    let _lock = lock(root)?;
    tree::may_be_replaced(target).map_err(SiteError::from)?;
    tree::tidy(target).map_err(SiteError::from)?;
    let sound = Sound::verify(root).map_err(|error| Failure::of(Exit::RunFailed, &error))?.map_err(Unbuilt::Broken)?;
    let mut specs = Vec::new();
    for path in specs_of(root)? {
        // Warnings are told by the commands that are about one spec.
        specs.push(parse_spec(&path)?.0);
    }
    Ok(site::build(&sound, specs, target, &interrupted)?)
}

fn say(terminal: &mut Terminal, target: &Path, change: Change) -> Result<(), Trouble> {
    let what = match (change.written, change.removed) {
        (0, 0) => "nothing changed".to_owned(),
        (written, 0) => format!("{written} written"),
        (written, removed) => format!("{written} written, {removed} removed"),
    };
    writeln!(terminal.err, "{} files, {what}", change.files)?;
    writeln!(terminal.out, "book: {}", printable(&site::first_page(&shown(target)).display().to_string()))?;
    Ok(())
}

/// Returns a path as seen from the current folder, where it lies below it.
fn shown(target: &Path) -> PathBuf {
    let here = std::env::current_dir().unwrap_or_default();
    target.strip_prefix(&here).unwrap_or(target).to_owned()
}

/// Takes the lock that keeps a second build of this lab away.
fn lock(root: &Path) -> Result<std::fs::File, Failure> {
    let folder = root.join(".labbook");
    let path = folder.join("build.lock");
    let cannot = |error: std::io::Error| Failure::of(Exit::RunFailed, &error).hint(format!("`{}`", path.display()));
    std::fs::create_dir_all(&folder).map_err(cannot)?;
    let file = std::fs::File::options().create(true).truncate(false).write(true).open(&path).map_err(cannot)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(std::fs::TryLockError::WouldBlock) => {
            Err(Failure::new(Exit::RunFailed, "another labbook is building the book of this lab"))
        }
        Err(std::fs::TryLockError::Error(error)) => Err(cannot(error)),
    }
}

/// Says which files are not as they were sealed, and which claims and sentences rest on them.
fn say_broken(terminal: &mut Terminal, root: &Path, broken: &[Broken]) -> Answer {
    // What is wrong with the prose is told when the record is whole again.
    let sentences = site::sentences(root).unwrap_or_default();
    for one in broken {
        let told = match one {
            Broken::Sealed(edition, problem, claims) => {
                writeln!(terminal.out, "{}", report::problem(&edition.folder, problem, claims))?;
                let names = claims.iter().filter_map(|claim| claim.split_once('/')).map(|(_, claim)| claim);
                let names: Vec<&str> = names.collect();
                let ids: Vec<String> = problem.runs.iter().map(ToString::to_string).collect();
                sentences
                    .iter()
                    .filter(|sentence| rests(sentence, &edition.experiment, &names, &ids))
                    .collect::<Vec<_>>()
            }
            Broken::Imported(line) => {
                writeln!(terminal.out, "{}", printable(line))?;
                let of = |experiment: &String| line.contains(&format!("/{experiment}/"));
                sentences.iter().filter(|sentence| sentence.experiment.as_ref().is_some_and(of)).collect()
            }
        };
        for sentence in told.iter().take(MOST_SENTENCES) {
            writeln!(terminal.out, "    {}: {}", printable(&sentence.place), printable(&sentence.text))?;
        }
        if told.len() > MOST_SENTENCES {
            writeln!(terminal.out, "    and {} sentences more", told.len() - MOST_SENTENCES)?;
        }
    }
    let failure = Failure::new(Exit::EvidenceSaysNo, format!("{} files are not as they were sealed", broken.len()));
    Err(failure.hint("no page is made from them; the site is as it was").into())
}

fn rests(sentence: &Sentence, experiment: &str, claims: &[&str], runs: &[String]) -> bool {
    if let Some(run) = &sentence.run {
        return runs.iter().any(|id| id.starts_with(run.as_str()));
    }
    sentence.experiment.as_deref() == Some(experiment)
        && sentence.claim.as_deref().is_none_or(|claim| claims.contains(&claim))
}

/// Tells every chapter's problems, and returns how the command ends.
fn of_site(terminal: &mut Terminal, error: SiteError) -> Trouble {
    match error {
        SiteError::Prose(chapters) => {
            let several = chapters.len() > 1;
            let mut chapters = chapters.into_iter();
            let last = chapters.next_back();
            for diagnostics in chapters {
                let _ = writeln!(terminal.err, "{}\n", diagnostics.render(terminal.style));
            }
            match last {
                Some(last) if several => {
                    let _ = writeln!(terminal.err, "{}\n", last.render(terminal.style));
                    Failure::new(Exit::EvidenceSaysNo, "chapters say what no run backs; the site is as it was").into()
                }
                Some(last) => {
                    let _ = writeln!(terminal.err, "{}\n", last.render(terminal.style));
                    let file = printable(&last.source.name);
                    Failure::new(Exit::EvidenceSaysNo, format!("{file} says what no run backs; the site is as it was"))
                        .into()
                }
                None => Failure::new(Exit::EvidenceSaysNo, "chapters cannot be resolved").into(),
            }
        }
        SiteError::Tree(TreeError::Interrupted) => Failure::of(Exit::Interrupted, &error).into(),
        SiteError::Tree(TreeError::Foreign { .. }) => Failure::of(Exit::Usage, &error)
            .hint("nothing there is overwritten; name another folder with `--out`")
            .into(),
        SiteError::Tree(_) | SiteError::Library(_) => Failure::new(Exit::RunFailed, error.to_string()).into(),
        SiteError::Book(_) | SiteError::Template(_) => Failure::new(Exit::Usage, error.to_string()).into(),
    }
}
