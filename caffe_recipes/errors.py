"""The exceptions of caffe_recipes. Every message says where, what, and what to do next, on one line.

    CaffeRecipesError               exit_code
      InputError                    2   what the user gave is wrong; nothing on disk has changed
        PrototxtError                   prototxt text: file, line, column, field
        RecipeError                     recipe YAML: file, line, key
        ClusterError                    hostfile, hosts, launcher
        DataError                       an LMDB or the images in it
        WeightsError                    a caffemodel or solverstate
      CheckFailed                   1   a check that the user asked for found something
      RunFailed                     3   a run started and did not succeed

Only `cli/` and `engine/main.py` catch them; errors of other packages are translated where they arise.
"""

from __future__ import annotations

import traceback
from pathlib import Path


class CaffeRecipesError(Exception):
    """Base of all; `where: what; hint` as text."""

    exit_code = 1

    def __init__(self, where: str | Path, what: str, hint: str = "") -> None:
        self.where = str(where)
        self.what = what
        self.hint = hint
        text = f"{where}: {what}" if self.where else what
        super().__init__(f"{text}; {hint}" if hint else text)


class InputError(CaffeRecipesError):
    """What the user gave is wrong; nothing on disk has changed."""

    exit_code = 2


class PrototxtError(InputError):
    """Prototxt text that is not a message of the schema; `where` is `file:line:column`."""


class RecipeError(InputError):
    """A recipe that does not validate; `where` is `file:line`."""


class ClusterError(InputError):
    """A hostfile, host or launcher that cannot serve the recipe."""


class DataError(InputError):
    """An LMDB that is missing, empty, unreadable, or holds labels outside the classes."""


class WeightsError(InputError):
    """A caffemodel or solverstate that is missing, empty, truncated, or of another net."""


class CheckFailed(CaffeRecipesError):
    """A check that the user asked for found something."""

    exit_code = 1


class RunFailed(CaffeRecipesError):
    """A run that started and did not succeed."""

    exit_code = 3


def escaped_error(where: str, error: Exception) -> RunFailed:
    """Make one line of an exception that nobody expected, so that no user sees it as it is."""
    text = " ".join(f"{type(error).__name__}: {error}".split())[:500]
    frame = traceback.extract_tb(error.__traceback__)[-1]
    hint = f"please report it, with the prototxts ({Path(frame.filename).name}, line {frame.lineno})"
    return RunFailed(where, text, hint)
