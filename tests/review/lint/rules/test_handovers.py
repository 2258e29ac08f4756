"""Weights from net to net: shapes that do not fit, and layers of other names."""

from __future__ import annotations

from pathlib import Path

import pytest

from caffe_recipes.caffe.layer_types.dimensions import Shape
from caffe_recipes.review.lint.findings import Finding
from caffe_recipes.review.lint.learned_blobs import quote_refusal
from tests.review.conftest import LintSolvers, net_text

FIRST = {"lr_policy": '"poly_cyc"', "power": 1, "max_iter": 500, "lr_iter": 1000, "snapshot": 500}
LAST = {"base_lr": 0.501, "net": '"own/last.prototxt"'}
NET = net_text("TRAIN", "TEST").replace("crop_size: 28", "crop_size: 28 mean_value: [104, 117, 123]")
NORM = 'layer { name: "bn" type: "BatchNorm" bottom: "data" top: "bn" }\n'


@pytest.fixture
def lint_nets(lint_solvers: LintSolvers, tmp_path: Path) -> LintSolvers:
    """Give a function that lints two phases with these nets."""

    def run(first: str, last: str, **options: object) -> list[Finding]:
        for name, text in (("first", first), ("last", last)):
            (tmp_path / "own" / f"{name}.prototxt").write_text(text)
        found = lint_solvers({"a": {**FIRST, "net": '"own/first.prototxt"'}, "b": LAST}, **options)
        return [one for one in found if one.id.startswith("handover")]

    return run


@pytest.mark.parametrize("crop", ["crop_size: 28", "crop_size: 28 mirror: true"])
def test_nets_that_learn_the_same_have_no_findings(lint_nets: LintSolvers, crop: str) -> None:
    assert lint_nets(NET, NET.replace("crop_size: 28", crop)) == []


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("num_output: 10", "num_output: 11", "11x2352, not 10x2352"),
        ("crop_size: 28", "crop_size: 24", "10x1728, not 10x2352"),
        ("num_output: 10", "num_output: 10 bias_term: false", "1 blob, not 2"),
    ],
)
def test_weights_of_another_shape_stop_caffe(
    lint_nets: LintSolvers, old: str, new: str, expected: str
) -> None:
    (found,) = lint_nets(NET, NET.replace(old, new))
    assert (found.id, found.severity, found.phase) == ("handover-misfit", "error", "b")
    assert found.what.startswith("layer 'ip' of b does not fit the weights of a: ")
    assert expected in found.what
    blobs = "Incompatible number of blobs for layer ip" in found.effect
    assert blobs or "Cannot copy param 0 weights from layer 'ip'" in found.effect
    assert "last.prototxt:14:" in found.where


def test_the_first_blob_that_does_not_fit_is_named_as_caffe_names_it(lint_nets: LintSolvers) -> None:
    scale = (
        'layer { name: "s" type: "Scale" bottom: "data" top: "data" scale_param { axis: %d num_axes: %d } }'
    )
    (found,) = lint_nets(NET + scale % (1, 1), NET + scale % (1, 2))
    assert "Cannot copy param 0 weights from layer 's'; shape mismatch" in found.effect
    prelu = 'layer { name: "lstm" type: "PReLU" bottom: "data" top: "p" prelu_param { channel_shared: %s } }'
    (found,) = lint_nets(NET + prelu % "false", NET + prelu % "true")
    assert "param 0" in found.effect


def test_a_wrong_bias_alone_is_param_1() -> None:
    ours: dict[str, tuple[Shape, ...] | None] = {"ip": ((10, 4), (10,)), "fc": ((10, 4),)}
    theirs: dict[str, tuple[Shape, ...] | None] = {"ip": ((10, 4), (9,)), "fc": ((10, 4), (10,))}
    assert quote_refusal("ip", ours, theirs).endswith("param 1 weights from layer 'ip'; shape mismatch`")
    assert quote_refusal("fc", ours, theirs).endswith("`Incompatible number of blobs for layer fc`")


def test_a_renamed_layer_is_reinitialised_and_the_old_one_is_lost(lint_nets: LintSolvers) -> None:
    lost, new = lint_nets(NET, NET.replace('name: "ip"', 'name: "ip_2"'))
    assert (new.id, new.severity) == ("handover-missing", "warning")
    assert new.what == "layer 'ip_2' of b has weights but is not in the net of a"
    assert new.write == 'name: "ip", as in a'
    assert "last.prototxt:" in new.where
    assert (lost.id, lost.severity) == ("handover-unused", "note")
    assert "Ignoring source layer ip" in lost.effect
    assert "first.prototxt:" in lost.where


def test_a_batch_norm_that_comes_later_has_no_statistics_yet(lint_nets: LintSolvers) -> None:
    with_norm = NET.replace('layer {\n  name: "ip"', NORM + 'layer {\n  name: "ip"')
    (new,) = lint_nets(NET, with_norm)
    assert new.what.startswith("layer 'bn' of b has weights")
    assert [one.id for one in lint_nets(with_norm, NET)] == ["handover-unused"]


def test_layers_that_learn_nothing_may_come_and_go(lint_nets: LintSolvers) -> None:
    pooled = NET.replace(
        'layer {\n  name: "ip"',
        'layer { name: "r" type: "ReLU" bottom: "data" top: "r" }\nlayer {\n  name: "ip"',
    )
    assert lint_nets(NET, pooled) == lint_nets(pooled, NET) == []


def test_foreign_weights_are_not_compared(lint_nets: LintSolvers, tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    command = "caffe train --solver=own/solver_{}.prototxt {}\n"
    script.write_text(command.format("a", "") + command.format("b", "--weights=vgg.caffemodel"))
    other = NET.replace("num_output: 10", "num_output: 11")
    assert lint_nets(NET, other, script=script) == []


def test_a_net_whose_shapes_do_not_fit_is_left_to_its_own_rules(lint_nets: LintSolvers) -> None:
    assert lint_nets(NET, NET.replace('bottom: "data"', 'bottom: "dada"')) == []


def test_a_stage_that_the_solver_asks_for_chooses_the_layers(
    lint_solvers: LintSolvers, tmp_path: Path
) -> None:
    staged = NORM.replace(" }\n", ' include { stage: "norm" } }\n')
    text = NET.replace('layer {\n  name: "ip"', staged + 'layer {\n  name: "ip"')
    (tmp_path / "own" / "train_val.prototxt").write_text(text)
    (new,) = [
        one
        for one in lint_solvers({"a": FIRST, "b": {"base_lr": 0.501, "train_state": "{ stage: 'norm' }"}})
        if one.id.startswith("handover")
    ]
    assert new.id == "handover-missing"
