"""Detached runs: `run --detach` continues in a session of its own, with its output in a file.

The run then survives the end of the terminal, of the login and of the connection.
"""

from __future__ import annotations

import os
import shlex
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from caffe_recipes.errors import InputError
from caffe_recipes.files import read_within
from caffe_recipes.recipe.model import AnyRecipe
from caffe_recipes.run.events import Branched, Event, Launch, fold_events, is_trained
from caffe_recipes.run.folders import run_folders
from caffe_recipes.run.journal import JournalError, read_events

_POLL_S = 0.1
_CHUNK = 1 << 16


@dataclass(frozen=True)
class Detached:
    """A detached run; it has an `exit_code` if it ended before it started to train."""

    pid: int
    output: Path
    folder: Path | None = None
    exit_code: int | None = None


def detach(root: Path, recipe: AnyRecipe, relay: Callable[[str], None]) -> Detached | None:
    """Fork a process that is detached from the terminal; return None in it, and its run in the parent.

    The parent keeps the terminal and returns when the first launch is in the journal or the run has ended.
    Until then it passes the output of the run to `relay`, line by line. Raises InputError, in the parent
    only.
    """
    if not root.is_dir():
        raise InputError(root, "no such folder", "give the Caffe root with --caffe-root")
    before = _count_events(root, recipe.name)
    output = _OutputFile(root, recipe.name)
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        _detach_from_terminal(output.descriptor)
        return None
    return _wait(pid, root, recipe, before, output, relay)


def describe_detached(started: Detached, root: Path) -> list[str]:
    """Return lines that say where a detached run continues, and how to watch and stop it."""
    assert started.folder is not None
    at = [] if root.resolve() == Path.cwd() else ["--caffe-root", str(root)]
    watch = shlex.join(["caffe-recipes", "attach", started.folder.name, *at])
    process = f"process {started.pid} on {socket.gethostname()}"
    return [
        f"{started.folder}: continues as {process}; its output is in {started.output}",
        f"watch it: {watch}",
        f"stop it:  kill -INT {started.pid}",
    ]


@dataclass
class _OutputFile:
    """The file that the output of the run is written to; it is deleted if the run does not start."""

    root: Path
    recipe_name: str
    path: Path = field(init=False)
    descriptor: int = field(init=False)
    _new_folders: list[Path] = field(default_factory=list)
    _read_bytes: int = 0

    def __post_init__(self) -> None:
        """Create the file, in the folder of the recipe's locks."""
        folder = self.root / "logs" / self.recipe_name
        stamp = time.strftime("%Y%m%d-%H%M%S")
        self.path = folder / f"detached-{stamp}-{os.getpid()}.log"
        self._new_folders = [each for each in (folder, folder.parent) if not each.exists()]
        try:
            folder.mkdir(parents=True, exist_ok=True)
            flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
            self.descriptor = os.open(self.path, flags, 0o666)
        except OSError as error:
            what = f"cannot be written: {error.strerror}"
            raise InputError(self.path, what, "check the Caffe root and its disk") from None

    def relay(self, to: Callable[[str], None]) -> None:
        """Pass the new output to a function, one whole line at a time."""
        new = b""
        while more := os.pread(self.descriptor, _CHUNK, self._read_bytes + len(new)):
            new += more
        whole = new[: new.rfind(b"\n") + 1]
        self._read_bytes += len(whole)
        for line in whole.decode(errors="replace").splitlines():
            to(line)

    def remove(self) -> None:
        """Delete the output file, and the folders that were created for it."""
        with suppress(OSError):
            self.path.unlink()
            for folder in self._new_folders:
                folder.rmdir()


def _detach_from_terminal(output: int) -> None:
    """Detach this process from the terminal: a new session, no inherited files, default signal handlers."""
    os.setsid()
    with open(os.devnull, "rb") as null:  # noqa: PTH123 - only its descriptor is needed
        os.dup2(null.fileno(), 0)
    for descriptor in (1, 2):
        os.dup2(output, descriptor)
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - the list must be complete before any is closed
        if int(name) > 2:
            with suppress(OSError):
                os.close(int(name))
    # A process that a shell starts with `&` ignores SIGINT, which is the signal that stops a run.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _wait(
    pid: int,
    root: Path,
    recipe: AnyRecipe,
    before: Mapping[Path, int],
    output: _OutputFile,
    relay: Callable[[str], None],
) -> Detached:
    """Wait for the first launch, or for the end of the run; pass a Ctrl-C until then on to the run."""
    while True:
        try:
            ended, status = os.waitpid(pid, os.WNOHANG)
            output.relay(relay)
            folder = _find_launched(root, recipe, before, pid)
            if ended:
                counts = _count_events(root, recipe.name)
                if all(count <= before.get(folder, 0) for folder, count in counts.items()):
                    output.remove()
                code = os.waitstatus_to_exitcode(status)
                return Detached(pid, output.path, folder, code if code >= 0 else 128 - code)
            if folder is not None:
                return Detached(pid, output.path, folder)
            time.sleep(_POLL_S)
        except KeyboardInterrupt:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGINT)


def _find_launched(root: Path, recipe: AnyRecipe, before: Mapping[Path, int], pid: int) -> Path | None:
    """Return the folder of the run of a process, once it is training or has nothing left to train."""
    for folder, events in reversed(_read_journals(root, recipe.name).items()):
        new, state = events[before.get(folder, 0) :], fold_events(events)
        if not new or (state.pid, state.host) != (pid, socket.gethostname()):
            continue
        has_launched = any(isinstance(event, Launch | Branched) for event in new)
        if state.launch is not None or is_trained(state, recipe) or has_launched:
            return folder
    return None


def _read_journals(root: Path, recipe_name: str) -> dict[Path, list[Event]]:
    """Return the events of a recipe's runs by folder, skipping journals that cannot be read."""
    read: dict[Path, list[Event]] = {}
    for folder in run_folders(root, recipe_name):
        with suppress(OSError, JournalError):
            text = read_within(folder / "journal.jsonl", "journal-bytes").decode(errors="replace")
            read[folder] = [event for _, event in read_events(text, folder)]
    return read


def _count_events(root: Path, recipe_name: str) -> dict[Path, int]:
    return {folder: len(events) for folder, events in _read_journals(root, recipe_name).items()}
