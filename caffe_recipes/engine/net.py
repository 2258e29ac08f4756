"""Set up a net in one phase, with its learned blobs, and run its forward pass.

Layers are filtered by the net's state, and Split layers are inserted where a blob is used more than once, as
in Caffe.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from google.protobuf import text_format
from torch import Generator, Tensor

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.refusals import IMPLICIT_LOSSES, IN_PLACE, bottoms_without_backward, find_refusals
from caffe_recipes.caffe.shapes import apply_stats_batch_size, infer_shapes
from caffe_recipes.engine.data import SOURCES, Feed, InputLayer, check_data, first_image
from caffe_recipes.engine.fillers import fill, starting_fillers
from caffe_recipes.engine.glog import Log, format_number
from caffe_recipes.engine.losses import LOSS_LAYERS, LabelError
from caffe_recipes.engine.ops import (
    DENSE,
    NORM,
    POINTWISE,
    SHAPE,
    Forward,
    LayerFault,
    Shape,
    Shapes,
    fault,
    known_shapes,
    scales_channels,
    show,
)
from caffe_recipes.errors import CaffeRecipesError, DataError, InputError, PrototxtError, escaped_error


@dataclass
class Param:
    """A learned blob that a layer owns; other layers may share it by its param name.

    `written` has those of lr_mult and decay_mult that a layer gives; a layer that shares the blob may give
    the others.
    """

    tensor: Tensor
    layer: str
    lr_mult: float
    decay_mult: float
    has_gradient: bool
    written: set[str] = field(default_factory=set)


@dataclass
class LayerNode:
    """A layer that is set up; `bottoms` and `tops` are the indices of its blobs among all blobs of the net.

    `learned` are the shapes of `blobs` in this layer; a shared blob may have another shape in its owner.
    """

    param: pb.LayerParameter
    forward: Forward
    bottoms: list[int]
    tops: list[int]
    cut: list[bool]
    blobs: list[Tensor] = field(default_factory=list)
    learned: tuple[Shape, ...] = ()
    weighted: list[tuple[int, float]] = field(default_factory=list)
    source: InputLayer | None = None


@dataclass(frozen=True)
class Call:
    """One call of a forward pass: a node, or a BatchNorm together with the Scale after it.

    `shapes` are the shapes to give to the blobs, if a shared one has another shape in its owner.
    """

    node: LayerNode
    tops: list[int]
    blobs: list[Tensor]
    weighted: list[tuple[int, float]]
    shapes: tuple[Shape, ...] = ()


@dataclass(frozen=True)
class Output:
    """A blob that no layer uses, whose value is logged."""

    name: str
    place: int
    loss_weight: float


@dataclass
class Overwritten:
    """The weight of a loss that a later layer also reads, and sends a gradient to.

    Caffe stores the weight in the blob's diff, which that gradient overwrites. So the loss trains nothing,
    and from the second pass on the printed loss uses the previous gradient as the weight (layer.hpp).
    """

    weight: Tensor | float
    _seen: Tensor | None = None

    def part(self, value: Tensor) -> Tensor:
        """Return the blob's contribution to the loss in this pass."""
        if self._seen is not None and self._seen.grad is not None:
            self.weight = self._seen.grad
        if value.requires_grad:
            value.retain_grad()
            self._seen = value
        return (value.detach() * self.weight).sum()


_Producer = tuple[int, int]


def filter_net(net: pb.NetParameter, note: Callable[[str], None]) -> pb.NetParameter:
    """Return the net with the layers whose rules meet `net.state`; `note` gets a line for each other one."""
    kept = pb.NetParameter()
    kept.CopyFrom(net)
    del kept.layer[:]
    for layer in net.layer:
        if layer.include:
            stays = any(_meets(net.state, rule, layer.name, note) for rule in layer.include)
        else:
            stays = not any(_meets(net.state, rule, layer.name, note) for rule in layer.exclude)
        if stays:
            kept.layer.add().CopyFrom(layer)
    return kept


