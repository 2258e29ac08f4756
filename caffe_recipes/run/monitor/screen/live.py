"""The screen of `attach` on a terminal: drawn in the terminal's alternate buffer, at most once a second.

What the run says while the screen is open is shown at its bottom, and printed once it is closed, so that the
terminal then holds what `attach --plain` prints.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from copy import copy

from rich.console import Console, Group
from rich.live import Live

from caffe_recipes.run.console import Reporter
from caffe_recipes.run.monitor.followed_run import FollowedRun
from caffe_recipes.run.monitor.screen.contents import CurveHistory, ScreenContents, read_contents
from caffe_recipes.run.monitor.screen.drawing import MIN_HEIGHT, MIN_WIDTH, draw_screen
from caffe_recipes.run.trainer_log import PhaseProgress

_REDRAW_S = 1.0
# A run says a few lines for each phase; of more than these, the first are dropped.
_MOST_LINES = 2000


def has_room(console: Console) -> bool:
    """Return whether a console is a terminal that a screen can be drawn on."""
    width, height = console.size
    can_move = console.is_terminal and not console.is_dumb_terminal
    return can_move and width >= MIN_WIDTH and height >= MIN_HEIGHT


class RunScreen(Reporter):
    """A reporter whose lines are shown on a screen, below the state of the run, from `begin` to `close`."""

    def __init__(
        self,
        console: Console,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        """Create the screen of a terminal, which is not yet drawn."""
        super().__init__(console, clock)
        self._now = now
        self._drawn = Live(console=console, screen=True, auto_refresh=False, redirect_stderr=False)
        self._is_open = False
        self._drawn_at_s = float("-inf")
        self._lines: deque[str] = deque(maxlen=_MOST_LINES)
        self._history = CurveHistory()
        self._news: tuple[str, int] = ("", 0)
        self._news_at_s = clock()
        self._contents: ScreenContents | None = None

    def begin(self) -> None:
        """Hold the lines from now on; the first `show` draws the screen."""
        self._is_open = True

    def show(self, run: FollowedRun) -> None:
        """Draw the state of a run, unless it was drawn less than a second ago."""
        now_s = self._clock()
        launch = run.state.launch
        news = ("" if launch is None else launch.log, len(run.summary.losses))
        if news != self._news:
            self._news, self._news_at_s = news, now_s
        if now_s - self._drawn_at_s < _REDRAW_S:
            return
        self._contents = read_contents(run, self._history, now_s - self._news_at_s, self._now())
        if not self._drawn.is_started:
            self._drawn.start()
        self._draw()

    def _draw(self) -> None:
        if self._contents is None or not self._is_open:
            return
        self._drawn_at_s = self._clock()
        width, height = self._console.size
        last = list(self._lines)[-height:]
        can_draw = self._console.encoding.startswith("utf")
        drawn = draw_screen(self._contents, last, width, height, can_draw=can_draw)
        self._drawn.update(Group(*drawn), refresh=True)

    def close(self) -> None:
        """Leave the screen, and print the lines that were shown on it."""
        self._is_open = False
        self._drawn.stop()
        while self._lines:
            super().say(self._lines.popleft(), names_phase=True)

    def for_branch(self, phase: str) -> Reporter:
        """Return a reporter for a branch: its lines begin with the phase, on the same screen."""
        other = copy(self)
        other._label, other._contents = f"{phase}: ", None  # the next `show` draws its lines
        return other

    def say(self, text: str, *, names_phase: bool = False) -> None:
        """Show a line at the bottom of the screen; print it if the screen is not open."""
        if not self._is_open:
            super().say(text, names_phase=names_phase)
            return
        self._lines.append(text if names_phase else f"{self._label}{text}")
        if self._clock() - self._drawn_at_s >= _REDRAW_S:  # `show` is not called while a host is unreachable
            self._draw()

    def say_above_progress(self, text: str) -> None:
        """Show a line as any other: the screen has room for it beside the progress."""
        self.say(text)

    def show_progress(self, progress: PhaseProgress) -> None:
        """Show the line of progress only before the screen opens; `show` then draws the progress."""
        if not self._is_open:
            super().show_progress(progress)

    def end_progress(self) -> None:
        """Remove the line of progress, which an open screen does not have."""
        if not self._is_open:
            super().end_progress()
