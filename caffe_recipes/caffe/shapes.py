"""Infer the shape of every blob of a net as Caffe does when it sets up the net, without running it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from types import MappingProxyType

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.dialects.schema import has_unknown_effect
from caffe_recipes.caffe.layer_types import type_of
from caffe_recipes.caffe.layer_types.dimensions import (
    Images,
    LayerShapes,
    MisfitError,
    Shape,
    Shapes,
    check_size,
)
from caffe_recipes.errors import PrototxtError
from caffe_recipes.wording import describe_count, did_you_mean, shorten


@dataclass(frozen=True)
class NetShapes:
    """The layers of a net in one phase, in order, and the shape of each of its blobs by name."""

    layers: tuple[LayerShapes, ...]
    blobs: Mapping[str, Shape | None]


def show_shape(shape: Shape | None) -> str:
    """Return a shape as text for messages, shortened if it is long; unknown dimensions are `?`.

    >>> show_shape((32, None, 224, 224))
    '32x?x224x224'
    """
    if shape is None:
        return "of unknown shape"
    return shorten("x".join("?" if dim is None else str(dim) for dim in shape)) or "a scalar"


def select_layers(
    net: pb.NetParameter,
    phase: int,
    level: int = 0,
    stages: Collection[str] = (),
    note: Callable[[str], None] = lambda line: None,
) -> list[pb.LayerParameter]:
    """Return the layers that Caffe keeps in a phase: an `include` rule holds, or no `exclude` rule does.

    `note` gets the line that Caffe logs for each rule that does not hold.
    """

    def is_met(layer: pb.LayerParameter, rule: pb.NetStateRule) -> bool:
        fault = _unmet(rule, phase, level, stages)
        if fault:
            note(f"The NetState {fault} specified by a rule in layer {layer.name}")
        return not fault

    return [
        layer
        for layer in net.layer
        if any(is_met(layer, rule) for rule in layer.include or layer.exclude) == bool(layer.include)
    ]


def _unmet(rule: pb.NetStateRule, phase: int, level: int, stages: Collection[str]) -> str:
    """Return why a rule does not hold, in the words of Caffe's log; "" if it holds."""
    if rule.HasField("phase") and rule.phase != phase:
        return f"phase ({phase}) differed from the phase ({rule.phase})"
    if rule.HasField("min_level") and level < rule.min_level:
        return f"level ({level}) is below the min_level"
    if rule.HasField("max_level") and level > rule.max_level:
        return f"level ({level}) is above the max_level"
    if not all(stage in stages for stage in rule.stage):
        return "did not contain a stage"
    return "contained a not_stage" if any(stage in stages for stage in rule.not_stage) else ""


def stats_images(layer: pb.LayerParameter, phase: int) -> int | None:
    """Return how many images a BatchNorm normalizes together in a net of `phase`.

    0 means the whole batch, and None means running statistics. A layer's own phase overrides the net's.
    Source: batch_norm_layer.cpp and net.cpp.

    >>> stats_images(pb.LayerParameter(type="BatchNorm"), pb.TEST)
    """
    param = layer.batch_norm_param
    own_phase = layer.phase if layer.HasField("phase") else phase
    running = param.use_global_stats if param.HasField("use_global_stats") else own_phase == pb.TEST
    return None if running else param.stats_batch_size


def apply_stats_batch_size(net: pb.NetParameter, layer: pb.LayerParameter) -> pb.LayerParameter:
    """Return a layer with the `bn_stats_batch_size` of its net, which overrides a BatchNorm's own value."""
    if layer.type != "BatchNorm" or not net.HasField("bn_stats_batch_size"):
        return layer
    changed = deepcopy(layer)
    changed.batch_norm_param.stats_batch_size = net.bn_stats_batch_size
    return changed


class LayerMisfit(PrototxtError):
    """A `layer` does not fit the layers above it; `index` is its position in the phase, from 0."""

    def __init__(self, where: str, layer: pb.LayerParameter, index: int, what: str, hint: str) -> None:
        self.layer, self.index = layer, index
        super().__init__(where, f"layer '{layer.name}' ({layer.type}) {what}", hint)


def infer_shapes(
    net: pb.NetParameter,
    phase: int,
    *,
    level: int = 0,
    stages: Collection[str] = (),
    images: Images = lambda source: None,
    path: str = "",
    missing: Mapping[str, str] = MappingProxyType({}),
) -> NetShapes:
    """Infer the shape of each layer's bottoms, tops and learned blobs in `phase`.

    `images` maps an LMDB's path to the (channels, height, width) of its first record, or to None; unknown
    dimensions are None. `missing` maps the stand-ins for blobs that no layer produces, whose shapes are
    unknown, to the names in the net. Errors name `path`. Raises LayerMisfit for a bottom that no layer above
    produces, for a top that two layers produce, and for shapes that do not fit, naming the layers that
    produced them.
    """
    where = path or net.name or "net"
    if net.layers:
        raise PrototxtError(where, "has `layers` of the old format", "run caffe-recipes upgrade on it")
    blobs: dict[str, Shape | None] = _inputs(net, where) | dict.fromkeys(missing)
    producers = dict.fromkeys(blobs, "input")
    found = []
    for index, layer in enumerate(select_layers(net, phase, level, stages)):
        misfit = functools.partial(LayerMisfit, where, layer, index)
        _check_names(misfit, net, layer, producers, phase)
        bottoms = [blobs[name] for name in layer.bottom]
        try:
            tops, learned = _infer(layer, bottoms, images)
            for shape in filter(None, (*tops, *(learned or ()))):
                check_size(shape)
            _check_stats(apply_stats_batch_size(net, layer), phase, bottoms)
        except MisfitError as error:
            parts = [_describe_bottom(name, blobs, producers, missing) for name in layer.bottom]
            what = ": ".join(filter(None, [str(error), ", ".join(parts)]))
            raise misfit(what, f"fix {'one of these layers' if parts else 'this layer'}") from None
        blobs.update(zip(layer.top, tops, strict=True))
        producers.update(dict.fromkeys(layer.top, layer.name))
        found.append(LayerShapes(layer, tuple(bottoms), tuple(tops), learned))
    return NetShapes(tuple(found), MappingProxyType(blobs))


