//! Confounds made for real: a process that was started with another flag, another binary, a stray server. Each is refused by its name.

use std::fs;
use std::net::TcpListener;

use super::lab::Lab;
use super::tiny::{
    SPEC, Tiny, add_words, assert_nothing_left, compare, folder_names, port, queue_only, queued, reasons, refused_for,
    replace_words, run, words,
};

#[test]
fn a_server_that_was_started_with_one_more_flag() {
    let lab = Tiny::default().lab();
    let host = queue_only(&lab);
    add_words(&queued(&host, "b01-other").join("argv"), &["--chunked-prefill-size", "256"]);
    run(&lab).success();
    let compared = refused_for(&lab, "server.args.chunked-prefill-size");
    assert_eq!(compared["outcome"], "refused");
    assert_eq!(compared["claims"]["same"]["verdict"], "refused", "{compared:#}");
    lab.run(&["compare", "tiny"]).fails(3).says("server.args.chunked-prefill-size").says("256");
}

#[test]
fn a_server_that_was_started_with_one_more_variable() {
    let lab = Tiny::default().lab();
    let host = queue_only(&lab);
    let env = queued(&host, "b01-other").join("env");
    fs::create_dir_all(&env).expect("made");
    fs::write(env.join("SGLANG_OEA_K0"), "4").expect("written");
    run(&lab).success();
    refused_for(&lab, "server.env.SGLANG_OEA_K0");
}

#[test]
fn a_server_that_was_started_with_less_priority_or_fewer_cores() {
    for (wrapper, fact) in [(["nice", "-n", "5"], "server.nice"), (["taskset", "-c", "0"], "server.affinity")] {
        let lab = Tiny::default().lab();
        let host = queue_only(&lab);
        let argv = queued(&host, "b01-other").join("argv");
        let wrapped: Vec<String> = wrapper.iter().map(|word| (*word).to_owned()).chain(words(&argv)).collect();
        replace_words(&argv, &wrapped.iter().map(String::as_str).collect::<Vec<_>>());
        run(&lab).success();
        let compared = refused_for(&lab, fact);
        assert!(!reasons(&compared).iter().any(|name| name.starts_with("server.args")), "{compared:#}");
    }
}

#[test]
fn another_binary_in_one_block() {
    let lab = Tiny { repeats: 2, ..Tiny::default() }.lab();
    let host = queue_only(&lab);
    let bin = host.join("bin");
    let first = bin.join(&folder_names(&bin)[0]);
    let other = bin.join("labbook-rebuilt");
    let mut bytes = fs::read(&first).expect("the binary");
    bytes.push(0);
    fs::write(&other, bytes).expect("written");
    fs::set_permissions(&other, fs::metadata(&first).expect("there").permissions()).expect("executable");
    let session = queued(&host, "b02-other");
    let mut commands = vec![session.join("argv")];
    for trial in folder_names(&session.join("trials")) {
        let trial = session.join("trials").join(trial);
        commands.extend([trial.join("argv"), trial.join("warmup/argv")]);
    }
    for argv in commands {
        fs::write(argv.join("0001"), other.to_str().expect("a path")).expect("written");
    }
    run(&lab).success();
    let compared = refused_for(&lab, "binaries.labbook");
    let reason = compared["conditions"][0]["reasons"]
        .as_array()
        .and_then(|reasons| reasons.iter().find(|reason| reason["name"] == "binaries.labbook"))
        .expect("the reason");
    assert_eq!(reason["blocks"], serde_json::json!([2]), "only in that block: {compared:#}");
}

#[test]
fn a_variable_that_nothing_reads_is_a_treatment_that_is_not_active() {
    let evidence = "prime: never\nevidence:\n  other: { log: OEA on }";
    let right = Tiny {
        factor: "server.env.SGLANG_OEA_K0",
        arms: "one: unset, other: \"4\"",
        more: evidence,
        ..Tiny::default()
    };
    let lab = right.lab();
    run(&lab).success();
    let (_, compared) = compare(&lab);
    assert!(!reasons(&compared).iter().any(|name| name == "treatment.evidence"), "{compared:#}");
    let lab = Tiny { factor: "server.env.SGLANG_OEAK0", ..right }.lab();
    run(&lab).success();
    refused_for(&lab, "treatment.evidence");
    lab.run(&["compare", "tiny"]).fails(3).says("treatment.evidence");
}

#[test]
fn a_factor_that_did_not_reach_the_server() {
    let lab = Tiny::default().lab();
    let host = queue_only(&lab);
    let argv = queued(&host, "b01-other").join("argv");
    let same: Vec<String> =
        words(&argv).into_iter().map(|word| if word == "grouped" { "loop".into() } else { word }).collect();
    replace_words(&argv, &same.iter().map(String::as_str).collect::<Vec<_>>());
    run(&lab).success();
    let compared = refused_for(&lab, "server.args.moe-runner-backend");
    assert!(compared.to_string().contains("not applied"), "{compared:#}");
}

