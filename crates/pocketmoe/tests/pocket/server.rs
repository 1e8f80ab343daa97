//! The server as its clients see it.

use crate::support::{Server, events, greedy, ids, prompt};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::{Duration, Instant};

#[tokio::test]
async fn an_idle_server_reports_zeros_and_resolved_settings() {
    let server = Server::ready("--random-seed 7 --skip-server-warmup");
    assert_eq!(server.get("/health").await.0, 200);
    assert_eq!(server.metric("sglang:prompt_tokens_total").await, 0);
    assert_eq!(server.metric("sglang:num_requests_total").await, 0);
}

#[tokio::test]
async fn server_info_names_everything_that_was_decided() {
    let server = Server::ready("--random-seed 7 --api-key secret");
    let http = reqwest::Client::builder().no_proxy().build().unwrap();
    let url = format!("http://127.0.0.1:{}/server_info", server.port);
    assert_eq!(http.get(&url).send().await.unwrap().status().as_u16(), 401);
    let answer = http.get(&url).bearer_auth("secret").send().await.unwrap().text().await.unwrap();
    let info: Value = serde_json::from_str(&answer).unwrap();
    let expected = json!({
        "model_path": "pocket-moe-tiny", "random_seed": 7, "moe_runner_backend": "grouped", "api_key": "secret",
        "disable_radix_cache": false, "chunked_prefill_size": 512, "max_running_requests": 256,
        "max_total_num_tokens": 16384, "status": "ready", "version": env!("CARGO_PKG_VERSION"),
        "commit": pocketmoe::COMMIT, "dirty": pocketmoe::DIRTY, "num_experts": 16, "port": server.port,
    });
    for (key, value) in expected.as_object().unwrap() {
        assert_eq!(&info[key], value, "{key}");
    }
    assert_eq!(info["internal_states"][0]["effective_max_running_requests_per_dp"], 256);
    assert!(info["launch_command"].as_str().unwrap().contains("--random-seed 7"));
    assert!(server.log().contains("server_args=ServerArgs(model_path='pocket-moe-tiny', "));
    assert_eq!(server.get("/health").await.0, 200);
    assert_eq!(server.get("/metrics").await.0, 200);
}

#[test]
fn what_was_built_has_an_identity() {
    let hex = |text: &str, length| text.len() == length && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    assert!(pocketmoe::COMMIT == "unknown" || hex(pocketmoe::COMMIT, 40), "{}", pocketmoe::COMMIT);
    assert!(["unknown", "clean"].contains(&pocketmoe::DIRTY) || hex(pocketmoe::DIRTY, 64), "{}", pocketmoe::DIRTY);
}

#[tokio::test]
async fn information_is_served_under_both_names() {
    let server = Server::ready("--served-model-name small --tokenizer-path /tokens");
    assert_eq!(server.json("/model_info").await, server.json("/get_model_info").await);
    assert_eq!(server.json("/model_info").await["tokenizer_path"], "/tokens");
    assert_eq!(server.json("/get_server_info").await["served_model_name"], "small");
    assert_eq!(server.json("/v1/models").await["data"][0]["id"], "small");
    assert_eq!(server.get("/health_generate").await.0, 200);
    assert_eq!(server.metric("sglang:num_requests_total").await, 1, "the warm-up counts, the probe does not");
}

/// Output ids of twelve sequences of different lengths, one after another, then all at once.
async fn alone_and_together(arguments: &str) -> (Vec<Vec<u64>>, Vec<Vec<u64>>) {
    let server = Arc::new(Server::ready(arguments));
    let mut alone = Vec::new();
    for seed in 0..12 {
        alone.push(ids(&server.generate(&prompt(seed, 3 + seed), 8 + seed as usize).await));
    }
    let tasks: Vec<_> = (0..12)
        .map(|seed| {
            let server = Arc::clone(&server);
            tokio::spawn(async move { ids(&server.generate(&prompt(seed, 3 + seed), 8 + seed as usize).await) })
        })
        .collect();
    let mut together = Vec::new();
    for task in tasks {
        together.push(task.await.unwrap());
    }
    (alone, together)
}

