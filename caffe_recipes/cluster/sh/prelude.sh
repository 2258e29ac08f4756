# The first part of every program that is sent to a host: `sh -c TEXT caffe-recipes TOKEN FUNCTION WORD...`. It needs sh
# and GNU coreutils. remote.py parses the answer. Each line of the answer, a record, begins with the random token of the
# call, since the output of a login shell or a trainer could contain any fixed mark.
set -u
umask 077
export LC_ALL=C
CAFFE_RECIPES_TOKEN=$1
shift

say() { printf '%s %s\n' "$CAFFE_RECIPES_TOKEN" "$*"; }
