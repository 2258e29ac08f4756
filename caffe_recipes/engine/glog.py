"""Log lines as Caffe's glog prints them on stderr."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from datetime import datetime
from typing import TextIO


def format_number(value: float) -> str:
    """Print a number as a C++ stream does: six significant digits.

    >>> format_number(0.0333333), format_number(3.33334e-05), format_number(1.0), format_number(float("nan"))
    ('0.0333333', '3.33334e-05', '1', 'nan')
    """
    return f"{value:.6g}"


@dataclass
class Log:
    """Where the log goes. Only rank 0 of a run is `enabled`."""

    enabled: bool = True
    stream: TextIO = field(default_factory=lambda: sys.stderr)

    def info(self, place: str, text: str) -> None:
        """Print one message; `place` is the `file:line` that Caffe's own message bears."""
        if self.enabled:
            stamp = datetime.now().strftime("%m%d %H:%M:%S.%f")
            self.stream.write(f"I{stamp} {os.getpid():5d} {place}] {text}\n")
            self.stream.flush()
