"""The exceptions of caffe_recipes. Every message says where, what, and what to do next, on one line.

    CaffeRecipesError               exit_code
      InputError                    2   what the user gave is wrong; nothing on disk has changed
        PrototxtError                   prototxt text: file, line, column, field
        RecipeError                     recipe YAML: file, line, key
        DataError                       an LMDB or the images in it
        WeightsError                    a caffemodel or solverstate
      ClusterError                  2   a launcher, ssh or Slurm does not do what is needed
        HostFailed                      the same of one host, by its name
          CommandTimedOut               a command on it did not end
      CheckFailed                   1   a check that the user asked for found something
      RunFailed                     3   a run started and did not succeed
        DiskFailed                      a disk on this machine that does not take a file

Whoever handles an error decides by its class and its fields, never by its text. Only `cli/` and
`engine/main.py` print them; errors of other packages are translated where they arise.
"""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Self


class CaffeRecipesError(Exception):
    """Base of all; `where: what; hint` as text."""

    exit_code = 1

    def __init__(self, where: str | Path, what: str, hint: str = "") -> None:
        self.where = str(where)
        self.what = what
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.without_hint}; {self.hint}" if self.hint else self.without_hint

    @property
    def without_hint(self) -> str:
        """`where: what`, for a line that says itself what comes next."""
        return f"{self.where}: {self.what}" if self.where else self.what

    def reworded(self, where: str | Path | None = None, what: str = "", hint: str = "") -> Self:
        """Return an error of the same class with the same fields, in the given words where there are any."""
        other = type(self).__new__(type(self), *self.args)
        other.__dict__.update(self.__dict__)
        other.where = self.where if where is None else str(where)
        other.what = what or self.what
        other.hint = hint or self.hint
        return other


class InputError(CaffeRecipesError):
    """What the user gave is wrong; nothing on disk has changed."""

    exit_code = 2


class PrototxtError(InputError):
    """Prototxt text that is not a message of the schema; `where` is `file:line:column`."""


class RecipeError(InputError):
    """A recipe that does not validate; `where` is `file:line`.

    `key` is the dotted path of the value that is wrong, "" for none, and `reason` what is wrong with it.
    """

    key = ""
    reason = ""


class DataError(InputError):
    """An LMDB that is missing, empty, unreadable, or holds labels outside the classes."""


class WeightsError(InputError):
    """A caffemodel or solverstate that is missing, empty, truncated, or of another net."""


class ClusterError(CaffeRecipesError):
    """A launcher, ssh or Slurm that does not do what is needed."""

    exit_code = 2


class HostFailed(ClusterError):
    """What befell one host; `place` is the path there that it concerns, "" if it concerns none."""

    def __init__(self, host: str, what: str, hint: str = "", place: str | Path = "") -> None:
        self.host = host
        self.place = str(place)
        super().__init__(f"{host}:{place}" if self.place else host, what, hint)


class CommandTimedOut(HostFailed):
    """A command on a host that did not end within `limit_s` seconds."""

    def __init__(self, host: str, program: str, limit_s: float) -> None:
        self.program = program
        self.limit_s = limit_s
        super().__init__(
            host, f"{program} did not end within {limit_s:.0f} s", "check the host and its disks"
        )


class CheckFailed(CaffeRecipesError):
    """A check that the user asked for found something."""

    exit_code = 1


class RunFailed(CaffeRecipesError):
    """A run that started and did not succeed."""

    exit_code = 3


class DiskFailed(RunFailed):
    """A disk on this machine that a file, `path`, could not be written to."""

    def __init__(self, path: str | Path, what: str, hint: str = "check the disk") -> None:
        self.path = Path(path)
        super().__init__(path, what, hint)


def escaped_error(where: str, error: Exception) -> RunFailed:
    """Make one line of an exception that nobody expected, so that no user sees it as it is."""
    text = " ".join(f"{type(error).__name__}: {error}".split())[:500]
    frame = traceback.extract_tb(error.__traceback__)[-1]
    hint = f"please report it, with the prototxts ({Path(frame.filename).name}, line {frame.lineno})"
    return RunFailed(where, text, hint)
