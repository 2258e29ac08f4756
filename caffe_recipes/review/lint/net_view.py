"""A net for lint's rules: the layers of each phase, and the producer and shape of each blob.

The layer types that read each `*_param` block.

Nets in the old format (`layers`): as Caffe upgrades them, with places in the old text.

Nets without data, as a recipe completes them.
"""

from __future__ import annotations

import dataclasses
import functools
import posixpath
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, ClassVar

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.image_headers import ImageShape, image_shape
from caffe_recipes.caffe.layer_types import reads_block, type_of
from caffe_recipes.caffe.prototxt import LAYER, NO_COMMENTS, Document
from caffe_recipes.caffe.shapes import select_layers
from caffe_recipes.caffe.upgrade import as_current_net
from caffe_recipes.errors import PrototxtError
from caffe_recipes.review.lint.rules import finding, rule
from caffe_recipes.wording import plural

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from caffe_recipes.caffe.dialects import Dialect
    from caffe_recipes.caffe.layer_types.dimensions import LayerShapes, Shape
    from caffe_recipes.caffe.layer_types.entry import LayerType
    from caffe_recipes.review.lint.rules import Finding

old_net_rule = partial(rule, "a net in the old format")
phase_rule = partial(rule, "the phases of a net: the layers in each, and what must be the same in both")

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


def title(layer: pb.LayerParameter) -> str:
    """Return the name and type of a layer as messages show them.

    >>> title(pb.LayerParameter(name="fc", type="InnerProduct"))
    "layer 'fc' (InnerProduct)"
    """
    return f"layer '{layer.name}' ({layer.type})"


def layer_finding(
    name: str,
    net: NetView | PhaseNet,
    index: int,
    field: str,
    /,
    **others: Any,  # noqa: ANN401 - those of `finding`
) -> Finding:
    """Return a finding at a field of a layer.

    In the texts of its rule, `{layer}` is the layer's title, and `{layer_name}` its name alone.
    """
    layer = net.layers[index]
    return finding(name, net.where(index, field), layer=title(layer), layer_name=layer.name, **others)


def show_names(names: Sequence[str], limit: int = 4) -> str:
    """List names, at most `limit` of them.

    >>> show_names(["a", "b", "c"], limit=2), show_names(["a", "b", "c"], limit=3)
    ('a, b and 1 more', 'a, b, c')
    """
    shown = ", ".join(names[:limit])
    return shown if len(names) <= limit else f"{shown} and {len(names) - limit} more"


def record_shape(datum: pb.Datum | None) -> ImageShape | None:
    """Return the (channels, height, width) of a record; None if there is none, or its size is not known."""
    if datum is None:
        return None
    stated = (datum.channels, datum.height, datum.width)
    return image_shape(datum.data) if datum.encoded else stated if min(stated) > 0 else None


def show_layers(names: Sequence[str], kind: str = "") -> str:
    """Return the number of layers, with their type if `kind` is given, and the first few names.

    >>> show_layers(["a"]), show_layers(["a", "b"], "ReLU")
    ('1 layer (a)', '2 ReLU layers (a, b)')
    """
    layers = plural(len(names), "layer")
    return f"{len(names)} {f'{kind} ' if kind else ''}{layers} ({show_names(names)})"


def show_transform(param: pb.TransformationParameter, field: str) -> str:
    """Format a field of `transform_param` as in a prototxt written by hand.

    >>> show_transform(pb.TransformationParameter(mirror=True, mean_value=[1, 2]), "mean_value")
    '1, 2'
    """
    value = getattr(param, field)
    if field == "mean_value":
        return ", ".join(map(show_number, value)) or "none"
    if isinstance(value, str):
        return f"'{value}'" if value else "none"
    return str(value).lower() if isinstance(value, bool) else show_number(value)


def shapes_fit(one: Shape, other: Shape) -> bool:
    """Return whether two shapes may be equal; an unknown size may equal any size.

    >>> shapes_fit((10, None), (10, 64)), shapes_fit((10, 64), (10,))
    (True, False)
    """
    return len(one) == len(other) and all(
        a == b for a, b in zip(one, other, strict=True) if a is not None and b is not None
    )


def show_number(value: float) -> str:
    """Format a float32 field as in a prototxt written by hand.

    >>> show_number(0.949999988079071), show_number(0.0)
    ('0.95', '0')
    """
    return f"{value:.6g}"


