# What is read of runs on another host, for monitor/files.py. Nothing is written, locked or signalled.

# Numbers of processes come round again: a run has its journal open as long as it lives. Of another user's process we see no files, and at times nothing at all.
lives() {
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

# PID NODE HELD [PATH START MOST first|last]...: whether a process lives that has the file HELD open, and pieces of files.
look() {
    pid=$1 node=$2 held=$3 here=$(uname -n)
    shift 3
    say node "$here"
    # Before the files are read: who is gone by now has written all that it was to write.
    say lives "$(lives)"
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

# FOLDER SUFFIX: the names, without SUFFIX, of what lies there and ends so.
names() {
    for each in "$1"/*"$2"; do
        if [ -f "$each" ]; then each=${each%"$2"} && say "name $(printf %s "${each#"$1"/}" | base64 -w 0)"; fi
    done
    say end
}

"$@"
