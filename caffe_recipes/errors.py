"""Define the exceptions; each message is one line that says where, what, and what to do next.

    CaffeRecipesError               exit_code
      InputError                    2   the input is wrong; nothing on disk has changed
        PrototxtError                   prototxt text: file, line, column, field
        RecipeError                     recipe YAML: file, line, key
        DataError                       an LMDB or the images in it
        WeightsError                    a caffemodel or solverstate
      ClusterError                  2   a launcher, ssh or Slurm failed
        HostFailed                      one host failed; carries its name
          CommandTimedOut               a command on a host did not finish in time
      CheckFailed                   1   a check that the user asked for found something
      RunFailed                     3   a run started and did not succeed
        DiskFailed                      a file could not be written to a disk of this machine
      ReaderGone                  141   the reader of the output has ended, as `| head` does

Code that handles an error decides by its class and fields, never by its text. Only `cli/` and
`engine/main.py` print errors; those of other packages are translated where they arise.
"""

from __future__ import annotations

import errno
import os
import re
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Self, TypeVar


class CaffeRecipesError(Exception):
    """Base class of all errors; its text is `where: what; hint`."""

    exit_code = 1

    def __init__(self, where: str | Path, what: str, hint: str = "") -> None:
        self.where = str(where)
        self.what = what
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.without_hint}; {self.hint}" if self.hint else self.without_hint

    @property
    def without_hint(self) -> str:
        """`where: what`, for a caller that writes its own hint."""
        return f"{self.where}: {self.what}" if self.where else self.what

    def reworded(self, where: str | Path | None = None, what: str = "", hint: str = "") -> Self:
        """Return a copy of the error with the given texts replaced; class and other fields stay the same."""
        other = type(self).__new__(type(self), *self.args)
        other.__dict__.update(self.__dict__)
        other.where = self.where if where is None else str(where)
        other.what = what or self.what
        other.hint = hint or self.hint
        return other


class InputError(CaffeRecipesError):
    """Input that is wrong: an argument, a file or a variable. Nothing on disk has changed."""

    exit_code = 2


class InUse(InputError):
    """A run, or a recipe's folder, in which another process trains."""


_Input = TypeVar("_Input", bound=InputError)
_MOST_SHOWN = 6


def join_errors(errors: Sequence[_Input]) -> _Input:
    """Return the first of several errors; its text names the others, too, or the first few of many.

    >>> one, other = InputError("s:1:1", "a: unknown", "remove it"), InputError("s", "b: missing", "add it")
    >>> print(join_errors([one, other]), join_errors([one, one]), sep="\\n")
    s:1:1: a: unknown; remove it; also s: b: missing; add it
    s:1:1: a: unknown; also s:1:1: a: unknown; remove it
    """
    first, *others = errors
    if not others:
        return first
    share_hint = len({error.hint for error in errors}) == 1
    shown = [error.without_hint if share_hint else str(error) for error in others[: _MOST_SHOWN - 1]]
    texts = [first.what, "" if share_hint else first.hint, f"also {'; '.join(shown)}"]
    more = f", and {len(errors) - _MOST_SHOWN} more" if len(errors) > _MOST_SHOWN else ""
    joined = first.reworded(what="; ".join(filter(None, texts)) + more)
    joined.hint = first.hint if share_hint else ""
    return joined


class PrototxtError(InputError):
    """Prototxt text that does not parse as a message of the schema; `where` is `file:line:column`."""


class RecipeError(InputError):
    """A recipe that does not validate; `where` is `file:line`.

    `key` is the dotted path of the wrong value, or "" if no single value is wrong; `reason` says why.
    """

    key = ""
    reason = ""


class DataError(InputError):
    """An LMDB that is missing, empty or unreadable, or that has labels outside the classes."""


class WeightsError(InputError):
    """A caffemodel or solverstate that is missing, empty or truncated, or that belongs to another net."""


class ClusterError(CaffeRecipesError):
    """A launcher, ssh or Slurm that failed."""

    exit_code = 2


class HostFailed(ClusterError):
    """A failure on one host; `place` is the path on that host that it concerns, or ""."""

    def __init__(self, host: str, what: str, hint: str = "", place: str | Path = "") -> None:
        self.host = host
        self.place = str(place)
        super().__init__(f"{host}:{place}" if self.place else host, what, hint)


class CommandTimedOut(HostFailed):
    """A command on a host that did not finish within `limit_s` seconds."""

    def __init__(self, host: str, program: str, limit_s: float) -> None:
        self.program = program
        self.limit_s = limit_s
        super().__init__(
            host, f"{program} did not finish within {limit_s:.0f} s", "check the host and its disks"
        )


