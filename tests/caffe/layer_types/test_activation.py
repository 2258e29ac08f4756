"""Activations: shapes, misfits, and settings at which Caffe aborts."""

from __future__ import annotations

import pytest

from tests.caffe.layer_types.conftest import Sizes, check_misfit, one_layer, rules_of


@pytest.mark.parametrize(
    ("body", "bottoms", "tops", "learned"),
    [
        ("type: 'PReLU'", [(2, 4, 3)], [(2, 4, 3)], [(4,)]),
        ("type: 'PReLU' prelu_param { channel_shared: true }", [(2, 4, 3)], [(2, 4, 3)], [()]),
        ("type: 'Dropout'", [(2, 4)], [(2, 4)], []),
        ("type: 'Softmax'", [(2, 10)], [(2, 10)], []),
    ],
)
def test_activations_have_caffes_shapes(body: str, bottoms: Sizes, tops: Sizes, learned: Sizes) -> None:
    assert one_layer(body, *bottoms) == (tops, learned)


@pytest.mark.parametrize(
    ("body", "bottoms", "what"),
    [
        ("type: 'ReLU'", [(2, 4), (2, 4)], "takes 1 bottom, not 2"),
        ("type: 'ReLU' top: 'p' top: 'q'", [(2, 4)], "produces 1 top, not 2"),
        ("type: 'Softmax' softmax_param { axis: 2 }", [(2, 4)], "axis 2, which its bottom does not have"),
    ],
)
def test_activations_that_do_not_fit_are_reported_in_one_line(body: str, bottoms: Sizes, what: str) -> None:
    check_misfit(body, bottoms, what)


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ('type: "Dropout" dropout_param { dropout_ratio: 1 }', "dropout-ratio"),
        ('type: "Exp" exp_param { base: -2 }', "layer-value-refused"),
        ('type: "Log" log_param { base: 1 }', "layer-value-refused"),
        ('type: "Log" log_param { scale: 0 }', "layer-value-refused"),
    ],
)
def test_activations_that_stop_caffe_are_refused(text: str, rule: str) -> None:
    assert rules_of(text) == [rule]


@pytest.mark.parametrize(
    "text",
    [
        'type: "Dropout" dropout_param { dropout_ratio: 0 }',
        'type: "Exp" exp_param { base: 1 }',
    ],
)
def test_activations_that_caffe_runs_are_accepted(text: str) -> None:
    assert rules_of(text) == []
