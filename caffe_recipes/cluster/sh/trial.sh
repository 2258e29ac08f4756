# The trainer tried on a host: `try SECONDS NET COUNT SOLVER... COMMAND...`. The variables that a rank would get come on
# standard input, where no other user sees them, as text for sh. What the trainer writes, a core too, goes to a folder of
# its own that is taken away again, whatever ends us.
# shellcheck disable=SC3045 # a sh without it does without
ulimit -c 0 2>/dev/null
limit=$2 net=$3 count=$4
shift 4
given=$(cat)
folder='' tried=''
finish() {
    trap '' TERM HUP INT
    # It passes SIGTERM on to its whole group, and SIGKILL a second later.
    test -z "$tried" || { kill -s TERM "$tried" && wait "$tried"; } 2>/dev/null
    test -z "$folder" || rm -rf -- "$folder"
}
trap finish EXIT
trap 'exit 143' TERM HUP INT
give_up() {
    say refused "cannot be tried: no file can be written to ${TMPDIR:-/tmp}: ${1:-is it full?}"
    exit 0
}
made=$(mktemp -d "${TMPDIR:-/tmp}/caffe-recipes-trial-XXXXXXXXXX" 2>&1) || give_up "${made##*: }"
folder=$made
cd "$folder" || give_up
printf %s "$net" 2>/dev/null >net.prototxt || give_up
number=0
while [ "$number" -lt "$count" ]; do
    printf %s "$1" 2>/dev/null >"solver_$number.prototxt" || give_up
    number=$((number + 1))
    shift
done
number=0
while [ "$number" -lt "$count" ]; do
    (
        unset LC_ALL # which is of the prelude
        eval "$given"
        # In a group of its own: what the trainer starts ends with it.
        exec timeout -k 1 "$limit" "$@" train "--solver=solver_$number.prototxt"
    ) >log 2>&1 </dev/null &
    tried=$!
    wait "$tried"
    code=$?
    tried=''
    say tried "$code" "$(tail -c 20000 log | base64 -w 0)"
    number=$((number + 1))
done
