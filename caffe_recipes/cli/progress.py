"""How far a long build is, told now and then."""

from __future__ import annotations

import time
from collections.abc import Callable

import click

_TELL_EVERY_S = 10
_IN_SECONDS_S = 90  # below, whole minutes would be off by a third and more


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
            if done:
                click.echo(f"going on: {done:,} of {total:,} images were there", err=True)
        elif now - self._last >= _TELL_EVERY_S and done > self._start[0]:
            self._last = now
            pace = (done - self._start[0]) / (now - self._start[1])
            left_s = (total - done) / pace
            left = f"{left_s:.0f} s" if left_s < _IN_SECONDS_S else f"{left_s / 60:.0f} min"
            click.echo(f"{done:,} of {total:,} images, {pace:,.0f} images/s, {left} left", err=True)
