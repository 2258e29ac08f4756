"""Snapshots: written at all, not written over, and found by the phase that starts from them."""

from __future__ import annotations

from pathlib import Path

import pytest

from caffe_recipes.review.findings import Finding
from tests.review.conftest import LintSolvers

FIRST = {"lr_policy": '"fixed"', "power": None, "snapshot": 300}
COMMAND = "mpiexec.hydra -n 2 caffe train --solver=own/solver_{}.prototxt {}\n"


@pytest.mark.parametrize(("snapshot", "said"), [(300, "of iteration 900"), (0, "none at all"), (500, None)])
def test_a_run_that_writes_nothing_at_its_end_is_an_error(
    lint_solvers: LintSolvers, snapshot: int, said: str | None
) -> None:
    found = lint_solvers({"a": {"snapshot": snapshot, "snapshot_after_train": "false"}})
    assert [one.id for one in found] == (["no-final-snapshot"] if said else [])
    assert not said or said in found[0].what


def test_phases_that_write_the_same_files_are_found(lint_solvers: LintSolvers) -> None:
    same = {"snapshot_prefix": '"/tmp/x"'}
    (found,) = lint_solvers({"a": {**FIRST, **same}, "b": {**same, "max_iter": 900}})
    assert found.id == "snapshots-collide"
    assert "a and b both write /tmp/x_iter_900.caffemodel" in found.what
    assert lint_solvers({"a": {**FIRST, **same}, "b": {**same, "max_iter": 950}}) == []


@pytest.fixture
def lint_run(lint_solvers: LintSolvers, tmp_path: Path) -> LintSolvers:
    """Give a function that lints two phases as a script starts them: with these weights."""

    def run(weights: str, **first: object) -> list[Finding]:
        script = tmp_path / "run.sh"
        script.write_text(COMMAND.format("a", "") + COMMAND.format("b", weights))
        return lint_solvers({"a": {**FIRST, **first}, "b": {}}, script=script)

    return run


@pytest.mark.parametrize(
    "weights",
    [
        "--weights=own_a_iter_1000.caffemodel",
        "--weights own_a_iter_900.caffemodel",
        "-weights=/scratch/own_a_iter_300.caffemodel",
        "--weights=own_a_iter_300.caffemodel.h5",
        "--weights=$WEIGHTS",
        "--snapshot=own_b_iter_30.solverstate",
    ],
)
def test_weights_that_the_phase_before_writes_are_right(lint_run: LintSolvers, weights: str) -> None:
    assert lint_run(weights) == []


@pytest.mark.parametrize(
    ("weights", "rule", "write"),
    [
        ("--weights=own_a_iter_901.caffemodel", "snapshot-never-fires", "iteration 900"),
        ("--weights=own_a_iter_1200.caffemodel", "snapshot-never-fires", "iteration 1000"),
        ("--weights=owna_iter_1000.caffemodel", "weights-unknown", "--weights=own_a_iter_1000.caffemodel"),
        ("--weights=own_a_iter_300.prototxt", "weights-no-caffemodel",
         "--weights=own_a_iter_300.caffemodel"),
        ("", "weights-missing", "--weights=own_a_iter_1000.caffemodel"),
    ],
)  # fmt: skip
def test_weights_that_no_phase_writes_are_found_at_their_command(
    lint_run: LintSolvers, weights: str, rule: str, write: str
) -> None:
    (found,) = lint_run(weights)
    assert (found.id, found.phase) == (rule, "b")
    assert found.where.endswith("run.sh:2")
    assert write in found.write


def test_weights_of_a_phase_further_back_are_found(lint_solvers: LintSolvers, tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    weights = ("", "--weights=own_a_iter_1000.caffemodel", "--weights=own_a_iter_1000.caffemodel")
    script.write_text("".join(map(COMMAND.format, "abc", weights)))
    (found,) = lint_solvers({"a": FIRST, "b": FIRST, "c": {}}, script=script)
    assert found.id == "weights-of-other-phase"
    assert "what b trains is not in the model" in found.effect


def test_a_pretrained_model_for_the_first_phase_is_right(lint_solvers: LintSolvers, tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text(COMMAND.format("a", "--weights=bvlc_reference.caffemodel"))
    assert lint_solvers({"a": {}}, script=script) == []
