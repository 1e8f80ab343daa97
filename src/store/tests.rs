//! Tests of the store.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::json;

use super::*;
use crate::metric::Metric;
use crate::plan::{self, PlannedSession};
use crate::probe::Ask;
use crate::question::Engine;
use crate::record::{Outcome, Written};
use crate::spec::{self, Spec};

/// A secret that no form gives away: it is known by the names it stands under.
const SECRET: &str = "open-sesame-and-close";
/// One that stands in `argv` and in a message only, as in a session that failed before its server started.
const ARGUMENT: &str = "mountain-key-77";
/// One that a variable of the spec holds.
const VARIABLE: &str = "forty-thieves";
/// A private path that an environment holds.
const PRIVATE: &str = "/home/alibaba";

const AT: &str = "2026-11-30T15:24:00Z";

struct Lab {
    folder: tempfile::TempDir,
    spec: Spec,
    edition: Edition,
}

impl Lab {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let (spec, edition) = opened(folder.path());
        Self { folder, spec, edition }
    }

    fn freeze(&self) -> Result<(), StoreError> {
        let inputs = [("a.patch".to_owned(), b"--- a\n".to_vec()), ("sets/b.json".to_owned(), b"[]".to_vec())];
        self.edition.freeze("title: x\n", &inputs, &self.spec.design(), &json!([]))
    }

    fn planned(&self) -> PlannedSession {
        plan::retry_block(&self.spec, 1, 1).remove(0)
    }

    fn seal(&self, fetched: &Path) -> Result<SealedSession, StoreError> {
        seal_planned(&self.spec, &self.edition, &self.planned(), fetched)
    }

    /// A fetched session of this lab.
    fn fetched(&self) -> PathBuf {
        let folder = self.folder.path().join("fetched");
        fetched(&folder, &self.planned(), 0);
        folder
    }

    /// Freezes, registers, seals one session and notes it.
    fn whole() -> (Self, SealedSession) {
        let lab = Self::new();
        lab.freeze().expect("frozen");
        let files = lab.edition.frozen().expect("digests");
        lab.edition.note(AT, Happened::Registered { protocol: lab.spec.protocol(), files }).expect("registered");
        let sealed = lab.seal(&lab.fetched()).expect("sealed");
        lab.edition.note(AT, sealed.event()).expect("noted");
        (lab, sealed)
    }

    fn wrong(&self) -> Vec<(String, Wrong, usize)> {
        let problems = self.edition.verify().expect("readable");
        problems.into_iter().map(|problem| (problem.path, problem.wrong, problem.runs.len())).collect()
    }
}

fn opened(root: &Path) -> (Spec, Edition) {
    let source = crate::yaml::source("quickstart.yaml", include_str!("../../experiments/quickstart.yaml"));
    let (spec, _) = spec::parse(&source, root).unwrap_or_else(|_| panic!("the quickstart is a spec"));
    let edition = Store::new(root).edition("quickstart", &spec.edition().short(8));
    (spec, edition)
}

fn seal_planned(
    spec: &Spec,
    edition: &Edition,
    planned: &PlannedSession,
    fetched: &Path,
) -> Result<SealedSession, StoreError> {
    let question = &spec.question;
    let ask = Ask {
        engine: Engine::Pocketmoe,
        factor: question.factor.clone(),
        evidence: None,
        other_evidence: Vec::new(),
        salt: edition.salt(),
        block: planned.block,
        position: planned.position,
        previous: None,
        session_sha256: crate::script::digest(),
        rules: "1".to_owned(),
    };
    edition.seal(fetched, planned, question.axis, &ask, None)
}

fn put(folder: &Path, name: &str, bytes: impl AsRef<[u8]>) {
    let path = folder.join(name);
    fs::create_dir_all(path.parent().expect("in a folder")).expect("a folder");
    fs::write(path, bytes).expect("written");
}

