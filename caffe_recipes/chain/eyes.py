"""What looks at a run again and again, and knows when there is nothing more to come."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from caffe_recipes.chain.report import Reporter
from caffe_recipes.chain.run_files import NOBODY, HostFiles, LocalFiles, Look, Process, RunFiles, Wanted
from caffe_recipes.chain.setting import Connect
from caffe_recipes.chain.shown_run import ShownRun
from caffe_recipes.cluster.hosts import open_host
from caffe_recipes.errors import ClusterError

# Between two looks at files of this machine, and of another.
HERE_S = 0.3
THERE_S = 1.0
# Without news for so long, another host that the run's process is on is asked whether it lives.
_QUIET_S = 15.0
_LONGEST_PAUSE_S = 30.0


@dataclass(frozen=True)
class Means:
    """How time passes and hosts are reached."""

    connect: Connect = open_host
    pause: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic


class Watched(Protocol):
    """A run of which files are read, and who carries it on."""

    @property
    def process(self) -> Process:
        """The process that carries the run on, or did."""

    def wanted(self) -> Sequence[Wanted]:
        """Return what is to be read next."""


def open_files(on: str | None, means: Means) -> RunFiles:
    """Return the files of a host, or of this machine; raises ClusterError for what is no host's name."""
    return HostFiles(means.connect(on, "auto")) if on else LocalFiles()


def check_end(shown: ShownRun, look: Look, *, is_final: bool) -> None:
    """Raise how a run has ended whose process is gone, or, where nobody knows of it, has said its last."""
    if look.lives is False:
        raise shown.failure or shown.gone()
    if look.lives is None and is_final and (shown.failure or shown.process == NOBODY):
        raise shown.failure or shown.gone()


@dataclass
class Eyes:
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

    def look(self, watched: Watched) -> Look:
        """Read what is new; over a new connection when one is lost, however long that takes.

        Raises ClusterError if the host could not be reached the first time, or with `once`.
        """
        lives = self._ask_elsewhere(watched.process)  # before the files, as with any look
        told, pause_s = "", THERE_S
        while True:
            try:
                look = self.files.look(watched.wanted(), watched.process)
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