def _meets(state: pb.NetState, rule: pb.NetStateRule, name: str, note: Callable[[str], None]) -> bool:
    if rule.HasField("phase") and rule.phase != state.phase:
        note(
            f"The NetState phase ({state.phase}) differed from the phase ({rule.phase}) "
            f"specified by a rule in layer {name}"
        )
        return False
    if rule.HasField("min_level") and state.level < rule.min_level:
        note(f"The NetState level ({state.level}) is below the min_level specified by a rule in layer {name}")
        return False
    if rule.HasField("max_level") and state.level > rule.max_level:
        note(f"The NetState level ({state.level}) is above the max_level specified by a rule in layer {name}")
        return False
    if not set(rule.stage) <= set(state.stage):
        note(f"The NetState did not contain a stage specified by a rule in layer {name}")
        return False
    if set(rule.not_stage) & set(state.stage):
        note(f"The NetState contained a not_stage specified by a rule in layer {name}")
        return False
    return True


def insert_splits(net: pb.NetParameter) -> pb.NetParameter:
    """Return the net with Split layers, named as in Caffe, so that each blob is used only once.

    A written loss_weight of such a blob moves to the first copy. Caffe then clears the whole field of the
    layer, so that its other tops lose their weights, and a loss layer gets its default weight again
    (insert_splits.cpp, loss_layer.cpp).
    """
    producers, uses = _trace(net)
    split = pb.NetParameter()
    split.CopyFrom(net)
    del split.layer[:]
    taken: Counter[_Producer] = Counter()
    for i, layer in enumerate(net.layer):
        own = split.layer.add()
        own.CopyFrom(layer)
        for b, blob in enumerate(layer.bottom):
            producer = producers[i, b]
            if uses[producer] > 1:
                own.bottom[b] = f"{_split_name(net, producer, blob)}_{taken[producer]}"
                taken[producer] += 1
        for t, blob in enumerate(layer.top):
            if uses[i, t] > 1:
                name = _split_name(net, (i, t), blob)
                copies = split.layer.add(name=name, type="Split", bottom=[blob])
                copies.top.extend(f"{name}_{k}" for k in range(uses[i, t]))
                weight = layer.loss_weight[t] if t < len(layer.loss_weight) else 0.0
                if weight:  # the first copy gets it, and has no other use
                    copies.loss_weight.extend([weight] + [0.0] * (uses[i, t] - 1))
                    own.ClearField("loss_weight")
                    taken[i, t] += 1
    return split


def _trace(net: pb.NetParameter) -> tuple[dict[tuple[int, int], _Producer], Counter[_Producer]]:
    """Return the (layer, top) that produces each (layer, bottom), and how often each is used."""
    latest: dict[str, _Producer] = {}
    producers: dict[tuple[int, int], _Producer] = {}
    uses: Counter[_Producer] = Counter()
    for i, layer in enumerate(net.layer):
        for b, blob in enumerate(layer.bottom):
            producers[i, b] = latest[blob]
            uses[latest[blob]] += 1
        for t, blob in enumerate(layer.top):
            latest[blob] = (i, t)
        for t, weight in enumerate(layer.loss_weight[: len(layer.top)]):
            if weight:  # a written loss weight counts as a use
                uses[i, t] += 1
    return producers, uses


def loss_weight(layer: pb.LayerParameter, top: int) -> float:
    """Return the weight of a top in the loss: as written, else 1 for the first top of a loss layer."""
    if top < len(layer.loss_weight):
        return layer.loss_weight[top]
    return float(not layer.loss_weight and layer.type in IMPLICIT_LOSSES and top == 0)


def _split_name(net: pb.NetParameter, producer: _Producer, blob: str) -> str:
    return f"{blob}_{net.layer[producer[0]].name}_{producer[1]}_split"


LAYERS = {**DENSE, **NORM, **POINTWISE, **SHAPE, **LOSS_LAYERS}
_TOPLESS = IMPLICIT_LOSSES | {"Silence"}  # a loss without a top gets one


