"""Activations in onnxruntime give the engine's values."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.extras import needs_onnx

pytestmark = needs_onnx


@pytest.mark.parametrize(
    "text",
    [
        'type: "ReLU"',
        'type: "ReLU" relu_param { negative_slope: 0.1 }',
        'type: "Dropout"',
        'type: "SpatialDropout"',
        'type: "Sigmoid"',
        'type: "TanH"',
        'type: "ELU" elu_param { alpha: 0.7 }',
        'type: "AbsVal"',
        'type: "BNLL"',
        'type: "Power" power_param { power: 2 scale: 0.5 shift: 3 }',
        'type: "Power" power_param { scale: -1 }',
        'type: "Power"',
        'type: "Exp" exp_param { base: 2 scale: 0.5 shift: -1 }',
        'type: "Exp"',
        'type: "Log" log_param { base: 10 scale: 0.1 shift: 5 }',
        'type: "Softmax"',
        'type: "Softmax" softmax_param { axis: -1 }',
        'type: "ReLU6"',
        'type: "Clip" clip_param { min: -0.5 max: 0.25 }',
        'type: "Swish" swish_param { beta: 1.5 }',
        'type: "Swish"',
        'type: "Threshold" threshold_param { threshold: 0.2 }',
        'type: "PReLU"',
        'type: "PReLU" prelu_param { channel_shared: true }',
    ],
)
@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (2, 6)])
def test_functions_of_single_values(tmp_path: Path, text: str, shape: tuple[int, ...]) -> None:
    from tests.engine.onnx_operators.conftest import check_layer

    check_layer(tmp_path, text, shape)
