#!/bin/sh
# What labbook costs per trial: the same steps on the same engine, once in a session of labbook and once in a plain shell
# loop, in one run. Wanted: at most 150 ms a trial.
#     benches/overhead.sh [path of labbook] [trials]
set -eu
labbook=$(realpath "${1:-target/release/labbook}") trials=${2:-20}
lab=$(mktemp -d)
server=''
trap '[ -z "$server" ] || kill "$server" 2>/dev/null; rm -rf "$lab"' EXIT
cd "$lab"
export LABBOOK_LEASE_DIR="$lab"
uptime_s() { cut -d' ' -f1 /proc/uptime; }
"$labbook" init . 2>/dev/null
cat >experiments/overhead.yaml <<SPEC
title: What a trial costs
question: How much time does labbook add to a trial?
server: { engine: pocketmoe, model: pocket-moe-tiny, args: { random-seed: 1 } }
workload: { input_tokens: 4, output_tokens: 4, prompts_per_user: 5, concurrency: [1] }
factor: server.args.moe-runner-backend
arms: { one: loop, other: loop }
control: one
prime: never
repeats: 3
passes: $trials
claims: { same: { metric: output_throughput, treatment: other, at: 1, expect: unchanged } }
SPEC
"$labbook" run experiments/overhead.yaml >/dev/null 2>&1 || true
with=$(for status in results/overhead/*/b0*/status; do
    awk -v n="$trials" '$3 == "facts" { from = $2 } $3 ~ /^trial:/ { to = $2 } END { printf "%.1f\n", (to - from) / n * 1000 }' "$status"
done | sort -n | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }')

port=19321
"$labbook" pocket serve --host 127.0.0.1 --port $port --model-path pocket-moe-tiny --random-seed 1 --moe-runner-backend loop >server.log 2>&1 &
server=$!
until curl -fs "http://127.0.0.1:$port/health" >/dev/null 2>&1; do sleep 0.05; done
client() { # PROMPTS FILE
    "$labbook" pocket load --backend sglang --base-url "http://127.0.0.1:$port" --dataset-name random-ids --num-prompts "$1" \
        --random-input-len 4 --random-output-len 4 --random-range-ratio 1.0 --request-rate inf --max-concurrency 1 --seed 1 \
        --output-file "$2" --output-details >/dev/null
}
from=$(uptime_s)
i=0
while [ $i -lt "$trials" ]; do
    client 1 warmup.jsonl
    curl -fsX POST "http://127.0.0.1:$port/flush_cache" >/dev/null
    curl -fs "http://127.0.0.1:$port/metrics" >before
    client 5 row.jsonl
    curl -fs "http://127.0.0.1:$port/metrics" >after
    i=$((i + 1))
done
to=$(uptime_s)
echo "$from $to $trials $with" | awk '{
    plain = ($2 - $1) / $3 * 1000
    printf "per trial, %d trials: labbook %.1f ms (median of sessions), plain shell %.1f ms: +%.1f ms, ratio %.2f\n", $3, $4, plain, $4 - plain, $4 / plain }'
