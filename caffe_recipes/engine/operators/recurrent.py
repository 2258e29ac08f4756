"""Recurrent layers: sequences of steps x streams x features.

The second bottom, of steps x streams, is 0 where a sequence starts and 1 where it continues. Without
`expose_hidden`, the state after a batch is that before the next one. As in Caffe, it stays if the size of a
batch changes: fewer streams continue from the first states; if there are more streams than in any batch
before, all states start at 0. Exposed states pass no gradient on.

Source: BVLC Caffe, recurrent_layer.cpp, lstm_layer.cpp, lstm_unit_layer.cpp and rnn_layer.cpp.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.layer_types.recurrent import has_static_input
from caffe_recipes.engine.operators.operator import Forward, Setup, TensorShapes

_States = list[Tensor]
_Step = Callable[[Tensor, _States, Tensor, Sequence[Tensor]], tuple[Tensor, _States]]


def _recurrent(step: _Step, states: int) -> Setup:
    """Return the setup of a recurrent layer, whose `step` makes an output and its states from the last ones.

    A step gets the transformed input, the states, the continuation (streams, 1) and the blobs after those of
    the input.
    """

    def setup(layer: pb.LayerParameter, shapes: TensorShapes) -> Forward:
        outputs = layer.recurrent_param.num_output
        exposed, static = layer.recurrent_param.expose_hidden, has_static_input(layer)
        kept: _States = []

        def forward(xs: Sequence[Tensor], blobs: Sequence[Tensor]) -> list[Tensor]:
            x, begun, streams = xs[0].flatten(2), xs[1].detach(), xs[0].shape[1]
            inputs = functional.linear(x, blobs[0], blobs[1])
            if static:
                inputs = inputs + functional.linear(xs[2].flatten(1), blobs[2])
            last = kept or [x.new_zeros(0, outputs) for _ in range(states)]
            has_room = len(last[0]) >= streams
            current = [old[:streams] if has_room else x.new_zeros(streams, outputs) for old in last]
            if exposed:
                current = [state[0].detach() for state in xs[2 + static :]]
            found = []
            for at, continues in zip(inputs, begun, strict=True):
                output, current = step(at, current, continues[:, None], blobs[2 + static :])
                found.append(output)
            kept[:] = [
                torch.cat([state.detach(), old[streams:]]) if len(old) > streams else state.detach()
                for state, old in zip(current, last, strict=True)
            ]
            return [torch.stack(found), *(state[None].detach() for state in current if exposed)]

        return forward

    return setup


def _lstm_step(
    at: Tensor, states: _States, continues: Tensor, blobs: Sequence[Tensor]
) -> tuple[Tensor, _States]:
    gates = at + functional.linear(states[0] * continues, blobs[0])
    cell, hidden = _lstm_cell(states[1], gates, continues)
    return hidden, [hidden, cell]


def _lstm_cell(cell: Tensor, gates: Tensor, continues: Tensor) -> tuple[Tensor, Tensor]:
    """Return the next cell and hidden state. The gates: input, forget, output, and new cell values."""
    into, forget, out, new = gates.chunk(4, -1)
    kept = torch.where(continues == 0, 0.0, continues * torch.sigmoid(forget)) * cell
    cell = kept + torch.sigmoid(into) * torch.tanh(new)
    return cell, torch.sigmoid(out) * torch.tanh(cell)


def _rnn_step(
    at: Tensor, states: _States, continues: Tensor, blobs: Sequence[Tensor]
) -> tuple[Tensor, _States]:
    hidden = torch.tanh(at + functional.linear(states[0] * continues, blobs[0]))
    return torch.tanh(functional.linear(hidden, blobs[1], blobs[2])), [hidden]


def _lstm_unit(layer: pb.LayerParameter, shapes: TensorShapes) -> Forward:
    return lambda xs, _: [*_lstm_cell(xs[0], xs[1], xs[2].detach()[..., None])]


OPERATORS: dict[str, Setup] = {
    "LSTM": _recurrent(_lstm_step, 2),
    "RNN": _recurrent(_rnn_step, 1),
    "LSTMUnit": _lstm_unit,
}

STATEFUL = frozenset(("LSTM", "RNN"))
