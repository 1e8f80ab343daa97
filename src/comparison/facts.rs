//! The check of facts: two fingerprints may differ in the factor and in what follows from it, and in nothing else.
//!
//! Invariant: the keys that are looked at start from the required ones and the factor's, so that two empty fingerprints do
//! not agree. Unknown is not equal, not even to unknown.

use std::collections::BTreeSet;

use crate::fact::table::{Class, FACTS, Policy, Required, class_of, matches, policy_of, row_of};
use crate::fact::{FactKey, FactValue, Fingerprint};
use crate::noise::{DRAWN_SEED, drew_its_seed, is_noise};
use crate::question::{Engine, Question};
use crate::record::{Record, Tier};

use super::applied::{EVIDENCE, Proof, expected_facts, images, is_owned, proof};

/// What is wrong, or to be shown, about one fact of two runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// The key, or a pattern where a whole family is unknown.
    pub key: String,
    /// What the control's run observed; `None` is unknown.
    pub control: Option<FactValue>,
    /// What the treatment's run observed.
    pub treatment: Option<FactValue>,
    /// What it is.
    pub kind: Kind,
}

/// What a difference is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// It differs and nobody declared it.
    Undeclared,
    /// It must be known and is not, or one arm alone knows it.
    Unknown,
    /// An arm did not get what it asked for; which arm, and what it asked for.
    NotApplied(String, String),
    /// Both arms asked for different values and show the same.
    SameInBoth,
    /// The evidence is missing, or stands where it should not.
    Evidence(Proof),
    /// A fact that has one right value has another.
    NotAllowed(&'static str),
    /// It differs because the factor does; why that may be said.
    Consequence(&'static str),
    /// The server drew its own random seed.
    DrawnSeed,
    /// Not required, and observed in neither arm.
    Unobserved,
}

/// Compares two runs fact by fact. The order of the result is that of the keys.
pub fn compare(question: &Question, control: &Record, treatment: &Record) -> Vec<Difference> {
    let check = Check { question, control, treatment, foreign: is_foreign(control) || is_foreign(treatment) };
    let mut found = check.undeclared();
    found.extend(check.applied());
    found.extend(check.evidence());
    found.sort_by(|one, two| one.key.cmp(&two.key));
    found
}

fn is_foreign(record: &Record) -> bool {
    record.tier == Tier::Foreign
}

struct Check<'a> {
    question: &'a Question,
    control: &'a Record,
    treatment: &'a Record,
    /// Facts of foreign runs may be unknown: they carry no verdict anyway.
    foreign: bool,
}

