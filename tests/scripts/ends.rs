//! How a session can end, apart from being killed.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::net::TcpListener;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command as Process;
use std::time::{Duration, Instant};

use Event::{Drained, LeaseTaken, RunnerStart, SessionEnd, SessionStart};
use labbook::script::input::{self, Command, Source};
use labbook::script::output::{Event, Failure, Identity, Outcome, Proof, Step, instant};
use rustix::process::Signal;

use super::{
    Bed, Shell, find, kill, pids, python, read, shell, signal, skipped, steps, under_each_shell, until, wait, word,
};

under_each_shell!(
    to_the_end,
    bytes_arrive_as_they_are,
    stray_server_on_the_port,
    server_ignores_term,
    server_leaves_children,
    server_never_ready,
    server_exits_by_itself,
    client_fails,
    preflight_fails,
    stopped_in_the_middle,
    two_folders_one_lease,
    many_starts_in_one_folder,
    entry_while_draining,
    disk_full,
    clean_tree,
    gpu_memory,
);

#[test]
fn busybox_alone_without_curl() {
    to_the_end(Shell::BusyboxAlone);
}

fn to_the_end(under: Shell) {
    let Some(mut bed) = Bed::new(under) else { return };
    let mut first = bed.session("b01-a", &[]);
    first.trials[1].warmup = Some(shell("echo wave >wave"));
    first.preflight = vec![shell("echo parsed")];
    first.package_path = Some(shell("echo /opt/package"));
    let (first, second) = (bed.place(7, &first), bed.place(12, &bed.session("b01-b", &[])));
    assert_eq!(bed.run(), Some(0), "{}", bed.tell());
    bed.assert_clean();
    for entry in [&first, &second] {
        assert_eq!(Outcome::parse(&read(&entry.join("done"))), Some(Outcome::Done), "{}", bed.tell());
        let out = entry.join("out");
        assert_eq!(steps(&out.join("status")).len(), 13);
        assert_eq!(read(&out.join("exit")), "143\n");
        assert_eq!(read(&out.join("how")), "term\n");
        assert_eq!(Identity::parse(&read(&out.join("identity"))), Some(Identity::Own));
        assert_eq!(Proof::parse(&read(&out.join("proof"))).port_free, Some(true));
        assert_eq!(read(&out.join("programs-sha256")).trim(), labbook::script::digest());
        assert_eq!(read(&out.join("http/generate")), "POST /generate {\"text\": \"a\"}\n");
        assert_eq!(read(&out.join("http/generate.code")), "200\n");
        assert!(read(&out.join("http/generate-s")).trim().parse::<f64>().unwrap() > 0.0);
        assert_eq!(read(&out.join("http-after/server_info")), "GET /server_info \n");
        let pid = word(&out.join("server.pid"), 0);
        for name in ["cmdline", "environ", "exe", "exe-sha256", "cwd", "stat", "limits", "comm", "maps-so"] {
            assert!(!read(&out.join("proc").join(&pid).join(name)).is_empty(), "no proc/{pid}/{name}");
        }
        for name in ["boot-id", "uname", "cores", "loadavg", "meminfo", "nofile", "affinity"] {
            assert!(!read(&out.join("host").join(name)).is_empty(), "no host/{name}");
        }
        for trial in ["00-a", "01-b"].map(|name| out.join("trials").join(name)) {
            assert_eq!(read(&trial.join("bench.jsonl")), "{}\n");
            assert_eq!(read(&trial.join("code")), "0\n");
            assert_eq!(read(&trial.join("flush.code")), "200\n");
            assert_eq!(read(&trial.join("before/metrics")), "GET /metrics \n");
            assert_eq!(read(&trial.join("after/metrics.code")), "200\n");
            let (started, ended) = (instant(&read(&trial.join("started"))), instant(&read(&trial.join("ended"))));
            assert!(ended.unwrap().1 - started.unwrap().1 >= 0.08, "10 ms is the resolution");
            assert!(!word(&trial.join("log-from"), 0).is_empty() && !word(&trial.join("log-to"), 0).is_empty());
        }
    }
    assert_eq!(read(&first.join("out/trials/01-b/warmup/wave")), "wave\n");
    assert_eq!(read(&first.join("out/preflight/00/log")), "parsed\n");
    assert_eq!(read(&first.join("out/source/package-path")), "/opt/package\n");
    let journal = bed.journal();
    let events: Vec<_> = journal.iter().map(|line| line.event).collect();
    assert_eq!(
        events,
        [RunnerStart, LeaseTaken, SessionStart, SessionEnd, SessionStart, SessionEnd, Drained],
        "{}",
        bed.tell()
    );
}

