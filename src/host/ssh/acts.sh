# What labbook asks of a host over SSH. A shell there is given this text, which only defines functions, and then calls of them whose
# arguments are quoted. Each function is one act; it may be repeated, and may run beside itself.
# shellcheck shell=sh disable=SC2012,SC2015,SC2034 # A && B || C is meant as it reads; NONCE is set by each call
NL='
'
PATH=${PATH:+$PATH:}/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin LC_ALL=C
export PATH LC_ALL && unset CDPATH && umask 077
needs() { for tool; do command -v "$tool" >/dev/null 2>&1 || echo "$tool"; done; }
act_hello() { # seconds since boot, system, machine, what is missing, home
    [ -r /proc/uptime ] && read -r up _ </proc/uptime && [ -r /proc/sys/kernel/random/boot_id ] || up=0
    missing=$(needs awk cat cmp cut date df env find grep id ln ls mkdir mv od paste readlink rm sed setsid sha256sum sort stat tail tar timeout tr)
    command -v curl >/dev/null 2>&1 || command -v python3 >/dev/null 2>&1 || missing="$missing curl"
    printf '%s\n' "$up" "$(uname -s)" "$(uname -m)" "$(printf %s "$missing" | tr '\n' ' ')" "${HOME:-}"
}
receive() { # FILE SHA256: stdin to the file, whole or not at all
    cat >"$1" && sum=$(sha256sum <"$1") && [ "${sum%% *}" = "$2" ] && return
    rm -f "$1" && echo 'what was sent did not arrive whole' >&2 && return 74
}
persist() { find "$1" -exec sync {} + 2>/dev/null || :; } # an old `sync` cannot name files: then the kernel writes when it likes
act_install() { # FOLDER SHA256 GPUS, a tar with the programs on stdin
    mkdir -p "$1/queue" "$1/incoming" && cd "$1" && aside=incoming/$NONCE && mkdir "$aside" || return
    receive "$aside/tar" "$2" && tar -xmof "$aside/tar" -C "$aside" && rm "$aside/tar" && persist "$aside" || { rm -rf "$aside"; return 74; }
    for name in session.sh runner.sh; do # a shell reads its program while it runs, so that a file is replaced, never overwritten
        cmp -s "$aside/$name" "$name" || mv -f "$aside/$name" "$name" || return
    done
    if [ -n "$3" ]; then echo "$3" >"$aside/gpus" && mv -f "$aside/gpus" gpus || return; else rm -f gpus; fi
    rm -rf "$aside"
}
same() { # FOLDER OTHER: every file of the one is in the other, with the same bytes
    (cd "$1" && find . -type f) | while read -r file; do cmp -s "$1/$file" "$2/$file" || exit 1; done
}
act_queue() { # FOLDER NUMBER NAME SHA256, a tar of the session's files on stdin
    cd "$1" && entry=$2-$3 aside=incoming/$NONCE && mkdir -p queue "$aside/$entry" || return
    receive "$aside/tar" "$4" && tar -xmof "$aside/tar" -C "$aside/$entry" && persist "$aside/$entry" || { rm -rf "$aside"; return 74; }
    for other in queue/*; do
        other=${other#queue/}
        [ "$other" = "$entry" ] || { [ "${other%%-*}" != "$2" ] && [ "${other#*-}" != "$3" ]; } || { rm -rf "$aside"; echo "$other"; return 73; }
    done
    # A folder is never moved over one that holds files, so that of two deliveries of one session the first stays.
    said=$(mv "$aside/$entry" queue/ 2>&1) || same "$aside/$entry" "queue/$entry"
    code=$? && rm -rf "$aside"
    [ $code = 0 ] || { echo "$entry is there with other files: $said" >&2; return 73; }
}
act_sum() { [ ! -f "$1" ] || sha256sum <"$1"; }
act_place() { # FILE SHA256 MODE, its bytes on stdin
    mkdir -p "${1%/*}" && receive "$1.$NONCE" "$2" && chmod "$3" "$1.$NONCE" && persist "$1.$NONCE" && mv -f "$1.$NONCE" "$1"
}
act_version() { "$1" --version >/dev/null; }
act_start() { cd "$1" && { setsid sh runner.sh >>runner.log 2>&1 </dev/null & }; }
act_alive() { # FOLDER: what the runner says of itself, the boot, and the state of its process
    [ -f "$1/runner" ] && read -r pid start boot _ <"$1/runner" || return 0
    case $pid in '' | *[!0-9]*) return 0 ;; esac
    echo "$pid $start $boot" && cat /proc/sys/kernel/random/boot_id && cat "/proc/$pid/stat" 2>/dev/null || :
}
act_stop() { : >"$1/stop"; }
act_withdraw() { rm -f "$1/stop"; }
act_read() { # FILE FROM: its bytes from this one on, counted from 1
    [ ! -f "$1" ] || tail -c "+$2" "$1" || [ ! -f "$1" ]
}
act_read_all() { # FILE…: the number of bytes of each, on a line each; then the bytes of all. Few forks: a trial may be running
    for file; do [ -f "$file" ] || file=/dev/null; shift && set -- "$@" "$file"; done
    stat -Lc %s "$@" && cat "$@"
}
act_list() { # FOLDER: the names in it, each with a NUL behind
    [ -d "$1" ] && cd "$1" || return 0
    for name in * .[!.]* ..?*; do [ ! -e "$name" ] && [ ! -L "$name" ] || printf '%s\0' "$name"; done
}
act_fetch() { # FOLDER: a tar of its regular files, but for names that a line cannot hold; what a link leads to is nobody's record
    cd "$1" && find . -type f ! -path "*$NL*" ! -path '*\\*' | tar -cf - -T -
}
act_shell() { # SCRIPT, its input on stdin: its output, a NUL, what it said on standard error
    { said=$(sh -c "$1" 2>&1 >&3) && code=0 || code=$?; } 3>&1
    printf '\0%s' "$said" && return "$code"
}
