"""Pooling in onnxruntime gives the engine's values: the same windows, and the same divisors."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.extras import needs_onnx

pytestmark = needs_onnx


@pytest.mark.parametrize("method", ["MAX", "AVE"])
@pytest.mark.parametrize(
    "text",
    [
        "kernel_size: 2 stride: 2",
        "kernel_size: 3 stride: 2",
        "kernel_size: 3 stride: 2 pad: 1",
        "kernel_size: 5 stride: 3 pad: 2",
        "kernel_size: 3 stride: 1 pad: 1",
        "kernel_size: 2 stride: 3 pad: 1",
        "kernel_size: 1 stride: 3",
        "kernel_size: 4 stride: 2 pad: 3",
        "kernel_h: 2 kernel_w: 3 stride_h: 1 stride_w: 2 pad_h: 0 pad_w: 1",
        "kernel_size: 3 stride: 2 round_mode: FLOOR",
        "global_pooling: true",
    ],
)
@pytest.mark.parametrize("size", [6, 7, 8])
def test_windows(tmp_path: Path, method: str, text: str, size: int) -> None:
    from tests.engine.onnx_operators.conftest import check_layer

    layer = f'type: "Pooling" pooling_param {{ pool: {method} {text} }}'
    check_layer(tmp_path, layer, (2, 3, size, size + 1))


@pytest.mark.parametrize("method", ["MAX", "AVE"])
@pytest.mark.parametrize("text", ["kernel_size: 3 stride: 2 pad: 1", "global_pooling: true"])
def test_three_axes_and_channels_elsewhere(tmp_path: Path, method: str, text: str) -> None:
    from tests.engine.onnx_operators.conftest import check_layer

    layer = f'type: "Pooling" pooling_param {{ pool: {method} {text} }}'
    check_layer(tmp_path, layer, (2, 3, 5, 6, 7))
    check_layer(tmp_path, layer.replace("pool:", "axis: 2 pool:"), (2, 2, 3, 5, 6, 7))


@pytest.mark.parametrize("text", ["kernel_size: 2 stride: 2", "kernel_size: 3 stride: 2 pad: 1"])
def test_the_mask_has_the_index_in_each_channel(tmp_path: Path, text: str) -> None:
    from tests.engine.onnx_operators.conftest import check_layer

    check_layer(tmp_path, f'type: "Pooling" pooling_param {{ {text} }}', (2, 3, 7, 8), tops=2)


@pytest.mark.parametrize("method", ["MAX", "AVE"])
@pytest.mark.parametrize("levels", [1, 3])
def test_pyramids(tmp_path: Path, method: str, levels: int) -> None:
    from tests.engine.onnx_operators.conftest import check_layer

    layer = f'type: "SPP" spp_param {{ pool: {method} pyramid_height: {levels} }}'
    check_layer(tmp_path, layer, (2, 3, 9, 11))


@pytest.mark.parametrize("method", ["MAX", "AVE"])
def test_a_pooling_of_videos(tmp_path: Path, method: str) -> None:
    from tests.engine.onnx_operators.conftest import check_layer

    param = f"pool: {method} kernel_size: 3 kernel_depth: 1 stride: 2"
    check_layer(tmp_path, f'type: "Pooling3D" pooling3d_param {{ {param} }}', (2, 3, 5, 6, 7))
