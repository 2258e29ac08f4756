"""How much arithmetic one pass forward through a layer is, for its whole batch.

Two kinds. Multiply-adds with learned matrices (convolutions, inner products, recurrent layers), which papers
count and which take the time. And other operations, one for each number that a layer adds, multiplies,
compares or normalizes; what is not listed here (ReLU, Dropout, losses, ...) counts as none. A bias is
neither: its addition is the start of a sum that is counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.shapes import LayerShapes
from caffe_recipes.caffe.shaping.dims import Dim, Shape, product

Count = Callable[[LayerShapes, int], Dim]


def multiply_adds(layer: LayerShapes) -> Dim:
    """Count the multiply-adds with learned matrices; None where a shape is unknown.

    >>> conv = pb.LayerParameter(type="Convolution")
    >>> multiply_adds(LayerShapes(conv, ((2, 3, 8, 8),), ((2, 16, 8, 8),), ((16, 3, 3, 3), (16,))))
    55296
    """
    count = MATRICES.get(layer.layer.type)
    return _counted(layer, 0, count)


def other_operations(layer: LayerShapes, phase: int) -> Dim:
    """Count the operations other than multiply-adds with learned matrices; None where a shape is unknown."""
    return _counted(layer, phase, OTHERS.get(layer.layer.type))


def add_up(counts: Iterable[Dim]) -> Dim:
    """Add counts; unknown if one of them is."""
    total = 0
    for count in counts:
        if count is None:
            return None
        total += count
    return total


def size_of(shape: Shape | None) -> Dim:
    """Count the numbers of a blob; None where its shape is unknown."""
    return None if shape is None else product(shape)


def _counted(layer: LayerShapes, phase: int, count: Count | None) -> Dim:
    if layer.learned is None:
        return None
    return count(layer, phase) if count else 0


def _sizes(shapes: Iterable[Shape | None]) -> Dim:
    return add_up(size_of(shape) for shape in shapes)


def _weights(layer: LayerShapes, index: int) -> Shape:
    return layer.learned[index] if layer.learned else ()


def _convolution(layer: LayerShapes, phase: int) -> Dim:
    """Every output takes channels / group x kernel: out_c x out_h x out_w x in_c / group x k_h x k_w."""
    return product([_sizes(layer.tops), *_weights(layer, 0)[1:]])


def _deconvolution(layer: LayerShapes, phase: int) -> Dim:
    """Every input goes to num_output / group x kernel: in_c x in_h x in_w x out_c / group x k_h x k_w."""
    return product([_sizes(layer.bottoms), *_weights(layer, 0)[1:]])


def _inner_product(layer: LayerShapes, phase: int) -> Dim:
    """Every output takes all inputs: outputs x inputs."""
    transposed = layer.layer.inner_product_param.transpose
    return product([_sizes(layer.tops), _weights(layer, 0)[0 if transposed else 1]])


def _recurrent(layer: LayerShapes, phase: int) -> Dim:
    """Every step of every stream takes each matrix once; that of a static input, once a stream."""
    steps_streams = (layer.bottoms[0] or ())[:2]
    matrices = [shape for shape in layer.learned or () if len(shape) == 2]
    exposed = {"LSTM": 2, "RNN": 1}[layer.layer.type] * layer.layer.recurrent_param.expose_hidden
    has_static = len(layer.bottoms) - exposed == 3
    static = matrices.pop(1) if has_static else (0,)
    each_step = add_up(product([*steps_streams, *matrix]) for matrix in matrices)
    return add_up([each_step, product([*steps_streams[1:], *static])])


def _per_value(times: Callable[[pb.LayerParameter, int, int], int]) -> Count:
    def count(layer: LayerShapes, phase: int) -> Dim:
        return product([_sizes(layer.tops[:1]), times(layer.layer, phase, len(layer.bottoms))])

    return count


def _lrn_window(layer: pb.LayerParameter, phase: int, bottoms: int) -> int:
    param = layer.lrn_param
    return param.local_size ** (1 if param.norm_region == param.ACROSS_CHANNELS else 2)


def _batch_norm_passes(layer: pb.LayerParameter, phase: int, bottoms: int) -> int:
    """Normalizing is one; mean and variance of the batch are two more."""
    param = layer.batch_norm_param
    is_global = param.use_global_stats if param.HasField("use_global_stats") else phase == pb.TEST
    return 1 if is_global else 3


def _scale_operations(layer: pb.LayerParameter, phase: int, bottoms: int) -> int:
    return 1


def _eltwise_operations(layer: pb.LayerParameter, phase: int, bottoms: int) -> int:
    return bottoms if layer.eltwise_param.coeff else bottoms - 1


def _pooling(layer: LayerShapes, phase: int) -> Dim:
    """Every output takes its window, as if none were clipped; or every input is taken once."""
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
