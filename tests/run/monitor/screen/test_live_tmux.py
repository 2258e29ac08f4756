"""The screen of `attach` in tmux, against a recorded run that is played at 100 times its speed."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from caffe_recipes.run.journal import Journal
from tests.run.conftest import Place
from tests.run.recorded_run import WHOLE, launched, started, write_run

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("tmux") is None, reason="needs Debian's package tmux"),
]
_PATIENCE_S = 120.0
_ITERATIONS = 3000


@dataclass
class Tmux:
    """A tmux server of its own, with one window."""

    socket: Path

    def call(self, *words: object) -> str:
        argv = ["tmux", "-S", str(self.socket), "-f", "/dev/null", *map(str, words)]
        return subprocess.run(argv, capture_output=True, text=True, check=True).stdout

    def shown(self) -> list[str]:
        return self.call("capture-pane", "-p").splitlines()


@pytest.fixture
def tmux(tmp_path: Path) -> Iterator[Tmux]:
    found = Tmux(tmp_path / "tmux")
    yield found
    subprocess.run(["tmux", "-S", str(found.socket), "kill-server"], capture_output=True, check=False)


def record(iterations: int) -> Iterator[str]:
    """Yield the log of a launch, a loss a second."""
    for at in range(iterations):
        time_of = f"I1120 11:{at // 60:02}:{at % 60:02}.000000  6374"
        yield f"{time_of} solver.cpp:312] Iteration {2 * at}, loss = {2.5 / (1 + at / 50):.5g}\n"
        yield f"{time_of} sgd_solver.cpp:219] Iteration {2 * at}, lr = 0.1\n"


def test_the_screen_follows_the_run_at_two_sizes_and_leaves_the_terminal(place: Place, tmux: Tmux) -> None:
    place.edit("max_iter: 8", f"max_iter: {_ITERATIONS}")
    events = (started(os.getpid()), launched(hosts=[f"node{number:02}" for number in range(16)]))
    folder = write_run(place.root, place.recipe, *events)
    (folder / "snapshots" / "last.caffemodel").write_bytes(b"weights")
    python = f"{shlex.quote(sys.executable)} -c 'from caffe_recipes.cli.main import main; main()'"
    command = f"{python} attach small --caffe-root {shlex.quote(str(place.root))}; echo ended $?; read wait"
    played = record(_ITERATIONS // 2)
    with (
        closing(Journal(folder / "journal.jsonl")) as journal,
        (folder / "logs" / "init-1.log").open("w") as log,
    ):

        def play_until(is_reached: Callable[[list[str]], bool]) -> list[str]:
            until = time.monotonic() + _PATIENCE_S
            while time.monotonic() < until:
                log.writelines(line for line, _ in zip(played, range(40), strict=False))
                log.flush()
                time.sleep(0.2)
                shown = tmux.shown()
                if is_reached(shown):
                    return shown
            raise TimeoutError("\n".join(tmux.shown()))

        tmux.call(
            "new-session", "-d", "-x", 80, "-y", 24, f"unset COLUMNS LINES; export LC_ALL=C.UTF-8; {command}"
        )
        shown = play_until(lambda lines: len(lines) == 24 and "images/s" in "".join(lines))
        assert shown[0].startswith("runs/small-1  init, phase 1 of 3")
        assert shown[0].endswith(" left")
        assert [line.split()[0] for line in shown[1:5]] == ["init", "cyc1", "last", "chain"]
        assert "16 hosts: 16 at work" in "".join(shown)
        assert any("⠀" < letter <= "⣿" for line in shown for letter in line)  # the curves
        tmux.call("resize-window", "-x", 200, "-y", 60)
        shown = play_until(lambda lines: len(lines) == 60 and max(map(len, lines)) > 150)
        assert "since the start" in shown[0]
        assert shown[-1].startswith("Ctrl-C stops watching")
        for event, details in WHOLE[2:]:
            journal.write(event, **details)
        shown = play_until(lambda lines: "ended 0" in lines)
        assert not any(line.startswith("Ctrl-C stops watching") for line in shown)


def test_attach_ends_with_its_terminal(place: Place, tmux: Tmux) -> None:
    folder = write_run(place.root, place.recipe, started(os.getpid()), launched(), log="".join(record(3)))
    python = f"{shlex.quote(sys.executable)} -c 'from caffe_recipes.cli.main import main; main()'"
    command = f"exec {python} attach small --caffe-root {shlex.quote(str(place.root))}"
    with closing(Journal(folder / "journal.jsonl")):
        tmux.call("new-session", "-d", "-x", 80, "-y", 24, command)
        pid = int(tmux.call("display-message", "-p", "#{pane_pid}"))
        until = time.monotonic() + _PATIENCE_S
        while "init, phase 1 of 3" not in "".join(tmux.shown()):
            assert time.monotonic() < until
            time.sleep(0.2)
        tmux.call("kill-server")
        while Path(f"/proc/{pid}").exists():
            assert time.monotonic() < until
            time.sleep(0.2)
