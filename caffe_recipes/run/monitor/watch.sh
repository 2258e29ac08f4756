# What `attach` asks of the host that it reads a run from, with sh and coreutils alone; run_files.py calls it as
# `sh -c TEXT caffe-recipes PID NODE HELD [PATH START MOST first|last]...`. Nothing is written, locked or signalled.
set -u
export LC_ALL=C
pid=$1 node=$2 held=$3
shift 3
here=$(uname -n)

# Numbers of processes come round again: a run has its journal open as long as it lives. Of another user's process we see no files, and at times nothing at all.
lives() {
    if [ "$here" != "$node" ]; then echo unknown; return; fi
    if ! [ -d "/proc/$pid" ]; then
        if [ -O "$held" ] || [ "$(id -u)" = 0 ]; then echo no; else echo unknown; fi
        return
    fi
    read -r said 2>/dev/null <"/proc/$pid/stat" || said=
    case $said in *') Z '* | *') X '*) echo no; return ;; esac
    if ! [ -r "/proc/$pid/fd" ] || ! [ -e "$held" ]; then echo yes; return; fi
    for file in "/proc/$pid/fd"/*; do
        if [ "$file" -ef "$held" ]; then echo yes; return; fi
    done
    echo no
}

printf '%s\n' "$here"
# Before the files are read: who is gone by now has written all that it was to write.
lives
while [ "$#" -gt 0 ]; do
    path=$1 start=$2 most=$3 end=$4
    shift 4
    if ! [ -e "$path" ]; then echo none; continue; fi
    if ! [ -f "$path" ] || ! [ -r "$path" ]; then echo refused; continue; fi
    size=$(stat -L -c %s -- "$path")
    if [ "$size" -lt "$start" ]; then size=$start; fi
    if [ "$most" -gt 0 ] && [ $((size - start)) -gt "$most" ]; then
        case $end in first) size=$((start + most)) ;; *) start=$((size - most)) ;; esac
    fi
    printf 'piece %s ' "$start"
    if [ "$size" -gt "$start" ]; then tail -c "+$((start + 1))" -- "$path" | head -c $((size - start)) | base64 -w 0; fi
    echo
done
echo end
