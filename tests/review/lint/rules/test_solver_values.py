"""Values of a solver that Caffe refuses, computes nonsense with, or never reads."""

from __future__ import annotations

from pathlib import Path

import pytest

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.prototxt import parse_prototxt
from caffe_recipes.caffe.rates import POLICY_NEEDS
from caffe_recipes.engine.settings import _list_errors
from caffe_recipes.review.lint.rules.solver_values import _POLICIES_READING
from tests.review.conftest import LintSolvers, solver_text

MULTISTEP = {"lr_policy": '"multistep"', "power": None, "gamma": 1e-6}
TESTS = {"test_interval": 10}


@pytest.mark.parametrize(
    ("changes", "rule", "message"),
    [
        ({"type": '"sgd"'}, "solver-type-unknown", 'type: "SGD"'),
        ({"type": '"Adm"'}, "solver-type-unknown", 'type: "Adam"'),
        ({"regularization_type": '"l1"'}, "regularization-unknown", 'regularization_type: "L1"'),
        ({"regularization_type": '"L3"'}, "regularization-unknown", "regularization_type 'L3'"),
        ({"iter_size": 0}, "solver-value-refused", "iter_size is 0"),
        ({"average_loss": 0}, "solver-value-refused", "average_loss is 0"),
        ({**TESTS, "test_iter": 0}, "solver-value-refused", "test_iter is 0"),
        ({"test_iter": 1, "test_interval": -10}, "solver-value-refused", "test_interval is -10"),
        (
            {**TESTS, "test_iter": 1, "test_net": '"own/a" test_net: "own/b"'},
            "solver-value-refused",
            "for 2 test nets",
        ),
        (
            {**TESTS, "test_iter": 1, "test_state": "{} test_state {}"},
            "solver-value-refused",
            "set 2 times",
        ),
        (
            {"net": None, "train_net": '"own/train_val.prototxt"', **TESTS, "test_iter": 1},
            "solver-value-refused",
            "test_iter is set 1 time, for 0 test nets; Caffe aborts with `test_iter must be specified",
        ),
        (
            {"net": None, "train_net": '"own/train_val.prototxt"', "test_iter": 1},
            "solver-value-refused",
            "write `net` instead of train_net, or remove test_iter",
        ),
        ({**TESTS, "test_iter": 1, "eval_type": '"mAP"'}, "solver-value-refused", "eval_type is 'mAP'"),
        ({"type": '"AdaGrad"', "momentum": 0.9}, "solver-value-refused", "AdaGrad with momentum 0.9"),
        ({"type": '"AdaGrad"', "delta": 0}, "solver-value-refused", "delta is 0"),
        ({"clip_gradients": 0}, "solver-value-refused", "clip_gradients is 0"),
        ({"train_net": '"own/a"'}, "solver-value-refused", "net and train_net each set a net"),
        ({"engine": '"FOO"'}, "solver-value-refused", "engine is 'FOO'"),
        ({"momentum": 9}, "solver-share-range", "momentum is 9"),
        ({"momentum": 1}, "solver-share-range", "grow without bound"),
        ({"momentum": -0.9}, "solver-share-range", "momentum: 0.9"),
        ({"type": '"RMSProp"', "rms_decay": 1}, "solver-share-range", "rms_decay is 1"),
        ({"weight_decay": -1}, "weight-decay-negative", "weight_decay is -1"),
        ({"snapshot_prefix": None}, "snapshot-prefix-missing", "writes _iter_1000.caffemodel"),
        ({"snapshot_prefix": None, "snapshot": 50}, "snapshot-prefix-missing", "aborts with"),
    ],
)
def test_values_that_caffe_refuses_are_errors(
    lint_solvers: LintSolvers, changes: dict[str, object], rule: str, message: str
) -> None:
    (found,) = lint_solvers({"a": changes})
    assert (found.id, found.severity, found.phase) == (rule, "error", "a")
    assert message in f"{found.what}; {found.effect}; {found.write}"


