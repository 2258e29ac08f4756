"""A run as its watcher sees it: what its files have told so far, and what of it has been said."""

from __future__ import annotations

import json
import posixpath
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from caffe_recipes.caffe.logs import LogSummary
from caffe_recipes.chain.event_lines import (
    describe_before,
    describe_event,
    describe_run_command,
    is_complete,
    is_trained,
    next_evaluated,
)
from caffe_recipes.chain.journal import RunState, fold_journal
from caffe_recipes.chain.plan import fetched_snapshot
from caffe_recipes.chain.report import Reporter
from caffe_recipes.chain.run_files import NOBODY, Piece, Process, Wanted
from caffe_recipes.chain.watch import Progress, measure
from caffe_recipes.errors import RunFailed
from caffe_recipes.recipe.arithmetic import images_per_iter
from caffe_recipes.recipe.graph import find_leaves
from caffe_recipes.recipe.model import Recipe
from caffe_recipes.recipe.phases import Phase

# Of a log that has grown without us only the end is read: several displays of 128 ranks.
_MOST_BYTES = 2 << 20
# The events whose `host` is one that a launch was ended for.
_BLAMING = ("ending", "failed", "replaced")


@dataclass
class _Log:
    """The log of the launch under way, read a whole line at a time."""

    name: str = ""
    offset: int = 0
    summary: LogSummary = field(default_factory=LogSummary)

    def take(self, piece: Piece) -> bool:
        """Take what has come; tell whether a loss was in it."""
        known = len(self.summary.losses)
        skipped = piece.data.find(b"\n") + 1 if piece.start > self.offset else 0
        ended = piece.data.rfind(b"\n") + 1
        for line in piece.data[skipped:ended].decode(errors="replace").splitlines():
            self.summary.feed(line)
        self.offset = piece.start + ended
        return len(self.summary.losses) > known


