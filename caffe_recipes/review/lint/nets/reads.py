"""Rules on fields that are set and never read: blocks of other types, and fields without effect."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.dialects import OURS, layer_type_dialects, nearest_layer_type
from caffe_recipes.review.findings import Severity
from caffe_recipes.review.lint.nets.blocks import block_readers, filler_fields
from caffe_recipes.review.lint.nets.view import Draft, NetView, show_names, title

RULES: dict[str, tuple[Severity, str]] = {
    "unknown-layer-type": ("error", "a layer type that this Caffe has not"),
    "block-unread": ("warning", "a `*_param` block of another layer type"),
    "field-unread": ("warning", "a field that is set and has no effect"),
    "field-idle": ("note", "a field that is set, has no effect, and misleads nobody"),
}


class Unread(NamedTuple):
    """A field that has no effect where `idle` holds of the layer's block; `write` says what would have."""

    rule: str
    block: str
    field: str
    idle: Callable[[Any], bool]
    why: str
    write: str


def _no_bias(param: Any) -> bool:  # noqa: ANN401  # several blocks have bias_term
    return not param.bias_term


def _always(param: Any) -> bool:  # noqa: ANN401
    return True


def _moved(block: str, *fields: str) -> list[Unread]:
    """Tell of fields that the blocks of data layers had before there was `transform_param`."""
    why = "Caffe reads it from transform_param"
    return [
        Unread("field-unread", block, field, _always, why, f"transform_param {{ {field}: ... }}")
        for field in fields
    ]


_TAKE_OUT = "take it out"
_UNREAD: tuple[Unread, ...] = (
    *(
        Unread("field-idle", block, "bias_filler", _no_bias, "bias_term is false", _TAKE_OUT)
        for block in ("convolution_param", "inner_product_param", "embed_param", "scale_param")
    ),
    *_moved("data_param", "scale", "mean_file", "crop_size", "mirror"),
    *_moved("image_data_param", "scale", "mean_file", "crop_size", "mirror"),
    *_moved("window_data_param", "scale", "mean_file", "crop_size", "mirror"),
    Unread(
        "field-unread",
        "transform_param",
        "random_aspect_ratio_param",
        lambda param: param.HasField("random_resize_param"),
        "random_resize_param goes before it",
        "keep one of them",
    ),
    Unread(
        "field-unread",
        "loss_param",
        "normalize",
        lambda param: param.HasField("normalization"),
        "normalization goes before it",
        "keep normalization",
    ),
    Unread(
        "field-unread",
        "loss_param",
        "pre_fixed_normalizer",
        lambda param: param.normalization != pb.LossParameter.PRE_FIXED,
        "normalization is not PRE_FIXED",
        "normalization: PRE_FIXED",
    ),
    Unread(
        "field-unread",
        "convolution_param",
        "negative_slope",
        lambda param: not param.relu,
        "relu is false",
        "relu: true, or a ReLU layer with negative_slope",
    ),
    Unread(
        "field-unread",
        "eltwise_param",
        "coeff",
        lambda param: param.operation == pb.EltwiseParameter.MAX,
        "operation is MAX",
        _TAKE_OUT,
    ),
    Unread(
        "field-idle",
        "lrn_param",
        "k",
        lambda param: param.norm_region == pb.LRNParameter.WITHIN_CHANNEL,
        "norm_region is WITHIN_CHANNEL",
        _TAKE_OUT,
    ),
)

# The fields that each filler reads; `scale` is a matter of Intel's engines.
_FILLERS = {
    "bilinear": (),
    "constant": ("value",),
    "gaussian": ("mean", "std", "sparse"),
    "msra": ("variance_norm",),
    "positive_unitball": (),
    "uniform": ("min", "max"),
    "xavier": ("variance_norm",),
}
_ALWAYS_READ = frozenset(("type", "scale"))


def check_reads(view: NetView) -> Iterator[Draft]:
    """Check types, and what each layer sets that its type does not read; alike layers told once."""
    found: dict[tuple[str, str, str, str], list[int]] = defaultdict(list)
    unknown: dict[str, list[int]] = defaultdict(list)
    for index, layer in enumerate(view.net.layer):
        if layer.type not in view.dialect.layer_types:
            unknown[layer.type].append(index)
            continue
        for key in _unread_of(view, layer):
            found[key].append(index)
    if view.dialect.name == OURS:  # of another dialect, its own rules tell this
        for type_, layers in unknown.items():
            yield _unknown_type(view, type_, layers)
    for (rule, field, why, write), layers in found.items():
        whose = title(view.net.layer[layers[0]]) if len(layers) == 1 else _show_layers(view, layers)
        yield Draft(
            rule,
            layers[0],
            field,
            f"{field} of {whose} is never read: {why}",
            "it changes nothing, whoever wrote it meant something"
            if rule != "field-idle"
            else "it changes nothing",
            write,
            (("layers", len(layers)),),
        )


def _unread_of(view: NetView, layer: pb.LayerParameter) -> Iterator[tuple[str, str, str, str]]:
    if layer.type == "Python":  # its code may read any
        return
    readers = block_readers(view.dialect.layer_types)
    for field, value in layer.ListFields():
        name = field.name
        if name in readers and layer.type not in readers[name]:
            if value.ListFields():
                types = show_names(sorted(readers[name]))
                write = f'take it out, or type: "{sorted(readers[name])[0]}"'
                yield "block-unread", name, f"it is for {types}, not for {layer.type}", write
            continue
        for rule in _UNREAD:
            if rule.block == name and _is_set(value, rule.field) and rule.idle(value):
                yield rule.rule, f"{name}.{rule.field}", rule.why, rule.write
    for path, filler in filler_fields(layer):
        reads = _FILLERS.get(filler.type)
        block = path.partition(".")[0]
        if reads is None or (block in readers and layer.type not in readers[block]):
            continue
        for field, _ in filler.ListFields():
            if field.name not in _ALWAYS_READ and field.name not in reads:
                write = f'type: "{_reader_of(field.name)}", or take it out'
                yield "field-unread", f"{path}.{field.name}", f"the filler is {filler.type}", write


def _is_set(message: Any, field: str) -> bool:  # noqa: ANN401  # any block of a layer
    return any(descriptor.name == field for descriptor, _ in message.ListFields())


def _reader_of(field: str) -> str:
    return next((name for name, fields in _FILLERS.items() if field in fields), "constant")


def _show_layers(view: NetView, layers: Sequence[int]) -> str:
    return f"{len(layers)} layers ({show_names([view.net.layer[index].name for index in layers])})"


def _unknown_type(view: NetView, type_: str, layers: Sequence[int]) -> Draft:
    near = nearest_layer_type(type_, view.dialect.name)
    others = layer_type_dialects(type_)
    if near:
        write = f'type: "{near}"'
    elif others:
        write = f"it belongs to {', '.join(others)}; build it from other layers for this Caffe"
    else:
        write = "name a type that this Caffe has; of your own build it must have this layer too"
    first = view.net.layer[layers[0]]
    if len(layers) > 1:
        of_type = f"are of type {type_}, which this Caffe does not know" if type_ else "have no type"
        what = f"{_show_layers(view, layers)} {of_type}"
    elif type_:
        what = f"{title(first)} has a type that this Caffe does not know"
    else:
        what = f"layer '{first.name}' has no type"
    effect = f"Caffe stops: Unknown layer type: {type_}"
    return Draft("unknown-layer-type", layers[0], "type", what, effect, write, (("layers", len(layers)),))
