"""A net as lint's rules see it: the layers of each phase, where each blob comes from, and what it is."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.data_layers import BATCH_BLOCKS
from caffe_recipes.caffe.dialects import Dialect
from caffe_recipes.caffe.shapes import LayerShapes, select_layers
from caffe_recipes.caffe.shaping.dims import Shape

DatumOf = Callable[[str], pb.Datum | None]

# Which block of a source holds its batch_size.
SOURCE_BLOCKS = BATCH_BLOCKS
# Sources that read a file, or that the caller's code feeds.
READERS = frozenset(SOURCE_BLOCKS) | {"DummyData"}
_LEARNED_TYPES_WORDS = """
    BatchNorm Bias Convolution Deconvolution Embed InnerProduct LSTM MKLBatchNorm Normalize PReLU
    Parameter RNN Scale
"""
LEARNED_TYPES = frozenset(_LEARNED_TYPES_WORDS.split())

_MOST_STAGES = 8

Blob = tuple[int, int]  # (layer, top), or (-1, input)


def same_path(source: str) -> str:
    """Give a path in the one way that all ways of writing it share; links are not followed.

    >>> same_path("//data//./lmdb/"), same_path("lmdb/../lmdb"), same_path("")
    ('/data/lmdb', 'lmdb', '')
    """
    path = posixpath.normpath(source) if source else ""
    return path[1:] if path.startswith("//") else path


class Draft(NamedTuple):
    """A finding before it has its place and severity; equal ones of both phases become one.

    `layer` indexes the file's layers, None for what concerns the whole net; `field` is a path within it.
    """

    rule: str
    layer: int | None
    field: str
    what: str
    effect: str
    write: str
    values: tuple[tuple[str, float | str], ...] = ()


@dataclass(frozen=True)
class PhaseNet:
    """The layers that one phase keeps, in order; `indexes` counts them in the file.

    `shapes` holds what was inferred for each layer, or None where that was not possible. Its length is that
    of `layers`, or 0 before inference.
    """

    net: pb.NetParameter
    phase: int
    stages: tuple[str, ...]
    indexes: tuple[int, ...]
    layers: tuple[pb.LayerParameter, ...]
    shapes: tuple[LayerShapes | None, ...] = ()

    @cached_property
    def flow(self) -> Flow:
        """Who makes and who reads each blob."""
        return _trace(self.net.input, self.layers)

    @cached_property
    def has_source(self) -> bool:
        """Whether anything makes data here: a layer without bottoms, or `input` fields."""
        return bool(self.net.input) or any(
            not layer.bottom and layer.top and layer.type != "Parameter" for layer in self.layers
        )

    @cached_property
    def is_fed(self) -> bool:
        """Whether code feeds the data, so that whatever is left over is an output: a deploy net."""
        return not any(layer.type in READERS or layer.type == "Python" for layer in self.layers)

    def where(self, layer: int) -> int:
        """Give the index in the file of a layer of this phase."""
        return self.indexes[layer]

    def maker(self, layer: int, bottom: int) -> Blob | None:
        """Give the (layer, top) that makes a bottom."""
        return self.flow.makers.get((layer, bottom))

    def bottom_shape(self, layer: int, bottom: int) -> Shape | None:
        """Give the inferred shape of a bottom, None if it is not known."""
        shapes = self.shapes[layer] if self.shapes else None
        return shapes.bottoms[bottom] if shapes and bottom < len(shapes.bottoms) else None

    def learned(self, layer: int) -> tuple[Shape, ...] | None:
        """Give the inferred shapes of what a layer learns, None if they are not known."""
        shapes = self.shapes[layer] if self.shapes else None
        return shapes.learned if shapes else None

    def above(self, layer: int) -> Iterator[int]:
        """Walk from a layer to the sources along first bottoms, itself excluded."""
        made = self.maker(layer, 0)
        while made is not None and made[0] >= 0:
            yield made[0]
            made = self.maker(made[0], 0)


@dataclass(frozen=True)
class Flow:
    """`makers` gives the maker of each (layer, bottom) that has one, `readers` the readers of each blob.

    `twice` are the (layer, top) that make a blob that is there already, with the maker that was first.
    """

    makers: Mapping[tuple[int, int], Blob]
    readers: Mapping[Blob, Sequence[tuple[int, int]]]
    missing: Sequence[tuple[int, int]]
    twice: Mapping[Blob, Blob]


@dataclass(frozen=True)
class NetView:
    """One net, its phases that hold a source, and what the caller knows besides."""

    net: pb.NetParameter
    phases: tuple[PhaseNet, ...]
    classes: int | None
    datum_of: DatumOf
    dialect: Dialect

    def phase(self, phase: int) -> PhaseNet | None:
        """Give the net of a phase in the plain state, None if it has no source."""
        return next((each for each in self.phases if each.phase == phase and not each.stages), None)


def select_phases(net: pb.NetParameter) -> tuple[PhaseNet, ...]:
    """Give the states of a net that hold a source: each phase, with no stage and with each of the rules'."""
    stages = dict.fromkeys(
        stage for layer in net.layer for rule in (*layer.include, *layer.exclude) for stage in rule.stage
    )
    # Nobody writes so many; each costs a look at the whole net.
    stages = dict.fromkeys([*stages][:_MOST_STAGES])
    states = [
        (phase, names) for names in [(), *((stage,) for stage in stages)] for phase in (pb.TRAIN, pb.TEST)
    ]
    found = [_phase(net, phase, names) for phase, names in states]
    kept: dict[tuple[int, tuple[int, ...]], PhaseNet] = {}
    for each in found:
        if each.has_source:
            kept.setdefault((each.phase, each.indexes), each)
    return tuple(kept.values())


