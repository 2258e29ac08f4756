"""A net in numbers: each layer's shapes and what it costs, in one phase."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.dialects import layer_type_dialects, nearest_layer_type
from caffe_recipes.caffe.prototxt import MOST_BYTES
from caffe_recipes.caffe.shapes import NetShapes, infer_shapes, select_layers
from caffe_recipes.caffe.shaping.rules import RULES
from caffe_recipes.caffe.shaping.sources import SOURCES, Image
from caffe_recipes.errors import InputError, PrototxtError
from caffe_recipes.review.counts import LayerCount, Totals, count_layers, total
from caffe_recipes.review.net_files import GivenNet, load_net
from caffe_recipes.review.net_inputs import image_reader, needs_image, with_batch, with_image


@dataclass(frozen=True)
class Options:
    """What a user may say about the net; None is what its file says."""

    phase: int | None = None
    level: int | None = None
    stages: tuple[str, ...] = ()
    batch: int | None = None
    image: Image | None = None
    caffe_root: Path | None = None
    max_bytes: int = MOST_BYTES


@dataclass(frozen=True)
class Summary:
    """A net in one phase; `batch` is the first dimension of the first input, None where that is unknown.

    `hint` says why shapes are unknown and what to give; empty where all are known.
    """

    path: str
    net: str
    phase: str
    level: int
    stages: tuple[str, ...]
    batch: int | None
    layers: tuple[LayerCount, ...]
    totals: Totals
    hint: str = ""


@dataclass(frozen=True)
class ReadNet:
    """A net as the options leave it, the phase to look at, and its level and stages.

    `failures` gathers what is wrong with the LMDBs that were looked into.
    """

    path: str
    message: pb.NetParameter
    phase: int
    level: int
    stages: tuple[str, ...]
    options: Options = field(default_factory=Options)
    failures: list[str] = field(default_factory=list, compare=False)

    def infer(self, phase: int) -> NetShapes:
        """Work out the shapes of one phase; PrototxtError where they do not fit, or no Caffe has a type."""
        _check_types(self.path, select_layers(self.message, phase, self.level, self.stages))
        images = image_reader(self.options.image, self.options.caffe_root, self.failures)
        return infer_shapes(
            self.message, phase, level=self.level, stages=self.stages, images=images, path=self.path
        )

    def only_phase(self, layers: Sequence[pb.LayerParameter]) -> list[str]:
        """Name for each of these layers the one phase that has it; empty where both do."""
        kept = {
            pb.Phase.Name(phase): {
                id(layer) for layer in select_layers(self.message, phase, self.level, self.stages)
            }
            for phase in (pb.TRAIN, pb.TEST)
        }
        holding = [[name for name, ids in kept.items() if id(layer) in ids] for layer in layers]
        return [names[0] if len(names) == 1 else "" for names in holding]


def read_net(given: str, options: Options) -> ReadNet:
    """Read the net that a prototxt, a solver or a recipe's name means, with the batch and image asked for.

    Raises PrototxtError, RecipeError, or InputError for an option that changes nothing.
    """
    found = load_net(given, options.phase, options.caffe_root, options.max_bytes)
    net = found.message
    if not net.layer:
        raise InputError(found.path, "has no layers", "give a net, a solver or a recipe")
    is_idle = options.image is not None and not needs_image(net)
    if options.image is not None:
        net = with_image(net, options.image, options.batch or 1)
    if options.batch is not None and not is_idle:
        net = with_batch(net, options.batch)
    level = found.state.level if options.level is None else options.level
    stages = options.stages or tuple(found.state.stage)
    phase = _default_phase(found, net, level, stages) if options.phase is None else options.phase
    read = ReadNet(found.path, net, phase, level, stages, options)
    if is_idle:
        read.infer(phase)  # a bottom that no layer makes, say, goes before
        raise InputError(found.path, *_needs_no_image(net))
    return read


def _needs_no_image(net: pb.NetParameter) -> tuple[str, str]:
    """Say why --input changes nothing in a net, and what to do."""
    for layer in net.layer:
        if not layer.bottom and layer.top and layer.type not in SOURCES:
            what = f"layer '{layer.name}' ({layer.type}) makes blobs whose shape only a run tells"
            return what, "--input is for images of data layers: put an Input layer in its place"
    return "states the size of all its inputs", "leave --input out"


def summarize(net: ReadNet) -> Summary:
    """Count a net in its phase; raises PrototxtError where shapes do not fit."""
    shapes = net.infer(net.phase)
    layers = count_layers(shapes, net.phase, net.only_phase([found.layer for found in shapes.layers]))
    if not layers:
        name = pb.Phase.Name(net.phase)
        raise InputError(net.path, f"has no layer in phase {name}", "give another --phase or --stage")
    totals = total(layers)
    return Summary(
        net.path,
        net.message.name,
        pb.Phase.Name(net.phase),
        net.level,
        net.stages,
        _batch(layers),
        layers,
        totals,
        _hint(layers, net.failures) if totals.unknown else "",
    )


def per_image(count: int, batch: int | None) -> int | None:
    """Share a batch's count among its images, rounded up.

    >>> per_image(130853896192, 32), per_image(5, None)
    (4089184256, None)
    """
    return -(-count // batch) if batch else None


def has_inputs(net: pb.NetParameter, phase: int, level: int = 0, stages: Sequence[str] = ()) -> bool:
    """Whether a phase of the net has a layer that makes data."""
    return any(
        layer.type in SOURCES or not layer.bottom for layer in select_layers(net, phase, level, stages)
    )


def _check_types(path: str, layers: Sequence[pb.LayerParameter]) -> None:
    for layer in layers:
        if layer.type in RULES or layer.type in SOURCES or layer_type_dialects(layer.type):
            continue
        if not layer.type:
            raise PrototxtError(path, f"layer '{layer.name}' has no type", "Caffe stops with it; name one")
        near = nearest_layer_type(layer.type)
        hint = f"did you mean '{near}'?" if near else "Caffe stops with `Unknown layer type`"
        raise PrototxtError(path, f"layer '{layer.name}' has type '{layer.type}', which no Caffe has", hint)


def _default_phase(found: GivenNet, net: pb.NetParameter, level: int, stages: Sequence[str]) -> int:
    """Choose TRAIN, if the net can be trained: a net that is deployed has Input layers, or no TRAIN data."""
    if found.state.HasField("phase"):
        return found.state.phase
    train = select_layers(net, pb.TRAIN, level, stages)
    makes_data = any(not layer.bottom and layer.type != "Input" for layer in train)
    if makes_data or not has_inputs(net, pb.TEST, level, stages):
        return pb.TRAIN
    is_deployed = any(layer.type == "Input" for layer in train)
    return pb.TEST if is_deployed or not has_inputs(net, pb.TRAIN, level, stages) else pb.TRAIN


def _batch(layers: Sequence[LayerCount]) -> int | None:
    for layer in layers:
        if not layer.bottoms and layer.tops and layer.tops[0].shape:
            return layer.tops[0].shape[0]
    return None


def _hint(layers: Sequence[LayerCount], failures: Sequence[str]) -> str:
    for layer in layers:
        known = all(blob.shape is not None and None not in blob.shape for blob in layer.bottoms)
        if known and any(blob.shape is None or None in blob.shape for blob in layer.tops):
            what = f"layer '{layer.name}' ({layer.type})"
            if layer.type not in SOURCES and layer.type not in RULES:
                return f"{what} has no shape rule here: what it makes, and all after it, is left open"
            if layer.type in SOURCES and failures:
                return f"{what} does not say the size of its images, and {failures[0]}: give --input C,H,W"
            if layer.type in SOURCES:
                return f"{what} does not say the size of its images: give --input C,H,W"
            return f"{what} makes blobs whose shape only a run tells"
    return ""
