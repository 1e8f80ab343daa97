//! Tests of importing.

use std::path::Path;

use super::*;
use crate::finding::{ClaimVerdict, Findings, Outcome};

const NOW: jiff::Timestamp = jiff::Timestamp::UNIX_EPOCH;

const MANIFEST: &str = "\
import: 1
experiment: oea-by-memory
factor: server.env.SGLANG_OEA_K0
control: base
headline: {metric: output_throughput, treatment: oea, over: all}
runs:
  - arm: base
    concurrency: 256
    values: {output_throughput: 352.79}
  - arm: oea
    concurrency: 256
    result: oea.jsonl
    format: sglang.bench_serving
";

const ROW: &str =
    r#"{"backend": "sglang", "completed": 8, "output_throughput": 706.5, "server_info": {"api_key": "sk-4f2a91c0d5"}}"#;

fn lab(manifest: &str) -> (tempfile::TempDir, PathBuf, PathBuf) {
    let lab = tempfile::tempdir().expect("a folder");
    let given = lab.path().join("given");
    fs::create_dir(&given).expect("a folder");
    fs::write(given.join("m.yaml"), manifest).expect("a file");
    fs::write(given.join("oea.jsonl"), ROW).expect("a file");
    let (path, results) = (given.join("m.yaml"), lab.path().join("results"));
    (lab, path, results)
}

fn refused(manifest: &str) -> String {
    let (_lab, path, results) = lab(manifest);
    let told = import(&path, &results, NOW).expect_err("refused").to_string();
    assert!(!results.exists(), "nothing is written");
    told
}

#[test]
fn an_import_is_copied_without_secrets_and_read_back() {
    let (_lab, path, results) = lab(MANIFEST);
    let made = import(&path, &results, NOW).expect("imported");
    assert_eq!((made.runs, made.files, made.redacted.len(), made.again), (2, 1, 1, Again::New));
    assert!(!fs::read_to_string(made.folder.join("oea.jsonl")).expect("the row").contains("sk-4f2a91c0d5"));
    let (question, records) = load(&results, "oea-by-memory").expect("loaded");
    assert_eq!((question.levels.len(), records.len(), records[0].tier), (1, 2, Tier::Foreign));
    let findings = Findings::of(&question, &records);
    assert_eq!(findings.outcome, Outcome::Foreign);
    let found = &findings.conditions[0];
    assert_eq!((found.means, found.effect.is_none()), (Some((352.79, 706.5)), true), "both values, and no ratio");
    assert_eq!(import(&path, &results, NOW).expect("again").again, Again::Already);
}

#[test]
fn altered_files_and_unknown_experiments_are_noticed() {
    let (_lab, path, results) = lab(MANIFEST);
    assert!(load(&results, "oea-by-memory").expect_err("none yet").to_string().contains("import or run it first"));
    let made = import(&path, &results, NOW).expect("imported");
    fs::write(made.folder.join("oea.jsonl"), ROW.replace("706.5", "800")).expect("a file");
    assert!(load(&results, "oea-by-memory").expect_err("altered").to_string().contains("altered since"));
    assert!(import(&path, &results, NOW).expect_err("not overwritten").to_string().contains("altered since"));
    assert!(load(&results, "../results/oea-by-memory").is_err());
}

#[test]
fn every_file_of_an_import_is_verified() {
    let (_lab, path, results) = lab(MANIFEST);
    assert_eq!(verify(&results).expect("no results"), [""; 0]);
    fs::create_dir_all(results.join("quickstart/00000000/ledger")).expect("an edition, which is no import");
    let folder = import(&path, &results, NOW).expect("imported").folder;
    assert_eq!(verify(&results).expect("readable"), [""; 0]);
    let told = |what: &str| {
        let wrong = verify(&results).expect("readable");
        assert!(wrong.len() == 1 && wrong[0].contains(what), "{what}: {wrong:?}");
    };
    for name in ["manifest.yaml", "oea.jsonl", "import.json"] {
        let place = folder.join(name);
        let sound = fs::read(&place).expect("a file");
        for at in [0, sound.len() / 2] {
            let mut flipped = sound.clone();
            flipped[at] ^= 1;
            fs::write(&place, flipped).expect("written");
            // The receipt answers for the others and not for its own time and versions.
            if name != "import.json" || at == 0 {
                told(&format!("{name}: altered"));
            }
        }
        fs::remove_file(&place).expect("removed");
        told(&format!("{name}: missing"));
        std::os::unix::fs::symlink("/etc/hostname", &place).expect("a link");
        assert!(!verify(&results).expect("readable").is_empty(), "{name}");
        fs::remove_file(&place).expect("removed");
        fs::write(&place, sound).expect("written");
    }
    fs::write(folder.join("new.jsonl"), ROW).expect("written");
    told("new.jsonl: not part of the record");
    fs::remove_file(folder.join("new.jsonl")).expect("removed");
    let receipt = fs::read_to_string(folder.join("import.json")).expect("text");
    fs::write(folder.join("import.json"), receipt.replace("\"oea.jsonl\"", "\"../../x\"")).expect("written");
    assert!(verify(&results).expect("readable").iter().any(|wrong| wrong.contains("../../x")));
}

