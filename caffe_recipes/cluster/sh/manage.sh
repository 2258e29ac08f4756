# What `run` and `stage` ask of a node beside what node.sh does for run.sh as well: comes before that, and uses its functions.
# shellcheck shell=sh disable=SC2034,SC2154 # of node.sh

manage() {
    case $verb in
    digest) answer "digest $(tree_digest "$data")" ;;
    reserve) reserve "$@"; answer reserved ;;
    take) take "$@"; answer taken ;;
    commit) commit "$@"; answer committed ;;
    abandon) abandon ;;
    clean) clean ;;
    file-look) file_look ;;
    file-probe) file_probe "$@" ;;
    file-ready) file_ready "$1"; answer ready ;;
    file-fill) file_fill "$@" ;;
    file-commit) file_commit "$@" ;;
    file-abandon) rm -f -- "$folder$1"*; answer abandoned ;;
    file-drop) file_drop "$@" ;;
    esac
}

# An LMDB: PART BYTES
reserve() {
    make_folder
    make_part "$@"
}

# PART ROOM SOURCE SECONDS BYTES DIGEST: this node reads the source itself; it is committed if its digest is known by now.
take() {
    reserve "$1" "$2"
    copy "$1" "$3" "$4"
    if [ "$6" != - ]; then commit "$1" "$5" "$6"; fi
}

abandon() {
    undo
    answer abandoned
}

# Refuse while a process has the LMDB open: of those whose files we may look at.
check_unused() {
    for file in /proc/[0-9]*/fd/*; do
        # shellcheck disable=SC3013
        [ "$file" -ef "$data" ] || continue
        pid=${file#/proc/}
        refuse "in use: process ${pid%%/*} reads it"
    done
}

# Take away what staging has put here, and nothing else.
clean() {
    exists "$folder" || answer nothing
    check_folder "$folder"
    if ! read_stamp; then
        exists "$data" && answer "kept it was not put there by caffe-recipes"
        answer nothing
    fi
    size=0
    if exists "$data"; then
        if [ -L "$data" ] || ! stamp_fits; then answer "kept it has changed since caffe-recipes put it there"; fi
        check_unused
        size=$(stat -c %s -- "$data")
        rm -f -- "$data"
        if [ -f "$folder/lock.mdb" ]; then rm -f -- "$folder/lock.mdb"; fi
    fi
    remove_ours
    answer "cleaned $size"
}

# A file: DIGEST
is_whole() { [ "$(sha256 "$target")" = "$1" ]; }

# DIGEST BYTES KEPT: does it exist; if not the room for it, and whether this host sees the file to copy.
file_probe() {
    check_path "$folder"
    look && is_whole "$1" && answer there
    sees=0
    [ "$(size_of "$3")" = "$2" ] && [ -r "$3" ] && sees=1
    answer "absent $(room_in "${folder%/}") $sees"
}

# STEM: make the folder, and take away what a copy that was killed has left.
file_ready() {
    file_make_folder
    rm -f -- "$folder$1"*
}

# DIGEST PART: give a part its name.
file_commit() {
    part=$folder$2
    trap 'rm -f -- "$part"' EXIT
    if ! [ -f "$part" ] || [ -L "$part" ] || [ "$(sha256 "$part")" != "$1" ]; then answer differs; fi
    complaint=$(sync -- "$part" 2>&1) || refuse "cannot be written: ${complaint##*: }"
    if look; then
        complaint=$(mv -f -T -- "$part" "$target" 2>&1) || refuse "cannot be replaced: ${complaint##*: }"
    elif ! complaint=$(ln -T -- "$part" "$target" 2>&1); then
        if ! look || ! is_whole "$1"; then refuse "cannot be made: ${complaint##*: }"; fi
    fi
    sync -- "$folder" 2>/dev/null
    answer placed
}

# DIGEST PART KEPT STEM: copy a file that this host sees; set -C has `>` create the part, or fail.
file_fill() {
    file_ready "$4"
    part=$folder$2
    trap 'exit 1' TERM HUP INT
    trap 'rm -f -- "$part"' EXIT
    complaint=$( (set -C && cat -- "$3" >"$part") 2>&1) || refuse "cannot be copied: ${complaint##*: }"
    file_commit "$1" "$2"
}

# DIGEST: take away what was placed.
file_drop() {
    check_path "$folder"
    look || answer nothing
    is_whole "$1" || answer kept
    rm -f -- "$target"
    answer dropped
}
