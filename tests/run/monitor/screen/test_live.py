from __future__ import annotations

import fcntl
import io
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import time
from contextlib import closing

import pytest
from rich.console import Console

from caffe_recipes.errors import RunFailed
from caffe_recipes.run.console import Reporter
from caffe_recipes.run.journal import Journal
from caffe_recipes.run.monitor.follow import AttachOptions, FollowEnv, Screen, attach
from caffe_recipes.run.monitor.screen.live import RunScreen, has_room
from tests.run.conftest import Place
from tests.run.recorded_run import LOG, WHOLE, append_events, launched, started, write_run

ENTER, LEAVE = "\x1b[?1049h", "\x1b[?1049l"
ENDS = WHOLE[2:]


class Terminal:
    """A terminal of a given size whose output is kept, and a clock that advances when attach pauses."""

    def __init__(self, place: Place, width: int = 80, height: int = 24) -> None:
        self.place, self.output, self.now_s = place, io.StringIO(), 0.0
        self.console = Console(
            file=self.output, force_terminal=True, width=width, height=height, soft_wrap=True, highlight=False
        )
        self.screen = RunScreen(self.console, lambda: self.now_s, lambda: 1_700_000_100.0)

    def watch(self, reporter: Reporter | None = None, screen: Screen | None = None) -> str:
        env = FollowEnv(pause=self.pause, clock=lambda: self.now_s)
        used = reporter or self.screen
        with closing(Journal(self.place.root / "runs" / "small-1" / "journal.jsonl")) as self.journal:
            attach("small", AttachOptions(str(self.place.root)), used, env, screen)
        return self.output.getvalue()

    def pause(self, seconds: float) -> None:
        """Train one more second, and finish after three."""
        self.now_s += 1.0
        if self.now_s == 3.0:
            self.finish()
        assert self.now_s < 10

    def finish(self) -> None:
        for event, details in ENDS:
            self.journal.write(event, **details)


def make_run(place: Place) -> None:
    folder = write_run(place.root, place.recipe, started(os.getpid()), launched(), log=LOG)
    (folder / "snapshots" / "last.caffemodel").write_bytes(b"weights")


def test_the_screen_shows_the_run_and_leaves_the_lines_that_are_printed_without_it(place: Place) -> None:
    make_run(place)
    terminal = Terminal(place)
    shown = terminal.watch(screen=terminal.screen)
    assert (shown.count(ENTER), shown.count(LEAVE)) == (1, 1)
    drawn, left = shown.split(LEAVE)
    assert "init, phase 1 of 3" in drawn
    assert "Ctrl-C stops watching; the run continues" in drawn
    plain = Terminal(place)
    without = plain.watch(Reporter(plain.console))
    assert left.splitlines()[-len(without.splitlines()) :] == without.splitlines()
    assert "finished in 3 s" in left


def test_a_finished_run_opens_no_screen(place: Place) -> None:
    make_run(place)
    append_events(place.root / "runs" / "small-1", *ENDS)
    terminal = Terminal(place)
    shown = terminal.watch(screen=terminal.screen)
    assert ENTER not in shown
    assert "model: runs/small-1/snapshots/last.caffemodel" in shown


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, RunFailed("x", "y")])
def test_the_terminal_is_restored_whatever_ends_the_watch(place: Place, error: BaseException) -> None:
    make_run(place)
    terminal = Terminal(place)

    def interrupt(seconds: float) -> None:
        raise error

    terminal.pause = interrupt  # type: ignore[method-assign]
    with pytest.raises((KeyboardInterrupt, SystemExit, RunFailed)):
        terminal.watch(screen=terminal.screen)
    left = terminal.output.getvalue().split(LEAVE)[1]
    assert "init: 8 iterations from the nets' fillers" in left


def test_the_screen_is_drawn_once_a_second(place: Place) -> None:
    make_run(place)
    terminal = Terminal(place)

    def pause(seconds: float) -> None:
        terminal.now_s += 0.25
        if terminal.now_s == 3:
            terminal.finish()

    terminal.pause = pause  # type: ignore[method-assign]
    drawn = terminal.watch(screen=terminal.screen).count("Ctrl-C stops watching")
    assert drawn in (3, 4)  # at 0, 1 and 2 s, and for the lines at its end


@pytest.mark.parametrize(
    ("console", "room"),
    [
        (Console(file=io.StringIO(), force_terminal=True, width=80, height=24), True),
        (Console(file=io.StringIO(), force_terminal=True, width=39, height=24), False),
        (Console(file=io.StringIO(), force_terminal=True, width=80, height=11), False),
        (Console(file=io.StringIO(), width=80, height=24), False),
        (
            Console(file=io.StringIO(), force_terminal=True, width=80, height=24, _environ={"TERM": "dumb"}),
            False,
        ),
    ],
)
def test_a_screen_needs_a_terminal_with_room_that_can_move_its_cursor(console: Console, room: bool) -> None:
    assert has_room(console) is room


def resize(terminal: int, width: int, height: int) -> None:
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))


def read_until(terminal: int, pattern: str, seen: str = "", limit_s: float = 120) -> str:
    ends = time.monotonic() + limit_s
    while not re.search(pattern, seen):
        assert time.monotonic() < ends, seen[-3000:]
        try:
            seen += os.read(terminal, 65536).decode(errors="replace")
        except OSError:  # the program has ended
            break
    return seen


@pytest.mark.slow
@pytest.mark.parametrize(("end", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_on_a_real_terminal_the_screen_follows_its_size_and_a_signal_restores_it(
    place: Place, end: signal.Signals, code: int
) -> None:
    make_run(place)
    ours, theirs = pty.openpty()
    resize(ours, 80, 24)
    command = [sys.executable, "-c", "from caffe_recipes.cli.main import main; main()", "attach", "small"]
    environment = {**os.environ, "TERM": "xterm-256color"}
    for name in ("COLUMNS", "LINES"):
        environment.pop(name, None)
    with closing(Journal(place.root / "runs" / "small-1" / "journal.jsonl")):
        process = subprocess.Popen(
            command, cwd=place.root, stdin=theirs, stdout=theirs, stderr=theirs, env=environment
        )
        os.close(theirs)
        try:
            read_until(ours, "the run continues")
            resize(ours, 120, 40)
            read_until(ours, "since the start, ")  # which has no room on 80 columns
            process.send_signal(end)
            assert LEAVE in read_until(ours, re.escape(LEAVE))
            assert process.wait(60) == code
        finally:
            process.kill()
            process.wait()
            os.close(ours)
