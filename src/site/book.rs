//! The book: the lab's chapters, read once, and rendered by mdBook in this process.
//!
//! Invariant: nothing is written into the lab; `book.toml` starts no program, and a key that mdBook would ignore is an error.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use mdbook_driver::MDBook;
use mdbook_driver::book::{Book as Items, BookItem, Chapter as Item, SectionNumber};
use mdbook_driver::builtin_preprocessors::{IndexPreprocessor, LinkPreprocessor};
use mdbook_driver::config::{Config, HtmlConfig};
use mdbook_preprocessor::errors::{Error, Result as BookResult};
use mdbook_preprocessor::{Preprocessor, PreprocessorContext};
use serde::de::IgnoredAny;

use crate::diagnostic::Source;
use crate::directive;

use super::chapters::Chapter;
use super::{inside, place};

/// Why there is no book.
#[derive(Debug, thiserror::Error)]
pub enum BookError {
    /// `book.toml` is wrong.
    #[error("book/book.toml: {0}")]
    Config(String),
    /// The chapters cannot be read.
    #[error("book/src: {0}")]
    Chapters(String),
    /// mdBook says no.
    #[error("the book cannot be rendered: {0}")]
    Render(String),
}

/// A chapter that a person wrote.
#[derive(Debug)]
pub(super) struct Prose {
    /// Its text; the name is its path in the lab.
    pub source: Arc<Source>,
    /// Its path in `book/src`.
    pub path: PathBuf,
    /// Its page in the site.
    pub page: String,
}

/// The lab's book as it was read.
pub(super) struct Book {
    mdbook: MDBook,
    /// Its chapters in the order of the summary.
    pub prose: Vec<Prose>,
    /// Whether the lab has none of its own.
    pub is_generated: bool,
}

/// Returns an error with all that it was caused by.
fn told(error: &Error) -> String {
    format!("{error:#}")
}

impl Book {
    /// Reads the book of the lab at `root`; a lab without `book/` gets one of generated chapters alone, for which `scratch` is an
    /// empty folder.
    ///
    /// # Errors
    ///
    /// A configuration or a chapter that cannot be used.
    pub(super) fn read(root: &Path, scratch: &Path) -> Result<Self, BookError> {
        let folder = root.join("book");
        if !folder.is_dir() {
            let src = scratch.join("src");
            let written = fs::create_dir_all(&src).and_then(|()| fs::write(src.join("SUMMARY.md"), "# Summary\n"));
            written.map_err(|trouble| BookError::Chapters(trouble.to_string()))?;
            let config = configured(Config::default(), None, &src)?;
            let mdbook =
                MDBook::load_with_config(scratch, config).map_err(|error| BookError::Chapters(told(&error)))?;
            return Ok(Self { mdbook, prose: Vec::new(), is_generated: true });
        }
        let config = read_config(&folder.join("book.toml"))?;
        let src = folder.join(&config.book.src);
        let config = configured(config, Some(&folder), &src)?;
        if !src.join("SUMMARY.md").is_file() {
            return Err(BookError::Chapters("there is no SUMMARY.md: it lists the chapters".to_owned()));
        }
        let redirects = config.html_config().unwrap_or_default().redirect;
        redirects.keys().try_for_each(|key| inside::redirect(key)).map_err(BookError::Config)?;
        let list =
            fs::read_to_string(src.join("SUMMARY.md")).map_err(|trouble| BookError::Chapters(trouble.to_string()))?;
        inside::summary(&list).map_err(BookError::Chapters)?;
        inside::files(&folder, &src, &[]).map_err(BookError::Chapters)?;
        let mdbook = MDBook::load_with_config(&folder, config).map_err(|error| BookError::Chapters(told(&error)))?;
        let prose = mdbook.book.chapters().filter_map(prose_of).collect::<Vec<Prose>>();
        let pages: Vec<String> = prose.iter().map(|prose| prose.page.clone()).collect();
        inside::pages(&pages).map_err(BookError::Chapters)?;
        inside::files(&folder, &src, &pages).map_err(BookError::Chapters)?;
        if prose.first().is_some_and(|first| first.page.contains('/')) {
            let what = "the first chapter is also the site's index.html, so it must stand in book/src itself";
            return Err(BookError::Chapters(what.to_owned()));
        }
        Ok(Self { mdbook, prose, is_generated: false })
    }

