"""A deploy net with its weights as a module of PyTorch; the state dict names blobs by layer and role."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.layer_types import type_of
from caffe_recipes.caffe.shapes import select_layers, stats_images
from caffe_recipes.caffe.weights import load_weights
from caffe_recipes.engine.calls import Call
from caffe_recipes.engine.glog import Log
from caffe_recipes.engine.net import RunnableNet
from caffe_recipes.engine.nodes import LayerNode
from caffe_recipes.engine.operators.data import SOURCES, DataContext
from caffe_recipes.engine.operators.operator import TensorShape
from caffe_recipes.engine.settings import load_net
from caffe_recipes.engine.snapshot import check_complete, copy_weights
from caffe_recipes.errors import DataError, InputError
from caffe_recipes.wording import describe_count

_Slot = tuple[nn.Module, str]  # the module of a layer, and the name of one of its blobs

_AUTOCAST = (torch.float32, torch.float16, torch.bfloat16)  # what torch.autocast converts: not float64


class CaffeModule(nn.Module):
    """A net in phase TEST: its inputs are those of its Input layers, in order, of any batch size.

    It returns the blob that no layer reads, or a dict of them by name if there are several. The state dict
    has the weights by layer and role, such as `conv1.weight`; a BatchNorm has `running_mean` and
    `running_var`, divided by Caffe's factor. `train()` changes nothing: dropout and statistics stay as in
    TEST.
    """

    def __init__(self, net: RunnableNet) -> None:
        """Take over a net that is set up and filled. Raises InputError for one without inputs or outputs."""
        super().__init__()
        self.net = net
        self._sources = [node for node in net.nodes if node.source is not None]
        names = {
            index: name for node in net.nodes for index, name in zip(node.tops, node.param.top, strict=False)
        }
        self.input_indexes = [index for node in self._sources for index in node.tops]
        self.output_indexes = sorted(output.index for output in net.outputs)
        if not self.input_indexes or not self.output_indexes:
            lacks = "output" if self.input_indexes else "input"
            raise InputError(net.path, f"has no {lacks}", "give a net with an Input layer and a prediction")
        self.input_names = tuple(names[index] for index in self.input_indexes)
        self.output_names = tuple(names[index] for index in self.output_indexes)
        slots: dict[int, _Slot] = {}
        with torch.no_grad():
            for node in net.nodes:
                self._register(node, slots)
        self._calls: list[tuple[Call, list[_Slot | None]]] = [
            (call, [slots.get(id(blob)) for blob in call.blobs]) for call in net.calls
        ]
        self.eval()

    @property
    def input_shapes(self) -> list[TensorShape]:
        """The shapes that the net was last set up for."""
        return [self.net.shape(index) for index in self.input_indexes]

    @property
    def word_counts(self) -> dict[int, int]:
        """The number of classes of the inputs that an Embed layer reads as class numbers, by index."""
        counts: dict[int, int] = {}
        for node in reversed(self.net.nodes):
            if node.param.type == "Embed":
                counts[node.bottoms[0]] = node.param.embed_param.input_dim
            elif type_of(node.param).is_view and (known := [counts[i] for i in node.tops if i in counts]):
                counts.update(dict.fromkeys(node.bottoms, min(known)))
        return {index: counts[index] for index in self.input_indexes if index in counts}

    @property
    def output_shapes(self) -> list[TensorShape]:
        """The shapes of the outputs, for inputs of `input_shapes`."""
        return [self.net.shape(index) for index in self.output_indexes]

    def _register(self, node: LayerNode, slots: dict[int, _Slot]) -> None:
        """Register the blobs of a layer, and note the place of each; the factor of a BatchNorm has none."""
        if not node.blobs:
            return
        holder: nn.Module = self
        for part in node.param.name.split("."):  # not add_module, which refuses names such as `type`
            holder = holder._modules.setdefault(part, nn.Module())  # type: ignore[assignment]
        is_norm = node.param.type == "BatchNorm"
        factor = 1 / node.blobs[2] if is_norm and node.blobs[2].any() else None
        names = type_of(node.param).blob_names(node.param)
        for blob, name in zip(node.blobs, names, strict=False):
            if name == "factor":
                continue
            if name.startswith("running"):
                holder.register_buffer(name, blob if factor is None else blob * factor)
            else:
                shared = slots.get(id(blob))
                holder.register_parameter(name, getattr(*shared) if shared else nn.Parameter(blob))
            slots[id(blob)] = holder, name

    def forward(self, *inputs: Tensor) -> Tensor | dict[str, Tensor]:
        """Return the output, or several by name.

        Raises DataError for inputs of a shape that does not fit, or that are not among the words of a layer,
        and TypeError for another number of inputs, or one that is not a tensor.
        """
        values = self.compute(inputs, self.output_indexes)
        made = {
            name: values[index] for name, index in zip(self.output_names, self.output_indexes, strict=True)
        }
        return made if len(made) > 1 else made[self.output_names[0]]

    def compute(self, inputs: Sequence[Tensor], wanted: Collection[int]) -> dict[int, Tensor]:
        """Return blobs by their index in the net; the others are freed as soon as nothing reads them."""
        if len(inputs) != len(self.input_indexes):
            takes = describe_count(len(self.input_indexes), "tensor")
            raise TypeError(f"takes {takes} ({', '.join(self.input_names)}), not {len(inputs)}")
        for name, x in zip(self.input_names, inputs, strict=True):
            if not isinstance(x, Tensor):
                convert = "; convert it: torch.from_numpy(x)" if isinstance(x, np.ndarray) else ""
                raise TypeError(f"input '{name}' is a {type(x).__name__}, not a tensor{convert}")
        inputs = self._cast_inputs(inputs)
        given = dict(zip(self.input_indexes, inputs, strict=True))
        self.resize([tuple(x.shape) for x in inputs])
        values = dict(given)
        for call, slots in self._calls:
            if call.node.source is None:
                xs = [values[index] for index in call.node.bottoms]
                tops = self.net.run_layer(call.node, xs, self._blobs(call, slots, inputs[0]))
                self.net.follow(call.node, tops)
                values.update(zip(call.tops, tops, strict=True))
                del xs, tops
                for index in call.spent:
                    if index not in wanted:
                        del values[index]
        return values

    def _cast_inputs(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Return inputs in the type of the weights, to which integers are converted, as in Caffe.

        Raises DataError for other numbers, except for floats that autocast converts, and for integers that
        weights of 16 bits cannot represent. A net without weights takes any floats.
        """
        mine = next(self.parameters(), None)
        return [
            self._cast(None if mine is None else mine.dtype, name, x)
            for name, x in zip(self.input_names, inputs, strict=True)
        ]

    def _cast(self, dtype: torch.dtype | None, name: str, x: Tensor) -> Tensor:
        if x.is_complex() or (x.is_floating_point() and x.dtype != (dtype or x.dtype)):
            if x.dtype in _AUTOCAST and torch.is_autocast_enabled(x.device.type):
                return x
            takes = _type_name(dtype or torch.float32)
            what = f"input '{name}' is {_type_name(x.dtype)}, but the weights are {takes}"
            hint = "give real numbers" if x.is_complex() else f"convert it: x.to(torch.{takes})"
            raise DataError(self.net.path, what, hint)
        if dtype is not None and dtype.itemsize == 2 and not x.is_floating_point() and x.dtype.itemsize > 1:
            what = (
                f"input '{name}' is {_type_name(x.dtype)}, whose values {_type_name(dtype)} may not represent"
            )
            hint = f"use the weights in float32, or convert it: x.to(torch.{_type_name(dtype)})"
            raise DataError(self.net.path, what, hint)
        return x if x.is_floating_point() else x.to(dtype or torch.float32)

    def resize(self, shapes: Sequence[TensorShape]) -> None:
        """Set the net up for inputs of these shapes. Raises InputError if it does not take them."""
        before = self.input_shapes
        try:
            self._fit(shapes)
        except InputError as error:
            self._fit(before)
            raise error.reworded(hint="give inputs of the sizes that the net takes") from None

    def _fit(self, shapes: Sequence[TensorShape]) -> None:
        given = dict(zip(self.input_indexes, shapes, strict=True))
        self.net.fit((node, [given[index] for index in node.tops]) for node in self._sources)

    def _blobs(self, call: Call, slots: Sequence[_Slot | None], like: Tensor) -> list[Tensor]:
        """Return the blobs of a call as the engine takes them; the sums of a BatchNorm have the factor 1."""
        blobs: list[Tensor] = [like.new_ones(1) if slot is None else getattr(*slot) for slot in slots]
        param = call.node.param
        if param.type == "BatchNorm" and stats_images(param, pb.TEST) is not None:
            blobs[:3] = [blob.clone() for blob in blobs[:3]]  # each pass changes these sums
        if call.shapes:
            blobs = [blob.reshape(shape) for blob, shape in zip(blobs, call.shapes, strict=True)]
        return blobs


def load_module(net: str | Path, weights: str | Path) -> CaffeModule:
    """Return the deploy net in a file with the weights of a caffemodel, in phase TEST.

    Raises PrototxtError, InputError or WeightsError.
    """
    return build_module(load_net(str(net)), load_weights(weights), str(net), str(weights))


def build_module(net: pb.NetParameter, weights: pb.NetParameter, path: str, weights_path: str) -> CaffeModule:
    """Return a net with weights as load_module does; the paths are for errors.

    Raises InputError for a net that reads its data itself.
    """
    quiet = Log(enabled=False)
    net.state.phase = pb.TEST
    # Before the net is set up, since its data may be absent.
    for layer in select_layers(net, pb.TEST, net.state.level, net.state.stage):
        if layer.type in SOURCES and layer.type != "Input":
            what = f"layer '{layer.name}' ({layer.type}) reads its data itself"
            raise InputError(path, what, "derive a net with caffe-recipes deploy")
    made = RunnableNet(net, path, DataContext(0, 1, 0, 0, quiet), torch.Generator())
    loaded = copy_weights(made, weights, weights_path, quiet)
    check_complete(made, {weights_path: loaded}, "give the weights of this net")
    return CaffeModule(made)


def _type_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