fn bytes_arrive_as_they_are(under: Shell) {
    let Some(mut bed) = Bed::new(under) else { return };
    let every: Vec<u8> = (1..=255).collect();
    let odd: Vec<OsString> = [
        "",
        " ",
        "a b",
        "  both  ",
        "'",
        "\"",
        "\\",
        "\\n",
        "$HOME",
        "$(touch /tmp/labbook-pwned)",
        "`id`",
        "*",
        "?",
        "~",
        "-n",
        "--",
        "a\nb",
        "\n",
        "ends with newline\n",
        "two\n\n",
        "\t",
        "{\"a b\": [1, 2]}",
        "0 3 * * *",
        "é漢字𝄞",
        "#",
        ";",
        "&&",
        "|",
        "!",
        "%s",
        "\r\n",
    ]
    .iter()
    .map(OsString::from)
    .chain([OsString::from_vec(every), OsString::from_vec(vec![0xff, 0xfe]), OsString::from("x".repeat(131_000))])
    .collect();
    let mut session = bed.session("b01-bytes", &[]);
    session.server.argv.extend(odd.iter().cloned());
    session.server.env =
        odd.iter().enumerate().map(|(n, value)| (format!("ODD_{n}"), value.clone())).take(odd.len() - 1).collect();
    // The client writes down what it got.
    let tell = "import os, sys; sys.stdout.buffer.write(b'\\0'.join(map(os.fsencode, sys.argv[1:])));\
                open('env', 'wb').write(b'\\0'.join(k + b'=' + v for k, v in sorted(os.environb.items())))";
    let mut client: Vec<OsString> = vec![python().into(), "-I".into(), "-c".into(), tell.into()];
    client.extend(odd.iter().cloned());
    session.trials[0].client = Command { argv: client, env: session.server.env.clone() };
    let entry = bed.place(1, &session);
    assert_eq!(bed.run(), Some(0), "{}", bed.tell());
    assert_eq!(read(&entry.join("done")), "0\n", "{}", bed.tell());
    let joined = |parts: &[OsString]| parts.iter().map(|part| part.as_bytes()).collect::<Vec<_>>().join(&0);
    let process = entry.join("out/proc").join(word(&entry.join("out/server.pid"), 0));
    let mut cmdline = joined(&session.server.argv);
    cmdline.push(0);
    assert!(fs::read(process.join("cmdline")).unwrap() == cmdline, "the server's arguments differ");
    let trial = entry.join("out/trials/00-a");
    assert!(fs::read(trial.join("client.log")).unwrap() == joined(&odd), "the client's arguments differ");
    for (file, name) in [(process.join("environ"), "server"), (trial.join("env"), "client")] {
        let environ = fs::read(file).unwrap();
        let mut found: Vec<_> = environ.split(|&b| b == 0).filter(|part| !part.is_empty()).collect();
        found.sort();
        let mut names: Vec<_> = found.iter().map(|part| part.split(|&b| b == b'=').next().unwrap()).collect();
        names.retain(|name| !name.starts_with(b"ODD_"));
        let base = ["HOME", "LABBOOK_NONCE", "LANG", "PATH", "SPT_NOENV", "TMPDIR", "USER"].map(str::as_bytes);
        names.retain(|name| *name != b"LC_CTYPE"); // Python sets it for itself
        assert_eq!(names, base, "the {name} has other variables");
        for (name, value) in &session.server.env {
            let wanted = [name.as_bytes(), b"=", value.as_bytes()].concat();
            assert!(found.contains(&wanted.as_slice()), "{name} is not {}", value.display());
        }
    }
    bed.assert_clean();
}

