"""Functions of single values against plain numpy loops or values worked out by hand."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from caffe_recipes.caffe import pb
from tests.engine.operators.conftest import Array, apply, noise


@pytest.mark.parametrize(
    ("text", "function"),
    [
        ('type: "ReLU"', lambda x: np.maximum(x, 0)),
        ('type: "ReLU" relu_param { negative_slope: 0.1 }', lambda x: np.where(x > 0, x, 0.1 * x)),
        ('type: "Sigmoid"', lambda x: 1 / (1 + np.exp(-x))),
        ('type: "TanH"', np.tanh),
        ('type: "ELU" elu_param { alpha: 2 }', lambda x: np.where(x > 0, x, 2 * (np.exp(x) - 1))),
        ('type: "AbsVal"', np.abs),
        ('type: "BNLL"', lambda x: np.log1p(np.exp(x))),
        ('type: "Power" power_param { power: 2 scale: 3 shift: 1 }', lambda x: (1 + 3 * x) ** 2),
        ('type: "Power" power_param { scale: 3 shift: 1 }', lambda x: 1 + 3 * x),
        ('type: "Exp"', np.exp),
        ('type: "Exp" exp_param { base: 2 scale: 3 shift: 1 }', lambda x: 2 ** (1 + 3 * x)),
        ('type: "Log" log_param { shift: 9 }', lambda x: np.log(9 + x)),
        ('type: "Log" log_param { base: 10 scale: 2 shift: 9 }', lambda x: np.log10(9 + 2 * x)),
        ('type: "Threshold" threshold_param { threshold: 0.5 }', lambda x: (x > 0.5) * 1.0),
    ],
)
def test_pointwise_layers(text: str, function: Callable[[Array], Array]) -> None:
    x = noise(3, 4, 5)
    assert apply(text, x) == pytest.approx(function(x.numpy().astype(np.float64)), rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("shared", [False, True])
def test_prelu_has_a_slope_per_channel_or_one_in_all(shared: bool) -> None:
    x = noise(2, 3, 4)
    text = f'type: "PReLU" prelu_param {{ channel_shared: {str(shared).lower()} }}'
    slopes = torch.tensor(0.3) if shared else torch.tensor([0.1, 0.2, 0.3])
    spread = slopes.numpy() if shared else slopes.numpy()[:, None]
    want = np.maximum(x.numpy(), 0) + spread * np.minimum(x.numpy(), 0)
    assert apply(text, x, blobs=[slopes]) == pytest.approx(want, abs=1e-6)


def test_dropout_keeps_the_mean_in_training_and_everything_in_testing() -> None:
    torch.manual_seed(0)
    x = torch.ones(100_000)
    text = 'type: "Dropout" dropout_param { dropout_ratio: 0.2 }'
    kept = apply(text, x)
    assert set(np.unique(kept)) == {0, np.float32(1.25)}
    assert kept.mean() == pytest.approx(1, abs=0.02)
    assert (apply(text, x, phase=pb.TEST) == 1).all()
