"""Each layer's arithmetic against plain numpy loops or values worked out by hand."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.prototxt import parse_prototxt
from caffe_recipes.caffe.shapes import infer_shapes
from caffe_recipes.engine.net import LAYERS
from caffe_recipes.engine.ops import Forward, require_known_shapes
from caffe_recipes.errors import InputError, PrototxtError

Array = NDArray[np.float32]


def set_up(
    text: str, *bottoms: tuple[int, ...], tops: int = 1, phase: pb.Phase = pb.TRAIN
) -> tuple[Forward, list[tuple[int, ...]]]:
    """Set a layer up over bottoms of these shapes; give its forward function and its blobs' shapes."""
    layer = parse_prototxt(f'name: "l" {text}', pb.LayerParameter)
    layer.phase = phase
    net = pb.NetParameter()
    for i, shape in enumerate(bottoms):
        source = net.layer.add(name=f"in{i}", type="Input", top=[f"b{i}"])
        source.input_param.shape.add(dim=shape)
        layer.bottom.append(f"b{i}")
    layer.top.extend(f"t{i}" for i in range(tops))
    net.layer.add().CopyFrom(layer)
    shapes = require_known_shapes(infer_shapes(net, phase).layers[-1])
    return LAYERS[layer.type](layer, shapes), list(shapes.learned)


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape, np.float32))


def apply(text: str, *bottoms: Tensor, blobs: Sequence[Tensor] = (), phase: pb.Phase = pb.TRAIN) -> Array:
    forward, _ = set_up(text, *(tuple(b.shape) for b in bottoms), phase=phase)
    return np.asarray(forward(list(bottoms), list(blobs))[0].detach().numpy())


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


def test_deconvolution_is_the_transpose_of_convolution() -> None:
    w = noise(4, 3, 3, 3)  # of a convolution from 3 to 4 channels
    down, _ = set_up(
        'type: "Convolution" convolution_param '
        "{ num_output: 4 kernel_size: 3 stride: 2 pad: 1 bias_term: false }",
        (1, 3, 7, 7),
    )
    up, (weights,) = set_up(
        'type: "Deconvolution" convolution_param '
        "{ num_output: 3 kernel_size: 3 stride: 2 pad: 1 bias_term: false }",
        (1, 4, 4, 4),
    )
    assert weights == (4, 3, 3, 3)
    x, y = noise(1, 3, 7, 7, seed=1), noise(1, 4, 4, 4, seed=2)
    assert float((down([x], [w])[0] * y).sum()) == pytest.approx(float((x * up([y], [w])[0]).sum()), rel=1e-4)


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


def test_lrn_across_channels() -> None:
    x = noise(2, 7, 3, 3).numpy()
    want = np.empty_like(x)
    for c in range(7):
        squares = (x[:, max(0, c - 2) : c + 3] ** 2).sum(1)
        want[:, c] = x[:, c] * (2 + 0.3 / 5 * squares) ** -0.75
    text = 'type: "LRN" lrn_param { local_size: 5 alpha: 0.3 beta: 0.75 k: 2 }'
    assert apply(text, torch.from_numpy(x)) == pytest.approx(want, abs=1e-5)


def test_lrn_within_a_channel() -> None:
    x = noise(1, 2, 5, 5).numpy()
    want = np.empty_like(x)
    for i, j in np.ndindex(5, 5):
        squares = (x[:, :, max(0, i - 1) : i + 2, max(0, j - 1) : j + 2] ** 2).sum((2, 3))
        want[:, :, i, j] = x[:, :, i, j] * (1 + 0.5 / 9 * squares) ** -0.75
    text = 'type: "LRN" lrn_param { local_size: 3 alpha: 0.5 norm_region: WITHIN_CHANNEL }'
    assert apply(text, torch.from_numpy(x)) == pytest.approx(want, abs=1e-5)


def test_batch_norm_normalises_by_the_batch_and_keeps_sums_of_statistics() -> None:
    x = noise(4, 3, 5, 5) * 2 + 1
    blobs = [torch.ones(3), torch.ones(3), torch.full((1,), 2.0)]
    text = 'type: "BatchNorm" batch_norm_param { moving_average_fraction: 0.9 }'
    got = apply(text, x, blobs=blobs)
    values = x.numpy().transpose(1, 0, 2, 3).reshape(3, -1).astype(np.float64)
    mean, variance = values.mean(1), values.var(1)
    want = (x.numpy() - mean[:, None, None]) / np.sqrt(variance + 1e-5)[:, None, None]
    assert got == pytest.approx(want, abs=1e-5)
    assert blobs[0].numpy() == pytest.approx(0.9 + mean, rel=1e-5)
    assert blobs[1].numpy() == pytest.approx(0.9 + variance * 100 / 99, rel=1e-5)
    assert float(blobs[2]) == pytest.approx(0.9 * 2 + 1)


