"""The scheduler: continuous batching with steps that take a known time. Requests come in as lines of JSON, tokens go out."""
import json
import logging
import queue
import sys
import threading
import time

from sglang.srt.layers.moe import topk

BASE_S = {"triton": 0.002, "triton_kernel": 0.003, "flashinfer_cutedsl": 0.0015}
PER_EXPERT_S = 0.00002


class Scheduler:
    def __init__(self, args):
        self.args, self.incoming = args, queue.Queue()
        self.running, self.cached, self.steps, self.tokens, self.since = [], set(), 0, 0, time.monotonic()

    def admit(self, block):
        """Takes what came in; True when something was prefilled."""
        admitted = False
        while True:
            try:
                message = self.incoming.get(block and not self.running and not admitted)
            except queue.Empty:
                return admitted
            if message is None:
                sys.exit(0)
            if message["type"] == "flush":
                idle = not self.running
                if idle:
                    self.cached.clear()
                send({"type": "flushed", "id": message["id"], "idle": idle})
                continue
            words = message["prompt"].split()
            known = 0 if self.args["disable_radix_cache"] else len(words) if message["prompt"] in self.cached else 0
            self.cached.add(message["prompt"])
            logging.info(
                "Prefill batch, #new-seq: 1, #new-token: %d, #cached-token: %d, token usage: 0.00, #running-req: %d, "
                "#queue-req: 0, cuda graph: False, input throughput (token/s): 0.00",
                len(words) - known, known, len(self.running))
            time.sleep((len(words) - known) * 0.00001)
            self.running.append({"id": message["id"], "left": message["tokens"], "prompt": len(words), "cached": known})
            admitted = True

    def step(self):
        batch = len(self.running)
        time.sleep(BASE_S[self.args["moe_runner_backend"]] + PER_EXPERT_S * topk.experts_loaded(batch))
        for request in self.running:
            request["left"] -= 1
            send({"type": "token", "id": request["id"], "tokens": [self.steps % 1000], "done": request["left"] <= 0,
                  "prompt_tokens": request["prompt"], "cached_tokens": request["cached"]})
        self.steps, self.tokens = self.steps + 1, self.tokens + batch
        if self.steps % self.args["decode_log_interval"] == 0:
            now = time.monotonic()
            logging.info(
                "Decode batch, #running-req: %d, #token: %d, token usage: 0.00, cuda graph: %s, "
                "gen throughput (token/s): %.2f, #queue-req: 0",
                batch, self.tokens, not self.args["disable_cuda_graph"], self.tokens / (now - self.since))
            self.tokens, self.since = 0, now
        self.running = [request for request in self.running if request["left"] > 0]

    def run(self):
        threading.Thread(target=self.listen, daemon=True).start()
        for batch in (4, 2, 1):
            topk.capture(batch)
        send({"type": "ready"})
        while True:
            self.admit(block=True)
            if self.running:
                self.step()

    def listen(self):
        for line in sys.stdin:
            self.incoming.put(json.loads(line))
        self.incoming.put(None)


def send(message):
    print(json.dumps(message), flush=True)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="[%(asctime)s TP0] %(message)s", datefmt="%Y-%m-%d %H:%M:%S")
    Scheduler(json.loads(sys.argv[1])).run()
