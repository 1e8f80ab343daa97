//! The site as files: compared with what is there, written aside, and swapped in whole.
//!
//! Invariant: a folder that is not a site of ours is never touched; until the swap the old site is as it was, and after it the new
//! one is whole. A file with the same bytes keeps its inode and its time.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::store::SealedFiles;

use super::evidence::in_parallel;
use super::place;

/// What tells a site of ours from any other folder.
const MARK: &[u8] = b"{ \"labbook\": \"site\", \"format\": 1 }\n";

/// What stands in one file of the site.
#[derive(Debug, Clone)]
pub enum Content {
    /// A page.
    Bytes(Vec<u8>),
    /// A file of the record.
    File(PathBuf),
    /// A file of a sealed session, by its sealed path: a server's log comes out unpacked, as its digest was taken.
    Sealed(Arc<SealedFiles>, String),
}

impl Content {
    fn read(&self) -> io::Result<Vec<u8>> {
        match self {
            Self::Bytes(bytes) => Ok(bytes.clone()),
            Self::File(path) => fs::read(path),
            Self::Sealed(files, path) => {
                files.sealed(path).ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, format!("`{path}` is gone")))
            }
        }
    }
}

/// Why a site could not be written.
#[derive(Debug, thiserror::Error)]
pub enum TreeError {
    /// Something else is there.
    #[error("`{}` is not a site that labbook made: {why}", .path.display())]
    Foreign {
        /// Where.
        path: PathBuf,
        /// What it is.
        why: &'static str,
    },
    /// A file could not be read or written.
    #[error("cannot {act} `{}`: {trouble}", .path.display())]
    Files {
        /// What was tried.
        act: &'static str,
        /// On what.
        path: PathBuf,
        /// What the system says.
        trouble: io::Error,
    },
    /// Two pages of one name.
    #[error("`{0}` would be written twice")]
    Twice(String),
    /// Ctrl-C.
    #[error("interrupted; the site is as it was")]
    Interrupted,
}

fn files(act: &'static str, path: &Path) -> impl FnOnce(io::Error) -> TreeError {
    let path = path.to_owned();
    move |trouble| TreeError::Files { act, path, trouble }
}

/// What a build changed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Change {
    /// Files in all.
    pub files: usize,
    /// Files that are new or have other bytes.
    pub written: usize,
    /// Files that are not there any more.
    pub removed: usize,
}

/// Every file of a site, by its path in it.
#[derive(Debug, Default)]
pub struct Tree {
    files: BTreeMap<String, Content>,
}

impl Tree {
    /// Adds a file.
    ///
    /// # Errors
    ///
    /// A file of that name is there already.
    pub fn add(&mut self, path: impl Into<String>, content: Content) -> Result<(), TreeError> {
        let path = path.into();
        match self.files.insert(path.clone(), content) {
            None => Ok(()),
            Some(_) => Err(TreeError::Twice(path)),
        }
    }

    /// Adds every file below a folder.
    ///
    /// # Errors
    ///
    /// A folder that cannot be read, or a name that is taken.
    pub fn add_folder(&mut self, root: &Path) -> Result<(), TreeError> {
        for path in existing(root)?.into_keys() {
            let at = root.join(&path);
            let bytes = fs::read(&at).map_err(files("read", &at))?;
            self.add(path, Content::Bytes(bytes))?;
        }
        Ok(())
    }

    /// Makes `target` hold exactly these files.
    ///
    /// # Errors
    ///
    /// Something at `target` that is not a site of ours, or a file that cannot be read or written; the old site is as it was then.
    pub fn publish(mut self, target: &Path, interrupted: &AtomicBool) -> Result<Change, TreeError> {
        let is_new = !may_be_replaced(target)?;
        self.add(place::MARK, Content::Bytes(MARK.to_vec()))?;
        let old = if is_new { BTreeMap::new() } else { existing(target)? };
        let entries: Vec<(&String, &Content)> = self.files.iter().collect();
        let same = in_parallel(&entries, |(path, content)| {
            heed(interrupted)?;
            is_same(target, &old, path, content)
        });
        let same = same.into_iter().collect::<Result<Vec<bool>, TreeError>>()?;
        let change = Change {
            files: entries.len(),
            written: same.iter().filter(|same| !**same).count(),
            removed: old.keys().filter(|path| !self.files.contains_key(*path)).count(),
        };
        if !is_new && change.written == 0 && change.removed == 0 {
            return Ok(change);
        }
        let aside = aside(target)?;
        let folders: BTreeSet<&str> =
            entries.iter().filter_map(|(path, _)| path.rsplit_once('/').map(|(folder, _)| folder)).collect();
        for folder in folders {
            let folder = aside.path().join(folder);
            fs::create_dir_all(&folder).map_err(files("make the folder", &folder))?;
        }
        let jobs: Vec<(&(&String, &Content), bool)> = entries.iter().zip(same).collect();
        let done = in_parallel(&jobs, |((path, content), same)| {
            heed(interrupted)?;
            place_one(target, aside.path(), path, content, *same)
        });
        done.into_iter().collect::<Result<Vec<()>, TreeError>>()?;
        fs::set_permissions(aside.path(), fs::Permissions::from_mode(0o755))
            .map_err(files("change the mode of", aside.path()))?;
        heed(interrupted)?;
        swap(aside, target, is_new)?;
        Ok(change)
    }
}

