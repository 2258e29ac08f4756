"""Layers that change shapes: shapes, misfits, and settings at which Caffe aborts."""

from __future__ import annotations

import pytest

from tests.caffe.layer_types.conftest import Sizes, check_misfit, one_layer, rules_of


@pytest.mark.parametrize(
    ("body", "bottoms", "tops", "learned"),
    [
        ("type: 'Concat'", [(2, 4, 3), (2, 5, 3)], [(2, 9, 3)], []),
        ("type: 'Concat' concat_param { axis: 0 }", [(2, 4), (1, 4)], [(3, 4)], []),
        ("type: 'Slice' top: 'p' top: 'q'", [(2, 4, 3)], [(2, 2, 3), (2, 2, 3)], []),
        (
            "type: 'Slice' top: 'p' top: 'q' slice_param { slice_point: 1 }",
            [(2, 4, 3)],
            [(2, 1, 3), (2, 3, 3)],
            [],
        ),
        ("type: 'Split' top: 'p' top: 'q'", [(2, 4)], [(2, 4), (2, 4)], []),
        ("type: 'Flatten'", [(2, 4, 3, 3)], [(2, 36)], []),
        ("type: 'Reshape' reshape_param { shape { dim: 0 dim: -1 dim: 2 } }", [(2, 4, 3)], [(2, 6, 2)], []),
        (
            "type: 'Reshape' reshape_param { axis: 1 num_axes: 1 shape { dim: 2 dim: -1 } }",
            [(2, 4, 3)],
            [(2, 2, 2, 3)],
            [],
        ),
        ("type: 'Permute' permute_param { order: 0 order: 2 }", [(2, 4, 3)], [(2, 3, 4)], []),
        ("type: 'ArgMax' argmax_param { top_k: 5 }", [(2, 10)], [(2, 1, 5)], []),
        ("type: 'ArgMax' argmax_param { axis: 1 }", [(2, 10, 3, 3)], [(2, 1, 3, 3)], []),
        ("type: 'Reduction' reduction_param { axis: 1 }", [(2, 10, 3)], [(2,)], []),
        ("type: 'Crop'", [(2, 4, 9, 9), (2, 5, 7, 6)], [(2, 4, 7, 6)], []),
        ("type: 'BatchReindex'", [(8, 4, 3), (5,)], [(5, 4, 3)], []),
        ("type: 'Filter' top: 'p' top: 'q'", [(8, 4), (8,), (8, 1)], [(8, 4), (8,)], []),
        ("type: 'Tile' tile_param { axis: 2 tiles: 3 }", [(2, 4, 3)], [(2, 4, 9)], []),
    ],
)
def test_shape_layers_have_caffes_shapes(body: str, bottoms: Sizes, tops: Sizes, learned: Sizes) -> None:
    assert one_layer(body, *bottoms) == (tops, learned)


@pytest.mark.parametrize(
    ("body", "bottoms", "what"),
    [
        ("type: 'Concat'", [(2, 4, 3), (2, 4, 4)], "bottoms of the same shape"),
        ("type: 'Concat'", [(2, 4, 3), (2, 4)], "bottoms with the same number of axes"),
        ("type: 'ArgMax'", [()], "axis 0, which its bottom does not have"),
        ("type: 'Concat' concat_param { axis: 3 }", [(2, 4, 3), (2, 4, 3)], "axis 3"),
        ("type: 'Slice' top: 'p' top: 'q'", [(2, 5)], "cannot slice 5 into 2"),
        ("type: 'Slice' top: 'p' top: 'q' slice_param { slice_point: 5 }", [(2, 5)], "cannot slice 5"),
        ("type: 'Reshape' reshape_param { shape { dim: 0 dim: 5 } }", [(2, 4)], "cannot reshape to 0, 5"),
        ("type: 'Crop'", [(2, 4, 5, 9), (2, 4, 7, 6)], "cannot crop 5 to 7"),
        ("type: 'Permute' permute_param { order: 3 }", [(2, 4)], "cannot permute"),
        ("type: 'BatchReindex'", [(8, 4), (5, 1)], "one axis of indices"),
        ("type: 'Filter'", [(8, 4), (8, 2)], "a selector with one number"),
        ("type: 'Filter'", [(8, 4), (7,)], "bottoms of the same shape"),
        ("type: 'Tile'", [(2, 4)], "has no tiles"),
        ("type: 'Flatten' flatten_param { axis: 2 end_axis: 1 }", [(2, 4, 3)], "axis 2 after end_axis 1"),
        (
            "type: 'ArgMax' argmax_param { top_k: 11 }",
            [(2, 10)],
            "top_k 11, but its bottom has only 10 values",
        ),
    ],
)
def test_shape_layers_that_do_not_fit_are_reported_in_one_line(body: str, bottoms: Sizes, what: str) -> None:
    check_misfit(body, bottoms, what)


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ('type: "Slice" slice_param { axis: 1 slice_dim: 1 }', "axis-given-twice"),
        ('type: "Concat" concat_param { axis: 0 concat_dim: 1 }', "axis-given-twice"),
    ],
)
def test_shape_layers_that_stop_caffe_are_refused(text: str, rule: str) -> None:
    assert rules_of(text) == [rule]


@pytest.mark.parametrize(
    "text",
    [
        'type: "Slice" slice_param { slice_dim: 1 }',
    ],
)
def test_shape_layers_that_caffe_runs_are_accepted(text: str) -> None:
    assert rules_of(text) == []