fn stray_server_on_the_port(under: Shell) {
    let Some(mut bed) = Bed::new(under) else { return };
    let (first, second) = (bed.place(1, &bed.session("b01-a", &[])), bed.place(2, &bed.session("b01-b", &[])));
    let stray = TcpListener::bind(("127.0.0.1", bed.port)).unwrap();
    assert_eq!(bed.run(), Some(75), "{}", bed.tell());
    let fail = Failure::parse(&read(&first.join("out/fail"))).unwrap();
    assert_eq!((fail.step, fail.code), (Some(Step::Idle), 98));
    assert!(fail.text.contains(&format!("held by process {} ", std::process::id())), "{}", fail.text);
    assert_eq!(Outcome::parse(&read(&first.join("done"))), Some(Outcome::Dirty));
    assert!(!first.join("out/server.pid").exists(), "nothing was started");
    assert_eq!(bed.run(), Some(75), "the cause is still there\n{}", bed.tell());
    assert!(!second.join("out").exists());
    drop(stray);
    assert_eq!(bed.run(), Some(0), "{}", bed.tell());
    assert!(!bed.host.join("dirty").exists());
    assert_eq!(read(&second.join("done")), "0\n", "{}", bed.tell());
    bed.assert_clean();
}

fn server_ignores_term(under: Shell) {
    let Some(mut bed) = Bed::new(under) else { return };
    let entry = bed.place(1, &bed.session("b01-a", &["ignore=1"]));
    assert_eq!(bed.run(), Some(0), "{}", bed.tell());
    assert_eq!(read(&entry.join("done")), "0\n");
    assert_eq!(read(&entry.join("out/exit")), "137\n");
    assert_eq!(read(&entry.join("out/how")), "kill\n");
    bed.assert_clean();
}

fn server_leaves_children(under: Shell) {
    let Some(mut bed) = Bed::new(under) else { return };
    let entry = bed.place(1, &bed.session("b01-a", &["orphans=1", "strangers=1"]));
    assert_eq!(bed.run(), Some(0), "{}", bed.tell());
    assert_eq!(read(&entry.join("done")), "0\n");
    let seen = fs::read_dir(entry.join("out/proc")).unwrap().count();
    assert_eq!(seen, 3, "the server and both children are recorded");
    for child in read(&entry.join("pids")).lines() {
        let pid = child.split(' ').next().unwrap().parse().unwrap();
        assert!(!super::alive(pid), "{child} is alive");
    }
    bed.assert_clean();
}

fn server_never_ready(under: Shell) {
    let Some(mut bed) = Bed::new(under) else { return };
    let mut session = bed.session("b01-a", &["never=1"]);
    session.limits.ready = Duration::from_secs(2);
    let entry = bed.place(1, &session);
    assert_eq!(bed.run(), Some(0), "{}", bed.tell());
    let fail = Failure::parse(&read(&entry.join("out/fail"))).unwrap();
    assert_eq!((fail.step, fail.code), (Some(Step::Ready), 124));
    assert!(fail.text.contains("socket"), "{}", fail.text);
    assert_eq!(read(&entry.join("done")), "70\n");
    bed.assert_clean();
}

