"""A command on a host: started so that it never outlives us, and quoted in one place.

Every command runs beneath a supervisor, a few lines of sh, on this machine and by ssh alike. Coreutils'
`timeout` bounds its time and gives it a process group of its own. The supervisor ends that group when it gets
SIGTERM, and when its parent, here we and there sshd's process for our connection, is gone. So neither a stop,
nor our being killed, nor a lost connection leaves a process behind. It needs sh and coreutils.

Files to and from a host, by its own sh and cat: counted, private, and never half there under their names.

A file is written beside its place as a new one of mode 0600, compared in size, and renamed. What somebody
else has put in its place, a link or a file, is replaced and never written through.

Host.
"""

from __future__ import annotations

import base64
import math
import os
import secrets
import shlex
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol

from caffe_recipes.errors import ClusterError, CommandTimedOut, DiskFailed, HostFailed
from caffe_recipes.files import name_beside

COMMAND_S = 60.0
# From SIGTERM to SIGKILL.
GRACE_S = 2
# The host itself ends a command so much later than we do, should the link be too dead to tell it.
_LATER_S = 5
_CHUNK = 1 << 16
_NOT_STARTED = "timeout: failed to run command"

# $1 is a word behind which the command's own output begins: a login shell may greet us before. `wait`
# returns early when a trap has run, hence the loop. A shell's child that is not yet its program inherits the
# traps, and loses a signal: so the guard starts before ours are set, and ends by itself if no signal
# reaches it; and SIGKILL follows every SIGTERM.
_SUPERVISOR = f"""\
mark=$1 limit=$2 init=$3 ending=0 job= guard=
shift 3
# An orphan from the start: the connection went while the shell came.
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
    """A command that has ended: its exit code and its output."""

    returncode: int
    stdout: str
    stderr: str


class ByteStream(Protocol):
    """How bytes reach a supervisor and come back; all may raise ClusterError."""

    def read(self, most: int) -> bytes:
        """Return some of its standard output; nothing at its end."""

    def read_errors(self, most: int) -> bytes:
        """Return some of its standard error; nothing at its end."""

    def send(self, data: bytes) -> None:
        """Write to its standard input."""

    def end_input(self) -> None:
        """Close its standard input."""

    def code(self) -> int:
        """Wait for its end, and return its exit code."""

    def end(self, pid: int | None) -> None:
        """Send it SIGTERM; `pid` is its number there, None if it has not sent that yet."""

    def close(self) -> None:
        """Let go of it."""


def supervise(argv: Sequence[str], limit_s: float | None) -> tuple[str, list[str]]:
    """Return a mark, and the argv that runs `argv` beneath a supervisor which prints that mark first.

    Raises ClusterError for a word that no command can hold.
    """
    if any("\0" in word for word in argv):
        raise ClusterError("", f"{argv[0]!r}: a word of the command holds a zero byte", "remove it")
    mark = f"caffe-recipes-{secrets.token_hex(8)}"
    limit = "0" if limit_s is None else str(math.ceil(limit_s) + _LATER_S)  # 0: for ever
    init = "1" if os.getpid() == 1 else "0"  # as in a container: then who has it as parent is no orphan
    return mark, ["sh", "-c", _SUPERVISOR, "sh", mark, limit, init, *argv]


def quote_command(argv: Sequence[str]) -> str:
    """Return `argv` as the text that sshd gives to the user's login shell, whichever that is.

    The words travel in base64, quoted for sh within: what csh or fish would read otherwise never meets them.
    No shell stays between sshd and the command, which sees its parent go.

    >>> quote_command(["echo", "it's"])
    'exec sh -c \\'eval "$(printf %s ZXhlYyBlY2hvICdpdCciJyIncyc= | base64 -d)"\\''
    """
    words = base64.b64encode(os.fsencode("exec " + shlex.join(argv))).decode("ascii")
    return f"exec sh -c 'eval \"$(printf %s {words} | base64 -d)\"'"


class Running:
    """A command that runs on a host; leaving its `with` block ends it if it still does."""

    def __init__(self, host: str, argv: Sequence[str], mark: str, wire: ByteStream) -> None:
        """Listen to a supervisor that was started with `mark`."""
        self.host, self.argv, self.mark = host, tuple(argv), mark
        self._mark, self._wire = mark.encode(), wire
        self._head: bytes | None = b""
        self._errors = bytearray()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def read(self, most: int = _CHUNK) -> bytes:
        """Return some of its standard output, as soon as there is any; nothing at its end."""
        while self._head is not None:
            more = self._wire.read(most)
            found = _behind_mark(self._head + more, self._mark)
            if found is not None:
                self._head = None
                if found[1]:
                    return found[1]
            elif not more:
                return b""
            else:
                self._head += more
        return self._wire.read(most)

    def send(self, data: bytes) -> None:
        """Write to its standard input."""
        self._wire.send(data)

    def end_input(self) -> None:
        """Close its standard input."""
        self._wire.end_input()

    def wait(self) -> int:
        """Return its exit code, once its output has been read to the end; raises ClusterError."""
        self._listener.join()
        code = self._wire.code()
        errors = self.errors()
        self._wire.close()
        if code in (126, 127) and errors.startswith(_NOT_STARTED):
            reason = errors.strip().rpartition(": ")[2]
            raise HostFailed(self.host, f"{self.argv[0]} does not start: {reason}", "check it")
        return code

    def errors(self) -> str:
        """Return what it has written to its standard error so far."""
        found = _behind_mark(bytes(self._errors), self._mark)
        return (bytes(self._errors) if found is None else found[1]).decode(errors="replace")

    def stop(self) -> None:
        """End it and all of its process group, if they still run: SIGTERM, and SIGKILL after GRACE_S."""
        found = _behind_mark(bytes(self._errors), self._mark)
        self._wire.end(found[0] if found else None)
        self._wire.close()

    def finish(self, timeout_s: float, stdin: bytes = b"") -> Completed:
        """Feed it, hear all it says, and wait for its end; raises ClusterError after `timeout_s`."""
        stdout = bytearray()
        failed: list[Exception] = []
        deadline = time.monotonic() + timeout_s
        threads = [
            threading.Thread(target=_catch, args=(act, failed), daemon=True)
            for act in (lambda: self._feed(stdin), lambda: self._collect(stdout))
        ]
        try:
            for thread in threads:
                thread.start()
            threads[1].join(timeout_s)
            self._listener.join(max(0.0, deadline - time.monotonic()))
        except BaseException:  # a Ctrl-C of the user's
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
        while chunk := self.read():
            stdout += chunk

    def _listen(self) -> None:
        try:
            while chunk := self._wire.read_errors(_CHUNK):
                self._errors += chunk
        except (ClusterError, OSError, ValueError):
            return  # what broke the wire is reported by whoever waits for the end


def _catch(act: Callable[[], None], failed: list[Exception]) -> None:
    try:
        act()
    except Exception as error:
        failed.append(error)


def _behind_mark(output: bytes, mark: bytes) -> tuple[int, bytes] | None:
    """Return the supervisor's number, which follows the mark, and what follows that line; None before it."""
    _, found, rest = output.partition(mark)
    line, end, rest = rest.partition(b"\n")
    return (int(line), rest) if found and end else None


