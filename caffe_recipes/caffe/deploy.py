"""Derive a deploy net, which predicts, from a train_val net, which trains.

The layers are those of phase TEST from the images to the predictions. A loss that applies an activation to
its scores becomes that activation (SoftmaxWithLoss becomes Softmax), other losses leave their first bottom as
an output, and what only labels or metrics need is left out. Learning rates, fillers, engines and rules are
left out too, since none of them changes a prediction.

`use_global_stats` is written into each BatchNorm: Caffe derives it from the phase, but OpenCV would assume
false. Source: BVLC Caffe, batch_norm_layer.cpp; OpenCV, modules/dnn/src/caffe/caffe_importer.cpp.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from google.protobuf.message import Message

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.layer_types import recurrent, type_of
from caffe_recipes.caffe.layer_types.dimensions import Dim, Image, Images, MisfitError, Shape
from caffe_recipes.caffe.layer_types.normalization import has_own_scale
from caffe_recipes.caffe.prototxt import LAYER, NO_COMMENTS, Comment
from caffe_recipes.caffe.shapes import LayerMisfit, infer_shapes, select_layers, stats_images
from caffe_recipes.errors import InputError, PrototxtError
from caffe_recipes.wording import describe_names, shorten

_PRODUCER = tuple[int, int]  # the index of a layer, and that of its top
_OWN_FIELDS = ("include", "exclude", "param", "loss_weight", "propagate_down", "phase", "blobs")
# Fields at any depth that do not change a prediction. Other fillers tell the kinds of BN apart.
_IDLE_FIELDS = ("engine", "weight_filler", "bias_filler", "filler")
_IMAGE_AXES = 4  # N, C, H, W
_RECURRENT = frozenset(entry.name for entry in recurrent.TYPES)


@dataclass(frozen=True)
class Deploy:
    """A deploy net, its comments, the blobs that it predicts, and notes on what was assumed or left out.

    `path` is that of the net that it is derived from.
    """

    net: pb.NetParameter
    comments: Mapping[str, Comment]
    outputs: tuple[str, ...]
    notes: tuple[str, ...]
    path: str = ""


@dataclass(frozen=True)
class DeployOptions:
    """How to derive a deploy net: its `image` size and `batch`, which `losses` leave an output, its `state`.

    Without an image, the size is that of the TEST data. Without a batch, Input layers keep their shapes, and
    data layers give one image. Without losses, those with the largest weight stay. The state selects layers
    by level and stages; without stages, they are of the last stage with data if no data are without one.
    """

    image: Image | None = None
    batch: int | None = None
    losses: Collection[str] = ()
    state: pb.NetState | None = None


DEFAULTS = DeployOptions()


class _Graph:
    """The layers of phase TEST, and which layer and top each bottom reads, also of blobs in place."""

    def __init__(self, layers: Sequence[pb.LayerParameter], path: str) -> None:
        self.layers, latest = layers, dict[str, _PRODUCER]()
        self.bottoms: list[list[_PRODUCER]] = []
        for index, layer in enumerate(layers):
            missing = [blob for blob in layer.bottom if blob not in latest]
            if missing:
                what = (
                    f"layer '{layer.name}' reads blob '{missing[0]}', which no layer produces in phase TEST"
                )
                raise PrototxtError(path, what, "add the layer to phase TEST, such as its data layer")
            self.bottoms.append([latest[blob] for blob in layer.bottom])
            latest.update({blob: (index, top) for top, blob in enumerate(layer.top)})

    def ancestors(self, producers: Collection[_PRODUCER]) -> set[_PRODUCER]:
        """Return the tops from which some tops are computed, with these."""
        found, pending = set[_PRODUCER](), list(producers)
        while pending:
            one = pending.pop()
            if one not in found:
                found.add(one)
                pending += self.bottoms[one[0]]
        return found

    def unread(self, indexes: Collection[int]) -> Iterator[_PRODUCER]:
        """Yield the tops of some layers that no layer reads."""
        read = {producer for bottoms in self.bottoms for producer in bottoms}
        for index in indexes:
            yield from (
                (index, top) for top in range(len(self.layers[index].top)) if (index, top) not in read
            )


def is_label_loss(layer: pb.LayerParameter) -> bool:
    """Return whether a layer compares predictions with labels to learn from them.

    >>> [is_label_loss(pb.LayerParameter(type=name)) for name in ("SoftmaxWithLoss", "Accuracy")]
    [True, False]
    """
    entry = type_of(layer)
    return entry.loss_weight is not None or entry.activation is not None or "Loss" in layer.type


def _is_metric(layer: pb.LayerParameter) -> bool:
    return type_of(layer).is_classifier or not type_of(layer).makes_tops


def _weight(layer: pb.LayerParameter) -> float:
    return max(layer.loss_weight) if layer.loss_weight else 1.0


def derive_deploy(
    net: pb.NetParameter,
    options: DeployOptions = DEFAULTS,
    *,
    comments: Mapping[str, Comment] = NO_COMMENTS,
    images: Images = lambda source: None,
    path: str = "",
) -> Deploy:
    """Return the deploy net of a train_val net in the current format, or of the net that a solver tests.

    `images` returns the size of the images in a source. Raises PrototxtError, which names `path`, if phase
    TEST predicts nothing, and InputError if the size of the images is not known.
    """
    where = path or net.name or "net"
    layers, selected = _select(net, options.state or pb.NetState(), where)
    graph = _Graph(layers, where)
    losses, notes = _choose_losses(layers, options, where)
    notes += selected
    ends = _ends(graph, losses)
    if not ends:
        raise PrototxtError(where, "predicts nothing in phase TEST", "give a net with a loss or an output")
    made, moves = type(net)(name=net.name or None), dict[int, int]()
    places = {id(layer): index for index, layer in enumerate(net.layer)}
    needed = graph.ancestors(ends)
    kept = [layers[index] for index in sorted({one[0] for one in needed})]
    batches = _find_batches(kept, options, images, where)
    for index, layer in enumerate(layers):
        tops = [top for number, top in enumerate(layer.top) if (index, number) in needed]
        before = len(made.layer)
        if index in losses:
            _add_activation(made, layer)
        elif tops and not layer.bottom:
            notes += _add_inputs(made, layer, tops, options, images, batches, where)
        elif tops:
            _add_layer(made, layer)
        if len(made.layer) > before:
            moves[places[id(layer)]] = before
    _check_shapes(made, batches, where)
    read = {blob for layer in made.layer for blob in layer.bottom}
    outputs = dict.fromkeys(top for layer in made.layer for top in layer.top if top not in read)
    moved = _inline_inputs(made) | keep_comments(comments, moves, made)
    notes += _note_batch_norms(made)
    return Deploy(made, moved, tuple(outputs) or (made.layer[-1].top[0],), tuple(notes), path)


def _select(
    net: pb.NetParameter, state: pb.NetState, where: str
) -> tuple[list[pb.LayerParameter], list[str]]:
    """Return the layers of TEST, with what only TRAIN has of data and losses, and notes on what was assumed.

    Losses of TRAIN are those that fit below the layers, if TEST has none.
    """
    if net.layers:
        raise PrototxtError(where, "has `layers` of the old format", "run caffe-recipes upgrade on it")
    if not net.layer:
        raise PrototxtError(where, "has no layers", "give a net with a loss or an output")

    def select(phase: int, stages: Collection[str]) -> list[pb.LayerParameter]:
        return select_layers(net, phase, state.level, stages)

    named = dict.fromkeys(name for layer in net.layer for rule in layer.include for name in rule.stage)
    others = [] if state.stage else [(pb.TEST, [name]) for name in reversed(named)]
    choices = [(pb.TEST, [*state.stage]), *others, (pb.TRAIN, [*state.stage])]
    with_data = [] if net.input else [choice for choice in choices if any(map(_is_data, select(*choice)))]
    phase, stages = with_data[0] if with_data else choices[0]
    kept, notes = select(pb.TEST, stages), []
    if stages != choices[0][1]:
        notes.append(f"phase TEST has data only in stages: the layers are those of stage '{stages[0]}'")
    if phase == pb.TRAIN:
        kept = [*filter(_is_data, select(phase, stages)), *kept]
        notes.append("phase TEST has no data layer: the images are those of phase TRAIN")
    if not any(map(is_label_loss, kept)):
        made = {top for layer in kept for top in layer.top}
        losses = [layer for layer in select(pb.TRAIN, stages) if is_label_loss(layer)]
        kept += [layer for layer in losses if made.issuperset(layer.bottom)]
    return kept, notes


def _is_data(layer: pb.LayerParameter) -> bool:
    return bool(layer.top) and not layer.bottom


def _choose_losses(
    layers: Sequence[pb.LayerParameter], options: DeployOptions, where: str
) -> tuple[set[int], list[str]]:
    """Return the indexes of the losses whose predictions stay, and a note on the others."""
    losses = {index: layer for index, layer in enumerate(layers) if is_label_loss(layer)}
    unknown = set(options.losses) - {layer.name for layer in losses.values()}
    if unknown:
        known = describe_names([*dict.fromkeys(layer.name for layer in losses.values())]) or "none"
        raise InputError(
            where, f"has no loss '{shorten(min(unknown))}' in phase TEST", f"its losses: {known}"
        )
    if idle := [layer for layer in losses.values() if not layer.bottom]:
        what = f"layer '{idle[0].name}' ({idle[0].type}) has no bottom"
        raise PrototxtError(where, what, "give it the predictions and the labels")
    most = max(map(_weight, losses.values()), default=0.0)
    chosen = {
        index
        for index, layer in losses.items()
        if (layer.name in options.losses if options.losses else _weight(layer) == most)
    }
    if len(losses) < 2:
        return chosen, []
    names = [layer.name for layer in losses.values()]
    shown = {  # Caffe lets two layers have one name
        index: f"{layer.name} ({layer.type})" if names.count(layer.name) > 1 else layer.name
        for index, layer in losses.items()
    }
    stay = describe_names([shown[index] for index in sorted(chosen)])
    out = [f"{shown[index]} (weight {_weight(losses[index]):g})" for index in losses.keys() - chosen]
    note = f"the net has {len(losses)} losses: the predictions of {stay} stay"
    return chosen, [f"{note}; left out: {describe_names(sorted(out))}; choose with --loss" if out else note]


def _ends(graph: _Graph, losses: set[int]) -> set[_PRODUCER]:
    """Return the tops that are predictions: what the losses compare, and the outputs without labels."""
    ends = {producer for index in losses for producer in graph.bottoms[index][:1]}
    needed = graph.ancestors(ends)
    sources = {index for index, layer in enumerate(graph.layers) if not graph.bottoms[index]}
    inputs = {one for one in needed if one[0] in sources} if losses else None
    others = [
        index
        for index, layer in enumerate(graph.layers)
        if index not in sources and not is_label_loss(layer) and not _is_metric(layer)
    ]
    aside = {  # what only the losses that are left out need
        producer
        for index, layer in enumerate(graph.layers)
        if index not in losses and is_label_loss(layer)
        for producer in graph.bottoms[index]
    }
    also = {one for index in losses for one in graph.bottoms[index][1:] if _is_learned(graph, one)}
    for one in also.union(graph.unread(others)):
        origin = {each for each in graph.ancestors([one]) if each[0] in sources}
        if one not in aside and (inputs is None or origin <= inputs):
            ends.add(one)
    return (
        ends
        or {  # of a net without a loss: what metrics compare, or layers without tops read
            one
            for index, layer in enumerate(graph.layers)
            if _is_metric(layer)
            for one in graph.bottoms[index][: 1 if type_of(layer).is_classifier else None]
            if one[0] not in sources
        }
    )


def _is_learned(graph: _Graph, one: _PRODUCER) -> bool:
    """Return whether learned layers make a top, which is then no target that a loss compares with."""
    return any(type_of(graph.layers[index]).learned for index, _ in graph.ancestors([one]))


def _add_activation(net: pb.NetParameter, loss: pb.LayerParameter) -> None:
    """Add what a loss applies to its scores, unless it applies nothing or a layer of the net does so."""
    activation = type_of(loss).activation
    if activation is None or any(
        one.type == activation[0] and loss.bottom[0] in one.bottom for one in net.layer
    ):
        return
    taken = {name for layer in net.layer for name in (layer.name, *layer.top)}
    own = f"prob_{loss.name}" if loss.name else "prob"
    names = itertools.chain(("prob", own), (f"{own}_{number}" for number in itertools.count(2)))
    name = next(name for name in names if name not in taken)
    made = net.layer.add(name=name, type=activation[0], bottom=[loss.bottom[0]], top=[name])
    if loss.HasField("softmax_param") and loss.softmax_param.HasField("axis"):
        made.softmax_param.axis = loss.softmax_param.axis


def _add_layer(net: pb.NetParameter, layer: pb.LayerParameter) -> None:
    made = net.layer.add()
    made.CopyFrom(layer)
    shared = [param.name for param in layer.param]
    for name in _OWN_FIELDS:
        made.ClearField(name)
    if any(shared):
        for name in shared:
            made.param.add(name=name) if name else made.param.add()
    if made.type == "BatchNorm" and has_own_scale(made):  # a filler alone says so, too
        made.batch_norm_param.scale_bias = True  # type: ignore[attr-defined]
        made.batch_norm_param.ClearField("scale_filler")
    _clear_idle(made)
    if made.type == "BatchNorm" and not made.batch_norm_param.HasField("use_global_stats"):
        made.batch_norm_param.use_global_stats = True


def _note_batch_norms(net: pb.NetParameter) -> list[str]:
    """Return a note on the layers that normalize by the batch in TEST too, since the net says so."""
    names = [
        one.name for one in net.layer if one.type == "BatchNorm" and stats_images(one, pb.TEST) is not None
    ]
    if not names:
        return []
    what = (
        f"BatchNorm {describe_names(names)} with use_global_stats: false: a prediction depends on its batch"
    )
    return [f"{what}; remove the field to use the statistics in the weights"]


def _clear_idle(message: Message) -> None:
    for field, value in message.ListFields():
        if field.name in _IDLE_FIELDS:
            message.ClearField(field.name)
        elif field.message_type is not None and not field.is_repeated:
            _clear_idle(value)


@dataclass(frozen=True)
class _Batches:
    """The first dimension of each input: `size` where the net has the batch `given`; None keeps all."""

    given: Dim
    size: Dim

    def first_dim(self, layer: pb.LayerParameter, shape: Shape | None) -> int:
        """Return the first dimension of a data layer's top. That of an Input may not be a batch."""
        own = shape[0] if shape else None
        if self.size is None or (layer.type in ("Input", "DummyData") and own not in (None, self.given)):
            return own or 1
        return self.size


