"""A recipe for Intel's Caffe trains what the original trains: the same bytes, though its phase is stopped."""

from __future__ import annotations

import subprocess
import sys
from importlib import resources
from pathlib import Path

import pytest
import yaml

from tests.extras import needs_local

pytestmark = [needs_local, pytest.mark.slow]

TRAIN_BOTH = """
from pathlib import Path
from caffe_recipes.run.console import Reporter
from caffe_recipes.run.runner import run_chain
from caffe_recipes.run.context import RunOptions
from caffe_recipes.render.dialect import translate_whole
from caffe_recipes.recipe.source import load_recipe

recipe = load_recipe("tiny.yaml")
for dialect in ("surfsara", "intel"):
    run_chain(translate_whole(recipe, dialect), RunOptions(Path()), Reporter())
"""


def write_tiny(path: Path) -> None:
    """Write the digits' recipe with two short phases, one rank and no evaluation."""
    raw = yaml.safe_load(
        resources.files("caffe_recipes").joinpath("recipes", "digits-local.yaml").read_text()
    )
    first, *_, last = raw["phases"]
    raw["name"], raw["prototxt_dir"] = "tiny", "prototxt/tiny"
    raw["cluster"]["ranks_per_node"] = 1
    raw["phases"] = [
        first | {"max_iter": 6, "lr_iter": 14, "warmup_iter": 2},
        last | {"max_iter": 3},
    ]
    del raw["evaluation"]
    path.write_text(yaml.safe_dump(raw))


def test_poly_stopped_at_its_snapshot_trains_the_same_bytes_as_poly_cyc(tmp_path: Path) -> None:
    write_tiny(tmp_path / "tiny.yaml")
    command = [sys.executable, "-c", TRAIN_BOTH]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    runs = [tmp_path / "runs" / f"{name}-1/snapshots" for name in ("tiny", "tiny-intel")]
    for ours, theirs in (
        ("digits_init_iter_6", "digits_init-intel_iter_6"),
        ("digits_collapse_iter_3", "digits_collapse-intel_iter_3"),
    ):
        ours_bytes = (runs[0] / f"{ours}.caffemodel").read_bytes()
        assert ours_bytes == (runs[1] / f"{theirs}.caffemodel").read_bytes()
    solver = (tmp_path / "prototxt/tiny-intel/solver_init.prototxt").read_text()
    assert "max_iter: 14 # stopped at 6" in solver
