# The verbs of node.sh that write. This is sent before node.sh, and uses its functions.
# shellcheck shell=sh disable=SC2034,SC2154 # the variables are those of node.sh

manage() {
    case $verb in
    file-look) file_look ;;
    file-probe) file_probe "$@" ;;
    file-ready) file_ready "$1"; answer "ready ${part##*/}" ;;
    file-fill) file_fill "$@" ;;
    file-commit) file_commit "$@" ;;
    file-abandon) rm -f -- "$folder$1"*; answer abandoned ;;
    file-drop) file_drop "$@" ;;
    read-data) check_dataset now "$@"; answer trusted ;;
    may-read-data) check_dataset later "$@"; answer trusted ;;
    *) manage_set "$@"; answer end ;;
    esac
}

# WHEN [FILE...]: checks a folder of data; of the files that describe it, only the first that exists is read. If they are read
# `later`, after staging, they may be absent; until then, anybody could put others there, so they are checked again.
check_dataset() {
    when=$1 near=$target
    shift
    if [ "$when" = now ] || exists "$target"; then
        check_read "$target"
    else
        until exists "$near"; do near=${near%/*} near=${near:-/}; done
        reads=yes
        check_path "$near"
        reads=no
    fi
    [ $# -gt 0 ] || return 0
    for file in "$@"; do if exists "$file"; then break; fi; done
    if [ "$when" = now ] || exists "$file"; then check_read "$file"; fi
}

# --- A set of files in one folder; an LMDB is a set of one file, data.mdb. Each file has its own stamp. The folder of a set
# has the stamp of an unfinished LMDB: it records how many folders were made, and is removed with the last file.
# The arguments of a verb are "NAME WORD..." for each file; the records of the answer are in the same order.
# `abandon` and `clean` take names, or find the files that have a stamp.

# shellcheck disable=SC2086 # names of files have no spaces
manage_set() {
    case $verb in
    survey) from=$1; shift; check_folder "$folder"; each_file survey_file "$@" ;;
    identify) each_file identify "$@" ;;
    digest) each_file digest "$@" ;;
    reserve) make_set "$1"; each_file reserve "$@" ;;
    take) from=$1 seconds=$2; shift 2; make_set "$1"; each_file take "$@" ;;
    commit) each_file commit_file "$@" ;;
    abandon) name_files "$@"; each_file undo $names; remove_empty_set "$@" ;;
    clean) clean_set "$@" ;;
    esac
}

# NAME: makes the functions of node.sh work on this file of the set.
select_file() {
    name=$1 data=$folder/$1 kind='a file' parts=$folder/.$1.part- stamp=$folder/.$1.caffe-recipes-staged
    if [ "$1" = data.mdb ]; then kind='an LMDB' stamp=$folder/.caffe-recipes-staged; fi
}

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

# BYTES
survey_file() { probe "$from/$name" "$1"; }

# Reports attributes that change whenever the file is written.
identify() {
    found=$(stat -L -c '%f %i %s %.9Y' -- "$data") || refuse "cannot be examined"
    answer "$found"
}

digest() { answer "digest $(tree_digest "$data")"; }

# PART SPACE...: prepares the folder for a copy.
reserve() {
    make_folder
    make_part "$@"
}

# PART SPACE BYTES DIGEST: copies the file from $from on this node; commits the copy if the digest is not `-`.
take() {
    check_read "$from/$name"
    reserve "$1" "$2"
    copy "$1" "$from/$name" "$seconds"
    if [ "$4" != - ]; then commit "$1" "$3" "$4"; fi
}

# PART SPACE BYTES DIGEST
commit_file() { commit "$1" "$3" "$4"; }

# NAME...: makes the folder, and writes its stamp unless the set is an LMDB, which writes its own.
make_set() {
    case $1 in 'data.mdb '*) return ;; esac
    make_folder
    if read_stamp && [ "$new" = 0 ]; then return; fi
    owns_stamp || ! exists "$stamp" || refuse "has a stamp that is not ours"
    message=$(write_stamp "$((made + new)) - - - -" 2>&1) || refuse "$message"
}

# [NAME...]: sets names to these files, or to those that have a stamp.
name_files() {
    names=$*
    [ -z "$names" ] || return
    for file in "$folder"/.*.caffe-recipes-staged; do
        if [ -f "$file" ]; then file=${file##*/.} names="$names ${file%.caffe-recipes-staged}"; fi
    done
}

# [NAME...]: without names, removes the folder if no staged file is left.
remove_empty_set() {
    name_files "$@"
    select_file data.mdb
    if [ -z "$names" ]; then undo; fi
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

# [NAME...]: removes staged files, or none if a process is reading one of them.
# shellcheck disable=SC2086 # names of files have no spaces
clean_set() {
    exists "$folder" || return
    check_folder "$folder"
    name_files "$@"
    for file in $names; do
        select_file "$file"
        if stamp_fits; then check_unused; fi
    done
    each_file clean $names
    remove_empty_set "$@"
}

# Removes the copy made by staging, and nothing else.
clean() {
    if ! read_stamp; then
        exists "$data" && answer "kept it was not staged by caffe-recipes"
        answer nothing
    fi
    size=0
    if exists "$data"; then
        if [ -L "$data" ] || ! stamp_fits; then answer "kept it has changed since caffe-recipes staged it"; fi
        size=$(stat -c %s -- "$data")
        rm -f -- "$data"
        if [ "$kind" = 'an LMDB' ] && [ -f "$folder/lock.mdb" ]; then rm -f -- "$folder/lock.mdb"; fi
    fi
    remove_ours
    answer "cleaned $size"
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

# STEM: makes the folder, removes what a killed copy has left behind, and sets part to a new empty file. mktemp names it, since
# another user could make a pipe of a name that he sees in our argv, and `>` opens a pipe even under set -C. Signals do not end
# mktemp, so that our traps know the name, nor rm.
file_ready() {
    file_make_folder
    rm -f -- "$folder$1"*
    part=$(trap '' TERM HUP INT && mktemp -- "$folder$1XXXXXXXXXX" 2>&1) || {
        complaint=$part part=''
        refuse "cannot be created: ${complaint##*: }"
    }
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

# DIGEST KEPT STEM: copies KEPT, which this host can read.
file_fill() {
    part=''
    trap 'exit 1' TERM HUP INT
    trap 'trap "" TERM HUP INT; test -z "$part" || rm -f -- "$part"' EXIT
    file_ready "$3"
    complaint=$( (cat -- "$2" >"$part") 2>&1) || refuse "cannot be copied: ${complaint##*: }"
    file_commit "$1" "${part##*/}"
}

# DIGEST: removes a placed file, unless it has changed.
file_drop() {
    check_path "$folder"
    look || answer nothing
    is_complete "$1" || answer kept
    rm -f -- "$target"
    answer dropped
}