def _find_batches(
    layers: Sequence[pb.LayerParameter], options: DeployOptions, images: Images, where: str
) -> _Batches:
    """Return how the batch of some layers changes: that of the first images, or else of the first input."""
    steps = [layer for layer in layers if layer.type in _RECURRENT]
    if steps and options.batch is not None:
        what = f"layer '{steps[0].name}' ({steps[0].type}) reads time steps, then streams, and not a batch"
        raise InputError("--batch", what, "write the shapes into the net's Input layers")
    inputs = [
        (layer, shape)
        for layer in layers
        if not layer.bottom
        for shape in _list_shapes(layer, images, where) or [None]
    ]
    first, shape = min(inputs, key=lambda one: (len(one[1] or ()) != _IMAGE_AXES, one[0].type == "DummyData"))
    given = shape[0] if shape else None
    if steps:
        return _Batches(given, None)
    own = given if first.type == "Input" else None
    return _Batches(given, options.batch or own or 1)


def _list_shapes(layer: pb.LayerParameter, images: Images, where: str) -> Sequence[Shape | None]:
    """Return the shapes of a data layer's tops, as far as they are known."""
    source = type_of(layer).source
    try:
        return source.shapes(layer, lambda of: images(of) or (None, None, None)) if source else []
    except MisfitError as error:
        raise InputError(where, f"layer '{layer.name}' {error}", "fix this layer") from None


