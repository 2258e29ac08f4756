"""Run commands on a host so that none outlives this program, and copy files to and from the host.

Every command runs under a supervisor, a few lines of sh, both on this machine and over ssh. `timeout` from
coreutils limits its time and puts it in its own process group. The supervisor ends that group on SIGTERM, and
when the supervisor's parent has gone: this process or, on another host, the sshd process of our connection.
So no process is left behind when a command is stopped, this program is killed or a connection is lost. A host
needs sh and coreutils.

A copy is written to a new file of mode 0600 beside its destination; its size is checked, and then it is
renamed. A link or file that somebody else has put at the destination is replaced, never written through.
"""

from __future__ import annotations

import base64
import errno
import math
import os
import re
import secrets
import shlex
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol

from caffe_recipes.errors import (
    ClusterError,
    CommandTimedOut,
    DiskFailed,
    HostFailed,
    hint_for,
    hint_for_reason,
)
from caffe_recipes.files.atomic_writes import name_beside
from caffe_recipes.limits import hint_at_limit, limit

# Gets a line about the progress of something.
Say = Callable[[str], None]
COMMAND_S = 60.0
# Seconds from SIGTERM to SIGKILL.
GRACE_S = 2
# The host itself ends a command this much later than we would, in case the connection is dead.
_HOST_MARGIN_S = 5
_CHUNK = 1 << 16
# The most that a login shell may print before a command.
_GREETING_BYTES = 1_000_000
# How much is kept of either end of standard error: the mark is at its start, and the reason at its end.
_ERROR_BYTES = 500_000
_MARK_BYTES = 64  # of the marked line, at most
_NOT_STARTED = "timeout: failed to run command"

# $1 is a mark after which the command's own output begins: a login shell may print something before it.
# `wait` returns early when a trap has run, so it is in a loop. A forked child inherits the traps until it
# execs its program, and loses any signal until then. So the guard starts before our traps are set, and exits
# by itself if no signal reaches it; and SIGKILL follows every SIGTERM.
_SUPERVISOR = f"""\
mark=$1 limit=$2 init=$3 ending=0 job= guard=
shift 3
# Already an orphan: the connection was lost while the shell started.
test "$PPID" -ne 1 || test "$init" -eq 1 || exit 143
printf '%s %s\\n' "$mark" "$$"
printf '%s %s\\n' "$mark" "$$" >&2
if kill -0 "$PPID" 2>/dev/null; then
    (
        while kill -0 "$PPID" && kill -0 "$$"; do sleep 1; done
        kill -s TERM "$$"
    ) >/dev/null 2>&1 &
    guard=$!
else
    while read -r key value; do
        case $key in PPid:) test "$value" -eq "$PPID" || exit 143 ;; esac
    done 2>/dev/null </proc/$$/status
fi
end() {{
    ending=$((ending + 1))
    test -n "$job" && test "$ending" -eq 1 || return
    kill -s TERM -- "$job" "-$job"
    while kill -0 "$job" && test "$ending" -le {GRACE_S}0; do sleep 0.1; ending=$((ending + 1)); done
    kill -s KILL -- "$job" "-$job"
}}
trap 'end 2>/dev/null' TERM HUP INT
exec 3<&0 </dev/null
timeout -k {GRACE_S} "$limit" "$@" <&3 3<&- &
job=$!
test "$ending" -eq 0 || {{ ending=0; end 2>/dev/null; }}
exec 3<&-
while wait "$job"; code=$?; kill -0 "$job" 2>/dev/null; do :; done
test -z "$guard" || kill "$guard"
exit "$code"
"""


@dataclass(frozen=True)
class Completed:
    """The exit code and output of a finished command."""

    returncode: int
    stdout: str
    stderr: str


class ByteStream(Protocol):
    """The standard streams of a supervisor, local or over ssh; each method may raise ClusterError."""

    def read(self, most: int) -> bytes:
        """Return up to `most` bytes of its standard output, or b"" at the end."""

    def read_errors(self, most: int) -> bytes:
        """Return up to `most` bytes of its standard error, or b"" at the end."""

    def send(self, data: bytes) -> None:
        """Write to its standard input."""

    def end_input(self) -> None:
        """Close its standard input."""

    def code(self) -> int:
        """Wait until the process ends, and return its exit code."""

    def end(self, pid: int | None) -> None:
        """Send SIGTERM to the process; `pid` is its process id on the host, None if not yet reported."""

    def close(self) -> None:
        """Close the streams."""


