#!/bin/sh
# Copies, checks and removes LMDBs and files on a node where other users can write. It needs sh and GNU coreutils. `run`,
# `stage` and `preflight` send it to nodes, after manage.sh, and call
#
#   node VERB PATH ROOT WORD...   for a file, or for the set of files of an LMDB or of TFRecords; ROOT is the Caffe root
#
# The last line of output is the answer, `caffe-recipes: WORD...`; after prelude.sh it begins with the token of the call.
# Without arguments, node.sh only defines its functions.
# /tmp is shared: a file that another user could change is never read, written through or replaced.
set -u
umask 077
export LC_ALL=C
format=1 block=16777216 hashers=8 reads=no me=$(id -u) mark=${CAFFE_RECIPES_TOKEN:-caffe-recipes:}

# Starts on a new line, since a login shell may have printed an incomplete one.
answer() { printf '\n%s %s\n' "$mark" "$*"; exit 0; }
refuse() { answer "refused $(printf %s "$*" | tr -s '[:cntrl:]' ' ' | cut -c 1-300)"; }
exists() { [ -e "$1" ] || [ -L "$1" ]; }
owner_of() { stat -c 'user %U (%u)' -- "$1" | sed 's/UNKNOWN (\([0-9]*\))/\1/'; }

# ROOT: trusts the owner of the Caffe root, such as another user's checkout: they can change its programs. So are the users, by
# their numbers, whom the user has named.
trust_owner_of() {
    trusted=$(stat -L -c %u -- "$1" 2>/dev/null) named=${CAFFE_RECIPES_TRUST-}
    root=$(cd -- "$1" 2>/dev/null && pwd -P && echo .) || root=''
    root=${root%??}/
}

