"""Detached runs: `run --detach` continues in a session of its own, with its output in a file.

The run then survives the end of the terminal, of the login and of the connection.
"""

from __future__ import annotations

import json
import math
import os
import shlex
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from caffe_recipes.files.atomic_writes import output_error
from caffe_recipes.recipe.model import AnyRecipe
from caffe_recipes.run.context import Observer
from caffe_recipes.run.events import Branched, Event, Launch, RunStarted
from caffe_recipes.run.folded_events import is_trained
from caffe_recipes.run.folders import check_root, root_words
from caffe_recipes.run.journal import JOURNAL, load_journal
from caffe_recipes.run.training_plan import plan_steps
from caffe_recipes.run_names import run_folders

# Gets a line of the run's output, and whether the line is about a failure.
RelayLine = Callable[[str, bool], None]
_POLL_S = 0.1
_CHUNK = 1 << 16


@dataclass(frozen=True)
class Detached:
    """A detached run that trains in `folder`, or ended before it started to train, with an `exit_code`."""

    pid: int
    output: Path
    folder: Path = Path()
    exit_code: int | None = None


def detach(
    root: Path,
    recipe: AnyRecipe,
    train: Callable[[Observer], object],
    relay: RelayLine,
) -> Detached | None:
    """Call `train` in a process that is detached from the terminal; return None in it once that has ended.

    In the parent, return the run when its first launch is in the journal or it has ended. Until then the
    parent keeps the terminal, and passes the output of the run to `relay`, line by line. Raises InputError,
    in the parent only.
    """
    check_root(root)
    output = _Output(root, recipe.name)
    sys.stdout.flush()
    sys.stderr.flush()
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        _detach_from_terminal(output.descriptor, writing)
        reports = _Reports(writing, root, recipe)
        try:
            train(reports.observe)
        except BaseException:
            sys.stdout.flush()
            reports.report(failed_at=os.fstat(1).st_size)
            raise
        return None
    os.close(writing)
    os.set_blocking(reading, False)
    return _wait(pid, output, reading, relay)


def describe_detached(started: Detached, root: Path) -> list[str]:
    """Return lines that say where a detached run continues, and how to watch and stop it."""
    watch, stop = (
        shlex.join(["caffe-recipes", command, started.folder.name, *root_words(root)])
        for command in ("attach", "cancel")
    )
    process = f"process {started.pid} on {socket.gethostname()}"
    return [
        f"{started.folder}: continues as {process}; its output is in {started.output}",
        f"watch it: {watch}",
        f"stop it:  {stop}",
    ]


@dataclass
class _Output:
    """The output of the run, in a file, and what the run reports about itself through a pipe.

    The run reports its `folder` once that has a journal, and whether it `trains`, or has nothing left to
    train. What it prints from the byte `failed_at` on is about a failure.
    """

    root: Path
    recipe_name: str
    path: Path = field(init=False)
    descriptor: int = field(init=False)
    folder: str = ""
    trains: bool = False
    failed_at: float = math.inf
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
            raise output_error(self.path, error, "check the Caffe root") from None

    def relay(self, pipe: int, to: RelayLine) -> None:
        """Read the new output and reports, and pass the output to a function, one whole line at a time.

        The reports are read last: a failure is reported before it is printed.
        """
        new = b""
        while more := os.pread(self.descriptor, _CHUNK, self._read_bytes + len(new)):
            new += more
        with suppress(BlockingIOError):
            for report in os.read(pipe, _CHUNK).splitlines():
                vars(self).update(json.loads(report))
        for line in new[: new.rfind(b"\n") + 1].splitlines(keepends=True):
            to(line.decode(errors="replace").rstrip("\r\n"), self._read_bytes >= self.failed_at)
            self._read_bytes += len(line)

    def remove(self) -> None:
        """Delete the output file, and the folders that were created for it."""
        with suppress(OSError):
            self.path.unlink()
            for folder in self._new_folders:
                folder.rmdir()


class _Reports:
    """Reports of a detached run to the process that started it, which reads them from a pipe.

    Each is a line of JSON with fields of `_Output`. It is lost if that process has ended.
    """

    def __init__(self, pipe: int, root: Path, recipe: AnyRecipe) -> None:
        self._pipe, self._root, self._recipe = pipe, root, recipe

    def observe(self, event: Event, line: str) -> None:
        """Report that the run has started, and that it trains."""
        if isinstance(event, RunStarted):
            folder = run_folders(self._root, self._recipe.name)[-1]
            state = load_journal(folder / JOURNAL)
            trains = state.launch is not None or is_trained(state, plan_steps(self._recipe))
            self.report(folder=str(folder), trains=trains)
        elif isinstance(event, Launch | Branched):
            self.report(trains=True)

    def report(self, **fields: object) -> None:
        """Write a report."""
        with suppress(OSError):
            os.write(self._pipe, f"{json.dumps(fields)}\n".encode())


def _detach_from_terminal(output: int, pipe: int) -> None:
    """Detach this process from the terminal: a new session, default signal handlers, no files but `pipe`."""
    os.setsid()
    with open(os.devnull, "rb") as null:  # noqa: PTH123 - only its descriptor is needed
        os.dup2(null.fileno(), 0)
    for descriptor in (1, 2):
        os.dup2(output, descriptor)
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - the list must be complete before any is closed
        if int(name) > 2 and int(name) != pipe:
            with suppress(OSError):
                os.close(int(name))
    # A process that a shell starts with `&` ignores SIGINT, which is the signal that stops a run.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _wait(pid: int, output: _Output, pipe: int, relay: RelayLine) -> Detached:
    """Wait for the first launch, or for the end of the run; pass a Ctrl-C until then on to the run."""
    while True:
        try:
            ended, status = os.waitpid(pid, os.WNOHANG)
            output.relay(pipe, relay)
            if ended:
                if not output.folder:
                    output.remove()
                code = os.waitstatus_to_exitcode(status)
                return Detached(pid, output.path, exit_code=code if code >= 0 else 128 - code)
            if output.trains:
                return Detached(pid, output.path, Path(output.folder))
            time.sleep(_POLL_S)
        except KeyboardInterrupt:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGINT)