class RunnableNet:
    """A net whose layers are set up and filled, for the phase, level and stages of `param.state`.

    `shared` is a net whose learned blobs are used by layer name, as a TEST net uses those of its TRAIN net.
    Raises InputError, with file, layer and type, if the engine cannot run the net.
    """

    def __init__(
        self,
        param: pb.NetParameter,
        path: str,
        feed: Feed,
        generator: Generator,
        log: Log,
        shared: RunnableNet | None = None,
    ) -> None:
        self.path, self.name = path, param.name
        self.nodes: list[LayerNode] = []
        self.params: list[Param] = []
        self.outputs: list[Output] = []
        self._log, self._feed, self._generator, self._shared = log, feed, generator, shared
        self._named: dict[str, Param] = {}
        self._place: dict[str, int] = {}
        self._shapes: list[Shape] = []
        self._values: list[Tensor] = []
        self._steps: list[Call] = []
        self._overwritten: dict[int, Overwritten] = {}
        self._forwards: dict[tuple[Shape, ...], list[Forward]] = {}
        self._elements = 0
        self.moment = ""  # the current pass, for error messages
        try:
            self._build(param)
        except (LayerFault, DataError) as error:
            raise error.reworded(where=f"{path}: {error.where}") from None

    def _build(self, param: pb.NetParameter) -> None:
        state = param.state
        filtered = filter_net(param, lambda text: self._log.info("net.cpp:1286", text))
        _check_layers(filtered)
        level, stages = state.level, list(state.stage)
        # Checks the net as the user wrote it, for errors with the user's names.
        infer_shapes(filtered, state.phase, level=level, stages=stages, path=self.path)
        split = insert_splits(filtered)
        for layer in split.layer:
            layer.CopyFrom(apply_stats_batch_size(split, layer))
        self._log.info("net.cpp:206", "Initializing net from parameters: ")
        self._log.info("net.cpp:207", "\n" + text_format.MessageToString(split).rstrip("\n"))
        for layer in split.layer:
            if not layer.HasField("phase"):
                layer.phase = state.phase
            for refusal in find_refusals(layer):  # insert_splits may have cleared loss weights
                what = "has a loss that another layer also reads: Caffe clears its loss_weight, and stops"
                raise fault(layer, what, refusal.write)
        self._split = split
        found = infer_shapes(
            split, state.phase, level=level, stages=stages, images=first_image, path=self.path
        )
        for shapes in found.layers:
            try:
                self._add(shapes.layer, known_shapes(shapes))
            except LayerFault:
                raise
            except InputError as error:
                raise fault(shapes.layer, error.without_hint, error.hint) from None
        self._find_outputs()
        self._find_overwritten()
        if state.phase == pb.TRAIN:
            self._check_backward()
        self._link()
        self._forwards[self._source_shapes()] = [node.forward for node in self.nodes]
        self._log.info("net.cpp:491", "Network initialization done.")

    def _find_outputs(self) -> None:
        """Collect the blobs that no layer uses, sorted by the bytes of their names."""
        used = {place for node in self.nodes for place in node.bottoms}
        weights = {place: weight for node in self.nodes for place, weight in node.weighted}
        for name in sorted(self._place, key=str.encode):
            place = self._place[name]
            if place not in used:
                self._log.info("net.cpp:451", f"This network produces output {name}")
                self.outputs.append(Output(name, place, weights.get(place, 0.0)))

    def _find_overwritten(self) -> None:
        """Collect the losses that also get a gradient from a later layer."""
        under_loss: set[int] = set()
        for node in reversed(self.nodes):
            for place, weight in node.weighted:
                if place in under_loss:
                    self._overwritten[place] = Overwritten(weight)
            if node.weighted or not under_loss.isdisjoint(node.tops):
                cut = node.cut or [False] * len(node.bottoms)
                under_loss |= {place for place, is_cut in zip(node.bottoms, cut, strict=True) if not is_cut}

    def _check_backward(self) -> None:
        """Raise InputError if a gradient would have to pass through a layer without a backward pass."""
        needed: set[int] = set()
        ways: list[tuple[LayerNode, list[bool]]] = []
        for node in self.nodes:
            reached = [place in needed for place in node.bottoms]
            count = len(node.learned)
            rates = [spec.lr_mult for spec in node.param.param[:count]]
            if any(reached) or any(rates) or len(rates) < count:
                needed.update(node.tops)
                ways.append((node, list(node.param.propagate_down) or reached))
        under_loss: set[int] = set()
        for node, goes_down in reversed(ways):
            if not node.weighted and under_loss.isdisjoint(node.tops):
                continue
            closed = [b for b in bottoms_without_backward(node.param) if goes_down[b]]
            if closed:
                # By index, since its name may be that of a Split layer that the user did not write.
                what = f"has no backward pass to bottom[{closed[0]}], but the loss needs its gradient"
                raise fault(node.param, what, "write propagate_down: false for this bottom")
            under_loss |= {place for place, is_down in zip(node.bottoms, goes_down, strict=True) if is_down}

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
            forward = self._set_up(layer, shapes)
        cut = [not down for down in layer.propagate_down]
        node = LayerNode(layer, forward, bottoms, self._tops(layer, shapes), cut, source=source)
        named = [other for other in self.nodes if other.param.name == layer.name]
        if any(shapes.learned or other.learned for other in named):
            what = "has the name of another layer: Caffe cannot load the snapshots of such a net"
            raise fault(layer, what, "rename one of the two")
        node.blobs, node.learned = self._learned(layer, shapes), shapes.learned
        self._weigh(node)
        self.nodes.append(node)

    def _set_up(self, layer: pb.LayerParameter, shapes: Shapes) -> Forward:
        """Return a layer's forward function."""
        try:
            return LAYERS[layer.type](layer, shapes)
        except CaffeRecipesError:
            raise
        except Exception as error:
            raise escaped_error(self._where(layer), error) from error

    def _where(self, layer: pb.LayerParameter) -> str:
        parts = (self.path, f"layer '{layer.name}' ({layer.type})", self.moment)
        return ": ".join(part for part in parts if part)

    def _check_memory(self, layer: pb.LayerParameter, shapes: Shapes) -> None:
        """Raise InputError if a layer's blobs alone are larger than this host's memory."""
        needed = 4 * sum(map(math.prod, (*shapes.tops, *shapes.learned)))
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        if needed > memory:
            what = f"needs {needed / 2**30:,.0f} GiB for its blobs, but this host has {memory / 2**30:,.0f}"
            raise fault(layer, what, "check its sizes")

    def _tops(self, layer: pb.LayerParameter, shapes: Shapes) -> list[int]:
        """Return a new index for each top, also for a top that is computed in place."""
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
        if not layer.top and layer.type in IMPLICIT_LOSSES:  # the loss gets a top without a name
            self._log.info("net.cpp:1472", f"{layer.name} -> (automatic)")
            places.append(len(self._shapes))
            self._shapes.append(())
        return places

    def _weigh(self, node: LayerNode) -> None:
        weights = [loss_weight(node.param, top) for top in range(len(node.tops))]
        for place, weight in zip(node.tops, weights, strict=True):
            shape = self._shapes[place]
            self._log.info("net.cpp:337", f"Top shape: {show(shape)}")
            if weight:
                self._log.info("net.cpp:340", f"    with loss weight {format_number(weight)}")
                node.weighted.append((place, weight))
            self._elements += math.prod(shape)
        self._log.info("net.cpp:345", f"Memory required for data: {self._elements * 4}")
        if node.weighted:
            node.param.loss_weight[:] = weights

    def _learned(self, layer: pb.LayerParameter, shapes: Shapes) -> list[Tensor]:
        """Return a layer's blobs: shared by name, of the shared net, or new and filled."""
        if len(layer.param) > len(shapes.learned):
            raise fault(layer, f"has {len(layer.param)} params for {len(shapes.learned)} learned blobs")
        kept = self._shared.blobs().get(layer.name, []) if self._shared else []
        known = self._shared.learned().get(layer.name, ()) if self._shared else ()
        if kept and known != shapes.learned:
            mine, other = (", ".join(map(show, of)) for of in (shapes.learned, known))
            raise fault(layer, f"has blobs {mine} here, but {other} in the TRAIN net")
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
            written = {name for name in ("lr_mult", "decay_mult") if spec.HasField(name)}
            learns = layer.type != "BatchNorm"
            owned = Param(tensor, layer.name, spec.lr_mult, spec.decay_mult, learns, written)
            self.params.append(owned)
            if spec.name:
                self._named[spec.name] = owned
            tensors.append(tensor)
        return tensors

    def _share(self, layer: pb.LayerParameter, spec: pb.ParamSpec, shape: Shape) -> Tensor:
        owner = self._named[spec.name]
        mine, theirs = shape, tuple(owner.tensor.shape)
        is_loose = spec.share_mode == pb.ParamSpec.PERMISSIVE
        if math.prod(mine) != math.prod(theirs) if is_loose else mine != theirs:
            what = f"shares param '{spec.name}' of layer '{owner.layer}' ({show(owner.tensor.shape)})"
            raise fault(layer, f"{what} as {show(shape)}", "give both the same shape")
        for name in ("lr_mult", "decay_mult"):
            if not spec.HasField(name):
                continue
            if name in owner.written and getattr(spec, name) != getattr(owner, name):
                raise fault(layer, f"shares param '{spec.name}' with another {name}", "give both the same")
            setattr(owner, name, getattr(spec, name))
            owner.written.add(name)
        return owner.tensor

    def learned(self) -> dict[str, tuple[Shape, ...]]:
        """Return the shapes of the learned blobs by layer, as the layer sees them."""
        return {node.param.name: node.learned for node in self.nodes if node.learned}

    def blobs(self) -> dict[str, list[Tensor]]:
        """Return the learned blobs by layer."""
        return {node.param.name: node.blobs for node in self.nodes if node.blobs}

    def rebind(self, moved: Callable[[Tensor], Tensor]) -> None:
        """Replace each learned blob by `moved(blob)`, so that blobs can be views of one buffer."""
        for param in self.params:
            param.tensor = moved(param.tensor)
        for node in self.nodes:
            node.blobs = [moved(blob) for blob in node.blobs]
        self._link()

    def _link(self) -> None:
        """List the calls of a forward pass."""
        self._values = [torch.empty(0)] * len(self._shapes)
        self._steps = []
        for node in self.nodes:
            before = self._steps[-1] if self._steps else None
            follows = before is not None and before.tops == node.bottoms
            is_norm = before is not None and before.node.param.type == "BatchNorm" and not before.shapes
            if before and follows and is_norm and _is_merged(node) and not any(node.cut):
                blobs = before.node.blobs + node.blobs
                self._steps[-1] = Call(before.node, node.tops, blobs, before.weighted + node.weighted)
            else:
                shapes = () if _keeps_shapes(node) else node.learned
                self._steps.append(Call(node, node.tops, node.blobs, node.weighted, shapes))

    def forward(self) -> Tensor:
        """Run all layers on the next batch, and return the loss: the sum of the weighted tops.

        Raises DataError, with the record, for a label outside the classes.
        """
        values, loss = self._values, None
        read = self._read()
        for step in self._steps:
            node = step.node
            xs = [values[place] for place in node.bottoms]
            if node.cut:
                xs = [x.detach() if cut else x for x, cut in zip(xs, node.cut, strict=True)]
            blobs = step.blobs
            if step.shapes:
                blobs = [blob.reshape(shape) for blob, shape in zip(blobs, step.shapes, strict=True)]
            tops = read.pop(0) if node.source is not None else self._run(node, xs, blobs)
            for place, top in zip(step.tops, tops, strict=True):
                values[place] = top
            for place, weight in step.weighted:
                if place in self._overwritten:
                    part = self._overwritten[place].part(values[place])
                else:
                    part = values[place].sum() if values[place].dim() else values[place]
                    part = part if weight == 1 else part * weight
                loss = part if loss is None else loss + part
        return loss if loss is not None else torch.zeros(())

    def _run(self, node: LayerNode, xs: list[Tensor], blobs: list[Tensor]) -> list[Tensor]:
        """Run one layer; errors name the layer."""
        try:
            return node.forward(xs, blobs)
        except LabelError as error:
            raise self._bad_label(node, error) from None
        except CaffeRecipesError:
            raise
        except Exception as error:
            raise escaped_error(self._where(node.param), error) from error

    def _read(self) -> list[list[Tensor]]:
        """Run the data layers, and set up the net again if the sizes of their batches have changed.

        Returns the tops of each data layer, in the order of the net.
        """
        sources = [node for node in self.nodes if node.source is not None]
        read = [self._run(node, [], node.blobs) for node in sources]
        changed = None
        for node, tops in zip(sources, read, strict=True):
            for place, top in zip(node.tops, tops, strict=True):
                if self._shapes[place] != tuple(top.shape):
                    self._shapes[place], changed = tuple(top.shape), node
        if changed is not None:
            self._reshape(changed)
        return read

    def _source_shapes(self) -> tuple[Shape, ...]:
        return tuple(self._shapes[place] for node in self.nodes if node.source for place in node.tops)

    def _reshape(self, source: LayerNode) -> None:
        """Set up the layers for batches of another size, as Caffe does in each pass."""
        net = pb.NetParameter()
        for node in self.nodes:
            layer = net.layer.add()
            layer.CopyFrom(node.param)
            layer.ClearField("include")
            layer.ClearField("exclude")
            if node.source:
                layer.type = "Input"
                layer.ClearField("input_param")
                for place in node.tops:
                    layer.input_param.shape.add(dim=self._shapes[place])
        try:
            found = [known_shapes(shapes) for shapes in infer_shapes(net, net.state.phase).layers]
        except PrototxtError as error:
            raise self._bad_size(source, error.what) from None
        key = self._source_shapes()
        if key not in self._forwards:
            self._forwards[key] = [
                node.forward if node.source else self._set_up(node.param, shapes)
                for node, shapes in zip(self.nodes, found, strict=True)
            ]
        for node, shapes, forward in zip(self.nodes, found, self._forwards[key], strict=True):
            if shapes.learned != node.learned:
                raise self._bad_size(source, f"layer '{node.param.name}' was set up for another size")
            node.forward = forward
            for place, shape in zip(node.tops, shapes.tops, strict=False):  # a loss may have an unnamed top
                self._shapes[place] = shape

    def _bad_size(self, source: LayerNode, what: str) -> DataError:
        record = source.source
        if record is None or not record.keys:
            return DataError(self.path, what, "give crop_size")
        return DataError(record.where, f"record '{record.keys[0]}': {what}", "give crop_size")

    def find_failing(self) -> str:
        """Return the layer whose backward pass fails, found by another pass with hooks."""
        reached = ""
        tensors: set[int] = set()

        def note(where: str) -> Callable[[Tensor], None]:
            def noted(_: Tensor) -> None:
                nonlocal reached
                reached = where

            return noted

        try:
            loss = self.forward()
            for node in self.nodes:
                for place in node.tops:
                    value = self._values[place]
                    if value.requires_grad and id(value) not in tensors:
                        tensors.add(id(value))
                        value.register_hook(note(self._where(node.param)))
            loss.backward()
        except Exception:  # the same failure, or another one
            return reached or f"{self.path}: {self.moment}"
        return reached or f"{self.path}: {self.moment}"

    def value(self, place: int) -> Tensor:
        """Return a blob after a forward pass, by its index."""
        return self._values[place].detach()

    def shape(self, place: int) -> Shape:
        """Return the shape of a blob, by its index."""
        return self._shapes[place]

    def scores(self) -> list[tuple[Output, float]]:
        """Return the values of the output blobs after a forward pass, element by element."""
        return [
            (output, float(value))
            for output in self.outputs
            for value in self._values[output.place].detach().reshape(-1).tolist()
        ]

    def _bad_label(self, node: LayerNode, error: LabelError) -> InputError:
        where = f"layer '{node.param.name}'"
        what = f"label {error.label} is not one of the {error.classes} classes"
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