    /// Renders all chapters into `out`: those of the lab with their resolved `texts`, by path, and the generated ones behind them.
    ///
    /// # Errors
    ///
    /// What mdBook does not like.
    pub(super) fn render(
        mut self,
        texts: HashMap<PathBuf, String>,
        generated: Vec<Chapter>,
        style: &str,
        scratch: &Path,
        out: &Path,
    ) -> Result<(), BookError> {
        let failed = |trouble: std::io::Error| BookError::Render(trouble.to_string());
        let root = scratch.join("root");
        fs::create_dir_all(&root).map_err(failed)?;
        fs::write(root.join(place::STYLE), style).map_err(failed)?;
        let html = self.mdbook.config.html_config().unwrap_or_default();
        for own in html.additional_css.iter().chain(&html.additional_js).filter(|own| *own != Path::new(place::STYLE)) {
            copy_own(&self.mdbook.root, own, &root)?;
        }
        self.mdbook.root = root;
        out.clone_into(&mut self.mdbook.config.build.build_dir);
        self.mdbook
            .with_preprocessor(Resolved { texts })
            .with_preprocessor(LinkPreprocessor::new())
            .with_preprocessor(IndexPreprocessor::new())
            .with_preprocessor(Generated { chapters: generated });
        self.mdbook.build().map_err(|error| BookError::Render(told(&error)))
    }
}

fn prose_of(chapter: &Item) -> Option<Prose> {
    let path = chapter.source_path.clone()?;
    let page = chapter.path.as_ref()?.with_extension("html").to_string_lossy().replace('\\', "/");
    // The index preprocessor makes README.md the index of its folder.
    let page = match page.rsplit_once('/') {
        Some((folder, file)) if file.eq_ignore_ascii_case("readme.html") => format!("{folder}/index.html"),
        None if page.eq_ignore_ascii_case("readme.html") => "index.html".to_owned(),
        _ => page,
    };
    let name = format!("book/src/{}", path.display());
    Some(Prose { source: Arc::new(Source { name, text: chapter.content.clone() }), path, page })
}

fn read_config(path: &Path) -> Result<Config, BookError> {
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(trouble) if trouble.kind() == std::io::ErrorKind::NotFound => return Ok(Config::default()),
        Err(trouble) => return Err(BookError::Config(trouble.to_string())),
    };
    let config: Config = text.parse().map_err(|error: Error| BookError::Config(told(&error)))?;
    // mdBook reads a wrong key of this table as if the whole table were absent.
    config
        .get::<HtmlConfig>("output.html")
        .map_err(|error| BookError::Config(format!("output.html: {}", told(&error))))?;
    let tables = [("output", config.outputs::<IgnoredAny>()), ("preprocessor", config.preprocessors::<IgnoredAny>())];
    for (table, names) in tables {
        let names = names.map_err(|error| BookError::Config(told(&error)))?;
        if let Some(name) = names.keys().find(|name| table != "output" || *name != "html") {
            return Err(BookError::Config(format!("`{table}.{name}` would start a program, and a build starts none")));
        }
    }
    Ok(config)
}