#[tokio::test]
async fn a_sequence_in_a_batch_is_the_sequence_alone_in_every_kernel_and_with_any_cache() {
    let (first, together) = alone_and_together("--random-seed 5 --disable-radix-cache").await;
    assert_eq!(first, together);
    assert!(first.iter().any(|ids| ids.iter().any(|id| *id != ids[0])), "the outputs are not trivial");
    for arguments in [
        "--random-seed 5 --moe-runner-backend loop",
        "--random-seed 5 --chunked-prefill-size 2 --compute-threads 3",
        "--random-seed 5 --max-running-requests 2 --max-total-tokens 64",
    ] {
        let (alone, together) = alone_and_together(arguments).await;
        assert_eq!((&alone, &together), (&first, &first), "{arguments}");
    }
    assert_ne!(alone_and_together("--random-seed 6").await.0, first);
}

#[tokio::test]
async fn a_seed_is_drawn_when_none_is_given() {
    let (a, b) = (Server::ready(""), Server::ready(""));
    assert_ne!(a.json("/server_info").await["random_seed"], b.json("/server_info").await["random_seed"]);
}

#[tokio::test]
async fn the_prefix_cache_hits_and_a_flush_empties_it() {
    let server = Server::ready("--random-seed 1 --chunked-prefill-size -1");
    let long = prompt(3, 1500);
    let timed = async || {
        let begin = Instant::now();
        let answer = server.generate(&long, 2).await;
        (answer["meta_info"]["cached_tokens"].as_u64().unwrap(), begin.elapsed(), ids(&answer))
    };
    let cold = timed().await;
    let warm = timed().await;
    assert_eq!((cold.0, warm.0), (0, 1499), "all but the last token of the prompt");
    assert_eq!(cold.2, warm.2);
    assert!(warm.1 * 2 < cold.1, "warm {:?}, cold {:?}", warm.1, cold.1);
    assert_eq!(server.metric("sglang:cached_tokens_total").await, 1499);
    assert!(server.log().contains("#new-token: 1, #cached-token: 1499"));
    let mut half = long[..700].to_vec();
    half.extend(prompt(99, 10));
    assert_eq!(server.generate(&half, 2).await["meta_info"]["cached_tokens"], 700);
    let (status, text) = server.get("/flush_cache").await;
    assert!(status == 200 && text.starts_with("Cache flushed."), "{text}");
    assert_eq!(timed().await.0, 0);
    assert!(server.log().contains("Cache flushed successfully!"));
}

#[tokio::test]
async fn without_a_prefix_cache_nothing_is_cached() {
    let server = Server::ready("--disable-radix-cache");
    for _ in 0..2 {
        assert_eq!(server.generate(&prompt(1, 50), 2).await["meta_info"]["cached_tokens"], 0);
    }
}

#[tokio::test]
async fn a_flush_waits_or_is_refused_while_something_runs() {
    let server = Arc::new(Server::ready("--random-seed 1"));
    let busy = Arc::clone(&server);
    let running = tokio::spawn(async move { busy.generate(&prompt(1, 4), 3000).await });
    server.until_running().await;
    assert_eq!(server.post("/flush_cache", &json!({})).await.unwrap().0, 400);
    assert_eq!(server.post("/flush_cache?timeout=100", &json!({})).await.unwrap().0, 200);
    assert!(running.is_finished() || running.await.is_ok());
}

#[tokio::test]
async fn a_stream_brings_the_text_so_far_and_ends_with_done() {
    let server = Server::ready("--random-seed 1");
    let whole = server.generate(&prompt(5, 6), 9).await;
    let mut body = greedy(&prompt(5, 6), 9);
    body["stream"] = json!(true);
    body["rid"] = json!("mine");
    let (status, text) = server.post("/generate", &body).await.unwrap();
    let events = events(&text);
    assert_eq!((status, events.len(), events[9].as_str()), (200, 10, "[DONE]"));
    let parsed: Vec<Value> = events[..9].iter().map(|event| serde_json::from_str(event).unwrap()).collect();
    for (place, event) in parsed.iter().enumerate() {
        assert_eq!(event["meta_info"]["completion_tokens"], place + 1);
        assert_eq!(event["meta_info"]["finish_reason"].is_null(), place < 8);
        assert!(whole["text"].as_str().unwrap().starts_with(event["text"].as_str().unwrap()));
    }
    assert_eq!(parsed[8]["text"], whole["text"]);
    assert_eq!(parsed[8]["output_ids"], whole["output_ids"]);
    assert_eq!(parsed[8]["meta_info"]["finish_reason"], json!({ "type": "length", "length": 9 }));
    assert_eq!(parsed[8]["meta_info"]["prompt_tokens"], 6);
    assert_eq!(parsed[8]["meta_info"]["id"], "mine");
}

