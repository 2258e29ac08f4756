"""Residual nets of bottleneck blocks: ResNet-50 as published with its 64-node recipe, and a small one.

Layers are named as in the published nets: `res2a_branch2a`, `bn2a_branch2a`, `scale2a_branch2a`, ...
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from string import ascii_lowercase
from typing import Literal

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.layers import (
    ZERO,
    Filler,
    accuracy,
    batch_norm,
    conv,
    eltwise_sum,
    inner_product,
    net,
    pooling,
    relu,
    scale,
    softmax_with_loss,
)
from caffe_recipes.caffe.shaping.dims import Dim, MisfitError, conv_size, pool_size
from caffe_recipes.errors import InputError

ZeroInit = Literal["none", "last-block", "every-block"]


@dataclass(frozen=True)
class Options:
    """What a recipe may choose about a residual net."""

    classes: int
    input_px: int
    batch_norm_fraction: float
    zero_init: ZeroInit
    conv1_filler: Filler
    conv_filler: Filler
    classifier_filler: Filler


@dataclass(frozen=True)
class Stage:
    """Blocks of one resolution; the first has the stride, and projects its input."""

    blocks: int
    width: int
    stride: int


@dataclass(frozen=True)
class Shape:
    """What tells one net from another: the first convolution, and the stages behind the first pooling."""

    conv1_output: int
    conv1_kernel: int
    conv1_stride: int
    stages: tuple[Stage, ...]


RESNET50 = Shape(64, 7, 2, (Stage(3, 64, 1), Stage(4, 128, 2), Stage(6, 256, 2), Stage(3, 512, 2)))
RESNET_SMALL = Shape(16, 3, 1, (Stage(2, 8, 1), Stage(2, 16, 2)))


def resnet50(name: str, data: Iterable[pb.LayerParameter], options: Options) -> pb.NetParameter:
    """Build ResNet-50: 53 convolutions, strides on the 3x3 convolutions, input of 224 px."""
    return _resnet(name, data, RESNET50, options)


def resnet_small(name: str, data: Iterable[pb.LayerParameter], options: Options) -> pb.NetParameter:
    """Build four of the same blocks, thin, for images of about 28 px: quick on a CPU."""
    return _resnet(name, data, RESNET_SMALL, options)


BUILDERS: dict[str, Callable[[str, Iterable[pb.LayerParameter], Options], pb.NetParameter]] = {
    "resnet50": resnet50,
    "resnet_small": resnet_small,
}


def _resnet(name: str, data: Iterable[pb.LayerParameter], shape: Shape, options: Options) -> pb.NetParameter:
    layers = [*data, *_stem(shape, options)]
    for number, stage in enumerate(shape.stages, 2):
        layers += _stage(number, layers[-1].top[0], stage, options)
    try:
        px = _last_px(shape, options.input_px)
    except MisfitError as error:
        what = f"layer 'pool1' {error}: the input is {options.input_px} px"
        raise InputError(f"net '{name}'", what, "take larger images") from None
    return net(name, layers, _head(layers[-1].top[0], px, options))


def _last_px(shape: Shape, input_px: int) -> Dim:
    """Return the side of the last stage's blobs, which `pool5` averages whole."""
    px = conv_size(input_px, shape.conv1_kernel, shape.conv1_stride, shape.conv1_kernel // 2)
    px = pool_size(px, kernel=3, stride=2, pad=0)
    for stage in shape.stages:
        px = conv_size(px, kernel=3, stride=stage.stride, pad=1)
    return px


def _stem(shape: Shape, options: Options) -> Iterator[pb.LayerParameter]:
    kernel, stride = shape.conv1_kernel, shape.conv1_stride
    yield conv(
        "conv1",
        "data",
        num_output=shape.conv1_output,
        kernel_size=kernel,
        pad=kernel // 2,
        stride=stride,
        weight_filler=options.conv1_filler,
        bias_filler=ZERO,
    )
    yield from _normalized("conv1", "_conv1", options)
    yield _relu("conv1_relu", "conv1")
    yield pooling("pool1", "conv1", pool="MAX", kernel_size=3, stride=2)


def _stage(number: int, bottom: str, stage: Stage, options: Options) -> Iterator[pb.LayerParameter]:
    for index in range(stage.blocks):
        is_last = index == stage.blocks - 1
        starts_at_zero = options.zero_init == "every-block" or (options.zero_init == "last-block" and is_last)
        block = f"{number}{ascii_lowercase[index]}"
        yield from _bottleneck(
            block, bottom, stage, options, is_first=not index, starts_at_zero=starts_at_zero
        )
        bottom = f"res{block}"


def _bottleneck(
    block: str, bottom: str, stage: Stage, options: Options, *, is_first: bool, starts_at_zero: bool
) -> Iterator[pb.LayerParameter]:
    """Build relu(shortcut + 1x1 . 3x3 . 1x1); the 3x3 has the stride, and the last 1x1 widens by 4."""
    res, stride, wide = f"res{block}", stage.stride if is_first else 1, 4 * stage.width
    shortcut = bottom
    if is_first:
        shortcut = f"{res}_branch1"
        yield from _branch(f"{block}_branch1", bottom, wide, 1, stride, options)
    yield from _branch(f"{block}_branch2a", bottom, stage.width, 1, 1, options)
    yield _relu(f"{res}_branch2a_relu", f"{res}_branch2a")
    yield from _branch(f"{block}_branch2b", f"{res}_branch2a", stage.width, 3, stride, options)
    yield _relu(f"{res}_branch2b_relu", f"{res}_branch2b")
    yield from _branch(
        f"{block}_branch2c", f"{res}_branch2b", wide, 1, 1, options, 0 if starts_at_zero else 1
    )
    yield eltwise_sum(res, (shortcut, f"{res}_branch2c"), eltwise_param={})
    yield _relu(f"{res}_relu", res)


def _branch(
    branch: str, bottom: str, num_output: int, kernel: int, stride: int, options: Options, gamma: int = 1
) -> Iterator[pb.LayerParameter]:
    yield conv(
        f"res{branch}",
        bottom,
        num_output=num_output,
        kernel_size=kernel,
        pad=kernel // 2,
        stride=stride,
        bias_term=False,
        weight_filler=options.conv_filler,
        bias_filler=ZERO,
    )
    yield from _normalized(f"res{branch}", branch, options, gamma)


def _normalized(blob: str, suffix: str, options: Options, gamma: int = 1) -> Iterator[pb.LayerParameter]:
    """Normalize in place; `gamma` is what MKL-DNN's fused scale starts from, the plain engine starts at 1."""
    fraction = options.batch_norm_fraction
    yield batch_norm(f"bn{suffix}", blob, moving_average_fraction=fraction, filler={"value": gamma})
    yield scale(f"scale{suffix}", blob, param=[{"decay_mult": 0}] * 2)


def _relu(name: str, blob: str) -> pb.LayerParameter:
    return relu(name, blob, relu_param={})


def _head(bottom: str, px: Dim, options: Options) -> Iterator[pb.LayerParameter]:
    scores = f"fc{options.classes}"
    yield pooling("pool5", bottom, pool="AVE", kernel_size=px, stride=1)
    yield inner_product(
        scores,
        "pool5",
        num_output=options.classes,
        weight_filler=options.classifier_filler,
        bias_filler=ZERO,
    )
    yield softmax_with_loss("prob", scores, "label", "loss")
    yield accuracy("loss3/top-1", scores, "label")
    # Of five classes all are among the best 5, and Caffe stops at a top_k above their number.
    if options.classes > 5:
        yield accuracy("loss3/top-5", scores, "label", top_k=5)
