"""A third of the digits' own recipe: real images, real training, a real mpiexec.hydra, and one kill -9.

CI trains the whole recipe with `make demo`.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from caffe_recipes.recipe.shipped import shipped_recipes
from caffe_recipes.run.journal import load_journal
from tests.extras import needs_local

pytestmark = [needs_local, pytest.mark.slow]

# The chain is some 60 s of CPU; a busy machine may need several times that.
PATIENCE_S = 900


def write_third(root: Path) -> list[str]:
    """Write the recipe with a third of the iterations; return the names of its phases."""
    recipe = yaml.safe_load(shipped_recipes()["digits-local"].file.read_text())
    for phase in recipe["phases"]:
        for key in {"max_iter", "lr_iter", "warmup_iter"} & phase.keys():
            phase[key] //= 3
    (root / "third.yaml").write_text(yaml.safe_dump(recipe | {"name": "third"}, sort_keys=False))
    return [phase["name"] for phase in recipe["phases"]]


def start(root: Path) -> subprocess.Popen[str]:
    code = "from caffe_recipes.cli.main import main; main()"
    return subprocess.Popen(
        [sys.executable, "-c", code, "run", "third.yaml"],
        cwd=root,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def wait_for(reached: Callable[[], bool], patience_s: float = PATIENCE_S) -> None:
    deadline = time.monotonic() + patience_s
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def processes_in(root: Path) -> list[str]:
    """Return the processes whose working directory is the root."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and (entry / "cwd").readlink() == root:
                found.append(entry.name)
        except OSError:
            continue
    return found


def test_the_digits_killed_in_their_second_phase_learn_to_the_end_and_train_no_phase_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    phases, run = write_third(tmp_path), tmp_path / "runs/third-1"
    log = run / "logs/cyc1-1.log"
    first = start(tmp_path)
    wait_for(lambda: first.poll() is not None or (log.exists() and "Iteration 20," in log.read_text()))
    first.kill()
    stdout, stderr = first.communicate()
    assert first.returncode == -9, stdout + stderr
    assert list(load_journal(run / "journal.jsonl").finished) == ["init"]

    second = start(tmp_path)
    stdout, stderr = second.communicate(timeout=PATIENCE_S)
    assert (second.returncode, stderr) == (0, ""), stdout + stderr
    assert "init: already finished" in stdout
    events = [json.loads(line) for line in (run / "journal.jsonl").read_text().splitlines()]
    assert [event["phase"] for event in events if event["event"] == "launched"].count("init") == 1
    assert [event["phase"] for event in events if event["event"] == "finished"] == phases
    outputs = load_journal(run / "journal.jsonl").outputs
    assert outputs is not None
    assert outputs["loss3/top-1"] >= 0.97
    wait_for(lambda: processes_in(tmp_path) == [], patience_s=5)
