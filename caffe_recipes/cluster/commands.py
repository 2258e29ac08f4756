"""A command on a host: started so that it never outlives us, and quoted in one place.

Every command runs beneath a supervisor, a few lines of sh, on this machine and by ssh alike. Coreutils'
`timeout` bounds its time and gives it a process group of its own. The supervisor ends that group when it gets
SIGTERM, and when its parent, here we and there sshd's process for our connection, is gone. So neither a stop,
nor our being killed, nor a lost connection leaves a process behind. It needs sh and coreutils.
"""

from __future__ import annotations

import base64
import math
import os
import secrets
import shlex
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from caffe_recipes.errors import ClusterError

COMMAND_S = 60.0
# From SIGTERM to SIGKILL.
GRACE_S = 2
# The host itself ends a command so much later than we do, should the link be too dead to tell it.
_LATER_S = 5
_CHUNK = 1 << 16
_NOT_STARTED = "timeout: failed to run command"

# $1 is a word behind which the command's own output begins: a login shell may greet us before. `wait`
# returns early when a trap has run, hence the loop. A shell's child that is not yet its program inherits the
# traps, and loses a signal: so the guard starts before ours are set, and ends by itself should it not be
# told; and SIGKILL follows every SIGTERM.
_SUPERVISOR = f"""\
mark=$1 limit=$2 init=$3 told=0 job= guard=
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
    told=$((told + 1))
    test -n "$job" && test "$told" -eq 1 || return
    kill -s TERM -- "$job" "-$job"
    while kill -0 "$job" && test "$told" -le {GRACE_S}0; do sleep 0.1; told=$((told + 1)); done
    kill -s KILL -- "$job" "-$job"
}}
trap 'end 2>/dev/null' TERM HUP INT
exec 3<&0 </dev/null
timeout -k {GRACE_S} "$limit" "$@" <&3 3<&- &
job=$!
test "$told" -eq 0 || {{ told=0; end 2>/dev/null; }}
exec 3<&-
while wait "$job"; code=$?; kill -0 "$job" 2>/dev/null; do :; done
test -z "$guard" || kill "$guard"
exit "$code"
"""


@dataclass(frozen=True)
class Completed:
    """A command that has ended: its exit code and what it said."""

    returncode: int
    stdout: str
    stderr: str


class Wire(Protocol):
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
        """Send it SIGTERM; `pid` is its number there, None if it has not said that yet."""

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

    def __init__(self, host: str, argv: Sequence[str], mark: str, wire: Wire) -> None:
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
        said = self.errors()
        self._wire.close()
        if code in (126, 127) and said.startswith(_NOT_STARTED):
            reason = said.strip().rpartition(": ")[2]
            raise ClusterError(self.host, f"{self.argv[0]} does not start: {reason}", "check it")
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
        said = bytearray()
        failed: list[Exception] = []
        deadline = time.monotonic() + timeout_s
        threads = [
            threading.Thread(target=_catch, args=(act, failed), daemon=True)
            for act in (lambda: self._feed(stdin), lambda: self._collect(said))
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
            what = f"{self.argv[0]} did not end within {timeout_s:.0f} s"
            raise ClusterError(self.host, what, "check the host and its disks")
        if failed:
            raise failed[0]
        return Completed(self.wait(), said.decode(errors="replace"), self.errors())

    def _feed(self, data: bytes) -> None:
        with suppress(ClusterError):  # a command need not read all of its input
            self._wire.send(data)
        self._wire.end_input()

    def _collect(self, said: bytearray) -> None:
        while chunk := self.read():
            said += chunk

    def _listen(self) -> None:
        try:
            while chunk := self._wire.read_errors(_CHUNK):
                self._errors += chunk
        except (ClusterError, OSError, ValueError):
            return  # what broke the wire is told by whoever waits for the end


def _catch(act: Callable[[], None], failed: list[Exception]) -> None:
    try:
        act()
    except Exception as error:
        failed.append(error)


def _behind_mark(said: bytes, mark: bytes) -> tuple[int, bytes] | None:
    """Return the supervisor's number, which follows the mark, and what follows that line; None before it."""
    _, found, rest = said.partition(mark)
    line, end, rest = rest.partition(b"\n")
    return (int(line), rest) if found and end else None
