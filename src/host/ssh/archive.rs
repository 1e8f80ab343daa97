//! Files as one tar stream, both ways.
//!
//! Invariant: what comes from a host is hostile. Only regular files below the folder are taken, each once; anything else (a link, a
//! device, an absolute path, `..`) refuses the whole, and nothing appears under the final name before all of it is there.

use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Component, Path, PathBuf};

/// Most files and bytes that one folder may have: far above any session, far below what fills a disk by surprise.
const MOST_FILES: usize = 1_000_000;
const MOST_BYTES: u64 = 64 << 30;

/// Why an archive is refused.
#[derive(Debug, thiserror::Error)]
pub(super) enum ArchiveError {
    /// It holds what no session of ours leaves.
    #[error("`{path}` {why}")]
    Refused {
        /// The name in the archive.
        path: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// It cannot be read as an archive.
    #[error("no readable archive: {0}")]
    Form(#[source] io::Error),
    /// It cannot be written here.
    #[error("cannot write `{path}`: {source}")]
    Write {
        /// Where.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// Packs files: paths below a folder, and bytes.
pub(super) fn pack<'f>(files: impl IntoIterator<Item = (&'f Path, &'f [u8])>) -> io::Result<Vec<u8>> {
    let mut archive = tar::Builder::new(Vec::new());
    for (path, bytes) in files {
        let mut header = tar::Header::new_gnu();
        header.set_size(bytes.len() as u64);
        header.set_mode(0o600);
        header.set_mtime(0);
        archive.append_data(&mut header, path, bytes)?;
    }
    archive.into_inner()
}

/// Unpacks into a folder that does not exist yet; it appears when all of it is there.
pub(super) fn unpack(archive: impl Read, into: &Path) -> Result<(), ArchiveError> {
    let parent = into.parent().unwrap_or(Path::new("."));
    let at = |path: &Path| {
        let path = path.to_owned();
        move |source| ArchiveError::Write { path, source }
    };
    fs::create_dir_all(parent).map_err(at(parent))?;
    let aside = tempfile::Builder::new().prefix(".part").tempdir_in(parent).map_err(at(parent))?;
    let mut archive = tar::Archive::new(archive);
    let (mut files, mut bytes) = (0, 0_u64);
    for entry in archive.entries().map_err(ArchiveError::Form)? {
        let mut entry = entry.map_err(ArchiveError::Form)?;
        let name = entry.path().map_err(ArchiveError::Form)?.into_owned();
        let refused = |why| ArchiveError::Refused { path: crate::diagnostic::printable(&name.to_string_lossy()), why };
        let relative = below(&name).ok_or_else(|| refused("leads out of its folder"))?;
        match entry.header().entry_type() {
            tar::EntryType::Regular | tar::EntryType::Continuous => {}
            tar::EntryType::Directory => continue,
            _ => return Err(refused("is no regular file")),
        }
        files += 1;
        bytes = bytes.saturating_add(entry.size());
        if files > MOST_FILES || bytes > MOST_BYTES {
            return Err(refused("is one too many: the folder is too large"));
        }
        if relative.as_os_str().is_empty() {
            return Err(refused("has no name"));
        }
        let path = aside.path().join(relative);
        let folder = path.parent().expect("below a folder");
        fs::create_dir_all(folder).map_err(at(folder))?;
        let mut file = match fs::File::options().write(true).create_new(true).mode(0o600).open(&path) {
            Err(trouble) if trouble.kind() == io::ErrorKind::AlreadyExists => return Err(refused("stands twice")),
            opened => opened.map_err(at(&path))?,
        };
        let copied = io::copy(&mut entry, &mut file).map_err(at(&path))?;
        if copied != entry.size() {
            return Err(ArchiveError::Form(io::ErrorKind::UnexpectedEof.into()));
        }
    }
    fs::rename(aside.path(), into).map_err(at(into))
}

/// Returns a path as one below its folder; `None` where it leads elsewhere.
fn below(name: &Path) -> Option<PathBuf> {
    let mut path = PathBuf::new();
    for component in name.components() {
        match component {
            Component::Normal(part) => path.push(part),
            Component::CurDir => {}
            Component::RootDir | Component::ParentDir | Component::Prefix(_) => return None,
        }
    }
    Some(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An archive with one entry of this kind, whose name is written as it is.
    fn archive_with(name: &str, kind: tar::EntryType) -> Vec<u8> {
        let mut header = tar::Header::new_gnu();
        header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
        header.set_entry_type(kind);
        header.set_size(0);
        header.set_mode(0o777);
        header.set_link_name("/etc/passwd").expect("short");
        header.set_cksum();
        let mut bytes = header.as_bytes().to_vec();
        bytes.extend([0; 1024]);
        bytes
    }

    fn refused(archive: &[u8]) -> String {
        let folder = tempfile::tempdir().expect("a folder");
        let told = unpack(archive, &folder.path().join("x")).expect_err("refused").to_string();
        assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 0, "nothing is left of what was refused");
        told
    }

    #[test]
    fn an_empty_archive_is_an_empty_folder_and_files_come_back() {
        let folder = tempfile::tempdir().expect("a folder");
        unpack(pack([]).expect("packed").as_slice(), &folder.path().join("empty")).expect("unpacked");
        assert_eq!(fs::read_dir(folder.path().join("empty")).expect("a folder").count(), 0);
        let long = format!("deep/{}/{}", "n".repeat(120), "m".repeat(120));
        let files = [("a", &b"\0\n"[..]), ("b/c", b""), (&long, b"x")].map(|(name, bytes)| (Path::new(name), bytes));
        unpack(pack(files).expect("packed").as_slice(), &folder.path().join("full")).expect("unpacked");
        for (name, bytes) in files {
            assert_eq!(fs::read(folder.path().join("full").join(name)).expect("there"), bytes);
        }
    }

    #[test]
    fn what_is_no_regular_file_below_the_folder_refuses_the_whole() {
        use tar::EntryType as Kind;
        for kind in [Kind::Symlink, Kind::Link, Kind::Char, Kind::Block, Kind::Fifo] {
            assert_eq!(refused(&archive_with("a", kind)), "`a` is no regular file");
        }
        for name in ["../x", "/x", "a/../../x", "..", "./../x"] {
            assert!(refused(&archive_with(name, Kind::Regular)).ends_with("leads out of its folder"), "{name}");
        }
        assert!(refused(&archive_with("./", Kind::Regular)).ends_with("has no name"));
        let mut twice = archive_with("a", Kind::Regular)[..512].to_vec();
        twice.extend(archive_with("./a", Kind::Regular));
        assert_eq!(refused(&twice), "`./a` stands twice");
    }

    #[test]
    fn a_torn_archive_is_none() {
        let whole = pack([(Path::new("a"), &[7; 2000][..])]).expect("packed");
        assert!(
            refused(&whole[..1000]).contains("no readable archive") || refused(&whole[..1000]).contains("cannot write")
        );
        assert!(refused(&[1; 600]).contains("no readable archive"));
    }
}