# STEP: is its $owner trusted everywhere? So are the owners of the folders that contain the Caffe root, with these folders.
is_trusted() {
    case " 0 $me $trusted $named " in *" $owner "*) return ;; esac
    case $root in "$1"/*) ;; *) false ;; esac
}

# Is $owner root outside of our user namespace, as the owner of /tmp in a container may be? Users who are not mapped appear as one.
# If root alone, of this namespace or of the one around it, is mapped to one user, that user made the namespace, and all its numbers
# belong to them: `podman` maps root, and `podman --userns=keep-id` maps the user to root of a namespace that it made before.
is_unmapped() {
    [ "$owner" = "$(cat /proc/sys/kernel/overflowuid)" ] && [ -r /proc/self/uid_map ] || return 1
    is_mapped=no
    while read -r first outside count; do
        case "$count $first " in '1 0 ') return 0 ;; esac
        case "$count $outside $first" in "1 0 $me") return 0 ;; esac
        if [ "$owner" -ge "$first" ] && [ "$owner" -lt $((first + count)) ]; then is_mapped=yes; fi
    done </proc/self/uid_map
    [ $is_mapped = no ]
}

# GROUP FOLDER: is it the user's private group? Many systems give each user a group of the same name, without other members.
# With an access control list (`+`), the mode's bits of the group stand for all whom the list names. A host may lack getent.
is_private_group() {
    case $(getent group "$1" | cut -d : -f 4) in '' | "$(id -un)") ;; *) return 1 ;; esac
    case $(ls -ld -- "$2") in ??????????+*) false ;; *) [ "$1 $(id -gn)" = "$(id -g) $(id -un)" ] ;; esac
} 2>/dev/null

# STEP: prints how it relates to $target, as the start of a sentence that continues with `belongs to`.
relation() {
    case $1/ in
    "$target/") ;;
    "$target"/*) printf 'contains %s, which ' "${1#"$target"/}" ;;
    *)
        case $target in "$1"/*) how='is under' ;; *) [ "$reads" = no ] && how='leads to' || how='is used with' ;; esac
        printf '%s %s, which ' "$how" "$1"
        ;;
    esac
}

# STEP [FACTS]: checks one step of a path, whose owner, group and mode are FACTS, by the rule of caffe_recipes/trust.py. `shared` is
# open in a folder where anybody can create files, as in /tmp, and yes below it. `reads` is yes for what we only read or run;
# otherwise we write there, and believe it later. `around` owns the folder of the step, and `last` is `no` for a folder on the way.
check_step() {
    facts=${2:-$(stat -c '%u %g 0x%f' -- "$1")} || refuse "$1 cannot be examined"
    owner=${facts%% *} mode=${facts##* } group=${facts#* } form=closed
    case $mode in 0xa???) form='link' ;; *) [ $((mode & 02)) = 0 ] || form=open ;; esac
    is_trusted "$1" ||
        case $shared/$reads/$form in
        no/yes/* | no/no/closed) ;; # the user chose the path, and its owners could have put anything there
        no/no/link) [ "$owner/$last" = "${around:-$top}/no" ] || refuse_owner "$1" ;;
        no/no/open) is_unmapped || refuse_owner "$1" ;; # the sticky bit does not bind the owner
        *) refuse_owner "$1" ;;
        esac
    case $form in
    link) return ;;
    open)
        [ $((mode & 0171000)) = $((041000)) ] || refuse "$(relation "$1")can be changed by anybody"
        shared=open
        ;;
    closed)
        [ "$shared" = no ] || shared=yes
        [ "$shared" = no ] || [ $((mode & 020)) = 0 ] || is_private_group "${group% *}" "$1" ||
            refuse "$(relation "$1")can be changed by the group $(stat -c %G -- "$1")"
        [ "$owner" != 0 ] || [ "$me" = 0 ] || shared=no # others may have filled a folder of ours while it was open
        ;;
    esac
    around=$owner
}
refuse_owner() { refuse "$(relation "$1")belongs to $(owner_of "$1"), who can change its contents"; }

# PATH: refuses a path that cannot be trusted, by its folders, its links and their targets. A slash at its end says that it is on
# the way to another. Afterwards, $way is the path without links, and $mode is empty if it did not exist.
check_path() {
    way='' links=0 shared=no around='' mode='' whole=$1
    case $1 in /*) rest=$1 ;; *) rest=$PWD/$1 ;; esac
    while [ -n "$rest" ]; do
        case $rest in .. | ../*) rest=${way%/*}/${rest#..} way='' shared=no around='' mode='' ;; esac
        end=$way && set -- # the steps before the next `..`: one stat for all, since a process for each would be slow
        while [ -n "$rest" ] && step=${rest%%/*} && [ "$step" != .. ]; do
            rest=${rest#"$step"} rest=${rest#/}
            case $step in '' | .) ;; *) end=$end/$step && set -- "$@" "$end" ;; esac
        done
        seen=$(stat --printf '%n %u %g 0x%f/' -- "$@" / 2>/dev/null) # no record of a step that does not exist
        top=${seen##*/ } && top=${top%% *} # who owns /
        for way in "$@"; do
            record=${seen#"$way "} mode=''
            if [ "$record" = "$seen" ]; then
                [ "$reads$shared" = yesopen ] || continue # it could be anybody's once we read it
                refuse "$(relation "$way")does not exist, and anybody could create it"
            fi
            seen=${record#*/} last=no
            case $way$rest in "$end") case $whole in */) ;; *) last=yes ;; esac ;; esac
            check_step "$way" "${record%%/*}"
            case $mode in 0xa???) ;; *) continue ;; esac
            [ $((links += 1)) -le 40 ] || refuse "$whole has too many levels of symbolic links"
            to=$(readlink -- "$way" && echo .) || refuse "$way cannot be examined"
            rest=${to%??}${end#"$way"}/$rest way=${way%/*} # the records behind the link were not of this path
            case $to in /*) way='' shared=no around='' ;; esac
            continue 2
        done
        case $seen in "/ "*) ;; *) refuse "$end cannot be examined" ;; esac # stat did not get to its end
    done
}

# FOLDER: refuses it if it exists and other users can create files in it.
check_folder() {
    check_path "$1"
    exists "$1" || return 0
    [ -d "$1" ] || refuse "$(relation "$1")is not a folder"
    case $mode in 0x4???) ;; *) mode=0x$(stat -L -c %f -- "$1") ;; esac # it is new, or is / or a link to its own folder
    [ $((mode & 02)) = 0 ] || refuse "$(relation "$1")can be changed by anybody"
}

# FILE: refuses it if another user could change it, or replace it or the target of its link.
check_data() {
    check_path "$1"
    [ -n "$mode" ] || way=$(readlink -f -- "$1") # it is new, or in /proc/self
    way=${way%/*} && check_folder "${way:-/}"
}

# PATH: refuses a file or folder that we only read or run, if another user could have put it there; for an LMDB, its files
# too. liblmdb would create or open the target of a link named lock.mdb, so neither its owner nor who is named is trusted with that.
check_read() {
    reads=yes
    if [ -d "$1" ]; then check_folder "$1"; else check_path "$1"; fi
    [ ! -f "$1/data.mdb" ] || check_data "$1/data.mdb"
    reads=no last=yes named=''
    [ ! -L "$1/lock.mdb" ] || check_step "$1/lock.mdb"
    named=${CAFFE_RECIPES_TRUST-}
}
check_each() { for path in "$@"; do check_read "$path"; done; }

# PATH: prints the free bytes of its disk, found from its nearest parent that exists.
free_bytes() {
    near=$1
    while ! [ -d "$near" ]; do near=${near%/*}; near=${near:-/}; done
    df --output=avail -B1 -- "$near" | sed -n '$s/ *//p'
}