# Blocks that the engine or MLSL reads, which any layer may have.
_ANY_TYPE_BLOCKS = frozenset(("mn_activation_param", "mn_grad_compress_param", "quantization_param"))
# Types that read `loss_param` in BVLC's and NVIDIA's Caffe, but not in Intel's.
_BVLC_LOSS_READERS = frozenset(("InfogainLoss", "SigmoidCrossEntropyLoss"))
_INTEL_ONLY_TYPE = "MKLBatchNorm"  # identifies Intel's Caffe


def readers_of(block: str, types: Iterable[str]) -> frozenset[str] | None:
    """Return the layer types that read a block of LayerParameter; None if any type may, or if unknown.

    >>> sorted(readers_of("inner_product_param", ["InnerProduct", "ReLU"]))
    ['InnerProduct']
    """
    if block in _ANY_TYPE_BLOCKS:
        return None
    readers = {name for name in types if reads_block(name, block)}
    if block == "loss_param" and _INTEL_ONLY_TYPE not in types:
        readers |= _BVLC_LOSS_READERS.intersection(types)
    return frozenset(readers) or None


@functools.cache
def block_readers(types: frozenset[str]) -> Mapping[str, frozenset[str]]:
    """Return the types that read each `*_param` block, except for blocks that any type may have."""
    names = (field.name for field in pb.LayerParameter.DESCRIPTOR.fields if field.message_type)
    found = {name: readers_of(name, types) for name in names if name.endswith("_param")}
    return {name: readers for name, readers in found.items() if readers is not None}


def filler_fields(layer: pb.LayerParameter) -> Iterator[tuple[str, pb.FillerParameter]]:
    """Yield each filler of a layer with its path, such as `convolution_param.weight_filler`."""
    for block, value in layer.ListFields():
        if block.message_type is None or not block.name.endswith("_param"):
            continue
        for field, filler in value.ListFields():
            if field.message_type is not pb.FillerParameter.DESCRIPTOR:
                continue
            path = f"{block.name}.{field.name}"
            if isinstance(filler, pb.FillerParameter):
                yield path, filler
            else:
                yield from ((f"{path}[{i}]", each) for i, each in enumerate(filler))


@old_net_rule(
    "old-format",
    "note",
    "a net in the old format (`layers`)",
    what="the net has {count} `layers` in the old format",
    effect="Caffe upgrades it whenever it reads it; lint checked the upgraded net",
    write="convert it with `caffe-recipes upgrade FILE`",
)
@old_net_rule(
    "upgrade-refused",
    "error",
    "a net in the old format that Caffe cannot upgrade",
    effect="Caffe aborts when it reads the net",
)
def upgrade_old(document: Document[pb.NetParameter]) -> tuple[Document[pb.NetParameter], list[Finding]]:
    """Return a net in the old format as Caffe upgrades it, with places in the old text, and the findings.

    A net that Caffe cannot upgrade is returned without layers.
    """
    old = document.message.layers
    note = finding("old-format", "layers[0]", count=len(old))
    try:
        return as_current_net(document), [note]
    except PrototxtError as error:
        refused = finding("upgrade-refused", error.where, error.what, write=error.hint)
        return dataclasses.replace(document, message=pb.NetParameter(input=["data"]), given=None), [refused]


@dataclass(frozen=True)
class DocumentWithData(Document[pb.NetParameter]):
    """A net with a data layer above its own, whose places are those in the text without that layer."""

    added: ClassVar[str] = "layer[0]."

    def where(self, field: str = "") -> str:
        """Return `file:line:column` of a field."""
        match = LAYER.match(field)
        return super().where(f"layer[{int(match[1]) - 1}]{field[match.end() :]}" if match else field)


@phase_rule(
    "no-data",
    "error",
    "a net in which no layer produces data, in either phase",
    what="no layer produces data, and the net has no `input`",
    effect="Caffe aborts: Unknown bottom blob; lint checked the net as if a layer produced data and label",
    write="add a data layer for each phase, or an Input layer; a recipe that names the net adds its own",
)
def add_data(document: Document[pb.NetParameter]) -> tuple[DocumentWithData, list[Finding]]:
    """Return a net without data with a layer that produces `data` and `label`, as recipes add it."""

    def complete(net: Any) -> Any:  # noqa: ANN401 - of our schema, or of that of all Caffes
        completed = type(net)(layer=[{"name": "of a recipe", "type": "HDF5Data", "top": ["data", "label"]}])
        completed.MergeFrom(net)
        return completed

    given = None if document.given is None else complete(document.given)
    net = complete(document.message)
    added = DocumentWithData(document.path, document.text, net, NO_COMMENTS, document.offsets, given=given)
    return added, [finding("no-data", "")]