/// Writes what the host's programs leave of a finished session, and `more` files of a kilobyte.
fn fetched(folder: &Path, planned: &PlannedSession, more: usize) {
    let log = format!(
        "server_args=ServerArgs(api_key='{SECRET}', tp=1)\nready\n\
         Decode batch, #running-req: 1, gen throughput (token/s): 9.00\n\
         Decode batch, #running-req: 1, gen throughput (token/s): 40.50\n"
    );
    put(folder, "argv/0001", "labbook");
    put(folder, "argv/0002", "--moe-runner-backend=loop");
    put(folder, "argv/0003", "--admin-api-key");
    put(folder, "argv/0004", ARGUMENT);
    put(folder, "env/SGLANG_X", "1");
    put(folder, "env/HF_TOKEN", VARIABLE);
    put(folder, "done", "0\n");
    put(folder, "out/status", format!("{AT} 1.00 idle 0\n{AT} 5.00 end 0\n"));
    put(folder, "out/nonce", "0123456789abcdef0123456789abcdef\n");
    put(folder, "out/server.log", &log);
    put(folder, "out/server.pid", "7 100\n");
    put(folder, "out/proc/7/environ", format!("SGLANG_X=1\0HOME={PRIVATE}\0HF_TOKEN={VARIABLE}\0"));
    put(folder, "out/proc/7/cmdline", "labbook\0--moe-runner-backend=loop\0");
    put(folder, "out/http/server_info", format!("{{\"api_key\": \"{SECRET}\", \"tp_size\": 1}}"));
    for index in 0..more {
        put(folder, &format!("out/http/more-{index}"), [b'x'; 1000]);
    }
    for (index, trial) in planned.trials.iter().enumerate() {
        let name = format!("{index:02}-{}", trial.label);
        put(folder, &format!("trials/{name}/argv/0001"), "client");
        put(folder, &format!("trials/{name}/argv/0002"), "--seed=43");
        let row = format!(
            "{{\"backend\": \"sglang\", \"completed\": 8, \"duration\": 2.5, \"output_throughput\": 32.5, \"key\": \"{SECRET}\"}}\n"
        );
        put(folder, &format!("out/trials/{name}/bench.jsonl"), row);
        put(folder, &format!("out/trials/{name}/client.log"), format!("Authorization: Bearer {SECRET}\n"));
        put(folder, &format!("out/trials/{name}/code"), "0\n");
        put(folder, &format!("out/trials/{name}/log-from"), "0\n");
        put(folder, &format!("out/trials/{name}/log-to"), format!("{}\n", log.len()));
    }
    list(folder);
}

/// Writes the manifest of what lies in `out/`.
fn list(folder: &Path) {
    use std::fmt::Write as _;

    let out = folder.join("out");
    let _ = fs::remove_file(out.join("manifest"));
    let mut text = String::new();
    for name in seal::regular_files(&out).expect("names") {
        let (digest, size) = Digest::of_file(&out.join(&name)).expect("a file");
        writeln!(text, "{digest}  {size}  {name}").expect("text");
    }
    put(&out, "manifest", text);
}

#[test]
fn nothing_is_sound_and_empty() {
    let lab = Lab::new();
    assert!(lab.wrong().iter().all(|(path, wrong, _)| path == DESIGN && *wrong == Wrong::Missing));
    assert!(!lab.edition.exists() && lab.edition.all_sealed().expect("none").is_empty());
    assert!(
        lab.edition
            .records(&lab.spec.question, &lab.edition.ledger().expect("none").0.standing())
            .expect("none")
            .is_empty()
    );
    let store = Store::new(lab.folder.path());
    assert!(store.experiments().expect("none").is_empty() && store.editions("x").expect("none").is_empty());
    assert!(matches!(store.find("").expect("none"), Found::None));
    lab.edition.tidy().expect("nothing to remove");
    assert_eq!(lab.edition.reconcile(AT).expect("nothing to note"), [""; 0]);
}

