"""Layers that combine blobs, in onnxruntime, give the engine's values."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.extras import needs_onnx

pytestmark = needs_onnx


@pytest.mark.parametrize(
    ("text", "shapes"),
    [
        ('type: "Scale"', [(2, 3, 4, 5)]),
        ('type: "Scale" scale_param { bias_term: true }', [(2, 3, 4, 5)]),
        ('type: "Scale" scale_param { axis: 2 num_axes: -1 bias_term: true }', [(2, 3, 4, 5)]),
        ('type: "Scale" scale_param { axis: 0 }', [(2, 3, 4, 5), (2, 3)]),
        ('type: "Bias"', [(2, 3, 4)]),
        ('type: "Bias" bias_param { axis: 0 }', [(2, 3, 4), (2,)]),
        ('type: "Eltwise"', [(2, 3), (2, 3), (2, 3)]),
        ('type: "Eltwise" eltwise_param { coeff: 1 coeff: -2 }', [(2, 3, 4), (2, 3, 4)]),
        ('type: "Eltwise" eltwise_param { operation: PROD }', [(2, 3), (2, 3)]),
        ('type: "Eltwise" eltwise_param { operation: MAX }', [(2, 3), (2, 3), (2, 3)]),
        ('type: "Axpy"', [(2, 3, 1, 1), (2, 3, 4, 5), (2, 3, 4, 5)]),
    ],
)
def test_sums_products_and_maxima(tmp_path: Path, text: str, shapes: list[tuple[int, ...]]) -> None:
    from tests.engine.onnx_operators.conftest import check_layer

    check_layer(tmp_path, text, *shapes)