fn server_exits_by_itself(under: Shell) {
    let Some(mut bed) = Bed::new(under) else { return };
    let early = bed.place(1, &bed.session("b01-early", &["quit=7"]));
    let mut session = bed.session("b01-late", &["exit=0.9:9"]);
    session.trials[0].client = shell("sleep 50");
    let late = bed.place(2, &session);
    let mut missing = bed.session("b01-missing", &[]);
    missing.server.argv[0] = "/nowhere/python".into();
    let missing = bed.place(3, &missing);
    let start = Instant::now();
    assert_eq!(bed.run(), Some(0), "{}", bed.tell());
    assert!(start.elapsed() < Duration::from_secs(45), "not noticed at once");
    let fail = Failure::parse(&read(&early.join("out/fail"))).unwrap();
    assert_eq!((fail.step, fail.code), (Some(Step::Ready), 7));
    assert_eq!((read(&early.join("out/exit")), read(&early.join("out/how"))), ("7\n".into(), "itself\n".into()));
    let fail = Failure::parse(&read(&late.join("out/fail"))).unwrap();
    let during_trial = matches!(fail.step, Some(Step::Trial(_) | Step::Facts | Step::Identity));
    assert!(during_trial && fail.code == 9, "{fail:?}");
    assert_eq!(Failure::parse(&read(&missing.join("out/fail"))).unwrap().code, 127);
    for entry in [&early, &late, &missing] {
        assert_eq!(read(&entry.join("done")), "70\n");
    }
    bed.assert_clean();
}

fn client_fails(under: Shell) {
    let Some(mut bed) = Bed::new(under) else { return };
    let place = |sequence: u16, name: &str, client: Command| {
        let mut session = bed.session(name, &[]);
        session.limits.trial = Duration::from_secs(2);
        session.trials[1].client = client;
        bed.place(sequence, &session)
    };
    // It ignores SIGTERM, and leaves a child in a session of its own.
    let hangs = place(1, "b01-hangs", shell("trap '' TERM; setsid sleep 301 & sleep 302; sleep 303"));
    let exits = place(2, "b01-exits", shell("echo why >&2; exit 3"));
    let missing = place(3, "b01-missing", Command::new(["/nowhere/client"]));
    let mut wave = bed.session("b01-wave", &[]);
    wave.trials[0].warmup = Some(shell("exit 5"));
    let wave = bed.place(4, &wave);
    assert_eq!(bed.run(), Some(0), "{}", bed.tell());
    for (entry, trial, code) in
        [(&hangs, "01-b", 124), (&exits, "01-b", 3), (&missing, "01-b", 127), (&wave, "00-a", 5)]
    {
        let fail = Failure::parse(&read(&entry.join("out/fail"))).unwrap();
        assert_eq!((fail.step, fail.code), (Some(Step::Trial(trial.to_owned())), code), "{}", bed.tell());
        assert_eq!(read(&entry.join("done")), "70\n");
        assert_eq!(read(&entry.join("out/how")), "term\n", "the server is stopped as ever");
    }
    assert!(hangs.join("out/trials/01-b/timeout").exists());
    assert_eq!(read(&exits.join("out/trials/01-b/client.log")), "why\n");
    assert_eq!(read(&exits.join("out/trials/01-b/code")), "3\n");
    assert!(!wave.join("out/trials/00-a/started").exists(), "the measured client did not start");
    bed.assert_clean();
}

fn preflight_fails(under: Shell) {
    let Some(mut bed) = Bed::new(under) else { return };
    let mut session = bed.session("b01-a", &[]);
    session.preflight = vec![shell("true"), shell("echo unrecognized argument; exit 2")];
    let refused = bed.place(1, &session);
    "b01-b".clone_into(&mut session.name);
    session.limits.preflight = Duration::from_secs(1);
    session.preflight = vec![shell("sleep 300")];
    let hangs = bed.place(2, &session);
    assert_eq!(bed.run(), Some(0), "{}", bed.tell());
    for (entry, code) in [(&refused, 2), (&hangs, 124)] {
        let fail = Failure::parse(&read(&entry.join("out/fail"))).unwrap();
        assert_eq!((fail.step, fail.code), (Some(Step::Preflight), code), "{}", bed.tell());
        assert!(!entry.join("out/server.log").exists(), "no server before the preflight has passed");
    }
    assert_eq!(read(&refused.join("out/preflight/01/log")), "unrecognized argument\n");
    bed.assert_clean();
}

