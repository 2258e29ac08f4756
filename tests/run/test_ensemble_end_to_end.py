"""A small part of the cyclic digits: two cycles, a collapse off each, trained for real and averaged."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from caffe_recipes.recipe.shipped import shipped_recipes
from tests.extras import needs_local

pytestmark = [needs_local, pytest.mark.slow]

PROGRAM = "from caffe_recipes.cli.main import main; main()"
KEPT = ("init", "cyc1", "cyc2", "collapse1", "collapse2")
FEW = {"max_iter": 8, "lr_iter": 16, "warmup_iter": 2}


def call(root: Path, *words: str) -> str:
    argv = [sys.executable, "-c", PROGRAM, *words]
    done = subprocess.run(argv, cwd=root, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_two_collapses_of_the_digits_are_trained_evaluated_and_averaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    recipe = yaml.safe_load(shipped_recipes()["digits-cyclic"].file.read_text())
    recipe["phases"] = [
        {key: FEW.get(key, value) for key, value in phase.items()}
        for phase in recipe["phases"]
        if phase["name"] in KEPT
    ]
    (tmp_path / "cyclic.yaml").write_text(yaml.safe_dump(recipe))
    call(tmp_path, "run", "cyclic.yaml")
    journal = tmp_path / "runs/digits-cyclic-1/journal.jsonl"
    events = [json.loads(line) for line in journal.read_text().splitlines()]
    tested = {event["phase"]: event["outputs"] for event in events if event["event"] == "evaluated"}
    assert list(tested) == ["collapse1", "collapse2"]
    for average in ("probabilities", "geometric", "votes"):
        found = json.loads(call(tmp_path, "ensemble", "cyclic.yaml", "--average", average, "--json"))
        assert found["images"] == 359
        for member in found["members"]:
            for key, name in (("top1", "loss3/top-1"), ("top5", "loss3/top-5")):
                assert member[key] == pytest.approx(tested[member["name"]][name], abs=1e-6)
        assert 0 <= found["ensemble"]["top1"] <= found["ensemble"]["top5"] <= 1
    table = call(tmp_path, "ensemble", "cyclic.yaml")
    assert [line.split()[0] for line in table.splitlines() if line.startswith("collapse")] == list(tested)
