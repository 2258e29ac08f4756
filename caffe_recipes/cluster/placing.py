"""Files of ours on hosts where others may write beside them: looked at, placed whole, taken away.

In a shared /tmp anybody can make a link or a file under the name that we are about to use. Nothing is written
through a link, read from another's file, or put over one: those are errors that name host and path.
"""

from __future__ import annotations

import hashlib
import posixpath
import secrets
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from caffe_recipes.cluster.hosts import COMMAND_S, Host
from caffe_recipes.cluster.parallel import ask_all, first_error
from caffe_recipes.cluster.staging.nodes import seconds_for
from caffe_recipes.errors import ClusterError

_ANSWER = "caffe-recipes: "
_ALL_S = 86400.0
_BLOCK_BYTES = 4096  # in which a disk gives its room

# `sh -c TEXT sh VERB PATH ROOT ...`; the last line printed is the answer. ROOT is the folder whose owner can
# change what we run. What lies where only its folder's owner may write was put there by him; so a step of a
# path is doubted only where others may write beside it.
_PROGRAM = r"""
set -u
umask 077
export LC_ALL=C
verb=$1 target=$2
folder=${target%/*}/
me=$(id -u)
trusted=$(stat -L -c %u -- "$3" 2>/dev/null) || trusted=$me
shift 3

say() { printf 'caffe-recipes: %s\n' "$*"; exit 0; }
refuse() { say "refused $(printf %s "$*" | tr -s '[:cntrl:]' ' ' | cut -c 1-300)"; }
doubt() { refuse "lies under $way, $*"; }
digest() { sum=$(sha256sum <"$1") && printf %s "${sum%% *}"; }

check_steps() {
    way='' open=0 rest=${1#/}
    while [ -n "$rest" ]; do
        way=$way/${rest%%/*}
        case $rest in */*) rest=${rest#*/} ;; *) rest='' ;; esac
        [ -e "$way" ] || [ -L "$way" ] || return 0
        owner=$(stat -c %u -- "$way") || doubt "which cannot be looked at"
        case " 0 $me $trusted " in
        *" $owner "*) ;;
        *) [ "$open" = 0 ] || doubt "of user $(stat -c %U -- "$way"), who can exchange it" ;;
        esac
        [ -e "$way" ] || doubt "a link to nothing"
        mode=0x$(stat -L -c %f -- "$way")
        [ $((mode & 02)) = 0 ] || [ $((mode & 01000)) != 0 ] || doubt "where anybody can exchange it"
        open=$((mode & 02))
    done
}

check_way() {
    check_steps "$folder"
    real=$(readlink -f -- "$folder") && [ "$real/" != "$folder" ] && check_steps "$real"
    return 0
}

# One call of stat: what is ours, others cannot exchange afterwards.
look() {
    stamp=$(stat -c '%u %f %i %s %.9Y' -- "$target" 2>/dev/null) || {
        [ -e "$target" ] || [ -L "$target" ] || return 1
        refuse "cannot be looked at"
    }
    owner=${stamp%% *} stamp=${stamp#* }
    case $((0x${stamp%% *} & 0170000)) in
    "$((0100000))") ;;
    "$((0120000))") refuse "is a symbolic link, of user $(stat -c %U -- "$target")" ;;
    *) refuse "is no file" ;;
    esac
    [ "$owner" = "$me" ] || refuse "belongs to user $(stat -c %U -- "$target")"
}

is_whole() { [ "$(digest "$target")" = "$1" ]; }

# DIGEST BYTES KEPT: is it there; else the room there is, and whether this host sees the file to copy.
probe() {
    check_way
    look && is_whole "$1" && say there
    near=$folder
    while ! [ -d "$near" ]; do near=${near%/}; near=${near%/*}/; done
    sees=0
    [ "$(stat -L -c %s -- "$3" 2>/dev/null)" = "$2" ] && [ -r "$3" ] && sees=1
    say "absent $(df --output=avail -B1 -- "$near" | tail -n 1 | tr -d ' ') $sees"
}

# STEM: make the folder, and take away what a copy that was killed has left.
ready() {
    said=$(mkdir -p -- "$folder" 2>&1) || refuse "its folder cannot be made: ${said##*: }"
    check_way
    rm -f -- "$folder$1"*
}

# DIGEST PART: give a part its name.
commit() {
    part=$folder$2
    trap 'rm -f -- "$part"' EXIT
    [ -f "$part" ] && ! [ -L "$part" ] && [ "$(digest "$part")" = "$1" ] || say differs
    said=$(sync -- "$part" 2>&1) || refuse "cannot be written: ${said##*: }"
    if look; then
        said=$(mv -f -T -- "$part" "$target" 2>&1) || refuse "cannot be replaced: ${said##*: }"
    elif ! said=$(ln -T -- "$part" "$target" 2>&1); then
        look && is_whole "$1" || refuse "cannot be made: ${said##*: }"
    fi
    sync -- "$folder" 2>/dev/null
    say placed
}

# DIGEST PART KEPT: copy a file that this host sees; set -C has `>` create the part, or fail.
fill() {
    part=$folder$2
    trap 'exit 1' TERM HUP INT
    trap 'rm -f -- "$part"' EXIT
    said=$( (set -C && cat -- "$3" >"$part") 2>&1) || refuse "cannot be copied: ${said##*: }"
    commit "$1" "$2"
}

# DIGEST: take away what was placed.
drop() {
    check_way
    look || say nothing
    is_whole "$1" || say kept
    rm -f -- "$target"
    say dropped
}

case $verb in
look) check_way; if look; then say "present $stamp"; else say absent; fi ;;
probe) probe "$@" ;;
ready) ready "$1"; say ready ;;
fill) ready "$4"; fill "$@" ;;
commit) commit "$@" ;;
abandon) rm -f -- "$folder$1"*; say abandoned ;;
drop) drop "$@" ;;
esac
"""


