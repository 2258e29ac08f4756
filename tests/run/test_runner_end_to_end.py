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
from tests.cli.command_line import call_main
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


AS_IN_NET = """
name: made-up
title: Numbers that the net makes up
trainer: caffe-torch
prototxt_dir: models/made-up
net: {name: MadeUp, classes: 3, prototxt: made_up.prototxt}
nets: {train_test: {}}
images: 50
test_images: 25
data: as-in-net
cluster: {nodes: 1, ranks_per_node: 1, batch_per_rank: 10}
phases:
  - {name: main, net: train_test, base_lr: 0.1, lr_policy: fixed, max_iter: 20, snapshot_prefix: models/main}
evaluation: {net: train_test, iterations: 3}
"""
MADE_UP = """
layer {
  name: "numbers" type: "DummyData" top: "data" top: "label"
  dummy_data_param {
    shape { dim: 10 dim: 4 } shape { dim: 10 }
    data_filler { type: "gaussian" std: 1 } data_filler { type: "constant" value: 1 }
  }
}
layer {
  name: "ip" type: "InnerProduct" bottom: "data" top: "ip"
  inner_product_param { num_output: 3 weight_filler { type: "xavier" } }
}
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }
layer { name: "top" type: "Accuracy" bottom: "ip" bottom: "label" top: "top-1" include { phase: TEST } }
"""


def test_a_net_that_names_its_own_data_trains_and_is_evaluated(tmp_path: Path) -> None:
    (tmp_path / "made-up.yaml").write_text(AS_IN_NET)
    (tmp_path / "made_up.prototxt").write_text(MADE_UP)
    done = call_main("run", "made-up.yaml", cwd=tmp_path, env={"XDG_CACHE_HOME": str(tmp_path / "cache")})
    assert (done.returncode, done.stderr) == (0, "")
    for part in ("training", "test"):
        assert (
            f"-       {part} data".ljust(23) + "as the nets name them; neither staged nor checked"
            in done.stdout
        )
    outputs = load_journal(tmp_path / "runs/made-up-1/journal.jsonl").outputs
    assert outputs is not None and outputs["top-1"] > 0.5
