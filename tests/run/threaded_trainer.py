"""The launcher and its ranks as threads of the test: what `fake_caffe` does, without a process.

A run follows it as it follows mpiexec.hydra: by its log, its files, and the signals that it sends.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from caffe_recipes.run.process import POLL_S, TrainerProcess, open_log
from tests.run.fake_caffe import Rank

# The words of hydra about a rank that somebody else has killed.
_KILLED = b"""\
=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES
=   PID 4711 RUNNING AT localhost
=   EXIT CODE: 9
YOUR APPLICATION TERMINATED WITH THE EXIT STRING: Killed (signal 9)
"""


class Killed(BaseException):
    """The end of a rank by a signal."""


class _ThreadedRank(Rank):
    """A rank that a signal ends at its next line or pause."""

    def __init__(self, root: Path, rank: int, log: Path, label: str) -> None:
        super().__init__(root, rank, self._write)
        self._log, self._label = log, label
        self._killed = threading.Event()
        self._ignored: set[signal.Signals] = set()
        self._listens = False

    def get(self, number: signal.Signals) -> None:
        """Take a signal as a process does."""
        if number == signal.SIGINT and self._listens:
            self.ask()
        elif number not in self._ignored:
            self._killed.set()

    def listen(self) -> None:
        self._listens = True

    def ignore(self, *numbers: signal.Signals) -> None:
        self._ignored |= set(numbers)

    def catch(self, number: signal.Signals) -> None:
        self.ignore(number)

    def die(self) -> None:
        with open_log(self._log) as file:
            file.write(_KILLED)
        raise Killed

    def pause(self, seconds: float) -> None:
        if self._killed.wait(seconds):
            raise Killed

    def _write(self, line: bytes) -> None:
        if self._killed.is_set():
            raise Killed
        with open_log(self._log) as file:
            file.write(self._label.encode() + line)


class ThreadedTrainer(TrainerProcess):
    """A launcher in this process. Its ranks run one after the other, rank 0 last."""

    def __init__(self, root: Path, log: Path, words: Sequence[str], ranks: Sequence[str]) -> None:
        """Start the ranks with these labels."""
        super().__init__(log)
        self._ranks = [_ThreadedRank(root, rank, log, label) for rank, label in enumerate(ranks)]
        self._thread = threading.Thread(target=self._run, args=(words,), daemon=True, name=str(log))
        self._thread.start()

    def is_running(self) -> bool:
        return self._thread.is_alive()

    def wait(self) -> None:
        self._thread.join(POLL_S)

    def _signal(self, number: signal.Signals) -> None:
        for rank in self._ranks:
            rank.get(number)

    def _run(self, words: Sequence[str]) -> None:
        for rank in reversed(self._ranks):
            try:
                rank.run(words)
            except Killed:
                return


def start_threads(
    argv: Sequence[str],
    root: Path,
    environment: Mapping[str, str],
    log: Path,
    inherited: Sequence[int] = (),
) -> TrainerProcess:
    """Start a trainer as `launch_trainer` does, its ranks in threads."""
    at = next(index for index, word in enumerate(argv) if word in ("train", "test"))
    open_log(log).close()
    labels = ["[0] ", "[1] "] if argv[at] == "train" else [""]
    return ThreadedTrainer(root, log, argv[at:], labels)
