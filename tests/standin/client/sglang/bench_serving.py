"""`python -m sglang.bench_serving`: the flags that labbook passes, and a row with the keys of version 0.5.23."""
import argparse
import http.client
import json
import random
import threading
import time
import urllib.parse


def arguments():
    parser = argparse.ArgumentParser()
    for name in ("backend", "base-url", "dataset-name", "model", "tokenizer", "output-file", "tag"):
        parser.add_argument(f"--{name}")
    for name in ("num-prompts", "random-input-len", "random-output-len", "max-concurrency", "seed", "warmup-requests"):
        parser.add_argument(f"--{name}", type=int)
    for name in ("random-range-ratio", "request-rate"):
        parser.add_argument(f"--{name}", type=float)
    for name in ("output-details", "disable-ignore-eos"):
        parser.add_argument(f"--{name}", action="store_true")
    return parser.parse_args()


def send(address, prompt, tokens, result):
    start = last = time.perf_counter()
    connection = http.client.HTTPConnection(address, timeout=600)
    body = {"text": prompt, "stream": True,
            "sampling_params": {"temperature": 0.0, "max_new_tokens": tokens, "ignore_eos": True}}
    connection.request("POST", "/generate", json.dumps(body), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    if answer.status != 200:
        result["error"] = f"{answer.status} {answer.reason}"
        return
    for line in answer:
        now = time.perf_counter()
        if not line.startswith(b"data: ") or line.startswith(b"data: [DONE]"):
            result["e2e"] = now - start
            continue
        data = json.loads(line[6:])
        if result["ttft"] == 0.0:
            result["ttft"] = now - start
        else:
            result["itl"].append(now - last)
        last, result["text"], result["output"] = now, data["text"], data["meta_info"]["completion_tokens"]


def percentile(values, share):
    """Linear between ranks, as numpy does by default."""
    values = sorted(values)
    place = (len(values) - 1) * share
    low = int(place)
    return values[low] + (values[min(low + 1, len(values) - 1)] - values[low]) * (place - low)


def summary(name, seconds):
    ms = [value * 1000 for value in seconds] or [0.0]
    mean = sum(ms) / len(ms)
    row = {f"mean_{name}_ms": mean, f"median_{name}_ms": percentile(ms, 0.5),
           f"std_{name}_ms": (sum((value - mean) ** 2 for value in ms) / len(ms)) ** 0.5}
    return {**row, **{f"p{share}_{name}_ms": percentile(ms, share / 100) for share in (90, 95, 99)}}


def run(args):
    random.seed(args.seed)
    address = urllib.parse.urlsplit(args.base_url).netloc
    prompts = [" ".join(f"w{random.randrange(2000)}" for _ in range(args.random_input_len)) for _ in range(args.num_prompts)]
    results = [{"ttft": 0.0, "itl": [], "text": "", "output": 0, "error": "", "e2e": 0.0} for _ in prompts]
    cap, start = threading.Semaphore(args.max_concurrency), time.perf_counter()

    def one(prompt, result):
        with cap:
            try:
                send(address, prompt, args.random_output_len, result)
            except OSError as error:
                result["error"] = repr(error)

    threads = [threading.Thread(target=one, args=pair) for pair in zip(prompts, results)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    connection = http.client.HTTPConnection(address, timeout=60)
    connection.request("GET", "/server_info")
    answer = connection.getresponse()
    info = json.loads(answer.read()) if answer.status == 200 else None
    return results, time.perf_counter() - start, info


def row_of(args, results, duration, info):
    good = [result for result in results if not result["error"]]
    inputs, outputs = args.random_input_len * len(good), sum(result["output"] for result in good)
    gaps = [gap for result in good for gap in result["itl"]]
    per_token = [(result["e2e"] - result["ttft"]) / (result["output"] - 1) for result in good if result["output"] > 1]
    row = {
        "tag": args.tag, "backend": args.backend, "dataset_name": args.dataset_name, "request_rate": args.request_rate,
        "max_concurrency": args.max_concurrency, "sharegpt_output_len": None, "random_input_len": args.random_input_len,
        "random_output_len": args.random_output_len, "random_range_ratio": args.random_range_ratio, "server_info": info,
        "duration": duration, "completed": len(good), "total_input_tokens": inputs, "total_input_text_tokens": inputs,
        "total_input_vision_tokens": 0, "total_output_tokens": outputs, "total_output_tokens_retokenized": outputs,
        "request_throughput": len(good) / duration, "input_throughput": inputs / duration,
        "output_throughput": outputs / duration, "total_throughput": (inputs + outputs) / duration,
        **summary("e2e_latency", [result["e2e"] for result in good]), **summary("ttft", [result["ttft"] for result in good]),
        **summary("tpot", per_token), **summary("itl", gaps),
        "concurrency": sum(result["e2e"] for result in good) / duration, "accept_length": None,
        "max_output_tokens_per_s": float(outputs), "max_concurrent_requests": len(results),
    }
    if args.output_details:
        row.update({"input_lens": [args.random_input_len] * len(results), "output_lens": [result["output"] for result in results],
                    "ttfts": [result["ttft"] for result in results], "itls": [result["itl"] for result in results],
                    "generated_texts": [result["text"] for result in results], "errors": [result["error"] for result in results]})
    return row


if __name__ == "__main__":
    args = arguments()
    print(f"benchmark_args={args}")
    row = row_of(args, *run(args))
    with open(args.output_file, "a") as file:
        file.write(json.dumps(row) + "\n")  # a bare Infinity, as the real client writes
    print(f"{'Output token throughput (tok/s):':<40} {row['output_throughput']:<10.2f}")
