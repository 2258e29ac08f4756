"""A run that exists only as a journal and a log, without any process."""

from __future__ import annotations

import hashlib
import json
import socket
from collections.abc import Sequence
from pathlib import Path

from caffe_recipes.recipe.source import load_recipe
from caffe_recipes.run.events import Launch, decode_event
from caffe_recipes.run.folders import create_run
from caffe_recipes.run.journal import Journal
from caffe_recipes.run.training_plan import plan_files

HERE = socket.gethostname()
Event = tuple[str, dict[str, object]]
# No process has this pid.
NO_PID = 2**22 + 1
# The images are 64 an iteration; the log begins at 2023-11-20 11:49:33.
LOG = """\
[0] I1120 11:49:33.000000  6374 solver.cpp:312] Iteration 0, loss = 2.5
[1] I1120 11:49:33.000000  6375 solver.cpp:312] Iteration 6, loss = 9
[0] I1120 11:49:33.000000  6374 sgd_solver.cpp:219] Iteration 0, lr = 0.1
[0] I1120 11:49:34.000000  6374 solver.cpp:312] Iteration 2, loss = 1.25
[0] I1120 11:49:34.000000  6374 sgd_solver.cpp:219] Iteration 2, lr = 0.1
[0] I1120 11:49:35.000000  6374 solver.cpp:312] Iteration 4, lo"""
_LAUNCHED: dict[str, object] = {
    **{"host": HERE, "stamp": None, "needed": {}, "arguments": [], "hosts": [], "job": "", "restarts": 0},
    **{"weights": {}, "starts_from": None, "resumed": None},
}
_FINISHED = {"seconds": 3, "images_per_s": 1234.5, "loss": 0.25, "needed": {}}
EVALUATED: Event = ("evaluated", {"phase": "last", "outputs": {"loss3/top-1": 0.75}, "log": "x"})


def write_run(root: Path, recipe: Path, *events: Event, log: str = "", number: int = 1) -> Path:
    """Write a run as far as these events, all at one time, with the log of its first launch."""
    folder, loaded = root / "runs" / f"small-{number}", load_recipe(recipe)
    folder.parent.mkdir(exist_ok=True)
    create_run(folder, loaded, plan_files(loaded), lambda: 1_700_000_000.0).close()
    append_events(folder, *events)
    (folder / "logs" / "init-1.log").write_text(log)
    return folder


def append_events(folder: Path, *events: Event, after_s: float = 0) -> None:
    """Write more events into a journal, so many seconds after its first."""
    journal = Journal(folder / "journal.jsonl", lambda: 1_700_000_000.0 + after_s)
    for event, details in events:
        journal.write(event, **details)
    journal.close()


def started(pid: int = NO_PID, host: str = HERE, **more: object) -> Event:
    """Return the event of a process that starts or resumes the run."""
    return "started", {"pid": pid, "host": host, **more}


def launched(phase: str = "init", attempt: int = 1, run: str = "small-1", **more: object) -> Event:
    """Return the event of a launch."""
    log, name = f"runs/{run}/logs/{phase}-{attempt}.log", f"0123456789abcdef/{phase}-{attempt}"
    return "launched", {"phase": phase, "attempt": attempt, "log": log, "id": name, **_LAUNCHED, **more}


def launch_of(phase: str = "init", attempt: int = 1, **more: object) -> Launch:
    """Return a launch, at the beginning of time."""
    name, details = launched(phase, attempt, "small-1", **more)
    launch = decode_event(name, details, 0.0)
    assert isinstance(launch, Launch)
    return launch


def finished(phase: str) -> Event:
    """Return the event of a finished phase."""
    snapshot = f"runs/small-1/snapshots/{phase}.caffemodel"
    sha256 = hashlib.sha256(phase.encode()).hexdigest()
    return "finished", {"phase": phase, "snapshot": snapshot, "sha256": sha256, **_FINISHED}


def interrupted(signal: str = "SIGINT", seconds: float = 0.0) -> Event:
    """Return the event of a run that was stopped before the end of a training."""
    return "interrupted", {"signal": signal, "trained": False, "seconds": seconds}


def failed(phase: str, reason: str) -> Event:
    """Return the event of a failed phase."""
    return "failed", {"phase": phase, "reason": reason}


WHOLE: Sequence[Event] = (
    started(),
    launched(),
    finished("init"),
    launched("cyc1"),
    finished("cyc1"),
    launched("last"),
    finished("last"),
    EVALUATED,
)


def events_of(path: Path) -> list[dict[str, object]]:
    """Read a journal's lines."""
    return [json.loads(line) for line in path.read_text().splitlines()]