fn heed(interrupted: &AtomicBool) -> Result<(), TreeError> {
    if interrupted.load(Ordering::Relaxed) { Err(TreeError::Interrupted) } else { Ok(()) }
}

/// Returns whether a site of ours is at `target`; an empty folder counts as one.
///
/// # Errors
///
/// Anything else that is there.
pub fn may_be_replaced(target: &Path) -> Result<bool, TreeError> {
    let foreign = |why| TreeError::Foreign { path: target.to_owned(), why };
    let found = match fs::symlink_metadata(target) {
        Err(trouble) if trouble.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(trouble) => return Err(files("read", target)(trouble)),
        Ok(found) => found,
    };
    if !found.is_dir() {
        return Err(foreign("it is no folder"));
    }
    if fs::read(target.join(place::MARK)).is_ok_and(|mark| mark == MARK) {
        return Ok(true);
    }
    let is_empty = fs::read_dir(target).map_err(files("list", target))?.next().is_none();
    if is_empty { Ok(true) } else { Err(foreign("it holds other files")) }
}

/// Removes what builds that were killed left beside `target`. The caller holds the lock that keeps a second build away.
///
/// # Errors
///
/// Something that cannot be removed.
pub fn tidy(target: &Path) -> Result<(), TreeError> {
    let (folder, prefix) = beside(target);
    let Ok(entries) = fs::read_dir(&folder) else { return Ok(()) };
    // Only folders with the kind of name that `aside` makes; others may belong to somebody.
    let is_ours = |entry: &fs::DirEntry| {
        let name = entry.file_name().to_string_lossy().into_owned();
        let random = name.strip_prefix(&prefix).unwrap_or_default();
        random.len() == RANDOM
            && random.bytes().all(|byte| byte.is_ascii_alphanumeric())
            && entry.file_type().is_ok_and(|kind| kind.is_dir())
    };
    for entry in entries.flatten().filter(is_ours) {
        fs::remove_dir_all(entry.path()).map_err(files("remove", &entry.path()))?;
    }
    Ok(())
}

/// Makes a folder beside `target`, in the same file system, that is removed when it is dropped.
///
/// # Errors
///
/// A folder that cannot be made.
pub fn aside(target: &Path) -> Result<tempfile::TempDir, TreeError> {
    let (folder, prefix) = beside(target);
    fs::create_dir_all(&folder).map_err(files("make the folder", &folder))?;
    tempfile::Builder::new()
        .prefix(&prefix)
        .rand_bytes(RANDOM)
        .tempdir_in(&folder)
        .map_err(files("make a folder in", &folder))
}

/// How many random characters the name of a folder beside a target has.
const RANDOM: usize = 12;

fn beside(target: &Path) -> (PathBuf, String) {
    let folder = target.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let name = target.file_name().map_or_else(|| "site".into(), |name| name.to_string_lossy().into_owned());
    (folder.to_owned(), format!(".{name}-aside-"))
}

/// Returns every file below a folder by its relative path, with whether it is a regular file.
pub(super) fn existing(root: &Path) -> Result<BTreeMap<String, bool>, TreeError> {
    let mut found = BTreeMap::new();
    let mut folders = vec![PathBuf::new()];
    while let Some(folder) = folders.pop() {
        let here = root.join(&folder);
        for entry in fs::read_dir(&here).map_err(files("list", &here))? {
            let entry = entry.map_err(files("list", &here))?;
            let kind = entry.file_type().map_err(files("read", &entry.path()))?;
            let path = folder.join(entry.file_name());
            if kind.is_dir() {
                folders.push(path);
            } else {
                found.insert(path.to_string_lossy().into_owned(), kind.is_file());
            }
        }
    }
    Ok(found)
}

fn is_same(target: &Path, old: &BTreeMap<String, bool>, path: &str, content: &Content) -> Result<bool, TreeError> {
    if old.get(path) != Some(&true) {
        return Ok(false);
    }
    let there = fs::read(target.join(path)).unwrap_or_default();
    let wanted = match content {
        Content::Bytes(bytes) => return Ok(*bytes == there),
        other => other.read().map_err(files("read", Path::new(path)))?,
    };
    Ok(wanted == there)
}