def supervise(argv: Sequence[str], limit_s: float | None) -> tuple[str, list[str]]:
    """Return a mark, and the argv of a supervisor that prints this mark and then runs `argv`.

    The host ends the command a few seconds after `limit_s`; None means no limit. Raises ClusterError if an
    argument contains a null byte.
    """
    if any("\0" in word for word in argv):
        raise ClusterError("", f"{argv[0]!r}: an argument contains a null byte", "remove it")
    mark = f"caffe-recipes-{secrets.token_hex(8)}"
    limit = "0" if limit_s is None else str(math.ceil(limit_s) + _HOST_MARGIN_S)  # 0: no limit
    init = (
        "1" if os.getpid() == 1 else "0"
    )  # in a container we may be process 1, whose child is not an orphan
    return mark, ["sh", "-c", _SUPERVISOR, "sh", mark, limit, init, *argv]


def quote_command(argv: Sequence[str]) -> str:
    """Return `argv` as text for the login shell that sshd starts, whichever shell that is.

    The words are quoted for sh and encoded in base64, so that csh and fish have nothing to interpret. Each
    shell execs the next program, so the command is a child of sshd and notices when sshd has gone.

    >>> quote_command(["echo", "it's"])
    'exec sh -c \\'eval "$(printf %s ZXhlYyBlY2hvICdpdCciJyIncyc= | base64 -d)"\\''
    """
    words = base64.b64encode(os.fsencode("exec " + shlex.join(argv))).decode("ascii")
    return f"exec sh -c 'eval \"$(printf %s {words} | base64 -d)\"'"


class Running:
    """A command running on a host; leaving its `with` block ends it."""

    def __init__(self, host: str, argv: Sequence[str], mark: str, wire: ByteStream) -> None:
        """Attach to a supervisor that was started with `mark`."""
        self.host, self.argv, self.mark, self._wire = host, tuple(argv), mark, wire
        self._tail: bytes | None = b""  # the end of what came before the mark; None after the mark
        self._greeting_bytes = 0
        self._errors = bytearray()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def read(self, most: int = _CHUNK) -> bytes:
        """Return up to `most` bytes of its standard output, as soon as any arrive; b"" at its end."""
        while self._tail is not None:
            more = self._wire.read(most)
            self._greeting_bytes += len(more)
            found = _after_mark(self._tail + more, self.mark)
            if found is not None:
                self._tail = None
                if found[1]:
                    return found[1]
            elif not more:
                return b""
            elif self._greeting_bytes > _GREETING_BYTES:
                what = f"its login shell printed over {_GREETING_BYTES:,} bytes before {self.argv[0]}"
                raise HostFailed(self.host, what, "keep its login shell from printing anything")
            else:
                self._tail = (self._tail + more)[-_MARK_BYTES:]
        return self._wire.read(most)

    def send(self, data: bytes) -> None:
        """Write to its standard input."""
        self._wire.send(data)

    def end_input(self) -> None:
        """Close its standard input."""
        self._wire.end_input()

    def wait(self) -> int:
        """Return its exit code; its output must have been read to the end. Raises ClusterError."""
        self._listener.join()
        code = self._wire.code()
        errors = self.errors()
        self._wire.close()
        if code in (126, 127) and errors.startswith(_NOT_STARTED):
            reason = errors.strip().rpartition(": ")[2]
            raise HostFailed(self.host, f"{self.argv[0]} does not start: {reason}", "check its path")
        return code

    def errors(self) -> str:
        """Return what it has written to its standard error so far; of a long text, both ends."""
        found = _after_mark(bytes(self._errors), self.mark)
        return (bytes(self._errors) if found is None else found[1]).decode(errors="replace")

    def stop(self) -> None:
        """End it and its process group if still running, with SIGTERM, and SIGKILL after GRACE_S."""
        found = _after_mark(bytes(self._errors), self.mark)
        self._wire.end(found[0] if found else None)
        self._wire.close()

    def finish(self, timeout_s: float, stdin: bytes = b"") -> Completed:
        """Write its input, read its output, and wait until it ends. Raises ClusterError after `timeout_s`."""
        stdout = bytearray()
        failed: list[Exception] = []
        deadline = time.monotonic() + timeout_s
        threads = [
            threading.Thread(target=_collect_error, args=(act, failed), daemon=True)
            for act in (lambda: self._feed(stdin), lambda: self._collect(stdout))
        ]
        try:
            for thread in threads:
                thread.start()
            threads[1].join(timeout_s)
            self._listener.join(max(0.0, deadline - time.monotonic()))
        except BaseException:  # such as Ctrl-C
            self.stop()
            raise
        if threads[1].is_alive() or self._listener.is_alive():
            self.stop()
            raise CommandTimedOut(self.host, self.argv[0], timeout_s)
        if failed:
            raise failed[0]
        return Completed(self.wait(), stdout.decode(errors="replace"), self.errors())

    def _feed(self, data: bytes) -> None:
        with suppress(ClusterError):  # a command need not read all of its input
            self._wire.send(data)
        self._wire.end_input()

    def _collect(self, stdout: bytearray) -> None:
        most = limit("answer-bytes")
        try:
            while chunk := self.read():
                stdout += chunk
                if len(stdout) > most:
                    raise too_long(self.host, self.argv[0])
        except HostFailed:
            self.stop()  # it would go on, and nobody reads it
            raise

    def _listen(self) -> None:
        try:
            while chunk := self._wire.read_errors(_CHUNK):
                self._errors += chunk
                del self._errors[_ERROR_BYTES:-_ERROR_BYTES]
        except (ClusterError, OSError, ValueError):
            return  # `wait` reports what broke the connection


