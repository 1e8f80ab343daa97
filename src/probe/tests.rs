//! Session folders built in code, one for each engine, and hostile ones.

use proptest::prelude::*;

use super::*;
use crate::digest::Digest;

type Tree = BTreeMap<String, Vec<u8>>;

fn put(tree: &mut Tree, path: &str, bytes: impl AsRef<[u8]>) {
    tree.insert(path.to_owned(), bytes.as_ref().to_vec());
}

fn put_argv(tree: &mut Tree, folder: &str, line: &str) {
    for (index, word) in line.split(' ').enumerate() {
        put(tree, &format!("{folder}/argv/{:04}", index + 1), word);
    }
}

fn cmdline(line: &str) -> String {
    line.replace(' ', "\0") + "\0"
}

fn ask(engine: Engine, factor: &[&str]) -> Ask {
    Ask {
        engine,
        factor: factor.iter().map(|key| FactKey::from(*key)).collect(),
        evidence: None,
        other_evidence: Vec::new(),
        salt: "salt".into(),
        block: Some(2),
        position: 1,
        previous: Some("loop".into()),
        session_sha256: String::new(),
        rules: "1".into(),
    }
}

/// What every session has.
fn common() -> Tree {
    let mut tree = Tree::new();
    let status = "2026-11-30T16:00:00Z 100.00 idle 0\n2026-11-30T16:00:00Z 100.10 start 0\n\
        2026-11-30T16:00:02Z 102.35 ready 0\n2026-11-30T16:00:02Z 102.40 identity 0\n";
    for (path, text) in [
        ("out/status", status),
        ("out/server.pid", "77 10010\n"),
        ("pids", "77 10010 boot\n78 10012 boot\n"),
        ("out/identity", "own\n"),
        ("ready-line", "The server is fired up\n"),
        ("health", "/health\n"),
        ("out/http/generate.code", "200\n"),
        ("out/http/generate-s", "0.031\n"),
        ("out/programs-sha256", "abcd\n"),
        ("out/host/boot-id", "boot-1\n"),
        ("out/host-after/boot-id", "boot-1\n"),
        ("out/host/machine-id-sha256", "feed\n"),
        ("out/host/uname", "Linux 6.8.0 x86_64\n"),
        ("out/host/governor", "performance\nperformance\n"),
        ("out/host/loadavg", "0.50 0.40 0.30 1/100 5\n"),
        ("out/host/cores", "16\n"),
        ("out/host/slurm", "SLURM_JOB_ID=9\nOTHER=1\n"),
        ("out/trials/00-c0002-p1/started", "2026-11-30T16:00:10Z 110.10\n"),
        ("out/trials/00-c0002-p1/ended", "2026-11-30T16:00:20Z 120.10\n"),
        ("out/trials/01-c0002-p2/started", "2026-11-30T16:00:23Z 123.60\n"),
        ("out/trials/01-c0002-p2/ended", "2026-11-30T16:00:30Z 130.00\n"),
        ("out/trials/00-c0002-p1/flush.code", "200\n"),
        ("out/trials/00-c0002-p1/flush.body", "Cache flushed.\nPlease check backend logs for more details.\n"),
        ("flush-path", "/flush_cache\n"),
        ("trials/00-c0002-p1/flush", ""),
        ("out/trials/00-c0002-p1/warmup/code", "0\n"),
    ] {
        put(&mut tree, path, text);
    }
    tree
}

