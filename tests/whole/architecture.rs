//! The shape of the program: modules use only modules above them, and inference never meets execution.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

fn source_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

/// Returns the modules of lib.rs in written order.
fn modules() -> Vec<String> {
    let library = fs::read_to_string(source_folder().join("lib.rs")).expect("lib.rs");
    library
        .lines()
        .filter_map(|line| line.trim().strip_prefix("pub mod ")?.strip_suffix(';').map(str::to_owned))
        .collect()
}

/// Returns the text of a module: its file, and every file of the folder with its name. Tests may use what they like.
fn text_of(module: &str) -> String {
    let mut text = without_tests(&source_folder().join(format!("{module}.rs")));
    let mut folders = vec![source_folder().join(module)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.file_stem().is_some_and(|stem| stem == "tests") {
                continue;
            }
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                text.push_str(&without_tests(&path));
            }
        }
    }
    text
}

fn without_tests(file: &Path) -> String {
    let text = fs::read_to_string(file).expect("a readable source file");
    let end = text.find("#[cfg(test)]\nmod tests").unwrap_or(text.len());
    text[..end].to_owned()
}

/// Returns the modules that a text names as `crate::NAME` or in `use crate::{NAME, …}`.
fn used(text: &str, modules: &[String]) -> Vec<String> {
    let mut found = Vec::new();
    for module in modules {
        let direct = format!("crate::{module}::");
        let whole = format!("crate::{module};");
        let grouped = text.split("use crate::{").skip(1).any(|rest| {
            let inside = &rest[..rest.find("};").unwrap_or(rest.len())];
            inside.split(',').any(|name| name.trim().split("::").next() == Some(module))
        });
        if text.contains(&direct) || text.contains(&whole) || grouped {
            found.push(module.clone());
        }
    }
    found
}

#[test]
fn modules_use_only_modules_above_them() {
    let modules = modules();
    assert!(modules.len() > 5, "lib.rs lists the modules: {modules:?}");
    let place: BTreeMap<&String, usize> = modules.iter().enumerate().map(|(index, module)| (module, index)).collect();
    let mut wrong = Vec::new();
    for module in &modules {
        for other in used(&text_of(module), &modules) {
            if place[&other] > place[module] {
                wrong.push(format!("`{module}` uses `{other}`, which stands below it in lib.rs"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn inference_and_execution_do_not_know_each_other() {
    let modules = modules();
    let execution = ["host", "script", "engine", "client", "runner"];
    let inference = ["comparison", "rules", "finding"];
    for (one, others) in
        [(execution, &inference[..]), (["comparison", "rules", "finding", "stats", "validity"], &execution[..])]
    {
        for module in one.iter().filter(|module| modules.iter().any(|known| known == *module)) {
            for other in used(&text_of(module), &modules) {
                assert!(!others.contains(&other.as_str()), "`{module}` uses `{other}`");
            }
        }
    }
}

#[test]
fn every_source_file_says_what_it_is_for() {
    let mut folders = vec![source_folder(), Path::new(env!("CARGO_MANIFEST_DIR")).join("crates/pocketmoe/src")];
    let mut without = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("a folder").flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs")
                && !fs::read_to_string(&path).expect("a readable source file").starts_with("//!")
            {
                without.push(path);
            }
        }
    }
    assert!(without.is_empty(), "no //! at the top of {without:?}");
}
