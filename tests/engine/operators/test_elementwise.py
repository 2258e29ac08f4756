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