# No byte in so long: the disk or the host hangs.
STALL_S = 120.0
_LONGEST_S = 86400.0
_TRANSFER_CHUNK = 1 << 18

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
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            argv = ["sh", "-c", _RECEIVE, "sh", to, part, str(size)]
            with host.start(argv, _LONGEST_S) as command, _moving(command, to) as moved:
                _send(command, file, moved)
                _check(command, to)
    except OSError as error:
        raise ClusterError(path, f"cannot be copied: {error.strerror}", "check it") from None


def fetch_file(host: Host, path: str, to: Path) -> None:
    """Copy a file from a host; raises ClusterError or DiskFailed, and then nothing has changed here."""
    part = name_beside(to)
    try:
        with host.start(["sh", "-c", _SEND, "sh", path], _LONGEST_S) as command:
            command.end_input()
            with _moving(command, path) as moved, private_file(part) as file:
                expected, arrived = _receive(command, file, moved)
            _check(command, path)
        if expected != arrived:
            what = f"cannot be copied: {arrived} of {expected} bytes arrived"
            raise HostFailed(host.name, what, "is something still writing it?", path)
        part.replace(to)
    except OSError as error:
        raise DiskFailed(to, f"cannot be written: {error.strerror}") from None
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
        while chunk := file.read(_TRANSFER_CHUNK):
            command.send(chunk)
            moved()
    except ClusterError:
        pass  # it ended before it had read all: its own words, which come next, say why
    command.end_input()
    while command.read():
        moved()


def _receive(command: Running, file: IO[bytes], moved: Callable[[], None]) -> tuple[int, int]:
    """Write what a command sends; return the size it sent first, and the bytes that came."""
    head, arrived = b"", 0
    while chunk := command.read():
        moved()
        if b"\n" not in head:
            head, end, chunk = (head + chunk).partition(b"\n")
            head += end
        file.write(chunk)
        arrived += len(chunk)
    return int(head or 0), arrived


def _check(command: Running, place: str) -> None:
    code = command.wait()
    if code != 0:
        reason = " ".join(command.errors().split()) or f"its copy ended with {code}"
        what = f"cannot be copied: {reason.rpartition(': ')[2]}"
        raise HostFailed(command.host, what, "check its path and disk", place)


@contextmanager
def _moving(command: Running, place: str) -> Iterator[Callable[[], None]]:
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
        what = f"no byte moved in {STALL_S:.0f} s"
        raise HostFailed(command.host, what, "check the host and its disks", place)


class Host(Protocol):
    """Where ranks run. Paths are absolute; a relative one would mean another folder on each host."""

    @property
    def name(self) -> str:
        """The host's name in the hostfile."""

    @property
    def is_local(self) -> bool:
        """Whether it is reached without ssh."""

    def connect(self) -> None:
        """Reach it, if that is still to be done; raises ClusterError."""

    def run(self, argv: Sequence[str], timeout_s: float = COMMAND_S) -> Completed:
        """Run a command to its end; raises ClusterError if it cannot start or takes longer."""

    def start(self, argv: Sequence[str], limit_s: float | None = None) -> Running:
        """Start a command; it never outlives us, the connection, or `limit_s`. Raises ClusterError."""

    def fetch(self, path: str, to: Path) -> None:
        """Copy a file from the host, whole or not at all, with mode 0600; raises ClusterError, DiskFailed."""

    def put(self, path: Path, to: str) -> None:
        """Copy a file to the host, whole or not at all, with mode 0600; raises ClusterError."""

    def close(self) -> None:
        """Let go of the connection."""
