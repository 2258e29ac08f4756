"""Rules for fields that are never read: blocks of other types, and fields without effect."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from caffe_recipes.caffe import pb
from caffe_recipes.review.lint.findings import Fix
from caffe_recipes.review.lint.layer_blocks import FILLERS, block_readers, filler_fields
from caffe_recipes.review.lint.net_text import show_layers, show_names, title
from caffe_recipes.review.lint.net_view import layer_field
from caffe_recipes.review.lint.registry import finding
from caffe_recipes.review.lint.subjects import read_rule

if TYPE_CHECKING:
    from caffe_recipes.review.lint.findings import Finding
    from caffe_recipes.review.lint.net_view import NetView


class UnreadField(NamedTuple):
    """A field that has no effect if `is_unread(block)`; `write` says what to write instead."""

    rule: str
    block: str
    field: str
    is_unread: Callable[[Any], bool]
    why: str
    write: str


def _no_bias(param: Any) -> bool:  # noqa: ANN401  # several blocks have bias_term
    return not param.bias_term


def _always(param: Any) -> bool:  # noqa: ANN401
    return True


def _moved_fields(block: str, *fields: str) -> list[UnreadField]:
    """Return entries for fields of a data layer's block that have moved to `transform_param`."""
    why = "Caffe reads it from transform_param"
    return [
        UnreadField("field-unread", block, field, _always, why, f"transform_param {{ {field}: ... }}")
        for field in fields
    ]


_REMOVE = "remove it"
_UNREAD_FIELDS: tuple[UnreadField, ...] = (
    *(
        UnreadField("field-idle", block, "bias_filler", _no_bias, "bias_term is false", _REMOVE)
        for block in ("convolution_param", "inner_product_param", "embed_param", "scale_param")
    ),
    *_moved_fields("data_param", "scale", "mean_file", "crop_size", "mirror"),
    *_moved_fields("image_data_param", "scale", "mean_file", "crop_size", "mirror"),
    *_moved_fields("window_data_param", "scale", "mean_file", "crop_size", "mirror"),
    UnreadField(
        "field-unread",
        "transform_param",
        "random_aspect_ratio_param",
        lambda param: param.HasField("random_resize_param"),
        "random_resize_param takes precedence",
        "keep one of them",
    ),
    UnreadField(
        "field-unread",
        "loss_param",
        "normalize",
        lambda param: param.HasField("normalization"),
        "normalization takes precedence",
        "keep normalization",
    ),
    UnreadField(
        "field-unread",
        "loss_param",
        "pre_fixed_normalizer",
        lambda param: param.normalization != pb.LossParameter.PRE_FIXED,
        "normalization is not PRE_FIXED",
        "normalization: PRE_FIXED",
    ),
    UnreadField(
        "field-unread",
        "convolution_param",
        "negative_slope",
        lambda param: not param.relu,
        "relu is false",
        "relu: true, or a ReLU layer with negative_slope",
    ),
    UnreadField(
        "field-unread",
        "eltwise_param",
        "coeff",
        lambda param: param.operation == pb.EltwiseParameter.MAX,
        "operation is MAX",
        _REMOVE,
    ),
    UnreadField(
        "field-unread",
        "pooling_param",
        "avg_include_pad",
        lambda param: param.engine == pb.PoolingParameter.CAFFE,
        "engine CAFFE divides by the size of the window within the padded input",
        _REMOVE,
    ),
    UnreadField(
        "field-idle",
        "lrn_param",
        "k",
        lambda param: param.norm_region == pb.LRNParameter.WITHIN_CHANNEL,
        "norm_region is WITHIN_CHANNEL",
        _REMOVE,
    ),
)
# `caffe.refusals` reports `sparse` in a filler that is not gaussian.
_ALWAYS_READ = frozenset(("type", "sparse"))


@read_rule(
    "block-unread",
    "warning",
    "a `*_param` block that belongs to another layer type",
    effect="it has no effect, although one was probably intended",
    values=("layers",),
)
@read_rule(
    "field-unread",
    "warning",
    "a field that is set but has no effect",
    effect="it has no effect, although one was probably intended",
    values=("layers",),
    fix="removes the field, if the finding says `remove it`",
)
@read_rule(
    "field-idle",
    "note",
    "a field that is set but has no effect, which is harmless",
    effect="it has no effect",
    values=("layers",),
    fix="removes the field",
)
def check_reads(view: NetView) -> Iterator[Finding]:
    """Find fields that a layer sets but never reads; similar layers share one finding."""
    found: dict[tuple[str, str, str, str], list[int]] = defaultdict(list)
    for index, layer in enumerate(view.net.layer):
        if layer.type in view.dialect.layer_types:
            for key in _unread_fields(view, layer):
                found[key].append(index)
    for (name, field, why, write), layers in found.items():
        alike = [view.net.layer[index] for index in layers]
        whose = title(alike[0]) if len(alike) == 1 else show_layers([layer.name for layer in alike])
        what = f"{field} in {whose} is never read: {why}"
        places = [layer_field(index, field) for index in layers] if _REMOVE in write else []
        fixes = tuple(Fix(place, field.rpartition(".")[2]) for place in places if name != "block-unread")
        yield finding(name, layer_field(layers[0], field), what, write=write, fixes=fixes, layers=len(layers))


def _unread_fields(view: NetView, layer: pb.LayerParameter) -> Iterator[tuple[str, str, str, str]]:
    if layer.type == "Python":  # its code may read any block
        return
    readers = block_readers(view.dialect.layer_types)
    for field, value in layer.ListFields():
        name = field.name
        if name in readers and layer.type not in readers[name]:
            if value.ListFields():
                types = show_names(sorted(readers[name]))
                write = f'remove it, or type: "{sorted(readers[name])[0]}"'
                yield "block-unread", name, f"it belongs to {types}, not to {layer.type}", write
            continue
        for unread in _UNREAD_FIELDS:
            if unread.block == name and _is_set(value, unread.field) and unread.is_unread(value):
                yield unread.rule, f"{name}.{unread.field}", unread.why, unread.write
    for path, filler in filler_fields(layer):
        reads = FILLERS.get(filler.type)
        block = path.partition(".")[0]
        if reads is None or (block in readers and layer.type not in readers[block]):
            continue
        for field, _ in filler.ListFields():
            if field.name not in _ALWAYS_READ and field.name not in reads:
                write = f'type: "{_filler_reading(field.name)}", or remove it'
                yield "field-unread", f"{path}.{field.name}", f"the filler is {filler.type}", write


def _is_set(message: Any, field: str) -> bool:  # noqa: ANN401  # any block of a layer
    return any(descriptor.name == field for descriptor, _ in message.ListFields())


def _filler_reading(field: str) -> str:
    return next((name for name, fields in FILLERS.items() if field in fields), "constant")
