//! The findings book, by the real binary: what it prints, what stops it, and that every link in it leads somewhere.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::SystemTime;

use regex::Regex;

use super::lab::Lab;
use super::tiny::{self, Tiny};
use crate::scripts::{find, skipped};

/// Makes a lab with the results of this repository, and one chapter.
fn shipped(chapter: &str) -> Lab {
    let lab = Lab::empty();
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    for name in ["results", "experiments"] {
        std::os::unix::fs::symlink(here.join(name), lab.path(name)).expect("a link");
    }
    lab.write("labbook.yaml", &fs::read_to_string(here.join("labbook.yaml")).expect("a lab"));
    book(&lab, chapter);
    lab
}

fn book(lab: &Lab, chapter: &str) {
    lab.write("book/src/SUMMARY.md", "# Summary\n\n[Front](front.md)\n");
    lab.write("book/src/front.md", chapter);
}

const CHAPTER: &str = "# Front\n\n\
    {{ claim(\"oea/higher-at-16\") }}. It {{ verdict(\"oea/no-loss-at-1\") }} at one user.\n\n\
    | a | b |\n|---|---|\n| {{ effect(\"oea\") }} | {{ value(\"oea/higher-at-16\", arm=\"k0-4\") }} |\n\n\
    {{ value(\"oea\", metric=\"output_throughput\", arm=\"off\", at=4) }} and {{ effect(\"oea\", \
    metric=\"output_throughput\", treatment=\"k0-4\", at=4) }}, {{ quote(\"352.79 tok/s\", \"notes\", \"2026-02-11\") }}, \
    {{ reference(\"cutedsl\", \"ceiling\") }}\n\n\
    {{ table(\"oea\") }}\n\n{{ chart(\"oea\", \"throughput\") }}\n\n{{ chart(\"oea\", \"effect\") }}\n\n\
    {{ provenance(\"oea\") }}\n\n\
    `{{ claim(\"not/this\") }}` and {{ .Values.image }} stay.\n";

/// Every file of a site with its bytes.
fn tree(root: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    files(root).into_iter().map(|path| (path.clone(), fs::read(root.join(path)).expect("a file"))).collect()
}

fn times(root: &Path) -> BTreeMap<PathBuf, SystemTime> {
    let time = |path: &PathBuf| fs::metadata(root.join(path)).and_then(|found| found.modified()).expect("a time");
    files(root).into_iter().map(|path| (path.clone(), time(&path))).collect()
}

fn files(root: &Path) -> Vec<PathBuf> {
    let (mut found, mut folders) = (Vec::new(), vec![root.to_owned()]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("a folder").flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                folders.push(entry.path());
            } else {
                found.push(entry.path().strip_prefix(root).expect("below").to_owned());
            }
        }
    }
    found.sort();
    found
}

fn pages(root: &Path) -> BTreeMap<PathBuf, String> {
    let html = |path: &PathBuf| path.extension().is_some_and(|ending| ending == "html");
    let text = |path: PathBuf| (path.clone(), fs::read_to_string(root.join(path)).expect("text"));
    files(root).into_iter().filter(html).map(text).collect()
}

fn decoded(address: &str) -> String {
    let address = address.replace("&amp;", "&").replace("&quot;", "\"");
    let mut bytes = Vec::new();
    let mut rest = address.as_bytes();
    while let Some((first, others)) = rest.split_first() {
        let hex = others.get(..2).and_then(|hex| u8::from_str_radix(std::str::from_utf8(hex).ok()?, 16).ok());
        let escaped = hex.filter(|_| *first == b'%');
        bytes.push(escaped.unwrap_or(*first));
        rest = if escaped.is_some() { &others[2..] } else { others };
    }
    String::from_utf8(bytes).expect("UTF-8")
}

