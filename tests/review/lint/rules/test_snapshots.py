"""Snapshots: written at all, not overwritten, and found by the phase that starts from them."""

from __future__ import annotations

from pathlib import Path

import pytest

from caffe_recipes.review.lint.findings import Finding
from tests.review.conftest import LintSolvers

FIRST = {"lr_policy": '"fixed"', "power": None, "snapshot": 300}
COMMAND = "mpiexec.hydra -n 2 caffe train --solver=own/solver_{}.prototxt {}\n"


@pytest.mark.parametrize(("snapshot", "expected"), [(300, "at iteration 900"), (0, "none is"), (500, None)])
def test_a_run_that_writes_nothing_at_its_end_is_an_error(
    lint_solvers: LintSolvers, snapshot: int, expected: str | None
) -> None:
    found = lint_solvers({"a": {"snapshot": snapshot, "snapshot_after_train": "false"}})
    assert [one.id for one in found] == (["no-final-snapshot"] if expected else [])
    assert not expected or expected in found[0].what


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
        "--weights=$WEIGHTS",
        "--snapshot=own_b_iter_30.solverstate",
    ],
)
def test_weights_that_the_phase_before_writes_are_right(lint_run: LintSolvers, weights: str) -> None:
    assert lint_run(weights) == []


def test_a_phase_that_writes_hdf5_is_started_from_it(lint_run: LintSolvers) -> None:
    hdf5 = {"snapshot_format": "HDF5"}
    assert lint_run("--weights=own_a_iter_300.caffemodel.h5", **hdf5) == []
    resumed = lint_run("--snapshot=own_a_iter_300.solverstate.h5", **hdf5)
    assert [one.id for one in resumed] == ["resume-jump"]
    for weights in ("--weights=own_a_iter_300.caffemodel", "--weights=own_a_iter_300.caffemodel.h5"):
        (found,) = lint_run(weights, **(hdf5 if weights.endswith("l") else {}))
        assert found.id == "weights-unknown"
    (found,) = [
        one for one in lint_run("--snapshot=own_a_iter_300.solverstate", **hdf5) if one.id != "resume-jump"
    ]
    assert (found.id, found.write) == ("snapshot-unknown", "--snapshot=own_a_iter_1000.solverstate.h5")


@pytest.mark.parametrize(
    ("weights", "rule", "message"),
    [
        ("--snapshot=own_a_iter_901.solverstate", "snapshot-never-fires", "iteration 900"),
        ("--snapshot=other_iter_300.solverstate", "snapshot-unknown", "=own_a_iter_1000.solverstate"),
        ("--snapshot=x/other_iter_300.solverstate", "snapshot-unknown", "=x/own_a_iter_1000.solverstate"),
        ("--snapshot=own_a_iter_300.caffemodel", "snapshot-no-solverstate", "own_a_iter_300.solverstate"),
        ("--snapshot=own_a_iter_300.solverstate --weights=own_a_iter_300.caffemodel",
         "weights-and-snapshot", "only --snapshot"),
        ("--snapshot=own_a_iter_1000.solverstate", "resumed-at-end", "max_iter: 2000; or give --weights"),
    ],
)  # fmt: skip
def test_a_solverstate_that_cannot_be_resumed_from_is_found(
    lint_run: LintSolvers, weights: str, rule: str, message: str
) -> None:
    found = [one for one in lint_run(weights) if one.id != "resume-jump"]
    assert [(one.id, one.phase) for one in found] == [(rule, "b")]
    assert message in found[0].write


def test_missing_snapshots_of_a_phase_that_trains_nothing_are_not_reported(
    lint_solvers: LintSolvers, tmp_path: Path
) -> None:
    weights = ["", "--snapshot=own_a_iter_1000.solverstate", "--weights=own_b_iter_2000.caffemodel"]
    script = tmp_path / "run.sh"
    rules = {}
    for last, end in (("2000", weights[2]), ("1000", "--snapshot=own_b_iter_1000.solverstate")):
        script.write_text("".join(map(COMMAND.format, "abc", [*weights[:2], end])))
        found = lint_solvers({"a": FIRST, "b": {}, "c": {"max_iter": 3000}}, script=script)
        rules[last] = {(one.id, one.phase) for one in found if one.severity == "error"}
    assert rules == {"2000": {("resumed-at-end", "b")}, "1000": {("resumed-at-end", "b")}}