fn stopped_in_the_middle(under: Shell) {
    for by_signal in [false, true] {
        let Some(mut bed) = Bed::new(under) else { return };
        let mut session = bed.session("b01-a", &[]);
        session.trials[0].client = shell("sleep 300");
        let (first, second) = (bed.place(1, &session), bed.place(2, &bed.session("b01-b", &[])));
        let runner = bed.start();
        until("the client", &bed, || first.join("out/trials/00-a/started").exists());
        if by_signal {
            signal(runner, Signal::TERM);
        } else {
            fs::write(bed.host.join("stop"), "").unwrap();
        }
        assert_eq!(bed.ended(), Some(0), "{}", bed.tell());
        let fail = Failure::parse(&read(&first.join("out/fail"))).unwrap();
        assert_eq!((fail.step, fail.code), (Some(Step::Trial("00-a".to_owned())), 143), "{}", bed.tell());
        assert_eq!(read(&first.join("out/how")), "term\n");
        assert!(!second.join("out").exists());
        assert!(bed.journal().iter().any(|line| line.event == Event::Stopped));
        bed.assert_clean();
        if !by_signal {
            assert_eq!(bed.run(), Some(0), "a start that arrives late changes nothing");
            assert!(!second.join("out").exists());
            fs::remove_file(bed.host.join("stop")).unwrap();
        }
        assert_eq!(bed.run(), Some(0), "{}", bed.tell());
        assert_eq!(read(&second.join("done")), "0\n", "{}", bed.tell());
        bed.assert_clean();
    }
}

fn two_folders_one_lease(under: Shell) {
    let Some(mut bed) = Bed::new(under) else { return };
    let mut session = bed.session("b01-a", &[]);
    session.trials[0].client = shell("sleep 2");
    let first = bed.place(1, &session);
    let other = bed.second_host();
    let waiting = input::place(&other, 1, &bed.session("b01-a", &[])).unwrap();
    let runner = bed.start();
    until("the first session", &bed, || first.join("out").exists());
    assert_eq!(wait(&mut bed.spawn(&other), ""), Some(69));
    assert!(read(&other.join("journal")).contains(" lease-refused - 69\n"));
    assert!(!waiting.join("out").exists());
    // Its owner dies: the other folder's runner ends what is left, then measures.
    until("the server", &bed, || first.join("out/trials/00-a/started").exists());
    kill(runner);
    bed.ended();
    assert_eq!(wait(&mut bed.spawn(&other), ""), Some(0), "{}", read(&other.join("runner.log")));
    assert_eq!(read(&waiting.join("done")), "0\n");
    assert_eq!(bed.ours(), [0; 0], "{}", bed.tell());
    assert_eq!(bed.run(), Some(0), "{}", bed.tell());
    assert_eq!(read(&first.join("done")), "70\n");
    bed.assert_clean();
    // An owner of an earlier boot is no owner.
    let lease = bed.lease.join("labbook-lease");
    fs::create_dir(&lease).unwrap();
    let start = read(Path::new("/proc/self/stat")).rsplit_once(") ").unwrap().1.split(' ').nth(19).unwrap().to_owned();
    fs::write(lease.join("owner"), format!("{} {start} another-boot 0123456789abcdef /x\n", std::process::id()))
        .unwrap();
    assert_eq!(bed.run(), Some(0), "{}", bed.tell());
    bed.assert_clean();
}