impl Check<'_> {
    fn undeclared(&self) -> Vec<Difference> {
        let certain: Vec<&str> = FACTS
            .iter()
            .filter(|row| matches!(row.policy, Policy::Must(_)))
            .flat_map(|row| row.keys.iter().copied())
            .collect();
        let mut keys: BTreeSet<&str> = BTreeSet::new();
        for record in [self.control, self.treatment] {
            keys.extend(record.facts.iter().map(|(key, _)| key.as_str()));
        }
        let mut found: Vec<Difference> = keys.iter().filter_map(|key| self.one(key, &certain)).collect();
        if self.foreign {
            // It refuses nothing, since foreign numbers carry no verdict, but it is said.
            let unknown = self.required_and_absent().into_iter();
            found.extend(unknown.map(|difference| Difference { kind: Kind::Unobserved, ..difference }));
        } else {
            found.extend(self.required_and_absent());
            found.extend(self.unobserved());
        }
        // An input that nobody observed may differ, and then nobody can say that an output follows from the factor.
        let doubtful = |difference: &Difference| {
            matches!(difference.kind, Kind::Undeclared | Kind::Unknown | Kind::Unobserved)
                && class_of(&difference.key).is_input()
        };
        let inputs_agree = !self.foreign && !found.iter().any(doubtful);
        for difference in &mut found {
            if difference.kind == Kind::Undeclared && inputs_agree && matches("server.resolved.<name>", &difference.key)
            {
                difference.kind = Kind::Consequence("every input agrees, except for the factor");
            }
        }
        found
    }

    /// Judges a key that at least one arm observed. `certain` are the patterns of keys with one right value, on which agreeing
    /// is not enough.
    fn one(&self, key: &str, certain: &[&str]) -> Option<Difference> {
        let (control, treatment) = (self.control.facts.get(key), self.treatment.facts.get(key));
        let same = control.zip(treatment).is_some_and(|(control, treatment)| control.same(treatment));
        if same && !certain.iter().any(|pattern| matches(pattern, key)) {
            return None;
        }
        if is_noise(key).is_some() || key == EVIDENCE {
            return None;
        }
        let tolerance = match policy_of(key) {
            Policy::Recorded => return None,
            Policy::Must(value) => return self.must(key, value),
            Policy::Equal => 0.0,
            Policy::Near(tolerance) => tolerance,
        };
        if is_owned(self.question, key) {
            return None;
        }
        let agree = match (control, treatment) {
            (Some(control), Some(treatment)) => agree(control, treatment, tolerance),
            _ => false,
        };
        if agree || (self.foreign && (control.is_none() || treatment.is_none())) {
            return None;
        }
        let kind = self.kind(key, control, treatment);
        Some(Difference { key: key.to_owned(), control: control.cloned(), treatment: treatment.cloned(), kind })
    }

    fn kind(&self, key: &str, control: Option<&FactValue>, treatment: Option<&FactValue>) -> Kind {
        if key == DRAWN_SEED && drew_its_seed(&self.control.facts) && drew_its_seed(&self.treatment.facts) {
            return Kind::DrawnSeed;
        }
        if self.is_brought(key) {
            return Kind::Consequence("the factor's class brings it with it");
        }
        if is_entailed(self.question, key) {
            return Kind::Consequence("listed under `entails`");
        }
        let (Some(control), Some(treatment)) = (control, treatment) else { return Kind::Unknown };
        if self.is_image(key, control, treatment) {
            return Kind::Consequence("it states the factor itself");
        }
        Kind::Undeclared
    }

    fn is_brought(&self, key: &str) -> bool {
        let brought = |factor: &FactKey| class_of(factor.as_str()).brings().iter().any(|pattern| matches(pattern, key));
        self.question.factor.iter().any(brought)
    }

    /// An output that says in each arm what the arm asked for.
    fn is_image(&self, key: &str, control: &FactValue, treatment: &FactValue) -> bool {
        self.question.factor.iter().enumerate().any(|(index, factor)| {
            let says_it = |arm: &str, observed: &FactValue| {
                self.asked(arm, index).is_some_and(|asked| {
                    expected_facts(factor, asked).iter().all(|(_, wanted)| wanted.is_met(observed))
                })
            };
            images(factor).iter().any(|image| image == key)
                && says_it(&self.control.arm, control)
                && says_it(&self.treatment.arm, treatment)
        })
    }

    fn asked(&self, arm: &str, index: usize) -> Option<&crate::question::Asked> {
        self.question.arms.get(arm)?.get(index)
    }

    fn must(&self, key: &str, value: &'static str) -> Option<Difference> {
        // What stands beside the server on a GPU is the business of rule S24, which voids the run.
        let right = |found: Option<&FactValue>| found.is_none_or(|found| found.same(&FactValue::text(value)));
        let (control, treatment) = (self.control.facts.get(key), self.treatment.facts.get(key));
        let kind = if matches("gpu.<i>.foreign_mib", key) || (right(control) && right(treatment)) {
            if self.foreign || (control.is_some() && treatment.is_some()) {
                return None;
            }
            Kind::Unknown
        } else {
            Kind::NotAllowed(value)
        };
        Some(Difference { key: key.to_owned(), control: control.cloned(), treatment: treatment.cloned(), kind })
    }

    /// Required keys that neither arm observed.
    fn required_and_absent(&self) -> Vec<Difference> {
        let mut found = Vec::new();
        for row in FACTS.iter().filter(|row| self.is_required(row.required)) {
            for pattern in row.keys {
                for key in self.instances(pattern) {
                    let seen = |record: &Record| record.facts.find(&key).is_some();
                    if !seen(self.control) && !seen(self.treatment) && !self.is_replaced(&key) {
                        found.push(Difference { key, control: None, treatment: None, kind: Kind::Unknown });
                    }
                }
            }
        }
        found
    }

    fn is_required(&self, required: Required) -> bool {
        let engine = self.question.engine;
        match required {
            Required::Never => false,
            Required::Always => true,
            Required::EngineTells => engine != Some(Engine::Command),
            Required::WithGpu => self.has_gpu(),
        }
    }

    /// A server of an engine that needs a GPU has one unless somebody looked and counted none.
    fn has_gpu(&self) -> bool {
        let count = |record: &Record| record.facts.get("gpu.count").and_then(FactValue::number);
        let counts = [count(self.control), count(self.treatment)];
        if counts.iter().all(|count| *count == Some(0.0)) {
            return false;
        }
        let some_seen = [self.control, self.treatment].iter().any(|record| record.facts.find("gpu.<name>").is_some());
        some_seen || matches!(self.question.engine, None | Some(Engine::Sglang | Engine::Vllm))
    }

    /// Returns a pattern with each GPU's number in it.
    fn instances(&self, pattern: &str) -> Vec<String> {
        if !pattern.contains("<i>") {
            return vec![pattern.to_owned()];
        }
        let count = [self.control, self.treatment]
            .iter()
            .filter_map(|record| record.facts.get("gpu.count").and_then(FactValue::number))
            .fold(1.0_f64, f64::max);
        // No host has more; a number from a file must not cost memory.
        (0..count.min(1024.0) as usize).map(|gpu| pattern.replace("<i>", &gpu.to_string())).collect()
    }

    /// A server from a wheel has no checkout: its version and the digest of its RECORD say as much.
    fn is_replaced(&self, key: &str) -> bool {
        let Some(engine) = self.question.engine else { return false };
        let wheel = [format!("packages.{}", engine.name()), format!("packages.{}.record_sha256", engine.name())];
        let known = |record: &Record| wheel.iter().all(|key| record.facts.get(key).is_some());
        matches!(key, "source.commit" | "source.dirty") && known(self.control) && known(self.treatment)
    }

    /// Facts that must agree where they are known, and that nobody observed.
    fn unobserved(&self) -> Vec<Difference> {
        let mut found = Vec::new();
        for row in FACTS.iter().filter(|row| matches!(row.policy, Policy::Equal | Policy::Near(_))) {
            for pattern in row.keys.iter().filter(|_| !self.is_required(row.required)) {
                // A key of the family that has a row of its own says nothing about the rest of the family.
                let own_row = |key: &str| row_of(key).is_some_and(|found| std::ptr::eq(found, row));
                let seen = |record: &Record| match record.facts.find(pattern) {
                    None => false,
                    Some(_) if !pattern.contains('<') => true,
                    Some((key, _)) if own_row(key.as_str()) => true,
                    Some(_) => {
                        record.facts.iter().any(|(key, _)| matches(pattern, key.as_str()) && own_row(key.as_str()))
                    }
                };
                if !self.is_absent_by_nature(pattern, row.class) && !seen(self.control) && !seen(self.treatment) {
                    let key = (*pattern).to_owned();
                    found.push(Difference { key, control: None, treatment: None, kind: Kind::Unobserved });
                }
            }
        }
        found
    }

    /// Facts that need not exist: no draft model, no GPU, no Python in the pocket engine.
    fn is_absent_by_nature(&self, pattern: &str, class: Class) -> bool {
        let pocket = self.question.engine == Some(Engine::Pocketmoe)
            && (class == Class::Environment && !pattern.starts_with("binaries") || pattern == "source.submodules");
        pocket
            || pattern.starts_with("draft.")
            || pattern.starts_with("adapter.")
            || (class == Class::Hardware && !self.has_gpu())
    }

    /// The factor was applied: each arm shows what it asked for, and the arms differ.
    fn applied(&self) -> Vec<Difference> {
        let mut found = Vec::new();
        for (index, factor) in self.question.factor.iter().enumerate() {
            let asked = [self.asked(&self.control.arm, index), self.asked(&self.treatment.arm, index)];
            let [Some(of_control), Some(of_treatment)] = asked else { continue };
            let wanted = [expected_facts(factor, of_control), expected_facts(factor, of_treatment)];
            for ((key, control_wanted), (_, treatment_wanted)) in wanted[0].iter().zip(&wanted[1]) {
                let observed = [self.control, self.treatment].map(|record| observed(&record.facts, key));
                let kind = match (&observed[0], &observed[1]) {
                    (Some(control), _) if !control_wanted.is_met(control) => {
                        Kind::NotApplied(self.control.arm.clone(), control_wanted.to_string())
                    }
                    (_, Some(treatment)) if !treatment_wanted.is_met(treatment) => {
                        Kind::NotApplied(self.treatment.arm.clone(), treatment_wanted.to_string())
                    }
                    (Some(control), Some(treatment)) => {
                        let null = of_control == of_treatment;
                        match (control.same(treatment), null) {
                            (true, false) if !key.contains('<') => Kind::SameInBoth,
                            (false, true) => Kind::Undeclared,
                            _ => continue,
                        }
                    }
                    _ if self.foreign => continue,
                    _ => Kind::Unknown,
                };
                let [control, treatment] = observed;
                found.push(Difference { key: key.clone(), control, treatment, kind });
            }
        }
        found
    }

    /// The evidence is present in the treatment and absent in the control.
    fn evidence(&self) -> Option<Difference> {
        let declared = |arm: &String| self.question.evidence.contains_key(arm);
        if !declared(&self.treatment.arm) && !declared(&self.control.arm) {
            return None;
        }
        let proofs = [self.control, self.treatment].map(|record| proof(self.question, &record.arm, &record.facts));
        let worst = if proofs.contains(&Proof::Wrong) {
            Proof::Wrong
        } else if proofs.contains(&Proof::Unknown) && !self.foreign {
            Proof::Unknown
        } else {
            return None;
        };
        Some(Difference {
            key: EVIDENCE.to_owned(),
            control: self.control.facts.get(EVIDENCE).cloned(),
            treatment: self.treatment.facts.get(EVIDENCE).cloned(),
            kind: Kind::Evidence(worst),
        })
    }
}