#[test]
fn freezing_again_changes_nothing_and_another_design_is_refused() {
    let lab = Lab::new();
    lab.freeze().expect("frozen");
    lab.edition.freeze("title: other words\n", &[], &lab.spec.design(), &json!([1])).expect("the same design");
    assert_eq!(fs::read_to_string(lab.edition.folder.join(SPEC)).expect("text"), "title: x\n");
    assert_eq!(lab.wrong(), []);
    assert_eq!(fs::metadata(&lab.edition.folder).expect("a folder").permissions().mode() & 0o777, 0o755);
    let other = lab.edition.freeze("title: x\n", &[], &json!({"other": 1}), &json!([]));
    assert!(matches!(other, Err(StoreError::Taken { .. })), "{other:?}");
    fs::remove_file(lab.edition.folder.join(DESIGN)).expect("lost");
    lab.freeze().expect("what was lost comes back");
    assert_eq!(lab.wrong(), []);
}

#[test]
fn an_input_cannot_leave_its_folder() {
    let lab = Lab::new();
    for name in ["", "../spec.yaml", "/etc/x", "a/../../b", "a b", "ä", "a\nb"] {
        let frozen = lab.edition.freeze("x", &[(name.to_owned(), Vec::new())], &lab.spec.design(), &json!([]));
        assert!(matches!(frozen, Err(StoreError::Name { .. })), "{name:?}");
    }
    assert!(!lab.edition.folder.exists());
}

#[test]
fn a_sealed_session_reads_back_from_its_raw_files() {
    let (lab, sealed) = Lab::whole();
    assert_eq!(lab.wrong(), []);
    assert_eq!(lab.edition.all_sealed().expect("one"), std::slice::from_ref(&sealed));
    let standing = lab.edition.sound_ledger().expect("sound").standing();
    let records = lab.edition.records(&lab.spec.question, &standing).expect("records");
    assert_eq!(records.len(), lab.spec.question.levels.len());
    for record in &records {
        assert_eq!(record.outcome, Outcome::Finished);
        assert_eq!(record.facts.get("server.env.SGLANG_X").map(ToString::to_string).as_deref(), Some("1"));
        let Written::Row(row) = &record.written else { panic!("{:?}", record.written) };
        assert_eq!(row.metrics.get(&Metric::OutputThroughput), Some(&32.5));
        // Only at the level of the logged batch.
        assert_eq!(record.decode_rate, (record.level.0 == "1").then_some(40.5));
    }
    let run = &sealed.runs[1];
    let bytes =
        fs::read(lab.edition.folder.join(&run.run.session).join(&run.run.trial).join("run.json")).expect("form");
    assert_eq!(Digest::of(bytes), run.id);
}

#[test]
fn no_secret_is_in_any_file() {
    let (lab, sealed) = Lab::whole();
    // A session that failed tells why, in its forms and in the ledger.
    let failed = plan::retry_block(&lab.spec, 1, 2).remove(0);
    let folder = lab.folder.path().join("failed");
    fetched(&folder, &failed, 0);
    put(&folder, "done", "70\n");
    put(&folder, "out/fail", format!("start 1 rejected key {ARGUMENT}\n"));
    list(&folder);
    let failed = seal_planned(&lab.spec, &lab.edition, &failed, &folder).expect("sealed");
    assert_eq!(failed.session.reason.as_deref(), Some("start 1 rejected key [redacted]"));
    lab.edition.note(AT, failed.event()).expect("noted");
    for path in seal::regular_files(&lab.edition.folder).expect("names") {
        let mut bytes = fs::read(lab.edition.folder.join(&path)).expect("a file");
        if path.ends_with("server.log.zst") {
            bytes = zstd::decode_all(bytes.as_slice()).expect("packed");
        }
        let text = String::from_utf8_lossy(&bytes);
        for secret in [SECRET, ARGUMENT, VARIABLE, PRIVATE] {
            assert!(!text.contains(secret), "`{secret}` stands in {path}: {text}");
        }
    }
    let argument = |index: u32| format!("{}/raw/input/argv/{index:04}", sealed.session.session);
    let read = |path: String| fs::read_to_string(lab.edition.folder.join(path)).expect("text");
    assert_eq!([read(argument(3)), read(argument(4))], ["--admin-api-key", crate::redact::REDACTED]);
    let names: Vec<&str> = sealed.session.redactions.iter().map(|redaction| redaction.name.as_str()).collect();
    assert!(names.contains(&"api_key") && names.contains(&"HF_TOKEN") && names.contains(&"admin-api-key"), "{names:?}");
}

