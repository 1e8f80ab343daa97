//! Each fault does what it says.

use crate::support::{Server, events, greedy, ids, prompt, rows, scratch};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

fn streamed(seed: u32) -> Value {
    let mut body = greedy(&prompt(seed, 4), 6);
    body["stream"] = json!(true);
    body
}

#[test]
fn oom_logs_a_traceback_and_exits_1() {
    let mut server = Server::launch("--fault oom");
    assert_eq!(server.exit().code(), Some(1));
    assert!(server.log().contains("Traceback (most recent call last)"));
    assert!(server.log().contains("torch.OutOfMemoryError: CUDA out of memory."));
    assert!(!server.is_ready());
}

#[test]
fn exit_exits_3() {
    let mut server = Server::launch("--fault exit");
    assert_eq!(server.exit().code(), Some(3));
    assert!(!server.is_ready());
}

#[tokio::test]
async fn hang_listens_and_is_never_ready() {
    let mut server = Server::launch("--fault hang");
    tokio::time::sleep(Duration::from_millis(700)).await;
    assert_eq!(server.get("/health").await.0, 503);
    assert_eq!(server.get("/health_generate").await.0, 503);
    assert_eq!(server.post("/generate", &streamed(1)).await.unwrap().0, 503);
    assert_eq!(server.json("/server_info").await["status"], "starting");
    assert!(server.runs() && !server.is_ready());
}

#[test]
fn slow_start_is_ready_later() {
    let begin = Instant::now();
    let server = Server::ready("--fault slow-start=1.5");
    assert!(begin.elapsed() >= Duration::from_millis(1500) && server.is_ready());
}

#[tokio::test]
async fn crash_after_two_answers_two() {
    let mut server = Server::ready("--fault crash-after=2");
    for seed in 0..2 {
        assert_eq!(server.post("/generate", &streamed(seed)).await.unwrap().0, 200);
    }
    assert!(server.post("/generate", &streamed(2)).await.is_err());
    assert_eq!(server.exit().code(), Some(1));
}

#[tokio::test]
async fn hang_after_one_answers_nothing_more() {
    let mut server = Server::ready("--fault hang-after=1");
    assert_eq!(server.post("/generate", &streamed(1)).await.unwrap().0, 200);
    assert_eq!(server.get("/health").await.0, 200);
    let wait = Duration::from_millis(500);
    assert!(tokio::time::timeout(wait, server.post("/generate", &streamed(2))).await.is_err());
    assert!(tokio::time::timeout(wait, server.get("/health")).await.is_err());
    assert!(server.runs());
    server.terminate();
    assert_eq!(server.exit().code(), Some(0));
}

#[tokio::test]
async fn every_fourth_stream_is_an_error_or_empty_or_cut_or_a_500() {
    let server = Server::ready("--fault error-in-stream");
    for number in 1..=8 {
        let (status, text) = server.post("/generate", &streamed(number)).await.unwrap();
        assert_eq!((status, text.contains("\"error\"")), (200, number % 4 == 0), "{number}: {text}");
    }
    let server = Server::ready("--fault empty-stream=2");
    for number in 1..=4 {
        let (status, text) = server.post("/generate", &streamed(number)).await.unwrap();
        assert_eq!((status, events(&text).len()), (200, if number % 2 == 0 { 1 } else { 7 }), "{text}");
    }
    let server = Server::ready("--fault drop");
    for number in 1..=4 {
        assert_eq!(server.post("/generate", &streamed(number)).await.is_err(), number == 4);
    }
    let server = Server::ready("--fault http-500");
    for number in 1..=4 {
        let (status, _) = server.post("/generate", &streamed(number)).await.unwrap();
        assert_eq!(status, if number == 4 { 500 } else { 200 });
    }
}

#[tokio::test]
async fn early_eos_stops_at_half() {
    let server = Server::ready("--fault early-eos --random-seed 1");
    let answer = server.generate(&prompt(1, 4), 10).await;
    assert_eq!(ids(&answer).len(), 5);
    assert_eq!(answer["meta_info"]["finish_reason"]["type"], "stop");
    assert_eq!(answer["meta_info"]["completion_tokens"], 5);
}

#[tokio::test]
async fn a_refused_flush_is_400_and_an_error_of_the_load_client() {
    let server = Server::ready("--fault flush-refused");
    assert_eq!(server.post("/flush_cache", &json!({})).await.unwrap().0, 400);
    let output = server.load("--num-prompts 2 --flush-cache", &scratch("row.jsonl"));
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("`/flush_cache` answered status 400"));
}

#[tokio::test]
async fn slow_information_does_not_count_into_the_duration() {
    let server = Server::ready("--fault slow-info=2");
    let file = scratch("row.jsonl");
    let begin = Instant::now();
    assert!(server.load("--num-prompts 2 --random-input-len 4 --random-output-len 4", &file).status.success());
    assert!(begin.elapsed() >= Duration::from_secs(2));
    assert!(rows(&file)[0]["duration"].as_f64().unwrap() < 1.5);
}

#[tokio::test]
async fn a_stall_pauses_decoding_once_in_the_middle() {
    let server = Server::ready("--fault stall=1@2");
    let timed = async |seed| {
        let begin = Instant::now();
        server.generate(&prompt(seed, 4), 8).await;
        begin.elapsed() >= Duration::from_secs(1)
    };
    assert_eq!([timed(1).await, timed(2).await, timed(3).await], [false, true, false]);
}

#[tokio::test]
async fn the_wrong_backend_is_reported_as_it_is() {
    let server = Server::ready("--fault wrong-backend --moe-runner-backend loop");
    assert_eq!(server.json("/server_info").await["moe_runner_backend"], "grouped");
}

#[tokio::test]
async fn sigterm_can_be_ignored() {
    let mut server = Server::ready("--fault ignore-term");
    server.terminate();
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(server.runs() && server.get("/health").await.0 == 200);
}

#[test]
fn an_orphan_outlives_the_server() {
    let mut server = Server::ready("--fault orphan");
    let log = server.log();
    let pid = log.split("started sleep, pid ").nth(1).unwrap().split_whitespace().next().unwrap().parse().unwrap();
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    server.terminate();
    server.exit();
    assert!(rustix::process::test_kill_process(pid).is_ok());
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
}

#[test]
fn an_unknown_fault_is_refused_with_the_list() {
    let mut server = Server::launch("--fault nothing");
    assert_eq!(server.exit().code(), Some(2));
    assert!(server.log().contains("`nothing` is not a fault; want `oom`"));
}
