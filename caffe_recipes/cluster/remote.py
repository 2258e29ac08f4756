"""Call our shell functions on a host, and place files safely in folders that other users share.

A program from `sh/` is sent after `prelude.sh`, with the name of a function and its arguments. The answer is
a list of records: lines that begin with the token of the call. The token is random, since the output of a
login shell or a trainer could contain any fixed mark. Binary data is encoded in base64.

In a shared /tmp, any user can create a link or a file with the name that we are about to use. We never write
through a link, and never read or replace another user's file; finding one is an error that names the host and
the path.
"""

from __future__ import annotations

import hashlib
import posixpath
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Literal

from caffe_recipes.cluster.commands import COMMAND_S, MAX_TRANSFER_S, Completed, Host, too_long
from caffe_recipes.cluster.hosts import ask_all, first_error
from caffe_recipes.cluster.launchers import LAUNCHERS
from caffe_recipes.errors import ClusterError, HostFailed, hint_for_reason
from caffe_recipes.files.bounded_reads import reading
from caffe_recipes.limits import limit
from caffe_recipes.trust import VARIABLE, named_owners

Program = Literal["facts", "node", "ranks", "trial", "watch"]
SharedPart = Literal["manage", "prelude", "processes"]
# What is sent between the prelude and a program, which uses its functions or is used by them.
_SENT_BEFORE: Mapping[Program, SharedPart] = {"facts": "processes", "node": "manage", "ranks": "processes"}
# A function that runs an argv on a host, with a limit in seconds.
RunArgv = Callable[[Host, Sequence[str], float], Completed]

# Less than a tenth of gigabit Ethernet: a slower copy of an LMDB is assumed to hang.
SLOWEST_BYTES_PER_S = 10e6
OTHER_FOLDER = "remove it if it is yours, or stage to another folder"
_BLOCK_BYTES = 4096  # the unit in which disk space is allocated


class NodeRefusal(HostFailed):
    """Raised when a function on a host refuses, usually because another user could change the files there."""


@cache
def program_text(name: Program | SharedPart) -> str:
    """Return the text of a program in `sh/`, or of a part that is sent before some of them."""
    return resources.files(__package__).joinpath("sh", f"{name}.sh").read_text("utf-8")


def full_program_text(program: Program) -> str:
    """Return the complete shell text that is sent to a host for a program."""
    before = program_text(_SENT_BEFORE[program]) if program in _SENT_BEFORE else ""
    if "$launchers" in before:
        proxies = "\n".join(name for each in LAUNCHERS.values() for name in each.proxies)
        processes = "\n".join(name for each in LAUNCHERS.values() for name in each.processes)
        before = (
            f"# shellcheck disable=SC2034\nproxies='{proxies}' launchers='{proxies}\n{processes}'\n{before}"
        )
    return program_text("prelude") + before + program_text(program)


def call(
    host: Host,
    program: Program,
    function: str,
    *words: str,
    timeout_s: float = COMMAND_S,
    run: RunArgv = lambda host, argv, limit_s: host.run(argv, limit_s),
    place: str = "",
    hint: str = "",
) -> list[str]:
    """Call a function of a program on a host; return its records, at least one.

    Raises NodeRefusal, with `hint` unless the disk is to blame, if the last record begins with `refused`, and
    HostFailed if the program fails or returns no records. Both errors name `place`, a path on the host.
    """
    token, argv = _command(program, function, words)
    done = run(host, argv, timeout_s)
    records = _records(token, done.stdout)
    if done.returncode != 0 or not records:
        output = done.stderr or done.stdout or f"exit {done.returncode}"
        raise unreadable(host.name, function, output, place)
    verdict, _, reason = records[-1].partition(" ")
    if verdict == "refused":
        what = reason.strip() or f"`{function}` failed without a reason"
        raise NodeRefusal(host.name, what, hint_for_reason(what, hint), place)
    return records


def call_to_end(
    host: Host,
    program: Program,
    function: str,
    *words: str,
    timeout_s: float = COMMAND_S,
    place: str = "",
    hint: str = "",
) -> list[str]:
    """Call a function whose last record is `end`, and return the records before it; raises as `call`."""
    *records, end = call(host, program, function, *words, timeout_s=timeout_s, place=place, hint=hint)
    if end != "end":
        raise unreadable(host.name, function, end, place)
    return records