def too_long(host: str, program: str) -> HostFailed:
    """Return the error for an answer over the limit `answer-bytes`."""
    what = f"{program} printed over {limit('answer-bytes'):,} bytes"
    return HostFailed(host, what, hint_at_limit("answer-bytes"))


def _collect_error(act: Callable[[], None], failed: list[Exception]) -> None:
    try:
        act()
    except Exception as error:
        failed.append(error)


def _after_mark(output: bytes, mark: str) -> tuple[int, bytes] | None:
    """Return the supervisor's process id and the output after the marked line; None without that line."""
    found = re.search(rb"%s (\d{1,10})\n" % mark.encode(), output)
    return (int(found[1]), output[found.end() :]) if found else None


# A copy that transfers no byte for this long has stalled: the disk or the host hangs.
STALL_S = 120.0
MAX_TRANSFER_S = 86400.0
_TRANSFER_CHUNK = 1 << 18
_SIZE_DIGITS = 20  # of the size of a file, at most

# mktemp names the new file, since another user could make a pipe with a name seen in our argv, and `>`
# opens a pipe even under set -C. Signals do not end mktemp, so that our traps know the name, nor rm: the
# host itself removes an interrupted copy.
_RECEIVE = """\
umask 077
part=
trap 'exit 1' TERM HUP INT
trap 'trap "" TERM HUP INT; test -z "$part" || rm -f -- "$part"' EXIT
part=$(trap '' TERM HUP INT && mktemp -- "$1.XXXXXXXXXX") || exit 1
cat >"$part" || exit 1
set -- "$1" "$2" "$(wc -c <"$part")"
test "$3" -eq "$2" || { echo "$3 of $2 bytes arrived" >&2; exit 1; }
mv -f -T -- "$part" "$1"
"""
_SEND = """\
test -f "$1" || { test -e "$1" && echo "is not a file" >&2 || echo "No such file or directory" >&2; exit 1; }
exec 3<"$1" || exit 1
stat -L -c %s /dev/fd/3 && exec cat <&3
"""


def put_file(host: Host, path: Path, to: str) -> None:
    """Copy a file to a host. Raises ClusterError, in which case nothing has changed on the host."""
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            argv = ["sh", "-c", _RECEIVE, "sh", to, str(size)]
            with host.start(argv, MAX_TRANSFER_S) as command, _watch_progress(command, to) as moved:
                _send(command, file, moved)
                _check(command, to)
    except OSError as error:
        hint = hint_for(error, "check the file")
        raise ClusterError(path, f"cannot be copied: {error.strerror}", hint) from None


