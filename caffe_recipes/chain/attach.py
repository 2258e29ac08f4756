"""Watching a run from anywhere: its journal and its trainer's log, read as they grow. Nothing is written.

The run's own process may be on another machine, and end without a word: that is told, and not waited for.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field

from caffe_recipes.chain.find_run import find_run, load_frozen
from caffe_recipes.chain.report import Reporter
from caffe_recipes.chain.run_files import NOBODY, HostFiles, LocalFiles, Look, Process, RunFiles
from caffe_recipes.chain.setting import Connect
from caffe_recipes.chain.shown_run import ShownRun
from caffe_recipes.cluster.hosts import open_host
from caffe_recipes.errors import ClusterError

_HERE_S = 0.3
_THERE_S = 1.0
# Without news for so long, another host that the run's process is on is asked whether it lives.
_QUIET_S = 15.0
_LONGEST_PAUSE_S = 30.0


@dataclass(frozen=True)
class AttachOptions:
    """What the user says of watching besides the run; `root` is a path on the host `on`."""

    root: str = "."
    on: str | None = None
    once: bool = False


@dataclass(frozen=True)
class Means:
    """How time passes and hosts are reached."""

    connect: Connect = open_host
    pause: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic


def attach(run: str, options: AttachOptions, reporter: Reporter, means: Means | None = None) -> None:
    """Show a run, and follow it until it is finished; with `once` only where it stands.

    `run` is its folder, its name, or its recipe, whose latest run is meant. Raises InputError if there is no
    such run, and RunFailed when it has failed, is interrupted, or its process is gone without a word.
    """
    means = means or Means()
    with ExitStack() as stack:
        files: RunFiles = HostFiles(means.connect(options.on, "auto")) if options.on else LocalFiles()
        stack.callback(files.close)
        stack.callback(reporter.end_progress)
        path = find_run(files, options.root, run)
        shown = ShownRun(run, path, load_frozen(files, path), reporter)
        eyes = _Eyes(files, reporter, means, options.once)
        stack.callback(eyes.close)
        # Which log there is to be read, and whose process to be asked for, the journal tells first.
        shown.take(eyes.look(shown).pieces)
        while not shown.is_complete:
            process = shown.process
            look = eyes.look(shown)
            if shown.take(look.pieces, live=not options.once):
                eyes.saw_news()
            if shown.is_complete:
                break
            if shown.process == process:
                _check_end(shown, look, is_final=options.once or eyes.is_quiet)
            if options.once:
                break
            means.pause(_THERE_S if options.on else _HERE_S)
        if shown.is_complete:
            shown.show_result()
        elif progress := shown.progress():
            reporter.show_now(progress)


def _check_end(shown: ShownRun, look: Look, *, is_final: bool) -> None:
    """Raise how a run has ended whose process is gone, or, where nobody knows of it, has said its last."""
    if look.lives is False:
        raise shown.failure or shown.gone()
    if look.lives is None and is_final and (shown.failure or shown.process == NOBODY):
        raise shown.failure or shown.gone()


@dataclass
class _Eyes:
    """What looks at a run: again and again, whatever the connection does."""

    files: RunFiles
    reporter: Reporter
    means: Means
    once: bool
    _node: str = ""
    _last_news_s: float = field(init=False)
    _asked_s: float = float("-inf")
    _elsewhere: dict[str, RunFiles] = field(default_factory=dict)
    _unreachable: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._last_news_s = self.means.clock()

    @property
    def is_quiet(self) -> bool:
        """Whether nothing new has come for a while."""
        return self.means.clock() - self._last_news_s >= _QUIET_S

    def saw_news(self) -> None:
        """Begin the while anew."""
        self._last_news_s = self.means.clock()

    def look(self, shown: ShownRun) -> Look:
        """Read what is new; over a new connection when one is lost, however long that takes.

        Raises ClusterError if the host could not be reached the first time, or with `once`.
        """
        lives = self._ask_elsewhere(shown.process)  # before the files, as with any look
        told, pause_s = "", _THERE_S
        while True:
            try:
                look = self.files.look(shown.wanted(), shown.process)
            except ClusterError as error:
                if self.once or not self._node:
                    raise
                if str(error) != told:
                    told = str(error)
                    self.reporter.end_progress()
                    self.reporter.say(f"{told}; trying again")
                self.means.pause(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
                continue
            if told:
                self.reporter.say(f"{self.files.host}: connected again")
                self.saw_news()
            self._node = look.node
            return look if look.lives is not None else Look(look.node, lives, look.pieces)

    def close(self) -> None:
        """Let go of the connections to other hosts."""
        for files in self._elsewhere.values():
            files.close()

    def _ask_elsewhere(self, process: Process) -> bool | None:
        """Tell whether a process lives that is on another host than the files; None if not known, or not due.

        A host that cannot be asked is not asked again.
        """
        now, node = self.means.clock(), process.node
        due = self.once or (self.is_quiet and now - self._asked_s >= _QUIET_S)
        if process == NOBODY or node == self._node or node in self._unreachable or not due:
            return None
        self._asked_s = now
        try:
            if node not in self._elsewhere:
                self._elsewhere[node] = HostFiles(self.means.connect(node, "auto"))
            return self._elsewhere[node].look((), process).lives
        except ClusterError as error:
            self._unreachable.add(node)
            self.reporter.end_progress()
            self.reporter.say(f"whether process {process.pid} on {node} lives is not known: {error.what}")
            return None