fn pocket() -> Tree {
    let mut tree = common();
    let server = "/usr/bin/labbook pocket serve --port 20001 --model-path pocket-moe --moe-runner-backend loop";
    put(&mut tree, "out/proc/77/cmdline", cmdline(server));
    put(
        &mut tree,
        "out/proc/77/environ",
        "HOME=/home/x\0SGLANG_OEA_K0=4\0HF_TOKEN=hf_secret\0PWD=/somewhere\0LABBOOK_NONCE=12\0",
    );
    put(&mut tree, "out/proc/77/exe-sha256", "beef  /proc/77/exe\n");
    let info = serde_json::json!({
        "model_path": "pocket-moe", "port": 20001, "random_seed": 7, "moe_runner_backend": "loop", "api_key": "abc",
        "max_running_requests": 256, "chunked_prefill_size": 512, "startup_time": 1.25, "status": "ready",
        "max_total_num_tokens": 16384, "vocab_size": 2003, "hidden_size": 64, "num_attention_heads": 4,
        "num_hidden_layers": 2, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
        "weight_bytes_per_token": 4096, "tokenizer_path": null, "nested": {"b": [1], "a": {"password": "x"}},
        "internal_states": [{"effective_max_running_requests_per_dp": 128}], "version": "0.1.0",
        "commit": "c0ffee", "dirty": "clean", "launch_command": "labbook --port 20001",
    });
    put(&mut tree, "out/http/server_info", info.to_string());
    put(&mut tree, "out/http/server_info.code", "200\n");
    let load = "/usr/bin/labbook pocket load --backend sglang --base-url http://127.0.0.1:20001 --dataset-name random-ids \
        --num-prompts 3 --random-input-len 8 --random-output-len 4 --random-range-ratio 0.5 --request-rate inf \
        --max-concurrency 2 --seed 43 --warmup-requests 0 --output-file bench.jsonl --tag c0002-p1 --output-details";
    put_argv(&mut tree, "trials/00-c0002-p1", load);
    put_argv(&mut tree, "trials/00-c0002-p1/warmup", &load.replace("--num-prompts 3", "--num-prompts 2"));
    let row = r#"{"client": "pocketmoe.load", "client_version": "0.1.0", "backend": "sglang", "completed": 3}"#;
    put(&mut tree, "out/trials/00-c0002-p1/bench.jsonl", row);
    let metrics =
        |tokens| format!("sglang:prompt_tokens_total{{model_name=\"m\"}} {tokens}\nsglang:cached_tokens_total 1\n");
    put(&mut tree, "out/trials/00-c0002-p1/before/metrics", metrics(10));
    put(&mut tree, "out/trials/00-c0002-p1/after/metrics", metrics(34));
    tree
}

fn shown(facts: &Fingerprint, key: &str) -> String {
    facts.get(key).map_or_else(|| "(absent)".to_owned(), ToString::to_string)
}

fn agrees(facts: &Fingerprint, wanted: &[(&str, &str)]) {
    for (key, value) in wanted {
        assert_eq!(shown(facts, key), *value, "{key}");
    }
}

#[test]
fn an_empty_session_has_only_what_was_planned() {
    let tree = Tree::new();
    let files = RawFiles::memory(&tree);
    let facts = session_facts(&files, &ask(Engine::Sglang, &["server.env.X", "server.args.y"]));
    let keys: Vec<&str> = facts.iter().map(|(key, _)| key.as_str()).collect();
    assert_eq!(keys, ["labbook.rules", "order.block", "order.position", "order.previous"]);
    assert!(trial_facts(&files, "trials/00-c0001-p1", &ask(Engine::Sglang, &["client.args.x"])).is_empty());
}

