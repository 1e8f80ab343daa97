//! Builds the engine's identity in: the last commit that touched this crate and whether its files differ from HEAD.
//!
//! `source.commit` of an experiment on this engine is what is embedded here. Without git both are `unknown`.

use sha2::{Digest, Sha256};
use std::fmt::Write as _;
use std::process::Command;

fn main() {
    let commit = git(&["log", "-1", "--format=%H", "--", "."]).and_then(|bytes| line(&bytes));
    let dirty = commit.as_ref().and_then(|_| dirty());
    println!("cargo::rustc-env=POCKETMOE_COMMIT={}", commit.as_deref().unwrap_or("unknown"));
    println!("cargo::rustc-env=POCKETMOE_DIRTY={}", dirty.as_deref().unwrap_or("unknown"));
    println!("cargo::rerun-if-changed=.");
    for name in ["HEAD", "logs/HEAD"] {
        let path = git(&["rev-parse", "--git-path", name]).and_then(|bytes| line(&bytes));
        // A path that does not exist would make cargo run this script on every build.
        if let Some(path) = path.filter(|path| std::path::Path::new(path).exists()) {
            println!("cargo::rerun-if-changed={path}");
        }
    }
}

/// `clean`, or the SHA-256 of the crate's diff against HEAD followed by its untracked files (path, then content).
fn dirty() -> Option<String> {
    let diff = git(&["diff", "--no-color", "--no-ext-diff", "--no-textconv", "--binary", "HEAD", "--", "."])?;
    let untracked = git(&["ls-files", "--others", "--exclude-standard", "-z", "--", "."])?;
    if diff.is_empty() && untracked.is_empty() {
        return Some("clean".into());
    }
    let mut hash = Sha256::new();
    hash.update(&diff);
    for path in untracked.split(|byte| *byte == 0).filter(|path| !path.is_empty()) {
        hash.update(path);
        let file = String::from_utf8_lossy(path).into_owned();
        hash.update(std::fs::read(file).unwrap_or_default());
    }
    let mut hex = String::new();
    for byte in hash.finalize() {
        write!(hex, "{byte:02x}").ok()?;
    }
    Some(hex)
}

/// Standard output of git in this crate's folder, or nothing when git or the repository is absent.
fn git(arguments: &[&str]) -> Option<Vec<u8>> {
    let output = Command::new("git").args(arguments).output().ok()?;
    output.status.success().then_some(output.stdout)
}

fn line(bytes: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(bytes).trim().to_owned();
    (!text.is_empty()).then_some(text)
}