def _check_shapes(net: pb.NetParameter, batches: _Batches, where: str) -> None:
    """Raise LayerMisfit for layers that do not fit, such as a Reshape to the batch that the net had."""
    path = f"the deploy net of {where}"
    try:
        infer_shapes(net, pb.TEST, path=path)
    except LayerMisfit as error:
        if not batches.size or batches.given in (None, 0, batches.size):
            raise
        hint = f"{error.hint}, or give --batch {batches.given}, if the net is written for it"
        raise error.reworded(hint=hint) from None


def _add_inputs(
    net: pb.NetParameter,
    layer: pb.LayerParameter,
    tops: Sequence[str],
    options: DeployOptions,
    images: Images,
    batches: _Batches,
    where: str,
) -> list[str]:
    """Add an Input for the tops of a data layer that are needed; return notes on what was assumed."""
    notes: list[str] = []
    shapes = _list_shapes(layer, images, where)
    made = net.layer.add(name=layer.name, type="Input", top=tops)
    numbers = [list(layer.top).index(top) for top in tops]
    for number in numbers:
        known = shapes[number] if number < len(shapes) else None
        size: Shape | None = options.image if number == 0 else None
        if size is None and known is not None:
            size, assumed = _fill(known[1:], layer)
            notes += assumed
        if size is None or None in size:
            what = f"the size of '{layer.top[number]}' (layer '{layer.name}') is not known"
            other = "make it an Input layer with the shapes of its tops"
            others = [shapes[one] if one < len(shapes) else None for one in numbers if one]
            is_all = number == 0 and all(of is not None and None not in of[1:] for of in others)
            raise InputError(where, what, "give it with --input C,H,W" if is_all else other)
        dims = [dim for dim in size if dim is not None]
        made.input_param.shape.add(dim=[batches.first_dim(layer, known), *dims])
    return notes


