"""The screens of `run` and `status` in a terminal of 80x24: no line wraps, and columns stay in place."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.run.recorded_run import LOG, WHOLE, launched, started, write_run

if TYPE_CHECKING:
    from tests.run.conftest import Place

MAIN = "from caffe_recipes.cli.main import main; main()"
# Progress as a run shows it: the phase changes, numbers get longer, and what was unknown becomes known.
LIVE = """
from caffe_recipes.run.console import Reporter
from caffe_recipes.run.trainer_log import PhaseProgress
phases, reporter = {"init": 7800, "cyc1": 3750, "cyc2": 9, "cyc3": 9, "collapse": 9}, Reporter()
reporter.show_progress(PhaseProgress("init", 0, 7800, None, 6.9, None, None, None, phases))
reporter.show_progress(PhaseProgress("init", 40, 7800, 0.0001234, 6.5, 980.0, 59.0, 61.0, phases))
reporter.show_progress(PhaseProgress("init", 7760, 7800, None, 0.00048713, 6301.2, 3599.0, 36000.0, phases))
reporter.say_above_progress("init: finished")
reporter.show_progress(PhaseProgress("cyc1", 1240, 3750, 0.4567891, 2.3456, 16301.2, 5.0, 10.0, phases))
reporter.end_progress()
"""


def show(folder: Path, *argv: str, columns: int = 80, **environment: str) -> str:
    """Return all that a program writes to a terminal of so many columns and 24 lines."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    known = {
        name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")
    }
    known |= {"TERM": "xterm-256color", "LANG": "C.UTF-8", **environment}
    process = subprocess.Popen(
        [sys.executable, "-c", *argv], cwd=folder, env=known, stdin=theirs, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    pieces = []
    while True:
        try:
            piece = os.read(ours, 1 << 16)
        except OSError:  # how Linux reports the end
            piece = b""
        if not piece:
            break
        pieces.append(piece)
    os.close(ours)
    assert process.wait() == 0
    return b"".join(pieces).decode()


def lines_of(shown: str) -> list[str]:
    """Return each line that a terminal has shown, also those that were overwritten, without colours."""
    plain = re.sub(r"\x1b\[[0-9;?]*m", "", shown)
    return [line for line in re.split(r"\x1b\[[0-9;?]*[A-Za-z]|[\r\n]+", plain) if line.strip()]


@pytest.fixture
def runs(place: Place) -> Place:
    """Return a root with a finished run and one whose process has died."""
    write_run(place.root, place.recipe, *WHOLE)
    write_run(place.root, place.recipe, started(), launched(), log=LOG, number=2)
    return place


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_progress_stays_in_its_columns_and_on_its_line(tmp_path: Path, columns: int) -> None:
    lines = [
        line for line in lines_of(show(tmp_path, LIVE, columns=columns)) if "/7800" in line or "/3750" in line
    ]
    assert len({len(line) for line in lines}) == 1, "every line is as wide, or blank at its end"
    assert len(lines[0]) <= columns
    assert len({line.index("loss") for line in lines}) == 1
    assert len({line.index("run ") for line in lines if "run " in line}) == 1


def test_at_80_columns_a_bar_the_loss_the_speed_and_both_times_are_shown(tmp_path: Path) -> None:
    (line,) = {line for line in lines_of(show(tmp_path, LIVE)) if "7760/7800" in line}
    assert line.startswith("init     1/5  ━━━━━─  7760/7800  loss 0.00049   6,301/s  left  59:59  run 10h00m")


def test_a_wide_terminal_shows_all_in_full_and_the_rate_of_the_iteration_before(tmp_path: Path) -> None:
    lines = lines_of(show(tmp_path, LIVE, columns=120))
    (line,) = {line for line in lines if "7760/7800" in line}
    assert "lr 0.0001234   loss 0.00049   6,301 images/s" in line
    assert line.rstrip().endswith("phase   59:59 left  run 10:00:00 left")


@pytest.mark.parametrize("columns", [80, 120])
def test_status_keeps_each_run_on_one_line_below_a_header(runs: Place, columns: int) -> None:
    header, second, first = lines_of(show(runs.root, MAIN, "status", columns=columns))
    assert header.split()[:3] == ["run", "state", "phase"]
    assert max(map(len, (header, second, first))) <= columns
    assert second.index("stopped") == first.index("finished") == header.index("state")


def test_status_has_colours_unless_none_are_wanted(runs: Place) -> None:
    assert "\x1b[32mfinished" in show(runs.root, MAIN, "status")
    assert "\x1b[32m" not in show(runs.root, MAIN, "status", NO_COLOR="1")


def test_a_run_begins_at_once_with_what_it_checks_and_breaks_no_word(place: Place) -> None:
    shown = lines_of(show(place.root, MAIN, "run", str(place.recipe)))
    assert shown[0] == "checking 1 host ..."
    rows = [line for line in shown if re.match(r"(ok|warn|failed) ", line) or line.startswith(" " * 23)]
    assert len(rows) > 10
    assert all(len(row) <= 80 or " " not in row[23:] for row in rows)
    assert any(line.startswith("init: fetching and verifying ") for line in shown)
