"""A net for lint's rules: the layers of each phase, and the producer and shape of each blob."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.image_headers import image_shape
from caffe_recipes.caffe.layer_types import type_of
from caffe_recipes.caffe.shapes import select_layers

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from caffe_recipes.caffe.dialects import Dialect
    from caffe_recipes.caffe.image_headers import ImageShape
    from caffe_recipes.caffe.layer_types.dimensions import LayerShapes, Shape
    from caffe_recipes.caffe.layer_types.entry import LayerType


DatumOf = Callable[[str], pb.Datum | None]
# The smallest and the largest label of a source; None if unknown.
LabelsOf = Callable[[str], tuple[int, int] | None]
_MAX_STAGES = 8
Blob = tuple[int, int]  # (layer, top), or (-1, input)


def normalize_path(source: str) -> str:
    """Normalize a path so that different spellings compare equal. Does not follow links.

    >>> normalize_path("//data//./lmdb/"), normalize_path("lmdb/../lmdb"), normalize_path("")
    ('/data/lmdb', 'lmdb', '')
    """
    path = posixpath.normpath(source) if source else ""
    return path[1:] if path.startswith("//") else path


def layer_field(layer: int, field: str) -> str:
    """Return the path of a layer's field, which is the place of a finding until `Finding.located`."""
    return f"layer[{layer}].{field}"


@dataclass(frozen=True)
class PhaseNet:
    """The layers of one phase, in order; `indexes` are their positions in the file.

    `shapes` holds the inferred shapes of each layer, None if unknown. It is empty before inference.
    `given` is the net with the fields that only its dialect has; None if it was read as a net of ours.
    """

    net: pb.NetParameter
    phase: int
    stages: tuple[str, ...]
    indexes: tuple[int, ...]
    layers: tuple[pb.LayerParameter, ...]
    shapes: tuple[LayerShapes | None, ...] = ()
    given: Message | None = None

    @cached_property
    def flow(self) -> Flow:
        """The producer and the readers of each blob."""
        return trace_blobs(self.net.input, self.layers)

    @cached_property
    def has_data(self) -> bool:
        """Whether the phase has data: a layer without bottoms, or `input` fields."""
        return bool(self.net.input) or any(
            not layer.bottom and layer.top and layer.type != "Parameter" for layer in self.layers
        )

    @cached_property
    def gradients(self) -> frozenset[tuple[int, int]]:
        """Each (layer, bottom) that Caffe propagates a gradient to."""
        return _trace_gradients(self)

    @cached_property
    def is_fed_by_code(self) -> bool:
        """Whether the caller's code feeds the data, as in a deploy net. Unread tops are then outputs."""
        return not any(type_of(layer).is_reader or layer.type == "Python" for layer in self.layers)

    def given_layer(self, layer: int) -> Any:  # noqa: ANN401 - a message of the schema of all Caffes
        """Return a layer with the fields that only its dialect has, to be read with `getattr`."""
        return getattr(self.given, "layer", self.net.layer)[self.indexes[layer]]

    def where(self, layer: int, field: str) -> str:
        """Return the path, in the file, of a field of one of the layers."""
        return layer_field(self.indexes[layer], field)

    def producer(self, layer: int, bottom: int) -> Blob | None:
        """Return the (layer, top) that produces a bottom; None if none does."""
        return self.flow.producers.get((layer, bottom))

    def bottom_shape(self, layer: int) -> Shape | None:
        """Return the inferred shape of a layer's first bottom; None if unknown."""
        shapes = self.shapes[layer] if self.shapes else None
        return shapes.bottoms[0] if shapes and shapes.bottoms else None

    def learned(self, layer: int) -> tuple[Shape, ...] | None:
        """Return the inferred shapes of the blobs that a layer learns; None if unknown."""
        shapes = self.shapes[layer] if self.shapes else None
        return shapes.learned if shapes else None

    def producer_through(self, layer: int, bottom: int, passes: Callable[[LayerType], bool]) -> Blob | None:
        """Return the (layer, top) that a bottom comes from, through layers of types that pass it on."""
        producer = self.producer(layer, bottom)
        while producer is not None and producer[0] >= 0 and passes(type_of(self.layers[producer[0]])):
            producer = self.producer(producer[0], 0)
        return producer

    def ancestors(self, blob: Blob) -> frozenset[Blob]:
        """Return a blob and all blobs that it is computed from."""
        found = {blob}
        waiting = [blob]
        while waiting:
            layer, _ = waiting.pop()
            bottoms = range(len(self.layers[layer].bottom)) if layer >= 0 else ()
            producer = {one for b in bottoms if (one := self.producer(layer, b)) is not None}
            waiting += producer - found
            found |= producer
        return frozenset(found)

    def layers_above(self, layer: int, bottom: int = 0) -> Iterator[int]:
        """Yield the layers from the one that produces a bottom up to the data, along first bottoms."""
        producer = self.producer(layer, bottom)
        while producer is not None and producer[0] >= 0:
            yield producer[0]
            producer = self.producer(producer[0], 0)


