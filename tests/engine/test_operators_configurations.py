"""The configurations of Caffe's own layer tests, on odd sizes, against numpy; backward by differences.

A configuration is a row of `CASES`. Types with few of them are in test_operators_arithmetic.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.layer_types import find_layer_type
from caffe_recipes.engine.operators import OPERATORS
from tests.engine.caffe_arithmetic import (
    accuracy,
    across,
    best,
    by_lengths,
    convolve,
    cross_entropy,
    deconvolve,
    hinge,
    ignoring,
    log_losses,
    lstm,
    pool,
    rnn,
    segmentation,
    softmax,
    spread,
    standardize,
    within,
)
from tests.engine.operators.conftest import set_up
from tests.engine.test_operators_arithmetic import ROWS

Array = NDArray[Any]


@dataclass(frozen=True)
class Case:
    """A layer over blobs whose shapes are letters of sizes that are drawn, or digits.

    `+` in front makes positive values, and `?` class numbers below c, which get no gradient. A `!` behind an
    axis adds 2 to its size.
    """

    type: str
    param: str
    bottoms: str
    expected: Callable[..., Sequence[Array] | Array]
    tops: int = 1
    phase: pb.Phase = pb.TRAIN
    has_backward: bool = True

    @property
    def text(self) -> str:
        return f'type: "{self.type}" {self.param}'


def numbers(spec: str, sizes: dict[str, int], random: np.random.Generator) -> Array:
    """Return the values of a bottom or blob."""
    shape: list[int] = []
    for letter in spec.lstrip("+?"):
        if letter == "!":
            shape[-1] += 2
        else:
            shape.append(int(letter) if letter.isdigit() else sizes[letter])
    if spec[0] == "?":
        return random.integers(0, sizes["c"], shape).astype(float)
    values = random.standard_normal(shape)
    return np.abs(values) + 0.1 if spec[0] == "+" else np.asarray(values)


def pointwise(type_: str, param: str, expected: Callable[..., Array], bottom: str = "nchw") -> Case:
    return Case(type_, param, bottom, expected)


NEURONS = [
    pointwise("AbsVal", "", np.abs),
    pointwise("ReLU", "", lambda x: np.maximum(x, 0)),
    pointwise(
        "ReLU", "relu_param { negative_slope: 0.01 }", lambda x: np.where(x > 0, x, np.float32(0.01) * x)
    ),
    pointwise("ELU", "elu_param { alpha: 0.5 }", lambda x: np.where(x > 0, x, 0.5 * (np.exp(x) - 1))),
    pointwise("ELU", "elu_param { alpha: 0 }", lambda x: np.maximum(x, 0)),
    pointwise("Sigmoid", "", lambda x: 1 / (1 + np.exp(-x))),
    pointwise("TanH", "", np.tanh),
    pointwise("BNLL", "", lambda x: np.log(1 + np.exp(x))),
    *(
        pointwise(
            "Exp",
            f"exp_param {{ base: {base} shift: {shift} scale: {scale} }}",
            lambda x, b=base, a=shift, s=scale: np.power(math.e if b < 0 else b, a + s * x),
        )
        for base, shift, scale in product((-1, 2), (0, 1), (1, 3))
    ),
    *(
        pointwise(
            "Log",
            f"log_param {{ base: {base} shift: {shift} scale: {scale} }}",
            lambda x, b=base, a=shift, s=scale: np.log(a + s * x) / (1 if b < 0 else math.log(b)),
            "+nchw",
        )
        for base, shift, scale in product((-1, 2), (0, 1), (1, 3))
    ),
    *(
        pointwise(
            "Power",
            f"power_param {{ power: {power} scale: {scale} shift: {shift} }}",
            lambda x, p=power, s=scale, a=shift: np.power(np.float32(a) + np.float32(s) * x, np.float32(p)),
            "+nchw",
        )
        for power, scale, shift in (
            (0.37, 0.83, 2.4),
            (0.37, 0.83, 0),
            (0, 0.83, -2.4),
            (1, 0.83, -2.4),
            (2, 0.83, -2.4),
            (2, 0.5, -2.4),
        )
    ),
    Case("PReLU", "", "nchw", lambda x, slope: np.where(x > 0, x, spread(slope, x, 1) * x)),
    Case("PReLU", "", "nc", lambda x, slope: np.where(x > 0, x, slope * x)),
    Case(
        "PReLU",
        "prelu_param { channel_shared: true }",
        "nchw",
        lambda x, slope: np.where(x > 0, x, slope * x),
    ),
    Case("Dropout", "", "nchw", lambda x: x, phase=pb.TEST),
    Case(
        "Threshold",
        "threshold_param { threshold: 0.5 }",
        "nchw",
        lambda x: 1.0 * (x > 0.5),
        has_backward=False,
    ),
    Case("Softmax", "", "nchw", softmax),
    Case("Softmax", "softmax_param { axis: -1 }", "nchw", lambda x: softmax(x, 3)),
    Case("Softmax", "softmax_param { axis: 0 }", "n", lambda x: softmax(x, 0)),
]

SHAPES = [
    Case("Concat", "", "nchw", lambda x: x),
    Case("Concat", "concat_param { axis: 0 }", "nchw n!chw", lambda *xs: np.concatenate(xs, 0)),
    Case("Concat", "", "nchw nc!hw n1hw", lambda *xs: np.concatenate(xs, 1)),
    Case("Concat", "concat_param { axis: -3 }", "nchw nc!hw", lambda *xs: np.concatenate(xs, 1)),
    Case("Slice", "", "nchw", lambda x: x),
    Case("Slice", "slice_param { axis: 0 }", "4chw", lambda x: (x[:2], x[2:]), tops=2),
    Case(
        "Slice",
        "slice_param { slice_point: 1 slice_point: 3 }",
        "n6hw",
        lambda x: (x[:, :1], x[:, 1:3], x[:, 3:]),
        tops=3,
    ),
    Case(
        "Slice",
        "slice_param { axis: -2 }",
        "nc6w",
        lambda x: (x[:, :, :2], x[:, :, 2:4], x[:, :, 4:]),
        tops=3,
    ),
    Case(
        "Crop",
        "crop_param { axis: 0 }",
        "n!c!h!w! nchw",
        lambda x, y: x[: len(y), : y.shape[1], : y.shape[2], : y.shape[3]],
    ),
    Case(
        "Crop",
        "crop_param { axis: 0 offset: 0 offset: 1 offset: 1 offset: 2 }",
        "n!c!h!w! nchw",
        lambda x, y: x[: len(y), 1 : 1 + y.shape[1], 1 : 1 + y.shape[2], 2 : 2 + y.shape[3]],
    ),
    Case("Crop", "", "nch!w! nchw", lambda x, y: x[:, :, : y.shape[2], : y.shape[3]]),
    Case("Crop", "crop_param { axis: -1 offset: 1 }", "nchw! nchw", lambda x, y: x[..., 1 : 1 + y.shape[3]]),
    Case(
        "Crop",
        "crop_param { axis: 2 offset: 1 offset: 2 offset: 0 }",
        "nch!w!3 nchw3",
        lambda x, y: x[:, :, 1 : 1 + y.shape[2], 2 : 2 + y.shape[3]],
    ),
    Case("Flatten", "", "nchw", lambda x: x.reshape(len(x), -1)),
    Case("Flatten", "flatten_param { axis: 2 }", "nchw", lambda x: x.reshape(*x.shape[:2], -1)),
    Case("Flatten", "flatten_param { end_axis: -2 }", "nchw", lambda x: x.reshape(len(x), -1, x.shape[3])),
    Case("Flatten", "flatten_param { axis: 0 end_axis: -2 }", "nchw", lambda x: x.reshape(-1, x.shape[3])),
    Case(
        "Reshape",
        "reshape_param { shape { dim: 0 dim: 0 dim: -1 } }",
        "nchw",
        lambda x: x.reshape(*x.shape[:2], -1),
    ),
    Case("Reshape", "reshape_param { shape { dim: -1 } axis: 1 }", "nchw", lambda x: x.reshape(len(x), -1)),
    Case(
        "Reshape",
        "reshape_param { shape { dim: 1 dim: 1 } axis: 0 num_axes: 0 }",
        "nchw",
        lambda x: x[None, None],
    ),
    Case(
        "Reshape", "reshape_param { shape { dim: 1 } axis: 2 num_axes: 0 }", "nchw", lambda x: x[:, :, None]
    ),
    Case(
        "Reshape", "reshape_param { shape { dim: 1 } axis: -1 num_axes: 0 }", "nchw", lambda x: x[..., None]
    ),
    Case(
        "Reshape",
        "reshape_param { shape { dim: -1 } axis: 1 num_axes: 2 }",
        "nchw",
        lambda x: x.reshape(len(x), -1, x.shape[3]),
    ),
    Case("Permute", "", "nchw", lambda x: x),
    Case("Permute", "permute_param { order: 1 order: 0 }", "nc", lambda x: x.T),
    Case("Permute", "permute_param { order: 2 order: 0 order: 1 }", "nch", lambda x: x.transpose(2, 0, 1)),
    Case(
        "Permute",
        "permute_param { order: 0 order: 2 order: 3 order: 1 }",
        "nchw",
        lambda x: x.transpose(0, 2, 3, 1),
    ),
    Case("Permute", "permute_param { order: 3 }", "nchw", lambda x: x.transpose(3, 0, 1, 2)),
    *(
        Case(
            "Tile",
            f"tile_param {{ axis: {axis} tiles: {tiles} }}",
            "nchw",
            lambda x, r=repeats: np.tile(x, r),
        )
        for axis, tiles, repeats in ((0, 1, (1,)), (0, 3, (3, 1, 1, 1)), (1, 3, (3, 1, 1)), (-1, 2, (2,)))
    ),
    Case("Split", "", "nchw", lambda x: (x, x), tops=2),
    *(
        Case(
            "Reduction",
            f"reduction_param {{ operation: {name} axis: {axis} coeff: 2.5 }}",
            "nchw",
            lambda x, a=axis, f=function: np.asarray(2.5 * f(x.reshape(*x.shape[:a], -1))),
        )
        for axis in (0, 1, 2)
        for name, function in (
            ("SUM", lambda x: x.sum(-1)),
            ("MEAN", lambda x: x.mean(-1)),
            ("ASUM", lambda x: np.abs(x).sum(-1)),
            ("SUMSQ", lambda x: (x * x).sum(-1)),
        )
    ),
    *(
        Case(
            "ArgMax", f"argmax_param {{ {param} }}", bottom, best(count, axis, has_values), has_backward=False
        )
        for param, bottom, count, axis, has_values in (
            ("", "nchw", 1, None, False),
            ("out_max_val: true", "nchw", 1, None, True),
            ("top_k: 5", "n5h", 5, None, False),
            ("out_max_val: true top_k: 4", "n4hw", 4, None, True),
            ("axis: 0", "nchw", 1, 0, False),
            ("axis: -2", "nchw", 1, 2, False),
            ("axis: 1 top_k: 3", "n4hw", 3, 1, False),
            ("axis: -1 top_k: 3 out_max_val: true", "nch5", 3, 3, True),
        )
    ),
]

OPERANDS = [
    Case("Eltwise", "eltwise_param { operation: PROD }", "nchw nchw nchw", lambda a, b, c: a * b * c),
    Case(
        "Eltwise",
        "eltwise_param { operation: PROD stable_prod_grad: false }",
        "+nchw nchw",
        lambda a, b: a * b,
    ),
    Case("Eltwise", "", "nchw nchw nchw", lambda a, b, c: a + b + c),
    Case(
        "Eltwise",
        "eltwise_param { coeff: 1 coeff: -0.5 coeff: 2 }",
        "nc nc nc",
        lambda a, b, c: a - 0.5 * b + 2 * c,
    ),
    Case(
        "Eltwise",
        "eltwise_param { operation: MAX }",
        "nchw nchw nchw",
        lambda a, b, c: np.maximum(np.maximum(a, b), c),
    ),
    *(
        Case(
            type_,
            f"{block} {{ axis: {axis} {more} }}",
            bottoms,
            lambda x, y, *rest, a=axis, f=function: f(x, spread(y, x, a), *(spread(b, x, a) for b in rest)),
        )
        for type_, block, function in (
            ("Scale", "scale_param", lambda x, y, b=0.0: x * y + b),
            ("Bias", "bias_param", lambda x, y: x + y),
        )
        for axis, bottoms, more in (
            (0, "nchw nchw", ""),
            (0, "nchw", "num_axes: -1"),
            (0, "nchw nc", ""),
            (1, "nchw ch", ""),
            (1, "nchw", "num_axes: 2"),
            (2, "nchw hw", ""),
            (0, "nchw", "num_axes: 0"),
            (2, "nchw", "num_axes: 0"),
            (3, "nchw w", ""),
            *([(1, "nchw", "num_axes: 2 bias_term: true")] if type_ == "Scale" else []),
        )
    ),
    Case(
        "InnerProduct",
        "inner_product_param { num_output: 3 }",
        "nchw",
        lambda x, w, b: x.reshape(len(x), -1) @ w.T + b,
    ),
    Case(
        "InnerProduct",
        "inner_product_param { num_output: 3 transpose: true }",
        "nchw",
        lambda x, w, b: x.reshape(len(x), -1) @ w + b,
    ),
    Case(
        "InnerProduct",
        "inner_product_param { num_output: 3 axis: 0 }",
        "chw",
        lambda x, w, b: w @ x.reshape(-1) + b,
    ),
    Case(
        "InnerProduct",
        "inner_product_param { num_output: 3 axis: -1 bias_term: false }",
        "nchw",
        lambda x, w: x @ w.T,
    ),
    Case(
        "Embed",
        "embed_param { num_output: 3 input_dim: 9 bias_term: false }",
        "?nh",
        lambda x, w: w[x.astype(int)],
    ),
]

WINDOWS = [
    *(
        Case(
            "Convolution",
            "convolution_param { num_output: 4 "
            f"kernel_size: {kernel} stride: {stride} pad: {pad} dilation: {dilation} group: {group} }}",
            bottom,
            lambda x, w, b, at=(stride, pad, dilation, group): convolve(x, w, b, *at),
        )
        for bottom, kernel, stride, pad, dilation, group in (
            ("nch!w!", 3, 2, 0, 1, 1),
            ("nch!w!", 3, 1, 1, 2, 1),
            ("nch!!w!!", 2, 1, 0, 3, 1),
            ("nchw", 1, 1, 0, 1, 1),
            ("n6h!w!", 3, 2, 0, 1, 2),
            ("nch!w!3", 2, 1, 0, 1, 1),
            ("nch!w!3", 2, 2, 1, 2, 1),
            ("nch!", 3, 1, 1, 1, 1),
        )
    ),
    Case(
        "Convolution",
        "convolution_param { num_output: 4 kernel_size: 3 pad: 1 force_nd_im2col: true }",
        "nchw",
        lambda x, w, b: convolve(x, w, b, pad=1),
    ),
    Case(
        "Convolution",
        "convolution_param { num_output: 4 axis: 1 }",
        "nc",
        lambda x, w, b: x @ w.T + b,
    ),
    *(
        Case(
            "Deconvolution",
            f"convolution_param {{ num_output: {outputs} kernel_size: 3 "
            f"stride: {stride} pad: {pad} group: {group} }}",
            bottom,
            lambda x, w, b, at=(stride, pad, group): deconvolve(x, w, b, *at),
        )
        for bottom, outputs, stride, pad, group in (
            ("nchw", 4, 2, 0, 1),
            ("nchw", 2, 1, 1, 1),
            ("n6hw", 3, 2, 1, 3),
            ("1chw2", 2, 2, 1, 1),
        )
    ),
    *(
        Case(
            "Pooling",
            f"pooling_param {{ pool: {'MAX' if is_max else 'AVE'} "
            f"kernel_h: {kernel[0]} kernel_w: {kernel[1]} stride: {stride} pad: {pad} }}",
            "nch!w!",
            lambda x, tops=tops, at=(kernel, stride, pad, is_max): pool(*at)(x)[:tops],
            tops=tops,
        )
        for is_max, tops in ((True, 1), (True, 2), (False, 1))
        for kernel, stride, pad in (
            ((2, 2), 1, 0),
            ((3, 2), 1, 0),
            ((2, 3), 2, 1),
            ((3, 3), 2, 2),
            ((3, 3), 3, 1),
        )
    ),
    *(
        Case(
            "Pooling",
            f"pooling_param {{ pool: {name} global_pooling: true }}",
            "nchw",
            lambda x, f=function: f(x, (2, 3), keepdims=True),
        )
        for name, function in (("MAX", np.max), ("AVE", np.mean))
    ),
]

NORMS = [
    Case("LRN", "", "nchw", lambda x: across(x, 5, 1, 0.75, 1)),
    Case("LRN", "lrn_param { local_size: 15 alpha: 2 k: 3 }", "nchw", lambda x: across(x, 15, 2, 0.75, 3)),
    Case("LRN", "lrn_param { local_size: 1 }", "nchw", lambda x: across(x, 1, 1, 0.75, 1)),
    Case(
        "LRN",
        "lrn_param { norm_region: WITHIN_CHANNEL local_size: 3 }",
        "nchw",
        lambda x: within(x, 3, 1, 0.75),
    ),
    *(Case("BatchNorm", "", bottom, standardize) for bottom in ("n!chw", "n!c", "n!chw2")),
    Case(
        "BatchNorm",
        "batch_norm_param { use_global_stats: true }",
        "nchw",
        lambda x, mean, variance, factor: (
            (x - spread(mean / factor, x, 1)) / np.sqrt(spread(variance / factor, x, 1) + np.float32(1e-5))
        ),
    ),
    *(
        Case(
            "Normalize",
            f"norm_param {{ across_spatial: {spatial} channel_shared: {shared} }}",
            "nchw",
            lambda x, scale, s=spatial: by_lengths(x, scale, s == "true"),
            has_backward=shared == "true",  # the other gradient: tests/engine/operators/test_normalization.py
        )
        for spatial, shared in product(("true", "false"), repeat=2)
    ),
]

LOSSES = [
    Case("EuclideanLoss", "", "nchw nchw", lambda a, b: np.asarray(((a - b) ** 2).sum() / 2 / len(a))),
    Case("HingeLoss", "", "nc ?n", hinge(1)),
    Case("HingeLoss", "hinge_loss_param { norm: L2 }", "nc ?n", hinge(2)),
    Case(
        "MultinomialLogisticLoss",
        "",
        "+nc ?n",
        lambda p, labels: np.asarray(-np.log(p[np.arange(len(p)), labels.astype(int)]).mean()),
    ),
    Case("SigmoidCrossEntropyLoss", "", "nc ?nc", cross_entropy),
    Case("SoftmaxWithLoss", "", "nchw ?nhw", lambda x, labels: np.asarray(log_losses(x, labels).mean())),
    Case(
        "SoftmaxWithLoss",
        "loss_param { normalize: false }",
        "nchw ?nhw",
        lambda x, labels: np.asarray(log_losses(x, labels).sum() / len(x)),
    ),
    Case("SoftmaxWithLoss", "loss_param { ignore_label: 0 }", "nchw ?nhw", ignoring),
    Case("Accuracy", "", "nc ?n", accuracy(1), has_backward=False),
    Case("Accuracy", "", "nchw ?nhw", accuracy(1), has_backward=False),
    Case("Accuracy", "accuracy_param { top_k: 3 }", "nc! ?n", accuracy(3), has_backward=False),
    Case("SegAccuracy", "", "nchw ?nhw", segmentation, has_backward=False),
    Case("RNN", "recurrent_param { num_output: 2 }", "4nh ?4n nc", rnn),
    Case("LSTM", "recurrent_param { num_output: 2 }", "4nh ?4n", lstm),
]
CASES = [*NEURONS, *SHAPES, *OPERANDS, *WINDOWS, *NORMS, *LOSSES]
SIZES = st.fixed_dictionaries({letter: st.integers(1, 5) for letter in "nchw"})


def prepare(case: Case, sizes: dict[str, int]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Return the bottoms and blobs of a case."""
    random = np.random.default_rng(sum(sizes.values()))
    bottoms = [torch.from_numpy(numbers(spec, sizes, random)) for spec in case.bottoms.split()]
    if case.type in ("RNN", "LSTM"):
        bottoms[1] = bottoms[1].clamp(max=1)  # whether a sequence continues
    _, shapes = set_up(case.text, *(tuple(b.shape) for b in bottoms), tops=case.tops, phase=case.phase)
    blobs = [torch.from_numpy(np.asarray(random.standard_normal(shape))) for shape in shapes]
    if find_layer_type(case.type).has_statistics:
        blobs = [blob.abs() + 0.5 for blob in blobs]
    return bottoms, blobs


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.type} {case.param} {case.bottoms}")
@settings(max_examples=4, deadline=None)
@given(sizes=SIZES)
def test_a_configuration_computes_what_caffe_does_and_its_gradient(case: Case, sizes: dict[str, int]) -> None:
    bottoms, blobs = prepare(case, sizes)
    shapes = [tuple(bottom.shape) for bottom in bottoms]

    def run(*values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        forward, _ = set_up(case.text, *shapes, tops=case.tops, phase=case.phase)
        given = list(values[len(bottoms) :])
        if find_layer_type(case.type).has_statistics:
            given = [blob.clone() for blob in given]
        return tuple(forward(list(values[: len(bottoms)]), given))

    expected = case.expected(*(tensor.numpy() for tensor in (*bottoms, *blobs)))
    wanted = [expected] if isinstance(expected, np.ndarray | np.generic) else expected
    for top, values in zip(run(*bottoms, *blobs), wanted, strict=True):
        assert tuple(top.shape) == values.shape
        np.testing.assert_allclose(top.detach().numpy(), values, rtol=1e-6, atol=1e-9)
    if not case.has_backward:
        return
    for tensor, spec in zip(bottoms, case.bottoms.split(), strict=True):
        tensor.requires_grad_(spec[0] != "?")
    for blob in blobs if not find_layer_type(case.type).has_statistics else ():
        blob.requires_grad_()
    assert torch.autograd.gradcheck(
        lambda *values: tuple(top for top in run(*values) if top.requires_grad),
        (*bottoms, *blobs),
        atol=1e-7,
        rtol=1e-4,
        fast_mode=True,
    )


def test_each_type_that_runs_has_a_configuration() -> None:
    tested = {case.type for case in CASES} | {row.text.split('"')[1] for row in ROWS}
    # Without tops, and with a gradient that is not a derivative: tests/engine/operators/test_loss.py.
    assert OPERATORS.keys() - tested == {"Silence", "CenterLoss"}
