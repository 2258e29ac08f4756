"""Print log lines on stderr in the format of Caffe's glog."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from datetime import datetime
from typing import TextIO

from caffe_recipes.errors import ReaderGone
from caffe_recipes.standard_streams import drop_output


def format_number(value: float) -> str:
    """Return a number as a C++ stream prints it: with six significant digits.

    >>> format_number(0.0333333), format_number(3.33334e-05), format_number(1.0), format_number(float("nan"))
    ('0.0333333', '3.33334e-05', '1', 'nan')
    """
    return f"{value:.6g}"


@dataclass
class Log:
    """A log in glog's format. In a run, only the log of rank 0 is `enabled`.

    As for Caffe, a log that cannot be written ends no training: `failure` is the last error. A log without
    a reader, which would end Caffe by SIGPIPE, raises ReaderGone.
    """

    enabled: bool = True
    stream: TextIO = field(default_factory=lambda: sys.stderr)
    failure: OSError | None = field(default=None, init=False)

    def info(self, source_line: str, text: str) -> None:
        """Print a message. `source_line` is the `file:line` where Caffe's source prints it."""
        self._print("I", source_line, text)

    def warning(self, place: str, text: str) -> None:
        """Print a warning, which Caffe does not print, about a `place`."""
        self._print("W", place, text)

    def _print(self, severity: str, place: str, text: str) -> None:
        if not self.enabled:
            return
        stamp = datetime.now().strftime("%m%d %H:%M:%S.%f")
        try:
            self.stream.write(f"{severity}{stamp} {os.getpid():5d} {place}] {text}\n")
            self.stream.flush()
        except BrokenPipeError:
            drop_output(self.stream)
            raise ReaderGone from None
        except OSError as error:
            self.failure = error
