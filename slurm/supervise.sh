#!/bin/bash
# What head.sbatch and replica.sbatch share: children that are kept alive, signals that are passed on, and a clean end.
# Sourced by both; run (`supervise.sh reap|unpack ...`) only by itself. Needs bash 4.4. Works with and without Slurm.
#
#   script -> one keeper a child (a subshell) -> the Python process -> its steps, in sessions of their own
#   script -> reaper: reads a pipe that only the script holds open; at its end, because the script is finishing or
#             because it was killed, the reaper ends everything that the script has left behind
#
# A child that dies alone is restarted; what it had started lives on. Every process below a script carries the
# script's mark in its environment: that is how leftovers are found, whatever session or group they moved to.

set -u
umask 077

readonly GIVE_UP=30     # crashes in a row, each within LONG_LIFE seconds, before a script ends with code 1
readonly LONG_LIFE=30   # seconds after which a child counts as having worked
readonly LAST_CALL=30   # seconds that children may take for an orderly end

say() { printf '%(%F %T)T %s: %s\n' -1 "${0##*/}[$$]" "$*" >&2; }

usage_error() {
    echo "${0##*/}: $*" >&2
    exit 2
}

# own_environment NAME: run this script anew with a fresh mark in $NAME, so that each process below it carries the mark.
own_environment() {
    local name=$1 value=${!1:-}
    shift
    if [ "${value%%:*}" != "$$" ]; then # exec keeps the process id: a mark that starts with ours is our own
        export "$name=$$:$(date +%s%N)"
        exec "$BASH" "$0" "$@"
    fi
    mark="$name=$value"
}

