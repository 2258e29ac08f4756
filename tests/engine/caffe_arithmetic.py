"""The arithmetic of Caffe's layers, stated directly in numpy."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def spread(operand: Array, x: Array, axis: int) -> Array:
    """Return an operand with trailing axes, as it lies along `x` from an axis on."""
    return operand.reshape(*operand.shape, *[1] * (x.ndim - axis - operand.ndim))


def convolve(
    x: Array, w: Array, b: Array, stride: int = 1, pad: int = 0, dilation: int = 1, group: int = 1
) -> Array:
    """Return a convolution over any number of axes, place by place."""
    axes = x.ndim - 2
    x = np.pad(x, [(0, 0), (0, 0), *[(pad, pad)] * axes])
    spans = [dilation * (side - 1) + 1 for side in w.shape[2:]]
    sizes = [(size - span) // stride + 1 for size, span in zip(x.shape[2:], spans, strict=True)]
    y = np.empty((len(x), len(w), *sizes))
    for at in np.ndindex(*sizes):
        cuts = tuple(
            slice(stride * place, stride * place + span, dilation)
            for place, span in zip(at, spans, strict=True)
        )
        seen = x[(slice(None), slice(None), *cuts)].reshape(len(x), group, -1)
        kernels = w.reshape(group, len(w) // group, -1)
        y[(slice(None), slice(None), *at)] = np.einsum("ngk,gok->ngo", seen, kernels).reshape(len(x), -1) + b
    return y


def deconvolve(x: Array, w: Array, b: Array, stride: int, pad: int = 0, group: int = 1) -> Array:
    """Return the transpose of a convolution: each value of x paints a kernel."""
    parts, outputs = x.shape[1] // group, w.shape[1]
    sizes = [stride * (size - 1) + side for size, side in zip(x.shape[2:], w.shape[2:], strict=True)]
    y = np.zeros((len(x), group * outputs, *sizes))
    for n, channel in np.ndindex(*x.shape[:2]):
        first = channel // parts * outputs
        for at in np.ndindex(*x.shape[2:]):
            cuts = tuple(slice(stride * p, stride * p + k) for p, k in zip(at, w.shape[2:], strict=True))
            y[(n, slice(first, first + outputs), *cuts)] += x[(n, channel, *at)] * w[channel]
    inner = tuple(slice(pad, size - pad) for size in sizes)
    return np.asarray(y[(slice(None), slice(None), *inner)] + spread(b, y, 1))


def pool(
    kernel: tuple[int, int], stride: int, pad: int, is_max: bool
) -> Callable[[Array], tuple[Array, Array]]:
    """Return a pooling with a mask of the places of maxima."""

    def expected(x: Array) -> tuple[Array, Array]:
        sizes = []
        for size, side in zip(x.shape[2:], kernel, strict=True):
            count = max(0, math.ceil((size + 2 * pad - side) / stride)) + 1
            sizes.append(count - 1 if pad and (count - 1) * stride >= size + pad else count)
        y, mask = np.empty((*x.shape[:2], *sizes)), np.empty((*x.shape[:2], *sizes))
        for n, c, i, j in np.ndindex(*y.shape):
            ends = [
                min(p * stride - pad + k, s + pad)
                for p, k, s in zip((i, j), kernel, x.shape[2:], strict=True)
            ]
            starts = [p * stride - pad for p in (i, j)]
            area = (ends[0] - starts[0]) * (ends[1] - starts[1])
            rows = range(max(starts[0], 0), min(ends[0], x.shape[2]))
            columns = range(max(starts[1], 0), min(ends[1], x.shape[3]))
            places = list(product(rows, columns))
            values = [x[n, c, row, column] for row, column in places]
            y[n, c, i, j] = max(values) if is_max else sum(values) / area
            best = places[int(np.argmax(values))]
            mask[n, c, i, j] = best[0] * x.shape[3] + best[1]
        return y, mask

    return expected


def softmax(x: Array, axis: int = 1) -> Array:
    e = np.exp(x - x.max(axis, keepdims=True))
    return np.asarray(e / e.sum(axis, keepdims=True))


def log_losses(x: Array, labels: Array) -> Array:
    """Return -log softmax at the label for each label."""
    rows = np.moveaxis(x, 1, -1).reshape(-1, x.shape[1])
    return np.asarray(-np.log(softmax(rows)[np.arange(len(rows)), labels.reshape(-1).astype(int)]))


def ignoring(x: Array, labels: Array) -> Array:
    """Return the mean loss without the labels 0."""
    kept = labels.reshape(-1) != 0
    return np.asarray((log_losses(x, labels) * kept).sum() / max(1, kept.sum()))


def across(x: Array, size: int, alpha: float, beta: float, k: float) -> Array:
    squares = np.pad(x * x, ((0, 0), (size // 2, size // 2), (0, 0), (0, 0)))
    sums = sum(squares[:, start : start + x.shape[1]] for start in range(size))
    return np.asarray(x * (k + alpha / size * sums) ** -beta)


def within(x: Array, size: int, alpha: float, beta: float) -> Array:
    means = pool((size, size), 1, (size - 1) // 2, False)(x * x)[0]
    return np.asarray(x * (1 + alpha * means) ** -beta)


def standardize(x: Array, *_: Array) -> Array:
    axes = (0, *range(2, x.ndim))
    return np.asarray((x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + 1e-5))


def by_lengths(x: Array, scale: Array, is_spatial: bool) -> Array:
    lengths = np.sqrt((x * x).sum((1, 2, 3) if is_spatial else 1, keepdims=True) + 1e-10)
    return np.asarray(x / lengths * spread(scale, x, 1) if scale.ndim else x / lengths * scale)


def hinge(norm: int) -> Callable[[Array, Array], Array]:
    def expected(x: Array, labels: Array) -> Array:
        signs = np.where(np.arange(x.shape[1]) == labels[:, None], -1, 1)
        return np.asarray((np.maximum(0, 1 + signs * x) ** norm).sum() / len(x))

    return expected


def cross_entropy(x: Array, target: Array) -> Array:
    p = 1 / (1 + np.exp(-x))
    return np.asarray(-(target * np.log(p) + (1 - target) * np.log(1 - p)).sum() / len(x))


def accuracy(top_k: int) -> Callable[[Array, Array], Array]:
    def expected(x: Array, labels: Array) -> Array:
        rows = np.moveaxis(x, 1, -1).reshape(-1, x.shape[1])
        best = np.argsort(-rows, 1)[:, :top_k]
        return np.asarray((best == labels.reshape(-1, 1)).any(1).mean())

    return expected


def segmentation(x: Array, labels: Array) -> Array:
    """Return the accuracy, the mean recall of the classes that occur, and the mean IoU of all."""
    found = x.argmax(1)
    hits = np.array([((found == k) & (labels == k)).sum() for k in range(x.shape[1])])
    actual = np.array([(labels == k).sum() for k in range(x.shape[1])])
    union = np.array([((found == k) | (labels == k)).sum() for k in range(x.shape[1])])
    recall = np.mean([h / a for h, a in zip(hits, actual, strict=True) if a])
    overlap = np.mean([h / u if u else 1.0 for h, u in zip(hits, union, strict=True)])
    return np.array([[[[(found == labels).mean(), recall, overlap]]]])


def best(count: int, axis: int | None, has_values: bool) -> Callable[[Array], Array]:
    def expected(x: Array) -> Array:
        rows = x.reshape(len(x), -1) if axis is None else x
        along = 1 if axis is None else axis
        order = np.argsort(-rows, along).take(range(count), along)
        values = np.take_along_axis(rows, order, along)
        if axis is not None:
            return values if has_values else order
        both = np.stack([order, values] if has_values else [order], 1)
        return both.reshape(*both.shape, *[1] * (x.ndim - 3))

    return expected


def rnn(x: Array, cont: Array, static: Array, *blobs: Array) -> Array:
    h, outputs = np.zeros((x.shape[1], len(blobs[1]))), []
    for at, keep in zip(x, cont[..., None], strict=True):
        h = np.tanh(at @ blobs[0].T + blobs[1] + static @ blobs[2].T + (keep * h) @ blobs[3].T)
        outputs.append(np.tanh(h @ blobs[4].T + blobs[5]))
    return np.stack(outputs)


def lstm(x: Array, cont: Array, *blobs: Array) -> Array:
    h, c, outputs = np.zeros((x.shape[1], len(blobs[1]) // 4)), np.zeros((x.shape[1], len(blobs[1]) // 4)), []
    for at, keep in zip(x, cont[..., None], strict=True):
        i, f, o, g = np.split(at @ blobs[0].T + blobs[1] + (keep * h) @ blobs[2].T, 4, 1)
        i, f, o = (1 / (1 + np.exp(-gate)) for gate in (i, f, o))
        c = keep * f * c + i * np.tanh(g)
        h = o * np.tanh(c)
        outputs.append(h)
    return np.stack(outputs)