class Conversation:
    """A running function on a host that answers each line it is sent. All methods raise ClusterError."""

    def __init__(self, host: Host, program: Program, function: str, *words: str) -> None:
        """Start the function; each of its answers ends with the record `end`."""
        self._host, self._function = host, function
        self._token, argv = _command(program, function, words)
        self._command = host.start(argv)
        self._rest = bytearray()

    def __enter__(self) -> Conversation:
        return self

    def __exit__(self, *_: object) -> None:
        self._command.stop()

    def ask(self) -> list[str]:
        """Request and return the records of the next answer, without `end`."""
        self._command.send(b"\n")
        end = f"{self._token} end\n".encode()
        start = 0  # all before is known to have no end
        while (found := self._rest.find(end, start)) < 0:
            if len(self._rest) > limit("answer-bytes"):
                raise too_long(self._host.name, self._function)
            start = max(0, len(self._rest) - len(end))
            more = self._command.read()
            if not more:
                code = self._command.wait()
                raise unreadable(self._host.name, self._function, f"exit {code}: {self._command.errors()}")
            self._rest += more
        answer = self._rest[:found].decode(errors="replace")
        del self._rest[: found + len(end)]
        return _records(self._token, answer)

    def finish(self) -> None:
        """Close the function's input, and wait until it ends."""
        self._command.end_input()
        while self._command.read():
            pass
        self._command.wait()


def unreadable(host: str, function: str, answer: str, place: str = "") -> HostFailed:
    """Return the error for a malformed answer from a function."""
    what = f"cannot parse the answer to `{function}`: {' '.join(answer.split())[:200]!r}"
    return HostFailed(host, what, "check that the host has sh, /proc and GNU coreutils", place)


def _command(program: Program, function: str, words: Sequence[str]) -> tuple[str, list[str]]:
    token = f"caffe-recipes-{secrets.token_hex(8)}:"
    named = f"{VARIABLE}='{' '.join(map(str, named_owners()))}'\n" if program == "node" else ""
    return token, ["sh", "-c", named + full_program_text(program), "caffe-recipes", token, function, *words]


def _records(token: str, stdout: str) -> list[str]:
    """Return the complete lines that begin with the token, stripped of it."""
    start = f"{token} "
    return [line.removeprefix(start) for line in stdout.split("\n")[:-1] if line.startswith(start)]


def ask_node(
    host: Host,
    verb: str,
    *words: str,
    timeout_s: float = COMMAND_S,
    hint: str = OTHER_FOLDER,
    valid: str = r"\S.*",
) -> list[str]:
    """Call a verb of `node.sh` on a host and return the words of its answer; the first of `words` is a path.

    Raises NodeRefusal if the node refuses, and HostFailed if there is no answer that matches `valid`.
    """
    answer = call(host, "node", verb, *words, timeout_s=timeout_s, place=words[0], hint=hint)[-1]
    if not re.fullmatch(valid, answer):
        raise unreadable(host.name, verb, answer, words[0])
    return answer.split()


# Paths that we read; data, of whose further files only the first that exists is read; and data that may be
# absent, since staging has not copied them yet.
ReadVerb = Literal["read", "read-data", "may-read-data"]


def check_trust(
    host: Host, verb: ReadVerb | Literal["trust"], *words: str, timeout_s: float = COMMAND_S, hint: str
) -> None:
    """Raise NodeRefusal if another user could have put files on a host that we read, or for `trust` write.

    What we read must exist if anybody could create it. `words` are a path, the Caffe root, and more paths.
    Raises HostFailed if the host does not respond.
    """
    ask_node(host, verb, *words, timeout_s=timeout_s, hint=hint, valid="trusted")


def seconds_for(size_bytes: int) -> float:
    """Return the time limit, in seconds, for reading or copying that many bytes."""
    return COMMAND_S + size_bytes / SLOWEST_BYTES_PER_S


@dataclass(frozen=True)
class PlacedFile:
    """A file to place at `to` on hosts; `kept` is the path of our copy."""

    kept: Path
    to: str
    sha256: str