def _check_layers(net: pb.NetParameter) -> None:
    """Raise InputError for layers that Caffe refuses, and for all layers that the engine does not support."""
    lacking = [layer for layer in net.layer if layer.type not in SOURCES and layer.type not in LAYERS]
    if lacking:
        types = ", ".join(dict.fromkeys(f"'{layer.type}'" for layer in lacking))
        where = ", ".join(f"layer '{layer.name}' ({layer.type})" for layer in lacking)
        what = f"type {types} is not supported" if "," not in types else f"types {types} are not supported"
        raise LayerFault(where, what, f"supported are {', '.join(sorted({*SOURCES, *LAYERS}))}")
    for layer in net.layer:
        for refusal in find_refusals(layer, net.engine):
            raise fault(layer, refusal.what, refusal.write)
        if not layer.top and layer.type not in _TOPLESS:
            raise fault(layer, "has no top", f'write top: "{layer.name}"')
        for top, bottom in zip(layer.top, layer.bottom, strict=False):
            if top == bottom and layer.type not in IN_PLACE:
                raise fault(layer, f"cannot write its top over its bottom '{top}'", f'top: "{layer.name}"')
        if layer.type == "Data":
            check_data(layer)


def _keeps_shapes(node: LayerNode) -> bool:
    """Return whether all blobs have the shapes that the layer expects; a shared one may have another."""
    return all(tuple(blob.shape) == shape for blob, shape in zip(node.blobs, node.learned, strict=True))


def _is_merged(node: LayerNode) -> bool:
    """Return whether a layer is computed together with the BatchNorm before it."""
    return scales_channels(node.param) and _keeps_shapes(node)
