"""Normalizations: shapes, misfits, and settings at which Caffe aborts."""

from __future__ import annotations

from typing import Any

import pytest

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.dialects.schema import parse_lenient
from caffe_recipes.caffe.shapes import LayerMisfit, infer_shapes
from tests.caffe.layer_types.conftest import Sizes, check_misfit, one_layer, rules_of


@pytest.mark.parametrize(
    ("body", "bottoms", "tops", "learned"),
    [
        ("type: 'BatchNorm'", [(2, 4, 3, 3)], [(2, 4, 3, 3)], [(4,), (4,), (1,)]),
        ("type: 'LRN'", [(2, 4, 3, 3)], [(2, 4, 3, 3)], []),
        ("type: 'MVN'", [(2, 4)], [(2, 4, 1, 1)], []),
        ("type: 'Normalize'", [(2, 4, 3, 3)], [(2, 4, 3, 3)], [()]),
        ("type: 'Normalize' norm_param { channel_shared: false }", [(2, 4)], [(2, 4)], [(4,)]),
    ],
)
def test_normalizations_have_caffes_shapes(body: str, bottoms: Sizes, tops: Sizes, learned: Sizes) -> None:
    assert one_layer(body, *bottoms) == (tops, learned)


@pytest.mark.parametrize(
    ("body", "bottoms", "what"),
    [
        ("type: 'LRN'", [(2, 4)], "a bottom with 4 axes"),
        ("type: 'LRN' lrn_param { local_size: 4 }", [(2, 4, 3, 3)], "local_size 4, which is not odd"),
    ],
)
def test_normalizations_that_do_not_fit_are_reported_in_one_line(
    body: str, bottoms: Sizes, what: str
) -> None:
    check_misfit(body, bottoms, what)


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ('type: "BatchNorm" batch_norm_param { eps: -1 }', "layer-value-refused"),
        ('type: "LRN" lrn_param { alpha: -1 }', "layer-value-refused"),
        ('type: "LRN" lrn_param { k: 0 }', "layer-value-refused"),
    ],
)
def test_normalizations_that_stop_caffe_are_refused(text: str, rule: str) -> None:
    assert rules_of(text) == [rule]


@pytest.mark.parametrize(
    "text",
    [
        'type: "LRN" lrn_param { k: 0 norm_region: WITHIN_CHANNEL }',
        'type: "BatchNorm" batch_norm_param { eps: 0 }',
    ],
)
def test_normalizations_that_caffe_runs_are_accepted(text: str) -> None:
    assert rules_of(text) == []


@pytest.mark.parametrize(
    ("block", "what"),
    [
        ("bn_param: 5", "has no bn_param"),
        (
            "bn_param { slope_filler { value: 1 } eps: -1 }",
            r"has momentum 0.9 \(0 to 1\) and eps -1 \(0 or more\)",
        ),
        (
            "bn_param { slope_filler { value: 1 } momentum: abc }",
            "takes numbers as momentum and eps of bn_param",
        ),
        (
            "bn_param { slope_filler { value: 1 } bias_filler: 5 }",
            "has bn_param.bias_filler 5, which is not a f",
        ),
        ("bn_param { slope_filler { value: abc } }", "has a wrong bn_param.slope_filler: "),
    ],
)
def test_values_of_a_fork_s_norm_are_refused_by_the_name_of_its_layer(block: str, what: str) -> None:
    reader = (
        "layer { name: 'x' type: 'Input' top: 'x' input_param { shape { dim: 2 dim: 3 dim: 4 dim: 4 } } }"
    )
    text = f"{reader} layer {{ name: 'c' type: 'BN' bottom: 'x' top: 'c' {block} }}"
    net: Any = parse_lenient(text).message
    with pytest.raises(LayerMisfit, match=rf"layer 'c' \(BN\) {what}"):
        infer_shapes(net, pb.TRAIN)
