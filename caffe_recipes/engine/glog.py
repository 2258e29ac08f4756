"""Print log lines on stderr in the format of Caffe's glog."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from datetime import datetime
from typing import TextIO


def format_number(value: float) -> str:
    """Return a number as a C++ stream prints it: with six significant digits.

    >>> format_number(0.0333333), format_number(3.33334e-05), format_number(1.0), format_number(float("nan"))
    ('0.0333333', '3.33334e-05', '1', 'nan')
    """
    return f"{value:.6g}"


@dataclass
class Log:
    """A log in glog's format. In a run, only the log of rank 0 is `enabled`."""

    enabled: bool = True
    stream: TextIO = field(default_factory=lambda: sys.stderr)

    def info(self, source_line: str, text: str) -> None:
        """Print a message. `source_line` is the `file:line` where Caffe's source prints it."""
        self._print("I", source_line, text)

    def warning(self, place: str, text: str) -> None:
        """Print a warning, which Caffe does not print, about a `place`."""
        self._print("W", place, text)

    def _print(self, severity: str, place: str, text: str) -> None:
        if self.enabled:
            stamp = datetime.now().strftime("%m%d %H:%M:%S.%f")
            self.stream.write(f"{severity}{stamp} {os.getpid():5d} {place}] {text}\n")
            self.stream.flush()
