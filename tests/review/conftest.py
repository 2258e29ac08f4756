"""Fixtures for the tests of lint's rules for chains: solvers that differ from a good one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from caffe_recipes.review.lint.findings import Finding
from caffe_recipes.review.lint.folders import lint_targets
from caffe_recipes.review.lint.inputs import LintOptions
from caffe_recipes.review.lint.registry import load_rules

LintSolvers = Callable[..., list[Finding]]

# A solver without findings; a test changes some of its fields, or removes them by None.
SOLVER: Mapping[str, object] = {
    "net": '"own/train_val.prototxt"',
    "base_lr": 1,
    "lr_policy": '"poly"',
    "power": 2,
    "max_iter": 1000,
    "weight_decay": 0.0001,
    "snapshot_prefix": '"/tmp/own"',
    "solver_mode": "CPU",
}
DATA = """layer {{
  name: "data" type: "Data" top: "data" top: "label"
  include {{ phase: {phase} }}
  transform_param {{ crop_size: 28 {more} }}
  data_param {{ source: "{phase}_lmdb" batch_size: 32 backend: LMDB shuffle: true }}
}}
"""
LAYERS = """layer {
  name: "ip" type: "InnerProduct" bottom: "data" top: "ip"
  inner_product_param { num_output: 10 weight_filler { type: "xavier" } }
}
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }
"""


def net_text(*phases: str, more: str = "") -> str:
    """Write a net that makes data for phases; `more` goes into the training data's transform_param."""
    return "".join(DATA.format(phase=one, more=more if one == "TRAIN" else "") for one in phases) + LAYERS


def solver_text(changes: Mapping[str, object]) -> str:
    """Write the solver with changes."""
    fields = {**SOLVER, **changes}
    return "".join(f"{name}: {value}\n" for name, value in fields.items() if value is not None)


@pytest.fixture
def lint_solvers(tmp_path: Path) -> LintSolvers:
    """Give a function that writes solvers, by phase, beside a good net, and lints them as a chain."""
    folder = tmp_path / "own"
    folder.mkdir()
    (folder / "train_val.prototxt").write_text(net_text("TRAIN", "TEST"))

    def run(solvers: Mapping[str, Mapping[str, object]], **options: Any) -> list[Finding]:  # noqa: ANN401
        paths = [folder / f"solver_{name}.prototxt" for name in solvers]
        for path, (name, changes) in zip(paths, solvers.items(), strict=True):
            own = {"snapshot_prefix": f'"/tmp/own_{name}"'}
            path.write_text(solver_text(own | dict(changes)))
        found = lint_targets([str(path) for path in paths], LintOptions(**options))
        for finding in found:
            assert finding.severity == load_rules()[finding.id].severity
            assert finding.what and finding.effect and finding.write
            assert finding.where.startswith(str(tmp_path))
        return found

    return run
