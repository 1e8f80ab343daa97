"""The arguments, and what they resolve to. As in the real parser, an abbreviated flag is accepted."""
import argparse
import random


class ServerArgs:
    @staticmethod
    def add_cli_args(parser):
        add = parser.add_argument
        add("--model-path", "--model", required=True)
        add("--host", default="127.0.0.1")
        add("--port", type=int, default=30000)
        add("--device", default="cuda")
        add("--tensor-parallel-size", "--tp-size", dest="tp_size", type=int, default=1)
        add("--random-seed", type=int)
        add("--moe-runner-backend", default="auto", choices=["auto", "triton", "triton_kernel", "flashinfer_cutedsl"])
        add("--attention-backend")
        add("--schedule-policy", default="fcfs")
        add("--chunked-prefill-size", type=int)
        add("--max-running-requests", type=int)
        add("--mem-fraction-static", type=float)
        add("--decode-log-interval", type=int, default=40)
        add("--disable-radix-cache", action="store_true")
        add("--enable-metrics", action="store_true")


def prepare_server_args(argv):
    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    args = parser.parse_args(argv)
    if args.random_seed is None:
        args.random_seed = random.randint(0, 1 << 30)
    if args.moe_runner_backend == "auto":
        args.moe_runner_backend = "triton"
    args.attention_backend = args.attention_backend or "torch_native"
    args.chunked_prefill_size = args.chunked_prefill_size or 8192
    args.max_running_requests = args.max_running_requests or 256
    args.mem_fraction_static = args.mem_fraction_static or 0.88
    # Follows from another setting although nobody asked for it, as some real ones do.
    args.disable_overlap_schedule = args.moe_runner_backend == "flashinfer_cutedsl"
    args.disable_cuda_graph = args.device == "cpu"
    return args