@dataclass(frozen=True)
class Flow:
    """The producer of each bottom that has one (`producers`), and the readers of each blob (`readers`).

    `missing` are the bottoms without a producer. `redefined` maps each (layer, top) whose name an earlier
    blob already has to that blob.
    """

    producers: Mapping[tuple[int, int], Blob]
    readers: Mapping[Blob, Sequence[tuple[int, int]]]
    missing: Sequence[tuple[int, int]]
    redefined: Mapping[Blob, Blob]


@dataclass(frozen=True)
class NetView:
    """A net, its phases that have data, and facts that the file does not contain."""

    net: pb.NetParameter
    phases: tuple[PhaseNet, ...]
    classes: int | None
    datum_of: DatumOf
    dialect: Dialect
    labels_of: LabelsOf = lambda source: None

    @property
    def layers(self) -> Sequence[pb.LayerParameter]:
        """The layers in the order of the file."""
        return self.net.layer

    def where(self, layer: int, field: str) -> str:
        """Return the path of a field of one of the layers."""
        return layer_field(layer, field)

    def first_datum(self, layer: pb.LayerParameter) -> pb.Datum | None:
        """Return the first Datum of the source of a layer's transform; None if there is none here."""
        source = layer.data_param.source if layer.HasField("transform_param") else ""
        return self.datum_of(source) if source else None

    def phase(self, phase: int) -> PhaseNet | None:
        """Return a phase without stages; None if it has no data."""
        return next((each for each in self.phases if each.phase == phase and not each.stages), None)


def select_phases(net: pb.NetParameter) -> tuple[PhaseNet, ...]:
    """Return the states of a net that have data: each phase, without a stage and with each stage."""
    stages = dict.fromkeys(
        stage for layer in net.layer for rule in (*layer.include, *layer.exclude) for stage in rule.stage
    )
    # Limit the number of stages: each costs a pass over the whole net.
    stages = dict.fromkeys([*stages][:_MAX_STAGES])
    states = [
        (phase, names) for names in [(), *((stage,) for stage in stages)] for phase in (pb.TRAIN, pb.TEST)
    ]
    found = [_select_phase(net, phase, names) for phase, names in states]
    kept: dict[tuple[int, tuple[int, ...]], PhaseNet] = {}
    for each in found:
        if each.has_data:
            kept.setdefault((each.phase, each.indexes), each)
    return tuple(each for each in kept.values() if each.phase != pb.TRAIN or not is_deploy_net(each))


def is_deploy_net(phase: PhaseNet) -> bool:
    """Return whether a net is a deploy net, which is never trained: code feeds it, and it has no loss."""
    return phase.is_fed_by_code and not any(has_loss_top(layer) or is_loss(layer) for layer in phase.layers)


def _select_phase(net: pb.NetParameter, phase: int, stages: tuple[str, ...]) -> PhaseNet:
    chosen = select_layers(net, phase, stages=stages)
    indexes: list[int] = []
    layers: list[pb.LayerParameter] = []
    for index, layer in enumerate(net.layer):
        # Equal layers have equal rules, so any equal layer will do. One that contains a NaN does not equal
        # itself.
        at = len(layers)
        if at < len(chosen) and (layer is chosen[at] or layer == chosen[at]):
            indexes.append(index)
            layers.append(layer)
    return PhaseNet(net, phase, stages, tuple(indexes), tuple(layers))


def trace_blobs(inputs: Iterable[str], layers: Sequence[pb.LayerParameter]) -> Flow:
    """Return the producer and the readers of each blob of the layers of one phase, by their places here."""
    latest: dict[str, Blob] = {name: (-1, index) for index, name in enumerate(inputs)}
    producers: dict[tuple[int, int], Blob] = {}
    readers: dict[Blob, list[tuple[int, int]]] = {blob: [] for blob in latest.values()}
    missing: list[tuple[int, int]] = []
    redefined: dict[Blob, Blob] = {}
    for i, layer in enumerate(layers):
        for b, name in enumerate(layer.bottom):
            if name in latest:
                producers[i, b] = latest[name]
                readers[latest[name]].append((i, b))
            else:
                missing.append((i, b))
        for t, name in enumerate(layer.top):
            if name in latest and not is_in_place(layer, t):
                redefined[i, t] = latest[name]
            latest[name] = (i, t)
            readers[i, t] = []
    return Flow(producers, readers, missing, redefined)


