//! `pocketmoe serve`: the engine behind SGLang's flags, log lines and HTTP interface.
//!
//! The ready line is written, and `/health` answers 200, only after a generation of the server's own went through the
//! scheduler. SIGTERM and SIGINT end it at once with status 0.

mod answer;
mod http;
mod settings;

pub use settings::{MoeRunnerBackend, ServeArgs, ServeError};

use crate::fault::Fault;
use crate::log::Log;
use crate::metrics::{Metrics, locked};
use crate::model::Model;
use crate::sampling::Sampling;
use crate::scheduler::{Command, Event, Origin, Request, Scheduler};
use settings::Resolved;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::sync::oneshot;

/// What all handlers share.
struct App {
    resolved: Resolved,
    commands: std::sync::mpsc::Sender<Command>,
    metrics: Arc<Mutex<Metrics>>,
    log: Arc<Log>,
    ready: AtomicBool,
    /// Generation requests that arrived over the network.
    requests: AtomicU64,
}

impl App {
    /// Hands a request to the scheduler.
    fn submit(&self, request: Request) {
        // The scheduler only ends with the process.
        let _ = self.commands.send(Command::Generate(request));
    }

    /// A short generation of the server's own.
    fn own_request(&self, origin: Origin, max_new_tokens: usize) -> UnboundedReceiver<Event> {
        let (events, receiver) = unbounded_channel();
        let sampling = Sampling { temperature: 0.0, top_p: 1.0, top_k: None, seed: None };
        let request = Request {
            prompt: vec![0],
            max_new_tokens,
            ignore_eos: true,
            stop_at: None,
            sampling,
            origin,
            events,
            arrived: Instant::now(),
        };
        self.submit(request);
        receiver
    }

    fn fault<T>(&self, choose: impl Fn(&Fault) -> Option<T>) -> Option<T> {
        self.resolved.faults.iter().find_map(choose)
    }

    fn has(&self, fault: &Fault) -> bool {
        self.resolved.faults.contains(fault)
    }
}

/// Serves until SIGTERM or SIGINT. Logs to standard error.
///
/// # Errors
///
/// When a setting or a variable is not usable, or the address cannot be bound.
pub fn run(args: ServeArgs) -> Result<(), ServeError> {
    let log = Arc::new(Log::new(Box::new(std::io::stderr())));
    let resolved = Resolved::new(args)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let outcome = runtime.block_on(serve(resolved, log));
    // The engine's thread may be in the middle of a step; the process ends without it.
    runtime.shutdown_background();
    outcome
}

async fn serve(mut resolved: Resolved, log: Arc<Log>) -> Result<(), ServeError> {
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let started = Instant::now();
    let listener = TcpListener::bind((resolved.host.as_str(), resolved.port))
        .await
        .map_err(|source| ServeError::Bind { address: format!("{}:{}", resolved.host, resolved.port), source })?;
    resolved.set_port(listener.local_addr()?.port());
    log.line(format_args!("server_args=ServerArgs({})", resolved.python_repr()));
    if let Some(oea) = resolved.oea {
        log.line(format_args!("OEA on: k0={} min_batch={}", oea.k0, oea.min_batch));
    }
    let (commands, inbox) = std::sync::mpsc::channel();
    let metrics = Arc::new(Mutex::new(Metrics { capacity: resolved.max_total_tokens, ..Metrics::default() }));
    let app = Arc::new(App {
        resolved,
        commands,
        metrics,
        log: Arc::clone(&log),
        ready: AtomicBool::new(false),
        requests: AtomicU64::new(0),
    });
    log.line(format_args!("HTTP server listening on http://{}:{}", app.resolved.host, app.resolved.port));
    let server = http::serve(listener, Arc::clone(&app));
    let (loaded, wait) = oneshot::channel();
    let (alive, gone) = oneshot::channel::<()>();
    let engine = Arc::clone(&app);
    std::thread::Builder::new().name("scheduler".into()).spawn(move || {
        // Dropped when the thread ends, which it only does by a panic.
        let _alive = alive;
        let scheduler = load(&engine, inbox);
        // The start task is gone only when the process ends.
        let _ = loaded.send(());
        scheduler.run();
    })?;
    tokio::spawn(start(Arc::clone(&app), wait, started));
    tokio::pin!(server, gone);
    loop {
        let name = tokio::select! {
            outcome = &mut server => return outcome.map_err(ServeError::from),
            _ = &mut gone => return Err(ServeError::Engine),
            _ = terminate.recv() => "SIGTERM",
            _ = interrupt.recv() => "SIGINT",
        };
        if name == "SIGTERM" && app.has(&Fault::IgnoreTerm) {
            log.line(format_args!("{name} received. Ignored (fault ignore-term)"));
            continue;
        }
        log.line(format_args!("{name} received. Shutting down..."));
        return Ok(());
    }
}

