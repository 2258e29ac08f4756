"""Losses: shapes, misfits, and settings at which Caffe aborts."""

from __future__ import annotations

import pytest

from tests.caffe.layer_types.conftest import Sizes, check_misfit, one_layer, rules_of


@pytest.mark.parametrize(
    ("body", "bottoms", "tops", "learned"),
    [
        ("type: 'SoftmaxWithLoss'", [(2, 10), (2,)], [()], []),
        ("type: 'SoftmaxWithLoss' top: 'l' top: 'p'", [(2, 10), (2,)], [(), (2, 10)], []),
        ("type: 'EuclideanLoss'", [(2, 10), (2, 10, 1, 1)], [()], []),
        ("type: 'HingeLoss'", [(2, 10), (2,)], [()], []),
        ("type: 'Accuracy' top: 'a' top: 'per_class'", [(2, 10), (2,)], [(), (10,)], []),
    ],
)
def test_losses_have_caffes_shapes(body: str, bottoms: Sizes, tops: Sizes, learned: Sizes) -> None:
    assert one_layer(body, *bottoms) == (tops, learned)


@pytest.mark.parametrize(
    ("body", "bottoms", "what"),
    [
        ("type: 'SoftmaxWithLoss'", [(2, 10, 3), (2,)], "one label for each of its 6"),
        ("type: 'InfogainLoss'", [(2, 3), (2,), (3, 3)], "a matrix of 1 x 1 x 3 x 3 as its third bottom"),
        ("type: 'Accuracy'", [(2, 10), (3,)], "one label for each of its 2"),
    ],
)
def test_losses_that_do_not_fit_are_reported_in_one_line(body: str, bottoms: Sizes, what: str) -> None:
    check_misfit(body, bottoms, what)


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ('type: "Accuracy" accuracy_param { top_k: 0 }', "layer-value-refused"),
        ('type: "SoftmaxWithLoss" loss_param { label_smoothing: 1 }', "layer-value-refused"),
    ],
)
def test_losses_that_stop_caffe_are_refused(text: str, rule: str) -> None:
    assert rules_of(text) == [rule]