#[test]
fn sealing_again_is_nothing_and_another_session_is_refused() {
    let lab = Lab::new();
    let folder = lab.fetched();
    let first = lab.seal(&folder).expect("sealed");
    assert_eq!(lab.seal(&folder).expect("the same"), first);
    put(&folder, "out/nonce", "another\n");
    assert!(matches!(lab.seal(&folder), Err(StoreError::Transfer { .. })));
    list(&folder);
    assert!(matches!(lab.seal(&folder), Err(StoreError::Taken { .. })));
    assert_eq!(lab.edition.sealed(&first.session.session).expect("as it was"), first);
    // A folder of that name that is no session is not replaced either.
    fs::remove_file(lab.edition.folder.join(&first.session.session).join("session.json")).expect("lost");
    assert!(matches!(lab.seal(&folder), Err(StoreError::Taken { .. })));
    fs::remove_dir_all(lab.edition.folder.join(&first.session.session)).expect("lost");
    fs::create_dir(lab.edition.folder.join(&first.session.session)).expect("an empty one");
    assert!(matches!(lab.seal(&folder), Err(StoreError::Taken { .. })));
}

#[test]
fn only_what_the_manifest_lists_comes_in() {
    let lab = Lab::new();
    let folder = lab.fetched();
    let manifest = fs::read_to_string(folder.join("out/manifest")).expect("text");
    let told = |what: &str| {
        let error = lab.seal(&folder).expect_err(what);
        assert!(!lab.edition.folder.join(lab.planned().name).exists(), "{what}");
        error
    };
    put(&folder, "out/new", "x");
    assert!(matches!(told("unlisted"), StoreError::Transfer { path, .. } if path == "new"));
    fs::remove_file(folder.join("out/new")).expect("removed");
    put(&folder, "out/manifest", manifest.replacen("  ", " ", 1));
    assert!(told("unreadable").to_string().contains("has a line that is none"));
    put(&folder, "out/manifest", manifest.trim_end());
    assert!(told("cut off").to_string().contains("cut off"));
    put(&folder, "out/manifest", format!("{manifest}{}  1  ../x\n", Digest::of("x")));
    assert!(matches!(told("leads out"), StoreError::Manifest { .. }));
    put(&folder, "out/manifest", format!("{manifest}{}  1  a b\n", Digest::of("x")));
    assert!(matches!(told("a blank"), StoreError::Name { .. }));
    put(&folder, "out/manifest", format!("{manifest}{}  1  gone\n", Digest::of("x")));
    assert!(matches!(told("missing"), StoreError::Transfer { found, .. } if found == "missing"));
    put(&folder, "out/manifest", "");
    assert!(matches!(told("empty"), StoreError::Transfer { .. }));
    fs::remove_file(folder.join("out/manifest")).expect("removed");
    assert!(told("absent").to_string().contains("absent, although"));
    // A disk that was full is a reason to have none, and to have failed.
    put(&folder, "done", "70\n");
    let sealed = lab.seal(&folder).expect("sealed as failed");
    assert_eq!((sealed.session.manifest_sha256, sealed.session.reason.as_deref()), (None, Some("ended with code 70")));
    assert_eq!(lab.seal(&folder).expect("the same"), sealed);
    put(&folder, "out/nonce", "another\n");
    assert!(matches!(lab.seal(&folder), Err(StoreError::Taken { .. })));
}

#[test]
fn names_that_the_record_uses_itself_are_not_taken() {
    let lab = Lab::new();
    let folder = lab.fetched();
    let trial = format!("00-{}", lab.planned().trials[0].label);
    for name in [format!("out/trials/{trial}/run.json"), format!("out/trials/{trial}/input/argv/0001")] {
        put(&folder, &name, "{}");
        list(&folder);
        assert!(matches!(lab.seal(&folder), Err(StoreError::Taken { .. })), "{name}");
        fs::remove_file(folder.join(&name)).expect("removed");
    }
    list(&folder);
    lab.seal(&folder).expect("sealed");
}

