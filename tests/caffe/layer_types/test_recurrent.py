"""Recurrent layers: shapes, misfits, and settings at which Caffe aborts."""

from __future__ import annotations

import pytest

from tests.caffe.layer_types.conftest import Sizes, check_misfit, one_layer


@pytest.mark.parametrize(
    ("body", "bottoms", "tops", "learned"),
    [
        (
            "type: 'LSTM' recurrent_param { num_output: 5 }",
            [(9, 2, 3, 4), (9, 2)],
            [(9, 2, 5)],
            [(20, 12), (20,), (20, 5)],
        ),
        (
            "type: 'LSTM' top: 'h' top: 'hT' top: 'cT' recurrent_param { num_output: 5 expose_hidden: true }",
            [(9, 2, 3), (9, 2), (2, 7), (1, 2, 5), (1, 2, 5)],
            [(9, 2, 5), (1, 2, 5), (1, 2, 5)],
            [(20, 3), (20,), (20, 7), (20, 5)],
        ),
        ("type: 'LSTMUnit' top: 'c' top: 'h'", [(1, 2, 5), (1, 2, 20), (1, 2)], [(1, 2, 5)] * 2, []),
        (
            "type: 'RNN' recurrent_param { num_output: 5 }",
            [(9, 2, 3), (9, 2)],
            [(9, 2, 5)],
            [(5, 3), (5,), (5, 5), (5, 5), (5,)],
        ),
    ],
)
def test_recurrent_layers_have_caffes_shapes(body: str, bottoms: Sizes, tops: Sizes, learned: Sizes) -> None:
    assert one_layer(body, *bottoms) == (tops, learned)


@pytest.mark.parametrize(
    ("body", "bottoms", "what"),
    [
        ("type: 'LSTM' recurrent_param { num_output: 5 }", [(9, 2, 3), (9, 3)], "bottoms of the same shape"),
        ("type: 'LSTM' recurrent_param { num_output: 5 }", [(9, 2, 3)], "takes 2 to 5 bottoms"),
        ("type: 'LSTM' recurrent_param { num_output: 5 }", [(9, 2), (9, 2)], "steps x streams x values"),
        (
            "type: 'RNN' recurrent_param { num_output: 5 expose_hidden: true }",
            [(9, 2, 3), (9, 2)],
            "takes 3 to 4 bottoms, not 2",
        ),
        ("type: 'LSTMUnit'", [(1, 2, 5), (1, 2, 19), (1, 2)], "four gates for each"),
    ],
)
def test_recurrent_layers_that_do_not_fit_are_reported_in_one_line(
    body: str, bottoms: Sizes, what: str
) -> None:
    check_misfit(body, bottoms, what)
