"""Recurrent layers.

A sequence is a blob of steps x streams x features; the second bottom of a recurrent layer is its continuation
blob of steps x streams, which is 0 where a new sequence starts.
"""

from __future__ import annotations

from dataclasses import replace

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.layer_types.dimensions import (
    Dim,
    LayerShapes,
    MisfitError,
    Shape,
    Shapes,
    merge,
    product,
    require,
    sum_counts,
)
from caffe_recipes.caffe.layer_types.entry import LayerType, Result, per_value

_STATES = {"LSTM": 2, "RNN": 1}  # that expose_hidden adds to the bottoms and tops


def _lstm(layer: pb.LayerParameter, bottoms: Shapes) -> Result:
    """Run an LSTM, whose four gates depend on the input, the static input and the last hidden state."""
    inputs, static, tops = _recurrent(layer, bottoms)
    outputs = layer.recurrent_param.num_output
    gates = 4 * outputs
    learned: list[Shape] = [(gates, inputs), (gates,), *((gates, size) for size in static), (gates, outputs)]
    return tops, learned


def _rnn(layer: pb.LayerParameter, bottoms: Shapes) -> Result:
    """Run a plain recurrent layer, with a hidden state and an output computed from it."""
    inputs, static, tops = _recurrent(layer, bottoms)
    outputs = layer.recurrent_param.num_output
    square: Shape = (outputs, outputs)
    learned: list[Shape] = [(outputs, inputs), (outputs,), *((outputs, size) for size in static)]
    return tops, [*learned, square, square, (outputs,)]


def _lstm_unit(layer: pb.LayerParameter, bottoms: Shapes) -> Result:
    """Run one step of an LSTM, from cell state, four gates and continuation to cell and hidden state."""
    cell, gates, begun = bottoms
    if any(len(shape) < 2 for shape in bottoms) or len(cell) < 3 or len(gates) < 3:
        raise MisfitError("needs a cell state and gates with 3 axes, and a continuation blob with 2")
    merge([cell[:2], gates[:2], begun[:2]])
    if None not in (cell[2], gates[2]) and gates[2] != 4 * (cell[2] or 0):
        raise MisfitError("needs four gates for each of its cells")
    return [cell, cell], []


def _recurrent(layer: pb.LayerParameter, bottoms: Shapes) -> tuple[Dim, list[Dim], list[Shape]]:
    """Check the bottoms; return the sizes of the input and of any static input, and the tops."""
    param, first = layer.recurrent_param, bottoms[0]
    require(param, "num_output")
    exposed = _count_exposed(layer)
    if not 2 + exposed <= len(bottoms) <= 3 + exposed:
        raise MisfitError(f"takes {2 + exposed} to {3 + exposed} bottoms, not {len(bottoms)}")
    if len(first) < 3 or len(bottoms[1]) != 2:  # its InnerProduct has the axis 2
        raise MisfitError("needs a sequence of steps x streams x values, and a blob of steps x streams")
    merge([first[:2], bottoms[1]])
    hidden: Shape = (1, first[1], param.num_output)
    merge([hidden, *bottoms[len(bottoms) - exposed :]])
    static = [product(shape[1:]) for shape in bottoms[2 : len(bottoms) - exposed]]
    if static:
        merge([(first[1],), bottoms[2][:1]])
    return product(first[2:]), static, [(*first[:2], param.num_output), *[hidden] * exposed]


def has_static_input(layer: pb.LayerParameter) -> bool:
    """Return whether a recurrent layer has a third bottom that is the same in all steps."""
    return len(layer.bottom) - _count_exposed(layer) == 3


def _lstm_fillers(layer: pb.LayerParameter) -> list[pb.FillerParameter]:
    weight, bias = layer.recurrent_param.weight_filler, layer.recurrent_param.bias_filler
    return [weight, bias, *[weight] * has_static_input(layer), weight]


def _rnn_fillers(layer: pb.LayerParameter) -> list[pb.FillerParameter]:
    return [*_lstm_fillers(layer), layer.recurrent_param.weight_filler, layer.recurrent_param.bias_filler]


def _lstm_blobs(layer: pb.LayerParameter) -> tuple[str, ...]:
    return ("weight_x", "bias", *["weight_static"] * has_static_input(layer), "weight_h")


def _rnn_blobs(layer: pb.LayerParameter) -> tuple[str, ...]:
    return (*_lstm_blobs(layer), "weight_o", "bias_o")


def _count_exposed(layer: pb.LayerParameter) -> int:
    return _STATES[layer.type] * layer.recurrent_param.expose_hidden


def _multiply_adds(found: LayerShapes, phase: int) -> Dim:
    """Count each matrix once per time step and stream; the matrix of a static input, once per stream."""
    steps_streams = (found.bottoms[0] or ())[:2]
    matrices = [shape for shape in found.learned or () if len(shape) == 2]
    static = matrices.pop(1) if has_static_input(found.layer) else (0,)
    each_step = sum_counts(product([*steps_streams, *matrix]) for matrix in matrices)
    return sum_counts([each_step, product([*steps_streams[1:], *static])])


_LSTM = LayerType(
    "LSTM",
    blocks=("recurrent_param",),
    shapes=_lstm,
    bottoms=(2, 5),
    min_tops=lambda layer: 1 + _count_exposed(layer),
    learned=4,
    fillers=_lstm_fillers,
    blob_names=_lstm_blobs,
    no_backward=(1,),
    multiply_adds=_multiply_adds,
    details=lambda layer: str(layer.recurrent_param.num_output),
    kind="matrix",
)

TYPES = (
    _LSTM,
    replace(
        _LSTM,
        name="RNN",
        shapes=_rnn,
        bottoms=(2, 4),
        learned=6,
        fillers=_rnn_fillers,
        blob_names=_rnn_blobs,
    ),
    LayerType(
        "LSTMUnit",
        shapes=_lstm_unit,
        bottoms=(3, 3),
        min_tops=lambda layer: 2,
        no_backward=(2,),
        operations=lambda found, phase: per_value(found, 3),
    ),
)