#[test]
fn a_session_of_the_pocket_engine() {
    let tree = pocket();
    let files = RawFiles::memory(&tree);
    let facts =
        session_facts(&files, &ask(Engine::Pocketmoe, &["server.env.SGLANG_OEA_MIN_BATCH", "server.args.fault"]));
    agrees(
        &facts,
        &[
            ("source.commit", "c0ffee"),
            ("source.dirty", "clean"),
            ("binaries.labbook", "beef"),
            ("server.args.moe-runner-backend", "loop"),
            ("server.args.port", "20001"),
            ("server.args.fault", "(unset)"),
            ("server.env.SGLANG_OEA_K0", "4"),
            ("server.env.SGLANG_OEA_MIN_BATCH", "(unset)"),
            ("server.env.PWD", "(absent)"),
            ("server.env.LABBOOK_NONCE", "(absent)"),
            ("server.resolved.moe_runner_backend", "loop"),
            ("server.resolved.tokenizer_path", "(unset)"),
            ("server.resolved.nested", r#"{"a":{},"b":[1]}"#),
            ("server.resolved.api_key", "(absent)"),
            ("server.resolved.startup_time", "(absent)"),
            ("server.resolved.port", "(absent)"),
            ("server.resolved.commit", "(absent)"),
            ("server.capacity.kv_tokens", "16384"),
            ("server.capacity.max_running_requests", "128"),
            ("server.capacity.chunked_prefill", "512"),
            ("server.capacity.graph_sizes", "(absent)"),
            ("model.path", "pocket-moe"),
            ("model.weight_bytes", "4096"),
            ("server.identity", "own"),
            ("server.pid", "77"),
            ("server.ready_after_s", "2.25"),
            ("server.ready_by", "log line, then health, then one generation"),
            ("host.id", "feed"),
            ("client.host.id", "feed"),
            ("host.boot_id", "boot-1"),
            ("host.governor", "performance"),
            ("host.load", "0.50"),
            ("host.slurm.job_id", "9"),
            ("gpu.count", "(absent)"),
            ("treatment.evidence", "(absent)"),
            ("labbook.session_sha256", "abcd"),
            ("time.utc_start", "2026-11-30T16:00:00Z"),
            ("order.block", "2"),
        ],
    );
    assert_eq!(shown(&facts, "model.config_sha256").len(), 64);
    let home = Digest::of("salt\0/home/x").to_string();
    assert_eq!(shown(&facts, "server.env.HOME"), format!("sha256:{home}"));
    assert!(!serde_json::to_string(&facts).expect("JSON").contains("hf_secret"));
}

#[test]
fn a_trial_of_the_pocket_client() {
    let tree = pocket();
    let files = RawFiles::memory(&tree);
    let facts = trial_facts(&files, "trials/00-c0002-p1", &ask(Engine::Pocketmoe, &["client.args.header"]));
    agrees(
        &facts,
        &[
            ("client.name", "pocketmoe.load"),
            ("client.version", "0.1.0"),
            ("client.module_sha256", "beef"),
            ("client.args.num-prompts", "3"),
            ("client.args.output-details", "(set)"),
            ("client.args.header", "(unset)"),
            ("client.args.tag", "(absent)"),
            ("client.args.base-url", "(absent)"),
            ("client.args.output-file", "(absent)"),
            ("workload.num_prompts", "3"),
            ("workload.concurrency", "2"),
            ("workload.request_rate", "inf"),
            ("workload.range_ratio", "0.5"),
            ("workload.seed", "43"),
            ("workload.ignore_eos", "true"),
            ("workload.warmup", "2"),
            ("workload.flush_status", "200 Cache flushed. Please check backend logs for more details."),
            ("counters.prompt_tokens", "24"),
            ("counters.cached_tokens", "0"),
            ("counters.requests", "(absent)"),
            ("time.utc_start", "2026-11-30T16:00:10Z"),
            ("time.mono_end", "120.10"),
            ("server.age_s", "10.00"),
            ("order.trial", "1"),
            ("order.idle_s", "(absent)"),
        ],
    );
    let plan = pocketmoe::load::plan_requests(43, 3, 8, 4, 0.5);
    let lines: Vec<String> =
        plan.iter().map(|each| format!("{},{}\n", each.input_tokens, each.output_tokens)).collect();
    assert_eq!(shown(&facts, "workload.lengths_sha256"), Digest::of(lines.concat()).to_string());
    assert_eq!(shown(&facts, "workload.prompts_sha256").len(), 64);
    let second = trial_facts(&files, "trials/01-c0002-p2", &ask(Engine::Pocketmoe, &[]));
    agrees(&second, &[("order.idle_s", "3.50"), ("order.trial", "2"), ("workload.flush_status", "(absent)")]);
}

fn sglang() -> Tree {
    let mut tree = common();
    let server = "/venv/bin/python -m sglang.launch_server --host 127.0.0.1 --port 30000 --model-path /m --tp 2 --api-key k3y-value";
    put(&mut tree, "out/proc/77/cmdline", cmdline(server));
    put(&mut tree, "out/proc/77/environ", "PATH=/bin\0SGLANG_OEA_K0=4\0PYTHONPATH=python\0");
    put(&mut tree, "out/proc/77/cwd", "/host/source/abc\n");
    put(&mut tree, "out/proc/77/exe", "/usr/bin/python3.12\n");
    put(&mut tree, "out/proc/77/exe-sha256", "cafe  /proc/77/exe\n");
    put(&mut tree, "out/proc/78/cmdline", cmdline("sglang::scheduler_TP0"));
    put(
        &mut tree,
        "out/proc/78/environ",
        "PATH=/other\0SGLANG_OEA_K0=2\0NCCL_CUMEM_ENABLE=0\0SGLANG_RUN_ID=sglang-run-1\0PYTHONPATH=python\0",
    );
    put(&mut tree, "out/proc/79/cmdline", cmdline("python -c from\u{20}multiprocessing.resource_tracker"));
    put(&mut tree, "out/proc/79/environ", "CUDA_NOT_YET=1\0");
    put(&mut tree, "out/source/head", format!("{}\n", "a".repeat(40)));
    put(&mut tree, "out/source/diff", "a patch");
    put(&mut tree, "out/source/status", "M  python/x.py\n");
    put(&mut tree, "out/source/submodules", "");
    put(&mut tree, "out/source/package-path", "/host/source/abc/python/sglang/__init__.py\n");
    let log = "[t] max_total_num_tokens=1188577, chunked_prefill_size=8192\n[t] Capture cuda graph bs [1, 2, 4]\nOEA on: k0=3\n";
    let window = "Prefill batch, #new-seq: 2, #new-token: 90, #cached-token: 10\n\
        Decode batch, #running-req: 2, cuda graph: True, gen throughput (token/s): 9.00, #queue-req: 3\n\
        Decode batch, #running-req: 2, cuda graph: False, gen throughput (token/s): 9.00, #queue-req: 0\n";
    put(&mut tree, "out/server.log", format!("{log}{window}"));
    put(&mut tree, "out/trials/00-c0002-p1/log-from", format!("{}\n", log.len()));
    put(&mut tree, "out/trials/00-c0002-p1/log-to", format!("{}\n", log.len() + window.len()));
    put(
        &mut tree,
        "out/preflight/01/log",
        format!(
            "warning\nlabbook-fact model.config_sha256 {}\nlabbook-fact client.version 0.5.23\nlabbook-fact host.id x\n",
            "b".repeat(64)
        ),
    );
    let bench = "/venv/bin/python -m sglang.bench_serving --backend sglang --port 30000 --dataset-name random-ids \
        --num-prompts 2 --random-input-len 128 --random-output-len 16 --random-range-ratio 1.0 --max-concurrency 2 --seed 42";
    put_argv(&mut tree, "trials/00-c0002-p1", bench);
    let row = r#"{"backend": "sglang", "completed": 2, "input_lens": [128, 127], "output_lens": [16, 16], "ttfts": [0.1, 0.1],
        "itls": [[], []], "generated_texts": ["a", "b"], "errors": ["", ""], "request_rate": Infinity}"#;
    put(&mut tree, "out/trials/00-c0002-p1/bench.jsonl", row.replace('\n', " "));
    for (look, used) in [("gpu", "80000"), ("gpu-after", "80100")] {
        let csv = format!(
            "index, uuid, name, driver_version, memory.used [MiB], power.limit [W]\n0, GPU-a, H200, 580.1, {used} MiB, 700.00 W\n\
            1, GPU-b, H200, 580.1, {used} MiB, 650.00 W\n"
        );
        put(&mut tree, &format!("out/{look}/smi.csv"), csv);
    }
    put(&mut tree, "out/gpu/idle-mib", "4\n");
    let apps = "pid, gpu_uuid, process_name, used_gpu_memory [MiB]\n78, GPU-a, sglang::scheduler, 79000 MiB\n5, GPU-b, x, y, 12 MiB\n";
    put(&mut tree, "out/gpu/apps.csv", apps);
    tree
}