def test_resumed_solvers_of_one_prefix_are_one_schedule(lint_solvers: LintSolvers, tmp_path: Path) -> None:
    """As in BVLC's cifar10_full: three solvers, each a tenth of the rate, and a script that resumes."""
    common = {**FIRST, "snapshot_prefix": '"/tmp/full"', "momentum": 0.9, "snapshot_format": "HDF5"}
    solvers = {
        "a": {**common, "max_iter": 900},
        "b": {**common, "max_iter": 1000, "snapshot": 100, "base_lr": 0.1},
        "c": {**common, "max_iter": 1100, "snapshot": 100, "base_lr": 0.01},
    }
    states = [
        "",
        "--snapshot=/tmp/full_iter_{}.solverstate.h5",
        "--snapshot=/tmp/full_iter_1000.solverstate.h5",
    ]
    script = tmp_path / "run.sh"
    script.write_text("".join(map(COMMAND.format, "abc", states)).replace("{}", "900"))
    found = lint_solvers(solvers, script=script)
    assert [(one.id, one.severity) for one in found] == [
        ("resume-jump", "note"), ("resume-jump", "note"), ("final-rate-kept", "note")
    ]  # fmt: skip
    assert [one.values["before"] for one in found[:2]] == pytest.approx([1, 0.1])
    assert "the old rate fades over about 10 updates" in found[0].effect
    script.write_text(script.read_text().replace("iter_900", "iter_899"))
    never, *_ = lint_solvers(solvers, script=script)
    assert (never.id, never.phase) == ("snapshot-never-fires", "b")


def test_a_phase_resumes_its_own_solverstate_of_any_iteration(
    lint_solvers: LintSolvers, tmp_path: Path
) -> None:
    script = tmp_path / "run.sh"
    script.write_text(COMMAND.format("a", "--snapshot=/tmp/own_a_iter_77.solverstate"))
    assert lint_solvers({"a": {}}, script=script) == []
    found = {one.id: one for one in lint_solvers({"a": {"max_iter": 77}}, script=script)}
    assert (found["resumed-at-end"].severity, found["resumed-at-end"].values["iteration"]) == ("error", 77)


@pytest.mark.parametrize(
    "weights",
    ["--weights=own_a_iter_1000.caffemodel", "--weights=own_a_iter_900.caffemodel", "--weights=$WEIGHTS"],
)
def test_iterations_after_the_last_snapshot_are_lost_unless_it_is_written_at_the_end(
    lint_run: LintSolvers, weights: str
) -> None:
    found = [one.id for one in lint_run(weights, snapshot_after_train="false")]
    expected = {"1000": ["snapshot-never-fires"], "900": [], "IGHTS": ["no-final-snapshot"]}
    assert found == next(ids for end, ids in expected.items() if end in weights)


def test_iterations_after_the_last_snapshot_of_an_earlier_phase_are_lost(lint_solvers: LintSolvers) -> None:
    found = lint_solvers({"a": {**FIRST, "snapshot": 600, "snapshot_after_train": "false"}, "b": {}})
    assert [(one.id, one.phase) for one in found] == [("no-final-snapshot", "a")]


@pytest.mark.parametrize(
    ("weights", "rule", "write"),
    [
        ("--weights=own_a_iter_901.caffemodel", "snapshot-never-fires", "iteration 900"),
        ("--weights=own_a_iter_1200.caffemodel", "snapshot-never-fires", "iteration 1000"),
        ("--weights=owna_iter_1000.caffemodel", "weights-unknown", "--weights=own_a_iter_1000.caffemodel"),
        ("--weights=own_a_iter_300.prototxt", "weights-no-caffemodel",
         "--weights=own_a_iter_300.caffemodel"),
        ("--weights=x/y/owna_iter_9.caffemodel", "weights-unknown",
         "--weights=x/y/own_a_iter_1000.caffemodel"),
        ("", "weights-missing", "--weights=/tmp/own_a_iter_1000.caffemodel"),
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
    assert "what b learned is lost" in found.effect
    assert found.write == "--weights=own_b_iter_1000.caffemodel"
    script.write_text(script.read_text().replace("=own_a", "=/scratch/run1/own_a"))
    (found,) = lint_solvers({"a": FIRST, "b": FIRST, "c": {}}, script=script)
    assert (found.id, found.write) == (
        "weights-of-other-phase", "--weights=/scratch/run1/own_b_iter_1000.caffemodel"
    )  # fmt: skip


def test_a_pretrained_model_for_the_first_phase_is_right(lint_solvers: LintSolvers, tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text(COMMAND.format("a", "--weights=bvlc_reference.caffemodel"))
    assert lint_solvers({"a": {}}, script=script) == []