fn place_one(target: &Path, aside: &Path, path: &str, content: &Content, same: bool) -> Result<(), TreeError> {
    let new = aside.join(path);
    if same && fs::hard_link(target.join(path), &new).is_ok() {
        return Ok(());
    }
    let written = match content {
        Content::Bytes(bytes) => fs::write(&new, bytes),
        other => {
            let bytes = other.read().map_err(files("read", Path::new(path)))?;
            fs::write(&new, bytes)
        }
    };
    written.map_err(files("write", &new))?;
    if same {
        // No hard links here: the time at least is kept.
        let time = fs::metadata(target.join(path)).and_then(|found| found.modified());
        let kept = time.and_then(|time| fs::File::options().write(true).open(&new)?.set_modified(time));
        kept.map_err(files("write", &new))?;
    }
    Ok(())
}

/// Puts the new site in the place of the old one, which is removed afterwards.
fn swap(aside: tempfile::TempDir, target: &Path, is_new: bool) -> Result<(), TreeError> {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    use rustix::io::Errno;

    let renamed = files("put the new site in the place of", target);
    if is_new {
        fs::rename(aside.path(), target).map_err(renamed)?;
        // Renamed away: there is nothing left to remove.
        let _ = aside.keep();
        return Ok(());
    }
    match renameat_with(CWD, aside.path(), CWD, target, RenameFlags::EXCHANGE) {
        Ok(()) => aside.close().map_err(files("remove the old site beside", target)),
        Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) => {
            // A file system without exchange: for a moment there is no site.
            let old = self::aside(target)?;
            fs::rename(target, old.path()).map_err(files("move", target))?;
            if let Err(trouble) = fs::rename(aside.path(), target) {
                let _ = fs::rename(old.path(), target);
                return Err(renamed(trouble));
            }
            let _ = aside.keep();
            old.close().map_err(files("remove the old site beside", target))
        }
        Err(errno) => Err(renamed(errno.into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(files: &[(&str, &str)]) -> Tree {
        let mut tree = Tree::default();
        for (path, text) in files {
            tree.add(*path, Content::Bytes(text.as_bytes().to_vec())).expect("once");
        }
        tree
    }

    fn never() -> AtomicBool {
        AtomicBool::new(false)
    }

    #[test]
    fn what_did_not_change_is_not_touched_and_what_went_is_gone() {
        let folder = tempfile::tempdir().expect("a folder");
        let target = folder.path().join("site");
        let first = tree(&[("a/b.html", "1"), ("c.html", "2")]).publish(&target, &never()).expect("written");
        assert_eq!(first, Change { files: 3, written: 3, removed: 0 });
        let time = |path: &str| fs::metadata(target.join(path)).and_then(|found| found.modified()).expect("a time");
        let before = time("a/b.html");
        let again = tree(&[("a/b.html", "1"), ("c.html", "2")]).publish(&target, &never()).expect("the same");
        assert_eq!(again, Change { files: 3, written: 0, removed: 0 });
        let other = tree(&[("a/b.html", "1"), ("d.html", "3")]).publish(&target, &never()).expect("changed");
        assert_eq!(other, Change { files: 3, written: 1, removed: 1 });
        assert_eq!(time("a/b.html"), before);
        assert!(!target.join("c.html").exists() && target.join("d.html").exists());
        assert_eq!(fs::read_dir(folder.path()).expect("listed").count(), 1, "nothing is left beside it");
    }

    #[test]
    fn another_folder_is_never_overwritten_and_an_empty_one_may_be() {
        let folder = tempfile::tempdir().expect("a folder");
        let target = folder.path().join("site");
        fs::create_dir(&target).expect("made");
        tree(&[]).publish(&target, &never()).expect("an empty folder");
        fs::remove_file(target.join(place::MARK)).expect("removed");
        fs::write(target.join("thesis.tex"), "years").expect("written");
        assert!(matches!(tree(&[]).publish(&target, &never()), Err(TreeError::Foreign { .. })));
        fs::remove_dir_all(&target).expect("removed");
        std::os::unix::fs::symlink(folder.path(), &target).expect("a link");
        assert!(matches!(tree(&[]).publish(&target, &never()), Err(TreeError::Foreign { .. })));
    }

    #[test]
    fn an_interrupted_build_leaves_the_old_site_and_nothing_else() {
        let folder = tempfile::tempdir().expect("a folder");
        let target = folder.path().join("site");
        tree(&[("a.html", "1")]).publish(&target, &never()).expect("written");
        let stop = AtomicBool::new(true);
        assert!(matches!(tree(&[("a.html", "2")]).publish(&target, &stop), Err(TreeError::Interrupted)));
        assert_eq!(fs::read(target.join("a.html")).expect("there"), b"1");
        assert_eq!(fs::read_dir(folder.path()).expect("listed").count(), 1);
    }
}