fn many_starts_in_one_folder(under: Shell) {
    let Some(mut bed) = Bed::new(under) else { return };
    // The lease of a dead runner makes the start a race for the claim.
    let lease = bed.lease.join("labbook-lease");
    fs::create_dir(&lease).unwrap();
    fs::write(lease.join("owner"), "1 1 another-boot 0123456789abcdef /x\n").unwrap();
    for n in 1..=2 {
        bed.place(n, &bed.session(&format!("b0{n}-a"), &[]));
    }
    let mut runners: Vec<_> = (0..5).map(|_| bed.spawn(&bed.host)).collect();
    for runner in &mut runners {
        assert_eq!(wait(runner, &bed.tell()), Some(0), "{}", bed.tell());
    }
    assert_eq!(bed.journal().iter().filter(|line| line.event == Event::LeaseTaken).count(), 1, "{}", bed.tell());
    for entry in bed.entries() {
        assert_eq!(read(&entry.join("done")), "0\n", "{}", bed.tell());
    }
    assert_eq!(bed.run(), Some(0));
    bed.assert_clean();
}

fn entry_while_draining(under: Shell) {
    let Some(mut bed) = Bed::new(under) else { return };
    bed.place(1, &bed.session("b01-a", &[]));
    let mut runner = bed.spawn(&bed.host);
    for n in 1..4_u16 {
        let name = format!("{n:04}-b0{n}-a");
        until("the end of a session", &bed, || bed.count(Event::SessionEnd, &name) == 1);
        std::thread::sleep(Duration::from_millis(u64::from(n) * 8));
        bed.place(n + 1, &bed.session(&format!("b0{}-a", n + 1), &[]));
        assert_eq!(bed.run(), Some(0));
    }
    assert_eq!(wait(&mut runner, ""), Some(0));
    until("the last session", &bed, || bed.entries().iter().all(|entry| entry.join("done").exists()));
    until("the release of the lease", &bed, || !bed.lease.join("labbook-lease").exists());
    bed.assert_clean();
}

fn disk_full(under: Shell) {
    let Some(mut bed) = Bed::new(under) else { return };
    let disk = bed.root().join("disk");
    fs::create_dir(&disk).unwrap();
    let mount = |options: &str| {
        Process::new("mount")
            .args(["-t", "tmpfs", "-o", options, "tmpfs"])
            .arg(&disk)
            .status()
            .is_ok_and(|s| s.success())
    };
    if !rustix::process::geteuid().is_root() || !mount("size=2m") {
        return skipped("cannot mount a small disk");
    }
    let _mounted = Mounted(disk.clone());
    bed.host = disk.join("host folder");
    input::install(&bed.host).unwrap();
    let first = bed.place(1, &bed.session("b01-a", &["fill=1"]));
    let code = bed.run();
    let outcome = Outcome::parse(&read(&first.join("done")));
    let failed = code == Some(0) && outcome == Some(Outcome::Failed);
    assert!(code == Some(74) && outcome.is_none() || failed, "{code:?} {outcome:?}\n{}", bed.tell());
    assert!(bed.ours().is_empty(), "{}", bed.tell());
    // With room again, the next start tells the end of it and goes on; with too little room it refuses.
    fs::remove_file(first.join("out/server.log")).unwrap();
    let mut small = bed.session("b01-b", &[]);
    small.limits.disk_kib = 1_000_000;
    let small = bed.place(2, &small);
    let third = bed.place(3, &bed.session("b01-c", &[]));
    assert_eq!(bed.run(), Some(0), "{}", bed.tell());
    assert_eq!(read(&first.join("done")), "70\n", "{}", bed.tell());
    let fail = Failure::parse(&read(&small.join("out/fail"))).unwrap();
    assert_eq!((fail.step, fail.code), (Some(Step::Idle), 28));
    assert_eq!(read(&third.join("done")), "0\n", "{}", bed.tell());
    // A disk that became read-only: it ends, and says so.
    let fourth = bed.place(4, &bed.session("b01-d", &[]));
    let read_only = Process::new("mount").args(["-o", "remount,ro"]).arg(&disk).status().unwrap().success();
    if read_only {
        let mut child = Process::new("setsid")
            .args(["sh", "runner.sh"])
            .current_dir(&bed.host)
            .env("PATH", &bed.path)
            .env("LABBOOK_LEASE_DIR", &bed.lease)
            .stderr(fs::File::create(bed.root().join("said")).unwrap())
            .spawn()
            .unwrap();
        assert_eq!(wait(&mut child, ""), Some(74));
        assert!(read(&bed.root().join("said")).contains("cannot write"), "{}", read(&bed.root().join("said")));
        assert!(!fourth.join("out").exists());
    }
}

