"""The parent process: HTTP in front of a scheduler and a detokenizer, which are processes of their own."""
import itertools
import json
import logging
import os
import queue
import random
import secrets
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from sglang import __version__


class Engine:
    def __init__(self, args):
        self.args, self.waiting, self.numbers = vars(args), {}, itertools.count(1)
        self.counters = dict.fromkeys(["prompt_tokens", "generation_tokens", "cached_tokens", "num_requests"], 0)
        self.capacity = 100_000 + random.randint(0, 9)  # moves by a few tokens from launch to launch
        self.ready, self.lock = threading.Event(), threading.Lock()
        self.scheduler = self.child("scheduler", [json.dumps(self.args)], subprocess.PIPE, own_environment(self.args))
        self.detokenizer = self.child("detokenizer", [], self.scheduler.stdout, dict(os.environ))
        threading.Thread(target=self.listen, daemon=True).start()

    def child(self, name, words, stdin, env):
        argv = [sys.executable, "-u", "-m", f"sglang.srt.managers.{name}", *words]
        return subprocess.Popen(argv, stdin=stdin, stdout=subprocess.PIPE, text=True, env=env)

    def listen(self):
        for line in self.detokenizer.stdout:
            message = json.loads(line)
            if message["type"] == "ready":
                self.ready.set()
            elif message["id"] in self.waiting:
                self.waiting[message["id"]].put(message)
        logging.error("Scheduler hit an exception: a child process is gone")
        os._exit(1)

    def ask(self, **message):
        """Sends one message and yields the answers to it."""
        number, answers = next(self.numbers), queue.Queue()
        self.waiting[number] = answers
        with self.lock:
            self.scheduler.stdin.write(json.dumps({"id": number, **message}) + "\n")
            self.scheduler.stdin.flush()
        while True:
            answer = answers.get()
            yield answer
            if answer.get("done", True):
                del self.waiting[number]
                return

    def generate(self, body):
        tokens = int(body.get("sampling_params", {}).get("max_new_tokens", 16))
        text, count = "", 0
        for answer in self.ask(type="generate", prompt=body.get("text", ""), tokens=tokens):
            text, count = text + answer["text"], count + 1
            meta = {"completion_tokens": count, "prompt_tokens": answer["prompt_tokens"],
                    "cached_tokens": answer["cached_tokens"], "finish_reason": {"type": "length"} if answer["done"] else None}
            yield {"text": text, "meta_info": meta}
        with self.lock:
            grown = [meta["prompt_tokens"], count, meta["cached_tokens"], 1]
            self.counters = {name: value + more for (name, value), more in zip(self.counters.items(), grown)}

    def server_info(self):
        state = {"last_gen_throughput": 1.0, "memory_usage": {"weight": 1.0, "token_capacity": self.capacity},
                 "effective_max_running_requests_per_dp": self.args["max_running_requests"]}
        return {**self.args, "launch_command": " ".join(sys.argv), "status": "ready", "api_key": None,
                "max_total_num_tokens": self.capacity, "internal_states": [state], "version": __version__}

    def model_info(self):
        path = self.args["model_path"]
        return {"model_path": path, "tokenizer_path": path, "is_generation": True, "weight_version": "default"}


def own_environment(args):
    """The server sets variables for its scheduler. A file in the home may hold more: what a real site customisation does."""
    env = dict(os.environ)
    path = os.path.join(env.get("HOME", "/"), f"site-{args['schedule_policy']}.env")
    if os.path.exists(path):
        env.update(line.strip().split("=", 1) for line in open(path) if "=" in line)
    return env


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *words):
        logging.info('127.0.0.1 - "%s"', self.requestline)

    def answer(self, body, status=200, kind="application/json"):
        body = body.encode() if isinstance(body, str) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        engine, path = self.server.engine, self.path.split("?")[0]
        if path in ("/health", "/health_generate"):
            list(engine.generate({"text": "w0", "sampling_params": {"max_new_tokens": 1}}))
            self.answer("", kind="text/plain")
        elif path in ("/server_info", "/get_server_info"):
            self.answer(engine.server_info())
        elif path in ("/model_info", "/get_model_info"):
            self.answer(engine.model_info())
        elif path == "/v1/models":
            self.answer({"object": "list", "data": [{"id": engine.args["model_path"], "object": "model"}]})
        elif path == "/metrics" and engine.args["enable_metrics"]:
            lines = [f'sglang:{name}_total{{model_name="standin"}} {value}.0\n' for name, value in engine.counters.items()]
            self.answer("".join(lines), kind="text/plain")
        else:
            self.answer({"detail": "Not Found"}, 404)

    def do_POST(self):
        engine, path = self.server.engine, self.path.split("?")[0]
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if path == "/flush_cache":
            idle = next(engine.ask(type="flush"))["idle"]
            text = "Cache flushed.\nPlease check backend logs for more details.\n"
            self.answer(text if idle else "Flush cache failed: requests are running.\n", 200 if idle else 400, "text/plain")
        elif path == "/generate":
            body = json.loads(body)
            if body.get("stream"):
                self.stream(engine.generate(body))
            else:
                self.answer(list(engine.generate(body))[-1])
        else:
            self.answer({"detail": "Not Found"}, 404)

    def stream(self, answers):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        events = itertools.chain((json.dumps(answer) for answer in answers), ["[DONE]"])
        for data in (f"data: {event}\n\n".encode() for event in events):
            self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
            self.wfile.flush()
        self.wfile.write(b"0\r\n\r\n")


class Server(ThreadingHTTPServer):
    request_queue_size, daemon_threads = 256, True


def launch(args):
    logging.basicConfig(level=logging.INFO, format="[%(asctime)s] %(message)s", datefmt="%Y-%m-%d %H:%M:%S")
    logging.info("server_args=ServerArgs(%s)", ", ".join(f"{name}={value!r}" for name, value in vars(args).items()))
    # As the real one does: its children have them, its own environ as the kernel shows it has not.
    os.environ["NCCL_CUMEM_ENABLE"] = "0"
    os.environ["SGLANG_RUN_ID"] = f"sglang-run-{secrets.token_hex(4)}"
    engine = Engine(args)
    engine.ready.wait()
    server = Server((args.host, args.port), Handler)
    server.engine = engine
    logging.info("max_total_num_tokens=%d, chunked_prefill_size=%d", engine.capacity, args.chunked_prefill_size)
    logging.info("Uvicorn running on http://%s:%d (Press CTRL+C to quit)", args.host, args.port)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    list(engine.generate({"text": "The capital city of France is", "sampling_params": {"max_new_tokens": 8}}))
    logging.info("The server is fired up and ready to roll!")
    threading.Event().wait()
