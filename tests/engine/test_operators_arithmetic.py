"""Each layer type against a direct statement of Caffe's arithmetic, on odd sizes; backward by differences.

A new type is a row of `ROWS`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from caffe_recipes.caffe import pb
from caffe_recipes.engine.operators.operator import Forward
from tests.engine.operators.conftest import set_up

Array = NDArray[Any]
Reference = Callable[..., Sequence[Array] | Array]


def noise(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape)


@dataclass(frozen=True)
class Row:
    """A layer over `bottoms` and blobs of noise, and its tops as Caffe defines them.

    `constant` are the bottoms that Caffe does not backpropagate to; of others, and of blobs, the gradient is
    compared with differences.
    """

    text: str
    bottoms: Sequence[Array]
    expected: Reference
    tops: int = 1
    constant: Sequence[int] = ()
    tolerance: float = 1e-6
    phase: pb.Phase = field(default=pb.TRAIN)


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def mvn(across: bool, variance: bool) -> Reference:
    def expected(x: Array) -> Array:
        y = np.empty_like(x)
        for index in np.ndindex(x.shape[: 1 if across else 2]):
            y[index] = x[index] - x[index].mean()
            if variance:
                y[index] /= x[index].std() + 1e-9
        return y

    return expected


def normalize(across: bool) -> Reference:
    def expected(x: Array, scale: Array) -> Array:
        lengths = np.sqrt((x * x).sum((1, 2, 3) if across else 1, keepdims=True) + 1e-10)
        y: Array = x / lengths * scale
        return y

    return expected


def im2col(x: Array) -> Array:
    """Kernel 3 x 2, stride 2, pad 1, dilation 1 x 2, of (n, c, h, w)."""
    n, c, _, _ = x.shape
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    rows, columns = (padded.shape[2] - 3) // 2 + 1, (padded.shape[3] - 3) // 2 + 1
    y: Array = np.empty((n, c * 6, rows, columns))
    for i, (channel, kh, kw) in enumerate(np.ndindex(c, 3, 2)):
        for r, k in np.ndindex(rows, columns):
            y[:, i, r, k] = padded[:, channel, 2 * r + kh, 2 * k + 2 * kw]
    return y


def pool(x: Array, kernel: int, stride: int, pad: int, is_max: bool) -> tuple[Array, Array]:
    """Return pooled values of (n, c, h, w), and the index of each maximum."""
    n, c, h, w = x.shape
    sizes = []
    for size in (h, w):
        count = math.ceil((size + 2 * pad - kernel) / stride) + 1
        sizes.append(count - 1 if (count - 1) * stride >= size + pad else count)
    y, mask = np.empty((n, c, *sizes)), np.zeros((n, c, *sizes))
    for at in np.ndindex(*y.shape):
        top, left = (place * stride - pad for place in at[2:])
        area = (min(top + kernel, h + pad) - top) * (min(left + kernel, w + pad) - left)
        rows, columns = range(max(top, 0), min(top + kernel, h)), range(max(left, 0), min(left + kernel, w))
        places = [(r, k) for r in rows for k in columns]
        values = [x[(*at[:2], r, k)] for r, k in places]
        y[at] = max(values) if is_max else sum(values) / area
        best = places[int(np.argmax(values))]
        mask[at] = best[0] * w + best[1]
    return y, mask


def average_of_large_windows(pad: int) -> Reference:
    """Cubes of 3, or 4 with a pad of 1, and stride 2, clipped to the padded input."""

    def expected(x: Array) -> Array:
        padded = np.pad(x, ((0, 0), (0, 0), *[(pad, pad)] * 3))
        kernel = 3 + pad
        starts = range(0, 1 + 2 * pad, 2)
        parts = [
            padded[:, :, :kernel, at : at + kernel, :kernel].mean((2, 3, 4), keepdims=True) for at in starts
        ]
        return np.concatenate(parts, 3)

    return expected


def segnet_bn(x: Array, scale: Array, shift: Array) -> tuple[Array, Array, Array]:
    mean = x.mean((0, 2, 3), keepdims=True)
    variance = (x * x).mean((0, 2, 3), keepdims=True) - mean * mean
    return (x - mean) / np.sqrt(variance + 1e-9) * scale + shift, mean, variance


def segnet_upsample(x: Array, mask: Array) -> Array:
    """Twice the size, less one row; without places given twice, since differences tell nothing of those."""
    y = np.zeros((*x.shape[:2], 2 * x.shape[2] - 1, 2 * x.shape[3]))
    for n, c, h, w in np.ndindex(*x.shape):
        y[n, c].flat[int(mask[n, c, h, w])] = x[n, c, h, w]
    return y


def weighted_softmax_loss(weights: Sequence[float], x: Array, labels: Array) -> Array:
    rows = [(x[i], int(label)) for i, label in enumerate(labels)]
    losses = [weights[k] * (np.log(np.exp(row).sum()) - row[k]) for row, k in rows]
    return np.asarray(sum(losses) / len(labels))


def pyramid(is_max: bool) -> Reference:
    def expected(x: Array) -> Array:
        levels = [pool(x, 7, 7, 0, is_max)[0], pool(x, 4, 4, 1, is_max)[0], pool(x, 2, 2, 1, is_max)[0]]
        return np.concatenate([level.reshape(len(x), -1) for level in levels], 1)

    return expected


def pool_3d(x: Array) -> Array:
    y = np.empty((*x.shape[:2], 2, 2, 2))
    for at in np.ndindex(2, 2, 2):
        i, j, k = (slice(2 * place, 2 * place + 2) for place in at)
        y[:, :, *at] = x[:, :, i, j, k].max((2, 3, 4))
    return y


def conv_3d(x: Array, w: Array, b: Array) -> Array:
    y = np.empty((x.shape[0], w.shape[0], *(size - 1 for size in x.shape[2:])))
    for at in np.ndindex(y.shape[2:]):
        i, j, k = (slice(place, place + 2) for place in at)
        y[:, :, *at] = np.einsum("ncijk,ocijk->no", x[:, :, i, j, k], w) + b
    return y


def video_convolution(x: Array, w: Array, b: Array) -> Array:
    """C3D's with stride 2 and padding 1 in space, and stride 1 without padding in time."""
    padded = np.pad(x, ((0, 0), (0, 0), (0, 0), (1, 1), (1, 1)))
    counts = (x.shape[2] - w.shape[2] + 1, *((n - w.shape[3]) // 2 + 1 for n in padded.shape[3:]))
    y: Array = np.empty((len(x), len(w), *counts))
    for t, i, j in np.ndindex(*counts):
        window = padded[:, :, t : t + w.shape[2], 2 * i : 2 * i + w.shape[3], 2 * j : 2 * j + w.shape[4]]
        y[:, :, t, i, j] = np.tensordot(window, w, ([1, 2, 3, 4], [1, 2, 3, 4])) + b
    return y


def video_deconvolution(x: Array, w: Array, b: Array) -> Array:
    """C3D's with stride 2 in time and 1 in space, without padding."""
    n, _, *sides = x.shape
    spans = [(side - 1) * step + k for side, step, k in zip(sides, (2, 1, 1), w.shape[2:], strict=True)]
    y: Array = np.zeros((n, w.shape[1], *spans))
    for t, i, j in np.ndindex(*sides):
        part = np.tensordot(x[:, :, t, i, j], w, 1)
        y[:, :, 2 * t : 2 * t + w.shape[2], i : i + w.shape[3], j : j + w.shape[4]] += part
    return y + b[:, None, None, None]


def video_pooling(is_max: bool) -> Reference:
    """C3D's of frames as they are and windows of 2 x 2 of their pixels, clipped at the border."""

    def expected(x: Array) -> Array:
        y: Array = np.empty((*x.shape[:3], -(-x.shape[3] // 2), -(-x.shape[4] // 2)))
        for i, j in np.ndindex(*y.shape[3:]):
            window = x[:, :, :, 2 * i : 2 * i + 2, 2 * j : 2 * j + 2]
            y[:, :, :, i, j] = window.max((3, 4)) if is_max else window.mean((3, 4))
        return y

    return expected


def smooth_l1(a: Array, b: Array, inside: Array | float = 1.0, outside: Array | float = 1.0) -> Array:
    d = np.abs(inside * (a - b))
    return np.array(np.sum(outside * np.where(d < 1 / 4, 2 * d * d, d - 1 / 8)) / len(a))


def infogain(p: Array, labels: Array, matrix: Array) -> Array:
    losses = [
        -(matrix[0, 0, int(k)] * np.log(np.maximum(q, 1e-20))).sum() for q, k in zip(p, labels, strict=True)
    ]
    return np.array(sum(losses) / len(p))


def contrastive(legacy: bool) -> Reference:
    def expected(a: Array, b: Array, similar: Array) -> Array:
        square = ((a - b) ** 2).sum(1)
        apart = np.maximum(3 - square, 0) if legacy else np.maximum(3 - np.sqrt(square), 0) ** 2
        return np.array(np.where(similar != 0, square, apart).sum() / 2 / len(a))

    return expected


def lstm_cell(cell: Array, gates: Array, continues: Array) -> tuple[Array, Array]:
    i, f, o, g = np.split(gates, 4, -1)
    cell = continues * sigmoid(f) * cell + sigmoid(i) * np.tanh(g)
    return cell, sigmoid(o) * np.tanh(cell)


def lstm(x: Array, cont: Array, static: Array, h: Array, c: Array, *blobs: Array) -> list[Array]:
    h, c, outputs = h[0], c[0], []
    for at, keep in zip(x, cont[..., None], strict=True):
        gates = at @ blobs[0].T + blobs[1] + static @ blobs[2].T + (keep * h) @ blobs[3].T
        c, h = lstm_cell(c, gates, keep)
        outputs.append(h)
    return [np.stack(outputs), h[None], c[None]]


def rnn(x: Array, cont: Array, *blobs: Array) -> Array:
    h, outputs = np.zeros((x.shape[1], len(blobs[1]))), []
    for at, keep in zip(x, cont[..., None], strict=True):
        h = np.tanh(at @ blobs[0].T + blobs[1] + (keep * h) @ blobs[2].T)
        outputs.append(np.tanh(h @ blobs[3].T + blobs[4]))
    return np.stack(outputs)


def depthwise(x: Array, w: Array, b: Array) -> Array:
    y = np.empty((*x.shape[:2], x.shape[2] - 1, x.shape[3] - 1))
    for r, k in np.ndindex(y.shape[2:]):
        y[:, :, r, k] = (x[:, :, r : r + 2, k : k + 2] * w[:, 0]).sum((2, 3)) + b
    return y


def interp(x: Array) -> Array:
    """Twice the size less 1: the mean of neighbours is between them."""
    y = np.repeat(np.repeat(x, 2, 2), 2, 3)[:, :, :-1, :-1]
    y[:, :, 1::2] = (y[:, :, :-1:2] + y[:, :, 2::2]) / 2
    y[:, :, :, 1::2] = (y[:, :, :, :-1:2] + y[:, :, :, 2::2]) / 2
    return y


CONT = np.array([[0, 1, 1], [1, 0, 1], [1, 1, 0], [1, 1, 1]], float)
LABELS = np.array([2, 0, 2], float)
PROBABILITIES = np.abs(noise(3, 4)) / 4
VIDEO = "num_output: 2 kernel_size: 3 stride: 2 kernel_depth: 2"
PLANAR = noise(2, 2, 3, 5)

ROWS = [
    Row('type: "MVN"', [PLANAR], mvn(False, True)),
    Row('type: "MVN" mvn_param { across_channels: true }', [PLANAR], mvn(True, True)),
    Row('type: "MVN"', [noise(2, 3, 5)], lambda x: np.asarray(mvn(False, True)(x))[..., None]),
    Row('type: "Exp" exp_param { base: 1 }', [noise(3)], np.ones_like),
    *(
        Row(
            f'type: "Pooling" pooling_param {{ pool: AVE kernel_size: {3 + pad} stride: 2 pad: {pad} }}',
            [noise(1, 2, 2, 3, 2)],
            average_of_large_windows(pad),
        )
        for pad in (0, 1)
    ),
    Row('type: "MVN" mvn_param { normalize_variance: false }', [PLANAR], mvn(False, False)),
    Row('type: "Normalize"', [PLANAR], normalize(True)),
    Row('type: "Normalize" norm_param { across_spatial: false }', [PLANAR], normalize(False)),
    Row('type: "Tile" tile_param { axis: 1 tiles: 3 }', [PLANAR], lambda x: np.tile(x, (1, 3, 1, 1))),
    Row(
        'type: "BatchReindex"',
        [noise(3, 2, 5), np.array([2, 0, 0, 1, 2.0])],
        lambda x, order: x[order.astype(int)],
        constant=[1],
    ),
    Row(
        'type: "Filter"',
        [noise(5, 2, 3), noise(5), np.array([0, 0.5, 0, -1, 1.0])],
        lambda x, y, _: (x[[1, 3, 4]], y[[1, 3, 4]]),
        tops=2,
        constant=[2],
    ),
    Row(
        'type: "Embed" embed_param { num_output: 5 input_dim: 3 }',
        [np.array([[0, 2], [2, 1], [0, 0.0]])],
        lambda x, w, b: w[x.astype(int)] + b,
        constant=[0],
    ),
    Row(
        'type: "Im2col" convolution_param '
        "{ kernel_h: 3 kernel_w: 2 stride: 2 pad: 1 dilation: 1 dilation: 2 }",
        [PLANAR],
        im2col,
    ),
    Row(
        'type: "Pooling" pooling_param { kernel_size: 3 stride: 2 pad: 1 }',
        [PLANAR],
        lambda x: pool(x, 3, 2, 1, True),
        tops=2,
    ),
    Row(
        'type: "Pooling" pooling_param { kernel_size: 2 stride: 2 }',
        [PLANAR],
        lambda x: pool(x, 2, 2, 0, True),
        tops=2,
    ),
    Row(
        'type: "Pooling" pooling_param { pool: AVE kernel_size: 4 stride: 3 pad: 1 }',
        [PLANAR],
        lambda x: pool(x, 4, 3, 1, False)[:1],
    ),
    Row('type: "Pooling" pooling_param { kernel_size: 2 stride: 2 }', [noise(2, 3, 4, 4, 4)], pool_3d),
    Row('type: "SPP" spp_param { pyramid_height: 3 }', [noise(2, 3, 7, 7)], pyramid(True)),
    Row('type: "SPP" spp_param { pyramid_height: 3 pool: AVE }', [noise(2, 3, 7, 7)], pyramid(False)),
    Row(
        'type: "Convolution" convolution_param { num_output: 2 kernel_size: 2 }',
        [noise(1, 3, 3, 4, 5)],
        conv_3d,
    ),
    *(
        Row(
            f'type: "Convolution3D" {block} {{ {VIDEO} pad: 1 }}',
            [noise(1, 2, 3, 4, 5)],
            video_convolution,
        )
        for block in ("convolution_param", "convolution3d_param")
    ),
    Row(
        'type: "Deconvolution3D" convolution_param { num_output: 2 kernel_size: 2 kernel_depth: 3 '
        "temporal_stride: 2 }",
        [noise(1, 3, 2, 2, 3)],
        video_deconvolution,
    ),
    *(
        Row(
            f'type: "Pooling3D" {block} {{ {method} kernel_size: 2 kernel_depth: 1 stride: 2 }}',
            [noise(1, 2, 2, 3, 5)],
            video_pooling(is_max),
        )
        for block, method, is_max in (("pooling_param", "", True), ("pooling3d_param", "pool: AVE", False))
    ),
    Row('type: "Gather"', [noise(2, 3)], lambda x: x),
    Row('type: "Parameter" parameter_param { shape { dim: 3 dim: 5 } }', [], lambda w: w),
    Row('type: "SpatialDropout" dropout_param { dropout_ratio: 0.5 }', [PLANAR], lambda x: x, phase=pb.TEST),
    Row(
        'type: "SmoothL1Loss" loss_weight: 1 smooth_l1_loss_param { sigma: 2 }',
        [noise(3, 5), noise(3, 5, seed=1)],
        smooth_l1,
    ),
    Row(
        'type: "SmoothL1Loss" loss_weight: 1 smooth_l1_loss_param { sigma: 2 }',
        [noise(3, 5, seed=i) for i in range(4)],
        smooth_l1,
        constant=[2, 3],
    ),
    Row(
        'type: "SmoothL1Loss" loss_weight: 1 smooth_l1_loss_param { sigma: 0 }',
        [noise(3, 5), noise(3, 5, seed=1)],
        lambda a, b: 0 * (a - b).sum(),
    ),
    Row('type: "InfogainLoss"', [PROBABILITIES, LABELS, noise(1, 1, 4, 4)], infogain, constant=[1, 2]),
    *(
        Row(
            'type: "ContrastiveLoss" '
            f"contrastive_loss_param {{ margin: 3 legacy_version: {str(legacy).lower()} }} "
            "loss_param { normalization: NONE }",  # which it does not read
            [noise(5, 3), noise(5, 3, seed=1), np.array([1, 0, 1, 0, 0.0])],
            contrastive(legacy),
            constant=[2],
            tolerance=1e-3,
        )
        for legacy in (False, True)
    ),
    Row(
        'type: "LSTM" recurrent_param { num_output: 2 expose_hidden: true }',
        [noise(4, 3, 5), CONT, noise(3, 7), noise(1, 3, 2), noise(1, 3, 2, seed=1)],
        lstm,
        tops=3,  # of which the states pass no gradient on
        constant=[1, 3, 4],
    ),
    *(
        Row(
            f'type: "{name}" convolution_param {{ num_output: 2 kernel_size: 2 group: 2 }}',
            [PLANAR],
            depthwise,
        )
        for name in ("DepthwiseConvolution", "ConvolutionDepthwise")
    ),
    Row('type: "ReLU6"', [4 * PLANAR], lambda x: np.minimum(np.maximum(x, 0), 6)),
    Row('type: "Clip" clip_param { min: -1 max: 0.5 }', [PLANAR], lambda x: np.clip(x, -1, 0.5)),
    Row('type: "Swish" swish_param { beta: 2 }', [PLANAR], lambda x: x * sigmoid(2 * x)),
    Row(
        'type: "ShuffleChannel" shuffle_channel_param { group: 3 }',
        [noise(2, 6, 3, 1)],
        lambda x: x[:, [0, 2, 4, 1, 3, 5]],
    ),
    Row(
        'type: "Axpy"',
        [noise(2, 2, 1, 1), PLANAR, PLANAR[:, ::-1].copy()],
        lambda a, x, y: a * x + y,
    ),
    Row('type: "Scatter"', [PLANAR, noise(2)], lambda *xs: xs, tops=2),
    Row('type: "Interp" interp_param { zoom_factor: 2 }', [PLANAR], interp),
    Row(
        'type: "Pooling" pooling_param { kernel_size: 2 stride: 2 ceil_mode: false }',
        [PLANAR],
        lambda x: pool(x, 2, 2, 0, True)[0][:, :, :1, :2],
    ),
    Row(
        'type: "BN" bn_param { scale_filler { type: "constant" value: 1 } }',
        [PLANAR],
        segnet_bn,
        tops=3,
    ),
    Row(
        'type: "BN" bn_param { bn_mode: INFERENCE }',
        [PLANAR],
        lambda x, scale, shift: x * scale + shift,
    ),
    Row(
        'type: "Upsample" upsample_param { scale: 2 pad_out_h: true }',
        [noise(1, 2, 2, 3), np.array([[[[0, 3, 17], [9, 4, 1]], [[5, 4, 3], [2, 1, 0.0]]]])],
        segnet_upsample,
        constant=[1],
    ),
    *(
        Row(
            f'type: "SoftmaxWithLoss" loss_param {{ {given} }}',
            [noise(4, 3), np.array([0, 2, 1, 2.0])],
            partial(weighted_softmax_loss, weights),
            constant=[1],
        )
        for given, weights in (
            (
                "weight_by_label_freqs: true class_weighting: 0.5 class_weighting: 2 class_weighting: 3",
                (0.5, 2, 3),
            ),
            ("weight_by_label_freqs: false class_weighting: 2", (1, 1, 1)),
        )
    ),
    Row('type: "RNN" recurrent_param { num_output: 2 }', [noise(4, 3, 5), CONT], rnn, constant=[1]),
    Row(
        'type: "LSTMUnit"',
        [noise(1, 3, 2), noise(1, 3, 8), np.array([[0, 1, 1.0]])],
        lambda cell, gates, cont: lstm_cell(cell, gates, cont[..., None]),
        tops=2,
        constant=[2],
    ),
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.text.split('"')[1])
def test_a_type_computes_what_caffe_does_and_its_gradient(row: Row) -> None:
    tensors = [torch.from_numpy(np.asarray(bottom, np.float64)) for bottom in row.bottoms]
    shapes = [tuple(tensor.shape) for tensor in tensors]

    def ready() -> tuple[Forward, list[tuple[int, ...]]]:  # a recurrent layer keeps its state
        return set_up(row.text, *shapes, tops=row.tops, phase=row.phase)

    blobs = [torch.from_numpy(noise(*shape, seed=9 + i)) for i, shape in enumerate(ready()[1])]
    tops = ready()[0](tensors, blobs)
    expected = row.expected(*(tensor.numpy() for tensor in [*tensors, *blobs]))
    for top, wanted in zip(
        tops, [expected] if isinstance(expected, np.ndarray | float) else expected, strict=True
    ):
        assert top.shape == np.shape(wanted)
        np.testing.assert_allclose(top.numpy(), wanted, rtol=1e-9, atol=1e-9)

    for index, tensor in enumerate([*tensors, *blobs]):
        tensor.requires_grad_(index not in row.constant)

    def differentiable(*values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        found = ready()[0](values[: len(tensors)], values[len(tensors) :])
        return tuple(top for top in found if top.requires_grad)

    assert torch.autograd.gradcheck(differentiable, (*tensors, *blobs), atol=1e-5, rtol=row.tolerance)


def test_a_recurrent_layer_goes_on_from_its_last_batch_unless_a_sequence_starts() -> None:
    text = 'type: "RNN" recurrent_param { num_output: 2 }'
    x, rest = noise(2, 1, 3), noise(2, 1, 3, seed=1)
    blobs = [torch.from_numpy(noise(*s)) for s in [(2, 3), (2,), (2, 2), (2, 2), (2,)]]
    forward, _ = set_up(text, (2, 1, 3), (2, 1))
    whole = rnn(np.concatenate([x, rest]), np.ones((4, 1)), *(blob.numpy() for blob in blobs))
    one = torch.ones(2, 1, dtype=torch.float64)
    parts = [forward([torch.from_numpy(part), one], blobs)[0].numpy() for part in (x, rest)]
    np.testing.assert_allclose(np.concatenate(parts), whole, rtol=1e-9)
    again = forward([torch.from_numpy(x), torch.tensor([[0.0], [1.0]])], blobs)[0].numpy()
    np.testing.assert_allclose(again, whole[:2], rtol=1e-9)


def test_a_recurrent_layer_keeps_its_states_through_batches_of_other_sizes_as_caffes_blobs_do() -> None:
    blobs = [torch.from_numpy(noise(*s)) for s in [(2, 3), (2,), (2, 2), (2, 2), (2,)]]
    forward, _ = set_up('type: "RNN" recurrent_param { num_output: 2 }', (2, 2, 3), (2, 2))

    def run(*streams: int) -> np.ndarray:
        x = torch.from_numpy(noise(2, 4, 3)[:, list(streams)])
        return forward([x, torch.ones(2, len(streams), dtype=torch.float64)], blobs)[0].numpy()

    alone = [
        rnn(np.tile(noise(2, 4, 3)[:, [s]], (3, 1, 1)), np.ones((6, 1)), *(b.numpy() for b in blobs))
        for s in range(4)
    ]
    np.testing.assert_allclose(run(0, 1), np.concatenate([alone[0][:2], alone[1][:2]], 1), rtol=1e-9)
    np.testing.assert_allclose(run(0), alone[0][2:4], rtol=1e-9)  # the first of two continues
    np.testing.assert_allclose(run(0, 1), np.concatenate([alone[0][4:], alone[1][2:4]], 1), rtol=1e-9)
    np.testing.assert_allclose(run(0, 1, 2), np.concatenate([a[:2] for a in alone[:3]], 1), rtol=1e-9)


def test_spatial_dropout_drops_whole_channels() -> None:
    forward, _ = set_up('type: "SpatialDropout" dropout_param { dropout_ratio: 0.5 }', (8, 8, 3, 5))
    (y,) = forward([torch.ones(8, 8, 3, 5)], [])
    assert (y == y[:, :, :1, :1]).all() and set(y.unique().tolist()) == {0.0, 2.0}


def test_the_variance_of_equal_values_gives_no_nan() -> None:
    forward, _ = set_up('type: "MVN"', (1, 1, 3, 3))
    x = torch.ones(1, 1, 3, 3, requires_grad=True)
    forward([x], [])[0].sum().backward()
    assert x.grad is not None and x.grad.isfinite().all()


def test_a_pair_of_equal_points_has_a_finite_gradient() -> None:
    forward, _ = set_up('type: "ContrastiveLoss"', (1, 3), (1, 3), (1,))
    a = torch.ones(1, 3, requires_grad=True)
    (loss,) = forward([a, torch.ones(1, 3), torch.zeros(1)], [])
    loss.backward()
    assert float(loss.detach()) == 0.5 and a.grad is not None and a.grad.isfinite().all()