class ShownRun:
    """A run in the folder `path`, called `given` by the user; what is new of it is said to `reporter`."""

    def __init__(self, given: str, path: str, recipe: Recipe, reporter: Reporter) -> None:
        """Know and say nothing yet."""
        self.path, self.recipe, self.reporter = path, recipe, reporter
        self.state = RunState()
        self.failure: RunFailed | None = None
        self.folder = "/".join(posixpath.normpath(path).split("/")[-2:])
        self.go_on = f"{describe_run_command(given, recipe)} goes on where it was"
        self._journal = b""
        self._log = _Log()
        self.launches: list[tuple[str, str]] = []  # phase and log of each
        self.last_failure: RunFailed | None = None  # also one that the run went on after
        self.last_s: float | None = None  # when the journal grew last
        self.job_id: int | None = None  # the job that carries the run on, or did
        self.job_ids: tuple[int, ...] = ()
        self.blamed: tuple[str, ...] = ()  # the hosts that the last process had to end launches for

    @property
    def process(self) -> Process:
        """The process that carries the run on, or did."""
        if self.state.pid is None or self.state.host is None:
            return NOBODY
        return Process(self.state.pid, self.state.host, f"{self.path}/journal.jsonl")

    @property
    def is_complete(self) -> bool:
        """Whether nothing is left to be done."""
        return is_complete(self.state, self.recipe)

    @property
    def models(self) -> tuple[str, ...]:
        """The files that a finished run leaves, in its folder, wherever that lies now: one a branch."""
        snapshots = (self.state.finished[leaf.name].snapshot for leaf in find_leaves(self.recipe))
        return tuple(f"{self.path}/snapshots/{posixpath.basename(snapshot)}" for snapshot in snapshots)

    def wanted(self) -> list[Wanted]:
        """Return what is to be read next: of the journal all that is new, and of the log of a launch."""
        wanted = [Wanted(f"{self.path}/journal.jsonl", len(self._journal))]
        launch = self.state.launch
        if launch is None:
            return wanted
        if launch.log != self._log.name:
            self._log = _Log(launch.log)
        log = f"{self.path}/logs/{posixpath.basename(launch.log)}"
        return [*wanted, Wanted(log, self._log.offset, _MOST_BYTES)]

    def take(self, pieces: Sequence[Piece | None], *, live: bool = True) -> bool:
        """Take what `wanted` has brought, say what is new of it, and tell whether anything is.

        Progress is said only if `live`.
        """
        journal, *logs = pieces
        launch = self.state.launch
        is_new = journal is not None and self._take_journal(journal)
        if logs and logs[0] is not None and self._log.take(logs[0]):
            progress = self.progress()
            if live and progress is not None and self.state.launch == launch:
                self.reporter.show_progress(progress)
            return True
        return is_new

    def progress(self) -> Progress | None:
        """Return where the phase is that trains; None if none does, or its log says nothing yet."""
        launch, names = self.state.launch, [phase.name for phase in self.recipe.phases]
        if launch is None or launch.log != self._log.name or launch.phase not in names:
            return None
        if not self._log.summary.losses:
            return None
        phase = self.recipe.phase(launch.phase)
        later = sum(each.last_iter for each in self.recipe.phases[names.index(launch.phase) + 1 :])
        images = images_per_iter(self.recipe, phase)
        return measure(self._log.summary, phase.name, phase.last_iter, images, later)

    def show_result(self) -> None:
        """Show the table of a run that is finished."""
        self.reporter.end_progress()
        self.reporter.show_result(self.recipe, self.state)

    def gone(self) -> RunFailed:
        """Return the error of a run whose process has ended without saying so."""
        if self.process == NOBODY:
            return RunFailed(self.folder, "no process carries it on", self.go_on)
        what = f"process {self.state.pid} on {self.state.host} is gone"
        return RunFailed(self.folder, what, self.go_on)

    def _take_journal(self, piece: Piece) -> bool:
        whole = piece.data[: piece.data.rfind(b"\n") + 1]
        if not whole:
            return False
        begins = not self._journal
        self._journal += whole
        state = fold_journal(self._journal.decode(errors="replace"), f"{self.path}/journal.jsonl")
        said = [json.loads(line) for line in whole.split(b"\n")[:-1]]
        if begins:
            said = self._skip_earlier(said, whole)
        before = self._evaluated_next(self.state)
        for event in said:
            self._tell(event)
        self.state = state
        evaluated = self._evaluated_next(state)
        if evaluated is not None and evaluated != before and not self.failure:
            self.reporter.say(f"evaluating {fetched_snapshot(evaluated, self.folder)}")
        return True

    def _evaluated_next(self, state: RunState) -> Phase | None:
        """Return the phase whose model is being evaluated, or is to be, once all are trained."""
        return next_evaluated(state, self.recipe) if is_trained(state, self.recipe) else None

    def _skip_earlier(self, said: list[dict[str, Any]], whole: bytes) -> list[dict[str, Any]]:
        """Fold what earlier processes did, which is told in short; return what the present one did."""
        starts = [index for index, event in enumerate(said) if event["event"] == "started"]
        first = starts[-1] if starts else 0
        earlier = b"".join(whole.splitlines(keepends=True)[:first])
        self.state = fold_journal(earlier.decode(errors="replace"), self.path)
        for event in said[:first]:
            self._keep(event)
        return said[first:]

    def _keep(self, event: dict[str, Any]) -> None:
        """Keep what is told of launches, jobs and failures, whoever carried the run on then."""
        if event["event"] == "launched":
            self.launches.append((event["phase"], event["log"]))
        if event["event"] == "started":
            job = str(event.get("job"))
            self.job_id = int(job) if job.isdecimal() else None
            self.blamed = ()
            self.job_ids = tuple(dict.fromkeys((*self.job_ids, *([self.job_id] if self.job_id else []))))
        if event["event"] in _BLAMING and event.get("host"):
            self.blamed = tuple(dict.fromkeys((*self.blamed, str(event["host"]))))
        self.last_s = datetime.fromisoformat(event["time"]).timestamp()
        self.last_failure = self._find_failure(event) or self.last_failure

    def _tell(self, event: dict[str, Any]) -> None:
        if self._log.summary.losses:
            self.reporter.end_progress()
        if self.failure is not None:  # that was not the end
            self.reporter.say(str(self.failure))
        self._keep(event)
        self.failure = self._find_failure(event)
        line = describe_event(event, self.recipe, self.folder)
        before = describe_before(self.state, self.recipe, self.folder) if event["event"] == "started" else []
        for text in (line, *before):
            if text is not None:
                self.reporter.say(text)

    def _find_failure(self, event: dict[str, Any]) -> RunFailed | None:
        """Return the error that a run ends with, if this event is its last."""
        if event["event"] == "interrupted":
            return RunFailed(self.folder, f"interrupted by {event.get('signal')}", self.go_on)
        if event["event"] != "failed":
            return None
        phase, reason = event.get("phase"), event.get("reason")
        log = event.get("log") or dict(self.launches).get(str(phase))
        hint = f"log: {log}" if log else ""
        if phase is not None:
            return RunFailed(f"phase {phase}", f"failed: {reason}", hint)
        return RunFailed("evaluation" if log else "", str(reason), hint)
