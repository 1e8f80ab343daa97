//! What a book may be made of: plain files below `book/`, at places that no generated page has.
//!
//! Invariant: a chapter, an included file, a redirect or an asset of a book that passed is inside `book/` and can neither write
//! outside the site nor stand in for a page, a style or a raw file of ours.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Component, Path, PathBuf};

use pulldown_cmark::{Event, Parser, Tag};
use regex::Regex;

use super::place;

/// Folders of the site that hold generated pages and raw files.
const OURS: [&str; 3] = ["findings/", "runs/", "raw/"];

/// Returns whether a path of the site is for what is generated.
pub(super) fn is_reserved(page: &str) -> bool {
    OURS.iter().any(|ours| page.starts_with(ours)) || [place::STYLE, place::MARK, "print.html"].contains(&page)
}

/// Checks the list of chapters before mdBook reads it.
///
/// # Errors
///
/// What is wrong, with the place.
pub(super) fn summary(text: &str) -> Result<(), String> {
    for event in Parser::new(text) {
        if let Event::Start(Tag::Link { dest_url, .. }) = event
            && !dest_url.is_empty()
            && !is_inside(Path::new(&*dest_url.replace("%20", " ")))
        {
            return Err(format!("SUMMARY.md: `{}` is not a path inside book/src", dest_url.escape_debug()));
        }
    }
    Ok(())
}

/// Checks the pages that chapters become: there is one, no two are one, none is ours.
///
/// # Errors
///
/// What is wrong.
pub(super) fn pages(pages: &[String]) -> Result<(), String> {
    if pages.is_empty() {
        return Err("SUMMARY.md names no chapter: write `[Title](file.md)`".to_owned());
    }
    // The first chapter is the site's index.html as well.
    let mut seen = BTreeSet::new();
    for (at, page) in pages.iter().enumerate() {
        if !seen.insert(page) || (at > 0 && page == "index.html") {
            return Err(format!("two chapters would be the page `{page}`: rename one"));
        }
        if is_reserved(page) {
            return Err(format!("`{page}`: findings/, runs/, raw/ and print.md are for generated pages"));
        }
    }
    Ok(())
}

/// Checks the keys of `output.html.redirect`.
///
/// # Errors
///
/// One that leads outside the site or to a page of ours.
pub(super) fn redirect(key: &str) -> Result<(), String> {
    let path = key.strip_prefix('/').unwrap_or(key);
    if !is_inside(Path::new(path)) || is_reserved(path) {
        return Err(format!("output.html.redirect: `{}` is no free place inside the site", key.escape_debug()));
    }
    Ok(())
}

/// Checks everything below `src`: plain files, no links; what is no chapter may not lie where a page will; what is included lies
/// below `folder`.
///
/// # Errors
///
/// What is wrong, with the file.
pub(super) fn files(folder: &Path, src: &Path, pages: &[String]) -> Result<(), String> {
    let include =
        Regex::new(r"\{\{\s*#(?:include|rustdoc_include|playground|playpen)\s+([^\s}]+)").map_err(|e| e.to_string())?;
    let mut folders = vec![PathBuf::new()];
    while let Some(below) = folders.pop() {
        let entries = fs::read_dir(src.join(&below)).map_err(|trouble| format!("{}: {trouble}", below.display()))?;
        for entry in entries {
            let entry = entry.map_err(|trouble| format!("{}: {trouble}", below.display()))?;
            let path = below.join(entry.file_name());
            let name = path.to_string_lossy().into_owned();
            let kind = entry.file_type().map_err(|trouble| format!("{name}: {trouble}"))?;
            if kind.is_dir() {
                folders.push(path);
                continue;
            }
            if !kind.is_file() {
                return Err(format!("{name}: not a plain file; a book holds no links"));
            }
            let is_text = path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("md"));
            if !is_text && (is_reserved(&name) || name == "index.html" || pages.contains(&name)) {
                return Err(format!("{name}: a page of the site will stand there"));
            }
            let Ok(text) = fs::read_to_string(entry.path()) else { continue };
            for found in include.captures_iter(&text) {
                let target = found[1].split(':').next().unwrap_or_default();
                let at = src.join(&below).join(target);
                if Path::new(target).is_absolute() || !is_plain_below(folder, &at) {
                    return Err(format!("{name}: `{}` is no file inside book/", target.escape_debug()));
                }
            }
        }
    }
    Ok(())
}

/// Whether a path goes down and nowhere else.
fn is_inside(path: &Path) -> bool {
    path.components().next().is_some()
        && path.components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir))
}

/// Whether a file lies below a folder, links followed; what is not there is told by mdBook.
fn is_plain_below(folder: &Path, file: &Path) -> bool {
    match (fs::canonicalize(folder), fs::canonicalize(file)) {
        (Ok(folder), Ok(file)) => file.starts_with(folder) && file.is_file(),
        (Ok(_), Err(_)) => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chapters_lead_down_and_to_one_page_each() {
        assert!(summary("").is_ok());
        assert!(summary("# Summary\n\n[A](a.md)\n- [B](b/c d.md)\n- [Draft]()\n").is_ok());
        for hostile in ["../x.md", "/x.md", "a/../../x.md", "..%20/../x.md"] {
            assert!(summary(&format!("[A]({hostile})")).is_err(), "{hostile}");
        }
        let made = |names: &[&str]| pages(&names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>());
        assert!(made(&["index.html", "a.html"]).is_ok());
        for wrong in
            [&[][..], &["a.html", "a.html"], &["a.html", "index.html"], &["a.html", "raw/x.html"], &["print.html"]]
        {
            assert!(made(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn redirects_and_files_stay_in_their_place() {
        assert!(redirect("/old.html").is_ok() && redirect("a/b.html").is_ok());
        for hostile in ["/../x.html", "..", "", "/", "/labbook.css", "/runs/x.html"] {
            assert!(redirect(hostile).is_err(), "{hostile}");
        }
        let root = tempfile::tempdir().expect("a folder");
        let src = root.path().join("book/src");
        fs::create_dir_all(src.join("runs")).expect("a folder");
        let checked = || files(&root.path().join("book"), &src, &["a.html".to_owned()]);
        assert_eq!(checked(), Ok(()));
        fs::write(root.path().join("secret"), "s").expect("written");
        fs::write(root.path().join("book/notes.txt"), "n").expect("written");
        let mut wrong = Vec::new();
        for (name, text) in [
            ("a.md", "{{#include ../notes.txt}} {{#include absent.md}}"),
            ("b.md", "{{#include ../../secret}}"),
            ("c.md", "{{ #include /etc/hostname:1:2 }}"),
            ("a.html", "forged"),
            ("labbook.css", "forged"),
            ("runs/x.html", "forged"),
        ] {
            fs::write(src.join(name), text).expect("written");
            wrong.extend(checked().err().map(|_| name));
            fs::remove_file(src.join(name)).expect("removed");
        }
        assert_eq!(wrong, ["b.md", "c.md", "a.html", "labbook.css", "runs/x.html"]);
        std::os::unix::fs::symlink("/etc", src.join("etc")).expect("a link");
        assert!(checked().is_err_and(|why| why.contains("no links")));
    }
}
