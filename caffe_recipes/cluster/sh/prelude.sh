# Comes before every program that is sent to a host: `sh -c TEXT caffe-recipes TOKEN FUNCTION WORD...`. remote.py reads
# the answer. It needs sh and GNU coreutils. A line of the answer, a record, begins with the token of the call: what a
# login shell or a trainer prints may look like anything else.
set -u
umask 077
export LC_ALL=C
CAFFE_RECIPES_TOKEN=$1
shift

say() { printf '%s %s\n' "$CAFFE_RECIPES_TOKEN" "$*"; }
