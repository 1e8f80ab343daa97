#!/bin/sh
# Looks at a host with the very functions of a session, so that what is told here is what a session will see. Changes nothing.
# Input: session.sh. Output, a record each: `program NAME PATH|-`, `lease alive|dead PATH OWNER`, `process PID NONCE COMMAND`,
# and `file SIZE PATH` with a newline, the bytes, a newline: what a session would keep of a server, here a `sleep`.
# shellcheck disable=SC1091,SC2034 # the functions of session.sh use these variables
umask 077
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT && cd "$work" && cat >session.sh && : >runner.sh && mkdir -p in/argv in/out || exit 74
for program in sh awk cat cmp cp cut date df env find grep head id ln ls mkdir mktemp mv od paste readlink rm sed setsid sha256sum \
    sleep sort stat tail tar timeout tr uname bash curl git nvidia-smi python3; do
    printf 'program %s %s\n' "$program" "$(command -v "$program" || echo -)"
done
set -- && . ./session.sh
GPUS='' IN=in OUT=in/out PIDS=in/pids HERE=$work UMASK=077 PORT=0 EXIT='' FAILED='' STOPPED='' STEP=doctor PYTHON=python3
NONCE=$(random 16) && printf sleep >in/argv/0001 && printf 60 >in/argv/0002
launch in "$work" in/out/server.log && SERVER=$! && born $! && SINCE=$START && echo "$SERVER $SINCE" >in/out/server.pid
due 5 && until grep -qsF "LABBOOK_NONCE=$NONCE" "/proc/$SERVER/environ" || over; do nap 0.1; done
number "$(gpu)" '' && [ -n "$NUMBER" ] && mkdir in/out/gpu
step start 0 && facts
[ ! -r /proc/net/tcp ] || ! ls -l "/proc/$SERVER/fd" >/dev/null || echo own >in/out/identity
end_group "$SERVER"
for owner in "${LABBOOK_LEASE_DIR:-/var/tmp}"/labbook-lease*/owner; do
    text "$owner" && line=$VALUE && pid=${line%% *} && rest=${line#* } && start=${rest%% *} && rest=${rest#* } || continue
    if born "$pid" && [ "$START" = "$start" ] && [ "${rest%% *}" = "$BOOT" ]; then state=alive; else state=dead; fi
    printf 'lease %s %s %s\n' "$state" "${owner%/owner}" "$line"
done
for process in /proc/[0-9]*; do
    nonce=$(tr '\000' '\n' <"$process/environ" | sed -n 's/^LABBOOK_NONCE=\([0-9a-f]*\)$/\1/p' | head -n 1)
    [ -z "$nonce" ] || [ "$nonce" = "$NONCE" ] || ! born "${process#/proc/}" ||
        printf 'process %s %s %s\n' "${process#/proc/}" "$nonce" "$(tr '\000' ' ' <"$process/cmdline" | tr -cd '[:print:]' | cut -c1-200)"
done 2>/dev/null
find in/out -type f | while IFS= read -r path; do
    printf 'file %s %s\n' "$(wc -c <"$path" | tr -d ' ')" "${path#in/}" && cat "$path" && echo
done