#[test]
fn several_imports_of_one_name_are_told_apart() {
    let (_lab, path, results) = lab(MANIFEST);
    let first = import(&path, &results, NOW).expect("imported");
    fs::write(&path, MANIFEST.replace("352.79", "352.8")).expect("a file");
    import(&path, &results, NOW).expect("imported");
    let told = load(&results, "oea-by-memory").expect_err("two").to_string();
    let edition = first.folder.file_name().expect("a name").to_string_lossy().into_owned();
    assert!(told.contains("imported 2 times") && told.contains(&edition));
    assert!(load(&results, &format!("oea-by-memory@{edition}")).is_ok());
}

#[test]
fn nothing_outside_of_the_manifests_folder_is_read() {
    for outside in ["../secret.jsonl", "/etc/hostname", "a/../../b", "C:\\x"] {
        let told = refused(&MANIFEST.replace("oea.jsonl", &format!("'{outside}'")));
        assert!(told.contains("leads out of the manifest's folder"), "{outside}: {told}");
    }
    let (_lab, path, results) = lab(&MANIFEST.replace("oea.jsonl", "link.jsonl"));
    std::os::unix::fs::symlink("/etc/hostname", path.with_file_name("link.jsonl")).expect("a link");
    let told = import(&path, &results, NOW).expect_err("a link").to_string();
    assert!(told.contains("symbolic link"), "{told}");
    assert!(refused(&MANIFEST.replace("oea.jsonl", "absent.jsonl")).contains("absent.jsonl"));
    for name in ["'../up'", "'-rf'", "'.hidden'", "'a b'"] {
        assert!(refused(&MANIFEST.replace("oea-by-memory", name)).contains("cannot be a folder"), "{name}");
    }
}

#[test]
fn problems_have_their_place_and_a_suggestion() {
    for (wrong, right, told) in [
        ("control: base", "control: bass", "did you mean `base`?"),
        ("output_throughput: 352.79", "output_troughput: 352.79", "did you mean `output_throughput`?"),
        ("factor:", "factors:", "did you mean `factor`?"),
        ("import: 1", "import: 2", "m.yaml:1:9"),
        ("concurrency: 256\n    values", "concurrency: many\n    values", "a number, or `inf`"),
        ("control: base", "control: base\ntier: measured", "key `engine` is missing"),
        ("control: base", "control: base\nentails: source.commit", "an input is never entailed"),
        ("control: base", "control: base\ncommon: {host.id: a}\nsessions: {s: {host.id: b}}", "also stands further up"),
    ] {
        let shown = refused(&MANIFEST.replace(wrong, right));
        assert!(shown.contains(told), "{right}: {shown}");
    }
    assert!(refused("").contains("the file is empty"));
    assert!(refused("import: 1\nexperiment: x\nfactor: a\ncontrol: b\nruns: []\n").contains("no runs"));
}

#[test]
fn a_corpus_case_comes_out_to_the_last_digit() {
    let case = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/cases/corpus/d38-every-verdict/manifest.yaml");
    if !case.exists() {
        use std::io::Write as _;
        let _ = writeln!(io::stderr(), "skipped: {} is absent", case.display());
        return;
    }
    let results = tempfile::tempdir().expect("a folder");
    import(&case, results.path(), NOW).expect("imported");
    let (question, records) = load(results.path(), "corpus-d38-every-verdict").expect("loaded");
    let findings = Findings::of(&question, &records);
    let effect = findings.conditions[3].effect.as_ref().expect("an effect");
    let (low, high) = effect.interval.expect("an interval");
    for (found, wanted) in
        [(effect.ratio, 1.020_043_570_813_418_3), (low, 1.014_826_633_371_597_6), (high, 1.025_114_854_741_681_3)]
    {
        assert!((found / wanted - 1.0).abs() < 1e-9, "{found} for {wanted}");
    }
    let verdicts: Vec<ClaimVerdict> = findings.claims.values().map(|claim| claim.verdict).collect();
    assert_eq!(
        verdicts,
        [
            ClaimVerdict::Supported,
            ClaimVerdict::Inconclusive,
            ClaimVerdict::Refuted,
            ClaimVerdict::Supported,
            ClaimVerdict::Inconclusive
        ]
    );
}
