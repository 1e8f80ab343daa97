//! Templates: built in, and overridden by name from the lab's own `templates/`.
//!
//! Invariant: whatever a template prints is escaped, unless the template itself says `safe` of what is HTML already; what comes out
//! has no blank line, so that it stays one HTML block inside a chapter.

use std::fs;
use std::path::Path;

use serde::Serialize;
use tera::{Context, Tera};

use crate::diagnostic::did_you_mean;

use super::text;

macro_rules! built_in {
    ($($name:literal),* $(,)?) => {
        &[$(($name, include_str!(concat!("../../templates/", $name)))),*]
    };
}

/// Every template.
const BUILT_IN: &[(&str, &str)] = built_in!(
    "badge.html",
    "claim.html",
    "dashboard.html",
    "experiment.html",
    "family.html",
    "files.html",
    "front.html",
    "glossary.html",
    "number.html",
    "page.html",
    "planned.html",
    "provenance.html",
    "reasons.html",
    "run.html",
    "session.html",
);
/// The style of everything.
const STYLE: &str = include_str!("../../templates/labbook.css");
/// Its part for charts.
const CHART_STYLE: &str = include_str!("../../templates/chart.css");
/// The name of that part.
const CHART_STYLE_NAME: &str = "chart.css";

/// Why a template cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TemplateError {
    /// A file that overrides nothing.
    #[error("templates/{name} overrides no template of labbook{hint}")]
    Unknown {
        /// Its name.
        name: String,
        /// What was meant, perhaps.
        hint: String,
    },
    /// A template that is wrong, or asks for what is not there.
    #[error("template `{name}`: {trouble}")]
    Wrong {
        /// Its name.
        name: String,
        /// What is wrong with it.
        trouble: String,
    },
    /// A file that cannot be read.
    #[error("cannot read `{name}`: {trouble}")]
    File {
        /// Which.
        name: String,
        /// What the system says.
        trouble: std::io::Error,
    },
}

/// Every template, ready to print.
#[derive(Debug)]
pub(super) struct Templates {
    tera: Tera,
    style: String,
}

impl Templates {
    /// Loads the built-in templates and those of the lab at `root`.
    ///
    /// # Errors
    ///
    /// A file of the lab's templates that overrides nothing, or that is no template.
    pub(super) fn load(root: &Path) -> Result<Self, TemplateError> {
        let mut sources: Vec<(String, String)> =
            BUILT_IN.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect();
        let (mut style, mut chart_style) = (STYLE.to_owned(), CHART_STYLE.to_owned());
        for (name, text) in own(&root.join("templates"))? {
            if name == super::place::STYLE {
                style = text;
                continue;
            }
            if name == CHART_STYLE_NAME {
                chart_style = text;
                continue;
            }
            match sources.iter_mut().find(|(known, _)| *known == name) {
                Some((_, known)) => *known = text,
                // A part of a lab's own templates.
                None if name.starts_with('_') => sources.push((name, text)),
                None => {
                    let near = did_you_mean(&name, BUILT_IN.iter().map(|(known, _)| *known));
                    let hint = near.map_or_else(
                        || "; one that begins with `_` is a part of others".to_owned(),
                        |near| format!("; did you mean `{near}`?"),
                    );
                    return Err(TemplateError::Unknown { name, hint });
                }
            }
        }
        let mut tera = Tera::new();
        tera.set_escape_fn(text::escape);
        let wrong =
            |trouble: tera::Error| TemplateError::Wrong { name: "templates".to_owned(), trouble: told(&trouble) };
        tera.add_raw_templates(sources).map_err(wrong)?;
        Ok(Self { tera, style: format!("{style}\n{chart_style}") })
    }

    /// Returns the style of everything.
    pub(super) fn style(&self) -> &str {
        &self.style
    }

    /// Prints a view.
    ///
    /// # Errors
    ///
    /// A template that asks for what the view does not have.
    pub(super) fn print(&self, name: &str, view: &impl Serialize) -> Result<String, TemplateError> {
        let wrong = |trouble: tera::Error| TemplateError::Wrong { name: name.to_owned(), trouble: told(&trouble) };
        let context = Context::from_serialize(view).map_err(wrong)?;
        let printed = self.tera.render(name, &context).map_err(wrong)?;
        let mut lines = String::with_capacity(printed.len());
        for line in printed.lines().map(str::trim).filter(|line| !line.is_empty()) {
            if !lines.is_empty() {
                lines.push('\n');
            }
            lines.push_str(line);
        }
        Ok(lines)
    }
}

fn told(trouble: &tera::Error) -> String {
    use std::error::Error as _;
    let mut text = trouble.to_string();
    let mut source = trouble.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

/// Returns the files of a lab's own templates, by name.
fn own(folder: &Path) -> Result<Vec<(String, String)>, TemplateError> {
    let Ok(entries) = fs::read_dir(folder) else { return Ok(Vec::new()) };
    let mut found = Vec::new();
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.starts_with('.') {
            continue;
        }
        // No links: a template is printed, and a page is for everybody. No pipes: they would keep us waiting.
        let text = match entry.file_type() {
            Ok(kind) if kind.is_file() => fs::read_to_string(entry.path()),
            _ => Err(std::io::Error::other("not a plain file")),
        };
        let text = text.map_err(|trouble| TemplateError::File { name: name.clone(), trouble })?;
        found.push((name, text));
    }
    found.sort();
    Ok(found)
}
