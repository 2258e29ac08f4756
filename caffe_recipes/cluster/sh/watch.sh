# Reads the files of runs on another host, for monitor/run_files.py. Does not write, lock or signal anything.

# Is the run's process alive? Process ids are reused, but a live run has its journal open. We cannot see the open files of
# another user's process, and sometimes not even the process.
is_alive() {
    if [ "$here" != "$node" ]; then echo unknown; return; fi
    if ! [ -d "/proc/$pid" ]; then
        if [ -O "$held" ] || [ "$(id -u)" = 0 ]; then echo no; else echo unknown; fi
        return
    fi
    read -r status 2>/dev/null <"/proc/$pid/stat" || status=
    case $status in *') Z '* | *') X '*) echo no; return ;; esac
    if ! [ -r "/proc/$pid/fd" ] || ! [ -e "$held" ]; then echo yes; return; fi
    for file in "/proc/$pid/fd"/*; do
        if [ "$file" -ef "$held" ]; then echo yes; return; fi
    done
    echo no
}

# PID NODE HELD [PATH START MOST first|last]...: reports whether process PID, which has HELD open, is alive, and the
# content of each PATH from START on, but only its first or last MOST bytes.
look() {
    pid=$1 node=$2 held=$3 here=$(uname -n)
    shift 3
    say node "$here"
    # This comes first: a process that has ended by now has written everything that is read next.
    say lives "$(is_alive)"
    while [ "$#" -gt 0 ]; do
        path=$1 start=$2 most=$3 end=$4
        shift 4
        if ! [ -e "$path" ]; then say none; continue; fi
        if ! [ -f "$path" ] || ! [ -r "$path" ]; then say refused; continue; fi
        size=$(stat -L -c %s -- "$path")
        if [ "$size" -lt "$start" ]; then size=$start; fi
        if [ "$most" -gt 0 ] && [ $((size - start)) -gt "$most" ]; then
            case $end in first) size=$((start + most)) ;; *) start=$((size - most)) ;; esac
        fi
        printf '%s piece %s ' "$CAFFE_RECIPES_TOKEN" "$start"
        if [ "$size" -gt "$start" ]; then tail -c "+$((start + 1))" -- "$path" | head -c $((size - start)) | base64 -w 0; fi
        echo
    done
    say end
}

# FOLDER SUFFIX: reports the names of the files in FOLDER that end in SUFFIX, without the suffix.
names() {
    for each in "$1"/*"$2"; do
        if [ -f "$each" ]; then each=${each%"$2"} && say "name $(printf %s "${each#"$1"/}" | base64 -w 0)"; fi
    done
    say end
}

"$@"