/// Sets what a site of ours needs, whatever the file says.
fn configured(mut config: Config, folder: Option<&Path>, src: &Path) -> Result<Config, BookError> {
    let wrong = |error: Error| BookError::Config(told(&error));
    let mut html = config.get::<HtmlConfig>("output.html").map_err(wrong)?.unwrap_or_default();
    html.additional_css.insert(0, PathBuf::from(place::STYLE));
    html.hash_files = false;
    // One page of everything would repeat every anchor; each page prints by itself.
    html.print.enable = false;
    // It knows its place in no sub-path and in no folder.
    html.input_404 = Some(String::new());
    if let Some(folder) = folder {
        let theme = folder.join(html.theme.as_deref().unwrap_or(Path::new("theme")));
        html.theme = theme.is_dir().then_some(theme);
    }
    if config.book.title.is_none() {
        config.book.title = Some("labbook".to_owned());
    }
    config.set("output.html", html).map_err(wrong)?;
    src.clone_into(&mut config.book.src);
    config.build.create_missing = false;
    config.build.use_default_preprocessors = false;
    Ok(config)
}

/// Copies a style or script of the lab to where mdBook looks for it.
fn copy_own(folder: &Path, own: &Path, root: &Path) -> Result<(), BookError> {
    let wrong = |what: &str| BookError::Config(format!("`{}` {what}", own.display()));
    if own.components().any(|part| !matches!(part, std::path::Component::Normal(_))) {
        return Err(wrong("is not a path inside book/"));
    }
    let target = root.join(own);
    if let Some(parent) = target.parent() {
        fs::create_dir_all(parent).map_err(|trouble| wrong(&trouble.to_string()))?;
    }
    fs::copy(folder.join(own), target).map(|_| ()).map_err(|trouble| wrong(&format!("cannot be read: {trouble}")))
}

/// Puts what the directives say in their places.
struct Resolved {
    texts: HashMap<PathBuf, String>,
}

impl Preprocessor for Resolved {
    fn name(&self) -> &'static str {
        "labbook"
    }

    fn run(&self, _: &PreprocessorContext, mut book: Items) -> BookResult<Items> {
        book.for_each_chapter_mut(|chapter| {
            if let Some(text) = chapter.source_path.as_ref().and_then(|path| self.texts.get(path)) {
                chapter.content.clone_from(text);
            }
        });
        Ok(book)
    }
}

/// Adds the generated chapters, after everything that reads text.
struct Generated {
    chapters: Vec<Chapter>,
}

impl Preprocessor for Generated {
    fn name(&self) -> &'static str {
        "labbook-chapters"
    }

    fn run(&self, _: &PreprocessorContext, mut book: Items) -> BookResult<Items> {
        for chapter in book.chapters() {
            // What was included was not looked at; a directive in it would be printed as it is.
            let name = chapter.source_path.as_ref().map_or_else(String::new, |path| path.display().to_string());
            let source = Arc::new(Source { name: name.clone(), text: chapter.content.clone() });
            if !directive::find(&source).is_ok_and(|found| found.is_empty()) {
                return Err(Error::msg(format!(
                    "{name}: a file that is included holds a directive; write it in the chapter"
                )));
            }
        }
        let numbered = book.items.iter().filter_map(|item| match item {
            BookItem::Chapter(chapter) => chapter.number.as_ref().and_then(|number| number.first().copied()),
            _ => None,
        });
        let first = numbered.max().unwrap_or(0) + 1;
        if !book.items.is_empty() {
            book.push_item(BookItem::PartTitle("Findings".to_owned()));
        }
        for (number, chapter) in (first..).zip(&self.chapters) {
            book.push_item(item(chapter, &[number], &[]));
        }
        Ok(book)
    }
}

fn item(chapter: &Chapter, number: &[u32], parents: &[String]) -> Item {
    let path = Path::new(&chapter.page).with_extension("md");
    let mut made = Item::new(&chapter.name, chapter.text.clone(), path, parents.to_vec());
    // It has no file that one could edit.
    made.source_path = None;
    made.number = Some(SectionNumber::new(number.to_vec()));
    let mut parents = parents.to_vec();
    parents.push(chapter.name.clone());
    for (below, chapter) in (1..).zip(&chapter.below) {
        let mut number = number.to_vec();
        number.push(below);
        made.sub_items.push(BookItem::Chapter(item(chapter, &number, &parents)));
    }
    made
}
