//! Evidence: every stored byte hashed again before a page is made of any.
//!
//! Invariant: a [`Sound`] exists only where nothing is missing, altered or extra, and pages are made from nothing else.

use std::path::{Path, PathBuf};
use std::thread;

use crate::plan::{self, PlannedSession, PlannedTrial};
use crate::question::Claim;
use crate::store::{Edition, Problem, Store, StoreError};
use crate::{import, spec, yaml};

/// A record in which every byte is as it was sealed.
#[derive(Debug)]
pub struct Sound {
    root: PathBuf,
    editions: Vec<Edition>,
}

/// One file that is not as it was sealed.
#[derive(Debug)]
pub enum Broken {
    /// A file of an edition, and the claims that rest on it, as `EXPERIMENT/CLAIM`.
    Sealed(Box<Edition>, Problem, Vec<String>),
    /// A file of an import, told in one line that begins with its path.
    Imported(String),
}

/// Why the record could not be looked at.
#[derive(Debug, thiserror::Error)]
pub enum EvidenceError {
    /// A part of it cannot be read.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The same of an import.
    #[error(transparent)]
    Import(#[from] import::ImportError),
}

impl Sound {
    /// Hashes every byte of the record of the lab at `root`; what is broken comes instead of a proof.
    ///
    /// # Errors
    ///
    /// A part of the record that cannot be read at all.
    pub fn verify(root: &Path) -> Result<Result<Self, Vec<Broken>>, EvidenceError> {
        let store = Store::new(root);
        let mut editions = Vec::new();
        for experiment in store.experiments()? {
            editions.extend(store.editions(&experiment)?);
        }
        let mut broken = Vec::new();
        for (edition, problems) in editions.iter().zip(in_parallel(&editions, Edition::verify)) {
            for problem in problems? {
                let claims = claims_on(edition, &problem);
                broken.push(Broken::Sealed(Box::new(edition.clone()), problem, claims));
            }
        }
        broken.extend(import::verify(&store.results())?.into_iter().map(Broken::Imported));
        Ok(if broken.is_empty() { Ok(Self { root: root.to_owned(), editions }) } else { Err(broken) })
    }

    /// Returns the folder of the lab.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Returns every edition with results, by experiment and edition.
    pub fn editions(&self) -> &[Edition] {
        &self.editions
    }
}

/// Does the same to each element on every core, and returns what came out in the order of the elements.
pub(super) fn in_parallel<'e, T: Sync, R: Send>(elements: &'e [T], work: impl Fn(&'e T) -> R + Sync) -> Vec<R> {
    let workers = thread::available_parallelism().map_or(1, usize::from).min(elements.len());
    if workers <= 1 {
        return elements.iter().map(work).collect();
    }
    let next = std::sync::atomic::AtomicUsize::new(0);
    let take = || {
        let mut done = Vec::new();
        loop {
            let at = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            let Some(element) = elements.get(at) else { return done };
            done.push((at, work(element)));
        }
    };
    let mut done: Vec<(usize, R)> = thread::scope(|scope| {
        let threads: Vec<_> = (0..workers).map(|_| scope.spawn(take)).collect();
        threads
            .into_iter()
            .flat_map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    });
    done.sort_by_key(|(at, _)| *at);
    done.into_iter().map(|(_, result)| result).collect()
}

/// Returns the claims of an edition that rest on the file of a problem. What a session's folder holds is known from the plan, so
/// that a damaged form hides nothing; all claims rest on the ledger and on what was frozen.
pub fn claims_on(edition: &Edition, problem: &Problem) -> Vec<String> {
    let path = edition.folder.join("spec.yaml");
    let Ok(text) = std::fs::read_to_string(&path) else { return Vec::new() };
    let name = format!("{}.yaml", edition.experiment);
    let Ok((spec, _)) = spec::parse(&yaml::source(name, &text), &edition.inputs()) else { return Vec::new() };
    let question = &spec.question;
    let (folder, inside) = problem.path.split_once('/').unwrap_or((&problem.path, ""));
    let rests = |claim: &Claim| match planned_as(&spec, folder) {
        None => matches!(folder, "ledger" | "inputs" | "spec.yaml" | "design.json" | "plan.json"),
        Some(session) => {
            let trial = inside.split_once('/').map(|(trial, _)| trial);
            let of_a_trial = session.trials.iter().any(|planned| Some(planned.label.as_str()) == trial);
            let touched = |planned: &PlannedTrial| !of_a_trial || Some(planned.label.as_str()) == trial;
            (session.arm == claim.treatment || session.arm == question.control)
                && session.trials.iter().any(|planned| planned.level == claim.at && touched(planned))
        }
    };
    let resting = question.claims.iter().filter(|(_, claim)| rests(claim));
    resting.map(|(name, _)| format!("{}/{name}", edition.experiment)).collect()
}

/// Returns the session of a block that has this name.
fn planned_as(spec: &spec::Spec, name: &str) -> Option<PlannedSession> {
    let block = name.strip_prefix('b')?.split_once('-')?.0.parse().ok()?;
    let attempt = name.rsplit_once('.').and_then(|(_, attempt)| attempt.parse().ok());
    [1, attempt.unwrap_or(1)]
        .into_iter()
        .flat_map(|attempt| plan::retry_block(spec, block, attempt))
        .find(|session| session.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_hands_give_the_answers_in_order() {
        assert!(in_parallel(&[] as &[u32], |number| *number).is_empty());
        let numbers: Vec<u32> = (0..100).collect();
        assert_eq!(in_parallel(&numbers, |number| number * 2), (0..100).map(|number| number * 2).collect::<Vec<_>>());
    }
}
