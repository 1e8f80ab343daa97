#!/bin/sh
# What SSH costs: the same experiment of trials that do almost nothing, on this machine and over a loopback `sshd` that this script
# starts (no root needed), in one run, taking turns; each with few and with three times as many trials, so that what a trial costs
# can be told from what a run costs. Wanted: at most 100 ms a trial more than locally.
#     benches/ssh.sh [path of labbook] [trials of each session] [rounds]
set -eu
labbook=$(realpath "${1:-target/release/labbook}") trials=${2:-10} rounds=${3:-3}
lab=$(mktemp -d)
sshd=''
ended() {
    for socket in "$lab"/labbook/*.sock; do [ ! -S "$socket" ] || ssh -S "$socket" -O exit there 2>/dev/null || :; done
    [ -z "$sshd" ] || kill "$sshd" 2>/dev/null
    rm -rf "$lab"
}
trap ended EXIT
trap 'exit 143' INT TERM
cd "$lab"
export LABBOOK_LEASE_DIR="$lab" XDG_RUNTIME_DIR="$lab"
[ "$(id -u)" != 0 ] || mkdir -p /run/sshd
ssh-keygen -q -t ed25519 -N '' -f hostkey && ssh-keygen -q -t ed25519 -N '' -f id
port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
cat >sshd_config <<CONFIG
ListenAddress 127.0.0.1:$port
HostKey $lab/hostkey
PidFile none
UsePAM no
StrictModes no
AuthorizedKeysFile $lab/id.pub
SetEnv LABBOOK_LEASE_DIR=$lab
LogLevel ERROR
CONFIG
/usr/sbin/sshd -D -e -f sshd_config 2>sshd.log &
sshd=$!
echo "[127.0.0.1]:$port $(cut -d' ' -f1,2 hostkey.pub)" >known
cat >config <<CONFIG
Host *
HostName 127.0.0.1
Port $port
IdentityFile $lab/id
IdentitiesOnly yes
UserKnownHostsFile $lab/known
CONFIG
until ssh -F config -o BatchMode=yes there true 2>/dev/null; do sleep 0.1; done
"$labbook" init . 2>/dev/null
cat >labbook.yaml <<CONFIG
hosts:
  local: { via: local }
  there: { via: ssh, address: there, ssh_config: config, folder: $lab/over-ssh }
CONFIG
now_ms() { date +%s%3N; }
experiment() { # NAME HOST SEED TRIALS: one block of two sessions of no-op trials; its wall time in ms, and ms a trial inside its sessions
    cat >"experiments/$1.yaml" <<SPEC
title: What a trial costs on $2
question: How much time does a host add to a trial?
host: $2
server: { engine: pocketmoe, model: pocket-moe-tiny, args: { random-seed: $3 } }
workload: { input_tokens: 1, output_tokens: 1, prompts_per_user: 1, concurrency: [1] }
factor: server.args.moe-runner-backend
arms: { one: loop, other: loop }
control: one
prime: never
repeats: 1
passes: $4
claims: { same: { metric: output_throughput, treatment: other, at: 1, expect: unchanged } }
SPEC
    from=$(now_ms)
    "$labbook" run "experiments/$1.yaml" >"$1.out" 2>&1 || { cat "$1.out" >&2; exit 1; }
    to=$(now_ms)
    for status in "results/$1"/*/b0*/status; do
        awk -v n="$4" '$3 == "facts" { from = $2 } $3 ~ /^trial:/ { to = $2 } END { print (to - from) / n * 1000 }' "$status"
    done | awk -v wall="$((to - from))" '{ sum += $1 } END { print wall, sum / NR }'
}
experiment local-0 'local' 0 1 >/dev/null # the program is on the host, and the master is there
experiment ssh-0 there 1000 1 >/dev/null
more=$((3 * trials))
round=1
while [ "$round" -le "$rounds" ]; do
    for host in 'local' there; do
        for each in "$trials" "$more"; do
            echo "$host-$each $(experiment "$host-$each-$round" "$host" "$round" "$each")" >>timings
        done
    done
    round=$((round + 1))
done
sort -k1,1 -k2,2n timings | awk -v few="$trials" -v more="$more" -v rounds="$rounds" '
    { n[$1]++; if (n[$1] == int((rounds + 1) / 2)) { wall[$1] = $2; inside[$1] = $3 } }
    function slope(host) { return (wall[host "-" more] - wall[host "-" few]) / (2 * (more - few)) }
    END {
        printf "medians of %d rounds of 2 sessions with %d and %d trials\n", rounds, few, more
        printf "a trial more in a run: local %.1f ms, over ssh %.1f ms: %+.1f ms\n", slope("local"), slope("there"), slope("there") - slope("local")
        printf "a trial inside a session: local %.1f ms, over ssh %.1f ms\n", inside["local-" more], inside["there-" more]
        printf "a run of %d trials: local %.1f s, over ssh %.1f s\n", 2 * few, wall["local-" few] / 1000, wall["there-" few] / 1000 }'
