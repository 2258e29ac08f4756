"""What caffe-torch runs, as a dialect: layer types, fields of other Caffes, and values that it refuses."""

from __future__ import annotations

import pytest

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.dialects import ENGINE
from caffe_recipes.caffe.dialects.check import MEANING_DIFFERENCES, check_message
from caffe_recipes.caffe.dialects.engine import engine_dialect, find_judge, find_unrun
from caffe_recipes.caffe.dialects.schema import parse_lenient
from caffe_recipes.caffe.prototxt import parse_prototxt
from caffe_recipes.engine.operators.data import check_data_layer
from caffe_recipes.engine.settings import _list_errors
from caffe_recipes.errors import InputError


def layer(kind: str, block: str = "") -> str:
    return f'layer {{ name: "a" type: "{kind}" bottom: "x" top: "a" {block} }}'


def test_its_layer_types_are_ours_and_those_of_others_that_have_an_operator() -> None:
    judge = find_judge(ENGINE)
    assert {"DepthwiseConvolution", "Interp", "Axpy", "ReLU6", "Convolution"} <= judge.layer_types
    assert not {"PriorBox", "LogSoftmax", "Python"} & judge.layer_types
    assert judge.knows("PoolingParameter", "round_mode") and judge.knows("ClipParameter", "min")
    assert not judge.knows("SolverParameter", "rampup_interval")


@pytest.mark.parametrize(
    ("text", "names"),
    [
        (layer("Interp", "interp_param { zoom_factor: 2 }"), []),
        (layer("Pooling", "pooling_param { kernel_size: 2 ceil_mode: false }"), []),
        (layer("BatchNorm", "batch_norm_param { scale_bias: true }"), []),
        (layer("Reorg", "reorg_param { stride: 2 }"), ["reorg_param"]),
        ("base_lr: 1 rampup_interval: 5", ["rampup_interval"]),
        ('layers { name: "a" type: POOLING3D pooling_param { kernel_depth: 2 } }', []),
        ('layers { name: "a" type: VIDEO_DATA }', ["VIDEO_DATA"]),
    ],
    ids=["runs", "runs-inside", "converts", "has-no-equal", "of-a-solver", "old-type", "old-unknown"],
)
def test_fields_of_other_caffes_that_it_neither_runs_nor_converts(text: str, names: list[str]) -> None:
    assert [name.name for name in find_unrun(parse_lenient(text))] == names


SOLVER = "net: 'n' base_lr: 1 lr_policy: 'fixed' max_iter: 1 snapshot_prefix: 's'"


@pytest.mark.parametrize("line", ["snapshot_diff: true", "eval_type: 'detection'"])
def test_a_solver_that_the_engine_refuses_is_found(line: str) -> None:
    solver = parse_prototxt(f"{SOLVER} {line}", pb.SolverParameter)
    assert _list_errors(solver)
    assert [found.rule for found in check_message(solver, engine_dialect())] == ["dialect-value"]
    assert check_message(parse_prototxt(SOLVER, pb.SolverParameter), engine_dialect()) == []


def test_a_policy_that_the_engine_does_not_have_is_refused_before_the_warm_up() -> None:
    text = SOLVER.replace("fixed", "cosine")
    solver = parse_prototxt(f"{text} warmup_iter: 5", pb.SolverParameter)
    (found,) = check_message(solver, engine_dialect())
    assert (found.rule, found.effect) == ("dialect-lr-policy", "it refuses the file, with exit code 2")


DATA = {
    "Data": "data_param { source: 'a' backend: LMDB %s }",
    "ImageData": "image_data_param { source: 'a' %s }",
}
VALUES = {"backend": "LEVELDB", "mean_file": "'m'", "mirror": "true"}


@pytest.mark.parametrize(
    ("kind", "field"),
    sorted(
        (difference.owner.removesuffix("Parameter"), difference.field)
        for difference in MEANING_DIFFERENCES
        if difference.dialect == ENGINE and difference.owner != "SolverParameter"
    ),
)
def test_a_data_layer_that_the_engine_refuses_is_found(kind: str, field: str) -> None:
    whole = DATA[kind].replace("backend: LMDB", "") if field == "backend" else DATA[kind]
    net = parse_prototxt(layer(kind, whole % f"{field}: {VALUES.get(field, 4)}"), pb.NetParameter)
    with pytest.raises(InputError):
        check_data_layer(net.layer[0])
    assert [found.rule for found in check_message(net, engine_dialect())] == ["dialect-value"]
    allowed = parse_prototxt(layer(kind, DATA[kind] % ""), pb.NetParameter)
    check_data_layer(allowed.layer[0])
    assert check_message(allowed, engine_dialect()) == []
