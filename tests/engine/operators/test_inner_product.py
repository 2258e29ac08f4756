"""Inner products against plain numpy loops or values worked out by hand."""

from __future__ import annotations

import pytest
import torch

from tests.engine.operators.conftest import apply, noise


def test_inner_product_sees_the_channels_first_whatever_the_layout() -> None:
    x = noise(2, 3, 4, 5)
    w = noise(6, 60, seed=1)
    text = 'type: "InnerProduct" inner_product_param { num_output: 6 bias_term: false }'
    last = x.contiguous(memory_format=torch.channels_last)
    assert apply(text, last, blobs=[w]) == pytest.approx(x.numpy().reshape(2, 60) @ w.numpy().T, abs=1e-4)