prepare_environment() { # MODULE...
    # the submitter's shell is not exported to the job; give programs the few things they take for granted
    export PATH="${PATH:-/usr/local/bin:/usr/bin:/bin}" USER="${USER:-$(id -un)}" LANG="${LANG:-C.UTF-8}"
    [ -n "${HOME:-}" ] || HOME=$(getent passwd "$(id -u)" | cut -d: -f6)
    # SAFEPATH: nothing is imported from the folder that the user happened to stand in (a queue.py, a random.py)
    export HOME PYTHONUNBUFFERED=1 PYTHONSAFEPATH=1 OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
    [ $# -gt 0 ] || return 0
    local init
    for init in "${MODULESHOME:-/nowhere}/init/bash" "${LMOD_PKG:-/nowhere}/init/bash" \
        /etc/profile.d/lmod.sh /etc/profile.d/z00_lmod.sh /etc/profile.d/modules.sh /usr/share/lmod/lmod/init/bash; do
        type module >/dev/null 2>&1 && break
        # shellcheck disable=SC1090
        [ -r "$init" ] && { set +u; . "$init"; set -u; }
    done
    type module >/dev/null 2>&1 || {
        say "there is no 'module' command on $(uname -n), but these modules are asked for: $*"
        exit 1
    }
    local name
    for name in "$@"; do
        set +u
        module load "$name" || { say "module load $name failed on $(uname -n)"; exit 1; }
        set -u
    done
}

# --- a packed environment ------------------------------------------------------------------------------------------

# unpack_environment FILE DIR: on all nodes of the job; sets $python to the interpreter of this node's copy.
# A copy is named by what FILE is: a new FILE of the same name makes a new copy.
unpack_environment() {
    local identity stem=${1##*/} scripts=${BASH_SOURCE[0]%/*}
    identity=$(stat -L -c '%s-%Y' -- "$1") || usage_error "--environment $1 cannot be read on $(uname -n)"
    export EXAHPC_SCRIPTS="$scripts" # the copy's own are seen by this node only
    if [ "${SLURM_JOB_NUM_NODES:-1}" -gt 1 ]; then
        srun --overlap --nodes="$SLURM_JOB_NUM_NODES" --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 --mpi=none \
            --export=ALL --input=none "$BASH" "$scripts/supervise.sh" unpack "$1" "$2" "${stem%%.*}-$identity" || exit 1
    else
        "$BASH" "$scripts/supervise.sh" unpack "$1" "$2" "${stem%%.*}-$identity" || exit 1
    fi
    # shellcheck disable=SC2034 # the caller's
    python=$(filled_in "$2")/exahpc-env-$UID/${stem%%.*}-$identity/bin/python
}

filled_in() { # TEXT: with $NAME and ${NAME} replaced by the environment's values
    local text=$1
    while [[ $text =~ \$\{?([A-Za-z_][A-Za-z0-9_]*)\}? ]]; do
        [ -n "${!BASH_REMATCH[1]:-}" ] || usage_error "$1: ${BASH_REMATCH[1]} is not set on $(uname -n)"
        text=${text//"${BASH_REMATCH[0]}"/"${!BASH_REMATCH[1]}"}
    done
    printf '%s\n' "$text"
}

# unpack FILE DIR NAME: into DIR/exahpc-env-UID/NAME, once, whoever comes first; others wait for it. Copies of this
# user that no process runs from and that nobody asked for within an hour are removed.
unpack() {
    local store copy old
    store=$(filled_in "$2") || exit 2
    store+=/exahpc-env-$UID
    mkdir -p "$store"
    [ -O "$store" ] || usage_error "--environment-in $2: $store is not ours, or cannot be made, on $(uname -n)"
    copy=$store/$3
    exec {lock}>"$store/lock"
    flock "$lock"
    if [ ! -d "$copy" ]; then
        for old in "$store"/*/; do
            old=${old%/}
            [ -d "$old" ] && [ -z "$(find "$old/used" -mmin -60 2>/dev/null)" ] || continue
            grep -qsF -- "$old/" /proc/[0-9]*/cmdline || rm -rf -- "$old"
        done
        rm -rf -- "$copy.part"
        if ! { mkdir "$copy.part" && tar -xf "$1" -C "$copy.part" --no-same-owner && touch "$copy.part/used" &&
            mv -T "$copy.part" "$copy"; }; then
            rm -rf -- "$copy.part"
            usage_error "--environment $1 cannot be unpacked into $copy on $(uname -n)"
        fi
        say "unpacked $1 into $copy"
    fi
    touch "$copy/used"
}

# --- one child -----------------------------------------------------------------------------------------------------

# keep FINAL LOG COMMAND...: restart COMMAND until it ends with one of the codes in FINAL, or until told to stop.
# Runs in a subshell of its own; its exit code is the command's last one.
keep() {
    local final=" $1 " log=$2 child='' stopping='' warned='' crashes=0 code again started keeper=$BASHPID
    shift 2
    trap 'stopping=1; [ -z "$child" ] || kill -TERM "$child" 2>/dev/null' TERM INT
    trap 'warn' USR1
    mkdir -p "${log%/*}"
    while :; do
        started=$SECONDS
        [ -z "$warned" ] || export EXAHPC_WARNED=1 # a process that starts after the warning learns of it here
        # USR1 is ignored until the program installs its handler, so an early warning does not kill it
        (trap '' USR1; exec "$@") </dev/null >>"$log" 2>&1 &
        child=$!
        [ -z "$stopping" ] || kill -TERM "$child" 2>/dev/null # the signal came between the two lines above
        while :; do
            wait "$child"
            code=$?
            kill -0 "$child" 2>/dev/null || break # otherwise wait was interrupted by a trap
        done
        if [ "$code" -gt 128 ]; then # the trap's code, or the child's own? bash still remembers the latter
            wait "$child" 2>/dev/null
            again=$?
            [ "$again" = 127 ] || code=$again
        fi
        child=''
        [ -z "$stopping" ] || exit "$code"
        [[ $final == *" $code "* ]] && exit "$code"
        [ $((SECONDS - started)) -lt "$LONG_LIFE" ] || crashes=0
        crashes=$((crashes + 1))
        say "$3 ended with code $code (see $log); restart $crashes"
        if [ "$crashes" -ge "$GIVE_UP" ]; then
            say "$3 crashed $crashes times in a row: giving up"
            exit 1
        fi
        pause "$(restart_delay "$crashes")" || exit "$code"
    done
}

warn() { # the walltime warning; said twice, because a program that is just starting does not hear the first one
    [ -n "$warned" ] || (sleep 10; kill -USR1 "$keeper" 2>/dev/null) &
    warned=1
    [ -z "$child" ] || kill -USR1 "$child" 2>/dev/null
}

restart_delay() { # CRASHES -> seconds
    case $1 in 1) echo 0.1 ;; 2) echo 0.5 ;; 3) echo 1 ;; 4) echo 2 ;; *) echo 5 ;; esac
}

