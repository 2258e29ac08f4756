"""Inner products against plain numpy loops or values worked out by hand."""

from __future__ import annotations

import pytest
import torch

from tests.engine.operators.conftest import apply, noise


@pytest.mark.parametrize("transpose", [False, True])
def test_inner_product(transpose: bool) -> None:
    x, w, b = noise(2, 3, 4), noise(5, 12, seed=1), noise(5, seed=2)
    text = f'type: "InnerProduct" inner_product_param {{ num_output: 5 transpose: {str(transpose).lower()} }}'
    want = x.numpy().reshape(2, 12) @ w.numpy().T + b.numpy()
    got = apply(text, x, blobs=[w.t().contiguous() if transpose else w, b])
    assert got == pytest.approx(want, abs=1e-5)


def test_inner_product_from_a_later_axis_keeps_those_before() -> None:
    x, w = noise(2, 3, 4), noise(5, 4, seed=1)
    text = 'type: "InnerProduct" inner_product_param { num_output: 5 axis: 2 bias_term: false }'
    assert apply(text, x, blobs=[w]) == pytest.approx(x.numpy() @ w.numpy().T, abs=1e-5)


def test_inner_product_sees_the_channels_first_whatever_the_layout() -> None:
    x = noise(2, 3, 4, 5)
    w = noise(6, 60, seed=1)
    text = 'type: "InnerProduct" inner_product_param { num_output: 6 bias_term: false }'
    last = x.contiguous(memory_format=torch.channels_last)
    assert apply(text, last, blobs=[w]) == pytest.approx(x.numpy().reshape(2, 60) @ w.numpy().T, abs=1e-4)
