"""Learned matrices: shapes, misfits, and settings at which Caffe aborts."""

from __future__ import annotations

import pytest

from tests.caffe.layer_types.conftest import Sizes, check_misfit, one_layer


@pytest.mark.parametrize(
    ("body", "bottoms", "tops", "learned"),
    [
        (
            "type: 'InnerProduct' inner_product_param { num_output: 10 }",
            [(2, 4, 3, 3)],
            [(2, 10)],
            [(10, 36), (10,)],
        ),
        (
            "type: 'InnerProduct' inner_product_param { num_output: 10 axis: -1 transpose: true"
            " bias_term: false }",
            [(2, 4, 3)],
            [(2, 4, 10)],
            [(3, 10)],
        ),
        (
            "type: 'Embed' embed_param { num_output: 6 input_dim: 100 }",
            [(9, 2)],
            [(9, 2, 6)],
            [(100, 6), (6,)],
        ),
        ("type: 'Parameter' parameter_param { shape { dim: 3 dim: 4 } }", [], [(3, 4)], [(3, 4)]),
    ],
)
def test_learned_matrices_have_caffes_shapes(body: str, bottoms: Sizes, tops: Sizes, learned: Sizes) -> None:
    assert one_layer(body, *bottoms) == (tops, learned)


@pytest.mark.parametrize(
    ("body", "bottoms", "what"),
    [
        ("type: 'InnerProduct'", [(2, 4)], "no num_output"),
        ("type: 'Embed' embed_param { num_output: 6 }", [(9,)], "no input_dim"),
    ],
)
def test_learned_matrices_that_do_not_fit_are_reported_in_one_line(
    body: str, bottoms: Sizes, what: str
) -> None:
    check_misfit(body, bottoms, what)
