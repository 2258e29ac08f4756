"""The digits' own recipe, shortened: real images, real training, a real mpiexec.hydra."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Callable
from importlib import resources
from pathlib import Path

import pytest

from caffe_recipes.chain.journal import load_journal

for module in ("torch", "cv2", "sklearn", "mpi4py"):
    pytest.importorskip(module, reason="the extra `local` is not installed")


def shorten(root: Path) -> Path:
    """Keep the first and the last phase of the digits' chain, a few iterations of each."""
    text = resources.files("caffe_recipes").joinpath("recipes/digits-local.yaml").read_text()
    text = re.sub(r"(?s)  - name: cyc1.*(?=  - name: collapse)", "", text)
    text = re.sub(r"( max_iter| lr_iter): \d+", r"\1: 12", text)
    text = re.sub(r"warmup_iter: \d+", "warmup_iter: 4", text).replace("display: 20", "display: 4")
    path = root / "digits-short.yaml"
    path.write_text(text.replace("name: digits-local", "name: digits-short", 1))
    return path


def start(recipe: Path) -> subprocess.Popen[str]:
    code = "from caffe_recipes.cli.main import main; main()"
    return subprocess.Popen(
        [sys.executable, "-c", code, "run", recipe.name],
        cwd=recipe.parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def wait_for(reached: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_digits_killed_in_the_second_phase_end_with_a_measured_model_and_no_phase_run_twice(
    tmp_path: Path,
) -> None:
    recipe = shorten(tmp_path)
    run = tmp_path / "runs/digits-short-1"
    first = start(recipe)
    wait_for(lambda: first.poll() is not None or (run / "logs/collapse-1.log").exists())
    first.kill()
    said, complained = first.communicate()
    assert first.returncode == -9, said + complained

    second = start(recipe)
    said, complained = second.communicate(timeout=180)
    assert (second.returncode, complained) == (0, ""), said + complained
    assert "init: finished before" in said
    state = load_journal(run / "journal.jsonl")
    assert state.attempts["init"] == 1
    assert sorted(path.name for path in (run / "snapshots").iterdir()) == [
        "digits_collapse_iter_12.caffemodel",
        "digits_init_iter_12.caffemodel",
    ]
    assert state.outputs is not None
    assert 0 < state.outputs["loss3/top-1"] <= 1
    assert said.splitlines()[-1] == "model: runs/digits-short-1/snapshots/digits_collapse_iter_12.caffemodel"
