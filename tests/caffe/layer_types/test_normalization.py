"""Normalizations: shapes, misfits, and settings at which Caffe aborts."""

from __future__ import annotations

import pytest

from tests.caffe.layer_types.conftest import Sizes, check_misfit, one_layer, rules_of


@pytest.mark.parametrize(
    ("body", "bottoms", "tops", "learned"),
    [
        ("type: 'BatchNorm'", [(2, 4, 3, 3)], [(2, 4, 3, 3)], [(4,), (4,), (1,)]),
        ("type: 'LRN'", [(2, 4, 3, 3)], [(2, 4, 3, 3)], []),
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
