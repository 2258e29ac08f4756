"""The digits' own recipe, as it ships: real images, real training, a real mpiexec.hydra, and one kill -9."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from caffe_recipes.recipe.source import load_recipe
from caffe_recipes.run.journal import load_journal

for module in ("torch", "cv2", "sklearn", "mpi4py"):
    pytest.importorskip(module, reason="the extra `local` is not installed")

# The whole chain is some 140 s of CPU; a busy machine may need several times that.
PATIENCE_S = 900


def start(root: Path) -> subprocess.Popen[str]:
    code = "from caffe_recipes.cli.main import main; main()"
    return subprocess.Popen(
        [sys.executable, "-c", code, "run", "digits-local", "--caffe-root", "."],
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
    """Whatever runs with the root as its working directory."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and (entry / "cwd").readlink() == root:
                found.append(entry.name)
        except OSError:
            continue
    return found


def test_the_digits_killed_in_their_second_phase_continue_to_98_percent_and_train_no_phase_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    run = tmp_path / "runs/digits-local-1"
    log = run / "logs/cyc1-1.log"
    first = start(tmp_path)
    wait_for(lambda: first.poll() is not None or (log.exists() and "Iteration 20," in log.read_text()))
    first.kill()
    said, complained = first.communicate()
    assert first.returncode == -9, said + complained
    assert list(load_journal(run / "journal.jsonl").finished) == ["init"]

    second = start(tmp_path)
    said, complained = second.communicate(timeout=PATIENCE_S)
    assert (second.returncode, complained) == (0, ""), said + complained
    assert "init: already finished" in said
    phases = [phase.name for phase in load_recipe("digits-local").phases]
    events = [json.loads(line) for line in (run / "journal.jsonl").read_text().splitlines()]
    assert [event["phase"] for event in events if event["event"] == "launched"].count("init") == 1
    assert [event["phase"] for event in events if event["event"] == "finished"] == phases
    outputs = load_journal(run / "journal.jsonl").outputs
    assert outputs is not None
    assert outputs["loss3/top-1"] >= 0.98
    wait_for(lambda: processes_in(tmp_path) == [], patience_s=5)
