"""Elementwise operators against plain numpy loops or values worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.engine.operators.conftest import apply, noise, set_up


def test_max_takes_coefficients_and_ignores_them() -> None:
    a, b = noise(2, 3), noise(2, 3, seed=1)
    text = 'type: "Eltwise" eltwise_param { operation: MAX coeff: 2 coeff: 3 }'
    assert apply(text, a, b) == pytest.approx(np.maximum(a.numpy(), b.numpy()))


def test_scale_and_bias_lie_along_their_axis() -> None:
    x, factor, bias = noise(2, 3, 4, 5), noise(3, 4, seed=1), noise(3, 4, seed=2)
    text = 'type: "Scale" scale_param { axis: 1 num_axes: 2 bias_term: true }'
    want = x.numpy() * factor.numpy()[:, :, None] + bias.numpy()[:, :, None]
    assert apply(text, x, blobs=[factor, bias]) == pytest.approx(want, abs=1e-6)
    text = 'type: "Bias" bias_param { axis: 0 }'
    row = noise(2, seed=3)
    assert apply(text, x, blobs=[row]) == pytest.approx(
        x.numpy() + row.numpy()[:, None, None, None], abs=1e-6
    )


def test_scale_takes_its_factor_from_a_second_bottom() -> None:
    x, factor = noise(2, 3, 4), noise(2, 3, seed=1)
    got = apply('type: "Scale" scale_param { axis: 0 }', x, factor)
    assert got == pytest.approx(x.numpy() * factor.numpy()[:, :, None], abs=1e-6)


def test_eltwise() -> None:
    a, b, c = (noise(2, 3, seed=i) for i in range(3))
    x, y, z = a.numpy(), b.numpy(), c.numpy()
    assert apply('type: "Eltwise"', a, b, c) == pytest.approx(x + y + z, abs=1e-6)
    weighted = 'type: "Eltwise" eltwise_param { coeff: 1 coeff: -2 }'
    assert apply(weighted, a, b) == pytest.approx(x - 2 * y, abs=1e-6)
    assert apply('type: "Eltwise" eltwise_param { operation: PROD }', a, b) == pytest.approx(x * y, abs=1e-6)
    assert apply('type: "Eltwise" eltwise_param { operation: MAX }', a, b) == pytest.approx(np.maximum(x, y))


def test_the_gradient_of_equal_maxima_goes_to_the_later_bottom() -> None:
    forward, _ = set_up('type: "Eltwise" eltwise_param { operation: MAX }', (3,), (3,))
    a, b = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
    forward([a, b], [])[0].sum().backward()
    assert a.grad is not None and b.grad is not None
    assert (a.grad.tolist(), b.grad.tolist()) == ([0, 0, 0], [1, 1, 1])


def test_of_three_equal_maxima_the_second_has_the_gradient() -> None:
    forward, _ = set_up('type: "Eltwise" eltwise_param { operation: MAX }', (3,), (3,), (3,))
    xs = [torch.ones(3, requires_grad=True) for _ in range(3)]
    forward(xs, [])[0].sum().backward()
    assert [x.grad.tolist() for x in xs if x.grad is not None] == [[0] * 3, [1] * 3, [0] * 3]