/// Unmounts even when a test fails.
struct Mounted(PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        _ = Process::new("umount").arg("-l").arg(&self.0).status();
    }
}

fn clean_tree(under: Shell) {
    let Some(mut bed) = Bed::new(under) else { return };
    let repo = bed.root().join("a repo");
    let git = |folder: &Path, arguments: &[&str]| {
        let output = Process::new("git").arg("-C").arg(folder).args(arguments).output().unwrap();
        assert!(output.status.success(), "git {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    fs::create_dir(&repo).unwrap();
    git(&repo, &["init", "-q"]);
    fs::write(repo.join("topk.py"), "k = 8\n").unwrap();
    git(&repo, &["add", "."]);
    git(&repo, &["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "one"]);
    let commit = git(&repo, &["rev-parse", "HEAD"]);
    fs::write(repo.join("topk.py"), "k = 4\n").unwrap();
    let patch = git(&repo, &["diff"]) + "\n";
    let source = Source {
        repo: repo.to_str().unwrap().to_owned(),
        commit: commit.clone(),
        patches: vec![("oea.patch".to_owned(), patch.into_bytes())],
    };
    let with = |bed: &Bed, sequence: u16, name: &str, source: Source| {
        let mut session = bed.session(name, &[]);
        session.source = Some(source);
        session.preflight = vec![shell("grep -qx 'k = 4' topk.py")];
        bed.place(sequence, &session)
    };
    let (first, second) = (with(&bed, 1, "b01-a", source.clone()), with(&bed, 2, "b02-a", source.clone()));
    assert_eq!(bed.run(), Some(0), "{}", bed.tell());
    for entry in [&first, &second] {
        assert_eq!(read(&entry.join("done")), "0\n", "{}", bed.tell());
        assert_eq!(read(&entry.join("out/source/head")).trim(), commit);
        assert!(read(&entry.join("out/source/diff")).contains("+k = 4"));
        assert_eq!(read(&entry.join("out/source/status")), "M  topk.py\n");
    }
    let tree = fs::read_dir(bed.host.join("source")).unwrap().next().unwrap().unwrap().path();
    fs::write(tree.join("topk.py"), "k = 2\n").unwrap();
    let changed = with(&bed, 3, "b03-a", source.clone());
    let broken =
        with(&bed, 4, "b04-a", Source { patches: vec![("x.patch".into(), b"nonsense\n".to_vec())], ..source.clone() });
    let absent = with(&bed, 5, "b05-a", Source { commit: "0".repeat(40), ..source });
    assert_eq!(bed.run(), Some(0), "{}", bed.tell());
    for entry in [&changed, &broken, &absent] {
        let fail = Failure::parse(&read(&entry.join("out/fail"))).unwrap();
        assert_eq!(fail.step, Some(Step::Source), "{}", bed.tell());
        assert_eq!(read(&entry.join("done")), "70\n");
    }
    assert!(read(&changed.join("out/fail")).contains("was changed"));
    bed.assert_clean();
}

fn gpu_memory(under: Shell) {
    let Some(mut bed) = Bed::new(under) else { return };
    // Stands in for the real program: it tells what stands in a file.
    let (mib, smi) = (bed.root().join("mib"), bed.root().join("bin/nvidia-smi"));
    let text =
        "#!/bin/sh\ncase $* in *memory.used) cat \"${0%/bin/*}/mib\" ;; *compute-apps*) echo 4242, 8000 ;; esac\n";
    fs::write(&smi, text).unwrap();
    fs::set_permissions(&smi, fs::Permissions::from_mode(0o755)).unwrap();
    fs::write(&mib, "4\n8000\n12\n").unwrap();
    let foreign = bed.place(1, &bed.session("b01-a", &[]));
    assert_eq!(bed.run(), Some(75), "{}", bed.tell());
    let fail = Failure::parse(&read(&foreign.join("out/fail"))).unwrap();
    assert_eq!((fail.step, fail.code), (Some(Step::Idle), 16));
    assert!(fail.text.contains("8000 MiB") && fail.text.contains("4242"), "{}", fail.text);
    // Free again; this time the memory does not come back after the stop.
    fs::write(&mib, "4\n[N/A]\n12\n").unwrap();
    let mut session = bed.session("b01-b", &[]);
    session.trials[0].client = shell("sleep 1");
    let leaks = bed.place(2, &session);
    let last = bed.place(3, &bed.session("b01-c", &[]));
    bed.start();
    until("the client", &bed, || leaks.join("out/trials/00-a/started").exists());
    assert_eq!(read(&leaks.join("out/gpu/idle-mib")), "12\n");
    fs::write(&mib, "4\n9000\n12\n").unwrap();
    assert_eq!(bed.ended(), Some(75), "{}", bed.tell());
    assert_eq!(read(&leaks.join("done")), "75\n");
    assert_eq!(Proof::parse(&read(&leaks.join("out/proof"))).gpu_mib, Some(9000));
    assert_eq!(bed.run(), Some(75), "still dirty\n{}", bed.tell());
    assert!(!last.join("out").exists());
    fs::write(&mib, "4\n").unwrap();
    assert_eq!(bed.run(), Some(0), "{}", bed.tell());
    assert_eq!(read(&last.join("done")), "0\n", "{}", bed.tell());
    bed.assert_clean();
}

#[test]
fn as_an_ordinary_user() {
    if !rustix::process::geteuid().is_root() || find("setpriv").is_none() {
        return skipped("cannot become another user");
    }
    let Some(bed) = Bed::new(Shell::Dash) else { return };
    let entry = bed.place(1, &bed.session("b01-a", &["orphans=1"]));
    fs::set_permissions(bed.root(), fs::Permissions::from_mode(0o755)).unwrap();
    let nobody = ["-R", "65534:65534"].map(OsStr::new);
    let owned = Process::new("chown").args(nobody).args([&bed.host, &bed.lease]).status().unwrap();
    assert!(owned.success());
    // Copies, since the checkout may lie in a folder that only root enters.
    let server = bed.host.join("server.py");
    fs::copy(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scripts/server.py"), &server).unwrap();
    fs::set_permissions(&server, fs::Permissions::from_mode(0o644)).unwrap();
    fs::write(entry.join("argv/0004"), server.as_os_str().as_bytes()).unwrap();
    let said = bed.root().join("said");
    let mut child = Process::new("setpriv")
        .args(["--reuid=65534", "--regid=65534", "--clear-groups", "setsid", "sh", "runner.sh"])
        .current_dir(&bed.host)
        .env("PATH", &bed.path)
        .env("LABBOOK_LEASE_DIR", &bed.lease)
        .stderr(fs::File::create(&said).unwrap())
        .spawn()
        .unwrap();
    assert_eq!(wait(&mut child, ""), Some(0), "{}{}", read(&said), bed.tell());
    assert_eq!(read(&entry.join("done")), "0\n", "{}", bed.tell());
    let left = pids().into_iter().filter(|pid| bed.ours().contains(pid)).count();
    assert_eq!(left, 0);
    bed.assert_clean();
}
