"""Convolutions against plain numpy loops or values worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.engine.operators.conftest import Array, apply, noise, set_up


def correlate(x: Array, w: Array, stride: int, pad: int, dilation: int, group: int) -> Array:
    """Convolve as Caffe defines it, one product at a time."""
    n, c, height, width = x.shape
    outputs, per_group, kh, kw = w.shape
    padded = np.zeros((n, c, height + 2 * pad, width + 2 * pad), np.float64)
    padded[:, :, pad : pad + height, pad : pad + width] = x
    oh = (height + 2 * pad - dilation * (kh - 1) - 1) // stride + 1
    ow = (width + 2 * pad - dilation * (kw - 1) - 1) // stride + 1
    y = np.zeros((n, outputs, oh, ow))
    for o in range(outputs):
        first = (o // (outputs // group)) * per_group
        for i, j, k, m, q in np.ndindex(oh, ow, per_group, kh, kw):
            row, column = i * stride + m * dilation, j * stride + q * dilation
            y[:, o, i, j] += padded[:, first + k, row, column] * w[o, k, m, q]
    return y.astype(np.float32)


@pytest.mark.parametrize(
    ("stride", "pad", "dilation", "group"), [(1, 0, 1, 1), (2, 1, 1, 1), (1, 2, 2, 2), (3, 0, 1, 4)]
)
def test_convolution(stride: int, pad: int, dilation: int, group: int) -> None:
    x, w, b = noise(2, 4, 7, 6), noise(8, 4 // group, 3, 3, seed=1), noise(8, seed=2)
    text = (
        f'type: "Convolution" convolution_param {{ num_output: 8 kernel_size: 3 stride: {stride} '
        f"pad: {pad} dilation: {dilation} group: {group} }}"
    )
    want = correlate(x.numpy(), w.numpy(), stride, pad, dilation, group) + b.numpy()[:, None, None]
    assert apply(text, x, blobs=[w, b]) == pytest.approx(want, abs=1e-4)


def test_convolution_takes_a_kernel_stride_and_pad_per_axis() -> None:
    text = (
        'type: "Convolution" convolution_param { num_output: 2 kernel_h: 1 kernel_w: 3 pad_h: 0 pad_w: 1 '
        "stride_h: 2 stride_w: 1 bias_term: false }"
    )
    x, w = noise(1, 3, 5, 4), noise(2, 3, 1, 3, seed=1)
    want = np.zeros((1, 2, 3, 4), np.float32)
    padded = np.pad(x.numpy(), ((0, 0), (0, 0), (0, 0), (1, 1)))
    for o, i, j in np.ndindex(2, 3, 4):
        want[0, o, i, j] = (padded[0, :, 2 * i, j : j + 3] * w.numpy()[o, :, 0]).sum()
    assert apply(text, x, blobs=[w]) == pytest.approx(want, abs=1e-5)


def test_each_bottom_of_a_convolution_has_a_top() -> None:
    text = 'type: "Convolution" convolution_param { num_output: 2 kernel_size: 1 bias_term: false }'
    forward, (weights,) = set_up(text, (1, 3, 2, 2), (1, 3, 2, 2), tops=2)
    w = noise(*weights)
    a, b = forward([noise(1, 3, 2, 2), noise(1, 3, 2, 2, seed=3)], [w])
    assert torch.equal(b, forward([noise(1, 3, 2, 2, seed=3)], [w])[0])
    assert not torch.equal(a, b)


@pytest.mark.parametrize("axis", [2, 3, -1])
def test_a_convolution_takes_all_axes_before_its_channels_as_images(axis: int) -> None:
    x, w, b = noise(2, 3, 4, 6), noise(8, 2 if axis == 2 else 3, *[1] * (axis == 2), seed=1), noise(8, seed=2)
    text = f'type: "Convolution" convolution_param {{ num_output: 8 group: 2 kernel_size: 1 axis: {axis} }}'
    _, (weights, _) = set_up(text, (2, 3, 4, 6))
    assert weights == tuple(w.shape)
    channels = np.moveaxis(x.numpy(), axis, -1)
    half = channels.shape[-1] // 2
    matrix = w.numpy().reshape(8, half)
    halves = [channels[..., g * half : (g + 1) * half] @ matrix[4 * g : 4 * g + 4].T for g in (0, 1)]
    want = np.moveaxis(np.concatenate(halves, -1) + b.numpy(), -1, axis)
    assert apply(text, x, blobs=[w, b]) == pytest.approx(want, abs=1e-5)
