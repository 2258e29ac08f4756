"""Pooling against plain numpy loops or values worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.engine.operators.conftest import Array, apply, noise


def pool(x: Array, kernel: int, stride: int, pad: int, average: bool) -> Array:
    """Pool as Caffe does: rounded up, clipped to the padded input, AVE divided by the clipped window."""
    n, c, height, width = x.shape

    def count(size: int) -> int:
        result = math.ceil((size + 2 * pad - kernel) / stride) + 1
        return result - 1 if pad and (result - 1) * stride >= size + pad else result

    y = np.zeros((n, c, count(height), count(width)), np.float32)
    for i, j in np.ndindex(y.shape[2:]):
        top, left = i * stride - pad, j * stride - pad
        bottom, right = min(top + kernel, height + pad), min(left + kernel, width + pad)
        size = (bottom - top) * (right - left)
        part = x[:, :, max(top, 0) : min(bottom, height), max(left, 0) : min(right, width)]
        y[:, :, i, j] = part.sum((2, 3)) / size if average else part.max((2, 3))
    return y


@pytest.mark.parametrize("average", [False, True])
@pytest.mark.parametrize(
    ("size", "kernel", "stride", "pad"),
    [(6, 2, 2, 0), (7, 2, 2, 0), (7, 3, 2, 0), (6, 3, 2, 1), (5, 3, 2, 1), (8, 5, 3, 2), (7, 3, 1, 2)],
)
def test_pooling(size: int, kernel: int, stride: int, pad: int, average: bool) -> None:
    x = noise(2, 3, size, size + 1)
    text = (
        f'type: "Pooling" pooling_param {{ pool: {"AVE" if average else "MAX"} kernel_size: {kernel} '
        f"stride: {stride} pad: {pad} }}"
    )
    assert apply(text, x) == pytest.approx(pool(x.numpy(), kernel, stride, pad, average), abs=1e-5)


def test_global_pooling_takes_the_whole_plane() -> None:
    x = noise(2, 3, 4, 5)
    text = 'type: "Pooling" pooling_param { pool: AVE global_pooling: true }'
    assert apply(text, x) == pytest.approx(x.numpy().mean((2, 3), keepdims=True), abs=1e-6)


def test_a_window_a_little_larger_than_its_padded_input_is_clipped() -> None:
    x = noise(1, 2, 2, 2)
    text = 'type: "Pooling" pooling_param {{ pool: {} kernel_size: 3 stride: 2 }}'
    assert apply(text.format("MAX"), x) == pytest.approx(x.numpy().max((2, 3), keepdims=True))
    assert apply(text.format("AVE"), x) == pytest.approx(x.numpy().mean((2, 3), keepdims=True))
