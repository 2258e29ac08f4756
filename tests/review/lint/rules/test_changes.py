"""Phase against phase: what a later one changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from caffe_recipes.review.lint.findings import Finding
from tests.review.conftest import LintSolvers, net_text

FIRST = {
    "lr_policy": '"poly_cyc"', "power": 1, "max_iter": 500, "lr_iter": 1000, "snapshot": 500, "momentum": 0.9
}  # fmt: skip
LAST = {"base_lr": 0.501, "momentum": 0.9}
NET = net_text("TRAIN", "TEST", more="scale: 0.5 mean_value: 104")
NORM = """layer { name: "bn" type: "BatchNorm" bottom: "data" top: "bn" batch_norm_param { } }
layer { name: "sc" type: "Scale" bottom: "bn" top: "bn" scale_param { bias_term: true } }
layer {
  name: "ip\""""


@pytest.mark.parametrize(
    ("changes", "rule", "expected"),
    [
        ({"momentum": 0.99}, "solver-changes", "momentum is 0.99 in b, but 0.9 in a"),
        ({"momentum": None}, "solver-changes", "momentum is not set (default 0) in b"),
        ({"type": '"Nesterov"'}, "solver-changes", "type is Nesterov in b, but SGD in a"),
        ({"solver_mode": "GPU"}, "solver-changes", "solver_mode is GPU in b, but CPU in a"),
        ({"regularization_type": '"L1"'}, "solver-changes", "regularization_type is L1 in b"),
        ({"weight_decay": None}, "weight-decay-changes", "is not set (default 0) in b, but 0.0001"),
        ({"weight_decay": 0}, "weight-decay-changes", "weight_decay is 0 in b"),
        ({"weight_decay": 0.0005}, "weight-decay-changes", "weight_decay is 0.0005 in b, but 0.0001 in a"),
        ({"weight_decay": 0.00001}, "weight-decay-changes", "weight_decay is 1e-05 in b"),
    ],
)
def test_a_rule_of_updates_that_changes_is_a_warning(
    lint_solvers: LintSolvers, changes: dict[str, object], rule: str, expected: str
) -> None:
    (found,) = lint_solvers({"a": FIRST, "b": {**LAST, **changes}})
    assert (found.id, found.severity, found.phase) == (rule, "warning", "b")
    assert expected in found.what


@pytest.mark.parametrize(
    "changes",
    [
        {"weight_decay": 0.0004},
        {"weight_decay": 0.000025},
        {"type": '"SGD"'},
        {"type": None, "solver_type": "SGD"},
        {"display": 20},
        {"regularization_type": '"L2"'},
    ],
)
def test_unchanged_and_slightly_changed_values_are_not_reported(
    lint_solvers: LintSolvers, changes: dict[str, object]
) -> None:
    assert lint_solvers({"a": FIRST, "b": {**LAST, **changes}}) == []


def test_a_change_of_momentum_is_explained_by_its_effect_on_updates(lint_solvers: LintSolvers) -> None:
    (found,) = lint_solvers({"a": FIRST, "b": {**LAST, "momentum": 0.99}})
    assert "10 times as high" in found.effect
    assert found.write == "momentum: 0.9"


def test_another_type_has_another_momentum(lint_solvers: LintSolvers) -> None:
    found = lint_solvers({"a": FIRST, "b": {**LAST, "type": '"Adam"', "momentum": 0.95}})
    assert [one.values["field"] for one in found if one.id == "solver-changes"] == ["type"]


def test_a_phase_that_goes_back_to_an_earlier_value_is_silent(lint_solvers: LintSolvers) -> None:
    middle = {**FIRST, "base_lr": 0.501, "momentum": 0.8}
    found = lint_solvers({"a": FIRST, "b": middle, "c": {"base_lr": 0.251, "momentum": 0.9}})
    assert [(one.id, one.phase) for one in found] == [("solver-changes", "b")]


def test_the_weight_decay_of_a_collapse_has_its_own_rule(lint_solvers: LintSolvers) -> None:
    found = lint_solvers({"a": FIRST, "collapse": {**LAST, "weight_decay": 0.0008}})
    assert [one.id for one in found] == ["collapse-weight-decay"]


@pytest.fixture
def lint_nets(lint_solvers: LintSolvers, tmp_path: Path) -> LintSolvers:
    """Give a function that lints two phases, the second with a net that differs by some text."""

    def run(*changes: tuple[str, str], net: str = NET) -> list[Finding]:
        last = net
        for old, new in changes:
            assert old in last
            last = last.replace(old, new)
        for name, text in (("first", net), ("last", last)):
            (tmp_path / "own" / f"{name}.prototxt").write_text(text)
        nets = [{"net": f'"own/{name}.prototxt"'} for name in ("first", "last")]
        found = lint_solvers({"a": {**FIRST, **nets[0]}, "b": {**LAST, **nets[1]}})
        return [one for one in found if one.phase]

    return run


@pytest.mark.parametrize(
    ("old", "new", "rule", "severity"),
    [
        ("mean_value: 104", "mean_value: 105", "transforms-change", "warning"),
        ("mean_value: 104", "", "transforms-change", "warning"),
        ("scale: 0.5", "", "transforms-change", "warning"),
        ('"TRAIN_lmdb"', '"other_lmdb"', "train-source-changes", "note"),
    ],
)
def test_different_training_data_are_reported_at_their_field(
    lint_nets: LintSolvers, old: str, new: str, rule: str, severity: str
) -> None:
    (found,) = lint_nets((old, new))
    assert (found.id, found.severity, found.phase) == (rule, severity, "b")
    assert "last.prototxt:" in found.where


def test_equal_transforms_of_several_data_layers_are_one(lint_nets: LintSolvers) -> None:
    """As where the layer for TEST is in TRAIN by mistake."""
    net = NET.replace("crop_size: 28  }", "crop_size: 28 scale: 0.5 mean_value: 104 }")
    assert net != NET
    found = lint_nets(("phase: TEST", "phase: TRAIN"), net=net)
    assert "transforms-change" not in {one.id for one in found}
    found = lint_nets(("phase: TEST", "phase: TRAIN"), ("scale: 0.5", "scale: 0.25"), net=net)
    (change,) = [one for one in found if one.id == "transforms-change"]
    assert "scale is 0.25 in the training data of b, but 0.5 in that of a" in change.what


def test_another_crop_is_a_note(lint_nets: LintSolvers) -> None:
    pooled = NET.replace(
        'layer {\n  name: "ip" type: "InnerProduct" bottom: "data"',
        'layer { name: "pool" type: "Pooling" bottom: "data" top: "pool" '
        "pooling_param { pool: AVE global_pooling: true } }\n"
        'layer {\n  name: "ip" type: "InnerProduct" bottom: "pool"',
    )
    (found,) = lint_nets(("crop_size: 28", "crop_size: 24"), net=pooled)
    assert (found.id, found.severity) == ("crop-changes", "note")
    assert "crop_size is 24 in the training data of b, but 28 in that of a" in found.what


def test_augmentation_may_come_and_go(lint_nets: LintSolvers) -> None:
    ratio = "random_aspect_ratio_param { min_area_ratio: 0.1 max_area_ratio: 1 aspect_ratio_change: 0.75 }"
    assert lint_nets(("scale: 0.5", f"scale: 0.5 mirror: true {ratio}")) == []


def test_training_on_what_another_net_of_the_chain_is_tested_with(lint_nets: LintSolvers) -> None:
    source, test = lint_nets(('"TRAIN_lmdb"', '"TEST_lmdb"'))[:2]
    assert {source.id, test.id} == {"train-source-changes", "train-on-test"}


def test_a_source_is_the_same_however_its_path_is_written(lint_nets: LintSolvers) -> None:
    assert lint_nets(('"TRAIN_lmdb"', '"./TRAIN_lmdb/"')) == []
    found = lint_nets(('"TRAIN_lmdb"', '"x//../TEST_lmdb/"'))
    assert "train-on-test" in {one.id for one in found}


def test_batch_norms_keep_their_fraction_and_eps(lint_nets: LintSolvers) -> None:
    net = NET.replace('layer {\n  name: "ip"', NORM).replace(
        'bottom: "data" top: "ip"', 'bottom: "bn" top: "ip"'
    )
    assert [
        one.id for one in lint_nets(("TRAIN_lmdb", "TRAIN_lmdb"), net=net) if one.id == "norms-change"
    ] == []
    changed = ("batch_norm_param { }", "batch_norm_param { moving_average_fraction: 0.9 eps: 0.001 }")
    fraction, eps = (one for one in lint_nets(changed, net=net) if one.id != "moving-average-slow")
    assert {fraction.id, eps.id} == {"norms-change"}
    assert "moving_average_fraction of layer 'bn' is 0.9 in b, but 0.999 in a" in fraction.what
    assert "eps of layer 'bn' is 0.001 in b, but 1e-05 in a" in eps.what


def test_a_nan_stops_nothing(lint_nets: LintSolvers) -> None:
    found = lint_nets(("scale: 0.5", "scale: nan"))
    assert [(one.id, one.values["field"]) for one in found if one.id == "transforms-change"] == [
        ("transforms-change", "scale")
    ]
