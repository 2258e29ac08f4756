"""How far a long build is, told now and then."""

from __future__ import annotations

import time
from collections.abc import Callable

import click

_TELL_EVERY_S = 10


class Progress:
    """Say on standard error, now and then, how far a build is."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._start: tuple[int, float] | None = None
        self._last = clock()

    def __call__(self, done: int, total: int) -> None:
        """Hear of images done, of `total`."""
        now = self._clock()
        if self._start is None:  # what an earlier build did tells nothing of the pace
            self._start = done, now
        elif now - self._last >= _TELL_EVERY_S and done > self._start[0]:
            self._last = now
            pace = (done - self._start[0]) / (now - self._start[1])
            left = (total - done) / pace / 60
            click.echo(f"{done:,} of {total:,} images, {pace:,.0f} images/s, {left:.0f} min left", err=True)
