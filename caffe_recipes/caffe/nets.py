"""Build residual nets: ResNet-50 as published with the 64-node recipe, other depths, and a small one.

Layers are named as in the published nets: `res2a_branch2a`, `bn2a_branch2a`, `scale2a_branch2a`, ...
The blocks of each depth are those in table 1 of He et al., arXiv:1512.03385; the 3x3 convolutions have the
stride.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import count
from string import ascii_lowercase
from typing import Literal

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.layer_types.dimensions import Dim, MisfitError
from caffe_recipes.caffe.layer_types.windows import conv_size, pool_size
from caffe_recipes.caffe.layers import (
    ZERO,
    FillerFields,
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
from caffe_recipes.errors import InputError

ZeroInit = Literal["none", "last-block", "every-block"]


@dataclass(frozen=True)
class NetOptions:
    """The options of a residual net. `input_px` is the side of the square input."""

    classes: int
    input_px: int
    batch_norm_fraction: float
    zero_init: ZeroInit
    conv1_filler: FillerFields
    conv_filler: FillerFields
    classifier_filler: FillerFields


@dataclass(frozen=True)
class NetStage:
    """The blocks of one resolution; the first has the stride, and projects its input if the shape changes.

    A bottleneck block has 1x1, 3x3 and 1x1 convolutions, the last with 4 times the width; other blocks have
    two 3x3 convolutions. Blocks are named by letters or, as in He et al.'s deeper nets, `a`, `b1`, `b2`, ...
    """

    blocks: int
    width: int
    stride: int
    is_bottleneck: bool = True
    is_numbered: bool = False

    @property
    def convs(self) -> tuple[tuple[int, int], ...]:
        """The kernel size and number of outputs of each convolution of a block."""
        if self.is_bottleneck:
            return (1, self.width), (3, self.width), (1, 4 * self.width)
        return (3, self.width), (3, self.width)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of its blocks.

        >>> NetStage(3, 64, 1).names, NetStage(3, 64, 1, is_numbered=True).names
        (('a', 'b', 'c'), ('a', 'b1', 'b2'))
        """
        if self.is_numbered:
            return "a", *(f"b{number}" for number in range(1, self.blocks))
        return tuple(ascii_lowercase[: self.blocks])


@dataclass(frozen=True)
class BlockShape:
    """The architecture of a net: its first convolution, and the stages after the first pooling."""

    conv1_output: int
    conv1_kernel: int
    conv1_stride: int
    stages: tuple[NetStage, ...]


def _resnet_shape(depth: int, blocks: tuple[int, int, int, int]) -> BlockShape:
    stages = (
        NetStage(
            count,
            width=64 * 2**index,
            stride=2 if index else 1,
            is_bottleneck=depth >= 50,
            is_numbered=depth > 50 and index in (1, 2),
        )
        for index, count in enumerate(blocks)
    )
    return BlockShape(64, 7, 2, tuple(stages))


_SHAPES = {
    "resnet50": _resnet_shape(50, (3, 4, 6, 3)),  # `adopt` tries them in this order
    # Four narrow blocks for images of about 28 px, which train fast on a CPU.
    "resnet_small": BlockShape(16, 3, 1, (NetStage(2, 8, 1), NetStage(2, 16, 2))),
    "resnet18": _resnet_shape(18, (2, 2, 2, 2)),
    "resnet34": _resnet_shape(34, (3, 4, 6, 3)),
    "resnet101": _resnet_shape(101, (3, 4, 23, 3)),
    "resnet152": _resnet_shape(152, (3, 8, 36, 3)),
}


def _resnet(
    shape: BlockShape, name: str, data: Iterable[pb.LayerParameter], options: NetOptions
) -> pb.NetParameter:
    layers = [*data, *_stem(shape, options)]
    for number, stage in enumerate(shape.stages, 2):
        layers += _stage(number, layers[-1].top[0], stage, options)
    try:
        px = _last_px(shape, options.input_px)
    except MisfitError as error:
        what = f"layer 'pool1' {error}: the input is {options.input_px} px"
        raise InputError(f"net '{name}'", what, "use larger images") from None
    return net(name, layers, _head(layers[-1].top[0], px, options))


