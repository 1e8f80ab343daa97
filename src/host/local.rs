//! This machine, as a host.

use std::fs;
use std::io::{self, Read, Seek, SeekFrom, Write as _};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use super::{BOOT_ID, Host, HostError, RUNNER_LOG, Said, files, gpu_list, lives};
use crate::script::input::{self, SessionInput};

/// This machine.
#[derive(Debug)]
pub struct Local {
    name: String,
    root: PathBuf,
    gpus: Option<Vec<u32>>,
}

impl Local {
    /// Makes the local host, which keeps its folders under `root` and uses these GPUs, or all.
    pub fn new(name: impl Into<String>, root: impl Into<PathBuf>, gpus: Option<Vec<u32>>) -> Self {
        Self { name: name.into(), root: root.into(), gpus }
    }
}

impl Host for Local {
    fn name(&self) -> &str {
        &self.name
    }

    fn folder(&self, label: &str) -> PathBuf {
        self.root.join(label)
    }

    fn install(&self, folder: &Path) -> Result<(), HostError> {
        input::install(folder)?;
        let path = folder.join("gpus");
        match gpu_list(self.gpus.as_deref()) {
            Some(list) => fs::write(&path, format!("{list}\n")).map_err(files("write", &path)),
            None => remove(&path),
        }
    }

    fn queue(&self, folder: &Path, sequence: u16, session: &SessionInput) -> Result<(), HostError> {
        input::place(folder, sequence, session)?;
        Ok(())
    }

    fn pace(&self) -> Duration {
        Duration::from_millis(200)
    }

    fn place_program(&self, path: &Path, program: &Path) -> Result<(), HostError> {
        self.place_file(path, program)
    }

    fn place_file(&self, path: &Path, program: &Path) -> Result<(), HostError> {
        if path.exists() {
            return Ok(());
        }
        let folder = path.parent().unwrap_or(path);
        fs::create_dir_all(folder).map_err(files("make the folder", folder))?;
        let aside = tempfile::NamedTempFile::new_in(folder).map_err(files("write in", folder))?;
        fs::copy(program, aside.path()).map_err(files("copy", program))?;
        // Closing the descriptor first: a program that is open for writing cannot be executed.
        let aside = aside.into_temp_path();
        aside.persist(path).map_err(|trouble| files("write", path)(trouble.error))?;
        Ok(())
    }

    fn start(&self, folder: &Path) -> Result<(), HostError> {
        let failed = |reason: String| HostError::Start { folder: folder.to_owned(), reason };
        let log = folder.join(RUNNER_LOG);
        let log = fs::File::options().create(true).append(true).open(&log).map_err(files("write", &log))?;
        // `setsid -f` forks, so that the runner is nobody's child and goes on when this program ends.
        let status = Command::new("setsid")
            .args(["-f", "sh", "runner.sh"])
            .current_dir(folder)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .status()
            .map_err(|trouble| failed(format!("setsid: {trouble}")))?;
        if status.success() { Ok(()) } else { Err(failed(format!("setsid ended with {status}"))) }
    }

    fn alive(&self, folder: &Path) -> Result<bool, HostError> {
        let claim = self.read(&folder.join("runner"), 0)?;
        let claim = String::from_utf8_lossy(&claim);
        let Some(pid) = claim.split_whitespace().next().filter(|pid| pid.parse::<u32>().is_ok()) else {
            return Ok(false);
        };
        let stat = self.read(Path::new(&format!("/proc/{pid}/stat")), 0)?;
        Ok(lives(&claim, &self.read(Path::new(BOOT_ID), 0)?, &stat))
    }

    fn request_stop(&self, folder: &Path) -> Result<(), HostError> {
        let path = folder.join("stop");
        fs::write(&path, b"").map_err(files("write", &path))
    }

    fn withdraw_stop(&self, folder: &Path) -> Result<(), HostError> {
        remove(&folder.join("stop"))
    }

    fn read(&self, path: &Path, offset: u64) -> Result<Vec<u8>, HostError> {
        let mut file = match fs::File::open(path) {
            Ok(file) => file,
            Err(trouble) if trouble.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(trouble) => return Err(files("read", path)(trouble)),
        };
        let mut content = Vec::new();
        file.seek(SeekFrom::Start(offset)).map_err(files("read", path))?;
        file.read_to_end(&mut content).map_err(files("read", path))?;
        Ok(content)
    }

