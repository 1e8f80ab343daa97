#!/bin/sh
# Runs the queue of a host folder, one session after another. Start: cd FOLDER && setsid sh runner.sh >>runner.log 2>&1 </dev/null &
# A second start beside a living one changes nothing. A file `stop` or SIGTERM ends it cleanly, the session with it.
# Exit: 0 drained, stopped or already running, 64 usage, 69 the lease is another folder's, 74 cannot write, 75 the host is dirty.
# shellcheck disable=SC1091,SC2015 # the functions of session.sh; A && B || C is meant as it reads
. ./session.sh && umask 077
HERE=$(pwd -P) NONCE=$(random 8) STOPPED='' SESSION='' GPUS='' && ! text gpus || GPUS=$VALUE
case $GPUS in *[!A-Za-z0-9.,_-]*) echo "gpus holds '$GPUS', wanted a list like 0,1,2,3" >&2 && exit 64 ;; esac
LEASE=${LABBOOK_LEASE_DIR:-/var/tmp}/labbook-lease${GPUS:+-$GPUS}
born $$ && ME="$$ $START $BOOT $NONCE"
die() { echo "$2" >&2; exit "$1"; } # CODE TEXT, also where nothing can be written
note() { printf '%s %s %s %s\n' "$(stamp)" "$1" "$2" "$3" >>journal || die 74 "cannot write journal"; } # EVENT NAME CODE
alive() { # "PID START BOOT …": it lives
    # shellcheck disable=SC2086 # words are wanted
    set -f && set -- $1 && set +f
    [ "${3-}" = "$BOOT" ] && born "$1" && [ "$START" = "$2" ]
}
owner() { if text "$LEASE/owner"; then OWNER=$VALUE; else OWNER=''; fi; }
take() { [ -z "$OWNER" ] || echo "$OWNER" >>"$LEASE/unswept" && echo "$ME $HERE" >"$LEASE/owner.$$" && mv "$LEASE/owner.$$" "$LEASE/owner"; }
acquire() { # the owner changes only under `claim`, a link that one can make; whoever made it looks at the owner again
    for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
        mkdir -p "$LEASE" && owner && before=$OWNER
        if alive "$OWNER"; then
            [ "${OWNER#* * * * }" != "$HERE" ] || exit 0
            note lease-refused - 69 && die 69 "$LEASE is held by $OWNER"
        elif ln -s "$ME" "$LEASE/claim" 2>/dev/null; then
            owner && [ "$OWNER" = "$before" ] && { take || die 74 "cannot write $LEASE"; } && rm -f "$LEASE/claim" && return
            rm -f "$LEASE/claim"
        else alive "$(readlink "$LEASE/claim")" || rm -f "$LEASE/claim"; fi
        nap 0.2
    done
    note lease-refused - 69 && die 69 "cannot take $LEASE"
}
release() { owner && rm -f runner && [ "$OWNER" = "$ME $HERE" ] && rm -f "$LEASE/owner" && rmdir "$LEASE" 2>/dev/null; }
dirty() { echo "$1 $2" >dirty; note dirty "$1" 75; die 75 "the host is dirty: $2"; } # the lease stays: its next owner sweeps first
conclude() { # FOLDER CODE
    echo "$2" >"$1/done.part" && mv "$1/done.part" "$1/done" || die 74 "cannot write $1/done"
    note session-end "${1##*/}" "$2"
    [ "$2" != 75 ] || dirty "${1##*/}" "$(paste -sd' ' "$1/out/proof" "$1/out/fail")"
}
sweep() { # FOLDER: a session that ended without a code of its own; its code in CODE
    sh session.sh sweep "$1" >>"$1/session.log" 2>&1 </dev/null; CODE=$?; case $CODE in 0 | 75) ;; *) CODE=70 ;; esac
    note swept "${1##*/}" $CODE
}
nonces() { cat "$LEASE/unswept" runner 2>/dev/null | awk '$4 ~ /^[0-9a-f]+$/ && !seen[$4]++ { print $4 }'; }
recover() { # what dead runners left, before anything starts
    for nonce in $(nonces); do
        sh session.sh kill "$nonce" || dirty - "processes of a dead runner cannot be ended (nonce $nonce)"
    done
    echo "$ME" >runner && note runner-start $$ 0 && note lease-taken - 0 && rm -f "$LEASE/unswept"
    if [ -e dirty ]; then
        read -r name _ <dirty
        [ ! -d "queue/$name" ] || sh session.sh prove "queue/$name" || dirty "$name" "still: $(paste -sd' ' "queue/$name/proof")"
        rm -f dirty && note swept "$name" 0
    fi
    for folder in queue/*; do
        if [ ! -d "$folder/out" ]; then continue; elif [ ! -s "$folder/done" ]; then sweep "$folder" && conclude "$folder" "$CODE"
        elif ! grep -qs " session-end ${folder##*/} " journal; then text "$folder/done" && note session-end "${folder##*/}" "$VALUE"; fi
    done
}
pick() { # the lowest session that was not started, in FOLDER
    for FOLDER in queue/*; do [ ! -d "$FOLDER" ] || [ -e "$FOLDER/out" ] || [ -e "$FOLDER/done" ] || return 0; done
    return 1
}
trap 'STOPPED=1; [ -z "$SESSION" ] || kill -TERM "$SESSION"' TERM INT HUP
! text runner || ! alive "$VALUE" || exit 0
while acquire && recover; do
    while pick; do
        if [ -n "$STOPPED" ] || [ -e stop ]; then note stopped - 0 && release; exit 0; fi
        mkdir "$FOLDER/out" && note session-start "${FOLDER##*/}" 0 || die 74 "cannot write $FOLDER"
        LABBOOK_NONCE=$NONCE sh session.sh run "$FOLDER" >>"$FOLDER/session.log" 2>&1 </dev/null &
        SESSION=$!
        until wait $SESSION; CODE=$?; ! born $SESSION; do :; done # a signal ends a wait
        SESSION=''
        case $CODE in 0 | 70 | 75) ;; *) sh session.sh kill "$NONCE"; sweep "$FOLDER" ;; esac # its helpers first
        conclude "$FOLDER" "$CODE"
    done
    note drained - 0 && release
    pick || exit 0 # an entry that came while we still held the lease, and whose start saw us alive
done