@pytest.mark.parametrize("layout", [torch.channels_last, torch.contiguous_format])
def test_batch_norm_sums_many_values_without_losing_digits(layout: torch.memory_format) -> None:
    x = (noise(8, 6, 56, 56) + 3).contiguous(memory_format=layout)
    blobs = [torch.zeros(6), torch.zeros(6), torch.zeros(1)]
    apply('type: "BatchNorm"', x, blobs=blobs)
    values = x.double()
    assert blobs[0].numpy() == pytest.approx(values.mean((0, 2, 3)).numpy(), abs=5e-7)
    assert blobs[1].numpy() == pytest.approx(values.var((0, 2, 3)).numpy(), abs=5e-7)


@pytest.mark.parametrize("layout", [torch.channels_last, torch.contiguous_format])
def test_batch_norm_sends_back_the_gradient_of_its_formula(layout: torch.memory_format) -> None:
    x, gamma, beta, slope = noise(4, 3, 5, 5), noise(3, seed=1), noise(3, seed=2), noise(4, 3, 5, 5, seed=3)
    inputs = [tensor.clone().requires_grad_() for tensor in (x, gamma, beta)]
    forward, _ = set_up('type: "BatchNorm"', (4, 3, 5, 5))
    blobs = [torch.zeros(3), torch.zeros(3), torch.zeros(1), *inputs[1:]]
    (forward([inputs[0].contiguous(memory_format=layout)], blobs)[0] * slope).sum().backward()
    exact = [tensor.double().requires_grad_() for tensor in (x, gamma, beta)]
    centred = exact[0] - exact[0].mean((0, 2, 3), keepdim=True)
    root = (centred.square().mean((0, 2, 3), keepdim=True) + 1e-5).sqrt()
    y = centred / root * exact[1][:, None, None] + exact[2][:, None, None]
    (y * slope).sum().backward()
    for own, true in zip(inputs, exact, strict=True):
        assert own.grad is not None and true.grad is not None
        assert own.grad.numpy() == pytest.approx(true.grad.numpy(), abs=1e-5)


def test_batch_norms_statistics_do_not_depend_on_what_memory_held() -> None:
    # Fills new memory with NaN, as use_deterministic_algorithms does, which imports torch's compiler as well.
    torch.set_deterministic_debug_mode("error")
    try:
        blobs = [torch.zeros(3), torch.zeros(3), torch.zeros(1)]
        apply('type: "BatchNorm"', noise(4, 3, 5, 5), blobs=blobs)
        assert torch.isnan(torch.empty(3)).all()
    finally:
        torch.set_deterministic_debug_mode("default")
    assert all(torch.isfinite(blob).all() for blob in blobs)


def test_each_stats_batch_is_normalised_and_counted_by_itself() -> None:
    x = noise(6, 3, 2, 2) * 3 + 1
    blobs = [torch.zeros(3), torch.zeros(3), torch.zeros(1)]
    text = 'type: "BatchNorm" batch_norm_param {{ moving_average_fraction: 0.5 stats_batch_size: {} }}'
    got = apply(text.format(2), x, blobs=blobs)
    sums = [np.zeros(3), np.zeros(3), np.zeros(1)]
    for i in range(3):
        part = x.numpy()[2 * i : 2 * i + 2].astype(np.float64)
        mean, variance = part.mean((0, 2, 3)), part.var((0, 2, 3))
        want = (part - mean[:, None, None]) / np.sqrt(variance + 1e-5)[:, None, None]
        assert got[2 * i : 2 * i + 2] == pytest.approx(want, abs=1e-5)
        new = (mean, variance * 8 / 7, np.ones(1))  # a part has 2 x 2 x 2 values of a channel
        sums = [0.5 * old + now for old, now in zip(sums, new, strict=True)]
    for blob, total in zip(blobs, sums, strict=True):
        assert blob.numpy() == pytest.approx(total, rel=1e-5)
    whole = apply('type: "BatchNorm"', x, blobs=[torch.zeros(3), torch.zeros(3), torch.zeros(1)])
    for size in (0, 6):
        same = apply(text.format(size), x, blobs=[torch.zeros(3), torch.zeros(3), torch.zeros(1)])
        assert same == pytest.approx(whole, abs=1e-6)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_the_gradient_of_stats_batches_is_that_of_finite_differences(layout: torch.memory_format) -> None:
    x = noise(4, 2, 2, 3).double().contiguous(memory_format=layout).requires_grad_()
    pull = noise(4, 2, 2, 3, seed=1).double()
    forward, _ = set_up('type: "BatchNorm" batch_norm_param { stats_batch_size: 2 }', (4, 2, 2, 3))

    def loss(x: Tensor) -> Tensor:
        return (forward([x], [torch.zeros(n, dtype=torch.double) for n in (2, 2, 1)])[0] * pull).sum()

    loss(x).backward()
    assert x.grad is not None
    step = 1e-5
    for place in np.ndindex(4, 2, 2, 3):
        shifted = torch.zeros_like(x)
        shifted[place] = step
        with torch.no_grad():
            slope = float(loss(x + shifted) - loss(x - shifted)) / (2 * step)
        assert float(x.grad[place]) == pytest.approx(slope, abs=1e-6)


