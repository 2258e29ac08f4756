# Lists, signals and ends the ranks on a host: FUNCTION LAUNCH WORD..., for ranks.py. LAUNCH names a single launch, or is
# the sixteen hex digits of a run, for all its launches.
# Our processes are identified only by an entry in their environment. Process ids are reused, so a process is identified
# by its id and its start time, which are checked again before every signal.
set -f
IFS=$newline

# Sets comm, state, parent, session, ticks, started and pages of a process; fails if there is none. comm can be any text.
read_stat() {
    text=''
    { while read -r line; do text="$text $line"; done <"/proc/$1/stat"; } 2>/dev/null
    case $text in *'('*') '*) ;; *) return 1 ;; esac
    comm=${text#*\(} comm=${comm%)*} text=${text##*) }
    IFS=' '
    # shellcheck disable=SC2086
    set -- $text
    IFS=$newline
    [ $# -ge 22 ] || return 1
    state=$1 parent=$2 session=$4 ticks=$((${12} + ${13})) started=${20} pages=${22}
}

is_alive() { read_stat "$1" && [ "$started" = "$2" ] && [ "$state" != Z ] && [ "$state" != X ]; }

# Sets launch and rank, after read_stat; fails if it is not the requested launch.
read_environment() {
    read_launch "$1" "$comm"
    rank=${rank:--}
    case $launch in "$asked" | "$asked"/*) ;; *) return 1 ;; esac
    case ${launch#"$run"} in '' | /?*) ;; *) return 1 ;; esac
    case ${launch#"$run/"} in *[!A-Za-z0-9._-]*) return 1 ;; esac
}

# Calls $1 for every process of this launch, with its variables set, except for the processes that $2 lists as ` PID:`.
for_each() {
    files=''
    set +f
    for folder in /proc/[0-9]*; do
        [ -O "$folder" ] || continue
        case ${2-} in *" ${folder#/proc/}:"*) ;; *) files="$files$newline$folder/environ" ;; esac
    done
    set -f
    find_candidates "$files" "$asked"
    for pid in $candidates; do
        read_stat "$pid" && [ "$session" != "$our_session" ] && read_environment "$pid" && "$1"
    done
}

# Does a process catch SIGHUP? Signal 1 is the lowest bit of the mask.
catches_hup() {
    while read -r line; do
        case $line in SigCgt:*[13579bdf]) return 0 ;; SigCgt:*) return 1 ;; esac
    done 2>/dev/null <"/proc/$1/status"
    return 1
}

read_units() {
    page_bytes=4096 ticks_per_s=100
    for entry in $(od -A n -v -t u8 -w16 /proc/self/auxv 2>/dev/null | tr -s ' '); do
        case $entry in ' 6 '*) page_bytes=${entry#' 6 '} ;; ' 17 '*) ticks_per_s=${entry#' 17 '} ;; esac
    done
}

print_process() {
    hup=0
    if catches_hup "$pid"; then hup=1; fi
    command=$( (base64 -w 0 <"/proc/$pid/cmdline") 2>/dev/null)
    say "process $pid $started $parent $rank $hup $launch ${command:--}"
}

list() {
    for_each print_process
    say end
}

# PID STARTED: sends SIGHUP to rank 0's process, so that it writes a snapshot, unless SIGHUP would kill it.
snapshot() {
    if ! is_alive "$1" "$2" || ! read_environment "$1" || [ "$rank" != 0 ]; then
        say absent
    elif ! catches_hup "$1"; then
        say deaf
    elif is_alive "$1" "$2" && kill -s HUP "$1" 2>/dev/null; then
        say asked
    else
        say absent
    fi
}

add_target() { case $targets in *" $1:$2 "*) ;; *) targets="$targets$1:$2 $newline " ;; esac; }

# A proxy of a launcher may have our launch in its environment only on the launcher's own host; elsewhere it is found as the
# parent of its ranks.
collect() {
    add_target "$pid" "$started"
    [ "$rank" != - ] || return 0
    proxy=$parent
    if [ -O "/proc/$proxy" ] && read_stat "$proxy" && is_named "$comm" "$proxies"; then add_target "$proxy" "$started"; fi
}

# Sends the signals $1 to the targets that are alive, and drops the others.
signal_targets() {
    alive=' '
    for target in $targets; do
        target=${target# } target=${target% }
        [ -n "$target" ] || continue
        is_alive "${target%:*}" "${target#*:}" || continue
        alive="$alive$target $newline "
        for signal in $1; do kill -s "$signal" "${target%:*}" 2>/dev/null; done
    done
    targets=$alive
}

# GRACE LAST: ends all processes. Sends SIGTERM, and SIGKILL after GRACE; gives up after LAST, both in tenths of a second.
end_all() {
    targets=' ' tenths=0
    for_each collect
    signal_targets "TERM${newline}CONT"
    while :; do
        if [ "$targets" = ' ' ]; then
            for_each collect
            [ "$targets" != ' ' ] || break
            signal_targets "TERM${newline}CONT"
        fi
        [ "$tenths" -lt "$2" ] || break
        sleep 0.1
        tenths=$((tenths + 1))
        if [ "$tenths" -ge "$1" ]; then signal_targets KILL; else signal_targets ''; fi
    done
    for target in $targets; do
        target=${target# } target=${target% }
        if is_alive "${target%:*}" "${target#*:}"; then say "left ${target%:*} $state"; fi
    done
    say end
}

remember() { [ "$rank" = - ] || known="$known$pid:$started:$rank $newline "; }

# Reports the state of each rank for every line of input. After a network failure sshd keeps our input open for hours, so
# this function ends after $1 seconds without a line.
beat() {
    known=' '
    while timeout --foreground "$1" sh -c 'read -r _'; do
        for_each remember "$known"
        still=' '
        for entry in $known; do
            entry=${entry# } entry=${entry% }
            [ -n "$entry" ] || continue
            pid=${entry%%:*} rest=${entry#*:}
            if ! read_stat "$pid" || [ "$started" != "${rest%:*}" ]; then continue; fi
            still="$still$entry $newline "
            say "rank ${rest#*:} $pid $state $((ticks * 1000 / ticks_per_s)) $((pages * page_bytes))"
        done
        known=$still
        say end
    done
}

verb=$1 asked=$2 run=${2%%/*}
shift 2
read_units
read_stat $$
our_session=$session
case $verb in
list) list ;;
snapshot) snapshot "$@" ;;
end) end_all "$@" ;;
beat) beat "$@" ;;
esac
