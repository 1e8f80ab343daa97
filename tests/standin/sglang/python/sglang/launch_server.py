"""`python -m sglang.launch_server`: parses the arguments, starts scheduler and detokenizer, serves HTTP."""
import sys

from sglang.srt.http_server import launch
from sglang.srt.server_args import prepare_server_args

if __name__ == "__main__":
    launch(prepare_server_args(sys.argv[1:]))
