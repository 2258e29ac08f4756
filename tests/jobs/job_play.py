"""Where a recipe's Slurm jobs are run by bash; `caffe-recipes` and the commands of Slurm are stand-ins."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from caffe_recipes.recipe.source import load_recipe
from caffe_recipes.render.scripts import render_jobs

# Records how it was called, and then runs what the test put into `hook.NAME`.
STAND_IN = r"""#!/bin/bash
tool=${0##*/}
{ printf '%s' "$tool"; printf ' <%s>' "$@"; printf '\n'; } >>"$PLAY/calls"
pwd >"$PLAY/cwd"
[ ! -e "$PLAY/hook.$tool" ] || . "$PLAY/hook.$tool"
"""
JOB = {"SLURM_JOB_ID": "12", "SLURM_JOB_NODELIST": "c[1-2],d3"}


@dataclass
class Play:
    """A folder to submit from, the jobs of a recipe, and stand-ins on PATH."""

    folder: Path
    jobs: Path

    def hook(self, tool: str, text: str) -> None:
        (self.folder / f"hook.{tool}").write_text(text)

    def start(self, file: str, *words: str, **environment: str) -> subprocess.Popen[str]:
        path = f"{self.folder / 'bin'}:{os.environ['PATH']}"
        return subprocess.Popen(
            ["bash", self.jobs / file, *words],
            cwd=self.folder / "submit dir",
            env={"PATH": path, "HOME": str(self.folder), "PLAY": str(self.folder), **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(self, file: str, *words: str, **environment: str) -> tuple[int, str, str]:
        process = self.start(file, *words, **environment)
        return self.end(process)

    def end(self, process: subprocess.Popen[str]) -> tuple[int, str, str]:
        try:
            stdout, stderr = process.communicate(timeout=600)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise
        return process.returncode, stdout, stderr

    def warned(self, number: signal.Signals, **environment: str) -> tuple[int, str, str]:
        """Run the chain, and send it a signal once it trains."""
        process = self.start("chain.sbatch", **{**JOB, **environment})
        self.wait_for("runs")
        process.send_signal(number)
        return self.end(process)

    def wait_for(self, name: str) -> None:
        deadline = time.monotonic() + 600
        while not (self.folder / name).exists():
            assert time.monotonic() < deadline, f"{name} never came"
            time.sleep(0.02)

    def calls(self, tool: str = "") -> list[str]:
        path = self.folder / "calls"
        lines = path.read_text().splitlines() if path.exists() else []
        return [line for line in lines if line.startswith(tool)]


def make_play(folder: Path) -> Play:
    """Write the digits' jobs, and the stand-ins."""
    (folder / "bin").mkdir()
    for tool in ("caffe-recipes", "scontrol", "sbatch", "scancel"):
        (folder / "bin" / tool).write_text(STAND_IN)
        (folder / "bin" / tool).chmod(0o755)
    jobs = folder / "jobs of mine"
    for path, text in render_jobs(load_recipe("digits-local")).items():
        file = jobs / Path(path).relative_to("jobs")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    (folder / "submit dir").mkdir()
    return Play(folder, jobs / "digits-local")