class CheckFailed(CaffeRecipesError):
    """A check that the user asked for found something."""

    exit_code = 1


class RunFailed(CaffeRecipesError):
    """A run that started and did not succeed."""

    exit_code = 3


class DiskFailed(RunFailed):
    """A file, `path`, that could not be written to a disk of this machine."""

    def __init__(self, path: str | Path, error: OSError) -> None:
        self.path = Path(path)
        super().__init__(path, f"cannot be written: {error.strerror}", hint_for(error, "check the disk"))


class ReaderGone(CaffeRecipesError):
    """Output whose reader has ended, as `| head` does; no line is printed about it."""

    exit_code = 141  # as after SIGPIPE; 1 would say that a check found something

    def __init__(self) -> None:
        super().__init__("", "nobody reads the output")


_PERMISSIONS = "check its permissions, and those of its folders"
_HINTS = {
    errno.ENOSPC: "free space on its disk",
    errno.EDQUOT: "delete files of yours there, or have your quota raised",
    errno.EFBIG: "raise the limit on the size of files (ulimit -f)",
    errno.EROFS: "have its file system mounted read-write, or use another folder",
    errno.EACCES: _PERMISSIONS,
    errno.EPERM: _PERMISSIONS,
    errno.EIO: "have its disk checked",
    errno.ESTALE: "have its file system mounted again",
}


def hint_for(error: Exception, default: str) -> str:
    """Return what to do about an error of a file or disk; `default` if its number does not show that.

    An error of ours that is an OSError, too, has a `hint` of its own.

    >>> hint_for(OSError(errno.EROFS, "Read-only file system"), "check the path")
    'have its file system mounted read-write, or use another folder'
    """
    own: str | None = getattr(error, "hint", None)
    return _HINTS.get(getattr(error, "errno", None) or 0, default) if own is None else own


def hint_for_reason(reason: str, default: str) -> str:
    """Return the same for what a command on a host has printed, which has no number.

    >>> hint_for_reason("mkdir: cannot create directory: Permission denied", "check the path")
    'check its permissions, and those of its folders'
    """
    hints = (hint for number, hint in _HINTS.items() if os.strerror(number) in reason)
    return next(hints, default)


_CPU_FULL = re.compile(r"DefaultCPUAllocator: .*?(\d+) bytes")


def is_host_full(error: BaseException) -> bool:
    """Return whether an error says that this host has no more memory: Python's, or torch's for the CPU.

    >>> is_host_full(MemoryError()), is_host_full(RuntimeError("another"))
    (True, False)
    """
    # torch has a class only for a GPU that is full
    is_of_torch = type(error) is RuntimeError and _CPU_FULL.search(str(error)) is not None
    return is_of_torch or isinstance(error, MemoryError)


def escaped_error(where: str, error: Exception) -> RunFailed:
    """Turn an unexpected exception into a RunFailed of one line, so that users never see a traceback."""
    if type(error).__name__ == "OutOfMemoryError":  # torch's, for a GPU
        hint = "lower batch_size and raise iter_size, or use another GPU"
        return RunFailed(where, "the GPU's memory is full", hint)
    if is_host_full(error):
        asked = _CPU_FULL.search(str(error))
        more = f": PyTorch needs {int(asked[1]) / 2**30:,.3g} GiB more" if asked else ""
        hint = "use smaller images or batches, or a host with more memory (see also ulimit -v)"
        return RunFailed(where, f"the memory of this host is full{more}", hint)
    text = " ".join(f"{type(error).__name__}: {error}".split())[:500]
    frame = traceback.extract_tb(error.__traceback__)[-1]
    hint = f"please report it, with the prototxts ({Path(frame.filename).name}, line {frame.lineno})"
    return RunFailed(where, text, hint)


def describe_setback(error: Exception) -> str:
    """Return the reason of a failure that stops nothing, as one line without a hint.

    >>> describe_setback(OSError(errno.EACCES, os.strerror(errno.EACCES), "runs/a-1/model"))
    'runs/a-1/model: Permission denied'
    >>> describe_setback(InputError("net.prototxt", "has no loss", "add one"))
    'net.prototxt: has no loss'
    """
    if isinstance(error, OSError) and error.strerror:
        return ": ".join(map(str, filter(None, (error.filename, error.strerror))))
    known = error if isinstance(error, CaffeRecipesError) else escaped_error("", error)
    return known.without_hint