def own_file_stamp(host: Host, path: str, root: Path) -> str | None:
    """Return attributes of this user's file that change whenever it is written; None if it does not exist.

    Raises ClusterError if the path is a link, if the file or a folder belongs to another user, or if anybody
    may change files in the folder. `root` is the Caffe root, whose owner is trusted.
    """
    words = _ask(host, "look", path, root)
    return " ".join(words[1:]) if words[0] == "present" else None


def place_files(hosts: Sequence[Host], root: Path, files: Sequence[PlacedFile]) -> None:
    """Copy the files to every host that lacks them; correct copies are not sent again.

    Raises ClusterError, which names the host; a file that could not be placed is then left unchanged.
    """
    sizes = [_size(file.kept) for file in files]
    groups = [list({host.name: host for host in hosts}.values())]
    if any(Path(file.to).is_relative_to(root) for file in files):
        # If the hosts share this folder, the others find the files written by the first one.
        groups = [groups[0][:1], groups[0][1:]]
    for group in groups:
        error = first_error(ask_all(group, lambda host: _place(host, root, files, sizes), MAX_TRANSFER_S))
        if error is not None:
            raise error


def drop_files(hosts: Sequence[Host], root: Path, files: Sequence[tuple[str, str]]) -> None:
    """Delete files from hosts if they are ours and their digest is unchanged; errors are ignored.

    `files` are (path, SHA-256) pairs.
    """

    def drop(host: Host) -> None:
        for path, sha256 in files:
            _ask(host, "drop", path, root, sha256, limit_s=600)

    ask_all(list({host.name: host for host in hosts}.values()), drop, MAX_TRANSFER_S)


def _place(host: Host, root: Path, files: Sequence[PlacedFile], sizes: Sequence[int]) -> None:
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
    free = [int(answer[1]) for answer in answers if answer[0] == "absent"]
    if missing and min(free) < needed:
        what = f"not enough space: {min(free):,} bytes free, {needed:,} needed"
        raise HostFailed(host.name, what, "free space there", posixpath.dirname(missing[0][0].to))
    for file, size, sees in missing:
        _send(host, root, file, size, sees)


def _send(host: Host, root: Path, file: PlacedFile, size: int, sees: bool) -> None:
    """Let the host copy the file itself; if it cannot, or sees a different file, send it."""
    stem = f".caffe-recipes-{host.name}-{hashlib.sha256(file.to.encode()).hexdigest()[:12]}-"
    limit_s = 2 * seconds_for(size)
    if sees:
        words = _ask(host, "fill", file.to, root, file.sha256, str(file.kept), stem, limit_s=limit_s)
        if words[0] == "placed":
            return
    part = _ask(host, "ready", file.to, root, stem)[-1]
    try:
        host.put(file.kept, posixpath.join(posixpath.dirname(file.to), part))
        words = _ask(host, "commit", file.to, root, file.sha256, part, limit_s=limit_s)
    except ClusterError as error:
        with suppress(ClusterError):
            _ask(host, "abandon", file.to, root, stem)
        if isinstance(error, HostFailed) and posixpath.basename(error.place) == part:
            raise HostFailed(host.name, error.what, error.hint, file.to) from None
        raise
    if words[0] != "placed":
        what = f"the digest of the copy differs from that of {file.kept}"
        raise HostFailed(host.name, what, "run the command again", file.to)


# The valid answers about a file, by verb.
_ANSWERS = {
    "look": r"absent|present [0-9a-f]+ [0-9]+ [0-9]+ -?[0-9.]+",
    "probe": r"there|absent [0-9]{1,19} [01]",
    "fill": r"placed|differs",
    "ready": r"ready \.caffe-recipes-[A-Za-z0-9._-]+",
    "commit": r"placed|differs",
    "abandon": r"abandoned",
    "drop": r"dropped|kept|nothing",
}


def _ask(host: Host, verb: str, path: str, root: Path, *words: str, limit_s: float = COMMAND_S) -> list[str]:
    hint, valid = "remove it, or snapshot to another folder", _ANSWERS[verb]
    return ask_node(host, f"file-{verb}", path, str(root), *words, timeout_s=limit_s, hint=hint, valid=valid)


def _size(path: Path) -> int:
    with reading(path, ClusterError, "restore it"):
        return path.stat().st_size
