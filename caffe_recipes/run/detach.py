"""A run away from the terminal that starts it: in a session of its own, its output in a file.

Whatever becomes of the terminal, of the login or of the connection then, the run goes on.
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
    """A run that was started away from the terminal; with an exit code it has ended before it trained."""

    pid: int
    output: Path
    folder: Path | None = None
    exit_code: int | None = None


def detach(root: Path, recipe: AnyRecipe, relay: Callable[[str], None]) -> Detached | None:
    """Leave the terminal to a copy of this process: None in the one that continues with the run.

    In the other, which keeps the terminal, this returns when the first trainer is in the journal, or when the
    run has ended; until then it gives what the run says to `relay`. Raises InputError, in that one alone.
    """
    if not root.is_dir():
        raise InputError(root, "no such folder", "give the Caffe root with --caffe-root")
    before = _count_events(root, recipe.name)
    spool = _Spool(root, recipe.name)
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        _leave(spool.descriptor)
        return None
    return _wait(pid, root, recipe, before, spool, relay)


def describe_detached(started: Detached, root: Path) -> list[str]:
    """Write where a detached run continues, how it is watched, and how it is stopped."""
    assert started.folder is not None
    at = [] if root.resolve() == Path.cwd() else ["--caffe-root", str(root)]
    watch = shlex.join(["caffe-recipes", "attach", started.folder.name, *at])
    process = f"process {started.pid} on {socket.gethostname()}"
    return [
        f"{started.folder}: continues as {process}; it writes {started.output}",
        f"watch it: {watch}",
        f"stop it:  kill -INT {started.pid}",
    ]


@dataclass
class _Spool:
    """The file that the run's output goes to; it is taken away again if the run does not begin."""

    root: Path
    recipe_name: str
    path: Path = field(init=False)
    descriptor: int = field(init=False)
    _made: list[Path] = field(default_factory=list)
    _read_bytes: int = 0

    def __post_init__(self) -> None:
        """Make it, in the folder of the recipe's locks."""
        folder = self.root / "logs" / self.recipe_name
        stamp = time.strftime("%Y%m%d-%H%M%S")
        self.path = folder / f"detached-{stamp}-{os.getpid()}.log"
        self._made = [each for each in (folder, folder.parent) if not each.exists()]
        try:
            folder.mkdir(parents=True, exist_ok=True)
            flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
            self.descriptor = os.open(self.path, flags, 0o666)
        except OSError as error:
            what = f"cannot be written: {error.strerror}"
            raise InputError(self.path, what, "check the Caffe root and its disk") from None

    def relay(self, to: Callable[[str], None]) -> None:
        """Give on what has come, a whole line at a time."""
        new = b""
        while more := os.pread(self.descriptor, _CHUNK, self._read_bytes + len(new)):
            new += more
        whole = new[: new.rfind(b"\n") + 1]
        self._read_bytes += len(whole)
        for line in whole.decode(errors="replace").splitlines():
            to(line)

    def remove(self) -> None:
        """Take away what was made, and has been printed."""
        with suppress(OSError):
            self.path.unlink()
            for folder in self._made:
                folder.rmdir()


def _leave(output: int) -> None:
    """Become a process of no terminal, that holds no file of those who started it, and can be stopped."""
    os.setsid()
    with open(os.devnull, "rb") as nothing:  # noqa: PTH123 - its descriptor is what counts
        os.dup2(nothing.fileno(), 0)
    for descriptor in (1, 2):
        os.dup2(output, descriptor)
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - the list is taken before any is closed
        if int(name) > 2:
            with suppress(OSError):
                os.close(int(name))
    # A shell has what it starts with `&` ignore SIGINT, which is how a run is stopped.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _wait(
    pid: int,
    root: Path,
    recipe: AnyRecipe,
    before: Mapping[Path, int],
    spool: _Spool,
    relay: Callable[[str], None],
) -> Detached:
    """Wait for the first trainer, or the end. A Ctrl-C until then is intended for the run."""
    while True:
        try:
            ended, status = os.waitpid(pid, os.WNOHANG)
            spool.relay(relay)
            folder = _find_begun(root, recipe, before, pid)
            if ended:
                counts = _count_events(root, recipe.name)
                if all(count <= before.get(folder, 0) for folder, count in counts.items()):
                    spool.remove()
                code = os.waitstatus_to_exitcode(status)
                return Detached(pid, spool.path, folder, code if code >= 0 else 128 - code)
            if folder is not None:
                return Detached(pid, spool.path, folder)
            time.sleep(_POLL_S)
        except KeyboardInterrupt:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGINT)


def _find_begun(root: Path, recipe: AnyRecipe, before: Mapping[Path, int], pid: int) -> Path | None:
    """Return the folder of the run that a process carries on, once it trains or has nothing left to train."""
    for folder, events in reversed(_read_journals(root, recipe.name).items()):
        new, state = events[before.get(folder, 0) :], fold_events(events)
        if not new or (state.pid, state.host) != (pid, socket.gethostname()):
            continue
        has_launched = any(isinstance(event, Launch | Branched) for event in new)
        if state.launch is not None or is_trained(state, recipe) or has_launched:
            return folder
    return None


def _read_journals(root: Path, recipe_name: str) -> dict[Path, list[Event]]:
    """Return the events of a recipe's runs, by folder, without those that cannot be read."""
    read: dict[Path, list[Event]] = {}
    for folder in run_folders(root, recipe_name):
        with suppress(OSError, JournalError):
            text = read_within(folder / "journal.jsonl", "journal-bytes").decode(errors="replace")
            read[folder] = [event for _, event in read_events(text, folder)]
    return read


def _count_events(root: Path, recipe_name: str) -> dict[Path, int]:
    return {folder: len(events) for folder, events in _read_journals(root, recipe_name).items()}