def _phase(net: pb.NetParameter, phase: int, stages: tuple[str, ...]) -> PhaseNet:
    chosen = select_layers(net, phase, stages=stages)
    indexes: list[int] = []
    layers: list[pb.LayerParameter] = []
    for index, layer in enumerate(net.layer):
        # Equal layers have equal rules: the first that equals the next chosen is it. NaN equals nothing.
        at = len(layers)
        if at < len(chosen) and (layer is chosen[at] or layer == chosen[at]):
            indexes.append(index)
            layers.append(layer)
    return PhaseNet(net, phase, stages, tuple(indexes), tuple(layers))


def _trace(inputs: Iterable[str], layers: Sequence[pb.LayerParameter]) -> Flow:
    latest: dict[str, Blob] = {name: (-1, index) for index, name in enumerate(inputs)}
    makers: dict[tuple[int, int], Blob] = {}
    readers: dict[Blob, list[tuple[int, int]]] = {blob: [] for blob in latest.values()}
    missing: list[tuple[int, int]] = []
    twice: dict[Blob, Blob] = {}
    for i, layer in enumerate(layers):
        for b, name in enumerate(layer.bottom):
            if name in latest:
                makers[i, b] = latest[name]
                readers[latest[name]].append((i, b))
            else:
                missing.append((i, b))
        for t, name in enumerate(layer.top):
            if name in latest and not is_in_place(layer, t):
                twice[i, t] = latest[name]
            latest[name] = (i, t)
            readers[i, t] = []
    return Flow(makers, readers, missing, twice)


def is_in_place(layer: pb.LayerParameter, top: int) -> bool:
    """Whether Caffe computes a top in place: it has the name of the bottom at the same position."""
    return top < len(layer.bottom) and layer.bottom[top] == layer.top[top]


def is_loss(layer: pb.LayerParameter) -> bool:
    """Whether a layer adds to the loss: by its loss_weight, or else by its type."""
    if layer.loss_weight:
        return any(layer.loss_weight)
    return "Loss" in layer.type


def title(layer: pb.LayerParameter) -> str:
    """Name a layer and its type, as errors do.

    >>> title(pb.LayerParameter(name="fc", type="InnerProduct"))
    "layer 'fc' (InnerProduct)"
    """
    return f"layer '{layer.name}' ({layer.type})"


def show_names(names: Sequence[str], most: int = 4) -> str:
    """List names, the first few of many.

    >>> show_names(["a", "b", "c"], most=2), show_names(["a", "b", "c"], most=3)
    ('a, b and 1 more', 'a, b, c')
    """
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


def number(value: float) -> str:
    """Write a float32 field as a person would.

    >>> number(0.949999988079071), number(0.0)
    ('0.95', '0')
    """
    return f"{value:.6g}"
