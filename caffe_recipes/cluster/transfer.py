"""Files to and from a host, by its own sh and cat: counted, private, and never half there under their names.

A file is written beside its place as a new one of mode 0600, compared in size, and renamed. What somebody
else has put in its place, a link or a file, is replaced and never written through.
"""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING

from caffe_recipes.cluster.commands import Running
from caffe_recipes.errors import ClusterError

if TYPE_CHECKING:
    from caffe_recipes.cluster.hosts import Host

# No byte in so long: the disk or the host hangs.
STALL_S = 120.0
_LONGEST_S = 86400.0
_CHUNK = 1 << 18

# set -C has `>` create the file, or fail; what is left of a copy that stops is removed there, without us.
_RECEIVE = """\
umask 077
set -C
trap 'exit 1' TERM HUP INT
trap 'rm -f -- "$2"' EXIT
cat >"$2" || exit 1
set -- "$1" "$2" "$3" "$(wc -c <"$2")"
test "$4" -eq "$3" || { echo "$4 of $3 bytes arrived" >&2; exit 1; }
mv -f -T -- "$2" "$1"
"""
_SEND = """\
test -f "$1" || { test -e "$1" && echo "is no file" >&2 || echo "No such file or directory" >&2; exit 1; }
exec 3<"$1" || exit 1
stat -L -c %s /dev/fd/3 && exec cat <&3
"""


def put_file(host: Host, path: Path, to: str) -> None:
    """Copy a file to a host; raises ClusterError, and then nothing has changed there."""
    part = f"{to}.{secrets.token_hex(4)}.part"
    where = f"{host.name}:{to}"
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            argv = ["sh", "-c", _RECEIVE, "sh", to, part, str(size)]
            with host.start(argv, _LONGEST_S) as command, _moving(command, where) as moved:
                _send(command, file, moved)
                _check(command, where)
    except OSError as error:
        raise ClusterError(path, f"cannot be copied: {error.strerror}", "check it") from None


def fetch_file(host: Host, path: str, to: Path) -> None:
    """Copy a file from a host; raises ClusterError, and then nothing has changed here."""
    where = f"{host.name}:{path}"
    part = to.with_name(f"{to.name}.{secrets.token_hex(4)}.part")
    try:
        with host.start(["sh", "-c", _SEND, "sh", path], _LONGEST_S) as command:
            command.end_input()
            with _moving(command, where) as moved, private_file(part) as file:
                expected, arrived = _receive(command, file, moved)
            _check(command, where)
        if expected != arrived:
            what = f"cannot be copied: {arrived} of {expected} bytes arrived"
            raise ClusterError(where, what, "is something still writing it?")
        part.replace(to)
    except OSError as error:
        raise ClusterError(to, f"cannot be written: {error.strerror}", "check the disk") from None
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def private_file(path: Path) -> Iterator[IO[bytes]]:
    """Create a file that was not there, for this user only, and write to it."""
    number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(number, "wb") as file:
        yield file


def _send(command: Running, file: IO[bytes], moved: Callable[[], None]) -> None:
    try:
        while chunk := file.read(_CHUNK):
            command.send(chunk)
            moved()
    except ClusterError:
        pass  # it ended before it had read all: its own words, which come next, say why
    command.end_input()
    while command.read():
        moved()


def _receive(command: Running, file: IO[bytes], moved: Callable[[], None]) -> tuple[int, int]:
    """Write what a command sends; return the size it said first, and the bytes that came."""
    head, arrived = b"", 0
    while chunk := command.read():
        moved()
        if b"\n" not in head:
            head, end, chunk = (head + chunk).partition(b"\n")
            head += end
        file.write(chunk)
        arrived += len(chunk)
    return int(head or 0), arrived


def _check(command: Running, where: str) -> None:
    code = command.wait()
    if code != 0:
        reason = " ".join(command.errors().split()) or f"its copy ended with {code}"
        raise ClusterError(
            where, f"cannot be copied: {reason.rpartition(': ')[2]}", "check its path and disk"
        )


@contextmanager
def _moving(command: Running, where: str) -> Iterator[Callable[[], None]]:
    """Stop a command, and raise ClusterError, if the function that this yields is not called for STALL_S."""
    last = time.monotonic()
    over = threading.Event()
    stalled = False

    def moved() -> None:
        nonlocal last
        last = time.monotonic()

    def watch() -> None:
        nonlocal stalled
        while not over.wait(1.0):
            if time.monotonic() - last > STALL_S:
                stalled = True
                command.stop()
                return

    watching = threading.Thread(target=watch, daemon=True)
    watching.start()
    try:
        yield moved
    except ClusterError:
        if not stalled:
            raise
    finally:
        over.set()
        watching.join()
    if stalled:
        raise ClusterError(where, f"no byte moved in {STALL_S:.0f} s", "check the host and its disks")