/// Fills the weights; this is also where the faults of starting happen.
fn load(app: &App, inbox: std::sync::mpsc::Receiver<Command>) -> Scheduler {
    let (resolved, log) = (&app.resolved, &app.log);
    log.line(format_args!("Load weight begin."));
    if app.has(&Fault::OutOfMemory) {
        out_of_memory(log);
        std::process::exit(1);
    }
    if app.has(&Fault::Exit) {
        std::process::exit(3);
    }
    if app.has(&Fault::Orphan) {
        // Its output must not keep our caller's pipes open.
        let sleep = std::process::Command::new("sleep")
            .arg("3600")
            .stdin(std::process::Stdio::null())
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null())
            .spawn();
        match sleep {
            Ok(child) => log.line(format_args!("fault orphan: started sleep, pid {}", child.id())),
            Err(error) => log.line(format_args!("fault orphan: could not start sleep: {error}")),
        }
    }
    let begin = Instant::now();
    let model = Model::new(resolved.dimensions, resolved.random_seed);
    log.line(format_args!(
        "Load weight end. elapsed={:.2} s, type={}, mem usage={:.2} GB.",
        begin.elapsed().as_secs_f64(),
        settings::ARCHITECTURE,
        resolved.dimensions.weight_bytes() as f64 / 1e9
    ));
    log.line(format_args!(
        "max_total_num_tokens={}, chunked_prefill_size={}, max_running_requests={}, context_len={}",
        resolved.max_total_tokens,
        resolved.chunked_prefill_size,
        resolved.max_running_requests,
        resolved.context_length
    ));
    Scheduler::new(model, resolved.scheduler(), inbox, Arc::clone(&app.metrics), Arc::clone(log))
}

/// From loaded weights to the ready line.
async fn start(app: Arc<App>, loaded: oneshot::Receiver<()>, started: Instant) {
    if loaded.await.is_err() {
        return;
    }
    if let Some(later) = app.fault(|fault| if let Fault::SlowStart(later) = fault { Some(*later) } else { None }) {
        tokio::time::sleep(later).await;
    }
    if app.has(&Fault::Hang) {
        return;
    }
    if !app.resolved.skip_server_warmup {
        let mut events = app.own_request(Origin::WarmUp, 8);
        while events.recv().await.is_some_and(|event| event.finish.is_none()) {}
    }
    locked(&app.metrics).startup_seconds = started.elapsed().as_secs_f64();
    app.ready.store(true, Ordering::Release);
    app.log.line(format_args!("The server is fired up and ready to roll!"));
}

fn out_of_memory(log: &Log) {
    log.line(format_args!(
        "Scheduler hit an exception: Traceback (most recent call last):\n  \
         File \"pocketmoe/scheduler.py\", line 2719, in run_scheduler_process\n    \
         scheduler = Scheduler(server_args, port_args, gpu_id, tp_rank, dp_rank)\n  \
         File \"pocketmoe/model_runner.py\", line 288, in load_model\n    \
         self.model = get_model(model_config=self.model_config)\n\
         torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.31 GiB. GPU 0 has a total capacity of \
         94.97 GiB of which 702.44 MiB is free. Process 4242 has 94.28 GiB memory in use. (fault oom: nothing was \
         allocated, this text is what a real engine writes)\n"
    ));
}

/// Sleeps for ever.
async fn never() {
    loop {
        tokio::time::sleep(Duration::from_hours(1)).await;
    }
}
