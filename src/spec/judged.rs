//! What the runs will be judged by: control, claims, headline, evidence, margin, repeats.
//!
//! Invariant: every claim names an arm that is not the control, a metric of the closed list and a planned level.

use std::ops::Range;

use indexmap::IndexMap;

use super::Reference;
use super::factor::{Arms, Factor};
use super::keys::{self, Section};
use super::reading::Reading;
use super::workload::Load;
use crate::diagnostic::{Diagnostic, did_you_mean};
use crate::metric::{Metric, Statistic};
use crate::question::{Claim, Evidence, Expect, Headline, Level, Over};
use crate::yaml::Node;

/// What the readers of this file found.
pub(super) struct Judged {
    pub(super) control: String,
    pub(super) entails: Vec<String>,
    pub(super) evidence: IndexMap<String, Evidence>,
    pub(super) repeats: u32,
    pub(super) passes: u32,
    pub(super) margin: Option<f64>,
    pub(super) headline: Option<Headline>,
    pub(super) claims: IndexMap<String, Claim>,
}

/// Output facts that a factor may bring with it, as prefixes.
const OUTPUTS: [&str; 2] = ["server.resolved.", "server.capacity."];

/// Fewest requests of a run from which a percentile is more than its largest value: the two-sided 95 % interval without
/// assumptions exists from `ln 0.025 / ln q` on.
const FEWEST_REQUESTS: [(Statistic, u64); 3] = [(Statistic::P90, 36), (Statistic::P95, 72), (Statistic::P99, 368)];