#[test]
fn a_session_of_sglang() {
    let tree = sglang();
    let files = RawFiles::memory(&tree);
    let facts = session_facts(&files, &ask(Engine::Sglang, &[]));
    agrees(
        &facts,
        &[
            ("source.commit", &"a".repeat(40)),
            ("source.dirty", &Digest::of("a patch").to_string()),
            ("source.submodules", "none"),
            ("binaries.python3.12", "cafe"),
            ("server.args.tp-size", "2"),
            ("server.args.api-key", "(absent)"),
            ("server.env.SGLANG_OEA_K0", "[4, 2]"),
            ("server.env.NCCL_CUMEM_ENABLE", "[(unset), 0]"),
            ("server.env.SGLANG_RUN_ID", "(absent)"),
            ("server.env.CUDA_NOT_YET", "(absent)"),
            ("server.capacity.kv_tokens", "1188577"),
            ("server.capacity.graph_sizes", "[1, 2, 4]"),
            ("model.config_sha256", &"b".repeat(64)),
            ("client.version", "0.5.23"),
            ("host.id", "feed"),
            ("gpu.count", "2"),
            ("gpu.driver", "580.1"),
            ("gpu.1.name", "H200"),
            ("gpu.1.power_limit_w", "650.00"),
            ("gpu.0.foreign_mib", "0"),
            ("gpu.1.foreign_mib", "12"),
            ("gpu.foreign_by", "processes"),
        ],
    );
    assert!(!shown(&facts, "server.argv").contains("k3y"), "{}", shown(&facts, "server.argv"));
    let path = Digest::of("salt\0/bin").to_string();
    assert_eq!(shown(&facts, "server.env.PATH"), format!("sha256:{path}"));
    let trial = trial_facts(&files, "trials/00-c0002-p1", &ask(Engine::Sglang, &[]));
    agrees(
        &trial,
        &[
            ("client.name", "sglang.bench_serving"),
            ("client.version", "(absent)"),
            ("workload.warmup", "(absent)"),
            ("workload.lengths_sha256", &Digest::of("128,16\n127,16\n").to_string()),
            ("workload.prompts_sha256", "(absent)"),
            ("counters.prompt_tokens", "100"),
            ("counters.cached_tokens", "10"),
            ("counters.graph_off_share", "0.5"),
            ("counters.queued", "3"),
            ("counters.retractions", "0"),
        ],
    );
}

