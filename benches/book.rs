//! How long the shipped book takes to build, against bare mdBook on the same chapters and `sha256sum` on the same files; and how
//! long a thousand more runs take. Ratios and differences within one run: `cargo bench --bench book`.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use mdbook_driver::MDBook;

/// How often each thing is timed; the fastest counts, since everything else only adds.
const TIMES: usize = 3;

#[expect(clippy::print_stdout, reason = "a bench prints what it measured")]
fn main() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = tempfile::tempdir().expect("a temporary folder");
    let lab = folder.path().join("lab");
    fs::create_dir_all(lab.join("results")).expect("a folder");
    for name in ["experiments", "book", "labbook.yaml"] {
        std::os::unix::fs::symlink(here.join(name), lab.join(name)).expect("a link");
    }
    let experiments = names(&here.join("results"));
    for name in &experiments {
        std::os::unix::fs::symlink(here.join("results").join(name), lab.join("results").join(name)).expect("a link");
    }
    let fresh = fastest(|| fresh_build(&lab));
    let again = fastest(|| build(&lab));
    let hashing = fastest(|| sha256sum(&lab));
    let chapters = folder.path().join("chapters");
    let count = same_chapters(&lab.join("site"), &chapters);
    let bare = fastest(|| bare_mdbook(&chapters));
    say("build, nothing there before", fresh);
    say("build, nothing changed", again);
    say(&format!("bare mdBook, {count} chapters"), bare);
    say("sha256sum of every stored file", hashing);
    println!(
        "{:>9.0} ms  more than both (at most 300)",
        (fresh.as_secs_f64() - (bare + hashing).as_secs_f64()) * 1000.0
    );
    println!("{:>9.0} ms  the same, nothing changed", (again.as_secs_f64() - (bare + hashing).as_secs_f64()) * 1000.0);

    // Under other names the same runs are other runs.
    let mut more = 0;
    for copy in 1.. {
        if more >= 1000 {
            break;
        }
        for name in &experiments {
            let target = lab.join("results").join(format!("{name}-{copy}"));
            std::os::unix::fs::symlink(here.join("results").join(name), target).expect("a link");
            more += runs(&here.join("results").join(name));
        }
    }
    let (fresh_more, hashing_more) = (fastest(|| fresh_build(&lab)), fastest(|| sha256sum(&lab)));
    let again_more = fastest(|| build(&lab));
    say(&format!("build, {more} runs more"), fresh_more);
    say("the same, nothing changed", again_more);
    say("sha256sum of every stored file", hashing_more);
    let beyond =
        (fresh_more.saturating_sub(fresh)).as_secs_f64() - (hashing_more.saturating_sub(hashing)).as_secs_f64();
    println!(
        "{:>9.0} ms  a thousand runs more, beyond hashing them (at most 1000)",
        beyond * 1000.0 * 1000.0 / f64::from(more)
    );
}

#[expect(clippy::print_stdout, reason = "a bench prints what it measured")]
fn say(what: &str, took: Duration) {
    println!("{:>9.0} ms  {what}", took.as_secs_f64() * 1000.0);
}

fn fastest(work: impl Fn() -> Duration) -> Duration {
    (0..TIMES).map(|_| work()).min().unwrap_or_default()
}

fn build(lab: &Path) -> Duration {
    build_at(lab, "site")
}

fn build_at(lab: &Path, out: &str) -> Duration {
    let began = Instant::now();
    let status = Command::new(env!("CARGO_BIN_EXE_labbook"))
        .args(["build", "--out", out])
        .current_dir(lab)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .expect("the binary starts");
    assert!(status.success(), "the book is built");
    began.elapsed()
}

/// Builds where nothing was. Nothing is removed in between: ext4 looks for a long time past inodes that were freed a moment ago.
fn fresh_build(lab: &Path) -> Duration {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    build_at(lab, &format!("fresh-{}", NEXT.fetch_add(1, Ordering::Relaxed)))
}

fn sha256sum(lab: &Path) -> Duration {
    let began = Instant::now();
    let status = Command::new("sh")
        .args(["-c", "find -L results -type f -print0 | xargs -0 sha256sum > /dev/null"])
        .current_dir(lab)
        .status()
        .expect("a shell");
    assert!(status.success(), "all are hashed");
    began.elapsed()
}

/// Writes the content of every chapter of a site as a book of its own; returns how many there are.
fn same_chapters(site: &Path, folder: &Path) -> usize {
    let mut summary = "# Summary\n\n".to_owned();
    let mut count = 0;
    for page in pages(site) {
        let text = fs::read_to_string(site.join(&page)).expect("text");
        let Some(content) = text.split("<main>").nth(1).and_then(|rest| rest.split("</main>").next()) else { continue };
        let path = folder.join("src").join(page.with_extension("md"));
        fs::create_dir_all(path.parent().expect("a folder")).expect("made");
        fs::write(&path, format!("<div>\n{}\n</div>\n", content.trim())).expect("written");
        let _ = writeln!(summary, "- [{count}]({})", page.with_extension("md").display());
        count += 1;
    }
    fs::write(folder.join("src/SUMMARY.md"), summary).expect("written");
    count
}

fn bare_mdbook(folder: &Path) -> Duration {
    let began = Instant::now();
    MDBook::load(folder).and_then(|book| book.build()).expect("a book");
    began.elapsed()
}

/// The chapters of a site: its pages, but not those of sessions and runs.
fn pages(site: &Path) -> Vec<PathBuf> {
    let (mut found, mut folders) = (Vec::new(), vec![site.to_owned()]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("a folder").flatten() {
            let path = entry.path();
            let relative = path.strip_prefix(site).expect("below").to_owned();
            if path.is_dir() && !relative.starts_with("raw") && !relative.starts_with("runs") {
                folders.push(path);
            } else if path.extension().is_some_and(|ending| ending == "html") && relative != Path::new("index.html") {
                found.push(relative);
            }
        }
    }
    found.sort();
    found
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).expect("a folder").flatten();
    let mut names: Vec<String> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.retain(|name| !name.starts_with('.'));
    names.sort();
    names
}

/// How many runs are stored below a folder.
fn runs(folder: &Path) -> u32 {
    fs::read_dir(folder).expect("a folder").flatten().fold(0, |count, entry| match entry.file_name().to_str() {
        Some("run.json") => count + 1,
        _ if entry.path().is_dir() => count + runs(&entry.path()),
        _ => count,
    })
}
