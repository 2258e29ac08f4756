"""Count what each layer of a net costs, and the totals: parameters, statistics, arithmetic, activations.

Arithmetic is counted for one forward pass of a whole batch, in two kinds: multiply-adds with learned matrices
(convolutions, inner products, recurrent layers), which papers report and which take most of the time; and
other operations, one for each number that a layer adds, multiplies, compares or normalizes. Layer types that
are not listed (ReLU, Dropout, losses, ...) count as none. Adding a bias is not counted, because the bias is
the initial value of a sum that is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.shape_rules import Dim, product
from caffe_recipes.caffe.shapes import LayerShapes

if TYPE_CHECKING:
    from caffe_recipes.caffe.shape_rules import Shape
    from caffe_recipes.caffe.shapes import NetShapes

Count = Callable[[LayerShapes, int], Dim]


def multiply_adds(layer: LayerShapes) -> Dim:
    """Return the number of multiply-adds with learned matrices; None if a shape is unknown.

    >>> conv = pb.LayerParameter(type="Convolution")
    >>> multiply_adds(LayerShapes(conv, ((2, 3, 8, 8),), ((2, 16, 8, 8),), ((16, 3, 3, 3), (16,))))
    55296
    """
    count = MATRICES.get(layer.layer.type)
    return _counted(layer, 0, count)


def other_operations(layer: LayerShapes, phase: int) -> Dim:
    """Return the number of operations other than those multiply-adds; None if a shape is unknown."""
    return _counted(layer, phase, OTHERS.get(layer.layer.type))


def sum_counts(counts: Iterable[Dim]) -> Dim:
    """Return the sum of counts; None if one of them is None."""
    total = 0
    for count in counts:
        if count is None:
            return None
        total += count
    return total


def size_of(shape: Shape | None) -> Dim:
    """Return the number of elements of a blob; None if its shape is unknown."""
    return None if shape is None else product(shape)


def _counted(layer: LayerShapes, phase: int, count: Count | None) -> Dim:
    if layer.learned is None:
        return None
    return count(layer, phase) if count else 0


def _sizes(shapes: Iterable[Shape | None]) -> Dim:
    return sum_counts(size_of(shape) for shape in shapes)


def _weights(layer: LayerShapes, index: int) -> Shape:
    return layer.learned[index] if layer.learned else ()


def _convolution(layer: LayerShapes, phase: int) -> Dim:
    """Count in_c / group x k_h x k_w for each of the out_c x out_h x out_w output values."""
    return product([_sizes(layer.tops), *_weights(layer, 0)[1:]])


def _deconvolution(layer: LayerShapes, phase: int) -> Dim:
    """Count out_c / group x k_h x k_w for each of the in_c x in_h x in_w input values."""
    return product([_sizes(layer.bottoms), *_weights(layer, 0)[1:]])


def _inner_product(layer: LayerShapes, phase: int) -> Dim:
    """Count outputs x inputs."""
    transposed = layer.layer.inner_product_param.transpose
    return product([_sizes(layer.tops), _weights(layer, 0)[0 if transposed else 1]])


def _recurrent(layer: LayerShapes, phase: int) -> Dim:
    """Count each matrix once per time step and stream; the matrix of a static input, once per stream."""
    steps_streams = (layer.bottoms[0] or ())[:2]
    matrices = [shape for shape in layer.learned or () if len(shape) == 2]
    exposed = {"LSTM": 2, "RNN": 1}[layer.layer.type] * layer.layer.recurrent_param.expose_hidden
    has_static = len(layer.bottoms) - exposed == 3
    static = matrices.pop(1) if has_static else (0,)
    each_step = sum_counts(product([*steps_streams, *matrix]) for matrix in matrices)
    return sum_counts([each_step, product([*steps_streams[1:], *static])])


def _per_value(times: Callable[[pb.LayerParameter, int, int], int]) -> Count:
    def count(layer: LayerShapes, phase: int) -> Dim:
        return product([_sizes(layer.tops[:1]), times(layer.layer, phase, len(layer.bottoms))])

    return count


def _lrn_window(layer: pb.LayerParameter, phase: int, bottoms: int) -> int:
    param = layer.lrn_param
    return param.local_size ** (1 if param.norm_region == param.ACROSS_CHANNELS else 2)


def _batch_norm_passes(layer: pb.LayerParameter, phase: int, bottoms: int) -> int:
    """Count 1 operation per number to normalize, and 2 more for the mean and variance of the batch."""
    param = layer.batch_norm_param
    is_global = param.use_global_stats if param.HasField("use_global_stats") else phase == pb.TEST
    return 1 if is_global else 3


def _scale_operations(layer: pb.LayerParameter, phase: int, bottoms: int) -> int:
    return 1


def _eltwise_operations(layer: pb.LayerParameter, phase: int, bottoms: int) -> int:
    return bottoms if layer.eltwise_param.coeff else bottoms - 1


def _pooling(layer: LayerShapes, phase: int) -> Dim:
    """Count the whole window for each output, even at the borders; global pooling reads each input once."""
    param, top = layer.layer.pooling_param, layer.tops[:1]
    if param.global_pooling:
        return _sizes(layer.bottoms)
    if param.HasField("kernel_h"):
        return product([_sizes(top), param.kernel_h, param.kernel_w])
    axes = len(top[0] or ()) - param.axis - 1 if top else 0
    kernel = list(param.kernel_size)
    return product([_sizes(top), *(kernel * axes if len(kernel) == 1 else kernel)])


def _inputs(layer: LayerShapes, phase: int) -> Dim:
    return _sizes(layer.bottoms)


MATRICES: Mapping[str, Count] = {
    "Convolution": _convolution,
    "Deconvolution": _deconvolution,
    "InnerProduct": _inner_product,
    "LSTM": _recurrent,
    "RNN": _recurrent,
}

OTHERS: Mapping[str, Count] = {
    "BatchNorm": _per_value(_batch_norm_passes),
    "Bias": _per_value(_scale_operations),
    "Eltwise": _per_value(_eltwise_operations),
    "LRN": _per_value(_lrn_window),
    "PReLU": _per_value(_scale_operations),
    "Pooling": _pooling,
    "Reduction": _inputs,
    "Scale": _per_value(_scale_operations),
}


_FLOAT_BYTES = 4

# Layers whose top shares the memory of their bottom.
_VIEWS = {"Flatten", "Reshape", "Split"}


@dataclass(frozen=True)
class BlobCost:
    """A blob that a layer reads or produces; the shape is None if unknown."""

    name: str
    shape: Shape | None


@dataclass(frozen=True)
class LayerCount:
    """The costs of one layer for a whole batch; None if a shape that they depend on is unknown.

    `phase` is the only phase that includes the layer, empty if both do. `statistics` counts the numbers of a
    BatchNorm that no gradient updates: its sums and its factor. `frozen` counts the `parameters` with
    lr_mult 0. Parameters that layers share by name are counted for the first of these layers; the others
    name it in `shares_with`. Activations are the tops in float32, except those that are computed in place or
    use the memory of their bottom (Flatten, Reshape, Split). `kernel` is in the format of `show_kernel`.
    """

    name: str
    type: str
    phase: str
    bottoms: tuple[BlobCost, ...]
    tops: tuple[BlobCost, ...]
    in_place: bool
    parameters: Dim
    frozen: Dim
    statistics: Dim
    shares_with: str
    multiply_adds: Dim
    other_operations: Dim
    activation_bytes: Dim
    kernel: str


@dataclass(frozen=True)
class Totals:
    """Sums over the layers, leaving out unknown values; `unknown` names the layers that have any."""

    parameters: int
    frozen: int
    statistics: int
    multiply_adds: int
    other_operations: int
    activation_bytes: int
    unknown: tuple[str, ...]


def count_layers(shapes: NetShapes, phase: int, only_phases: Sequence[str]) -> tuple[LayerCount, ...]:
    """Return the costs of each layer in `phase`; `only_phases` has the only phase of each layer, or ''."""
    owners: dict[str, str] = {}
    return tuple(
        _count(layer, phase, only_phase, owners)
        for layer, only_phase in zip(shapes.layers, only_phases, strict=True)
    )


def total(counts: Iterable[LayerCount]) -> Totals:
    """Return the total costs of layers."""
    layers = list(counts)

    def known(values: Iterable[Dim]) -> int:
        return sum(value for value in values if value is not None)

    return Totals(
        known(layer.parameters for layer in layers),
        known(layer.frozen for layer in layers),
        known(layer.statistics for layer in layers),
        known(layer.multiply_adds for layer in layers),
        known(layer.other_operations for layer in layers),
        known(layer.activation_bytes for layer in layers),
        tuple(layer.name for layer in layers if _is_unknown(layer)),
    )


def _is_unknown(layer: LayerCount) -> bool:
    return None in (layer.parameters, layer.multiply_adds, layer.other_operations, layer.activation_bytes)


def _count(found: LayerShapes, phase: int, only_phase: str, owners: dict[str, str]) -> LayerCount:
    layer = found.layer
    own, shares_with = _split_shared_blobs(found, owners)
    sizes = [None] if found.learned is None else [size_of(found.learned[index]) for index in own]
    is_statistic = layer.type == "BatchNorm"
    learned = 0 if is_statistic else sum_counts(sizes)
    frozen: Dim = 0
    if not is_statistic and found.learned is not None:
        frozen = sum_counts(size_of(found.learned[index]) for index in own if _is_frozen(layer, index))
    return LayerCount(
        layer.name,
        layer.type,
        only_phase,
        tuple(map(BlobCost, layer.bottom, found.bottoms)),
        tuple(map(BlobCost, layer.top, found.tops)),
        bool(layer.top) and set(layer.top) <= set(layer.bottom),
        learned,
        frozen,
        sum_counts(sizes) if is_statistic else 0,
        shares_with,
        multiply_adds(found),
        other_operations(found, phase),
        _activation_bytes(found),
        show_kernel(layer),
    )


def window(param: pb.ConvolutionParameter | pb.PoolingParameter, field: str) -> list[int]:
    """Return `kernel_size`, `pad` or `stride` for each axis; empty if it is not set."""
    stem = field.removesuffix("_size")
    if param.HasField(f"{stem}_h"):
        return [getattr(param, f"{stem}_h"), getattr(param, f"{stem}_w")]
    values = list(getattr(param, field))
    return values * 2 if len(values) == 1 else values


def show_kernel(layer: pb.LayerParameter) -> str:
    """Return a layer's kernel, pad, stride, dilation and groups in the short form of Caffe's summarize.py.

    >>> param = {"kernel_size": [7], "pad": [3], "stride": [2]}
    >>> show_kernel(pb.LayerParameter(type="Convolution", convolution_param=param))
    '7+3/2'
    """
    if layer.type in ("Convolution", "Deconvolution"):
        param = layer.convolution_param
        dilation, group = _sides(list(param.dilation)), param.group
        return (
            _strided(param)
            + (f" d{dilation}" if dilation not in ("", "1") else "")
            + (f" g{group}" if group > 1 else "")
        )
    if layer.type != "Pooling":
        return ""
    return "global" if layer.pooling_param.global_pooling else _strided(layer.pooling_param)


def _strided(param: pb.ConvolutionParameter | pb.PoolingParameter) -> str:
    kernel, pad, stride = (_sides(window(param, name)) for name in ("kernel_size", "pad", "stride"))
    return (
        kernel
        + (f"+{pad}" if pad not in ("", "0") else "")
        + (f"/{stride}" if stride not in ("", "1") else "")
    )


def _sides(values: Sequence[int]) -> str:
    """Return one number if all axes have the same, otherwise all of them."""
    return "x".join(map(str, values[:1] if len(set(values)) == 1 else values))


def _split_shared_blobs(found: LayerShapes, owners: dict[str, str]) -> tuple[list[int], str]:
    """Return the indices of the blobs that a layer owns, and the layer that it shares others with, or ''."""
    own, shares_with = [], ""
    for index in range(len(found.learned or ())):
        name = found.layer.param[index].name if index < len(found.layer.param) else ""
        if name and name in owners:
            shares_with = owners[name]
            continue
        if name:
            owners[name] = found.layer.name
        own.append(index)
    return own, shares_with


def _is_frozen(layer: pb.LayerParameter, index: int) -> bool:
    return index < len(layer.param) and layer.param[index].lr_mult == 0


def _activation_bytes(found: LayerShapes) -> Dim:
    layer = found.layer
    if layer.type in _VIEWS:
        return 0
    made = [shape for name, shape in zip(layer.top, found.tops, strict=True) if name not in layer.bottom]
    return product([_sizes(made), _FLOAT_BYTES])