size_of() { if [ -f "$1" ] && [ -r "$1" ]; then stat -L -c %s -- "$1"; else echo 0; fi; }

# FILE: refuses to copy from it if another user could have put it there; a node may lack it.
check_source() { ! exists "$1" || check_read "$1"; }

sha256() { sum=$(sha256sum <"$1") && printf %s "${sum%% *}"; }

# --- An LMDB: $folder with the file $data, and the $stamp that staging writes beside it.

identity() { stat -L -c '%s %.9Y %i' -- "$1"; }
owns_stamp() { [ -f "$stamp" ] && ! [ -L "$stamp" ] && [ "$(stat -c %u -- "$stamp")" = "$me" ]; }

# Sets made, digest and was: how many folders staging made, and digest and identity of data.mdb. Fails without our stamp.
read_stamp() {
    made=0 digest=- was='' kept=''
    owns_stamp || return 1
    read -r kept found_made digest was <"$stamp"
    case $found_made in '' | *[!0-9]*) return 1 ;; esac
    [ "$kept" = "caffe-recipes-$format" ] && made=$found_made
}

stamp_fits() { read_stamp && [ "$was" = "$(identity "$data")" ]; }

write_stamp() {
    rm -f -- "$stamp.part"
    (set -C && printf '%s\n' "caffe-recipes-$format $*" >"$stamp.part") && sync "$stamp.part" && mv -f -T -- "$stamp.part" "$stamp"
}

# FILE: prints the SHA-256 of the SHA-256 digests of its blocks, which several cores compute at the same time.
tree_digest() {
    blocks=$((($(stat -L -c %s -- "$1") + block - 1) / block))
    workers=$(nproc)
    [ "$workers" -le "$hashers" ] || workers=$hashers
    [ "$workers" -le "$blocks" ] || workers=$blocks
    for first in $(seq 0 $((workers - 1))); do
        for at in $(seq "$first" "$workers" $((blocks - 1))); do
            sum=$(dd if="$1" bs="$block" skip="$at" count=1 iflag=fullblock status=none | sha256sum)
            echo "$at ${sum%% *}"
        done &
    done | sort -n | cut -d ' ' -f 2 | sha256sum | cut -c 1-64
}

# Refuses an existing copy that cannot be trusted; sets digest to `-` unless staging has verified it.
check_copy() {
    [ -f "$data" ] || refuse "contains something other than $kind"
    check_data "$data"
    stamp_fits || digest=-
}

# SOURCE BYTES: reports the copy on this node, whether it can read the source, and the source's size.
probe() {
    source=$1 source_bytes=$(size_of "$1") sees=0
    [ "$source_bytes" = "$2" ] && sees=1
    exists "$data" || { check_ours; check_source "$source"; answer "absent $(free_bytes "$folder") $sees $source_bytes"; }
    check_copy
    answer "present $(stat -L -c %s -- "$data") $digest $source_bytes"
}

# Makes $folder and sets new to the number of folders made.
make_folder() {
    check_folder "$folder"
    message=$(mkdir -p -v -- "$folder" 2>&1) || refuse "cannot be created: ${message##*: }"
    new=$(printf '%s\n' "$message" | sed '/^$/d' | wc -l)
    check_folder "$folder"
    check_ours
}
check_ours() { ! exists "$folder" || [ "$(stat -L -c %u -- "$folder")" = "$me" ] || refuse "belongs to $(owner_of "$folder/")"; }