#[test]
fn links_are_not_followed() {
    let (lab, sealed) = Lab::whole();
    let session = lab.edition.folder.join(&sealed.session.session);
    assert!(!session.join("raw/link").exists());
    symlink("/etc/hostname", session.join("raw/link")).expect("a link");
    let status = fs::read(session.join("status")).expect("a file");
    fs::remove_file(session.join("status")).expect("removed");
    put(lab.folder.path(), "elsewhere", status);
    symlink(lab.folder.path().join("elsewhere"), session.join("status")).expect("a link");
    let name = &sealed.session.session;
    let runs = sealed.runs.len();
    assert_eq!(
        lab.wrong(),
        [(format!("{name}/raw/link"), Wrong::Extra, 0), (format!("{name}/status"), Wrong::Missing, runs)]
    );
    // One that came from a host is left there.
    let other = Lab::new();
    let folder = other.fetched();
    symlink("/etc/hostname", folder.join("out/link")).expect("a link");
    let sealed = other.seal(&folder).expect("sealed");
    assert!(!sealed.session.files.contains_key("raw/link"));
}

#[test]
fn every_flipped_byte_names_its_file() {
    let (lab, _) = Lab::whole();
    let every = seal::regular_files(&lab.edition.folder).expect("names");
    let has = |name: &str| every.iter().any(|path| path.ends_with(name));
    for name in ["server.log.zst", "session.json", "run.json", "facts.json", "/status", "registered-", SPEC, "a.patch"]
    {
        assert!(every.iter().any(|path| path.contains(name)), "{name}");
    }
    assert!(has("finished-") || every.iter().any(|path| path.contains("-finished-")));
    for path in &every {
        let place = lab.edition.folder.join(path);
        let sound = fs::read(&place).expect("a file");
        // The archive is small, so each of its bytes is tried.
        let step = if path.ends_with("server.log.zst") { 1 } else { (sound.len() / 5).max(1) };
        for at in (0..sound.len()).step_by(step) {
            let mut flipped = sound.clone();
            flipped[at] ^= 1 << (at % 8);
            fs::write(&place, flipped).expect("written");
            let wrong = lab.wrong();
            let named = wrong.iter().any(|(named, wrong, _)| named == path && *wrong == Wrong::Altered);
            assert!(named, "byte {at} of {path}: {wrong:?}");
        }
        fs::write(&place, sound).expect("written");
    }
    assert_eq!(lab.wrong(), []);
}

#[test]
fn a_packed_log_can_change_without_a_change_of_what_it_holds() {
    // This is why the digest of the archive is listed beside that of the log.
    let log = b"server_args=ServerArgs(tp=1)\nready\n".repeat(20);
    let packed = zstd::encode_all(log.as_slice(), 3).expect("packed");
    let same = |bit: &usize| {
        let mut flipped = packed.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        zstd::decode_all(flipped.as_slice()).is_ok_and(|found| found == log)
    };
    assert!((0..packed.len() * 8).filter(same).count() > 0);
}

