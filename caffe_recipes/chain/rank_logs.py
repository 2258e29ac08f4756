"""A launcher's log, one file per rank: what `mpiexec -l` mixes into one, for who looks for one rank's words.

The launcher's own log stays the truth: these files can be made from it again, and no run fails for want of
them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from io import FileIO
from pathlib import Path

from caffe_recipes.caffe.logs import split_rank

# Of what no rank says: the launcher's own words, and lines that came without a label.
LAUNCHER = "launcher.log"
_MOST_RANKS = 10_000
# Several launches may be followed at once, and a login node's limit can be 256.
_MOST_OPEN = 16


class RankLogs:
    """Splits a launcher's log into `folder`, a file per rank; leaving its `with` block closes them.

    Whoever reads the log from its beginning again makes a new one of these, and each file begins anew.
    `complain` is told once, and then no more is written, if a disk does not take it.
    """

    def __init__(
        self, folder: Path, ranks: int = _MOST_RANKS, complain: Callable[[str], None] = lambda text: None
    ) -> None:
        """Write nothing yet; a label beyond `ranks` is no rank's, but a program's own."""
        self.folder = folder
        self._ranks = ranks
        self._digits = len(str(ranks - 1))
        self._complain = complain
        self._open: OrderedDict[str, FileIO] = OrderedDict()
        self._begun: set[str] = set()
        self._gave_up = False

    def __enter__(self) -> RankLogs:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def feed(self, lines: Iterable[str]) -> None:
        """Take the lines that have come; they are in their files when this returns."""
        if self._gave_up:
            return
        by_file: dict[str, list[str]] = {}
        for line in lines:
            name, said = self._sort(line.rstrip("\r\n"))
            by_file.setdefault(name, []).append(f"{said}\n")
        try:
            for name, said_there in by_file.items():
                _write_all(self._file(name), "".join(said_there))
        except OSError as error:
            self._gave_up = True
            self.close()
            what = f"no more is written, {error.strerror}; the launcher's log has it all"
            self._complain(f"{self.folder}: {what}")

    def close(self) -> None:
        """Close what is open."""
        while self._open:
            self._open.popitem()[1].close()

    def _sort(self, line: str) -> tuple[str, str]:
        """Return the file that a line belongs into, and the line as it stands there."""
        rank, said = split_rank(line)
        if rank is None or rank >= self._ranks:
            return LAUNCHER, line
        return f"{rank:0{self._digits}}.log", said

    def _file(self, name: str) -> FileIO:
        """Return an open file, the one longest unused being closed for it."""
        if name not in self._open:
            if not self._begun:
                self.folder.mkdir(parents=True, exist_ok=True)
            if len(self._open) >= _MOST_OPEN:
                self._open.popitem(last=False)[1].close()
            self._open[name] = FileIO(self.folder / name, "a" if name in self._begun else "w")
            self._begun.add(name)
        self._open.move_to_end(name)
        return self._open[name]


def _write_all(file: FileIO, text: str) -> None:
    left = memoryview(text.encode(errors="replace"))
    while left:
        left = left[file.write(left) or 0 :]
