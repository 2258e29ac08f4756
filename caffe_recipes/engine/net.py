"""A net: its layers set up in one phase, its learned blobs, and the forward pass."""

from __future__ import annotations

import math
import os
from collections.abc import Callable

import torch
from google.protobuf import text_format
from torch import Generator, Tensor

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.shapes import infer_shapes
from caffe_recipes.engine.data import SOURCES, Feed, check_data, first_image
from caffe_recipes.engine.fillers import fill, starting_fillers
from caffe_recipes.engine.glog import Log, number
from caffe_recipes.engine.graph import filter_net, insert_splits, loss_weight
from caffe_recipes.engine.layer import Shape, Shapes, fault, known_shapes, show
from caffe_recipes.engine.losses import LOSS_LAYERS, LabelError
from caffe_recipes.engine.nodes import Node, Output, Param, Step
from caffe_recipes.engine.ops_dense import DENSE
from caffe_recipes.engine.ops_norm import NORM, scales_channels
from caffe_recipes.engine.ops_pointwise import POINTWISE
from caffe_recipes.engine.ops_shape import SHAPE
from caffe_recipes.errors import DataError, InputError

LAYERS = {**DENSE, **NORM, **POINTWISE, **SHAPE, **LOSS_LAYERS}


class Net:
    """The layers of `param` that there are in `param.state`, set up and filled.

    `shared` holds another net's learned blobs by layer name: a TEST net works on those of its TRAIN net.
    Raises InputError, naming file, layer and type, for a net that the engine cannot run.
    """

    def __init__(
        self,
        param: pb.NetParameter,
        path: str,
        feed: Feed,
        generator: Generator,
        log: Log,
        shared: Net | None = None,
    ) -> None:
        self.path, self.name = path, param.name
        self.nodes: list[Node] = []
        self.params: list[Param] = []
        self.outputs: list[Output] = []
        self._log, self._feed, self._generator, self._shared = log, feed, generator, shared
        self._named: dict[str, Param] = {}
        self._place: dict[str, int] = {}
        self._shapes: list[Shape] = []
        self._values: list[Tensor] = []
        self._steps: list[Step] = []
        self._elements = 0
        try:
            self._build(param)
        except InputError as error:
            if error.where.startswith(path):
                raise
            raise type(error)(f"{path}: {error.where}", error.what, error.hint) from None

    def _build(self, param: pb.NetParameter) -> None:
        state = param.state
        filtered = filter_net(param, lambda text: self._log.info("net.cpp:1286", text))
        for layer in filtered.layer:
            if layer.type not in SOURCES and layer.type not in LAYERS:
                known = ", ".join(sorted({*SOURCES, *LAYERS}))
                raise fault(layer, f"type '{layer.type}' is not supported", f"supported are {known}")
            if layer.type == "Data":
                check_data(layer)
        level, stages = state.level, list(state.stage)
        # For its errors, in the user's own names: after it every bottom has a maker.
        infer_shapes(filtered, state.phase, level=level, stages=stages, path=self.path)
        split = insert_splits(filtered)
        self._log.info("net.cpp:206", "Initializing net from parameters: ")
        self._log.info("net.cpp:207", "\n" + text_format.MessageToString(split).rstrip("\n"))
        for layer in split.layer:
            layer.phase = state.phase
        found = infer_shapes(
            split, state.phase, level=level, stages=stages, images=first_image, path=self.path
        )
        for shapes in found.layers:
            try:
                self._add(shapes.layer, known_shapes(shapes))
            except InputError as error:
                if error.where.startswith("layer "):
                    raise
                raise fault(shapes.layer, f"{error.where}: {error.what}", error.hint) from None
        self._find_outputs()
        self._link()
        self._log.info("net.cpp:491", "Network initialization done.")

    def _find_outputs(self) -> None:
        """Remember the blobs that no layer uses, by name in the order of bytes."""
        used = {place for node in self.nodes for place in node.bottoms}
        weights = {place: weight for node in self.nodes for place, weight in node.weighted}
        for name in sorted(self._place, key=str.encode):
            place = self._place[name]
            if place not in used:
                self._log.info("net.cpp:451", f"This network produces output {name}")
                self.outputs.append(Output(name, place, weights.get(place, 0.0)))

    def _add(self, layer: pb.LayerParameter, shapes: Shapes) -> None:
        self._check_memory(layer, shapes)
        self._log.info("net.cpp:261", f"Creating Layer {layer.name}")
        for blob in layer.bottom:
            self._log.info("net.cpp:1498", f"{layer.name} <- {blob}")
        bottoms = [self._place[blob] for blob in layer.bottom]
        source = None
        if layer.type in SOURCES:
            source = SOURCES[layer.type](layer, shapes, self._feed)
            forward = source.forward
        else:
            forward = LAYERS[layer.type](layer, shapes)
        if len(layer.propagate_down) not in (0, len(layer.bottom)):
            raise fault(layer, "propagate_down is not given once for each bottom")
        cut = [not down for down in layer.propagate_down]
        node = Node(layer, forward, bottoms, self._tops(layer, shapes), cut, source=source)
        node.blobs = self._learned(layer, shapes)
        self._weigh(node)
        self.nodes.append(node)

    def _check_memory(self, layer: pb.LayerParameter, shapes: Shapes) -> None:
        """Raise InputError where a layer's blobs alone are larger than this host's memory."""
        needed = 4 * sum(map(math.prod, (*shapes.tops, *shapes.learned)))
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        if needed > memory:
            what = f"needs {needed / 2**30:,.0f} GiB for its blobs, and this host has {memory / 2**30:,.0f}"
            raise fault(layer, what, "look at its numbers")

    def _tops(self, layer: pb.LayerParameter, shapes: Shapes) -> list[int]:
        """Give each top a place; an in-place top gets one of its own too."""
        for blob in layer.top:
            in_place = blob in layer.bottom
            mark = " (in-place)" if in_place else ""
            self._log.info("net.cpp:1459" if in_place else "net.cpp:1472", f"{layer.name} -> {blob}{mark}")
        self._log.info("net.cpp:330", f"Setting up {layer.name}")
        places = []
        for blob, shape in zip(layer.top, shapes.tops, strict=True):
            places.append(len(self._shapes))
            self._shapes.append(shape)
            self._place[blob] = places[-1]
        return places

    def _weigh(self, node: Node) -> None:
        weights = [loss_weight(node.param, top) for top in range(len(node.tops))]
        for place, weight in zip(node.tops, weights, strict=True):
            shape = self._shapes[place]
            self._log.info("net.cpp:337", f"Top shape: {show(shape)}")
            if weight:
                self._log.info("net.cpp:340", f"    with loss weight {number(weight)}")
                node.weighted.append((place, weight))
            self._elements += math.prod(shape)
        self._log.info("net.cpp:345", f"Memory required for data: {self._elements * 4}")
        if node.weighted:
            node.param.loss_weight[:] = weights

    def _learned(self, layer: pb.LayerParameter, shapes: Shapes) -> list[Tensor]:
        """Make a layer's blobs: another's, of the same name or in the net shared from, or new and filled."""
        if len(layer.param) > len(shapes.learned):
            raise fault(layer, f"has {len(layer.param)} params for {len(shapes.learned)} learned blobs")
        kept = self._shared.blobs().get(layer.name, []) if self._shared else []
        if kept and tuple(tuple(blob.shape) for blob in kept) != shapes.learned:
            mine, other = (", ".join(map(show, of)) for of in (shapes.learned, [b.shape for b in kept]))
            raise fault(layer, f"has blobs {mine} here, and {other} in the TRAIN net")
        tensors = []
        fillers = starting_fillers(layer)
        for index, shape in enumerate(shapes.learned):
            spec = layer.param[index] if index < len(layer.param) else pb.ParamSpec()
            if spec.name in self._named:
                tensors.append(self._share(layer, spec, shape))
                continue
            tensor = kept[index] if kept else torch.empty(shape)
            if not kept:
                fill(tensor, fillers[index], self._generator)
            owned = Param(tensor, layer.name, spec.lr_mult, spec.decay_mult, layer.type != "BatchNorm")
            self.params.append(owned)
            if spec.name:
                self._named[spec.name] = owned
            tensors.append(tensor)
        return tensors

    def _share(self, layer: pb.LayerParameter, spec: pb.ParamSpec, shape: Shape) -> Tensor:
        owner = self._named[spec.name]
        if tuple(owner.tensor.shape) != shape:
            what = f"shares param '{spec.name}' of layer '{owner.layer}' ({show(owner.tensor.shape)})"
            raise fault(layer, f"{what} as {show(shape)}", "give both one shape")
        for name in ("lr_mult", "decay_mult"):
            if spec.HasField(name) and getattr(spec, name) != getattr(owner, name):
                raise fault(layer, f"shares param '{spec.name}' with another {name}", "give both the same")
        return owner.tensor

    def blobs(self) -> dict[str, list[Tensor]]:
        """Give the learned blobs of each layer that has any."""
        return {node.param.name: node.blobs for node in self.nodes if node.blobs}

    def rebind(self, moved: Callable[[Tensor], Tensor]) -> None:
        """Replace each learned blob by `moved(blob)`: the updates keep them side by side in one buffer."""
        for param in self.params:
            param.tensor = moved(param.tensor)
        for node in self.nodes:
            node.blobs = [moved(blob) for blob in node.blobs]
        self._link()

    def _link(self) -> None:
        """Line up the calls of a forward pass."""
        self._values = [torch.empty(0)] * len(self._shapes)
        self._steps = []
        for node in self.nodes:
            before = self._steps[-1] if self._steps else None
            follows = before is not None and before.tops == node.bottoms
            if before and follows and before.node.param.type == "BatchNorm" and scales_channels(node.param):
                blobs = before.node.blobs + node.blobs
                self._steps[-1] = Step(before.node, node.tops, blobs, before.weighted + node.weighted)
            else:
                self._steps.append(Step(node, node.tops, node.blobs, node.weighted))

    def forward(self) -> Tensor:
        """Run all layers on the next batch and give the loss: the sum of the weighted tops.

        Raises DataError, naming the record, for a label that is no class.
        """
        values, loss = self._values, None
        for step in self._steps:
            node = step.node
            xs = [values[place] for place in node.bottoms]
            if node.cut:
                xs = [x.detach() if cut else x for x, cut in zip(xs, node.cut, strict=True)]
            try:
                tops = node.forward(xs, step.blobs)
            except LabelError as error:
                raise self._bad_label(node, error) from None
            for place, top in zip(step.tops, tops, strict=True):
                values[place] = top
            for place, weight in step.weighted:
                part = values[place].sum() if values[place].dim() else values[place]
                part = part if weight == 1 else part * weight
                loss = part if loss is None else loss + part
        return loss if loss is not None else torch.zeros(())

    def value(self, place: int) -> Tensor:
        """Give a blob after a forward pass, by its place."""
        return self._values[place].detach()

    def shape(self, place: int) -> Shape:
        """Give a blob's shape, by its place."""
        return self._shapes[place]

    def scores(self) -> list[tuple[Output, float]]:
        """Give the output blobs' values after a forward pass, element by element."""
        return [
            (output, float(value))
            for output in self.outputs
            for value in self._values[output.place].detach().reshape(-1).tolist()
        ]

    def _bad_label(self, node: Node, error: LabelError) -> InputError:
        where, what = f"layer '{node.param.name}'", f"label {error.label} is none of {error.classes} classes"
        for other in self.nodes:
            if other.source is not None and error.position < len(other.source.keys):
                key = other.source.keys[error.position]
                hint = f"layer '{node.param.name}' has {error.classes} classes"
                return DataError(other.source.where, f"record '{key}' has label {error.label}", hint)
        return InputError(f"{self.path}: {where}", what)

    def close(self) -> None:
        """Stop reading ahead."""
        for node in self.nodes:
            if node.source is not None:
                node.source.close()