# PART BYTES: creates the empty file to which a copy is written.
make_part() {
    exists "$data" && refuse "another ${kind#* } now exists there"
    read_stamp || owns_stamp || ! exists "$stamp" || refuse "has a stamp that is not ours"
    rm -f -- "$parts"*
    message=$(write_stamp "$((made + new)) - - - -" 2>&1) || drop "$message"
    free=$(free_bytes "$folder")
    [ "$free" -ge "$2" ] || drop "not enough space: $free bytes free, $2 needed"
    message=$( (set -C && : >"$folder/$1") 2>&1) || drop "$message"
}

# PART SOURCE SECONDS: copies the source to a part.
copy() { message=$(timeout "$3" cp -- "$2" "$folder/$1" 2>&1 8>&-) || refuse "cannot be copied: ${message:-did not finish within $3 s}"; }

# PART BYTES DIGEST: verifies the part, and gives it its final name unless a file with that name exists.
commit() {
    part=$folder/$1
    if ! [ -f "$part" ] || [ -L "$part" ]; then refuse "the partial copy has disappeared"; fi
    size=$(stat -c %s -- "$part")
    [ "$size" = "$2" ] || refuse "$size of $2 bytes arrived"
    [ "$3" = - ] || [ "$(tree_digest "$part")" = "$3" ] || refuse "the digest of the copy differs from the source's"
    message=$(sync "$part" 2>&1) || refuse "$message"
    read_stamp || refuse "its stamp has disappeared"
    chmod 600 "$part"
    message=$(write_stamp "$made $3 $(identity "$part")" 2>&1) || refuse "$message"
    message=$(ln -T -- "$part" "$data" 2>&1) || refuse "$message"
    rm -f -- "$part"
}

remove_ours() {
    rm -f -- "$parts"* "$stamp.part" "$stamp"
    gone=$folder
    while [ "$made" -gt 0 ] && rmdir -- "$gone" 2>/dev/null; do
        gone=${gone%/*} made=$((made - 1))
    done
}

undo() {
    read_stamp || return
    exists "$data" || { remove_ours; return; }
    rm -f -- "$parts"* "$stamp.part"
    stamp_fits || rm -f -- "$stamp"
}

drop() { undo; refuse "$@"; }

# --- A file of ours: $target in $folder, where other users may be able to write, too, as in /tmp.

# Sets found. Fails without a file, and refuses one that is not ours alone; ours cannot be replaced by others afterwards.
look() {
    exists "$target" || return 1
    found=$(stat -c '%u %f %i %s %.9Y' -- "$target" 2>/dev/null) || refuse "cannot be examined"
    owner=${found%% *} found=${found#* }
    case $((0x${found%% *} & 0170000)) in
    "$((0100000))") ;;
    "$((0120000))") refuse "is a symbolic link owned by $(owner_of "$target")" ;;
    *) refuse "is not a file" ;;
    esac
    is_ours "$owner" "$folder" || refuse "belongs to $(owner_of "$target")"
    [ $((0x${found%% *} & 02)) = 0 ] || refuse "can be changed by anybody"
}

file_make_folder() {
    check_path "$folder"
    [ -d "$folder" ] || message=$(mkdir -p -- "$folder" 2>&1) || refuse "its folder cannot be created: ${message##*: }"
    check_path "$folder"
}

# Reports the file.
file_look() {
    check_path "$folder"
    look || answer absent
    answer "present $found"
}

node() {
    verb=$1 target=$2
    shift 2
    case $verb in file-*) folder=${target%/*}/ ;; *) folder=$target ;; esac
    data=$target/data.mdb kind='an LMDB' parts=$target/.data.mdb.part-
    stamp=$target/.caffe-recipes-staged
    trust_owner_of "$1" && shift
    case $verb in
    read) check_each "$target" "$@"; answer trusted ;;
    trust) check_folder "$target"; check_each "$@"; answer trusted ;; # those are only read or run
    *) manage "$@" ;; # in manage.sh
    esac
}

if [ $# -gt 0 ]; then node "$@"; fi