#[test]
fn a_package_from_elsewhere_is_not_the_tree() {
    let mut tree = sglang();
    for (package, known) in [
        ("/venv/lib/sglang/__init__.py", false),
        ("/host/source/abcd/sglang/__init__.py", false),
        ("/host/source/abc/../x/__init__.py", false),
        ("python/sglang/__init__.py", true),
        ("", false),
    ] {
        put(&mut tree, "out/source/package-path", package);
        let facts = session_facts(&RawFiles::memory(&tree), &ask(Engine::Sglang, &[]));
        assert_eq!(facts.get("source.commit").is_some(), known, "{package}");
        assert_eq!(facts.get("source.dirty").is_some(), known, "{package}");
    }
}

#[test]
fn what_moved_is_a_list() {
    let mut tree = sglang();
    put(&mut tree, "out/host-after/boot-id", "boot-2\n");
    put(
        &mut tree,
        "out/proc-after/77/cmdline",
        cmdline("/venv/bin/python -m sglang.launch_server --tp 4 --host 127.0.0.1"),
    );
    put(&mut tree, "out/proc-after/77/environ", "PATH=/bin\0SGLANG_OEA_K0=4\0");
    put(&mut tree, "out/gpu-after/smi.csv", "uuid, name, power.limit [W]\nGPU-a, H200, 500.00 W\n");
    let facts = session_facts(&RawFiles::memory(&tree), &ask(Engine::Sglang, &[]));
    agrees(
        &facts,
        &[
            ("host.boot_id", "[boot-1, boot-2]"),
            ("server.args.tp-size", "[2, 4]"),
            ("server.args.model-path", "[/m, (unset)]"),
            ("server.args.host", "127.0.0.1"),
            ("server.env.PYTHONPATH", &format!("[{}, (unset)]", shown(&facts_of_sglang(), "server.env.PYTHONPATH"))),
            ("gpu.count", "[2, 1]"),
            ("gpu.0.power_limit_w", "[700.00, 500.00]"),
            ("gpu.0.uuid", "GPU-a"),
        ],
    );
}

fn facts_of_sglang() -> Fingerprint {
    session_facts(&RawFiles::memory(&sglang()), &ask(Engine::Sglang, &[]))
}