# Each takes the net's name, its data layers and its options. Those named by depth are meant for images of
# 224 px. Each raises InputError if the images are too small.
BUILDERS: dict[str, Callable[[str, Iterable[pb.LayerParameter], NetOptions], pb.NetParameter]] = {
    name: partial(_resnet, shape) for name, shape in _SHAPES.items()
}
DEPTHS = (18, 34, 50, 101, 152)
resnet50, resnet_small = BUILDERS["resnet50"], BUILDERS["resnet_small"]


def smallest_input(builder: str) -> int:
    """Return the side in pixels of the smallest images that the net of a builder takes.

    >>> smallest_input("resnet_small"), smallest_input("resnet50")
    (2, 3)
    """
    return next(px for px in count(1) if _takes(_SHAPES[builder], px))


def _takes(shape: BlockShape, input_px: int) -> bool:
    try:
        _last_px(shape, input_px)
    except MisfitError:
        return False
    return True


def _last_px(shape: BlockShape, input_px: int) -> Dim:
    """Return the side in pixels of the last stage's blobs, which is the kernel size of `pool5`."""
    px = conv_size(input_px, shape.conv1_kernel, shape.conv1_stride, shape.conv1_kernel // 2)
    px = pool_size(px, kernel=3, stride=2, pad=0)
    for stage in shape.stages:
        px = conv_size(px, kernel=3, stride=stage.stride, pad=1)
    return px


def _stem(shape: BlockShape, options: NetOptions) -> Iterator[pb.LayerParameter]:
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


def _stage(number: int, bottom: str, stage: NetStage, options: NetOptions) -> Iterator[pb.LayerParameter]:
    for index, name in enumerate(stage.names):
        is_last = index == stage.blocks - 1
        starts_at_zero = options.zero_init == "every-block" or (options.zero_init == "last-block" and is_last)
        block = f"{number}{name}"
        yield from _block(block, bottom, stage, options, is_first=not index, starts_at_zero=starts_at_zero)
        bottom = f"res{block}"


def _block(
    block: str, bottom: str, stage: NetStage, options: NetOptions, *, is_first: bool, starts_at_zero: bool
) -> Iterator[pb.LayerParameter]:
    """Build relu(shortcut + convolutions); the first 3x3 convolution of a stage has its stride."""
    res, stride, last = f"res{block}", stage.stride if is_first else 1, len(stage.convs) - 1
    shortcut = bottom
    if is_first and (stage.is_bottleneck or stride > 1):
        shortcut = f"{res}_branch1"
        yield from _branch(f"{block}_branch1", bottom, stage.convs[last][1], 1, stride, options)
    for index, (kernel, width) in enumerate(stage.convs):
        branch = f"{block}_branch2{ascii_lowercase[index]}"
        gamma = 0 if index == last and starts_at_zero else 1
        yield from _branch(branch, bottom, width, kernel, stride if kernel > 1 else 1, options, gamma)
        if index < last:
            yield _relu(f"res{branch}_relu", f"res{branch}")
        if kernel > 1:
            stride = 1
        bottom = f"res{branch}"
    yield eltwise_sum(res, (shortcut, bottom), eltwise_param={})
    yield _relu(f"{res}_relu", res)


def _branch(
    branch: str, bottom: str, num_output: int, kernel: int, stride: int, options: NetOptions, gamma: int = 1
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


def _normalized(blob: str, suffix: str, options: NetOptions, gamma: int = 1) -> Iterator[pb.LayerParameter]:
    """Normalize in place. `gamma` is the initial scale in MKL-DNN's fused engine; others start at 1."""
    fraction = options.batch_norm_fraction
    yield batch_norm(f"bn{suffix}", blob, moving_average_fraction=fraction, filler={"value": gamma})
    yield scale(f"scale{suffix}", blob, param=[{"decay_mult": 0}] * 2)


def _relu(name: str, blob: str) -> pb.LayerParameter:
    return relu(name, blob, relu_param={})


def _head(bottom: str, px: Dim, options: NetOptions) -> Iterator[pb.LayerParameter]:
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
    # With five classes, every label is among the best 5. Caffe aborts if top_k exceeds the number of classes.
    if options.classes > 5:
        yield accuracy("loss3/top-5", scores, "label", top_k=5)