@pytest.mark.parametrize(
    ("changes", "rule", "expected"),
    [
        ({"display": -20}, "solver-value-negative", "display: 20"),
        ({"snapshot": -50}, "solver-value-negative", "Caffe uses 50"),
        ({"weight_decay": 5}, "weight-decay-large", "weight_decay is 5"),
        ({**MULTISTEP, "stepvalue": "800 stepvalue: 400"}, "steps-disordered", "400 comes after 800"),
        ({**MULTISTEP, "stepvalue": "400 stepvalue: 1001"}, "step-never-taken", "1001 is beyond max_iter"),
        ({"gamma": 0.1}, "solver-field-unread", "gamma is never read by lr_policy poly"),
        ({"stepvalue": 5}, "solver-field-unread", "stepvalue is never read by lr_policy poly"),
        ({"lr_iter": 2000}, "solver-field-unread", "lr_iter is never read by lr_policy poly"),
        ({"warmup_start_lr": 0.1}, "solver-field-unread", "without warmup_iter"),
        ({"rms_decay": 0.9}, "solver-field-unread", "rms_decay is never read by type SGD"),
    ],
)  # fmt: skip
def test_a_value_that_caffe_reads_differently_is_a_warning(
    lint_solvers: LintSolvers, changes: dict[str, object], rule: str, expected: str
) -> None:
    (found,) = lint_solvers({"a": changes})
    assert (found.id, found.severity) == (rule, "warning")
    assert expected in f"{found.what}; {found.effect}; {found.write}"


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"power": 0}, "rate-constant"),
        ({"power": -0.5}, "rate-grows"),
        ({"lr_policy": '"step"', "power": None, "gamma": 1.001, "stepsize": 100}, "rate-grows"),
        ({"lr_policy": '"exp"', "power": None, "gamma": 1.001}, "rate-grows"),
        ({"lr_policy": '"step"', "power": None, "gamma": 1, "stepsize": 100}, "rate-constant"),
        ({"lr_policy": '"step"', "power": None, "gamma": 0.1, "stepsize": 1001}, "rate-constant"),
        ({**MULTISTEP, "stepvalue": "1001 stepvalue: 2000"}, "rate-constant"),
    ],
)
def test_a_rate_that_grows_or_stays_is_a_warning(
    lint_solvers: LintSolvers, changes: dict[str, object], rule: str
) -> None:
    found = {one.id: one for one in lint_solvers({"a": changes})}
    assert found[rule].severity == "warning"
    assert set(found) <= {rule, "final-rate-high", "final-rate-kept", "rate-not-finite"}


@pytest.mark.parametrize(
    "changes",
    [
        {"clip_gradients": -1},
        {"display": 0, "snapshot": 0, "average_loss": 20},
        {"type": '"Nesterov"', "momentum": 0.9},
        {"type": '"Adam"', "momentum": 0.9, "momentum2": 0.999, "delta": 1e-8},
        {"momentum": 0},
        {"weight_decay": 0.1},
        {**MULTISTEP, "stepvalue": "400 stepvalue: 1000"},  # as SSD's solvers end
        {**TESTS, "test_iter": "1 test_iter: 2", "test_net": '"own/a" test_net: "own/b"'},
    ],
)
def test_right_values_have_no_findings(lint_solvers: LintSolvers, changes: dict[str, object]) -> None:
    assert lint_solvers({"a": changes}) == []


def test_no_snapshot_needs_no_prefix(lint_solvers: LintSolvers) -> None:
    found = lint_solvers({"a": {"snapshot_prefix": None, "snapshot_after_train": "false"}})
    assert [one.id for one in found] == ["no-final-snapshot"]


def test_a_type_of_another_caffe_is_left_to_its_dialect(lint_solvers: LintSolvers) -> None:
    found = lint_solvers({"a": {"type": '"SAG"'}}, dialect="nvcaffe")
    assert not [one.id for one in found if one.severity == "error"]


@pytest.mark.parametrize("field", ["iter_size", "average_loss", "display", "snapshot"])
def test_settings_that_our_engine_refuses_are_found(lint_solvers: LintSolvers, field: str) -> None:
    changes = {field: -1}
    assert _list_errors(parse_prototxt(solver_text(changes), pb.SolverParameter, "s.prototxt"))
    assert lint_solvers({"a": changes})


def test_each_policy_reads_what_it_needs() -> None:
    for field, policies in _POLICIES_READING.items():
        assert set(policies) <= set(POLICY_NEEDS)
        assert {policy for policy, needs in POLICY_NEEDS.items() if field in needs} <= set(policies)


def test_a_snapshot_folder_is_looked_up_under_the_caffe_root(
    lint_solvers: LintSolvers, tmp_path: Path
) -> None:
    prefix = {"snapshot_prefix": '"snapshots/own"'}
    assert lint_solvers({"a": prefix}) == []
    (found,) = lint_solvers({"a": prefix}, caffe_root=tmp_path)
    assert (found.id, found.severity) == ("snapshot-folder-missing", "warning")
    assert found.write.startswith("run `mkdir -p snapshots`")
    (tmp_path / "snapshots").mkdir()
    assert lint_solvers({"a": prefix}, caffe_root=tmp_path) == []


@pytest.mark.parametrize(
    ("changes", "rules"),
    [
        ({"test_iter": 1, "test_interval": 1001}, ["test-never-fires"]),
        ({"test_iter": 1, "test_interval": 1000}, []),
        ({"test_iter": "1 test_iter: 1", "test_interval": 10}, ["tested-twice"]),
        ({"test_iter": "1 test_iter: 1", "test_interval": 10, "test_state": "{} test_state {}"}, []),
        ({"clip_gradients": -35}, ["solver-value-negative"]),
        ({"clip_gradients": -1}, []),
    ],
)
def test_a_value_that_has_another_effect_than_it_suggests_is_a_warning(
    lint_solvers: LintSolvers, changes: dict[str, object], rules: list[str]
) -> None:
    found = lint_solvers({"a": changes})
    assert [(one.id, one.severity) for one in found] == [(rule, "warning") for rule in rules]


def test_bvlcs_caffe_names_snapshots_by_the_solver(lint_solvers: LintSolvers) -> None:
    found = lint_solvers({"a": {"snapshot_prefix": None, "snapshot": 50}}, dialect="bvlc")
    assert "snapshot-prefix-missing" not in {one.id for one in found}