#[test]
fn a_server_that_resolved_otherwise_than_it_was_asked() {
    let lab = Tiny::default().lab();
    let host = queue_only(&lab);
    // The flag itself differs as well, so both arms get it: what remains is a backend that says it is the other one.
    for arm in ["one", "other"] {
        add_words(&queued(&host, &format!("b01-{arm}")).join("argv"), &["--fault", "wrong-backend"]);
    }
    run(&lab).success();
    let (status, compared) = compare(&lab);
    assert_eq!(status, 3, "{compared:#}");
    assert!(reasons(&compared).iter().any(|name| name == "server.resolved.moe_runner_backend"), "{compared:#}");
}

#[test]
fn a_fact_that_nobody_could_read() {
    let lab = Tiny::default().lab();
    let host = queue_only(&lab);
    let info = queued(&host, "b01-other").join("info");
    let text = fs::read_to_string(&info).expect("info");
    let without: Vec<&str> = text.split_inclusive('\n').filter(|line| !line.starts_with("server_info")).collect();
    let without = without.concat();
    assert_ne!(text, without);
    fs::write(&info, without).expect("written");
    run(&lab).success();
    let compared = refused_for(&lab, "source.commit");
    assert!(reasons(&compared).iter().any(|name| name.starts_with("server.resolved")), "{compared:#}");
    lab.run(&["compare", "tiny"]).fails(3).says("unknown").says("server_info");
}

#[test]
fn a_fact_that_neither_arm_could_read_is_not_equal() {
    let lab = Tiny::default().lab();
    let host = queue_only(&lab);
    for arm in ["one", "other"] {
        fs::remove_file(queued(&host, &format!("b01-{arm}")).join("info")).expect("removed");
    }
    run(&lab).success();
    refused_for(&lab, "source.commit");
}

#[test]
fn an_arm_without_runs() {
    // The treatment fails twice alike, which stops the plan before the control's turn in the second attempt; so it must be first
    // in the block, and the order follows from the edition: labs are made until one has it. They keep their seeds meanwhile.
    let mut labs = Vec::new();
    let lab = loop {
        let lab = Tiny { factor: "server.args.fault", arms: "one: unset, other: exit", ..Tiny::default() }.lab();
        let plan = lab.run(&["plan", SPEC, "--format", "json"]).success().json();
        if plan["sessions"][0]["arm"] == "other" {
            break lab;
        }
        labs.push(lab);
        assert!(labs.len() < 64, "no order begins with the treatment");
    };
    run(&lab).fails(5);
    refused_for(&lab, "S03");
    assert_nothing_left(&lab);
}

#[test]
fn a_stray_server_on_the_port_stops_the_run_and_is_named() {
    let lab = Tiny::default().lab();
    let host = queue_only(&lab);
    let stray = TcpListener::bind(("127.0.0.1", port(&host))).expect("the port is free");
    let pid = std::process::id().to_string();
    run(&lab).fails(5).says("is held by process").says(&pid).says("labbook run");
    // As long as it is there, nothing starts; afterwards the plan completes.
    run(&lab).fails(5).says("dirty");
    drop(stray);
    run(&lab).success().says("1 of 1 blocks complete");
    assert_nothing_left(&lab);
}

#[test]
fn two_metrics_of_two_runs_are_never_compared() {
    let lab = Tiny::default().lab();
    run(&lab).success();
    let id = |lab: &Lab, index: usize| -> String {
        lab.run(&["show", "tiny", "--format", "json"]).success().json()[index]["id"].as_str().expect("an id").to_owned()
    };
    let (one, other) = (id(&lab, 0), id(&lab, 2));
    let peak = format!("{other}:peak_output_throughput");
    lab.run(&["compare", &one, &peak]).fails(3).says("S13");
    let told = lab.run(&["compare", &one, &peak, "--format", "json"]).fails(3).json();
    assert_eq!((&told["outcome"], &told["reasons"][0]["name"]), (&"refused".into(), &"S13".into()), "{told:#}");
    lab.run(&["compare", &one, &other]).success();
    lab.run(&["compare", &one, &format!("{other}:peak_output_throughptu")]).fails(2).says("did you mean");
}

#[test]
fn another_edition_is_never_a_baseline() {
    let mut lab = Tiny::default().lab();
    run(&lab).success();
    let id =
        lab.run(&["show", "tiny", "--format", "json"]).success().json()[0]["id"].as_str().expect("an id").to_owned();
    Tiny { output: 5, ..Tiny::default() }.write(&mut lab, SPEC);
    lab.run(&["compare", "tiny"]).fails(3).says("another design");
    lab.run(&["show", &id[..8]]).success();
}
