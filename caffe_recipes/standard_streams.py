"""Handle standard streams that are closed, full or without a reader."""

from __future__ import annotations

import os
import sys
from typing import TextIO

from caffe_recipes.errors import InputError, ReaderGone, hint_for
from caffe_recipes.wording import one_line


def open_standard_files() -> None:
    """Open closed standard streams (`>&-`), so that no other file, here or in a child, gets their numbers."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets this number, the lowest that is free
            os.set_inheritable(number, True)
            setattr(sys, name, os.fdopen(number, "w" if number else "r"))


def drop_output(stream: TextIO) -> None:
    """Discard a stream's pending output. Python would try to write it at exit, fail, and exit with 120."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def print_output(text: str, *, err: bool = False) -> None:
    """Print on standard output, or error. Raises ReaderGone, or InputError if it cannot be written."""
    stream = sys.stderr if err else sys.stdout
    try:
        print(text, file=stream, flush=True)
    except OSError as error:
        drop_output(stream)
        if isinstance(error, BrokenPipeError):
            raise ReaderGone from None
        raise unwritable("standard error" if err else "standard output", error) from None


def print_error(text: str) -> None:
    """Print one line on standard error. If it cannot be written, only the exit code reports the error."""
    try:
        print(one_line(text), file=sys.stderr, flush=True)
    except OSError:
        drop_output(sys.stderr)


def unwritable(stream: str, error: OSError) -> InputError:
    """Return the error for a standard stream that cannot be written: bad input, not a failed run."""
    hint = f"{hint_for(error, 'check its disk')}, or write to another file"
    return InputError("", f"cannot write to {stream}: {error.strerror}", hint)