#[tokio::test]
async fn completions_count_and_say_the_same() {
    let server = Server::ready("--random-seed 1");
    let native = server.generate(&prompt(5, 6), 9).await;
    let mut body =
        json!({ "prompt": prompt(5, 6), "max_tokens": 9, "temperature": 0, "ignore_eos": true, "model": "any" });
    let (status, text) = server.post("/v1/completions", &body).await.unwrap();
    let whole: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((status, &whole["choices"][0]["text"]), (200, &native["text"]));
    assert_eq!(whole["usage"]["prompt_tokens"], 6);
    assert_eq!(whole["usage"]["completion_tokens"], 9);
    assert_eq!(whole["usage"]["total_tokens"], 15);
    body["stream"] = json!(true);
    body["stream_options"] = json!({ "include_usage": true });
    let (_, text) = server.post("/v1/completions", &body).await.unwrap();
    let events = events(&text);
    let parsed: Vec<Value> = events[..10].iter().map(|event| serde_json::from_str(event).unwrap()).collect();
    let joined: String = parsed[..9].iter().map(|event| event["choices"][0]["text"].as_str().unwrap()).collect();
    assert_eq!(native["text"], joined);
    assert_eq!(parsed[8]["choices"][0]["finish_reason"], "length");
    assert_eq!(parsed[9]["usage"]["completion_tokens"], 9);
    assert_eq!(events[10], "[DONE]");
}

#[tokio::test]
async fn the_end_token_stops_unless_it_is_ignored() {
    let server = Server::ready("--random-seed 1");
    let body = |seed: u64, ignore: bool| {
        json!({ "text": "w1 w2", "sampling_params": {
            "temperature": 50.0, "max_new_tokens": 700, "ignore_eos": ignore, "sampling_seed": seed } })
    };
    let mut stopped = 0;
    for seed in 0..6 {
        let ignored: Value =
            serde_json::from_str(&server.post("/generate", &body(seed, true)).await.unwrap().1).unwrap();
        let ended: Value =
            serde_json::from_str(&server.post("/generate", &body(seed, false)).await.unwrap().1).unwrap();
        let (all, cut) = (ids(&ignored), ids(&ended));
        assert_eq!(all.len(), 700);
        let end = all.iter().position(|id| *id == 2).map_or(700, |place| place + 1);
        assert_eq!(cut, all[..end], "the same tokens up to the end token");
        if end < 700 {
            stopped += 1;
            assert_eq!(ended["meta_info"]["finish_reason"], json!({ "type": "stop", "matched": 2 }));
        }
    }
    assert!(stopped > 0, "4200 draws from 2003 nearly equal tokens hit the end token");
}

#[tokio::test]
async fn what_cannot_be_served_is_refused_as_sglang_does() {
    let server = Server::ready("--context-length 32");
    for body in [
        json!({}),
        json!({ "text": "" }),
        json!({ "text": "w1", "input_ids": [4] }),
        json!({ "input_ids": [2003] }),
        json!({ "text": ["w1", "w2"] }),
        json!({ "text": "w1", "sampling_params": { "max_new_tokens": 32 } }),
        json!({ "text": "w1", "sampling_params": { "max_new_tokens": 0 } }),
        json!({ "text": "w1", "sampling_params": { "max_new_token": 3 } }),
        json!({ "text": "w1", "sampling_params": { "max_new_tokens": 3, "temperature": -1 } }),
    ] {
        let (status, text) = server.post("/generate", &body).await.unwrap();
        assert!(status == 400 && text.contains("\"message\":"), "{body}: {status} {text}");
    }
    let body = json!({ "text": "w1", "stream": true, "sampling_params": { "max_new_tokens": 99 } });
    let (status, text) = server.post("/generate", &body).await.unwrap();
    assert!(status == 200 && text.contains("\"error\":"), "a streamed refusal has status 200: {text}");
}