def _fill(dims: Shape, layer: pb.LayerParameter) -> tuple[Shape, list[str]]:
    """Return a size whose channels are unknown with those of a colour image, and a note on it."""
    if len(dims) != 3 or dims[0] is not None or None in dims[1:]:
        return dims, []
    param = layer.transform_param
    if param.mean_value and len(param.mean_value) > 1:
        return (len(param.mean_value), *dims[1:]), []
    if param.force_gray:
        return (1, *dims[1:]), []
    note = f"the images of '{layer.name}' are not on this machine: 3 channels assumed; see --input"
    return (3, *dims[1:]), [] if param.force_color else [note]


def _inline_inputs(net: pb.NetParameter) -> dict[str, Comment]:
    """Return what keeps the shapes of Input layers on one line."""
    return {
        f"layer[{index}].input_param": Comment(is_inline=True)
        for index, layer in enumerate(net.layer)
        if layer.type == "Input"
    }


def keep_comments(
    comments: Mapping[str, Comment], moves: Mapping[int, int], net: pb.NetParameter
) -> dict[str, Comment]:
    """Return the comments of the fields that are still there; a layer that lost fields keeps its own.

    `moves` maps the index of each layer that stays to that in the new net.
    """
    moved = dict[str, Comment]()
    for path, comment in comments.items():
        match = LAYER.match(path)
        if match is None:
            if path in ("", "name"):
                moved[path] = comment
            continue
        index = moves.get(int(match[1]))
        if index is not None and _has(net.layer[index], path[match.end() :].lstrip(".")):
            where = f"layer[{index}]{path[match.end() :]}"
            moved[where] = comment if path[match.end() :] else replace(comment, is_inline=False)
    return moved


def _has(message: Message, path: str) -> bool:
    """Return whether a field is set, by its path, such as `convolution_param.kernel_size[0]`."""
    for part in filter(None, path.split(".")):
        name, index = re.fullmatch(r"(\w+)(?:\[(\d+)\])?", part).groups()  # type: ignore[union-attr]
        fields = {field.name: value for field, value in message.ListFields()}
        if name not in fields or (index is not None and int(index) >= len(fields[name])):
            return False
        message = fields[name] if index is None else fields[name][int(index)]
    return True
