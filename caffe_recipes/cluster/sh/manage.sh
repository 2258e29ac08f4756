# The verbs of node.sh that only `run` and `stage` use, not run.sh. This is sent before node.sh, and uses its functions.
# shellcheck shell=sh disable=SC2034,SC2154 # the variables are those of node.sh

manage() {
    case $verb in
    set-*) manage_set "$@"; answer end ;;
    digest) digest ;;
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

digest() { answer "digest $(tree_digest "$data")"; }

# PART BYTES: prepares an LMDB's folder for a copy.
reserve() {
    make_folder
    make_part "$@"
}

# PART SPACE SOURCE SECONDS BYTES DIGEST: copies the source on this node; commits the copy if the digest is not `-`.
take() {
    reserve "$1" "$2"
    copy "$1" "$3" "$4"
    if [ "$6" != - ]; then commit "$1" "$5" "$6"; fi
}

abandon() {
    undo
    answer abandoned
}

# Refuses while a process has the file open, as far as we may see the open files of processes.
check_unused() {
    for file in /proc/[0-9]*/fd/*; do
        # shellcheck disable=SC3013
        [ "$file" -ef "$data" ] || continue
        pid=${file#/proc/}
        refuse "in use by process ${pid%%/*}"
    done
}

# Removes the copy made by staging, and nothing else.
clean() {
    exists "$folder" || answer nothing
    check_folder "$folder"
    if ! read_stamp; then
        exists "$data" && answer "kept it was not staged by caffe-recipes"
        answer nothing
    fi
    size=0
    if exists "$data"; then
        if [ -L "$data" ] || ! stamp_fits; then answer "kept it has changed since caffe-recipes staged it"; fi
        check_unused
        size=$(stat -c %s -- "$data")
        rm -f -- "$data"
        if [ "$kind" = 'an LMDB' ] && [ -f "$folder/lock.mdb" ]; then rm -f -- "$folder/lock.mdb"; fi
    fi
    remove_ours
    answer "cleaned $size"
}

# --- A set of files in one folder. Each is treated like the data.mdb of an LMDB, and has its own stamp. The folder has the
# stamp of an unfinished LMDB: it records how many folders were made, and is removed with the last file.
# The arguments of a verb are "NAME WORD..." for each file; the records of the answer are in the same order.

# shellcheck disable=SC2086 # names of files have no spaces
manage_set() {
    case $verb in
    set-probe) from=$1; shift; check_folder "$folder"; each_file probe_file "$@" ;;
    set-identify) each_file identify "$@" ;;
    set-digest) each_file digest "$@" ;;
    set-reserve) make_set; each_file reserve "$@" ;;
    set-take) from=$1 seconds=$2; shift 2; make_set; each_file take_file "$@" ;;
    set-commit) each_file commit "$@" ;;
    set-abandon) find_stamps; each_file abandon $names; remove_empty_set ;;
    set-clean) clean_set ;;
    esac
}

# NAME: makes the functions above work on this file of the set.
select_file() { name=$1 data=$folder/$1 kind='a file' parts=$folder/.$1.part- stamp=$folder/.$1.caffe-recipes-staged; }

# FUNCTION "NAME WORD..."...: calls the function for each file, with the file's words.
# shellcheck disable=SC2086 # names of files have no spaces
each_file() {
    function=$1
    shift
    for file in "$@"; do
        (
            set -f # the words are not patterns
            set -- $file
            set +f
            select_file "$1"
            shift
            "$function" "$@"
            answer "done"
        )
    done
}

# Reports attributes that change whenever the file is written.
identify() { answer "$(identity "$data")"; }

# BYTES
probe_file() { probe "$from/$name" "$1"; }

# PART BYTES DIGEST
take_file() { take "$1" "$2" "$from/$name" "$seconds" "$2" "$3"; }

make_set() {
    make_folder
    if read_stamp && [ "$new" = 0 ]; then return; fi
    read_stamp || ! exists "$stamp" || refuse "has a stamp that is not ours"
    message=$(write_stamp "$((made + new)) - - - -" 2>&1) || refuse "$message"
}

# Sets names to the files that have a stamp.
find_stamps() {
    names=''
    for file in "$folder"/.*.caffe-recipes-staged; do
        if [ -f "$file" ]; then file=${file##*/.} names="$names ${file%.caffe-recipes-staged}"; fi
    done
}

# Removes the folder if no staged file is left.
remove_empty_set() {
    find_stamps
    if [ -z "$names" ]; then undo; fi
}

# Removes the staged files of a set, or none if a process is reading one of them.
# shellcheck disable=SC2086 # names of files have no spaces
clean_set() {
    exists "$folder" || return
    check_folder "$folder"
    find_stamps
    for file in $names; do
        select_file "$file"
        check_unused
    done
    each_file clean $names
    data=$folder/data.mdb parts=$folder/.data.mdb.part- stamp=$folder/.caffe-recipes-staged
    remove_empty_set
}

# DIGEST: does the file $target have it?
is_complete() { [ "$(sha256 "$target")" = "$1" ]; }

# DIGEST BYTES KEPT: reports whether the file exists; if not, the free space, and whether this host can read KEPT.
file_probe() {
    check_path "$folder"
    look && is_complete "$1" && answer there
    sees=0
    [ "$(size_of "$3")" = "$2" ] && [ -r "$3" ] && sees=1
    answer "absent $(free_bytes "${folder%/}") $sees"
}

# STEM: makes the folder, and removes what a killed copy has left behind.
file_ready() {
    file_make_folder
    rm -f -- "$folder$1"*
}

# DIGEST PART: verifies a part, and gives it its final name.
file_commit() {
    part=$folder$2
    trap 'rm -f -- "$part"' EXIT
    if ! [ -f "$part" ] || [ -L "$part" ] || [ "$(sha256 "$part")" != "$1" ]; then answer differs; fi
    complaint=$(sync -- "$part" 2>&1) || refuse "cannot be written: ${complaint##*: }"
    if look; then
        complaint=$(mv -f -T -- "$part" "$target" 2>&1) || refuse "cannot be replaced: ${complaint##*: }"
    elif ! complaint=$(ln -T -- "$part" "$target" 2>&1); then
        if ! look || ! is_complete "$1"; then refuse "cannot be created: ${complaint##*: }"; fi
    fi
    sync -- "$folder" 2>/dev/null
    answer placed
}

# DIGEST PART KEPT STEM: copies KEPT, which this host can read; set -C makes `>` create a new file or fail.
file_fill() {
    file_ready "$4"
    part=$folder$2
    trap 'exit 1' TERM HUP INT
    trap 'rm -f -- "$part"' EXIT
    complaint=$( (set -C && cat -- "$3" >"$part") 2>&1) || refuse "cannot be copied: ${complaint##*: }"
    file_commit "$1" "$2"
}

# DIGEST: removes a placed file, unless it has changed.
file_drop() {
    check_path "$folder"
    look || answer nothing
    is_complete "$1" || answer kept
    rm -f -- "$target"
    answer dropped
}