def _describe_bottom(
    name: str, blobs: Mapping[str, Shape | None], producers: Mapping[str, str], missing: Mapping[str, str]
) -> str:
    if name in missing:
        return f"'{missing[name]}', which no layer produces"
    return f"'{name}' is {show_shape(blobs[name])} (from layer '{producers[name]}')"


def _check_stats(layer: pb.LayerParameter, phase: int, bottoms: Sequence[Shape | None]) -> None:
    """Raise MisfitError unless the batch is a multiple of the images that BatchNorm normalizes together."""
    images = stats_images(layer, phase) if layer.type == "BatchNorm" else None
    batch = bottoms[0][0] if images and bottoms[0] else None
    if images and batch is not None and batch % images:
        raise MisfitError(f"has stats_batch_size {images}, which does not divide its batch of {batch}")


def _infer(
    layer: pb.LayerParameter, bottoms: Sequence[Shape | None], images: Images
) -> tuple[Sequence[Shape | None], tuple[Shape, ...] | None]:
    unknown: list[Shape | None] = [None] * len(layer.top)
    known = [bottom for bottom in bottoms if bottom is not None]
    learned: Shapes = ()
    tops: Sequence[Shape | None]
    entry = type_of(layer)
    if entry.source:
        tops = entry.source.shapes(layer, images)
    elif entry.shapes and not has_unknown_effect(layer):
        if not entry.bottoms[0] <= len(bottoms) <= entry.bottoms[1]:
            raise MisfitError(f"takes {entry.arity}, not {len(bottoms)}")
        if len(known) < len(bottoms):
            return unknown, None
        tops, learned = entry.shapes(layer, known)
    else:
        return unknown, None
    least = entry.min_tops(layer)
    # A layer may have no tops: Caffe then checks only the names, and a loss adds a top itself.
    if len(layer.top) > len(tops) or 0 < len(layer.top) < least:
        count = least if 0 < len(layer.top) < least else len(tops)
        raise MisfitError(f"produces {describe_count(count, 'top')}, not {len(layer.top)}")
    return tops[: len(layer.top)], tuple(learned)


def _inputs(net: pb.NetParameter, where: str) -> dict[str, Shape | None]:
    """Return the shapes of the `input:` fields, each from an `input_shape` or from four `input_dim`."""
    shapes: list[Shape] = [tuple(shape.dim) for shape in net.input_shape]
    dims = list(net.input_dim)
    shapes = shapes or [tuple(dims[i : i + 4]) for i in range(0, len(dims), 4)]
    try:
        for shape in shapes[: len(net.input)]:
            check_size(shape)
    except MisfitError as error:
        raise PrototxtError(where, f"input {error}", "write a smaller shape") from None
    return {name: shapes[i] if i < len(shapes) else None for i, name in enumerate(net.input)}


def _check_names(
    misfit: Callable[[str, str], LayerMisfit],
    net: pb.NetParameter,
    layer: pb.LayerParameter,
    producers: Mapping[str, str],
    phase: int,
) -> None:
    if layer.include and layer.exclude:
        raise misfit("has both include and exclude", "keep one of them")
    for name in layer.bottom:
        if name not in producers:
            hint = _suggest(net, name, producers, phase)
            raise misfit(f"reads blob '{name}', which no layer above it produces", hint)
    for index, name in enumerate(layer.top):
        in_place = index < len(layer.bottom) and layer.bottom[index] == name
        if name in producers and not in_place:
            what = f"produces blob '{name}', which layer '{producers[name]}' already produces"
            raise misfit(what, "rename one of the tops")


def _suggest(net: pb.NetParameter, name: str, producers: Mapping[str, str], phase: int) -> str:
    for layer in net.layer:
        if name in layer.top:
            stages = [rule.stage[0] for rule in layer.include if rule.stage]
            where = f"not before this one in phase {pb.Phase.Name(phase)}"
            where = f"only in stage '{stages[0]}'" if stages else where
            return f"layer '{layer.name}' produces it, but {where}"
    other = "use a blob that a layer above produces" if producers else "there are no blobs yet"
    return did_you_mean(name, producers, other, cutoff=0.5)
