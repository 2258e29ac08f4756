# The first part of every program that is sent to a host: `sh -c TEXT caffe-recipes TOKEN FUNCTION WORD...`. remote.py
# reads the answer. It needs sh and GNU coreutils. Each line of the answer, a record, begins with the random token of the
# call, since the output of a login shell or a trainer could look like any fixed mark.
set -u
umask 077
export LC_ALL=C
CAFFE_RECIPES_TOKEN=$1
shift

say() { printf '%s %s\n' "$CAFFE_RECIPES_TOKEN" "$*"; }
