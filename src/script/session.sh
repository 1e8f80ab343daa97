#!/bin/sh
# One session: one launch of a server and the trials on it. Every input is a file; no shell text is made from input.
#   sh session.sh run FOLDER      FOLDER = queue/NNNN-NAME; the working directory is the host folder
#   sh session.sh sweep FOLDER    end what a cut-off session left, prove it, complete its record
#   sh session.sh prove FOLDER    only end and prove again (a host marked dirty)
#   sh session.sh kill NONCE      end every process of a dead runner
# Exit: 0 done, 70 failed, 75 the host is dirty. Without arguments it only defines functions. FOLDER: see src/script.rs.
# shellcheck disable=SC2012,SC2015,SC2016 # of `ls` only where links lead; A && B || C is meant as it reads; awk has its own $
NL='
'
export LC_ALL=C && unset CDPATH GIT_DIR GIT_WORK_TREE GIT_INDEX_FILE
value() { # FILE: its exact bytes in VALUE ($(cat) would lose newlines at the end)
    VALUE='' LINE='' && [ -f "$1" ] || return
    while IFS= read -r LINE; do VALUE=$VALUE$LINE$NL; done <"$1"
    VALUE=$VALUE$LINE
}
text() { value "$1" && VALUE=${VALUE%%"$NL"*}; }                                       # FILE: its first line in VALUE
number() { case $1 in '' | 0?* | *[!0-9]*) NUMBER=$2 ;; *) NUMBER=$1 ;; esac; }         # TEXT DEFAULT: a plain decimal in NUMBER
now() { read -r UP _ </proc/uptime && CLOCK=${UP%.*}; }
stamp() { now && printf '%s %s\n' "$(date -u +%Y-%m-%dT%H:%M:%SZ)" "$UP"; }
nap() { sleep "$1" 2>/dev/null || sleep 1; }
due() { now && DUE=$((CLOCK + $1)); } # SECONDS
over() { now && [ "$CLOCK" -ge "$DUE" ]; }
left() { over && echo 1 || echo $((DUE - CLOCK)); }
random() { od -An -N"$1" -tx1 /dev/urandom | tr -d ' \n'; }
born() { # PID: its start (ticks after boot) in START; fails where there is none and for a zombie
    START='' && value "/proc/$1/stat" 2>/dev/null || return
    # shellcheck disable=SC2086 # the fields after the name are one letter and numbers
    set -- ${VALUE##*) }
    case ${1:-X} in [ZXx]) return 1 ;; *) shift 19 && START=$1 ;; esac
}
BOOT=unknown && read -r BOOT </proc/sys/kernel/random/boot_id
# Whose processes, whose port.
members() { # the living of the server's session and their descendants, as PID START BOOT (a title may overwrite an environ)
    [ -z "$SERVER" ] || cat /proc/[0-9]*/stat 2>/dev/null | awk -v server="$SERVER" -v since="$SINCE" -v boot="$BOOT" '
        { pid = $1 } sub(/^.*\) /, "") && $1 !~ /[ZXx]/ { parent[pid] = $2; sid[pid] = $4; start[pid] = $20 }
        END { for (pid in sid) for (p = pid; p in sid; p = parent[p])
            if (sid[p] == server && start[p] + 0 >= since + 0) { print pid, start[pid], boot; break } }'
}
ours() { # pids of the living that carry our nonce or were seen among the members
    { grep -lsF "LABBOOK_NONCE=$NONCE" /proc/[0-9]*/environ | cut -d/ -f3
      [ ! -s "$PIDS" ] || sort -u "$PIDS" | while read -r pid start; do born "$pid" && [ "$START $BOOT" = "$start" ] && echo "$pid"; done; } | sort -nu
}
end_one() { # SIGNAL PID: only where it still is the process that proves to be ours
    born "$2" && start=$START || return 0
    grep -qsF "LABBOOK_NONCE=$NONCE" "/proc/$2/environ" || grep -qsxF "$2 $start $BOOT" "$PIDS" || return 0
    born "$2" && [ "$START" = "$start" ] && kill "-$1" "$2" 2>/dev/null
}
end_group() { # PID: TERM, two seconds, KILL
    kill -TERM "-$1" 2>/dev/null; for _ in 1 2 3 4 5 6 7 8 9 10; do born "$1" && nap 0.2; done; kill -KILL "-$1" 2>/dev/null
}
sockets() { awk -v port="$(printf ':%04X' "$PORT")" '$4 == "0A" && substr($2, length($2) - 4) == port' /proc/net/tcp*; } 2>/dev/null # raw lines
holders() { # /proc/PID/fd…: who holds them, as PID INODE
    ls -l /dev/null "$@" 2>/dev/null | awk -v inodes=" $(sockets | awk '{ printf "%s ", $10 }')" '
        /^\/proc\/[0-9]+\/fd:$/ { split($0, part, "/") }
        match($0, / -> socket:\[[0-9]+\]$/) { n = substr($0, RSTART + 12, RLENGTH - 13); if (index(inodes, " " n " ")) print part[3], n }'
}
nvidia() { command -v nvidia-smi >/dev/null && timeout 60 nvidia-smi ${GPUS:+-i "$GPUS"} --format=csv,noheader,nounits "$@"; }
gpu() { nvidia --query-gpu=memory.used | sort -n | awk '/^[0-9]+$/ { m = $1 } END { print m }'; } # MiB in use on the fullest GPU, or nothing
# The record.
step() { # STEP CODE: a line of status, one for each step
    grep -qs " $1 [0-9]*\$" "$OUT/status" && return
    printf '%s %s %s\n' "$(stamp)" "$1" "$2" >>"$OUT/status" || { FAILED=1; echo "cannot write $OUT/status" >&2; }
}
fail() { # CODE TEXT: this step failed; the first failure is the one that is told
    [ -s "$OUT/fail" ] || printf '%s\n' "$STEP $1 $2" >"$OUT/fail"
    FAILED=1 && step "$STEP" "$1" && false
}
stopped() { [ -n "$STOPPED" ] || [ -e stop ]; }
running() { born "$SERVER" && [ "$START" = "$SINCE" ]; }
reap() { [ -n "$EXIT" ] || { wait "$SERVER" 2>/dev/null || EXIT=$?; EXIT=${EXIT:-0}; }; } # a shell may tell the code only once
sound() { # nothing forbids to go on with this step
    if [ -n "$FAILED" ]; then false; return; elif stopped; then fail 143 "stopped on request"; return; fi
    if [ -z "$SERVER" ] || running; then return; fi
    reap && fail $((EXIT ? EXIT : 1)) "the server exited by itself with code $EXIT"
}
doing() { # STEP FUNCTION…
    STEP=$1 && shift
    sound && "$@" && sound && step "$STEP" 0 && return
    [ -z "$FAILED" ] && fail 70 "a file could not be written, see session.log" || return 1
}
keep() { to=$1 && shift && "$@" >"$to" 2>/dev/null; [ -s "$to" ] || rm -f "$to"; } # FILE COMMAND…: no file where nothing is observed
listed() { find . -type f ! -path ./manifest ! -path "*$NL*" ! -path '*\\*' -exec "$@" {} +; } # a line cannot hold other names
manifest() ( # SHA256  SIZE  PATH of every file in out/
    cd "$OUT" && rm -f manifest && listed sha256sum >../sums && listed stat -c '%s %n' >../sizes &&
        awk 'FNR == NR { s = $1; sub(/^[^ ]+ .\.\//, ""); sum[$0] = s; next }
            { n = $1; sub(/^[0-9]+ \.\//, ""); print sum[$0] "  " n "  " $0 }' ../sums ../sizes >../manifest.part &&
        sort -k3 -o ../manifest.part ../manifest.part && mv ../manifest.part manifest && rm ../sums ../sizes
)
# Launching, waiting, asking.
launch() { # FOLDER CWD LOG: FOLDER/argv under FOLDER/env and nothing else, in a process group of its own; its pid is $!
    from=$1 cwd=$2 log=$3
    set -- "HOME=${HOME:-/}" "USER=${USER:-$(id -un)}" "PATH=$PATH" "LANG=${LANG:-C.UTF-8}" "TMPDIR=${TMPDIR:-/tmp}" SPT_NOENV=1
    [ -z "${SLURM_JOB_ID:-}" ] || # the scheduler's devices
        set -- "$@" ${CUDA_VISIBLE_DEVICES:+"CUDA_VISIBLE_DEVICES=$CUDA_VISIBLE_DEVICES"} ${ROCR_VISIBLE_DEVICES:+"ROCR_VISIBLE_DEVICES=$ROCR_VISIBLE_DEVICES"}
    for file in env/* "$from"/env/*; do value "$file" && set -- "$@" "${file##*/}=$VALUE"; done
    set -- "$@" "LABBOOK_NONCE=$NONCE" && [ -f "$from/argv/0001" ] || set -- "$@" false # nothing to run must not succeed
    for file in "$from"/argv/*; do value "$file"; [ "${file##*/}" != 0001 ] || home "$VALUE"; set -- "$@" "$VALUE"; done
    (umask "$UMASK" && cd "$cwd" && exec setsid env -i "$@") >"$log" 2>&1 </dev/null &
}
await() { # PID SECONDS MARKER: its exit code in CODE, 124 past the deadline. It blocks; one watch looks twice a second
    WOKEN=''
    (
        due "$2" && born "$$" && session=$START
        while nap 0.5 && born "$1"; do
            born "$$" && [ "$START" = "$session" ] || exit 0
            if over; then : >"$3"; elif ! stopped && { [ -z "$SERVER" ] || running; }; then continue; fi
            end_group "$1" && nap 1 && born "$1" && kill -ALRM "$$" # not even KILL ends it
            exit 0
        done
    ) & watch=$!
    until wait "$1"; CODE=$?; now; ! born "$1" || [ -n "$WOKEN" ]; do # a signal to us ends a wait
        [ -z "$STOPPED" ] || end_group "$1"
    done
    kill "$watch" 2>/dev/null; [ ! -e "$3" ] || CODE=124
}
http() { # METHOD PATH OUT SECONDS [BODY]: the body to OUT; prints STATUS SECONDS (000: no answer)
    method=$1 url=http://127.0.0.1:$PORT$2 to=$3 limit=$4 body=${5:-/dev/null}
    if command -v curl >/dev/null; then
        set -- -gsS --noproxy '*' -m "$limit" -o "$to" -w '%{http_code} %{time_total}\n' -H 'Content-Type: application/json'
        [ "$method" = GET ] || set -- "$@" --data-binary "@$body"
        curl -q "$@" "$url" || :
    else timeout "$limit" "$PYTHON" -c 'import sys, time, urllib.error, urllib.request as r
method, url, to, body = sys.argv[1:]
q = r.Request(url, open(body, "rb").read() if method == "POST" else None, {"Content-Type": "application/json"}, method=method); start = time.monotonic()
try: a = r.build_opener(r.ProxyHandler({})).open(q)
except urllib.error.HTTPError as e: a = e
except OSError as e: sys.exit(str(e))
open(to, "wb").write(a.read())
print(a.code, round(time.monotonic() - start, 6))' "$method" "$url" "$to" "$body" || echo 000 0
    fi
}
gets() { # INTO PREFIX: a GET for each line of info whose name begins so
    mkdir -p "$1" && cat "$IN/info" /dev/null 2>/dev/null | while read -r name path; do
        case $name in "$2"*) http GET "$path" "$1/$name" 60 | cut -d' ' -f1 >"$1/$name.code" ;; esac
    done
}
# The steps.
idle() {
    case $PORT in 0 | ??????*) fail 64 "no port"; return ;; esac
    [ -z "$(sockets)" ] || pid=$(holders /proc/[0-9]*/fd | sed -n '1s/ .*//p')
    [ -z "$(sockets)" ] || { fail 98 "port $PORT is held by process ${pid:-unknown} $(tr -cd '[:print:]' <"/proc/${pid:-0}/comm")"; return; } 2>/dev/null
    number "$(df -Pk "$OUT" | awk '{ for (i = 2; i < NF; i++) if ($i ~ /^[0-9]+%$/) n = $(i - 1) } END { print n }')" 0
    [ "$NUMBER" -ge "$DISK" ] || { fail 28 "$NUMBER KiB of disk are free, $DISK KiB wanted"; return; }
    number "$(gpu)" '' && [ -n "$NUMBER" ] || return 0
    mkdir -p "$OUT/gpu" && echo "$NUMBER" >"$OUT/gpu/idle-mib"
    [ "$NUMBER" -le 500 ] || fail 16 "$NUMBER MiB in use on a GPU by: $(nvidia --query-compute-apps=pid,used_memory | tr '\n' ';')"
}
tree() { # REPO COMMIT PATCH…: a clean tree of its own in $CWD, or the proof that it still is what was made
    if [ ! -d "$CWD" ]; then
        rm -rf "$CWD.part" && git clone -q --shared --no-checkout -- "$1" "$CWD.part" && git -C "$CWD.part" checkout -q --detach "$2" || return
        for patch; do case $patch in */patches/*.patch) [ ! -f "$patch" ] || git -C "$CWD.part" apply --index "$HERE/$patch" || return ;; esac done
        [ ! -f "$CWD.part/.gitmodules" ] || timeout "$PREFLIGHT" git -C "$CWD.part" submodule -q update --init --recursive || return
        git -C "$CWD.part" diff HEAD --binary | sha256sum >"$CWD.part/.git/labbook-diff" && mv "$CWD.part" "$CWD" || return
    fi
    [ "$(git -C "$CWD" rev-parse HEAD)" = "$2" ] || { echo "$CWD is not at $2"; return 65; }
    { git -C "$CWD" diff HEAD --binary; git -C "$CWD" ls-files -o --exclude-standard; } | sha256sum | cmp -s - "$CWD/.git/labbook-diff" || { echo "$CWD was changed: $(git -C "$CWD" status --porcelain | tail -n 1)"; return 65; }
}
home() { case $1 in '~'/*) VALUE=$HOME/${1#'~/'} ;; *) VALUE=$1 ;; esac; }
checkout() {
    if CWD=$HERE && text "$IN/source/commit"; then
        mkdir -p "$OUT/source" source && commit=$VALUE && text "$IN/source/repo" && home "$VALUE"
        CWD=$HERE/source/$commit-$(cat /dev/null "$IN"/source/patches/*.patch 2>/dev/null | sha256sum | cut -c1-12)
        tree "$VALUE" "$commit" "$IN"/source/patches/*.patch >"$OUT/source/log" 2>&1 ||
            { fail $? "no clean tree of $commit: $(tail -n 1 "$OUT/source/log" | tr -cd '[:print:]')"; return; }
    fi
    ! text "$IN/cwd" || { home "$VALUE" && CWD=$VALUE; }
    [ -d "$CWD" ] || { fail 66 "no folder $CWD"; return; }
    git -C "$CWD" rev-parse HEAD >/dev/null 2>&1 || return 0
    mkdir -p "$OUT/source" && git -C "$CWD" rev-parse HEAD >"$OUT/source/head" && git -C "$CWD" diff HEAD --binary >"$OUT/source/diff" &&
        git -C "$CWD" status --porcelain=v1 -uall >"$OUT/source/status" && git -C "$CWD" submodule status --recursive >"$OUT/source/submodules"
}
preflight() {
    for folder in "$IN"/preflight/* "$IN"/package-path; do
        [ -d "$folder" ] && to=$OUT/preflight/${folder##*/} && mkdir -p "$to" "$OUT/source" || continue
        launch "$folder" "$CWD" "$to/log" && await $! "$PREFLIGHT" "$to/timeout" && echo "$CODE" >"$to/code" && sound || return
        [ "$CODE" = 0 ] || { fail "$CODE" "${folder#"$IN"/} ended with code $CODE: $(tail -n 1 "$to/log" | tr -cd '[:print:]' | cut -c1-300)"; return; }
    done
    [ ! -d "$IN/package-path" ] || mv "$OUT/preflight/package-path/log" "$OUT/source/package-path"
}
start() {
    launch "$IN" "$CWD" "$OUT/server.log" && SERVER=$! && born $! || :
    SINCE=${START:-0} && echo "$SERVER $SINCE" >"$OUT/server.pid" && echo "$SERVER $SINCE $BOOT" >>"$PIDS"
}
answers() { # else what is missing in MISSING
    MISSING="socket on port $PORT" && [ -n "$(sockets)" ] || return
    ! text "$IN/ready-line" || { MISSING="ready line" && grep -qsF -e "$VALUE" "$OUT/server.log"; } || return
    ! text "$IN/health" || { MISSING="status 200 from $VALUE" && http GET "$VALUE" "$OUT/http/health" 25 | grep -q '^200 '; }
}
ready() {
    mkdir -p "$OUT/http" && due "$READY" && early=$((CLOCK + 10)) && seen=''
    until answers; do
        sound && all=$(members) || return
        [ "$all" = "$seen" ] || { seen=$all && echo "$all" >>"$PIDS"; } # a start that dies half-way has children too
        if over; then fail 124 "not ready within $READY s: still no $MISSING"; return; fi
        if [ "$CLOCK" -lt "$early" ]; then nap 0.1; else nap 0.5; fi
    done
    members >>"$PIDS"; text "$IN/generate-path" || return 0
    answer=$(http POST "$VALUE" "$OUT/http/generate" "$(left)" "$IN/generate")
    echo "${answer% *}" >"$OUT/http/generate.code" && echo "${answer#* }" >"$OUT/http/generate-s" && sound || return
    [ "${answer% *}" = 200 ] || fail 1 "the first generation had status ${answer% *}"
}
identity() { # every listening socket of the port must be held by a process of ours
    sockets >"$OUT/listen"
    # shellcheck disable=SC2046 # pids
    who=$({ echo own && holders $(ours | sed 's|.*|/proc/&/fd|') && echo all && holders /proc/[0-9]*/fd; } | awk '
        NF == 1 { part = $1; next } part == "own" { mine[$2] = 1; n++; next } !($2 in mine) { other = $1 }
        END { print other ? "other " other : n ? "own" : "unknown" }')
    echo "$who" >"$OUT/identity" && [ "$who" = own ] || fail 1 "port $PORT is served by: $who"
}
observe() { # '' or -after: what can be read of the machine, the server and its processes
    mkdir -p "$OUT/host$1" "$OUT/http$1" && members >>"$PIDS"
    keep "$OUT/host$1/boot-id" echo "$BOOT"; keep "$OUT/host$1/loadavg" cat /proc/loadavg
    gets "$OUT/http$1" ''
    for pid in $(ours); do
        p=$OUT/proc$1/$pid && mkdir -p "$p"
        for name in cmdline environ stat status limits comm; do keep "$p/$name" cat "/proc/$pid/$name"; done
        for name in exe cwd; do keep "$p/$name" readlink "/proc/$pid/$name"; done
        [ -n "$1" ] || keep "$p/exe-sha256" sha256sum "/proc/$pid/exe"
        [ -n "$1" ] || sed -n 's|^[^/]* \(/.*\.so.*\)$|\1|p' "/proc/$pid/maps" 2>/dev/null | sort -u >"$p/maps-so"
    done
    [ -d "$OUT/gpu" ] && mkdir -p "$OUT/gpu$1" || return 0
    keep "$OUT/gpu$1/smi.csv" timeout 60 nvidia-smi ${GPUS:+-i "$GPUS"} --format=csv --query-gpu=index,uuid,name,driver_version,vbios_version,pci.bus_id,persistence_mode,mig.mode.current,ecc.mode.current,memory.total,memory.used,pstate,power.limit,power.draw,clocks.current.sm,clocks.current.memory,temperature.gpu
    keep "$OUT/gpu$1/apps.csv" timeout 60 nvidia-smi --format=csv --query-compute-apps=pid,gpu_uuid,process_name,used_gpu_memory
    keep "$OUT/gpu$1/smi-q.xml" timeout 60 nvidia-smi -q -x; keep "$OUT/gpu$1/topo" timeout 60 nvidia-smi topo -m
}
facts() {
    observe '' && h=$OUT/host
    cat runner.sh session.sh | sha256sum | cut -d' ' -f1 >"$OUT/programs-sha256"
    [ ! -r /etc/machine-id ] || sha256sum </etc/machine-id | cut -d' ' -f1 >"$h/machine-id-sha256"
    keep "$h/uname" uname -srm; keep "$h/cores" nproc --all; keep "$h/meminfo" cat /proc/meminfo; keep "$h/nofile" ulimit -n
    keep "$h/cpuinfo-model" awk -F': ' '/^(model name|Model|CPU part)/ { print $2; exit }' /proc/cpuinfo
    keep "$h/governor" cat /sys/devices/system/cpu/cpufreq/policy*/scaling_governor
    keep "$h/numa" grep -s . /proc/sys/kernel/numa_balancing /sys/devices/system/node/node*/cpulist
    keep "$h/affinity" awk '/^Cpus_allowed_list:/ { print $2 }' /proc/self/status
    keep "$h/slurm" sh -c 'env | grep -E "^SLURM_(JOB_ID|JOB_NODELIST|JOB_PARTITION|JOB_NUM_NODES|RESTART_COUNT|CPUS_ON_NODE|GPUS_ON_NODE|JOB_GPUS)="'
}
client() { # FOLDER INTO: one run of a client to its end
    mkdir -p "$2" && stamp >"$2/started" || return
    launch "$1" "$2" "$2/client.log" && await $! "$TRIAL" "$2/timeout" || : && ended=$UP
    echo "$(date -u +%Y-%m-%dT%H:%M:%SZ) $ended" >"$2/ended" && echo "$CODE" >"$2/code" && sound || return
    [ "$CODE" = 0 ] || fail "$CODE" "the client of ${1#"$IN"/trials/} ended with code $CODE"
}
trial() { # FOLDER: warm-up wave, flush, counters, the measured client, counters; nothing else of ours runs beside the client
    at=$OUT/trials/${1##*/} && mkdir -p "$at" || return
    [ ! -d "$1/warmup" ] || client "$1/warmup" "$at/warmup" || return
    [ ! -e "$1/flush" ] || ! text "$IN/flush-path" || for _ in 1 2 3 4 5 6 7 8 9 10; do # refused while requests still run
        http POST "$VALUE" "$at/flush.body" 60 | cut -d' ' -f1 >"$at/flush.code"
        grep -qx 200 "$at/flush.code" && break || nap 0.5
    done
    gets "$at/before" metrics && members >>"$PIDS" && stat -c %s "$OUT/server.log" >"$at/log-from" &&
        client "$1" "$at" && stat -c %s "$OUT/server.log" >"$at/log-to" && gets "$at/after" metrics
}
# The end: TERM to the group, KILL to the group, KILL to all that is ours; then the proof.
halt() {
    HOW=itself && members >>"$PIDS"
    if [ -n "$(members)" ]; then
        ! running || HOW=term
        kill -TERM "-$SERVER" && due "$STOP" && while [ -n "$(members)" ] && ! over; do nap 0.1; done
        ! running || HOW='kill'
        members >>"$PIDS" && [ -z "$(members)" ] || kill -KILL "-$SERVER"
    fi
    due 10 && while pids=$(ours) && [ -n "$pids" ] && ! over; do for pid in $pids; do end_one KILL "$pid"; done; nap 0.1; done
    [ -z "$pids" ]
}
prove() { # FILE: no process of ours, the port free, GPU memory idle, which may take a while to return
    due "$([ -s "$OUT/server.pid" ] && echo "$STOP" || echo 0)"
    while :; do
        processes=$(ours | wc -l) port=free used=''
        [ -z "$(sockets)" ] || port=busy
        [ ! -f "$OUT/gpu/idle-mib" ] || used=$(gpu) used=${used:-unknown}
        printf '%s\n' "processes $processes" "port $port" ${used:+"gpu $used"} >"$1" || FAILED=1
        number "${used:-0}" 501
        [ "$processes" -eq 0 ] && [ $port = free ] && [ "$NUMBER" -le 500 ] && return
        if over; then return 1; else nap 0.2; fi
    done
}
finish() { # CHILD: whether the server is a child of this shell
    halt; step stop $?
    if [ "$1" = child ] && [ -n "$SERVER" ] && ! running; then reap; echo "$EXIT" >"$OUT/exit"; echo "$HOW" >"$OUT/how"; fi
    prove "$OUT/proof"; dirty=$? && step proof $dirty
    code=${FAILED:+70} && [ $dirty = 0 ] || code=75
    step end "${code:-0}" && manifest || { echo "cannot write the manifest of $IN" >&2; FAILED=1; }
    code=${code:-${FAILED:+70}} && exit "${code:-0}"
}
[ $# -gt 0 ] || return 0
MODE=$1 IN=${2-} HERE=$(pwd -P) UMASK=$(umask) OUT=${2-}/out PIDS=${2-}/pids
SERVER='' SINCE='' EXIT='' FAILED='' STOPPED='' WOKEN='' STEP='' PYTHON=python3
umask 077 && GPUS='' && ! text gpus || GPUS=$VALUE
limit() { awk -v name="$1" -v n="$2" '$1 == name && $2 ~ /^[0-9]+$/ { n = $2 } END { printf "%d", n }' "$IN/limits"; } 2>/dev/null
READY=$(limit ready 2400) TRIAL=$(limit trial 3600) STOP=$(limit stop 60) PREFLIGHT=$(limit preflight 300) DISK=$(limit disk_kib 0)
PORT=$(awk '/^[0-9]+$/ { printf "%d", $1; exit }' "$IN/port" 2>/dev/null) && PORT=${PORT:-0}
command -v python3 >/dev/null || ! text "$IN/argv/0001" || PYTHON=$VALUE # the engine's own
case $MODE in
    run)
        mkdir -p "$OUT" && trap 'STOPPED=1' TERM INT HUP && trap 'WOKEN=1' ALRM
        NONCE=$(printf %.16s "${LABBOOK_NONCE:-$(random 8)}")$(random 8) # the runner's, then our own
        echo "$NONCE" >"$OUT/nonce" || exit 70
        doing idle idle && doing source checkout && doing preflight preflight && doing start start && doing ready ready &&
            doing identity identity && doing facts facts && for folder in "$IN"/trials/*; do
            [ ! -d "$folder" ] || doing "trial:${folder##*/}" trial "$folder" || break
        done && doing facts-after observe -after
        finish child ;;
    kill)
        NONCE=$2 PIDS=/dev/null && [ ${#2} -eq 16 ] || exit 64
        for pid in $(ours); do end_one TERM "$pid"; done; due 10; while [ -n "$(ours)" ] && ! over; do nap 0.1; done
        halt || exit 75 ;;
    sweep | prove)
        NONCE='' && ! text "$OUT/nonce" || NONCE=$VALUE
        [ ${#NONCE} -eq 32 ] || NONCE=$(random 16) # cut off before anything was launched
        read -r SERVER SINCE <"$OUT/server.pid" && running && grep -qsxF "$SERVER $SINCE $BOOT" "$PIDS" || SERVER=''
        if [ "$MODE" = prove ]; then halt; prove "$IN/proof" || exit 75; exit 0; fi
        [ -z "$(tail -c 1 "$OUT/status" 2>/dev/null)" ] || echo >>"$OUT/status" # a torn line
        last=$(awk 'NF == 4 { step = $3 " " $4 } END { print step }' "$OUT/status" 2>/dev/null)
        [ "$last" = "end 0" ] || FAILED=1 # else only its runner was cut off
        [ -z "$FAILED" ] || [ -s "$OUT/fail" ] || echo "interrupted 137 cut off; the last step in its status is ${last:-none}" >"$OUT/fail"
        finish '' ;;
    *) exit 64 ;;
esac