@dataclass(frozen=True)
class Placed:
    """A file that hosts are to have at `to`, whole: here it is `kept`."""

    kept: Path
    to: str
    sha256: str


def look_at(host: Host, path: str, root: Path) -> str | None:
    """Return the stamp of a file of ours on a host (as `file_stamp`'s), or None if nothing is there.

    Raises ClusterError for a link, another user's file or folder, or a folder where anybody may change what
    is in it. `root` is the folder of what we run, whose owner is believed.
    """
    words = _ask(host, "look", path, root)
    return " ".join(words[1:]) if words[0] == "present" else None


def place_files(hosts: Sequence[Host], root: Path, files: Sequence[Placed]) -> None:
    """See to it that every host has the files; what is there and right is not sent again.

    Raises ClusterError, which names the host; what it says failed has changed nothing under the file's name.
    """
    sizes = [_size(file.kept) for file in files]
    several = {host.name: host for host in hosts}.values()
    groups = [list(several)]
    if any(Path(file.to).is_relative_to(root) for file in files):
        # All hosts may see one folder there: what the first has written, the others find.
        groups = [groups[0][:1], groups[0][1:]]
    for group in groups:
        error = first_error(ask_all(group, lambda host: _place(host, root, files, sizes), _ALL_S))
        if error is not None:
            raise error


def drop_files(hosts: Sequence[Host], root: Path, files: Sequence[tuple[str, str]]) -> None:
    """Delete from hosts what is ours, and still has its digest, of (path, SHA-256) pairs; best effort."""

    def drop(host: Host) -> None:
        for path, sha256 in files:
            _ask(host, "drop", path, root, sha256, limit_s=600)

    ask_all(list({host.name: host for host in hosts}.values()), drop, _ALL_S)


def _place(host: Host, root: Path, files: Sequence[Placed], sizes: Sequence[int]) -> None:
    answers = [
        _ask(host, "probe", file.to, root, file.sha256, str(size), str(file.kept), limit_s=seconds_for(size))
        for file, size in zip(files, sizes, strict=True)
    ]
    missing = [
        (file, size, answer[2] == "1")
        for file, size, answer in zip(files, sizes, answers, strict=True)
        if answer[0] == "absent"
    ]
    needed = sum(-(-size // _BLOCK_BYTES) * _BLOCK_BYTES for _, size, _ in missing)
    rooms = [int(answer[1]) for answer in answers if answer[0] == "absent"]
    if missing and min(rooms) < needed:
        what = f"no room: {min(rooms):,} bytes are free, {needed:,} are needed"
        raise ClusterError(f"{host.name}:{posixpath.dirname(missing[0][0].to)}", what, "make room there")
    for file, size, sees in missing:
        _send(host, root, file, size, sees)


def _send(host: Host, root: Path, file: Placed, size: int, sees: bool) -> None:
    """Have the host copy the file itself; where it cannot, or sees another, put it there."""
    stem = f".caffe-recipes-{host.name}-{hashlib.sha256(file.to.encode()).hexdigest()[:12]}-"
    part = f"{stem}{secrets.token_hex(4)}"
    limit_s = 2 * seconds_for(size)
    if sees:
        words = _ask(host, "fill", file.to, root, file.sha256, part, str(file.kept), stem, limit_s=limit_s)
        if words[0] == "placed":
            return
    _ask(host, "ready", file.to, root, stem)
    try:
        host.put(file.kept, posixpath.join(posixpath.dirname(file.to), part))
        words = _ask(host, "commit", file.to, root, file.sha256, part, limit_s=limit_s)
    except ClusterError as error:
        with suppress(ClusterError):
            _ask(host, "abandon", file.to, root, stem)
        if part not in error.where:
            raise
        raise ClusterError(f"{host.name}:{file.to}", error.what, error.hint) from None
    if words[0] != "placed":
        where = f"{host.name}:{file.to}"
        raise ClusterError(where, f"what arrived is not {file.kept}: its digest differs", "run again")


def _ask(host: Host, verb: str, path: str, root: Path, *words: str, limit_s: float = COMMAND_S) -> list[str]:
    done = host.run(["sh", "-c", _PROGRAM, "sh", verb, path, str(root), *words], limit_s)
    last = done.stdout.rstrip("\n").rpartition("\n")[2]
    where = f"{host.name}:{path}"
    if not last.startswith(_ANSWER):
        said = " ".join((done.stderr or done.stdout).split())[:200]
        what = f"gives no answer that can be read: {said or f'exit {done.returncode}'}"
        raise ClusterError(where, what, "check that the host has sh and GNU coreutils")
    answer = last.removeprefix(_ANSWER).split()
    if answer[0] == "refused":
        raise ClusterError(where, " ".join(answer[1:]), "remove it, or snapshot to another folder")
    return answer


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError as error:
        raise ClusterError(path, f"cannot be read: {error.strerror}", "restore it") from None
