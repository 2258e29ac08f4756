# The first part of every program that is sent to a host: `sh -c TEXT caffe-recipes TOKEN FUNCTION WORD...`. It needs sh
# and GNU coreutils. remote.py parses the answer. Each line of the answer, a record, begins with the random token of the
# call, since the output of a login shell or a trainer could contain any fixed mark.
set -u
umask 077
export LC_ALL=C
CAFFE_RECIPES_TOKEN=$1
shift

say() { printf '%s %s\n' "$CAFFE_RECIPES_TOKEN" "$*"; }

# OWNER FOLDER: does a file there belong to this user? On a mount with squashed root, what root creates belongs to nobody, as does
# the folder. That is only so for root of the machine, not of a container with users of its own.
is_ours() {
    [ "$1" != "$(id -u)" ] || return 0
    [ "$(id -u) $1" = "0 $(cat /proc/sys/kernel/overflowuid)" ] || return 1
    read -r first outside count </proc/self/uid_map && [ "$first $outside $count" = '0 0 4294967295' ] || return 1
    around=$(stat -L -c '%u 0x%f' -- "$2") && [ "${around% *}" = "$1" ] && [ $((${around#* } & 02)) = 0 ]
}
