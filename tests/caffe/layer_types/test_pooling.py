"""Pooling layers: shapes, misfits, and settings at which Caffe aborts."""

from __future__ import annotations

import pytest

from tests.caffe.layer_types.conftest import Sizes, check_misfit, one_layer, rules_of

POOL = 'type: "Pooling" bottom: "a" top: "b" pooling_param {{ {} }}'


@pytest.mark.parametrize(
    ("body", "bottoms", "tops", "learned"),
    [
        ("type: 'Pooling' pooling_param { kernel_size: 3 stride: 2 }", [(2, 4, 8, 9)], [(2, 4, 4, 4)], []),
        (
            "type: 'Pooling' pooling_param { kernel_size: 2 stride: 2 pad: 1 }",
            [(2, 4, 3, 4)],
            [(2, 4, 2, 3)],
            [],
        ),
        ("type: 'Pooling' pooling_param { global_pooling: true }", [(2, 4, 7, 9)], [(2, 4, 1, 1)], []),
        ("type: 'Pooling' pooling_param { kernel_size: 1 stride: 3 }", [(2, 4, 6, 7)], [(2, 4, 2, 3)], []),
        (
            "type: 'Pooling' pooling_param { kernel_size: 2 stride: 3 pad: 1 }",
            [(2, 4, 6, 8)],
            [(2, 4, 3, 3)],
            [],
        ),
        ("type: 'SPP' spp_param { pyramid_height: 3 }", [(2, 4, 13, 13)], [(2, 84)], []),
        ("type: 'SPP' spp_param { pyramid_height: 1 }", [(2, 4, 13, 13)], [(2, 4, 1, 1)], []),
    ],
)
def test_pooling_layers_have_caffes_shapes(body: str, bottoms: Sizes, tops: Sizes, learned: Sizes) -> None:
    assert one_layer(body, *bottoms) == (tops, learned)


@pytest.mark.parametrize(
    ("body", "bottoms", "what"),
    [
        ("type: 'Pooling' pooling_param { kernel_size: 9 }", [(2, 4, 7, 7)], "larger than its padded input"),
        (
            "type: 'Pooling' pooling_param { kernel_size: 2 stride: 3 }",
            [(2, 4, 6, 6)],
            "has stride 3, with which its last window would be empty",
        ),
        (
            "type: 'Pooling' pooling_param { kernel_size: 1 stride: 3 }",
            [(2, 4, 6, 6, 6)],
            "has stride 3, with which its last window would be empty",
        ),
        (
            "type: 'Pooling' pooling_param { kernel_size: 2 axis: 2 }",
            [(2, 4, 6, 6, 6)],
            "a bottom with 4 axes",
        ),
        ("type: 'SPP' spp_param { pyramid_height: 4 }", [(2, 4, 3, 3)], "cannot divide 3 into 4"),
        ("type: 'Pooling' pooling_param { kernel_size: 2 pad: 2 }", [(2, 4, 7, 7)], "has pad 2, not smaller"),
    ],
)
def test_pooling_layers_that_do_not_fit_are_reported_in_one_line(
    body: str, bottoms: Sizes, what: str
) -> None:
    check_misfit(body, bottoms, what)


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        (POOL.format("kernel_size: 3 pad_h: 1"), "size-half-given"),
        (POOL.format("kernel_size: 3 pad_w: 0"), "size-half-given"),
        (POOL.format("kernel_size: 3 stride_w: 2"), "size-half-given"),
        (POOL.format("kernel_h: 3"), "size-half-given"),
        (POOL.format("kernel_size: 3 pad: 1 pad_h: 1 pad_w: 1"), "size-given-twice"),
        (POOL.format("kernel_size: 3 pool: STOCHASTIC"), "pooling-stochastic"),
        (POOL.format("global_pooling: true kernel_h: 2 kernel_w: 2"), "global-pooling-sized"),
        (POOL.format("global_pooling: true pad_h: 1 pad_w: 1"), "global-pooling-sized"),
        ('type: "SPP" spp_param { pool: STOCHASTIC }', "layer-value-refused"),
    ],
)
def test_pooling_layers_that_stop_caffe_are_refused(text: str, rule: str) -> None:
    assert rules_of(text) == [rule]


@pytest.mark.parametrize(
    "text",
    [
        POOL.format("kernel_h: 3 kernel_w: 2 stride_h: 1 stride_w: 2 pad_h: 0 pad_w: 1"),
        POOL.format("global_pooling: true pad: 0 stride: 1"),
    ],
)
def test_pooling_layers_that_caffe_runs_are_accepted(text: str) -> None:
    assert rules_of(text) == []