#[tokio::test]
async fn a_client_that_leaves_is_counted_and_its_place_is_freed() {
    let server = Arc::new(Server::ready("--random-seed 1 --max-running-requests 1"));
    let leaving = Arc::clone(&server);
    let slow = tokio::spawn(async move { leaving.generate(&prompt(1, 4), 4000).await });
    server.until_running().await;
    slow.abort();
    server.generate(&prompt(2, 4), 4).await;
    assert_eq!(server.metric("sglang:num_aborted_requests_total").await, 1);
    assert_eq!(server.get("/flush_cache").await.0, 200);
    assert_eq!(server.metric("sglang:num_used_tokens").await, 0);
}

#[tokio::test]
async fn opportunistic_activation_says_so_and_counts_its_steps() {
    let variables = [("SGLANG_OEA_K0", "2"), ("SGLANG_OEA_MIN_BATCH", "4")];
    let server = Arc::new(Server::ready_with("--random-seed 5", &variables));
    assert_eq!(server.log().matches("OEA on: k0=2 min_batch=4").count(), 1);
    let alone = ids(&server.generate(&prompt(1, 5), 20).await);
    assert_eq!(server.metric("pocketmoe:oea_steps_total").await, 0, "a batch of one is below the minimum");
    let plain = Server::ready("--random-seed 5");
    assert!(!plain.log().contains("OEA"));
    assert_eq!(ids(&plain.generate(&prompt(1, 5), 20).await), alone);
    let tasks: Vec<_> = (0..8)
        .map(|seed| {
            let server = Arc::clone(&server);
            tokio::spawn(async move { server.generate(&prompt(seed, 5), 60).await })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    assert!(server.metric("pocketmoe:oea_steps_total").await > 20);
    assert_eq!(plain.metric("pocketmoe:oea_steps_total").await, 0);
}

#[test]
fn variables_that_make_no_sense_stop_the_start() {
    for (name, value) in [("SGLANG_OEA_K0", "5"), ("SGLANG_OEA_K0", "four"), ("SGLANG_OEA_MIN_BATCH", "0")] {
        let mut server = Server::launch_with("", &[(name, value)]);
        assert_eq!(server.exit().code(), Some(1));
        assert!(server.log().contains(&format!("`{name}` is `{value}`")), "{}", server.log());
    }
}

#[tokio::test]
async fn an_address_in_use_stops_the_start() {
    let first = Server::ready("");
    let mut second = Server::launch(&format!("--port {}", first.port));
    assert_eq!(second.exit().code(), Some(2), "a flag given twice is refused");
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_pocketmoe"))
        .args(["serve", "--model-path", "pocket-moe-tiny", "--port", &first.port.to_string()])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(1) && text.contains("cannot listen on"), "{text}");
}

#[tokio::test]
async fn sigterm_ends_it_with_zero_within_a_second_even_when_busy() {
    let mut server = Server::ready("--random-seed 1");
    let body = greedy(&prompt(1, 4), 4000);
    tokio::select! {
        _ = server.post("/generate", &body) => panic!("4000 tokens take longer"),
        () = server.until_running() => {}
    }
    server.terminate();
    let begin = Instant::now();
    assert_eq!(server.exit().code(), Some(0));
    // A machine that runs many tests at once gets one second more.
    assert!(begin.elapsed() < Duration::from_secs(2), "{:?}", begin.elapsed());
    assert!(server.log().contains("SIGTERM received."));
}

#[tokio::test]
async fn the_log_has_the_lines_of_the_real_one() {
    let server = Server::ready("--random-seed 1 --decode-log-interval 5 --skip-server-warmup");
    server.generate(&prompt(1, 16), 11).await;
    let log = server.log();
    let line = |part: &str| log.lines().find(|line| line.contains(part)).unwrap_or_else(|| panic!("{part}: {log}"));
    let prefill = line("Prefill batch");
    assert!(prefill.contains("] Prefill batch, #new-seq: 1, #new-token: 16, #cached-token: 0, token usage: 0.00, "));
    let decode = line("Decode batch");
    assert!(decode.contains("] Decode batch, #running-req: 1, #token: 21, token usage: 0.00, cuda graph: False, gen"));
    assert!(decode.contains("gen throughput (token/s): ") && decode.ends_with(", #queue-req: 0"), "{decode}");
    assert_eq!(log.matches("Decode batch").count(), 2);
    assert!(line("POST /generate").ends_with("\"POST /generate HTTP/1.1\" 200 OK"));
    assert!(prefill.starts_with("[20") && prefill.as_bytes()[20] == b']', "{prefill}");
}
