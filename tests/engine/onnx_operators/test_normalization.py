"""Normalization in onnxruntime gives the engine's values."""

from __future__ import annotations

from pathlib import Path

import pytest

from caffe_recipes.errors import InputError
from tests.extras import needs_onnx

pytestmark = needs_onnx


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        ('type: "BatchNorm"', (2, 3, 4, 5)),
        ('type: "BatchNorm" batch_norm_param { eps: 0.1 }', (2, 3)),
        ('type: "BN" bn_param { slope_filler { value: 1 } }', (2, 3, 4, 5)),
        ('type: "BN" bn_param { slope_filler { value: 1 } frozen: true eps: 0.1 }', (2, 3)),
        ('type: "BN" bn_param { bn_mode: INFERENCE }', (2, 3, 4, 5)),
        ('type: "LRN" lrn_param { local_size: 5 alpha: 2 beta: 0.75 k: 2 }', (2, 7, 4, 5)),
        ('type: "LRN" lrn_param { local_size: 3 alpha: 2 norm_region: WITHIN_CHANNEL }', (2, 3, 6, 5)),
        ('type: "MVN"', (2, 3, 4, 5)),
        ('type: "MVN" mvn_param { across_channels: true }', (2, 3, 4, 5)),
        ('type: "MVN" mvn_param { normalize_variance: false }', (2, 3, 4, 5)),
        ('type: "Normalize"', (2, 3, 4, 5)),
        ('type: "Normalize" norm_param { across_spatial: false channel_shared: false }', (2, 3, 4, 5)),
    ],
)
def test_normalization(tmp_path: Path, text: str, shape: tuple[int, ...]) -> None:
    from tests.engine.onnx_operators.conftest import check_layer

    check_layer(tmp_path, text, shape)


def test_statistics_of_the_batch_are_refused_with_what_to_write(tmp_path: Path) -> None:
    from tests.engine.onnx_operators.conftest import check_layer

    text = 'type: "BatchNorm" batch_norm_param { use_global_stats: false }'
    with pytest.raises(InputError, match="write use_global_stats: true"):
        check_layer(tmp_path, text, (2, 3))
    with pytest.raises(InputError, match="write bn_mode: INFERENCE"):
        check_layer(tmp_path, 'type: "BN" bn_param { bn_mode: LEARN }', (2, 3, 4, 5))
