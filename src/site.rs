//! The site: the findings book, and beside it a page for each session and run, and the record itself.
//!
//! Invariant: it is a function of the lab's files and of this program: no clock, no path of this machine, nothing random. No page is
//! made before every stored byte was hashed again, and a build that fails leaves the old site as it was.

mod book;
mod chapters;
mod charts;
mod claims;
pub mod evidence;
mod experiments;
mod inside;
mod library;
mod place;
mod resolve;
mod runs;
mod templates;
pub mod text;
pub mod tree;
mod view;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use crate::diagnostic::Diagnostics;
use crate::directive;
use crate::spec::Spec;
use crate::store::Store;

use book::Book;
pub use book::BookError;
pub use library::LibraryError;
pub use resolve::Sentence;
pub use templates::TemplateError;
pub use tree::{Change, TreeError};

use evidence::Sound;
use library::Library;
use resolve::Resolver;
use templates::Templates;
use tree::Tree;

/// Why there is no new site.
#[derive(Debug, thiserror::Error)]
pub enum SiteError {
    /// Directives that say what nobody measured, chapter by chapter.
    #[error("directives that cannot be resolved")]
    Prose(Vec<Diagnostics>),
    /// The record cannot be read.
    #[error(transparent)]
    Library(#[from] LibraryError),
    /// The book cannot be read or rendered.
    #[error(transparent)]
    Book(#[from] BookError),
    /// A template cannot be used.
    #[error(transparent)]
    Template(#[from] TemplateError),
    /// The site cannot be written.
    #[error(transparent)]
    Tree(#[from] TreeError),
}

impl From<runs::RunsError> for SiteError {
    fn from(error: runs::RunsError) -> Self {
        match error {
            runs::RunsError::Template(error) => Self::Template(error),
            runs::RunsError::Tree(error) => Self::Tree(error),
        }
    }
}

/// Returns every sentence of the lab's book that a directive is part of: what a damaged file would be cited by.
///
/// # Errors
///
/// A book that cannot be read, or directives that cannot be understood.
pub fn sentences(root: &Path) -> Result<Vec<Sentence>, SiteError> {
    if !root.join("book").is_dir() {
        return Ok(Vec::new());
    }
    let scratch = tempfile::tempdir().map_err(|trouble| BookError::Chapters(trouble.to_string()))?;
    let book = Book::read(root, scratch.path())?;
    let mut found = Vec::new();
    for prose in &book.prose {
        let directives = directive::find(&prose.source).map_err(|wrong| SiteError::Prose(vec![wrong]))?;
        found.extend(directives.iter().filter_map(|directive| resolve::sentence(&prose.source, directive)));
    }
    Ok(found)
}

/// Builds the site of a sound record at `target`; `specs` are those of the lab.
///
/// # Errors
///
/// Anything that is wrong with record, book, templates or target; the old site is as it was then.
pub fn build(sound: &Sound, specs: Vec<Spec>, target: &Path, interrupted: &AtomicBool) -> Result<Change, SiteError> {
    tree::may_be_replaced(target)?;
    let root = sound.root();
    let scratch = tree::aside(target)?;
    let templates = Templates::load(root)?;
    let book = Book::read(root, scratch.path())?;
    let library = Library::load(sound, specs)?;
    let texts = resolved(&book, &library, &templates)?;
    let mut generated = chapters::all(&library, &templates)?;
    if book.is_generated {
        generated.insert(0, chapters::front(&templates)?);
    }
    let mut tree = Tree::default();
    let rendered = scratch.path().join("out");
    // The pages of the runs have a thread of their own while mdBook renders.
    let store = Store::new(root);
    std::thread::scope(|scope| -> Result<(), SiteError> {
        let pages = scope.spawn(|| runs::add(&library, &store, &templates, &mut tree));
        book.render(texts, generated, templates.style(), scratch.path(), &rendered)?;
        Ok(pages.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?)
    })?;
    tree.add_folder(&rendered)?;
    Ok(tree.publish(target, interrupted)?)
}

/// Returns the text of every chapter with its directives resolved; all that cannot be is told at once.
fn resolved(book: &Book, library: &Library, templates: &Templates) -> Result<HashMap<PathBuf, String>, SiteError> {
    let mut texts = HashMap::new();
    let mut wrong = Vec::new();
    for prose in &book.prose {
        let resolver = Resolver { library, templates, source: &prose.source, page: &prose.page };
        match directive::find(&prose.source) {
            Err(diagnostics) => wrong.push(diagnostics),
            Ok(directives) => match resolver.chapter(&directives)? {
                Ok(text) => {
                    texts.insert(prose.path.clone(), text);
                }
                Err(diagnostics) => wrong.push(diagnostics),
            },
        }
    }
    if wrong.is_empty() { Ok(texts) } else { Err(SiteError::Prose(wrong)) }
}

/// Returns where the first page of a site is, for people.
pub fn first_page(target: &Path) -> PathBuf {
    target.join("index.html")
}
