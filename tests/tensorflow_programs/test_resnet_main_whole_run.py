"""A whole run of a recipe by TensorFlow: killed, resumed from the newest whole checkpoint, and evaluated."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from caffe_recipes.recipe.shipped import shipped_recipes
from tests.tensorflow_programs.launch import MPIEXEC

pytestmark = pytest.mark.tensorflow

NAME = "tf-short"
FOLDER = Path("runs/tf-short-1")


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    """Make a Caffe root with the recipe of the digits, cut to 60 steps; nothing runs in it afterwards."""
    text = shipped_recipes()["tf-digits-local"].file.read_text("utf-8")
    for before, after in (
        ("name: tf-digits-local", f"name: {NAME}"),
        ("warmup_steps: 66", "warmup_steps: 6"),
        ("steps: 660}", "steps: 60}"),
        ("save_checkpoints_steps: 110", "save_checkpoints_steps: 10"),
    ):
        assert text.count(before) == 1
        text = text.replace(before, after)
    (tmp_path / "short.yaml").write_text(text)
    yield tmp_path
    assert ranks_in(tmp_path) == {}


def start(root: Path, *words: str) -> subprocess.Popen[str]:
    program = "from caffe_recipes.cli.main import main; main()"
    path = os.pathsep.join((str(MPIEXEC.parent), os.environ["PATH"]))
    return subprocess.Popen(
        [sys.executable, "-c", program, "run", "short.yaml", *words],
        cwd=root,
        env={**os.environ, "PATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def ranks_in(root: Path) -> dict[int, int]:
    """Return the process of each rank that trains in a folder."""
    found = {}
    for entry in Path("/proc").iterdir():
        try:
            if not entry.name.isdigit() or (entry / "cwd").readlink() != root:
                continue
            if "resnet_main.py" not in (entry / "cmdline").read_text():
                continue
            rank = re.search(r"\0PMI_RANK=(\d+)\0", (entry / "environ").read_text(errors="replace"))
        except OSError:
            continue
        if rank:
            found[int(rank[1])] = int(entry.name)
    return found


def events(root: Path, kind: str) -> list[dict[str, Any]]:
    journal = root / FOLDER / "journal.jsonl"
    lines = journal.read_text().splitlines() if journal.exists() else []
    return [event for line in lines if (event := json.loads(line))["event"] == kind]


def wait_for_checkpoints(root: Path, count: int) -> None:
    deadline = time.monotonic() + 600
    while len(events(root, "checkpointed")) < count:
        assert time.monotonic() < deadline
        time.sleep(0.2)


def test_a_killed_rank_ends_the_run_and_the_newest_whole_checkpoint_is_resumed(root: Path) -> None:
    process = start(root)
    wait_for_checkpoints(root, 2)
    os.kill(ranks_in(root)[1], signal.SIGKILL)
    killed = time.monotonic()
    output, _ = process.communicate(timeout=600)
    assert time.monotonic() - killed < 30
    assert process.returncode == 3
    # The other rank aborts once this one has gone, and hydra reports the first of the two that it finds.
    assert re.search(r"localhost: a rank was killed by signal [96] ", output)

    older, newer = [event["iteration"] for event in events(root, "checkpointed")][-2:]
    data = root / FOLDER / f"model/model.ckpt-{newer}.data-00000-of-00001"
    data.write_bytes(data.read_bytes()[:-100])
    process = start(root)
    output, _ = process.communicate(timeout=900)
    assert process.returncode == 0, output
    assert f"moved model.ckpt-{newer} away, since the run does not resume from it" in output
    assert f"train: {60 - older} iterations from the checkpoint at {older}" in output
    (finished,) = events(root, "finished")
    kept = root / finished["snapshot"]
    assert kept.name == "model.ckpt-60.index"
    assert "Read back" in (root / FOLDER / "logs/read-back-1.log").read_text()
    (evaluated,) = events(root, "evaluated")
    assert evaluated["outputs"].keys() == {"top-1", "top-5", "loss"}

    again = start(root)
    output, _ = again.communicate(timeout=60)
    assert again.returncode == 0
    assert "is finished; use --new to start another run" in output