#[test]
fn missing_and_extra_are_told_apart() {
    let (lab, sealed) = Lab::whole();
    let name = &sealed.session.session;
    let trial = &sealed.runs[0].run.trial;
    let folder = lab.edition.folder.join(name);
    let all = sealed.runs.len();
    put(&folder, "raw/new", "x");
    put(&lab.edition.folder, "notes.txt", "x");
    put(&lab.edition.folder, "inputs/new", "x");
    put(&lab.edition.folder, "b09-loop/x", "x");
    fs::remove_file(folder.join(trial).join("client.log")).expect("removed");
    fs::remove_file(lab.edition.folder.join(PLAN)).expect("removed");
    assert_eq!(
        lab.wrong(),
        [
            (format!("{name}/{trial}/client.log"), Wrong::Missing, 1),
            (format!("{name}/raw/new"), Wrong::Extra, 0),
            ("b09-loop".to_owned(), Wrong::Extra, 0),
            ("inputs/new".to_owned(), Wrong::Extra, 0),
            ("notes.txt".to_owned(), Wrong::Extra, 0),
            (PLAN.to_owned(), Wrong::Missing, all),
        ]
    );
    for path in [format!("{trial}/run.json"), "session.json".to_owned(), "server.log.zst".to_owned()] {
        let bytes = fs::read(folder.join(&path)).expect("a file");
        fs::remove_file(folder.join(&path)).expect("removed");
        let wrong = lab.wrong();
        assert!(
            wrong
                .iter()
                .any(|(lost, wrong, runs)| *lost == format!("{name}/{path}") && *wrong == Wrong::Missing && *runs > 0),
            "{path}: {wrong:?}"
        );
        put(&folder, &path, bytes);
    }
    fs::remove_dir_all(&folder).expect("removed");
    assert!(lab.wrong().contains(&(format!("{name}/session.json"), Wrong::Missing, all)));
    let event = names(&lab.edition.folder.join("ledger")).expect("names").remove(0);
    let registered = event.contains("registered");
    fs::remove_file(lab.edition.folder.join("ledger").join(event)).expect("removed");
    assert!(
        !registered
            || lab.wrong().iter().any(|(path, wrong, _)| path.starts_with("ledger/") && *wrong == Wrong::Missing)
    );
    // An edition that lost its design is not overlooked.
    fs::remove_file(lab.edition.folder.join(DESIGN)).expect("removed");
    let editions = Store::new(lab.folder.path()).editions("quickstart").expect("listed");
    assert_eq!(editions.len(), 1);
    assert!(lab.wrong().iter().any(|(path, wrong, _)| path == DESIGN && *wrong == Wrong::Missing));
}

#[test]
fn a_form_that_cannot_be_read_makes_nothing_else_unknown() {
    let (lab, sealed) = Lab::whole();
    let name = &sealed.session.session;
    let folder = lab.edition.folder.join(name);
    for (path, runs) in [("session.json".to_owned(), 3), (format!("{}/run.json", sealed.runs[0].run.trial), 3)] {
        let bytes = fs::read(folder.join(&path)).expect("a file");
        for (content, wrong) in [(Some("?"), Wrong::Altered), (None, Wrong::Missing)] {
            fs::remove_file(folder.join(&path)).expect("removed");
            if let Some(content) = content {
                put(&folder, &path, content);
            }
            let told = lab.wrong();
            assert!(told.len() == 1 && told[0].0 == format!("{name}/{path}") && told[0].1 == wrong, "{told:?}");
            assert!((1..=runs).contains(&told[0].2), "{told:?}");
            put(&folder, &path, &bytes);
        }
    }
    assert_eq!(lab.wrong(), []);
}

#[test]
fn what_was_sealed_and_not_noted_is_noted_later() {
    let lab = Lab::new();
    lab.freeze().expect("frozen");
    let sealed = lab.seal(&lab.fetched()).expect("sealed");
    let name = sealed.session.session.clone();
    assert_eq!(lab.wrong(), [(name.clone(), Wrong::Extra, 0)]);
    assert_eq!(lab.edition.reconcile(AT).expect("noted"), std::slice::from_ref(&name));
    assert_eq!(lab.edition.reconcile(AT).expect("noted before"), [""; 0]);
    assert_eq!(lab.wrong(), []);
    let standing = lab.edition.sound_ledger().expect("sound").standing();
    assert_eq!(standing.finished[&name], sealed.runs.iter().map(|run| run.id).collect::<Vec<_>>());
}

#[test]
fn a_run_is_found_by_the_beginning_of_its_id() {
    let (lab, sealed) = Lab::whole();
    let store = Store::new(lab.folder.path());
    for run in &sealed.runs {
        let id = run.id.to_string();
        let Found::One(found) = store.find(&id[..16].to_uppercase()).expect("readable") else { panic!("{id}") };
        assert_eq!((&found.1, &found.0.folder), (run, &lab.edition.folder));
    }
    assert!(matches!(store.find("").expect("readable"), Found::Many(ids) if ids.len() == sealed.runs.len()));
    assert!(matches!(store.find("xyz").expect("readable"), Found::None));
}