    fn list(&self, folder: &Path) -> Result<Vec<String>, HostError> {
        let entries = match fs::read_dir(folder) {
            Ok(entries) => entries,
            Err(trouble) if trouble.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(trouble) => return Err(files("list", folder)(trouble)),
        };
        let mut names = Vec::new();
        for entry in entries {
            let entry = entry.map_err(files("list", folder))?;
            names.push(entry.file_name().to_string_lossy().into_owned());
        }
        names.sort();
        Ok(names)
    }

    fn fetch(&self, folder: &Path, into: &Path) -> Result<(), HostError> {
        fs::create_dir_all(into).map_err(files("make the folder", into))?;
        for entry in fs::read_dir(folder).map_err(files("list", folder))? {
            let entry = entry.map_err(files("list", folder))?;
            let kind = entry.file_type().map_err(files("read", &entry.path()))?;
            let target = into.join(entry.file_name());
            // Links and devices are never followed: what they point to was not written by the session.
            if kind.is_dir() {
                self.fetch(&entry.path(), &target)?;
            } else if kind.is_file() {
                fs::copy(entry.path(), &target).map_err(files("copy", &entry.path()))?;
            }
        }
        Ok(())
    }

    fn shell(&self, script: &str, input: &[u8]) -> Result<Said, HostError> {
        let failed = || files("run a script with", Path::new("sh"));
        let mut child = Command::new("sh")
            .args(["-c", script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(failed())?;
        let stdin = child.stdin.take();
        let output = std::thread::scope(|scope| {
            // Beside the reading, since either pipe may be full. A script need not read what it is given.
            scope.spawn(move || stdin.map(|mut stdin| stdin.write_all(input)));
            child.wait_with_output()
        });
        let output = output.map_err(failed())?;
        let code = output.status.code().or_else(|| output.status.signal().map(|signal| 128 + signal)).unwrap_or(-1);
        Ok(Said { code, out: output.stdout, err: output.stderr })
    }
}

fn remove(path: &Path) -> Result<(), HostError> {
    match fs::remove_file(path) {
        Err(trouble) if trouble.kind() != io::ErrorKind::NotFound => Err(files("remove", path)(trouble)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn acts_on_nothing_are_empty_and_acts_repeat() {
        let root = tempfile::tempdir().expect("a folder");
        let host = Local::new("local", root.path(), Some(vec![0, 3]));
        let folder = host.folder("x-00000000");
        assert!(host.list(&folder).expect("no folder, no names").is_empty());
        assert!(host.read(&folder.join("journal"), 7).expect("no file, no bytes").is_empty());
        assert!(!host.alive(&folder).expect("no runner"));
        for _ in 0..2 {
            host.install(&folder).expect("installed");
            host.withdraw_stop(&folder).expect("nothing to withdraw");
        }
        assert_eq!(host.read(&folder.join("gpus"), 0).expect("read"), b"0,3\n");
        fs::create_dir_all(folder.join("a")).expect("a folder");
        fs::write(folder.join("a/b"), b"content").expect("written");
        assert_eq!(host.read(&folder.join("a/b"), 3).expect("read"), b"tent");
        assert_eq!(host.list(&folder.join("a")).expect("listed"), ["b"]);
        let fetched = root.path().join("here");
        std::os::unix::fs::symlink("/etc/passwd", folder.join("a/link")).expect("a link");
        host.fetch(&folder, &fetched).expect("fetched");
        assert_eq!(host.list(&fetched.join("a")).expect("listed"), ["b"]);
    }

    #[test]
    fn a_script_gets_its_input_and_its_end_is_told() {
        let host = Local::new("local", "/nowhere", None);
        let quiet = host.shell("exit 3", &vec![b'x'; 1 << 20]).expect("it ran");
        assert_eq!(quiet, Said { code: 3, out: Vec::new(), err: Vec::new() });
        let loud = host.shell("cat; echo no >&2; kill -9 $$", &vec![b'x'; 1 << 20]).expect("it ran");
        assert_eq!((loud.code, loud.out.len(), loud.err.as_slice()), (137, 1 << 20, &b"no\n"[..]));
    }
}
