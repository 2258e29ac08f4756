# Reports what preflight checks on a host: `facts [QUESTION PATH]...`. Changes nothing. nodes.py parses the answer. Other
# users can create files in /tmp, so control characters are removed from the names found there.

clean() { printf %s "$1" | tr -s '[:cntrl:]' ' ' | cut -c 1-4096; }
user_of() { stat -c %U -- "$1" 2>/dev/null || echo '?'; }

# Sets folder to the path, or to its nearest parent that exists.
find_folder() {
    folder=$1
    while ! [ -d "$folder" ] && [ -n "$folder" ]; do
        case $folder in */*) folder=${folder%/*} ;; *) folder='' ;; esac
    done
    folder=${folder:-/}
}

# Reports a folder's device, its free bytes, whether we can write there, and whether others can change our files.
look_at_folder() {
    find_folder "$1"
    device=$(stat -L -c '%d 0x%f' -- "$folder") writable=0 open=0
    mode=${device#* } device=${device% *}
    if [ -w "$folder" ] && [ -x "$folder" ]; then writable=1; fi
    if [ $((mode & 02)) != 0 ] && [ $((mode & 01000)) = 0 ]; then open=1; fi
    room=$(df --output=avail -B1 -- "$folder" | sed -n '$s/ *//p')
    say folder "$device" "${room:--1}" "$writable" "$open"
}

# Reports files that Caffe would overwrite, or links that it would write through, and that are not ours. After 100 of them
# it reports that there are more, and stops: in /tmp, another user can create any number.
look_at_snapshots() {
    say snapshots
    strays=0
    for file in "$1"_iter_*.caffemodel "$1"_iter_*.solverstate; do
        if [ -L "$file" ]; then
            kind='link'
        elif ! [ -e "$file" ]; then
            continue
        elif ! [ -f "$file" ]; then
            kind='other'
        elif is_ours "$(stat -c %u -- "$file")" "${file%/*}/"; then
            continue
        else
            kind='foreign'
        fi
        strays=$((strays + 1))
        if [ "$strays" -gt 100 ]; then say found more "$(user_of "$file")" "$(clean "$1")_iter_*" && return; fi
        say found "$kind" "$(user_of "$file")" "$(clean "$file")"
    done
}

look_at_file() {
    size=$(stat -L -c %s -- "$1" 2>/dev/null) || size=-
    readable=0
    if [ -f "$1" ] && [ -r "$1" ]; then readable=1; fi
    say file "$size" "$readable"
}

look_at_text() {
    sum=-
    if [ -f "$1" ]; then sum=$(sha256sum <"$1") || sum=-; fi
    say text "${sum%% *}"
}

look_at_program() {
    kind=absent
    if [ -f "$1" ] && [ -x "$1" ]; then kind=program; elif [ -e "$1" ]; then kind=other; fi
    say program "$kind"
}

# Reports the running ranks, as `RANK PID LAUNCH USER`, of all users whose processes we can read.
list_ranks() {
    IFS=$newline files=''
    for folder in /proc/[0-9]*; do
        if [ -r "$folder/environ" ]; then files="$files$newline$folder/environ"; fi
    done
    set -f
    find_candidates "$files" ''
    for pid in $candidates; do
        comm=''
        { read -r comm <"/proc/$pid/comm"; } 2>/dev/null
        read_launch "$pid" "$comm"
        [ -n "$rank" ] || continue
        case $launch in '' | *[!A-Za-z0-9._/-]*) ;; *) say "rank $rank $pid $launch $(clean "$(user_of "/proc/$pid")")" ;; esac
    done
}

facts() {
    say clock "$(date +%s.%N)"
    say name "$(uname -n)"
    say boot "$(cat /proc/sys/kernel/random/boot_id 2>/dev/null || echo -)"
    unset OMP_NUM_THREADS OMP_THREAD_LIMIT # nproc would respect them
    say usable "$(nproc)"
    tr -d '\t' </proc/cpuinfo | while IFS= read -r line; do
        case $line in processor* | 'physical id'* | 'cpu cores'*) say cpu "$line" ;; esac
    done
    while IFS= read -r line; do
        case $line in MemTotal:* | MemAvailable:*) say memory "$line" ;; esac
    done </proc/meminfo
    say tmp "$(df --output=size -B1 /tmp 2>/dev/null | sed -n '$s/ *//p')"
    (list_ranks)
    while [ "$#" -gt 1 ]; do
        case $1 in
        root) say root "$(stat -L -c %i -- "$2" 2>/dev/null || echo -)" ;;
        program) look_at_program "$2" ;;
        file) look_at_file "$2" ;;
        text) look_at_text "$2" ;;
        folder) look_at_folder "$2" ;;
        snapshots) look_at_snapshots "$2" ;;
        esac
        shift 2
    done
    say end
}

"$@"
