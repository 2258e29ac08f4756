"""The digits for Intel's Caffe with real programs: poly stopped where poly_cyc ends trains equal models."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from importlib import resources
from pathlib import Path

import pytest
import yaml

from caffe_recipes.recipe.source import load_recipe
from caffe_recipes.render.dialect import translate_whole
from caffe_recipes.render.recipe_files import generate
from caffe_recipes.run.journal import load_journal
from tests.extras import needs_local

pytestmark = [needs_local, pytest.mark.slow]

PROGRAMS = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
RUN = (sys.executable, "-c", "from caffe_recipes.cli.main import main; main()", "run", "short.yaml")
FEW = {
    "init": {"max_iter": 12, "lr_iter": 4000, "warmup_iter": 4},
    "cyc1": {"max_iter": 8, "lr_iter": 4000},
    "collapse": {"max_iter": 4},
}


def write_short_recipe(root: Path, phases_of: dict[str, dict[str, int]] = FEW) -> Path:
    """Write some phases of the digits, of a few iterations each, whose schedules would take minutes."""
    text = resources.files("caffe_recipes").joinpath("recipes/digits-local.yaml").read_text("utf-8")
    recipe = yaml.safe_load(text)
    phases = {phase["name"]: phase for phase in recipe["phases"]}
    recipe["name"] = "short"
    recipe["phases"] = [{**phases[name], **few, "display": 2} for name, few in phases_of.items()]
    path = root / "short.yaml"
    path.write_text(yaml.safe_dump(recipe, sort_keys=False))
    return path


def start(root: Path, *argv: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        argv,
        cwd=root,
        env={**os.environ, "PATH": PROGRAMS},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def call(root: Path, *argv: str) -> str:
    process = start(root, *argv)
    output, _ = process.communicate(timeout=600)
    assert process.returncode == 0, output[-3000:]
    return output


def kill_in_cyc1(root: Path, log: Path) -> None:
    """Start the chain for Intel's Caffe, and kill only the run once its second phase has logged.

    The log is there before the trainer: killed between the two, the run rightly launches the phase again.
    """
    process = start(root, *RUN, "--dialect", "intel")
    deadline = time.monotonic() + 300
    while not log.exists() or log.stat().st_size == 0:
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.kill()
    process.communicate()


@pytest.mark.skipif(
    not all(shutil.which(tool, path=PROGRAMS) for tool in ("mpiexec.hydra", "caffe-torch", "flock")),
    reason="the extra `local` is not installed: no mpiexec.hydra or no caffe-torch",
)
def test_the_chain_for_intels_caffe_trains_the_same_models_to_the_byte(tmp_path: Path) -> None:
    short = write_short_recipe(tmp_path)
    call(tmp_path, *RUN)
    ours, theirs = tmp_path / "runs/short-1", tmp_path / "runs/short-intel-1"
    kill_in_cyc1(tmp_path, theirs / "logs/cyc1-1.log")
    output = call(tmp_path, *RUN, "--dialect", "intel")
    assert "/4000" not in output
    # Whether the trainer outlived the pause or not: nothing is trained twice.
    assert not (theirs / "logs/cyc1-2.log").exists()

    translated = translate_whole(load_recipe(short), "intel")
    names = [Path(phase.final_snapshot).name for phase in translated.phases]
    kept = [ours / "snapshots" / Path(phase.final_snapshot).name for phase in load_recipe(short).phases]
    models = [path.read_bytes() for path in kept]
    assert sorted(path.name for path in (theirs / "snapshots").iterdir()) == sorted(names)
    assert [(theirs / "snapshots" / name).read_bytes() for name in names] == models
    logs = [(theirs / f"logs/{phase}-1.log").read_text() for phase in FEW]
    assert ["Optimization stopped early." in log for log in logs] == [True, True, False]
    outputs = load_journal(ours / "journal.jsonl").outputs
    assert outputs
    assert outputs == load_journal(theirs / "journal.jsonl").outputs

    for path, text in generate(translated).items():
        (tmp_path / "made" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "made" / path).write_text(text, "utf-8")
    output = call(tmp_path, "bash", "made/jobs/short-intel/run.sh")
    assert "] loss3/top-1 = " in output
    assert [(tmp_path / name).read_bytes() for name in names] == models
    for phase in ("init", "cyc1"):
        assert "Optimization stopped early." in (tmp_path / f"logs/short-intel/{phase}.log").read_text()


def test_ctrl_c_has_the_ranks_of_caffe_torch_snapshot_and_the_same_command_continues(tmp_path: Path) -> None:
    write_short_recipe(tmp_path, {"init": {"max_iter": 80, "lr_iter": 4000, "warmup_iter": 4}})
    log, deadline = tmp_path / "runs/short-1/logs/init-1.log", time.monotonic() + 300
    run = start(tmp_path, *RUN)
    while not (log.exists() and "Iteration 2," in log.read_text()):
        assert run.poll() is None, run.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.02)
    run.send_signal(signal.SIGINT)
    output, _ = run.communicate(timeout=300)
    assert run.returncode == 130, output
    assert "asked Caffe for a snapshot" in output
    (kept,) = load_journal(tmp_path / "runs/short-1/journal.jsonl").checkpoints["init"]
    assert 2 <= kept.iteration < 80
    assert "Optimization Done" not in log.read_text()

    output = call(tmp_path, *RUN)
    assert f"init: {80 - kept.iteration} iterations from the checkpoint at {kept.iteration}" in output
    assert "Resuming from" in (tmp_path / "runs/short-1/logs/init-2.log").read_text()
    assert list((tmp_path / "runs/short-1/checkpoints").iterdir()) == []
