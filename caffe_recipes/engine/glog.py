"""Print log lines as Caffe's glog does on stderr."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from datetime import datetime
from typing import TextIO


def format_number(value: float) -> str:
    """Return a number as a C++ stream prints it, with six significant digits.

    >>> format_number(0.0333333), format_number(3.33334e-05), format_number(1.0), format_number(float("nan"))
    ('0.0333333', '3.33334e-05', '1', 'nan')
    """
    return f"{value:.6g}"


@dataclass
class Log:
    """A log in glog's format; in a run only that of rank 0 is `enabled`."""

    enabled: bool = True
    stream: TextIO = field(default_factory=lambda: sys.stderr)

    def info(self, place: str, text: str) -> None:
        """Print one message; `place` is the `file:line` of Caffe's own message."""
        if self.enabled:
            stamp = datetime.now().strftime("%m%d %H:%M:%S.%f")
            self.stream.write(f"I{stamp} {os.getpid():5d} {place}] {text}\n")
            self.stream.flush()
