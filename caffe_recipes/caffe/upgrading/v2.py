"""What changed after nets had `layer`: inputs became a layer, and no statistics are learned.

Facts from Caffe's upgrade_proto.cpp.
"""

from __future__ import annotations

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.upgrading.moves import Step, count_of
from caffe_recipes.errors import PrototxtError

_AXES = 4  # what `input_dim` gives each input
_STATISTICS = 3  # blobs of BatchNorm: mean, variance, their factor


def upgrade_inputs(net: pb.NetParameter) -> Step | None:
    """Turn `input` with `input_shape` or `input_dim` into one Input layer, the first; None without `input`.

    Inputs without any shape, as in old caffemodels, are dropped, as Caffe does. Raises PrototxtError where
    there are fewer shapes than inputs.
    """
    if not net.input:
        return None
    shapes = _shapes(net)
    new = pb.NetParameter()
    new.CopyFrom(net)
    for field in ("input", "input_shape", "input_dim", "layer"):
        new.ClearField(field)
    if shapes:
        new.layer.add(name="input", type="Input", top=net.input, input_param=pb.InputParameter(shape=shapes))
    new.layer.MergeFrom(net.layer)
    if not shapes:
        return Step(new, {}, (f"{count_of(len(net.input), 'input')} without a shape: dropped",))
    moves = {f"layer[{index}]": f"layer[{index + 1}]" for index in range(len(net.layer))}
    for index in range(len(net.input)):
        moves[f"input[{index}]"] = f"layer[0].top[{index}]"
        moves[f"input_shape[{index}]"] = f"layer[0].input_param.shape[{index}]"
    spare = len(net.input)  # shapes beyond the inputs: their comments stay with the layer
    moves |= {f"input_shape[{index}]": "layer[0].spare" for index in range(spare, len(net.input_shape))}
    for index in range(len(net.input_dim)):
        blob, axis = divmod(index, _AXES)
        is_used = blob < len(net.input) and not net.input_shape
        moves[f"input_dim[{index}]"] = (
            f"layer[0].input_param.shape[{blob}].dim[{axis}]" if is_used else "layer[0].spare"
        )
    return Step(new, moves, (f"{count_of(len(net.input), 'input')}: now a layer of type Input",))


def upgrade_batch_norms(net: pb.NetParameter) -> Step | None:
    """Give the three `param` of each BatchNorm layer lr_mult 0 and decay_mult 0; None if all have them.

    The blobs are statistics, which are never learned. Layers with another number of `param` stay.
    """
    found = [index for index, layer in enumerate(net.layer) if _has_learned_statistics(layer)]
    if not found:
        return None
    new = pb.NetParameter()
    new.CopyFrom(net)
    for index in found:
        for param in new.layer[index].param:
            param.lr_mult = param.decay_mult = 0
    what = f"{count_of(len(found), 'BatchNorm layer')}: lr_mult 0 and decay_mult 0 for the statistics"
    return Step(new, {}, (what,))


def _has_learned_statistics(layer: pb.LayerParameter) -> bool:
    return (
        layer.type == "BatchNorm"
        and len(layer.param) == _STATISTICS
        and any(param.lr_mult != 0 or param.decay_mult != 0 for param in layer.param)
    )


def _shapes(net: pb.NetParameter) -> list[pb.BlobShape]:
    """Return the shape of each input; none if there are no shapes at all."""
    count = len(net.input)
    if net.input_shape:
        if len(net.input_shape) < count:
            what = f"{count_of(count, 'input')} but {len(net.input_shape)} input_shape"
            raise PrototxtError(f"input[{len(net.input_shape)}]", what, "give each its own")
        return list(net.input_shape)[:count]
    if not net.input_dim:
        return []
    if len(net.input_dim) < _AXES * count:
        what = f"{count_of(count, 'input')} but {len(net.input_dim)} input_dim"
        raise PrototxtError("input_dim[0]", what, f"give each {_AXES}: images, channels, height, width")
    return [pb.BlobShape(dim=net.input_dim[_AXES * i : _AXES * (i + 1)]) for i in range(count)]