def test_stats_batches_count_in_training_only_and_must_divide_the_batch() -> None:
    text = 'type: "BatchNorm" batch_norm_param { stats_batch_size: 4 }'
    blobs = [torch.ones(3), torch.ones(3), torch.ones(1)]
    plain = apply('type: "BatchNorm"', noise(6, 3, 2, 2), blobs=blobs, phase=pb.TEST)
    assert apply(text, noise(6, 3, 2, 2), blobs=blobs, phase=pb.TEST) == pytest.approx(plain)
    with pytest.raises(PrototxtError, match="stats_batch_size 4, which does not divide its batch of 6"):
        set_up(text, (6, 3, 2, 2))


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


def test_a_window_a_little_larger_than_its_padded_input_is_clipped() -> None:
    x = noise(1, 2, 2, 2)
    text = 'type: "Pooling" pooling_param {{ pool: {} kernel_size: 3 stride: 2 }}'
    assert apply(text.format("MAX"), x) == pytest.approx(x.numpy().max((2, 3), keepdims=True))
    assert apply(text.format("AVE"), x) == pytest.approx(x.numpy().mean((2, 3), keepdims=True))


def test_max_takes_coefficients_and_ignores_them() -> None:
    a, b = noise(2, 3), noise(2, 3, seed=1)
    text = 'type: "Eltwise" eltwise_param { operation: MAX coeff: 2 coeff: 3 }'
    assert apply(text, a, b) == pytest.approx(np.maximum(a.numpy(), b.numpy()))


def test_batch_norm_is_tested_with_its_sums_over_their_factor() -> None:
    x = noise(2, 3, 4, 4)
    blobs = [torch.tensor([3.0, 0.0, -3.0]), torch.tensor([3.0, 6.0, 12.0]), torch.tensor([3.0])]
    before = [blob.clone() for blob in blobs]
    got = apply('type: "BatchNorm"', x, blobs=blobs, phase=pb.TEST)
    mean, variance = np.array([1, 0, -1])[:, None, None], np.array([1, 2, 4])[:, None, None]
    assert got == pytest.approx((x.numpy() - mean) / np.sqrt(variance + 1e-5), abs=1e-5)
    assert all(torch.equal(a, b) for a, b in zip(blobs, before, strict=True))


def test_batch_norm_without_statistics_divides_by_the_root_of_eps() -> None:
    x = noise(2, 3, 4, 4)
    got = apply('type: "BatchNorm"', x, blobs=[torch.zeros(3), torch.zeros(3), torch.zeros(1)], phase=pb.TEST)
    assert got == pytest.approx(x.numpy() / np.sqrt(1e-5), rel=1e-4)


def test_use_global_stats_overrides_the_phase() -> None:
    x, blobs = noise(2, 3), [torch.zeros(3), torch.full((3,), 4.0), torch.ones(1)]
    got = apply('type: "BatchNorm" batch_norm_param { use_global_stats: true }', x, blobs=blobs)
    assert got == pytest.approx(x.numpy() / 2, rel=1e-4)
    assert float(blobs[2]) == 1


def test_one_value_per_channel_normalises_to_zero_and_sends_no_gradient_back() -> None:
    x, blobs = noise(1, 3).requires_grad_(), [torch.zeros(3), torch.zeros(3), torch.zeros(1)]
    forward, _ = set_up('type: "BatchNorm"', (1, 3))
    (y,) = forward([x], blobs)
    assert float(y.detach().abs().max()) < 1e-4
    (y * noise(1, 3, seed=1)).sum().backward()
    assert x.grad is not None
    assert not x.grad.any()
    assert blobs[0].numpy() == pytest.approx(x.detach().numpy()[0])