def _trace_gradients(phase: PhaseNet) -> frozenset[tuple[int, int]]:
    """Find where Caffe propagates gradients: between layers that learn and a loss."""
    readers, producers = phase.flow.readers, phase.flow.producers
    needed: set[Blob] = set()
    bottoms: dict[tuple[int, int], bool] = {}
    learns: list[bool] = []
    for i, layer in enumerate(phase.layers):
        given = list(layer.propagate_down) if len(layer.propagate_down) == len(layer.bottom) else []
        reached = [producers.get((i, b)) in needed for b in range(len(layer.bottom))]
        bottoms |= {(i, b): given[b] if given else need for b, need in enumerate(reached)}
        learns.append(any(reached) or _has_gradient(layer, phase.learned(i)))
        if learns[-1]:
            needed |= {(i, t) for t in range(len(layer.top))}
    found: set[tuple[int, int]] = set()
    under_loss: set[int] = set()
    for i in reversed(range(len(phase.layers))):
        layer = phase.layers[i]
        tops = [readers.get((i, t), ()) for t in range(len(layer.top))]
        if not (any(loss_weights(layer)) or any(reader in under_loss for top in tops for reader, _ in top)):
            continue
        under_loss.add(i)
        is_skipped = bool(tops) and all(top and not any(bottoms[one] for one in top) for top in tops)
        if learns[i] and not is_skipped:
            found |= {(i, b) for b in range(len(layer.bottom)) if bottoms[i, b]}
    return frozenset(found)


def _has_gradient(layer: pb.LayerParameter, learned: tuple[Shape, ...] | None) -> bool:
    """Return whether Caffe computes gradients for a layer's weights. Without a `param`, lr_mult is 1."""
    count = len(learned) if learned is not None else int(type_of(layer).learned > 0)
    return len(layer.param) < count or any(param.lr_mult for param in layer.param[:count])


def is_in_place(layer: pb.LayerParameter, top: int) -> bool:
    """Return whether Caffe computes a top in place: it has the name of the bottom at the same position."""
    return top < len(layer.bottom) and layer.bottom[top] == layer.top[top]


def loss_weights(layer: pb.LayerParameter) -> tuple[float, ...]:
    """Return the loss weights of a layer's tops: those set, or else 1 for the top of a loss layer.

    >>> loss_weights(pb.LayerParameter(type="SoftmaxWithLoss")), loss_weights(pb.LayerParameter(type="ReLU"))
    ((1.0,), ())
    """
    if layer.loss_weight:
        return tuple(layer.loss_weight)
    return (1.0,) if has_loss_top(layer) and type_of(layer).loss_weight != 0 else ()


def is_loss(layer: pb.LayerParameter) -> bool:
    """Return whether a layer contributes to the loss, by its loss_weight or else by its type."""
    return any(loss_weights(layer))


def has_loss_top(layer: pb.LayerParameter) -> bool:
    """Return whether a layer's type is a loss, for which Caffe adds a missing top."""
    return "Loss" in layer.type


def record_shape(datum: pb.Datum | None) -> ImageShape | None:
    """Return the (channels, height, width) of a record; None if there is none, or its size is not known."""
    if datum is None:
        return None
    stated = (datum.channels, datum.height, datum.width)
    return image_shape(datum.data) if datum.encoded else stated if min(stated) > 0 else None


def outputs_of(phase: PhaseNet, i: int) -> int | None:
    """Return the number of class outputs that a loss or an accuracy reads; None if unknown."""
    layer, shape = phase.layers[i], phase.bottom_shape(i)
    param = layer.accuracy_param if layer.type == "Accuracy" else layer.softmax_param
    if shape is None or not -len(shape) <= param.axis < len(shape):
        return None
    return shape[param.axis]


def find_origin(phase: PhaseNet, i: int, b: int) -> tuple[int, int] | None:
    """Find the (layer, top) that a bottom comes from, through layers that pass it on unchanged."""
    origin = phase.producer_through(i, b, lambda entry: entry.is_view)
    return origin if origin is not None and origin[0] >= 0 else None


def is_computed(phase: PhaseNet, i: int, b: int) -> bool:
    """Return whether a bottom comes from a layer whose output is never a class number."""
    origin = find_origin(phase, i, b)
    return origin is not None and type_of(phase.layers[origin[0]]).is_never_label