#[test]
fn what_interrupted_writes_left_is_ignored_and_removed() {
    let (lab, _) = Lab::whole();
    let left = [".aside-1", "ledger/.aside-2", "inputs/.aside-3", "inputs/sets/.aside-4"];
    for path in left {
        put(&lab.edition.folder, path, "half");
    }
    let mine = lab.edition.aside.join(format!("quickstart-{}-Ab12cd", lab.edition.edition));
    let other = lab.edition.aside.join(format!("quickstart-{}-x-00000000-Ab12cd", lab.edition.edition));
    put(&mine, "half", "x");
    put(&other, "half", "x");
    assert_eq!(lab.wrong(), []);
    assert_eq!(lab.edition.frozen().expect("digests"), lab.edition.sound_ledger().expect("sound").standing().frozen);
    lab.edition.tidy().expect("tidied");
    assert!(left.iter().all(|path| !lab.edition.folder.join(path).exists()));
    assert!(!mine.exists() && other.exists());
    assert_eq!(lab.wrong(), []);
}

#[test]
fn the_inbox_is_private() {
    let lab = Lab::new();
    let inbox = Store::new(lab.folder.path()).inbox().expect("made");
    assert_eq!(fs::metadata(inbox.path()).expect("a folder").permissions().mode() & 0o777, 0o700);
}

#[test]
fn where_nothing_can_be_written_the_error_names_the_place() {
    let lab = Lab::new();
    // A file where the folder should be also stops a superuser, whom permissions do not.
    put(lab.folder.path(), "results", "");
    let told = lab.seal(&lab.fetched()).expect_err("no folder").to_string();
    assert!(told.contains("results"), "{told}");
}

/// Not a test of its own: the process that the next test kills.
#[test]
#[ignore = "run by a_kill_leaves_nothing_or_the_whole"]
fn seal_what_lies_in_the_current_folder() {
    let here = std::env::current_dir().expect("a folder");
    let (spec, edition) = opened(&here);
    let planned = plan::retry_block(&spec, 1, 1).remove(0);
    let _ = seal_planned(&spec, &edition, &planned, &here.join("fetched"));
}

#[test]
fn a_kill_leaves_nothing_or_the_whole() {
    let lab = Lab::new();
    lab.freeze().expect("frozen");
    let planned = lab.planned();
    fetched(&lab.folder.path().join("fetched"), &planned, 60);
    let place = lab.edition.folder.join(&planned.name);
    let (mut nothing, mut halfway) = (0, 0);
    // Killed as soon as that many files lie aside.
    for files in [0, 1, 5, 20, 50, 80, 100, 110, 120, usize::MAX] {
        let mut child = Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", "store::tests::seal_what_lies_in_the_current_folder", "--ignored", "--quiet"])
            .current_dir(lab.folder.path())
            .stdout(Stdio::null())
            .spawn()
            .expect("a process");
        let aside = || seal::regular_files(&lab.edition.aside).map_or(0, |found| found.len());
        while aside() < files && child.try_wait().expect("a child").is_none() {}
        child.kill().expect("killed, or gone");
        child.wait().expect("gone");
        halfway += usize::from(aside() > 0);
        if place.exists() {
            assert_eq!(lab.wrong(), [(planned.name.clone(), Wrong::Extra, 0)], "after {files} files");
            lab.edition.reconcile(AT).expect("noted");
            assert_eq!(lab.wrong(), [], "after {files} files");
            fs::remove_dir_all(&place).expect("removed");
            fs::remove_dir_all(lab.edition.folder.join("ledger")).expect("removed");
        } else {
            nothing += 1;
            assert_eq!(lab.wrong(), [], "after {files} files");
        }
        lab.edition.tidy().expect("tidied");
        assert_eq!(names(&lab.edition.aside).expect("names"), [""; 0]);
    }
    assert!(nothing > 0 && halfway > 0, "{nothing} {halfway}");
    lab.seal(&lab.folder.path().join("fetched")).expect("sealed");
}
