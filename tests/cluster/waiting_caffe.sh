#!/bin/sh
# A stand-in for Caffe of which 128 start on two cores: it trains nothing, and rank 0 alone starts processes.
# Every rank writes what it got to ranks/PHASE/RANK and waits for rank 0, which logs as Caffe does and adds to
# the weights that it started from the name of its phase: a field of the same message, as any parser takes it.
# All hosts are of one machine, so that a pipe in the shared folder joins them.
set -u
verb=${1-} solver='' weights=''
for word; do
    case $word in
    --solver=*) solver=${word#*=} ;;
    --weights=*) weights=${word#*=} ;;
    esac
done

say() { # SOURCE TEXT
    printf 'I%s %5s %s] %s\n' "$(date '+%m%d %H:%M:%S.%6N')" "$$" "$1" "$2" >&2
}

# Of the same clock on all hosts, in steps of 10 ms; asking for it starts no process.
uptime() { read -r now _ </proc/uptime && printf '%s\n' "$now"; }

evaluate() {
    [ -s "$weights" ] || exit 134
    say caffe.cpp:505 'Loss: 0.942313'
    say caffe.cpp:517 'loss = 0.942313 (* 1 = 0.942313 loss)'
    say caffe.cpp:517 'loss3/top-1 = 0.762781'
    say caffe.cpp:517 'loss3/top-5 = 0.931862'
}

lead() {
    while read -r key value _; do
        case $key in
        max_iter:) last=$value ;;
        display:) display=$value ;;
        snapshot_prefix:) prefix=${value#\"} prefix=${prefix%\"} ;;
        esac
    done <"$solver"
    say solver.cpp:397 'Solving ResNet-50'
    [ -z "$weights" ] || say caffe.cpp:218 "Finetuning from $weights"
    say solver.cpp:312 'Iteration 0, loss = 7.01'
    say sgd_solver.cpp:219 'Iteration 0, lr = 0.1'
    sleep "${STAND_IN_S:-0}"
    say solver.cpp:312 "Iteration $((last - display)), loss = 2.5"
    snapshot=${prefix}_iter_$last
    say solver.cpp:708 'Snapshot begin'
    say solver.cpp:770 "Snapshotting to binary proto file $snapshot.caffemodel"
    {
        cat -- "${weights:-start.caffemodel}"
        printf '\012'
        printf "\\$(printf %03o "${#phase}")%s" "$phase"
    } >"$snapshot.caffemodel" || exit 134
    say sgd_solver.cpp:750 "Snapshotting solver state to binary proto file $snapshot.solverstate"
    say solver.cpp:735 'Snapshot end'
    say solver.cpp:443 'Optimization Done.'
    set -- "$ranks"/[0-9]*
    until [ "$#" -eq "$PMI_SIZE" ]; do
        sleep 0.02
        set -- "$ranks"/[0-9]*
    done
    while [ "$#" -gt 1 ]; do
        printf '\n' >&3
        shift
    done
}

train() {
    phase=${solver##*/solver_} phase=${phase%.prototxt}
    ranks=ranks/$phase
    exec 3<>"$ranks/end"
    [ -z "$weights" ] || [ -s "$weights" ] || exit 134
    read -r host </proc/sys/kernel/hostname
    for name in MLSL_NUM_SERVERS MLSL_SERVER_AFFINITY OMP_NUM_THREADS KMP_AFFINITY; do
        eval "printf '%s=%s\n' $name \"\${$name-}\""
    done >"$ranks/$PMI_RANK"
    printf '%s\n' "$host" >>"$ranks/$PMI_RANK"
    if [ "$PMI_RANK" = 0 ]; then lead; else read -r _ <&3; fi
    uptime >"$ranks/end.$PMI_RANK"
}

# A preflight tries each solver in one process: nothing comes of it.
try() { say solver.cpp:443 'Optimization Done.'; }

case $verb in
train) if [ -n "${PMI_RANK-}" ]; then train; else try; fi ;;
test) evaluate ;;
*) exit 1 ;; # as gflags does, where it is asked for help
esac