impl Reading<'_> {
    /// Reads the keys that verdicts depend on. `known` is absent when arms or levels had problems; then only what needs
    /// neither is looked at.
    pub(super) fn judged(
        &mut self,
        top: &Section<'_>,
        factor: Option<&Factor>,
        known: Option<(&Arms, &Load)>,
    ) -> Option<Judged> {
        let entails = self.entails(top);
        let repeats = top.whole(&mut self.reader, "repeats");
        let passes = top.whole(&mut self.reader, "passes");
        let margin = top.maybe_percent(&mut self.reader, "margin");
        self.few_blocks(top, repeats);
        let Some((arms, load)) = known else {
            top.text(&mut self.reader, "control");
            return None;
        };
        let control = self.control(top, arms);
        let control_name = control.clone().unwrap_or_default();
        let treatments: Vec<&str> = arms.places.keys().map(String::as_str).filter(|arm| *arm != control_name).collect();
        let evidence = self.evidence(top, &treatments, &control_name);
        if let (Some(factor), Some(evidence)) = (factor, &evidence) {
            self.unproven(factor, arms, &control_name, evidence);
        }
        let headline = self.headline(top, &treatments, &control_name, load);
        let claims = self.claims(top, &treatments, &control_name, load);
        Some(Judged {
            control: control?,
            entails: entails?,
            evidence: evidence?,
            repeats: repeats? as u32,
            passes: passes? as u32,
            margin: margin?,
            headline: headline?,
            claims: claims?,
        })
    }

    fn few_blocks(&mut self, top: &Section<'_>, repeats: Option<u64>) {
        let (Some(blocks @ 1..=2), Some(node)) = (repeats, top.get("repeats")) else { return };
        self.reader.problem(
            Diagnostic::warning(
                format!("{blocks} blocks can only be exploratory"),
                node.span.clone(),
                "a verdict needs 3 or more",
            )
            .help("5 is the usual number; `labbook plan` shows what it can resolve"),
        );
    }

    fn control(&mut self, top: &Section<'_>, arms: &Arms) -> Option<String> {
        let node = top.require(&mut self.reader, "control")?;
        let names: Vec<&str> = arms.places.keys().map(String::as_str).collect();
        self.existing(node, "an arm", &names)
    }

    fn entails(&mut self, top: &Section<'_>) -> Option<Vec<String>> {
        let Some(node) = top.get("entails") else { return Some(Vec::new()) };
        let elements = self.reader.sequence(node, "a list of outputs, such as `[server.resolved.page_size]`")?;
        let mut entails = Some(Vec::new());
        for element in elements {
            match (self.output(element), &mut entails) {
                (Some(key), Some(entails)) => entails.push(key),
                _ => entails = None,
            }
        }
        entails
    }

    fn output(&mut self, node: &Node) -> Option<String> {
        let text = self.reader.text(node, "an output: `server.resolved.NAME` or `server.capacity.NAME`")?;
        let named = OUTPUTS.iter().any(|prefix| text.strip_prefix(prefix).is_some_and(|name| !name.is_empty()));
        let star = text.find('*');
        if named && star.is_none_or(|place| text.ends_with(".*") && place == text.len() - 1) {
            return Some(text);
        }
        let input =
            ["source.", "server.args.", "server.env.", "server.model", "environment", "client.", "workload.", "model."]
                .iter()
                .any(|prefix| text.starts_with(prefix));
        let (label, help) = if input {
            ("an input", "an input never follows from a factor: make `factor` a list, so that every claim says so")
        } else {
            (
                "not an output",
                "only `server.resolved.NAME`, `server.capacity.NAME` and prefixes that end in `.*` follow",
            )
        };
        self.reader
            .problem(Diagnostic::error(format!("`{text}` cannot be entailed"), node.span.clone(), label).help(help));
        None
    }

    fn evidence(
        &mut self,
        top: &Section<'_>,
        treatments: &[&str],
        control: &str,
    ) -> Option<IndexMap<String, Evidence>> {
        let Some(node) = top.get("evidence") else { return Some(IndexMap::new()) };
        let pairs = self.reader.mapping(node, "evidence by arm")?;
        let mut evidence = Some(IndexMap::new());
        for (key, value) in pairs {
            let arm = self.treatment(&key.text, &key.span, treatments, control);
            let log =
                keys::EVIDENCE.open(&mut self.reader, value).and_then(|section| section.text(&mut self.reader, "log"));
            match (arm, log, &mut evidence) {
                (Some(arm), Some(log), Some(evidence)) => {
                    evidence.insert(arm, Evidence { log });
                }
                _ => evidence = None,
            }
        }
        evidence
    }

    /// Rule S45: an unknown variable is ignored in silence, so that asked = observed proves nothing.
    fn unproven(&mut self, factor: &Factor, arms: &Arms, control: &str, evidence: &IndexMap<String, Evidence>) {
        if !factor.needs_evidence() {
            return;
        }
        let asked = arms.values.get(control);
        let unproven: Vec<String> = arms
            .values
            .iter()
            .filter(|(arm, values)| *arm != control && Some(*values) != asked && !evidence.contains_key(*arm))
            .map(|(arm, _)| arm.clone())
            .collect();
        for arm in unproven {
            self.reader.problem(
                Diagnostic::warning(
                    format!("nothing proves that `{arm}` is active"),
                    arms.places[&arm].clone(),
                    "without evidence",
                )
                .help(format!(
                    "add `evidence: {{{arm}: {{log: \"…\"}}}}`; an unknown variable is ignored in silence, so `unchanged` cannot be claimed without (rule S45)"
                )),
            );
        }
    }

    fn treatment(&mut self, text: &str, span: &Range<usize>, treatments: &[&str], control: &str) -> Option<String> {
        if treatments.contains(&text) {
            return Some(text.to_owned());
        }
        let listed = treatments.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
        let mut problem = if text == control {
            Diagnostic::error(format!("`{text}` is the control"), span.clone(), format!("expected one of {listed}"))
                .help("the other arms are compared with it")
        } else {
            Diagnostic::error(format!("there is no arm `{text}`"), span.clone(), format!("expected one of {listed}"))
        };
        if let Some(near) = did_you_mean(text, treatments.iter().copied()) {
            problem.help = Some(format!("did you mean `{near}`?"));
        }
        self.reader.problem(problem);
        None
    }

    fn treatment_of(&mut self, section: &Section<'_>, treatments: &[&str], control: &str) -> Option<String> {
        let text = section.text(&mut self.reader, "treatment")?;
        let span = section.get("treatment")?.span.clone();
        self.treatment(&text, &span, treatments, control)
    }

    fn metric(&mut self, section: &Section<'_>) -> Option<Metric> {
        let text = section.text(&mut self.reader, "metric")?;
        let node = section.get("metric")?;
        let Some(metric) = Metric::parse(&text) else {
            let names: Vec<String> = Metric::all().into_iter().map(Metric::name).collect();
            let near = did_you_mean(&text, names.iter().map(String::as_str)).map(str::to_owned);
            self.reader.problem(
                Diagnostic::error(format!("`{text}` is not a metric"), node.span.clone(), "not in the list").help(
                    near.map_or_else(
                        || format!("the metrics are {}", names.join(", ")),
                        |near| format!("did you mean `{near}`?"),
                    ),
                ),
            );
            return None;
        };
        if metric == Metric::PeakOutputThroughput {
            self.reader.problem(
                Diagnostic::warning("a peak is an artefact of bucketing", node.span.clone(), "the fullest second")
                    .help("`output_throughput` is the mean rate"),
            );
        }
        Some(metric)
    }

    fn planned(&mut self, node: &Node, load: &Load) -> Option<Level> {
        let text = self.reader.text(node, "one of the planned levels")?;
        if let Some(level) = load.level(&text) {
            return Some(level.clone());
        }
        let levels: Vec<&str> = load.levels.iter().map(|level| level.0.as_str()).collect();
        self.reader.problem(
            Diagnostic::error(
                format!("{} {text} is not planned", load.axis.name()),
                node.span.clone(),
                format!("planned are {}", levels.join(", ")),
            )
            .help(format!("add it to `workload.{}`", load.axis.name())),
        );
        None
    }

    #[expect(clippy::option_option, reason = "outside: whether it could be read; inside: whether it is there")]
    fn headline(
        &mut self,
        top: &Section<'_>,
        treatments: &[&str],
        control: &str,
        load: &Load,
    ) -> Option<Option<Headline>> {
        let Some(node) = top.get("headline") else { return Some(None) };
        let section = keys::HEADLINE.open(&mut self.reader, node)?;
        let metric = self.metric(&section);
        let treatment = self.treatment_of(&section, treatments, control);
        let over = match section.maybe_text(&mut self.reader, "over")? {
            None => Some(Over::All),
            Some(text) if text == "all" => Some(Over::All),
            Some(_) => self.planned(section.get("over")?, load).map(Over::At),
        };
        Some(Some(Headline { metric: metric?, treatment: treatment?, over: over? }))
    }

    fn claims(
        &mut self,
        top: &Section<'_>,
        treatments: &[&str],
        control: &str,
        load: &Load,
    ) -> Option<IndexMap<String, Claim>> {
        let Some(node) = top.get("claims") else { return Some(IndexMap::new()) };
        let pairs = self.reader.mapping(node, "claims by name")?;
        let mut claims = Some(IndexMap::new());
        for (key, value) in pairs {
            self.check_name(&key.text, &key.span, "a claim");
            match (self.claim(value, treatments, control, load), &mut claims) {
                (Some(claim), Some(claims)) => {
                    claims.insert(key.text.clone(), claim);
                }
                _ => claims = None,
            }
        }
        claims
    }

    fn claim(&mut self, node: &Node, treatments: &[&str], control: &str, load: &Load) -> Option<Claim> {
        let section = keys::CLAIM.open(&mut self.reader, node)?;
        let metric = self.metric(&section);
        let treatment = self.treatment_of(&section, treatments, control);
        let at_node = section.require(&mut self.reader, "at");
        let at = at_node.and_then(|node| self.planned(node, load));
        let expect = section.word(&mut self.reader, "expect").map(|place| Expect::NAMES[place].1);
        let by = section.maybe_percent(&mut self.reader, "by");
        let directed = matches!(expect, None | Some(Expect::Higher | Expect::Lower));
        if let (Some(node), false) = (section.get("by"), directed) {
            self.reader.problem(
                Diagnostic::error("`by` goes with `higher` and `lower` only", node.span.clone(), "here")
                    .help("`unchanged`, `not_lower` and `not_higher` are judged by the spec's `margin`"),
            );
        }
        if let (Some(metric), Some(level), Some(node)) = (metric, &at, section.get("metric")) {
            self.too_few_requests(metric, level, node, load);
        }
        Some(Claim { metric: metric?, treatment: treatment?, at: at?, expect: expect?, by: by? })
    }

    fn too_few_requests(&mut self, metric: Metric, level: &Level, node: &Node, load: &Load) {
        let Metric::Latency(statistic, _) = metric else { return };
        let Some((_, fewest)) = FEWEST_REQUESTS.iter().find(|(found, _)| *found == statistic) else { return };
        let place = load.levels.iter().position(|other| other == level);
        let Some(requests) = place.map(|place| load.requests[place]).filter(|requests| requests < fewest) else {
            return;
        };
        self.reader.problem(
            Diagnostic::warning(
                format!("`{}` of {requests} requests is nearly their largest value", metric.name()),
                node.span.clone(),
                format!("needs {fewest} requests in a run"),
            )
            .help("raise `prompts_per_user`, or claim a median"),
        );
    }

    /// Reads `references:`.
    pub(super) fn references(&mut self, top: &Section<'_>, load: Option<&Load>) -> Option<IndexMap<String, Reference>> {
        let Some(node) = top.get("references") else { return Some(IndexMap::new()) };
        let pairs = self.reader.mapping(node, "references by name")?;
        let mut references = Some(IndexMap::new());
        for (key, value) in pairs {
            self.check_name(&key.text, &key.span, "a reference");
            match (self.reference(value, load), &mut references) {
                (Some(reference), Some(references)) => {
                    references.insert(key.text.clone(), reference);
                }
                _ => references = None,
            }
        }
        references
    }

    fn reference(&mut self, node: &Node, load: Option<&Load>) -> Option<Reference> {
        let section = keys::REFERENCE.open(&mut self.reader, node)?;
        let value = section.number(&mut self.reader, "value");
        let unit = section.text(&mut self.reader, "unit");
        let why = section.text(&mut self.reader, "why");
        let at = match section.get("at") {
            None => Some(None),
            Some(node) => self.planned(node, load?).map(Some),
        };
        Some(Reference { value: value?, unit: unit?, at: at?, why: why? })
    }
}