def test_batch_norm_with_the_scale_after_it_equals_the_two_apart() -> None:
    x, gamma, beta = noise(4, 3, 5, 5), noise(3, seed=1), noise(3, seed=2)
    normalise, _ = set_up('type: "BatchNorm"', (4, 3, 5, 5))
    scale, _ = set_up('type: "Scale" scale_param { bias_term: true }', (4, 3, 5, 5))
    apart = scale(normalise([x], [torch.zeros(3), torch.zeros(3), torch.zeros(1)]), [gamma, beta])[0]
    joint = normalise([x], [torch.zeros(3), torch.zeros(3), torch.zeros(1), gamma, beta])[0]
    assert joint.numpy() == pytest.approx(apart.numpy(), abs=1e-5)


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


def test_layers_that_only_move_values() -> None:
    x = noise(2, 6, 3, 2)
    a = x.numpy()
    assert (apply('type: "Flatten"', x) == a.reshape(2, 36)).all()
    assert (apply('type: "Flatten" flatten_param { axis: 1 end_axis: 2 }', x) == a.reshape(2, 18, 2)).all()
    reshape = 'type: "Reshape" reshape_param { shape { dim: 0 dim: -1 dim: 4 } }'
    assert (apply(reshape, x) == a.reshape(2, 9, 4)).all()
    permute = 'type: "Permute" permute_param { order: 0 order: 2 order: 3 order: 1 }'
    assert (apply(permute, x) == a.transpose(0, 2, 3, 1)).all()
    assert (apply('type: "Concat" concat_param { axis: 2 }', x, x) == np.concatenate([a, a], 2)).all()
    crop = 'type: "Crop" crop_param { axis: 2 offset: 1 }'
    assert (apply(crop, x, noise(9, 9, 2, 1)) == a[:, :, 1:3, 1:2]).all()


def test_slice_cuts_at_points_or_into_equal_parts() -> None:
    x = noise(2, 6, 3)
    at, _ = set_up('type: "Slice" slice_param { slice_point: 1 slice_point: 4 }', (2, 6, 3), tops=3)
    assert [tuple(part.shape) for part in at([x], [])] == [(2, 1, 3), (2, 3, 3), (2, 2, 3)]
    even, _ = set_up('type: "Slice"', (2, 6, 3), tops=2)
    assert torch.equal(torch.cat(even([x], []), 1), x)


@pytest.mark.parametrize(
    ("operation", "function"),
    [
        ("SUM", lambda x: x.sum((1, 2))),
        ("ASUM", lambda x: np.abs(x).sum((1, 2))),
        ("SUMSQ", lambda x: (x * x).sum((1, 2))),
        ("MEAN", lambda x: x.mean((1, 2))),
    ],
)
def test_reduction(operation: str, function: Callable[[Array], Array]) -> None:
    x = noise(3, 4, 5)
    text = f'type: "Reduction" reduction_param {{ operation: {operation} axis: 1 coeff: 2 }}'
    assert apply(text, x) == pytest.approx(2 * function(x.numpy()), rel=1e-5, abs=1e-5)


def test_arg_max_gives_of_equals_the_later_class() -> None:
    x = torch.tensor([[1.0, 3.0, 3.0, 0.0], [5.0, 1.0, 2.0, 5.0]])
    assert apply('type: "ArgMax"', x).tolist() == [[[2.0]], [[3.0]]]
    both = apply('type: "ArgMax" argmax_param { top_k: 2 out_max_val: true }', x)
    assert both.tolist() == [[[2, 1], [3, 3]], [[3, 0], [5, 5]]]
    assert apply('type: "ArgMax" argmax_param { axis: 1 out_max_val: true }', x).tolist() == [[3], [5]]


@pytest.mark.parametrize(
    "text",
    [
        'type: "Pooling" pooling_param { pool: STOCHASTIC kernel_size: 2 }',
        'type: "Pooling" pooling_param { kernel_size: 2 pad: 2 }',
        'type: "Pooling" pooling_param { kernel_size: 2 axis: 0 }',
        'type: "LRN" lrn_param { local_size: 4 }',
        'type: "Exp" exp_param { base: -3 }',
        'type: "Log" log_param { base: 1 }',
    ],
)
def test_an_unsupported_setting_is_refused_with_the_name_of_the_layer(text: str) -> None:
    with pytest.raises(InputError, match="layer 'l'"):
        set_up(text, (2, 4, 6, 6))
