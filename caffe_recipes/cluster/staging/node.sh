# What staging does on a node, with sh and coreutils alone; nodes.py calls it as `sh -c TEXT caffe-recipes VERB ...`.
# The last line printed is the answer. /tmp is shared with others: nothing is trusted that one of them could change.
set -u
umask 077
export LC_ALL=C
block=16777216
hashers=8
me=$(id -u)
# Who owns the folder that this was started in could change anything that is run from it: a checkout of another user.
trusted=$(stat -c %u .)

answer() {
    printf 'caffe-recipes: %s\n' "$*"
    exit 0
}

refuse() { answer "refused $(printf %s "$*" | tr -s '[:cntrl:]' ' ' | cut -c 1-300)"; }

exists() { [ -e "$1" ] || [ -L "$1" ]; }

# A folder or link is root's, ours, or theirs in whose folder we were started. Where others may write, the sticky bit keeps them from what is not theirs.
check_owned() {
    said=$(stat -c '%u 0x%f' -- "$1") || refuse "$1 cannot be looked at"
    owner=${said% *} mode=${said#* }
    [ "$owner" = 0 ] || [ "$owner" = "$me" ] || [ "$owner" = "$trusted" ] || refuse "$1 belongs to user $owner, who can change what is there"
    [ -L "$1" ] || [ $((mode & 02)) = 0 ] || [ $((mode & 01000)) != 0 ] || refuse "others can write in $1"
}

# Every folder, and every link with what it leads to, from the root on.
check_steps() {
    way='' rest=$1 links=0
    while [ -n "$rest" ]; do
        step=${rest%%/*}
        case $rest in */*) rest=${rest#*/} ;; *) rest='' ;; esac
        case $step in
        '' | .) continue ;;
        ..) way=${way%/*} && continue ;;
        esac
        if exists "$way/$step"; then check_owned "$way/$step"; fi
        if ! [ -L "$way/$step" ]; then way=$way/$step && continue; fi
        links=$((links + 1))
        [ "$links" -le 40 ] || refuse "$1 leads through links without end"
        to=$(readlink -- "$way/$step" && echo .)
        to=${to%??}
        case $to in /*) way='' ;; esac
        rest=$to/$rest
    done
}

check_way() {
    check_steps "$1"
    if exists "$1"; then
        [ -d "$1" ] || refuse "holds what is no LMDB"
        mode=0x$(stat -L -c %f -- "$1")
        [ $((mode & 02)) = 0 ] || refuse "others can write in it"
    fi
}

# Of the nearest folder that is there: the bytes that are free.
room_in() {
    near=$1
    while ! [ -d "$near" ]; do near=${near%/*}; near=${near:-/}; done
    df --output=avail -B1 -- "$near" | tail -n 1 | tr -d ' '
}

identity() { stat -L -c '%s %.9Y %i' -- "$1"; }

# Sets made, digest and was: how many folders staging made, and what data.mdb was; fails where no stamp of ours is.
read_stamp() {
    made=0 digest=- was='' format=''
    [ -f "$stamp" ] && ! [ -L "$stamp" ] && [ "$(stat -c %u -- "$stamp")" = "$me" ] || return 1
    read -r format found_made digest was <"$stamp"
    case $format:$found_made in
    caffe-recipes-1: | caffe-recipes-1:*[!0-9]*) return 1 ;;
    caffe-recipes-1:*) made=$found_made ;;
    *) return 1 ;;
    esac
}

# The stamp holds for what lies there now.
stamp_fits() { read_stamp && [ "$digest" != - ] && [ "$was" = "$(identity "$data")" ]; }

write_stamp() {
    rm -f -- "$stamp.part"
    (set -C && printf 'caffe-recipes-1 %s\n' "$*" >"$stamp.part") && sync "$stamp.part" && mv -f -T -- "$stamp.part" "$stamp"
}

# digests.py says what it is, and why.
tree_digest() {
    blocks=$((($(stat -L -c %s -- "$1") + block - 1) / block))
    workers=$(nproc)
    [ "$workers" -le "$hashers" ] || workers=$hashers
    [ "$workers" -le "$blocks" ] || workers=$blocks
    first=0
    {
        while [ "$first" -lt "$workers" ]; do
            at=$first
            while [ "$at" -lt "$blocks" ]; do
                sum=$(dd if="$1" bs="$block" skip="$at" count=1 iflag=fullblock status=none | sha256sum)
                echo "$at ${sum%% *}"
                at=$((at + workers))
            done &
            first=$((first + 1))
        done
        wait
    } | sort -n | cut -d ' ' -f 2 | sha256sum | cut -c 1-64
}

# SOURCE BYTES: what is there, and whether this node sees the source.
probe() {
    check_way "$folder"
    sees=0
    [ "$(stat -L -c %s -- "$1" 2>/dev/null)" = "$2" ] && [ -r "$1" ] && sees=1
    exists "$data" || answer "absent $(room_in "$folder") $sees"
    [ -f "$data" ] || refuse "holds what is no LMDB"
    check_steps "$data"
    check_way "$(dirname "$(readlink -f -- "$data")")"
    stamp_fits || digest=-
    answer "present $(stat -L -c %s -- "$data") $digest"
}

# PART BYTES: make the folder, and an empty file in it that is to be filled.
reserve() {
    check_way "$folder"
    way='' rest=${folder#/} new=0
    while [ -n "$rest" ]; do
        way=$way/${rest%%/*}
        case $rest in */*) rest=${rest#*/} ;; *) rest='' ;; esac
        exists "$way" && continue
        said=$(mkdir -- "$way" 2>&1) || refuse "$said"
        new=$((new + 1))
    done
    check_way "$folder"
    [ "$(stat -L -c %u -- "$folder")" = "$me" ] || refuse "belongs to user $(stat -L -c %u -- "$folder")"
    exists "$data" && refuse "another LMDB has come to lie there"
    read_stamp || ! exists "$stamp" || refuse "holds a stamp that is not ours"
    rm -f -- "$folder"/.data.mdb.part-*
    said=$(write_stamp "$((made + new)) - - - -" 2>&1) || drop "$said"
    room=$(room_in "$folder")
    [ "$room" -ge "$2" ] || drop "no room: $room bytes are free, $2 are needed"
    said=$( (set -C && : >"$folder/$1") 2>&1) || drop "$said"
}

# PART ROOM SOURCE SECONDS BYTES DIGEST: this node reads the source itself; it is committed if its digest is known by now.
take() {
    reserve "$1" "$2"
    said=$(timeout "$4" cp -- "$3" "$folder/$1" 2>&1) || refuse "cannot be copied: ${said:-not done within $4 s}"
    if [ "$6" != - ]; then commit "$1" "$5" "$6"; fi
}

# PART BYTES DIGEST: verify the part, and give it its name, which no other file loses by that.
commit() {
    part=$folder/$1
    if ! [ -f "$part" ] || [ -L "$part" ]; then refuse "what was being filled is gone"; fi
    size=$(stat -c %s -- "$part")
    [ "$size" = "$2" ] || refuse "$size of $2 bytes arrived"
    [ "$(tree_digest "$part")" = "$3" ] || refuse "what arrived is not what was sent: its digest differs"
    said=$(sync "$part" 2>&1) || refuse "$said"
    read_stamp || refuse "its stamp is gone"
    chmod 600 "$part"
    said=$(write_stamp "$made $3 $(identity "$part")" 2>&1) || refuse "$said"
    said=$(ln -T -- "$part" "$data" 2>&1) || refuse "$said"
    rm -f -- "$part"
}

remove_ours() {
    rm -f -- "$folder"/.data.mdb.part-* "$stamp.part" "$stamp"
    gone=$folder
    while [ "$made" -gt 0 ] && rmdir -- "$gone" 2>/dev/null; do
        gone=${gone%/*} made=$((made - 1))
    done
}

# Take away what is under way here.
undo() {
    read_stamp || return
    if ! exists "$data"; then
        remove_ours
    else
        rm -f -- "$folder"/.data.mdb.part-* "$stamp.part"
        stamp_fits || rm -f -- "$stamp"
    fi
}

drop() {
    undo
    refuse "$@"
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
    check_way "$folder"
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

verb=$1 folder=$2
data=$folder/data.mdb stamp=$folder/.caffe-recipes-staged
shift 2
case $verb in
probe) probe "$@" ;;
digest) answer "digest $(tree_digest "$data")" ;;
reserve) reserve "$@"; answer reserved ;;
take) take "$@"; answer taken ;;
commit) commit "$@"; answer committed ;;
abandon) abandon ;;
clean) clean ;;
esac