def fetch_file(host: Host, path: str, to: Path) -> None:
    """Copy a file from a host. Raises ClusterError or DiskFailed, in which case nothing has changed here."""
    part = name_beside(to)
    try:
        with host.start(["sh", "-c", _SEND, "sh", path], MAX_TRANSFER_S) as command:
            command.end_input()
            with _watch_progress(command, path) as moved, create_private_file(part) as file:
                expected, arrived = _receive(command, file, path, moved)
            _check(command, path)
        if expected != arrived:
            what = f"cannot be copied: {arrived} of {expected} bytes arrived"
            raise HostFailed(host.name, what, "is the file still being written?", path)
        part.replace(to)
    except OSError as error:
        raise DiskFailed(to, error) from None
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def create_private_file(path: Path) -> Iterator[IO[bytes]]:
    """Create a new file that only this user can read, and yield it for writing. Raises OSError."""
    number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(number, "wb") as file:
        yield file


def _send(command: Running, file: IO[bytes], moved: Callable[[], None]) -> None:
    try:
        while chunk := file.read(_TRANSFER_CHUNK):
            command.send(chunk)
            moved()
    except ClusterError:
        pass  # the command ended early; its own message, read next, says why
    command.end_input()
    while command.read():
        moved()


def _receive(command: Running, file: IO[bytes], place: str, moved: Callable[[], None]) -> tuple[int, int]:
    """Write a command's output to `file`; return the size that it announced and the bytes received."""
    head, expected, arrived = b"", None, 0
    while chunk := command.read():
        moved()
        if expected is None:
            head, end, chunk = (head + chunk).partition(b"\n")
            if len(head) > _SIZE_DIGITS or (end and not head.isdigit()):
                what = "cannot be copied: no size arrived"
                raise HostFailed(command.host, what, "check its login shell", place)
            expected = int(head) if end else None
            _check_room(file, expected or 0)
        file.write(chunk)
        arrived += len(chunk)
        if expected is not None and arrived > expected:
            what = f"cannot be copied: over {expected} bytes arrived"
            raise HostFailed(command.host, what, "is the file still being written?", place)
    return expected or 0, arrived


def _check_room(file: IO[bytes], size_bytes: int) -> None:
    """Raise OSError if that much more does not fit on the file's disk, before a host fills it."""
    disk = os.fstatvfs(file.fileno())
    free = disk.f_bavail * disk.f_frsize
    if disk.f_blocks and size_bytes > free:  # some network file systems report no sizes
        raise OSError(errno.ENOSPC, f"{size_bytes:,} bytes do not fit in the {free:,} that are free")


def _check(command: Running, place: str) -> None:
    code = command.wait()
    if code != 0:
        reason = " ".join(command.errors().split()) or f"exit code {code}"
        what = f"cannot be copied: {reason.rpartition(': ')[2]}"
        hint = hint_for_reason(reason, "check the path and the disk")
        raise HostFailed(command.host, what, hint, place)


@contextmanager
def _watch_progress(command: Running, place: str) -> Iterator[Callable[[], None]]:
    """Yield a function to call for each chunk. Without a call for STALL_S, raises ClusterError."""
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
        what = f"no data transferred for {STALL_S:.0f} s"
        raise HostFailed(command.host, what, "check the host and its disks", place)


class Host(Protocol):
    """A machine that ranks run on. Paths are absolute, since each host has a different working directory."""

    @property
    def name(self) -> str:
        """The host's name in the hostfile."""

    @property
    def is_local(self) -> bool:
        """Whether it is accessed without ssh."""

    def connect(self) -> None:
        """Open a connection, unless one is open. Raises ClusterError."""

    def run(self, argv: Sequence[str], timeout_s: float = COMMAND_S) -> Completed:
        """Run a command to its end. Raises ClusterError if it cannot start or exceeds `timeout_s`."""

    def start(self, argv: Sequence[str], limit_s: float | None = None) -> Running:
        """Start a command, which ends at the latest with this process, the connection or `limit_s`.

        Raises ClusterError.
        """

    def fetch(self, path: str, to: Path) -> None:
        """Copy a file from the host atomically, with mode 0600. Raises ClusterError or DiskFailed."""

    def put(self, path: Path, to: str) -> None:
        """Copy a file to the host atomically, with mode 0600. Raises ClusterError."""

    def close(self) -> None:
        """Close the connection."""