pause() { # SECONDS: false when told to stop meanwhile (a trap ends the wait at once)
    sleep "$1" &
    child=$!
    wait "$child"
    kill "$child" 2>/dev/null
    child=''
    [ -z "$stopping" ]
}

# --- the script ----------------------------------------------------------------------------------------------------

keepers=()
told='' # to end

# start FINAL LOG COMMAND...: a keeper in the background; its process id is in $started_keeper.
start() {
    (
        exec {life}>&- # only the script itself holds the pipe to the reaper
        keep "$@"
    ) &
    started_keeper=$!
    keepers+=("$started_keeper")
    [ -z "$told" ] || kill -TERM "$started_keeper" # told while there was nobody to pass it on to
}

forward() { # SIGNAL: to all keepers, which pass it on
    local pid
    [ "$1" != TERM ] || told=1
    for pid in "${keepers[@]}"; do kill "-$1" "$pid" 2>/dev/null; done
    return 0
}

watch_signals() {
    trap 'forward TERM' TERM INT
    trap 'forward USR1' USR1
    exec {life}> >(unset "${mark%%=*}" && exec setsid "$BASH" "${BASH_SOURCE[0]}" reap "$mark" $$)
    reaper=$!
}

# await PID: wait for one keeper, also across signals; sets $awaited to its exit code.
await() {
    while :; do
        wait "$1"
        awaited=$?
        kill -0 "$1" 2>/dev/null || break
    done
    if [ "$awaited" -gt 128 ]; then
        local again
        wait "$1" 2>/dev/null
        again=$?
        [ "$again" = 127 ] || awaited=$again
    fi
}

# linger PID...: give keepers LAST_CALL seconds, all together, to end by themselves.
linger() {
    local until=$((SECONDS + LAST_CALL)) pid
    for pid in "$@"; do
        while kill -0 "$pid" 2>/dev/null && [ "$SECONDS" -lt "$until" ]; do sleep 0.1; done
    done
}

# finish CODE: stop what still runs, in order first, and end the script.
finish() {
    forward TERM
    linger "${keepers[@]}"
    trap '' TERM INT USR1
    exec {life}>&-
    wait "$reaper"
    exit "$1"
}

# --- leftovers -----------------------------------------------------------------------------------------------------

# reap MARK SCRIPT: wait until the script's end of the pipe closes, then end all processes of this user that carry the
# mark, except the script (which may be waiting for us), and remove the shared-memory files they had mapped, but for
# copies of weights (exahpc.models.copies), which other jobs on the node may be using: agents sweep those.
# Runs without the mark and in a session of its own, so it never meets itself and no signal to the script's group hits.
reap() {
    trap '' TERM INT HUP USR1
    local mark=$1 script=$2 pid pids files='' try file
    while read -r; do :; done
    for ((try = 1; try <= 25; try++)); do
        # grep -z: environ is a list of NUL-terminated strings; processes come and go while we look
        pids=$(cd /proc && grep -lzxF -- "$mark" [0-9]*/environ 2>/dev/null | sed 's,/environ,,' | grep -vxF "$script")
        [ -n "$pids" ] || break
        for pid in $pids; do
            files+=$(grep -ohE '/dev/shm/[^ ]+' "/proc/$pid/maps" 2>/dev/null | grep -vF /exahpc-weights- | sort -u)$'\n'
            if [ "$try" = 1 ]; then kill -TERM "$pid"; elif [ "$try" -gt 15 ]; then kill -KILL "$pid"; fi 2>/dev/null
        done
        sleep 0.2
    done
    sort -u <<<"$files" | while IFS= read -r file; do [ -z "$file" ] || rm -f -- "$file"; done
}

if [ "${BASH_SOURCE[0]}" = "$0" ]; then
    if [ "${1:-}" = unpack ] && [ $# = 4 ]; then
        unpack "${@:2}"
        exit
    fi
    [ "${1:-}" = reap ] && [ $# = 3 ] || usage_error "is a part of the batch scripts"
    reap "$2" "$3"
fi
