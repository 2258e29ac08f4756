"""Shape rules of recurrent layers and of what stands before and behind them.

A sequence is a blob of steps x streams x features; its second bottom, steps x streams, is 0 where a new one
starts.
"""

from __future__ import annotations

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.shaping.dims import Dim, MisfitError, Result, Shape, Shapes, merge, product


def embed(layer: pb.LayerParameter, bottoms: Shapes) -> Result:
    """Look each index up among `input_dim` vectors of `num_output`."""
    param = layer.embed_param
    if not param.num_output or not param.input_dim:
        raise MisfitError("has no num_output" if not param.num_output else "has no input_dim")
    learned: list[Shape] = [(param.input_dim, param.num_output), (param.num_output,)]
    return [(*bottoms[0], param.num_output)], learned[: 1 + param.bias_term]


def lstm(layer: pb.LayerParameter, bottoms: Shapes) -> Result:
    """Run an LSTM: four gates, each of the input, the static input and the last hidden state."""
    inputs, static, hidden = _recurrent(layer, bottoms, states=2)
    outputs = hidden[-1] or 0
    gates = 4 * outputs
    learned: list[Shape] = [(gates, inputs), (gates,), *((gates, size) for size in static), (gates, outputs)]
    return _tops(layer, bottoms, hidden, states=2), learned


def rnn(layer: pb.LayerParameter, bottoms: Shapes) -> Result:
    """Run a plain recurrent layer: a hidden state and an output made of it."""
    inputs, static, hidden = _recurrent(layer, bottoms, states=1)
    outputs = hidden[-1] or 0
    square: Shape = (outputs, outputs)
    learned: list[Shape] = [(outputs, inputs), (outputs,), *((outputs, size) for size in static)]
    return _tops(layer, bottoms, hidden, states=1), [*learned, square, square, (outputs,)]


def lstm_unit(layer: pb.LayerParameter, bottoms: Shapes) -> Result:
    """Take one step of an LSTM: cell state, four gates, continuation; gives cell and hidden state."""
    cell, gates, begun = bottoms
    if any(len(shape) < 2 for shape in bottoms) or len(cell) < 3 or len(gates) < 3:
        raise MisfitError("needs a cell state and gates of 3 axes, and a continuation of 2")
    merge([cell[:2], gates[:2], begun[:2]])
    if None not in (cell[2], gates[2]) and gates[2] != 4 * (cell[2] or 0):
        raise MisfitError("needs four gates for each of its cells")
    return [cell, cell], []


def _recurrent(
    layer: pb.LayerParameter, bottoms: Shapes, states: int
) -> tuple[Dim, list[Dim], tuple[Dim, Dim, Dim]]:
    """Check the bottoms; give the input's size, the static input's if there is one, and a state's shape."""
    param, first = layer.recurrent_param, bottoms[0]
    if not param.num_output:
        raise MisfitError("has no num_output")
    exposed = states if param.expose_hidden else 0
    if not 2 + exposed <= len(bottoms) <= 3 + exposed:
        raise MisfitError(f"takes {2 + exposed} to {3 + exposed} bottoms, not {len(bottoms)}")
    if len(first) < 2 or len(bottoms[1]) != 2:
        raise MisfitError("needs a sequence of steps x streams, and a continuation of these two axes")
    merge([first[:2], bottoms[1]])
    hidden = (1, first[1], param.num_output)
    given = bottoms[len(bottoms) - exposed :]
    merge([hidden, *given])
    static = [product(shape[1:]) for shape in bottoms[2 : len(bottoms) - exposed]]
    if static:
        merge([(first[1],), bottoms[2][:1]])
    return product(first[2:]), static, hidden


def _tops(
    layer: pb.LayerParameter, bottoms: Shapes, hidden: tuple[Dim, Dim, Dim], states: int
) -> list[Shape]:
    exposed = states if layer.recurrent_param.expose_hidden else 0
    return [(*bottoms[0][:2], hidden[-1]), *[hidden] * exposed]
