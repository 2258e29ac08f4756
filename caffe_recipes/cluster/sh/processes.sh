# Finds the processes of launches by their environment. This is sent before facts.sh and ranks.sh; it needs IFS=$newline and
# `set -f` when a function is called, and in $launchers the patterns of the names of launchers' processes, one per line.
# shellcheck shell=sh
newline='
'

# FILES START: sets candidates to the processes, one per line, that name a launch beginning with START. FILES are their
# /proc/PID/environ, one per line. One `tail` reads them all, since a fork for each would be slow.
find_candidates() {
    candidates='' near=''
    # shellcheck disable=SC2086
    for entry in $(tail -v -c +1 -- /dev/null $1 2>/dev/null | tr '\0' '\n'); do
        case $entry in
        '==> /proc/'*'/environ <==') near=${entry#'==> /proc/'} near=${near%%/*} ;;
        CAFFE_RECIPES_LAUNCH="$2"*)
            case $newline$candidates in *"$newline$near$newline"*) ;; *) candidates="$candidates$near$newline" ;; esac
            ;;
        esac
    done
}

# PID COMM: sets launch, and rank unless the process is of a launcher, though Slurm numbers batch scripts and proxies, too. A line
# break within a value becomes \1, so that no value can look like an entry.
read_launch() {
    launch='' pmi='' pmix='' slurm='' step='' open=''
    for entry in $( (tr '\n\0' '\1\n' <"/proc/$1/environ") 2>/dev/null); do
        case $entry in
        CAFFE_RECIPES_LAUNCH=*) launch=${launch:-"=${entry#*=}"} ;;
        PMI_RANK=*) pmi=${entry#*=} ;;
        PMIX_RANK=*) pmix=${entry#*=} ;;
        SLURM_PROCID=*) slurm=${entry#*=} ;;
        SLURM_STEP_ID=*) step=1 ;;
        OMPI_COMM_WORLD_RANK=*) open=${entry#*=} ;;
        esac
    done
    launch=${launch#=}
    rank=${pmi:-${pmix:-${step:+$slurm}}}
    rank=${rank:-$open}
    ! is_named "$2" "$launchers" || rank=''
    case $rank in *[!0-9]* | ?????????*) rank='' ;; esac
}

# COMM PATTERNS: does a process have a name that one of the patterns, one per line, matches?
is_named() {
    # shellcheck disable=SC2254 # they are patterns
    for pattern in $2; do case $1 in $pattern) return 0 ;; esac; done
    return 1
}
