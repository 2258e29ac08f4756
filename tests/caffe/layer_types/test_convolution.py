"""Convolutions: shapes, misfits, and settings at which Caffe aborts."""

from __future__ import annotations

import pytest

from tests.caffe.layer_types.conftest import Sizes, check_misfit, one_layer, rules_of


@pytest.mark.parametrize(
    ("body", "bottoms", "tops", "learned"),
    [
        (
            "type: 'Convolution' convolution_param { num_output: 6 kernel_size: 3 stride: 2 pad: 1 }",
            [(2, 4, 9, 8)],
            [(2, 6, 5, 4)],
            [(6, 4, 3, 3), (6,)],
        ),
        (
            "type: 'Convolution' convolution_param { num_output: 6 kernel_h: 1 kernel_w: 3 dilation: 2"
            " group: 2 bias_term: false }",
            [(2, 4, 9, 8)],
            [(2, 6, 9, 4)],
            [(6, 2, 1, 3)],
        ),
        (
            "type: 'Convolution' convolution_param { num_output: 6 kernel_size: 3 }",
            [(2, 4, 9, 8, 7)],
            [(2, 6, 7, 6, 5)],
            [(6, 4, 3, 3, 3), (6,)],
        ),
        (
            "type: 'Deconvolution' convolution_param { num_output: 6 kernel_size: 4 stride: 2 pad: 1 }",
            [(2, 4, 9, 8)],
            [(2, 6, 18, 16)],
            [(4, 6, 4, 4), (6,)],
        ),
        (
            "type: 'Im2col' convolution_param { kernel_size: 3 stride: 2 pad: 1 }",
            [(2, 4, 9, 8)],
            [(2, 36, 5, 4)],
            [],
        ),
    ],
)
def test_convolutions_have_caffes_shapes(body: str, bottoms: Sizes, tops: Sizes, learned: Sizes) -> None:
    assert one_layer(body, *bottoms) == (tops, learned)


@pytest.mark.parametrize(
    ("body", "bottoms", "what"),
    [
        ("type: 'Convolution' convolution_param { kernel_size: 3 }", [(2, 4, 9, 9)], "no num_output"),
        ("type: 'Convolution' convolution_param { num_output: 4 }", [(2, 4, 9, 9)], "no kernel_size"),
        (
            "type: 'Convolution' convolution_param { num_output: 4 kernel_size: 11 }",
            [(2, 4, 9, 9)],
            "larger than its padded input",
        ),
        (
            "type: 'Convolution' convolution_param { num_output: 4 kernel_size: 3 stride: 0 }",
            [(2, 4, 9, 9)],
            "has stride 0",
        ),
        ("type: 'Im2col' convolution_param { kernel_size: 1 }", [(2, 4)], "with axes after its channels"),
        (
            "type: 'Convolution' convolution_param { num_output: 4 kernel_size: 3 group: 3 }",
            [(2, 4, 9, 9)],
            "has group 3",
        ),
        (
            "type: 'Convolution' convolution_param { num_output: 4 kernel_size: 3 kernel_size: 3"
            " kernel_size: 3 }",
            [(2, 4, 9, 9)],
            "3 values of kernel_size for 2",
        ),
    ],
)
def test_convolutions_that_do_not_fit_are_reported_in_one_line(body: str, bottoms: Sizes, what: str) -> None:
    check_misfit(body, bottoms, what)


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        (
            'type: "Convolution" convolution_param { num_output: 1 kernel_size: 1 stride_h: 2 }',
            "size-half-given",
        ),
    ],
)
def test_convolutions_that_stop_caffe_are_refused(text: str, rule: str) -> None:
    assert rules_of(text) == [rule]


@pytest.mark.parametrize(
    "text",
    [
        'type: "Convolution" convolution_param { num_output: 1 kernel_size: 1 pad_w: 2 }',
    ],
)
def test_convolutions_that_caffe_runs_are_accepted(text: str) -> None:
    assert rules_of(text) == []
