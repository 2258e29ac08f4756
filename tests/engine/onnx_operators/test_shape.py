"""Layers that move values, in onnxruntime, give the engine's values."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.extras import needs_onnx

pytestmark = needs_onnx


@pytest.mark.parametrize(
    ("text", "shapes", "tops", "is_free"),
    [
        ('type: "Concat"', [(2, 3, 4), (2, 5, 4)], 1, True),
        ('type: "Concat" concat_param { axis: 0 }', [(2, 3), (2, 3)], 1, False),
        ('type: "Slice"', [(2, 6, 3)], 2, True),
        ('type: "Slice" slice_param { slice_point: 1 slice_point: 4 }', [(2, 6, 3)], 3, True),
        ('type: "Slice" slice_param { axis: 0 slice_point: 1 }', [(3, 2)], 2, False),
        ('type: "Flatten"', [(2, 3, 4, 5)], 1, True),
        ('type: "Flatten" flatten_param { axis: 0 end_axis: 1 }', [(2, 3, 4)], 1, False),
        ('type: "Reshape" reshape_param { shape { dim: 0 dim: -1 dim: 4 } }', [(2, 6, 2)], 1, True),
        ('type: "Reshape" reshape_param { shape { dim: 2 dim: 3 dim: 4 } }', [(2, 6, 2)], 1, False),
        ('type: "Permute" permute_param { order: 0 order: 2 order: 1 }', [(2, 3, 4)], 1, True),
        ('type: "Permute" permute_param { order: 1 order: 0 }', [(2, 3)], 1, False),
        ('type: "Crop" crop_param { axis: 2 offset: 1 }', [(2, 3, 6, 7), (2, 3, 2, 4)], 1, True),
        ('type: "Crop" crop_param { axis: 0 offset: 0 }', [(2, 3, 6), (2, 3, 2)], 1, True),
        ('type: "ShuffleChannel" shuffle_channel_param { group: 2 }', [(2, 6, 3, 4)], 1, True),
        ('type: "Interp" interp_param { height: 9 width: 5 }', [(2, 3, 4, 6)], 1, True),
        ('type: "Interp" interp_param { zoom_factor: 2 pad_beg: -1 }', [(2, 3, 5, 6)], 1, True),
        ('type: "Interp" interp_param { shrink_factor: 2 pad_end: -1 }', [(2, 3, 6, 8)], 1, True),
        ('type: "Tile" tile_param { tiles: 3 }', [(2, 3, 4)], 1, True),
        ('type: "ArgMax"', [(2, 3, 4)], 1, True),
        ('type: "ArgMax" argmax_param { top_k: 3 out_max_val: true }', [(2, 5, 4)], 1, True),
        ('type: "ArgMax" argmax_param { axis: 1 }', [(2, 3, 4)], 1, True),
        ('type: "ArgMax" argmax_param { axis: -1 top_k: 2 out_max_val: true }', [(2, 3, 4)], 1, True),
        ('type: "Reduction"', [(2, 3)], 1, True),
        ('type: "Reduction" reduction_param { operation: MEAN axis: 1 coeff: 2 }', [(2, 3, 4)], 1, True),
        ('type: "Reduction" reduction_param { operation: ASUM axis: 2 }', [(2, 3, 4)], 1, True),
        ('type: "Reduction" reduction_param { operation: SUMSQ axis: 1 }', [(2, 3, 4)], 1, True),
        ('type: "Split"', [(2, 3)], 2, True),
        ('type: "Gather"', [(2, 3), (2, 4)], 2, True),
    ],
)
def test_values_are_moved_as_caffe_does(
    tmp_path: Path, text: str, shapes: list[tuple[int, ...]], tops: int, is_free: bool
) -> None:
    from tests.engine.onnx_operators.conftest import check_layer

    check_layer(tmp_path, text, *shapes, tops=tops, is_free=is_free)


def test_equal_values_have_caffes_order(tmp_path: Path) -> None:
    from tests.engine.onnx_operators.conftest import inputs_text, load_text, run_onnx

    layer = 'layer { name: "l" type: "ArgMax" bottom: "x0" top: "y" argmax_param { top_k: 3 } }'
    module = load_text(tmp_path, inputs_text((1, 6)) + layer)
    x = np.array([[1, 2, 2, 0, 2, 1]], np.float32)
    np.testing.assert_array_equal(run_onnx(module, [x])["y"], module(torch.from_numpy(x)).numpy())


def test_images_are_chosen_by_index_and_unused_blobs_are_dropped(tmp_path: Path) -> None:
    from tests.engine.onnx_operators.conftest import inputs_text, load_text, run_onnx

    text = """layer { name: "b" type: "BatchReindex" bottom: "x0" bottom: "x1" top: "y" }
    layer { name: "t" type: "TanH" bottom: "x0" top: "t" }
    layer { name: "s" type: "Silence" bottom: "t" }"""
    module = load_text(tmp_path, inputs_text((3, 2), (4,)) + text)
    x, order = np.arange(6, dtype=np.float32).reshape(3, 2), np.array([2, 0, 0, 1], np.float32)
    np.testing.assert_array_equal(run_onnx(module, [x, order])["y"], x[[2, 0, 0, 1]])
