"""Convolutions in onnxruntime give the engine's values."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.extras import needs_onnx

pytestmark = needs_onnx


@pytest.mark.parametrize(
    ("text", "shapes"),
    [
        ("kernel_size: 3", [(2, 4, 7, 9)]),
        ("kernel_size: 3 stride: 2 pad: 1 group: 2 bias_term: false", [(2, 4, 7, 9)]),
        ("kernel_h: 2 kernel_w: 3 stride_h: 2 stride_w: 1 pad_h: 1 pad_w: 0", [(2, 4, 7, 9)]),
        ("kernel_size: 3 dilation: 2", [(2, 4, 7, 9)]),
        ("kernel_size: 3", [(2, 4, 9)]),
        ("kernel_size: 3", [(2, 4, 5, 6, 7)]),
        ("kernel_size: 3 axis: 2", [(2, 3, 4, 9)]),
        ("", [(2, 4)]),
        ("kernel_size: 3", [(2, 4, 7, 9), (2, 4, 7, 9)]),
    ],
)
@pytest.mark.parametrize("kind", ["Convolution", "Deconvolution"])
def test_convolution_and_its_transpose(
    tmp_path: Path, kind: str, text: str, shapes: list[tuple[int, ...]]
) -> None:
    from tests.engine.onnx_operators.conftest import check_layer

    layer = f'type: "{kind}" convolution_param {{ num_output: 6 {text} }}'
    check_layer(tmp_path, layer, *shapes, tops=len(shapes))


def test_a_depthwise_convolution_has_a_group_for_each_channel(tmp_path: Path) -> None:
    from tests.engine.onnx_operators.conftest import check_layer

    layer = 'type: "DepthwiseConvolution" convolution_param { num_output: 4 kernel_size: 3 pad: 1 }'
    check_layer(tmp_path, layer, (2, 4, 7, 9))


@pytest.mark.parametrize("kind", ["Convolution3D", "Deconvolution3D"])
def test_a_convolution_of_videos(tmp_path: Path, kind: str) -> None:
    from tests.engine.onnx_operators.conftest import check_layer

    param = "num_output: 3 kernel_size: 3 kernel_depth: 2 pad: 1 temporal_stride: 2"
    check_layer(tmp_path, f'type: "{kind}" convolution3d_param {{ {param} }}', (2, 4, 5, 6, 7))
