"""Measure the processor time of `attach` with its screen, against the time that passes in the run it shows.

    python benchmarks/attach.py [--minutes 20] [--ranks 128] [--columns 80 --lines 24] [--speed 1]

The run is made here: the first phase of the shipped 64-node recipe, whose ranks all print each display, at
the pace of the paper. Its clock is simulated: 20 minutes of the run, in which attach polls 4,000 times and
draws 1,000 times, take some seconds. What writing the log costs is not counted. With --speed 100, so many
times as much is trained, and logged, in the same time.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from caffe_recipes.recipe.source import load_recipe
from caffe_recipes.run.events import Launch, RunStarted
from caffe_recipes.run.folders import create_run
from caffe_recipes.run.monitor.follow import AttachOptions, FollowEnv, attach
from caffe_recipes.run.monitor.screen.live import RunScreen
from caffe_recipes.run.training_plan import plan_files, plan_steps

RECIPE = "stampede2-64n-72ep"
IMAGES_PER_S = 6303
BEGIN_S = 1_700_000_000.0


class WatchedLongEnoughError(Exception):
    """Raised in a pause of attach to end it."""


@dataclass
class Player:
    """A run whose log grows while attach pauses."""

    log: Path
    ranks: int
    display_iter: int
    display_s: float
    seconds: float
    now_s: float = 0.0
    writing_s: float = 0.0
    _due_s: float = 0.0
    _iteration: int = 0

    def pause(self, seconds: float) -> None:
        """Write what all ranks print in so many seconds."""
        begun = time.process_time()
        self.now_s += seconds
        with self.log.open("a") as file:
            while self._due_s <= self.now_s:
                file.write(self._make_display())
                self._due_s += self.display_s
                self._iteration += self.display_iter
        self.writing_s += time.process_time() - begun
        if self.now_s >= self.seconds:
            raise WatchedLongEnoughError

    def _make_display(self) -> str:
        second, at = self._due_s, self._iteration
        clock = f"{int(second // 3600 % 24):02}:{int(second // 60 % 60):02}:{second % 60:09.6f}"
        loss = f"{6.9 / (1 + at / 1500):.6g}"
        start = f"I11{20 + int(second // 86400)} {clock}  6374"
        return "".join(
            f"[{rank}] {start} solver.cpp:312] Iteration {at}, loss = {loss}\n"
            f"[{rank}] {start} solver.cpp:333]     Train net output #0: loss = {loss} (* 1 = {loss} loss)\n"
            f"[{rank}] {start} sgd_solver.cpp:219] Iteration {at}, lr = 0.1\n"
            for rank in range(self.ranks)
        )


def watch(root: Path, options: argparse.Namespace) -> tuple[float, int]:
    """Watch a run for a while; return the processor time of attach in seconds, and the bytes of the log."""
    recipe = load_recipe(RECIPE)
    step, folder = plan_steps(recipe)[0], root / "runs" / f"{RECIPE}-1"
    hosts = tuple(f"c401-{number:03}" for number in range(recipe.cluster.nodes))
    log = f"runs/{folder.name}/logs/{step.phase}-1.log"
    display_s = step.display_iter * step.images_per_iter / IMAGES_PER_S / options.speed
    player = Player(root / log, options.ranks, step.display_iter, display_s, 60 * options.minutes)
    size = options.columns, options.lines
    with (
        closing(create_run(folder, recipe, plan_files(recipe), lambda: BEGIN_S)) as journal,
        Path(os.devnull).open("w") as terminal,
        suppress(WatchedLongEnoughError),
    ):
        journal.append(RunStarted.here("", 0))
        name, words = f"0123456789abcdef/{step.phase}-1", ("train",)
        journal.append(
            Launch(step.phase, 1, log, hosts[0], None, 0.0, {}, name, words, hosts, "", 0, {}, None, None)
        )
        console = Console(file=terminal, force_terminal=True, width=size[0], height=size[1])
        screen = RunScreen(console, lambda: player.now_s, lambda: BEGIN_S + player.now_s)
        env = FollowEnv(pause=player.pause, clock=lambda: player.now_s)
        begun = time.process_time()
        attach(folder.name, AttachOptions(str(root)), screen, env, screen)
    return time.process_time() - begun - player.writing_s, player.log.stat().st_size


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--ranks", type=int, default=128)
    parser.add_argument("--columns", type=int, default=80)
    parser.add_argument("--lines", type=int, default=24)
    parser.add_argument("--speed", type=float, default=1.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as root:
        took_s, size = watch(Path(root), options)
    share = took_s / (60 * options.minutes)
    shown = f"{options.ranks} ranks, {options.columns} x {options.lines}, {size / 1e6:.1f} MB of log"
    print(f"{shown}: {took_s:.1f} s of processor time in {options.minutes:g} min, {share:.1%} of a core")


if __name__ == "__main__":
    main()
