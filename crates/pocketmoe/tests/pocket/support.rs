//! Starting servers, asking them, and running the load client.

use serde_json::{Value, json};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Longest wait for anything; the machine may be busy.
const LIMIT: Duration = Duration::from_mins(2);

const READY: &str = "The server is fired up and ready to roll!";

static NEXT: AtomicU32 = AtomicU32::new(0);

/// A new path below cargo's folder for tests.
pub(crate) fn scratch(name: &str) -> PathBuf {
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{}-{number}-{name}", std::process::id()))
}

/// A server process; killed when dropped.
pub(crate) struct Server {
    child: Child,
    log: PathBuf,
    pub(crate) port: u16,
    http: reqwest::Client,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_file(&self.log);
    }
}

impl Server {
    /// Starts a tiny server with more `arguments`, and waits until it listens (not until it is ready).
    pub(crate) fn launch(arguments: &str) -> Self {
        Self::launch_with(arguments, &[])
    }

    pub(crate) fn launch_with(arguments: &str, variables: &[(&str, &str)]) -> Self {
        let log = scratch("server.log");
        let child = Command::new(env!("CARGO_BIN_EXE_pocketmoe"))
            .args(["serve", "--port", "0", "--model-path", "pocket-moe-tiny"])
            .args(arguments.split_whitespace())
            .env_remove("SGLANG_OEA_K0")
            .env_remove("SGLANG_OEA_MIN_BATCH")
            .envs(variables.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(&log).unwrap())
            .spawn()
            .unwrap();
        let mut server = Self { child, log, port: 0, http: reqwest::Client::builder().no_proxy().build().unwrap() };
        server.wait_for(|server| {
            let log = server.log();
            let port = log.split("listening on http://127.0.0.1:").nth(1).and_then(|rest| rest.split('\n').next());
            server.port = port.and_then(|port| port.parse().ok()).unwrap_or(0);
            server.port != 0 || server.child.try_wait().unwrap().is_some()
        });
        server
    }

    /// Starts a server and waits until it is ready.
    pub(crate) fn ready(arguments: &str) -> Self {
        Self::ready_with(arguments, &[])
    }

    pub(crate) fn ready_with(arguments: &str, variables: &[(&str, &str)]) -> Self {
        let mut server = Self::launch_with(arguments, variables);
        server.wait_for(|server| server.log().contains(READY));
        server
    }

    fn wait_for(&mut self, mut done: impl FnMut(&mut Self) -> bool) {
        let begin = Instant::now();
        while !done(self) {
            assert!(begin.elapsed() < LIMIT, "waited too long; the log is:\n{}", self.log());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.log().contains(READY)
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap()
    }

    /// The exit status, once it has one.
    pub(crate) fn exit(&mut self) -> ExitStatus {
        let begin = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(begin.elapsed() < LIMIT, "does not exit; the log is:\n{}", self.log());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub(crate) fn runs(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    pub(crate) fn terminate(&self) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    }

    fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.port)
    }

    pub(crate) async fn get(&self, path: &str) -> (u16, String) {
        let response = self.http.get(self.url(path)).send().await.unwrap();
        (response.status().as_u16(), response.text().await.unwrap())
    }

    /// Status and body; an error when the connection breaks.
    pub(crate) async fn post(&self, path: &str, body: &Value) -> Result<(u16, String), reqwest::Error> {
        let response = self.http.post(self.url(path)).json(body).send().await?;
        Ok((response.status().as_u16(), response.text().await?))
    }

    pub(crate) async fn json(&self, path: &str) -> Value {
        let (status, text) = self.get(path).await;
        assert_eq!(status, 200, "{text}");
        serde_json::from_str(&text).unwrap()
    }

    /// Generates greedily from `prompt`, whatever tokens come.
    pub(crate) async fn generate(&self, prompt: &[u32], tokens: usize) -> Value {
        let (status, text) = self.post("/generate", &greedy(prompt, tokens)).await.unwrap();
        assert_eq!(status, 200, "{text}");
        serde_json::from_str(&text).unwrap()
    }

    /// The value of a counter.
    pub(crate) async fn metric(&self, name: &str) -> u64 {
        let (_, text) = self.get("/metrics").await;
        let line = text.lines().find(|line| line.starts_with(&format!("{name}{{"))).unwrap_or_else(|| panic!("{text}"));
        line.split_whitespace().last().unwrap().parse().unwrap()
    }

    /// Waits until a request runs.
    pub(crate) async fn until_running(&self) {
        while self.metric("sglang:num_running_reqs").await == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// Runs the load client against this server.
    pub(crate) fn load(&self, arguments: &str, output: &Path) -> Output {
        Command::new(env!("CARGO_BIN_EXE_pocketmoe"))
            .args(["load", "--port", &self.port.to_string(), "--output-file"])
            .arg(output)
            .args(arguments.split_whitespace())
            .env_remove("OPENAI_API_KEY")
            .output()
            .unwrap()
    }
}

/// A body for `/generate`.
pub(crate) fn greedy(prompt: &[u32], tokens: usize) -> Value {
    json!({
        "input_ids": prompt,
        "sampling_params": { "temperature": 0.0, "max_new_tokens": tokens, "ignore_eos": true },
    })
}

/// `length` ids that depend on `seed`.
pub(crate) fn prompt(seed: u32, length: u32) -> Vec<u32> {
    (0..length).map(|i| (seed.wrapping_mul(7919).wrapping_add(i * 104_729)) % 2003).collect()
}

pub(crate) fn ids(answer: &Value) -> Vec<u64> {
    answer["output_ids"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap()).collect()
}

/// The data of a stream of events.
pub(crate) fn events(text: &str) -> Vec<String> {
    text.split("\n\n").filter_map(|event| event.strip_prefix("data: ")).map(str::to_owned).collect()
}

/// The rows of a result file, with the bare infinity made readable.
pub(crate) fn rows(path: &Path) -> Vec<Value> {
    let text =
        std::fs::read_to_string(path).unwrap().replace("\"request_rate\": Infinity", "\"request_rate\": \"inf\"");
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}
