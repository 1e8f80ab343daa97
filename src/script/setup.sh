#!/bin/sh
# Runs a host's `setup:` in a clean shell and keeps the variables that it exports, one a file, as env/ of the host folder.
# Input: the host folder on a line, then the text of the setup. Output: what the setup printed. Exit: its code, 70 where it
# ended the shell before its end, 74 where the folder cannot be written. A failing command ends it (`set -e`).
# shellcheck disable=SC2016 # the inner shell has its own $
umask 077
IFS= read -r folder && work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT && mkdir "$work/env" && cat >"$work/setup" || exit 74
shell=$(command -v bash || command -v sh)
set -- "HOME=${HOME:-/}" "USER=${USER:-$(id -un)}" "PATH=$PATH" "LANG=${LANG:-C.UTF-8}" "TMPDIR=${TMPDIR:-/tmp}"
env -i "$@" "$shell" -c '
    readonly LABBOOK_SETUP="$1" LABBOOK_AWK="$2"
    set -e
    . "$LABBOOK_SETUP/setup"
    for LABBOOK_NAME in $("$LABBOOK_AWK" "BEGIN { for (name in ENVIRON) if (name ~ /^[A-Za-z_][A-Za-z0-9_]*\$/) print name }"); do
        eval "printf %s \"\${$LABBOOK_NAME}\"" >"$LABBOOK_SETUP/env/$LABBOOK_NAME"
    done
    : >"$LABBOOK_SETUP/done"
' setup "$work" "$(command -v awk)" 2>&1 </dev/null
code=$?
[ "$code" = 0 ] && [ ! -e "$work/done" ] && code=70
[ "$code" = 0 ] || exit "$code"
# What it was given is no finding of the setup, nor is what a shell notes for itself.
for given in "$@"; do
    file=$work/env/${given%%=*}
    [ "$(cat "$file" 2>/dev/null && echo x)" != "${given#*=}x" ] || rm -f "$file"
done
cd "$work/env" && rm -f _ PWD OLDPWD SHLVL LABBOOK_* && cd / && mkdir -p "$folder" && rm -rf "$folder/env.part" &&
    cp -R "$work/env" "$folder/env.part" && rm -rf "$folder/env" && mv "$folder/env.part" "$folder/env" || exit 74
