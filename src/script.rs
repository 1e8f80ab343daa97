//! The programs that run on a host, what they are given and what they leave.
//!
//! Invariant: `runner.sh` and `session.sh` are constants; everything that varies is in files (one argument, one
//! variable a file), so no shell text is ever made from input, and a reviewer can read and re-run a session by hand:
//! `cd HOSTFOLDER && sh session.sh run queue/NNNN-NAME`. They judge nothing: raw files only, no JSON made in shell.
//!
//! Needed on a host: `sh` (dash, bash, busybox), coreutils, awk, grep, sed, `setsid`, git where `source/` is given,
//! curl or else python3. nvidia-smi is used where it exists.
//!
//! # Host folder (one edition on one host; the path may contain blanks)
//!
//! | path | what |
//! |---|---|
//! | `runner.sh` `session.sh` | the programs; [`digest`] is what `cat runner.sh session.sh \| sha256sum` prints |
//! | `queue/NNNN-NAME/` | a session, complete from the moment it appears ([`input::place`]) |
//! | `env/NAME` | optional: variables of every server and client here (what the host's `setup:` exported); a session's own win |
//! | `gpus` | optional: the GPU set, `0,1,2,3`; part of the lease's name and of each nvidia-smi query |
//! | `journal` | `UTC UPTIME EVENT NAME CODE`, see [`output::Event`]; only the runner appends (a refused one says so) |
//! | `runner` | `PID STARTTIME BOOT_ID NONCE` (16 hex) of the living or the crashed runner; removed at a clean end |
//! | `stop` | the runner ends, the running session with it (143); it stays, so that a start that arrives late starts nothing: whoever resumes removes it first |
//! | `dirty` | `NNNN-NAME REASON`: the next runner proves that session again, and only then removes it and goes on |
//! | `source/COMMIT-DIGEST` | clean trees, shared by sessions and verified at each use |
//!
//! The runner is started as `setsid sh runner.sh >>runner.log 2>&1 </dev/null &` in the host folder. It ends with 0 (drained,
//! stopped, or another runner of this folder lives), 69 (the lease is another folder's), 74 (cannot write), 75 (dirty),
//! 64 (usage). *Place, then start* never loses an entry: a draining runner gives up its lease and then looks at the
//! queue once more. `UPTIME` is `/proc/uptime`, in 1/100 s.
//!
//! The lease is `${LABBOOK_LEASE_DIR:-/var/tmp}/labbook-lease[-GPUS]/owner` = `PID STARTTIME BOOT_ID NONCE FOLDER`. The
//! owner changes only under `claim`, a symlink that names its maker; a dead owner (no such pid, other start time,
//! other boot) goes to `unswept`, and nothing starts before all processes of its nonce are gone. A clean end removes the
//! folder; after `dirty` it stays, so that a runner of any folder sweeps first.
//!
//! # Session input, `queue/NNNN-NAME/`
//!
//! `argv/0001…` `env/NAME` (exact bytes) · `cwd` · `source/{repo,commit,patches/NNNN-name.patch}` · `port` · `health`,
//! `ready-line` (each optional; without both, ready means that the port listens) · `generate` with `generate-path` ·
//! `info` (`NAME PATH`) · `flush-path` · `preflight/NN/{argv,env}` · `package-path/{argv,env}` (prints where the
//! package is) · `limits` · `trials/NN-LABEL/{argv,env,flush,warmup/{argv,env}}`.
//!
//! A server, client or preflight gets `HOME USER PATH LANG TMPDIR`, `SPT_NOENV=1` (else a process title may overwrite
//! the environment by which a process is known as ours), in a Slurm job the scheduler's `CUDA_VISIBLE_DEVICES` and
//! `ROCR_VISIBLE_DEVICES`, the host folder's `env/`, its own `env/`, and `LABBOOK_NONCE`. Nothing else. Each has a
//! session and process group of its own, and SIGINT ignored, as every background process of a POSIX shell has.
//!
//! # Session output
//!
//! Beside `out/`: `done` (0, 70, 75; written by the runner, atomically), `session.log` (what the programs said),
//! `pids` (`PID STARTTIME BOOT_ID` of every process seen). In `out/`, which does not change after `session-end`:
//!
//! | path | what |
//! |---|---|
//! | `status` | `UTC UPTIME STEP CODE`, a step once, in the order of [`output::Step`]; after a failure only stop, proof, end |
//! | `fail` | `STEP CODE TEXT` of the first failure; STEP is `interrupted` for a session that was cut off |
//! | `nonce` | 32 hex: the runner's 16, then the session's |
//! | `programs-sha256` | [`digest`] as observed on the host |
//! | `server.log` `server.pid` `exit` `how` | stdout and stderr; `PID STARTTIME`; code as the shell saw it; `term`, `kill`, `itself`. `exit` and `how` are absent in a swept session: no parent was left to see them |
//! | `proc/PID/…` `proc-after/PID/…` | `cmdline environ stat status limits comm exe cwd`, and before the trials `exe-sha256 maps-so`, of the server, its descendants and whatever carries the nonce |
//! | `host/…` `host-after/…` | `boot-id loadavg`; before the trials also `machine-id-sha256 uname cpuinfo-model cores meminfo governor numa nofile affinity slurm`, absent where not observable |
//! | `gpu/…` `gpu-after/…` | `smi.csv smi-q.xml topo apps.csv`, and `gpu/idle-mib` from before the start |
//! | `http/NAME` `http/NAME.code` | each line of `info`; `http-after/` likewise; `http/generate{,.code,-s}`; code 000 is no answer |
//! | `source/…` | `head status diff submodules` of the working directory when it is a git tree, `package-path`, `log` |
//! | `preflight/NN/{log,code}` | |
//! | `identity` `listen` | [`output::Identity`]; raw lines of `/proc/net/tcp{,6}` |
//! | `trials/NN-LABEL/…` | the client's files, `client.log code started ended log-from log-to flush.code flush.body before/ after/ warmup/`, `timeout` where its deadline passed |
//! | `proof` | [`output::Proof`] |
//! | `manifest` | `SHA256  SIZE  PATH` of every other file of `out/`, written last; a name with a newline or backslash is left out |
//!
//! # What holds
//!
//! - Every wait has a deadline. 124 is a deadline, 143 a stop on request, 98 a port in use, 28 too little disk, 16 a GPU in
//!   use, 65 a tree that is not what was made, 70 a file that could not be written.
//! - While a client runs, the session is blocked in `wait`; one watch looks twice a second whether server, deadline and
//!   `stop` still allow it (two forks of `sleep` a second, nothing else).
//! - A process is killed only when its start time is that of a process whose environment carried our nonce, or that was a
//!   member or descendant of the server's session. (What this cannot see: a child that emptied its environment, when server
//!   *and* session are killed before the next look at the members, which is taken at each poll until ready and before
//!   each trial. Port and GPU memory are proved all the same.) 75 means that this could not be finished, or that the port is busy or GPU memory
//!   is not back under 500 MiB: a stray server on the port is 75 too, since every later session would fail on it.
//! - A cut-off session is 70, unless its status ends with `end 0`: then only its runner was cut off, and it is 0.

pub mod input;
pub mod output;

use std::fmt::Write as _;

use sha2::{Digest as _, Sha256};

/// Runs the queue of a host folder.
pub const RUNNER: &str = include_str!("script/runner.sh");
/// Runs one session.
pub const SESSION: &str = include_str!("script/session.sh");

/// Runs a host's `setup:` and keeps what it exports; see its first lines.
pub const SETUP: &str = include_str!("script/setup.sh");
/// Looks at a host as a session would; see its first lines.
pub const DOCTOR: &str = include_str!("script/doctor.sh");

/// The fact `labbook.session_sha256`: SHA-256 of `runner.sh` followed by `session.sh`, 64 hex digits.
pub fn digest() -> String {
    sha256(&[RUNNER.as_bytes(), SESSION.as_bytes()])
}

/// SHA-256 of the parts one after another, 64 lower-case hex digits.
pub fn sha256(parts: &[&[u8]]) -> String {
    let mut state = Sha256::new();
    for part in parts {
        state.update(part);
    }
    state.finalize().iter().fold(String::new(), |mut hex, byte| {
        write!(hex, "{byte:02x}").expect("a String takes everything");
        hex
    })
}