/// Returns what was observed under a key, or under the first key of a family.
fn observed(facts: &Fingerprint, key: &str) -> Option<FactValue> {
    facts.find(key).map(|(_, value)| value.clone())
}

fn is_entailed(question: &Question, key: &str) -> bool {
    // Inputs are never entailed; whoever built the question refused them already.
    class_of(key) == Class::Output && question.entails.iter().any(|pattern| matches(pattern, key))
}

/// Returns the facts that two runs of one arm would have to share in a block, that both know, and that differ.
pub(super) fn moved(one: &Record, other: &Record) -> Vec<String> {
    let differs = |(key, value): (&FactKey, &FactValue)| {
        let tolerance = match policy_of(key.as_str()) {
            Policy::Recorded => return None,
            Policy::Near(tolerance) => tolerance,
            Policy::Equal | Policy::Must(_) => 0.0,
        };
        let found = other.facts.get(key.as_str())?;
        let moved = is_noise(key.as_str()).is_none() && !agree(value, found, tolerance);
        moved.then(|| key.to_string())
    };
    one.facts.iter().filter_map(differs).collect()
}

fn agree(one: &FactValue, two: &FactValue, tolerance: f64) -> bool {
    match (one.number(), two.number()) {
        (Some(one), Some(two)) if tolerance > 0.0 => (one - two).abs() <= tolerance * one.abs().min(two.abs()),
        _ => one.same(two),
    }
}
