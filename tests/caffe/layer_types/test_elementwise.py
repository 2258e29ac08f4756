"""Elementwise layers: shapes, misfits, and settings at which Caffe aborts."""

from __future__ import annotations

import pytest

from tests.caffe.layer_types.conftest import Sizes, check_misfit, one_layer, rules_of


@pytest.mark.parametrize(
    ("body", "bottoms", "tops", "learned"),
    [
        ("type: 'Scale' scale_param { bias_term: true }", [(2, 4, 3, 3)], [(2, 4, 3, 3)], [(4,), (4,)]),
        ("type: 'Scale' scale_param { axis: 0 num_axes: -1 }", [(2, 4)], [(2, 4)], [(2, 4)]),
        ("type: 'Scale' scale_param { axis: 0 }", [(2, 4, 3), (2,)], [(2, 4, 3)], []),
        ("type: 'Bias'", [(2, 4, 3)], [(2, 4, 3)], [(4,)]),
        ("type: 'Eltwise'", [(2, 4), (2, 4), (2, 4)], [(2, 4)], []),
    ],
)
def test_elementwise_layers_have_caffes_shapes(
    body: str, bottoms: Sizes, tops: Sizes, learned: Sizes
) -> None:
    assert one_layer(body, *bottoms) == (tops, learned)


@pytest.mark.parametrize(
    ("body", "bottoms", "what"),
    [
        ("type: 'Eltwise'", [(2, 4), (2, 5)], "bottoms of the same shape"),
        ("type: 'Eltwise'", [(2, 4)], "takes 2 or more bottoms, not 1"),
        ("type: 'Scale'", [(2, 4)] * 3, "takes 1 to 2 bottoms, not 3"),
        ("type: 'Scale' scale_param { axis: 1 }", [(2, 4, 3), (5,)], "bottoms of the same shape"),
    ],
)
def test_elementwise_layers_that_do_not_fit_are_reported_in_one_line(
    body: str, bottoms: Sizes, what: str
) -> None:
    check_misfit(body, bottoms, what)


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        (
            'type: "Eltwise" bottom: "a" bottom: "b" eltwise_param { coeff: 1 operation: MAX }',
            "eltwise-coeff",
        ),
    ],
)
def test_elementwise_layers_that_stop_caffe_are_refused(text: str, rule: str) -> None:
    assert rules_of(text) == [rule]


@pytest.mark.parametrize(
    "text",
    [
        'type: "Eltwise" bottom: "a" bottom: "b" eltwise_param { coeff: 1 coeff: 2 operation: MAX }',
    ],
)
def test_elementwise_layers_that_caffe_runs_are_accepted(text: str) -> None:
    assert rules_of(text) == []
