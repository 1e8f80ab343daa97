//! The HTTP interface: SGLang's paths and shapes.

use super::answer::{CompletionBody, GenerateBody, Generation};
use super::{App, never, settings};
use crate::fault::Fault;
use crate::metrics::locked;
use crate::scheduler::{Command, Origin};
use axum::body::{Body, Bytes};
use axum::extract::{ConnectInfo, Request, State};
use axum::http::{StatusCode, Uri, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::serve::ListenerExt as _;
use axum::{Json, Router};
use futures_util::stream;
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tokio::net::TcpListener;
use tokio::sync::oneshot;

/// How long `/health_generate` waits for a token, as SGLang does.
const PROBE_TIMEOUT: Duration = Duration::from_secs(20);

type Shared = State<Arc<App>>;

/// Serves for ever.
pub(super) async fn serve(listener: TcpListener, app: Arc<App>) -> std::io::Result<()> {
    let router = Router::new()
        .route("/generate", post(generate))
        .route("/v1/completions", post(completions))
        .route("/v1/models", get(models))
        .route("/health", get(health))
        .route("/health_generate", get(health_generate))
        .route("/server_info", get(server_info))
        .route("/get_server_info", get(server_info))
        .route("/model_info", get(model_info))
        .route("/get_model_info", get(model_info))
        .route("/flush_cache", get(flush_cache).post(flush_cache))
        .route("/metrics", get(metrics))
        .layer(axum::middleware::from_fn_with_state(Arc::clone(&app), gate))
        .with_state(app);
    // Tokens are sent as they come, not when a packet is full.
    let listener = listener.tap_io(|stream| {
        let _ = stream.set_nodelay(true);
    });
    axum::serve(listener, router.into_make_service_with_connect_info::<SocketAddr>()).await
}

/// What every request passes: the fault of not answering, the key, the line in the log.
async fn gate(
    State(app): Shared,
    ConnectInfo(client): ConnectInfo<SocketAddr>,
    request: Request,
    next: Next,
) -> Response {
    let hang_after = app.fault(|fault| if let Fault::HangAfter(after) = fault { Some(*after) } else { None });
    if hang_after.is_some_and(|after| app.requests.load(Ordering::Relaxed) > after) {
        never().await;
    }
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let open = path.starts_with("/health") || path == "/metrics";
    let response = match &app.resolved.api_key {
        Some(key) if !open && bearer(&request) != Some(key) => {
            (StatusCode::UNAUTHORIZED, Json(json!({ "error": "Unauthorized" }))).into_response()
        }
        _ => next.run(request).await,
    };
    let status = response.status();
    let reason = status.canonical_reason().unwrap_or_default();
    app.log.line(format_args!("INFO:     {client} - \"{method} {path} HTTP/1.1\" {} {reason}", status.as_u16()));
    response
}

fn bearer(request: &Request) -> Option<&str> {
    request.headers().get(header::AUTHORIZATION)?.to_str().ok()?.strip_prefix("Bearer ")
}

fn error(status: StatusCode, message: &str) -> Response {
    (status, Json(error_object(status, message))).into_response()
}

fn error_object(status: StatusCode, message: &str) -> Value {
    let kind = if status.is_client_error() { "BadRequestError" } else { "InternalServerError" };
    json!({ "error": { "object": "error", "message": message, "type": kind, "code": status.as_u16() } })
}

async fn generate(State(app): Shared, body: Bytes) -> Response {
    let body: GenerateBody = match serde_json::from_slice(&body) {
        Ok(body) => body,
        Err(problem) => return error(StatusCode::BAD_REQUEST, &problem.to_string()),
    };
    let style = if body.stream { Style::Stream } else { Style::Whole };
    answer(&app, style, |number| body.submit(&app, number)).await
}

async fn completions(State(app): Shared, body: Bytes) -> Response {
    let body: CompletionBody = match serde_json::from_slice(&body) {
        Ok(body) => body,
        Err(problem) => return error(StatusCode::BAD_REQUEST, &problem.to_string()),
    };
    let style = if body.stream { Style::Stream } else { Style::Whole };
    answer(&app, style, |number| body.submit(&app, number)).await
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Style {
    Stream,
    Whole,
}

async fn answer(app: &App, style: Style, submit: impl FnOnce(u64) -> Result<Generation, String>) -> Response {
    if !app.ready.load(Ordering::Acquire) {
        return error(StatusCode::SERVICE_UNAVAILABLE, "the server is starting");
    }
    let number = app.requests.fetch_add(1, Ordering::Relaxed) + 1;
    let mut cut = Cut::Never;
    for fault in &app.resolved.faults {
        match fault {
            Fault::CrashAfter(after) if number > *after => std::process::exit(1),
            Fault::HangAfter(after) if number > *after => never().await,
            Fault::Http500(every) if number.is_multiple_of(*every) => {
                return error(StatusCode::INTERNAL_SERVER_ERROR, "fault http-500");
            }
            Fault::ErrorInStream(every) if number.is_multiple_of(*every) => {
                return refused(style, StatusCode::BAD_REQUEST, "fault error-in-stream");
            }
            Fault::EmptyStream(every) if number.is_multiple_of(*every) => return events(&[done()]),
            Fault::Drop(every) if number.is_multiple_of(*every) => cut = Cut::AfterFirst,
            _ => {}
        }
    }
    let generation = match submit(number) {
        Ok(generation) => generation,
        // SGLang has sent the status line by the time it looks at a streamed request.
        Err(message) => return refused(style, StatusCode::BAD_REQUEST, &message),
    };
    match (style, cut) {
        (Style::Stream, _) => streamed(generation, cut),
        (Style::Whole, Cut::AfterFirst) => {
            Body::from_stream(stream::iter([Err::<Bytes, _>(cut_error())])).into_response()
        }
        (Style::Whole, Cut::Never) => match generation.whole().await {
            Some(json) => Json(json).into_response(),
            None => error(StatusCode::INTERNAL_SERVER_ERROR, "the scheduler is gone"),
        },
    }
}

fn refused(style: Style, status: StatusCode, message: &str) -> Response {
    match style {
        Style::Stream => events(&[event(&error_object(status, message)), done()]),
        Style::Whole => error(status, message),
    }
}

/// Whether the connection is closed early.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Cut {
    Never,
    AfterFirst,
}

fn cut_error() -> std::io::Error {
    std::io::Error::new(std::io::ErrorKind::ConnectionAborted, "fault drop")
}

/// Where a stream of events is.
enum At {
    Tokens,
    Usage,
    Done,
    Cut,
    End,
}

fn streamed(generation: Generation, cut: Cut) -> Response {
    let body = stream::unfold((generation, At::Tokens), move |(mut generation, at)| async move {
        let (bytes, at) = match at {
            At::Tokens => match generation.next().await {
                Some((json, None)) => (event(&json), if cut == Cut::Never { At::Tokens } else { At::Cut }),
                Some((json, Some(_))) => (event(&json), if cut == Cut::Never { At::Usage } else { At::Cut }),
                None => {
                    let gone = error_object(StatusCode::INTERNAL_SERVER_ERROR, "the scheduler is gone");
                    (event(&gone), At::Done)
                }
            },
            At::Usage => match generation.usage_event() {
                Some(json) => (event(&json), At::Done),
                None => (done(), At::End),
            },
            At::Done => (done(), At::End),
            At::Cut => return Some((Err(cut_error()), (generation, At::End))),
            At::End => return None,
        };
        Some((Ok(bytes), (generation, at)))
    });
    stream_response(Body::from_stream(body))
}

fn events(parts: &[Bytes]) -> Response {
    stream_response(Body::from(parts.concat()))
}

fn stream_response(body: Body) -> Response {
    ([(header::CONTENT_TYPE, "text/event-stream; charset=utf-8")], body).into_response()
}

fn event(json: &Value) -> Bytes {
    Bytes::from(format!("data: {json}\n\n"))
}

fn done() -> Bytes {
    Bytes::from_static(b"data: [DONE]\n\n")
}

async fn health(State(app): Shared) -> StatusCode {
    if app.ready.load(Ordering::Acquire) { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }
}

async fn health_generate(State(app): Shared) -> StatusCode {
    if !app.ready.load(Ordering::Acquire) {
        return StatusCode::SERVICE_UNAVAILABLE;
    }
    let mut events = app.own_request(Origin::Probe, 1);
    match tokio::time::timeout(PROBE_TIMEOUT, events.recv()).await {
        Ok(Some(_)) => StatusCode::OK,
        _ => StatusCode::SERVICE_UNAVAILABLE,
    }
}

async fn models(State(app): Shared) -> Json<Value> {
    let (name, resolved) = (&app.resolved.served_model_name, &app.resolved);
    Json(json!({ "object": "list", "data": [{
        "id": name, "object": "model", "created": 0, "owned_by": "pocketmoe", "root": name,
        "max_model_len": resolved.longest(),
    }] }))
}

async fn model_info(State(app): Shared) -> Json<Value> {
    let resolved = &app.resolved;
    Json(json!({
        "model_path": resolved.model_path,
        "served_model_name": resolved.served_model_name,
        "tokenizer_path": resolved.tokenizer_path,
        "is_generation": true,
        "preferred_sampling_params": null,
        "weight_version": "default",
        "load_format": "dummy",
        "model_type": "pocket_moe",
        "architectures": [settings::ARCHITECTURE],
    }))
}

async fn server_info(State(app): Shared) -> Json<Value> {
    if let Some(later) = app.fault(|fault| if let Fault::SlowInfo(later) = fault { Some(*later) } else { None }) {
        tokio::time::sleep(later).await;
    }
    let (resolved, d) = (&app.resolved, app.resolved.dimensions);
    let (throughput, startup) = {
        let metrics = locked(&app.metrics);
        (metrics.gen_throughput, metrics.startup_seconds)
    };
    let gigabytes = |bytes: usize| (bytes as f64 / 1e7).round() / 100.0;
    let kv = resolved.max_total_tokens * d.layers * d.hidden * 2 * size_of::<f32>();
    let mut info = resolved.arguments();
    let more = json!({
        "launch_command": resolved.launch_command,
        "status": if app.ready.load(Ordering::Acquire) { "ready" } else { "starting" },
        "startup_time": startup,
        "max_total_num_tokens": resolved.max_total_tokens,
        "max_req_input_len": resolved.longest() - 1,
        "vocab_size": crate::VOCABULARY,
        "hidden_size": d.hidden,
        "num_attention_heads": d.heads,
        "num_hidden_layers": d.layers,
        "num_experts": d.experts,
        "num_experts_per_tok": d.top_k,
        "moe_intermediate_size": d.expert_width,
        "weight_bytes": d.weight_bytes(),
        "weight_bytes_per_token": d.weight_bytes_per_token(),
        "internal_states": [{
            "last_gen_throughput": throughput,
            "memory_usage": {
                "weight": gigabytes(d.weight_bytes()),
                "kvcache": gigabytes(kv),
                "token_capacity": resolved.max_total_tokens,
                "graph": 0.0,
            },
            "effective_max_running_requests_per_dp": resolved.max_running_requests,
        }],
        "version": crate::VERSION,
        "commit": crate::COMMIT,
        "dirty": crate::DIRTY,
    });
    info.extend(more.as_object().cloned().unwrap_or_default());
    Json(Value::Object(info))
}

/// `?timeout=SECONDS` waits that long for the server to be idle, as SGLang does.
async fn flush_cache(State(app): Shared, uri: Uri) -> (StatusCode, &'static str) {
    const REFUSED: &str = "Cache not flushed because there are pending requests.\n";
    if app.has(&Fault::FlushRefused) {
        return (StatusCode::BAD_REQUEST, REFUSED);
    }
    let timeout = uri.query().and_then(|query| query.split('&').find_map(|pair| pair.strip_prefix("timeout=")));
    let patience = timeout.and_then(|seconds| seconds.parse().ok()).unwrap_or(0.0);
    let begin = Instant::now();
    loop {
        let (answer, flushed) = oneshot::channel();
        // The scheduler only ends with the process.
        let _ = app.commands.send(Command::Flush(answer));
        if flushed.await == Ok(true) {
            return (StatusCode::OK, "Cache flushed.\nPlease check backend logs for more details.\n");
        }
        if begin.elapsed().as_secs_f64() >= patience {
            return (StatusCode::BAD_REQUEST, REFUSED);
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn metrics(State(app): Shared) -> impl IntoResponse {
    let text = locked(&app.metrics).render(&app.resolved.served_model_name);
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text)
}
