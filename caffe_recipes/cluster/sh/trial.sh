# Tries the trainer on a host: `try SECONDS COUNT [NAME TEXT]... COUNT [WORDS]... COMMAND...`. The files are written to a new
# folder, and each attempt runs the command followed by its WORDS, which are quoted for sh. The variables of a rank are read
# from standard input, as shell text, so that no other user sees them. The trainer's output and core dumps go to that folder,
# which is always removed at the end.
# shellcheck disable=SC3045 # a shell without this option ignores the line
ulimit -c 0 2>/dev/null
limit=$2 count=$3
shift 3
given=$(cat)
folder='' tried=''
finish() {
    trap '' TERM HUP INT
    # `timeout` forwards SIGTERM to its process group, and sends SIGKILL a second later.
    test -z "$tried" || { kill -s TERM "$tried" && wait "$tried"; } 2>/dev/null
    test -z "$folder" || rm -rf -- "$folder"
}
trap finish EXIT
trap 'exit 143' TERM HUP INT
give_up() {
    say refused "cannot be tried: cannot write to ${TMPDIR:-/tmp}: ${1:-is it full?}"
    exit 0
}
made=$(mktemp -d "${TMPDIR:-/tmp}/caffe-recipes-trial-XXXXXXXXXX" 2>&1) || give_up "${made##*: }"
folder=$made
cd "$folder" || give_up
while [ "$count" -gt 0 ]; do
    printf %s "$2" 2>/dev/null >"$1" || give_up
    count=$((count - 1))
    shift 2
done
count=$1 attempts=''
shift
while [ "$count" -gt 0 ]; do
    # One per line: no word of an attempt contains a line break.
    attempts="$attempts$1
"
    count=$((count - 1))
    shift
done
printf %s "$attempts" 2>/dev/null >attempts || give_up
while IFS= read -r words <&3; do
    (
        eval "set -- \"\$@\" $words"
        unset LC_ALL # set by the prelude
        eval "$given"
        # In its own process group, so that what the trainer starts ends with it.
        exec timeout -k 1 "$limit" "$@"
    ) >log 2>&1 </dev/null 3<&- &
    tried=$!
    wait "$tried"
    code=$?
    tried=''
    say tried "$code" "$(tail -c 20000 log | base64 -w 0)"
done 3<attempts