#[test]
fn a_list_without_our_processes_leaves_the_memory_to_tell() {
    let mut tree = sglang();
    put(&mut tree, "out/gpu/apps.csv", "pid, gpu_uuid, process_name, used_gpu_memory [MiB]\n");
    let facts = session_facts(&RawFiles::memory(&tree), &ask(Engine::Sglang, &[]));
    assert_eq!(shown(&facts, "gpu.0.foreign_mib"), "(absent)", "nothing was seen after the stop");
    put(&mut tree, "out/proof", "processes 0\nport free\ngpu 3\n");
    let facts = session_facts(&RawFiles::memory(&tree), &ask(Engine::Sglang, &[]));
    agrees(&facts, &[("gpu.0.foreign_mib", "0"), ("gpu.foreign_by", "memory before and after")]);
    put(&mut tree, "out/proof", "processes 0\nport free\ngpu 9000\n");
    let facts = session_facts(&RawFiles::memory(&tree), &ask(Engine::Sglang, &[]));
    assert_eq!(shown(&facts, "gpu.0.foreign_mib"), "9000");
}

#[test]
fn evidence_is_sought_in_the_log_of_every_arm() {
    let tree = sglang();
    let evidence = |own: Option<&str>, others: &[&str]| {
        let mut ask = ask(Engine::Sglang, &[]);
        ask.evidence = own.map(str::to_owned);
        ask.other_evidence = others.iter().map(|text| (*text).to_owned()).collect();
        shown(&session_facts(&RawFiles::memory(&tree), &ask), "treatment.evidence")
    };
    assert_eq!(evidence(None, &[]), "(absent)");
    assert_eq!(evidence(Some("OEA on"), &[]), "present");
    assert_eq!(evidence(Some("OEA off"), &["OEA on"]), "absent");
    assert_eq!(evidence(None, &["nothing", "OEA on"]), "present", "the control shows the treatment");
    assert_eq!(evidence(None, &["nothing"]), "absent");
    assert_eq!(evidence(Some(""), &[]), "(absent)");
}

#[test]
fn a_folder_is_read_without_following_links() {
    let root = tempfile::tempdir().expect("a folder");
    let files = RawFiles::folder(root.path());
    assert_eq!(files.read("x"), None);
    assert!(files.list("x").is_empty());
    fs::create_dir(root.path().join("a")).expect("a folder");
    fs::write(root.path().join("a/b"), "1").expect("a file");
    std::os::unix::fs::symlink("b", root.path().join("a/link")).expect("a link");
    std::os::unix::fs::symlink("a", root.path().join("folder")).expect("a link");
    assert_eq!(files.read("a/b"), Some(b"1".to_vec()));
    for path in ["a", "a/link", "folder/b", "../x", "/etc/hostname", ""] {
        assert_eq!(files.read(path), None, "{path}");
    }
    assert_eq!(files.list("a"), ["b", "link"]);
    assert!(files.list("folder").is_empty());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Any bytes in any of the files, or any of them cut short: some facts, and no panic.
    #[test]
    fn no_file_can_do_harm(
        which in proptest::collection::vec(any::<prop::sample::Index>(), 1..6),
        bytes in proptest::collection::vec(any::<u8>(), 0..200),
        cut in any::<prop::sample::Index>(),
    ) {
        for (engine, mut tree) in [(Engine::Pocketmoe, pocket()), (Engine::Sglang, sglang())] {
            let paths: Vec<String> = tree.keys().cloned().collect();
            for (turn, index) in which.iter().enumerate() {
                let file = tree.get_mut(&paths[index.index(paths.len())]).expect("a file of the tree");
                if turn % 2 == 0 { *file = bytes.clone() } else { file.truncate(cut.index(file.len() + 1)) }
            }
            let files = RawFiles::memory(&tree);
            let _ = session_facts(&files, &ask(engine, &["server.env.X"]));
            let _ = trial_facts(&files, "trials/00-c0002-p1", &ask(engine, &[]));
        }
        let _ = decode_rate(&bytes, 1);
    }
}

/// A key that the table does not know would have to be equal in all arms, also where it never can be.
#[test]
fn every_fact_has_a_row() {
    for (engine, tree) in [(Engine::Pocketmoe, pocket()), (Engine::Sglang, sglang())] {
        let files = RawFiles::memory(&tree);
        let mut facts = session_facts(&files, &ask(engine, &[]));
        facts.extend(&trial_facts(&files, "trials/00-c0002-p1", &ask(engine, &[])));
        for (key, _) in facts.iter() {
            assert!(crate::fact::table::row_of(key.as_str()).is_some(), "{key}");
        }
    }
}