/// Demands that every link of every page leads to a file and an anchor of the site; returns how many there were.
fn walk(root: &Path) -> usize {
    let attribute = Regex::new(r#"\s(href|src)="([^"]*)""#).expect("a pattern");
    let anchor = Regex::new(r#"\s(?:id|name)="([^"]*)""#).expect("a pattern");
    let pages = pages(root);
    let anchors: BTreeMap<&PathBuf, BTreeSet<String>> = pages
        .iter()
        .map(|(path, text)| (path, anchor.captures_iter(text).map(|found| decoded(&found[1])).collect()))
        .collect();
    let mut links = 0;
    for (page, text) in &pages {
        for found in attribute.captures_iter(text) {
            let address = &found[2];
            assert!(!address.contains(':'), "{}: {address} leaves the site", page.display());
            assert!(!address.starts_with('/'), "{}: {address} knows where the site is", page.display());
            let (path, fragment) = address.split_once('#').unwrap_or((address, ""));
            let target = normal(&page.parent().expect("a folder").join(decoded(path)));
            let target = if path.is_empty() { page.clone() } else { target };
            links += 1;
            assert!(root.join(&target).is_file(), "{}: {address} leads nowhere", page.display());
            if !fragment.is_empty() {
                let there = anchors.get(&target).is_some_and(|anchors| anchors.contains(&decoded(fragment)));
                assert!(there, "{}: {address} has no such anchor", page.display());
            }
        }
    }
    links
}

fn normal(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for part in path.components() {
        match part {
            std::path::Component::ParentDir => assert!(normal.pop(), "{} leaves the site", path.display()),
            std::path::Component::CurDir => {}
            other => normal.push(other),
        }
    }
    normal
}

#[test]
fn every_link_resolves_and_a_second_build_changes_nothing() {
    let lab = shipped(CHAPTER);
    lab.run(&["build"]).success().says("book: site/index.html");
    let site = lab.path("site");
    assert!(walk(&site) > 1000);
    let (before, dated) = (tree(&site), times(&site));
    lab.run(&["build"]).success().says("nothing changed");
    assert!(times(&site) == dated, "a file was written again");
    // Another folder, another build: the same bytes.
    lab.run(&["build", "--out", "elsewhere/deep/book"]).success().says("book: elsewhere/deep/book/index.html");
    let other = tree(&lab.path("elsewhere/deep/book"));
    let differ: Vec<&PathBuf> = before.keys().filter(|path| other.get(*path) != before.get(*path)).collect();
    assert!(differ.is_empty() && other.len() == before.len(), "{differ:?}");
    let machine = lab.path("").to_string_lossy().into_owned();
    for (path, bytes) in &before {
        let is_raw = path.starts_with("raw");
        assert!(is_raw || !String::from_utf8_lossy(bytes).contains(&machine), "{} names this machine", path.display());
    }
}

#[test]
fn the_book_of_this_repository_builds_and_a_browser_finds_no_fault_in_it() {
    let lab = Lab::empty();
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    for name in ["results", "experiments", "book", "imports"] {
        std::os::unix::fs::symlink(here.join(name), lab.path(name)).expect("a link");
    }
    lab.write("labbook.yaml", &fs::read_to_string(here.join("labbook.yaml")).expect("a lab"));
    lab.run(&["build"]).success();
    // Under a path of its own, since a site may stand anywhere.
    let site = lab.path("pages/of a lab");
    fs::create_dir_all(lab.path("pages")).expect("a folder");
    fs::rename(lab.path("site"), &site).expect("moved");
    assert!(walk(&site) > 1000);
    let Some(chromium) = find("chromium") else {
        return skipped("no browser on this machine (Debian package chromium)");
    };
    let mut kinds: BTreeMap<PathBuf, PathBuf> = BTreeMap::new();
    for page in pages(&site).into_keys() {
        // One of each kind: the depth of a page and the first folder say which.
        let kind = Path::new(page.iter().next().unwrap_or_default()).join(page.iter().count().to_string());
        kinds.entry(kind).or_insert(page);
    }
    assert!(kinds.len() >= 6, "{kinds:?}");
    for page in kinds.values() {
        let address = format!("file://{}", site.join(page).display().to_string().replace(' ', "%20"));
        let told = Command::new(&chromium)
            .args(["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"])
            .args(["--enable-logging=stderr", "--dump-dom"])
            .arg(format!("--user-data-dir={}", lab.path("browser").display()))
            .arg(&address)
            .output()
            .expect("it starts");
        let document = String::from_utf8_lossy(&told.stdout);
        assert!(document.contains("</html>"), "{address}: {document}");
        let faults: Vec<String> = String::from_utf8_lossy(&told.stderr)
            .lines()
            .filter(|line| line.contains("CONSOLE") || line.contains("ERR_"))
            .map(str::to_owned)
            .collect();
        assert!(faults.is_empty(), "{address}: {faults:?}");
    }
}

#[test]
fn a_number_is_three_clicks_from_bytes_that_hash_to_their_run() {
    let lab = shipped(CHAPTER);
    lab.run(&["build"]).success();
    let site = lab.path("site");
    let href = |text: &str, pattern: &str| -> Vec<String> {
        Regex::new(pattern).expect("a pattern").captures_iter(text).map(|found| decoded(&found[1])).collect()
    };
    let front = fs::read_to_string(site.join("front.html")).expect("a page");
    let numbers = href(&front, r##"<a class="lb-number[^"]*" href="([^"#]*claims[^"#]*)""##);
    let claim = numbers.first().expect("a number that leads to a claim");
    let page = fs::read_to_string(site.join(claim)).expect("the claim");
    let runs = href(&page, r#"href="([^"]*runs/[^"]*\.html)""#);
    assert_eq!(runs.len(), 10, "two arms, five blocks: {runs:?}");
    let rows = Regex::new(r#"<tr><td><a href="([^"]+)">[^<]*</a></td><td>\d*</td><td><code>([0-9a-f]{64})</code>"#)
        .expect("a pattern");
    let inputs = Regex::new(r#"<pre class="lb-input">([^<]*)</pre></td><td>\d*</td><td><code>([0-9a-f]{64})</code>"#)
        .expect("a pattern");
    for run in runs {
        let run = normal(&Path::new(claim).parent().expect("a folder").join(run));
        let text = fs::read_to_string(site.join(&run)).expect("the run");
        let mut checked = 0;
        for found in rows.captures_iter(&text) {
            let raw = normal(&run.parent().expect("a folder").join(decoded(&found[1])));
            let bytes = fs::read(site.join(&raw)).expect("a raw file");
            let hex = labbook::digest::Digest::of(&bytes).to_string();
            assert_eq!(hex, found[2], "{}", raw.display());
            checked += 1;
        }
        assert!(checked > 10, "{checked} files of {}", run.display());
        let mut shown = 0;
        for found in inputs.captures_iter(&text) {
            let input =
                [("&lt;", "<"), ("&gt;", ">"), ("&quot;", "\""), ("&#x27;", "'"), ("&#39;", "'"), ("&amp;", "&")]
                    .iter()
                    .fold(found[1].to_owned(), |input, (entity, character)| input.replace(entity, character));
            assert_eq!(labbook::digest::Digest::of(input.as_bytes()).to_string(), found[2], "{input}");
            shown += 1;
        }
        assert!(shown > 10, "{shown} inputs of {}", run.display());
        assert!(text.contains("server.log"), "the log is among them");
    }
}

#[test]
fn what_nobody_measured_stops_the_build_with_place_and_suggestion() {
    let lab = shipped("# Front\n");
    lab.run(&["build"]).success();
    let before = times(&lab.path("site"));
    let cases = [
        ("{{ claim(\"oea/higer-at-16\") }}", "no claim", "did you mean `higher-at-16`?"),
        ("{{ claim(\"quickstrat/faster-at-16\") }}", "no experiment `quickstrat`", "did you mean `quickstart`?"),
        ("{{ claim(\"oea@12345678/higher-at-16\") }}", "no edition `12345678`", "cb4532cb"),
        ("{{ claim(\"cutedsl/faster-at-10\") }}", "has no results", "labbook run experiments/cutedsl.yaml"),
        ("{{ value(\"oea/higher-at-16\", arm=\"k0-5\") }}", "no arm", "did you mean `k0-4`?"),
        ("{{ value(\"oea\", metric=\"output_throughput\", arm=\"of\", at=16) }}", "no treatment `of`", "k0-4"),
        ("{{ value(\"oea\", metric=\"output_throughput\", arm=\"off\", at=17) }}", "level 17", "1, 4, 16"),
        ("{{ value(\"oea\", metric=\"mean_ttft_ms\", arm=\"off\", at=16) }}", "mean_ttft_ms", "output_throughput"),
        (
            "{{ value(\"oea\", metric=\"output_throughputs\", arm=\"off\", at=16) }}",
            "not a metric",
            "output_throughput",
        ),
        ("{{ value(run=\"00000000\", metric=\"output_throughput\") }}", "no run begins", "labbook show"),
        ("{{ reference(\"cutedsl\", \"ceilin\") }}", "no reference", "did you mean `ceiling`?"),
        ("so {{ table(\"oea\") }}", "inside a line", "a line of its own"),
    ];
    for (typed, wrong, help) in cases {
        book(&lab, &format!("# Front\n\ntwo\nlines {typed}\n"));
        lab.run(&["build"]).fails(1).says("book/src/front.md:4:").says(wrong).says(help);
        assert!(times(&lab.path("site")) == before, "the old site was touched");
    }
    assert_eq!(tiny::folder_names(&lab.path("")).iter().filter(|name| name.starts_with(".site")).count(), 0);
}

#[test]
fn a_flipped_byte_or_a_lost_run_stops_the_build_and_names_its_sentences() {
    let lab = Tiny::default().lab();
    book(&lab, "# Front\n\nNothing here.\n\nIt {{ verdict(\"tiny/same\") }} the other: {{ claim(\"tiny/same\") }}.\n");
    // The run ends with the book.
    tiny::run(&lab).success().says("book: site/index.html");
    let before = tree(&lab.path("site"));
    walk(&lab.path("site"));
    let row = lab.path(&tiny::edition(&lab)).join("b01-one/c0001-p1/bench.jsonl");
    let bytes = fs::read(&row).expect("a row");
    let mut flipped = bytes.clone();
    flipped[10] ^= 1;
    fs::write(&row, &flipped).expect("written");
    let told = lab.run(&["build"]).fails(1);
    let told = told.says("bench.jsonl: altered").says("tiny/same").says("book/src/front.md:5:4: It {{ verdict(");
    told.says("the site is as it was");
    fs::write(&row, &bytes).expect("restored");
    let session = lab.path(&tiny::edition(&lab)).join("b01-other");
    let aside = lab.path("aside");
    fs::rename(&session, &aside).expect("taken away");
    lab.run(&["build"]).fails(1).says("b01-other/session.json: missing").says("book/src/front.md:5:4");
    assert!(tree(&lab.path("site")) == before, "the old site was touched");
    fs::rename(&aside, &session).expect("brought back");
    lab.run(&["build"]).success().says("nothing changed");
    // What a run cannot back does not change how the run ended.
    book(&lab, "# Front\n\n{{ claim(\"tiny/sane\") }}\n");
    tiny::run(&lab).success().says("book: not built: no run backs what book/src/front.md says");
}

const HOSTILE: &str = "<script>alert(1)</script><img src=x onerror=alert(2)> {{#include /etc/passwd}} \
    {{ claim(\\\"x/y\\\") }} `code` | [link](javascript:alert(3)) *b* </title></div>";

#[test]
fn hostile_text_comes_out_as_text() {
    let lab = Lab::new();
    let spec = lab.read("experiments/quickstart.yaml");
    let mut lines: Vec<String> = spec.lines().map(str::to_owned).collect();
    for line in &mut lines {
        for key in ["title", "question", "hypothesis"] {
            if line.starts_with(&format!("{key}: ")) {
                *line = format!("{key}: \"{HOSTILE}\"");
            }
        }
    }
    lab.write("experiments/planned.yaml", &format!("{}\n", lines.join("\n")));
    // An import says freely what its sessions, facts and reasons are called.
    lab.write(
        "their/manifest.yaml",
        &format!(
            "import: 1\nexperiment: theirs\nfactor: server.env.X\ncontrol: one\narms: {{ one: [unset], other: [\"1\"] }}\n\
             workload: {{ concurrency: [1] }}\nrepeats: 1\n\
             claims:\n  c: {{ metric: output_throughput, treatment: other, at: 1, expect: higher }}\n\
             runs:\n  - arm: one\n    block: 1\n    session: \"{HOSTILE}\"\n    concurrency: 1\n    result: one.html\n    \
             facts: {{ model.path: \"{HOSTILE}\" }}\n  \
             - arm: other\n    block: 1\n    session: s\n    concurrency: 1\n    status: failed\n    reason: \"{HOSTILE}\"\n    \
             values: {{ output_throughput: 1 }}\n"
        ),
    );
    lab.write("their/one.html", "{\"completed\": 1, \"output_throughput\": 2, \"x\": \"<script>alert(1)</script>\"}\n");
    lab.run(&["import", "their/manifest.yaml"]).success();
    book(
        &lab,
        "# Front\n\n{{ table(\"theirs\") }}\n\n{{ provenance(\"theirs\") }}\n\n| {{ claim(\"theirs/c\") }} | b |\n|---|---|\n",
    );
    lab.run(&["build"]).success();
    let site = lab.path("site");
    walk(&site);
    let mut told = 0;
    for (path, text) in pages(&site) {
        for live in ["<script>alert", "<img src=x", "href=\"javascript", "root:x:0", "</title></div>", "<em>b</em>"] {
            assert!(!text.contains(live), "{}: {live}", path.display());
        }
        told += text.matches("&lt;img src=x onerror=alert(2)&gt;").count();
    }
    assert!(told >= 3, "the text is there, as text: {told}");
    // The script that a reader's browser runs builds HTML of breadcrumbs.
    let index = fs::read_to_string(site.join("searchindex.js")).expect("the search index");
    let breadcrumbs = Regex::new(r#""breadcrumbs":"([^"]*)""#).expect("a pattern");
    let all: Vec<String> = breadcrumbs.captures_iter(&index).map(|found| found[1].to_owned()).collect();
    assert!(!all.is_empty() && all.iter().all(|crumbs| !crumbs.contains('<')), "{all:?}");
    let contents = fs::read_to_string(site.join("toc.js")).expect("the contents");
    assert!(!contents.contains("<img") && !contents.contains("<script"), "{contents}");
    // The raw file is there with its bytes, and no browser runs it.
    let raw = files(&site.join("raw"));
    assert!(
        raw.iter().any(|path| path.ends_with("one.html.txt")) && !raw.iter().any(|path| path.ends_with("one.html"))
    );
}

#[test]
fn a_lab_without_a_book_has_a_front_page_and_another_folder_is_left_alone() {
    let lab = Lab::new();
    lab.write("thesis/chapter.tex", "years of work");
    lab.run(&["build", "--out", "thesis"]).fails(2).says("is not a site that labbook made");
    assert_eq!(lab.files("thesis"), [PathBuf::from("chapter.tex")]);
    lab.run(&["build"]).success().says("book: site/index.html");
    walk(&lab.path("site"));
    assert!(lab.read("site/index.html").contains("Findings of this lab"));
    assert!(lab.read("site/findings/index.html").contains("not measured yet"));
    // A page that went is gone.
    fs::remove_file(lab.path("experiments/quickstart.yaml")).expect("removed");
    lab.run(&["build"]).success().says("removed");
    assert!(!lab.path("site/findings/quickstart").exists());
}

#[test]
fn what_mdbook_would_ignore_or_start_is_an_error() {
    let lab = Lab::new();
    book(&lab, "# Front\n");
    for (config, wrong) in [
        ("[output.html]\nno-such-key = 1\n", "no-such-key"),
        ("[bok]\ntitle = \"x\"\n", "bok"),
        ("[output.linkcheck]\n", "output.linkcheck"),
        ("[preprocessor.mermaid]\ncommand = \"touch started\"\n", "preprocessor.mermaid"),
    ] {
        lab.write("book/book.toml", config);
        lab.run(&["build"]).fails(2).says("book/book.toml").says(wrong);
    }
    assert!(!lab.path("started").exists() && !lab.path("site").exists());
}

#[test]
fn a_template_of_the_lab_overrides_by_name_and_a_slip_in_it_is_told() {
    let lab = Lab::new();
    lab.write("templates/front.html", "<h1>Ours</h1><p>{{ dashboard }} {{ glossary }}</p>\n");
    lab.run(&["build"]).success();
    assert!(lab.read("site/index.html").contains(">Ours<") || lab.read("site/index.html").contains("Ours"));
    lab.write("templates/front.html", "{{ dashbord }}\n");
    lab.run(&["build"]).fails(2).says("front.html").says("dashbord");
    fs::remove_file(lab.path("templates/front.html")).expect("removed");
    lab.write("templates/fromt.html", "x\n");
    lab.run(&["build"]).fails(2).says("did you mean `front.html`?");
}

#[test]
fn a_site_stands_beside_what_it_is_made_from_and_a_book_inside_its_folder() {
    let lab = Lab::empty();
    lab.write("labbook.yaml", "hosts:\n  local: { via: local }\n");
    book(&lab, "# Front\n\nText.\n");
    for inside in ["results", "book/src/x", "templates", "."] {
        lab.run(&["build", "--out", inside]).fails(2).says("lie in each other");
    }
    lab.write("outside.md", "# Outside\n");
    lab.write("outside.html", "precious");
    for (list, wrong) in [
        ("# Summary\n\n[Front](front.md)\n[Out](../../outside.md)\n", "is not a path inside book/src"),
        ("# Summary\n\n[Front](front.md)\n[Out](/outside.md)\n", "is not a path inside book/src"),
        ("nothing here\n", "names no chapter"),
    ] {
        lab.write("book/src/SUMMARY.md", list);
        lab.run(&["build"]).fails(2).says(wrong);
    }
    book(&lab, "# Front\n\n{{#include ../../outside.html}}\n");
    lab.run(&["build"]).fails(2).says("is no file inside book/");
    book(&lab, "# Front\n");
    lab.write("book/src/findings/index.html", "forged");
    lab.run(&["build"]).fails(2).says("a page of the site will stand there");
    fs::remove_dir_all(lab.path("book/src/findings")).expect("removed");
    lab.run(&["build"]).success();
    assert_eq!(fs::read_to_string(lab.path("outside.html")).expect("there"), "precious");
}

#[test]
fn a_copy_of_an_experiment_and_a_stranger_among_the_results_are_named() {
    let lab = Tiny { levels: "[1]", ..Tiny::default() }.lab();
    tiny::run(&lab).success();
    lab.run(&["check"]).success();
    let copied = Command::new("cp").arg("-r").arg(lab.path("results/tiny")).arg(lab.path("results/other")).status();
    assert!(copied.is_ok_and(|status| status.success()));
    lab.run(&["check"]).fails(1).says("of another experiment or edition");
    lab.run(&["compare", "other"]).fails(1).says("of another experiment or edition");
    lab.run(&["build"]).fails(1).says("of another experiment or edition");
    fs::remove_dir_all(lab.path("results/other")).expect("removed");
    fs::create_dir(lab.path("results/<img src=x>")).expect("a folder");
    lab.run(&["check"]).fails(1).says("<img src=x>: not part of the record");
}
