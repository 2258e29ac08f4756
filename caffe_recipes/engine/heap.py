"""What glibc's malloc does with memory that tensors free. Other C libraries are left as they are."""

from __future__ import annotations

import ctypes
import resource
from collections.abc import Callable
from typing import Any

_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4  # of <malloc.h>


def keep_large_blocks() -> None:
    """Have malloc keep what is freed, also of large tensors, for the next iteration.

    By default it goes back to the kernel, which clears it again, page by page, in each iteration.
    """
    if mallopt := _find_function("mallopt"):
        mallopt(_M_MMAP_MAX, 0)
        mallopt(_M_TRIM_THRESHOLD, -1)


class Heap:
    """The memory that malloc keeps for this process.

    Blocks of other sizes do not fit well into what earlier ones left, so that it grows over the first
    iterations, to a quarter more than ResNet-50 needs. Given back whenever it has grown, it stays within a
    twentieth, and once it does not grow, nothing is given back and cleared again.
    """

    def __init__(self) -> None:
        self._peak = 0
        self._trim = _find_function("malloc_trim")

    def release_if_grown(self) -> None:
        """Give all that is free back to the kernel if the process has grown by over 1 % since it last did."""
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        if self._trim and peak > 1.01 * self._peak:
            self._peak = peak
            self._trim(0)


def _find_function(name: str) -> Callable[..., Any] | None:
    return getattr(ctypes.CDLL(None), name, None)
