"""Compare two messages of the same type, field by field.

Unless the caller asks to compare defaults too, a field set to its default equals an unset one, and an empty
block equals an absent one. The exceptions are fields that Caffe tests with `has_...()` before it reads the
value; the tables below list them, and the defaults that the schema cannot express. The items of two lists are
paired by keys, or by their longest common subsequence.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.layer_types import find_layer_type
from caffe_recipes.caffe.prototxt import is_kind, render_prototxt
from caffe_recipes.caffe.text.writer import FIRST_FOREIGN, field_ranks, float_text, string_text
from caffe_recipes.review.diff.changes import NOT_SET, Change, ShownValue
from caffe_recipes.review.diff.forms import normalize_all, normalize_differing

if TYPE_CHECKING:
    from caffe_recipes.review.diff.changes import Json

# Fields that Caffe always tests with `has_x()`; the comments name the source file that does.
PRESENCE_TESTED: Mapping[str, frozenset[str]] = {
    message: frozenset(fields.split())
    for message, fields in {
        "AccuracyParameter": "ignore_label",  # accuracy_layer
        "AnnotatedDataParameter": "label_map_file anno_type",  # annotated_data_layer
        "ArgMaxParameter": "axis",  # argmax_layer
        "BatchNormParameter": "use_global_stats stats_batch_size",  # batch_norm_layer; net: Init
        "BatchSampler": "max_sample",  # sampler: GenerateSamples
        "BlobProto": "shape num channels height width",  # blob: FromProto, ShapeEquals
        "ConvolutionParameter": "kernel_h kernel_w stride_h stride_w",  # base_conv_layer
        "DataParameter": "mean_file",  # upgrade_proto
        "DetectionEvaluateParameter": "num_classes name_size_file resize_param",  # detection_evaluate_layer
        "DetectionOutputParameter": "num_classes confidence_threshold visualize_threshold "
        "save_file",  # detection_output_layer
        "ImageDataParameter": "mean_file",  # upgrade_proto
        "LayerParameter": "phase quantization_param",  # net: Init; mkldnn_layers, base_quant_layer
        "LossParameter": "ignore_label normalize",  # the losses' LayerSetUp
        "MultiBoxLossParameter": "num_classes do_neg_mining nms_param",  # multibox_loss_layer; bbox_util
        "NetParameter": "bn_stats_batch_size",  # net: Init
        "NetState": "phase level",  # solver: InitTrainNet, InitTestNets merge what is set
        "NetStateRule": "phase min_level max_level",  # net: StateMeetsRule
        "NonMaximumSuppressionParameter": "top_k",  # detection_output_layer, bbox_util
        "PoolingParameter": "kernel_h kernel_w pad_h pad_w stride_h stride_w",  # pooling_layer: both or none
        "PriorBoxParameter": "img_size img_h img_w step step_h step_w",  # prior_box_layer
        "SampleConstraint": "min_jaccard_overlap max_jaccard_overlap min_sample_coverage "
        "max_sample_coverage min_object_coverage max_object_coverage",  # sampler: SatisfySampleConstraint
        "SaveOutputParameter": "label_map_file name_size_file num_test_image "
        "resize_param",  # detection_output_layer
        "SolverParameter": "net net_param train_net train_net_param snapshot_prefix",  # solver
        "TransformationParameter": "mean_file resize_param noise_param distort_param expand_param "
        "emit_constraint random_resize_param random_aspect_ratio_param",  # data_transformer
        "VideoDataParameter": "video_file",  # video_data_layer
        "WindowDataParameter": "mean_file",  # window_data_layer
    }.items()
}

# The initial value if a filler is absent; a filler that is set has its own value, 0 by default. With fillers
# that are not listed, the initial value is 0 in both cases.
FILLER_STARTS: Mapping[tuple[str, str], float] = {
    ("BatchNormParameter", "filler"): 1.0,  # mkldnn_batch_norm_layer, mkl_batch_norm_layer
    ("NormalizeParameter", "scale_filler"): 1.0,  # normalize_layer
    ("PReLUParameter", "filler"): 0.25,  # prelu_layer
    ("ScaleParameter", "filler"): 1.0,  # scale_layer
}

# The value that Caffe uses for an empty list, which the schema cannot express, and the maximum list length.
_LIST_DEFAULTS: Mapping[tuple[str, str], tuple[int, int]] = {
    ("ConvolutionParameter", "pad"): (0, 1),  # base_conv_layer
    ("ConvolutionParameter", "stride"): (1, 1),
    ("ConvolutionParameter", "dilation"): (1, 1),
    ("EltwiseParameter", "coeff"): (1, 1 << 30),  # eltwise_layer: one for each bottom
    ("PoolingParameter", "pad"): (0, 1),  # pooling_layer
    ("PoolingParameter", "stride"): (1, 1),
    ("ResizeParameter", "interp_mode"): (pb.ResizeParameter.LINEAR, 1),  # im_transforms: ApplyResize
    ("ResizeParameter", "pad_value"): (0, 1),
}

# A predicate on a message and the type of the layer that contains it.
_Condition = Callable[[Any, str], bool]


def _is_set(name: str) -> _Condition:
    return lambda message, layer_type: bool(message.HasField(name))


def _is_listed(name: str) -> _Condition:
    return lambda message, layer_type: len(getattr(message, name)) > 0


# Fields that Caffe tests with `has_x()` only if a condition holds, including pairs that it refuses together.
_PRESENCE_TESTED_IF: Mapping[tuple[str, str], _Condition] = {
    ("ConcatParameter", "axis"): _is_set("concat_dim"),  # concat_layer
    ("ConcatParameter", "concat_dim"): _is_set("axis"),
    ("ConvolutionParameter", "pad_h"): _is_listed("pad"),  # base_conv_layer
    ("ConvolutionParameter", "pad_w"): _is_listed("pad"),
    # softmax_loss_layer and similar layers use `normalize` if this is unset; sigmoid_cross_entropy_loss_layer
    # uses BATCH_SIZE, not the schema's VALID, if both are unset.
    ("LossParameter", "normalization"): lambda message, layer_type: (
        message.HasField("normalize") or layer_type == "SigmoidCrossEntropyLoss"
    ),
    ("ParamSpec", "lr_mult"): lambda message, layer_type: bool(message.name),  # net: AppendParam
    ("ParamSpec", "decay_mult"): lambda message, layer_type: bool(message.name),
    ("SliceParameter", "axis"): _is_set("slice_dim"),  # slice_layer
    ("SliceParameter", "slice_dim"): _is_set("axis"),
}


def is_presence_tested(message: Message, field: FieldDescriptor, layer_type: str = "") -> bool:
    """Return whether Caffe tests if this field of the message is set."""
    key = message.DESCRIPTOR.name, field.name
    if field.name in PRESENCE_TESTED.get(key[0], ()) or key in FILLER_STARTS:
        return True
    condition = _PRESENCE_TESTED_IF.get(key)
    return condition is not None and condition(message, layer_type)


def is_significant(message: Message, field: FieldDescriptor, layer_type: str = "") -> bool:
    """Return whether it makes a difference to Caffe that a field (not a list) of a message is set.

    >>> none, zero = pb.ScaleParameter(), pb.ScaleParameter(filler=pb.FillerParameter(value=0))
    >>> filler = none.DESCRIPTOR.fields_by_name["filler"]
    >>> is_significant(none, filler), is_significant(zero, filler)
    (False, True)
    """
    if not message.HasField(field.name):
        return False
    value = getattr(message, field.name)
    start = FILLER_STARTS.get((message.DESCRIPTOR.name, field.name))
    if start is not None:
        return not _starts_at(value, start)
    if is_presence_tested(message, field, layer_type):
        return True
    if field.message_type is not None:
        return is_block_significant(value, layer_type)
    return bool(value != field.default_value)


def is_block_significant(message: Message, layer_type: str = "") -> bool:
    """Return whether a block differs in meaning from an empty one."""
    return any(
        bool(significant_items(message, field, value, layer_type))
        if field.is_repeated
        else is_significant(message, field, layer_type)
        for field, value in message.ListFields()
    )


def significant_items(
    message: Message, field: FieldDescriptor, values: Sequence[Any], layer_type: str = ""
) -> Sequence[Any]:
    """Return a list without the elements that Caffe would use by default; empty if it equals the default."""
    if field.message_type is not None:
        return _significant_blocks(message, field, values, layer_type)
    default = list_default(message, field, layer_type)
    if default is not None and all(value == default for value in values):
        most = _LIST_DEFAULTS.get((message.DESCRIPTOR.name, field.name), (0, 1))[1]
        return values if len(values) > most else ()
    return values


def list_default(message: Any, field: FieldDescriptor, layer_type: str = "") -> int | None:  # noqa: ANN401
    """Return the value that Caffe uses for an empty list, or None if it has no default."""
    key = message.DESCRIPTOR.name, field.name
    if key == ("LayerParameter", "loss_weight"):
        is_weighted = "Loss" in layer_type and find_layer_type(layer_type).loss_weight != 0
        return 1 if is_weighted else None  # loss_layer: LayerSetUp
    sides = [f"{field.name}_{side}" for side in ("h", "w")]
    known = message.DESCRIPTOR.fields_by_name
    if any(side in known and message.HasField(side) for side in sides):
        return None  # Caffe refuses these beside a list, so an unset list is not its default
    default = _LIST_DEFAULTS.get(key)
    return None if default is None else default[0]


def _significant_blocks(
    message: Any,  # noqa: ANN401 - a message
    field: FieldDescriptor,
    values: Sequence[Any],
    layer_type: str,
) -> Sequence[Any]:
    key = message.DESCRIPTOR.name, field.name
    if key == ("LayerParameter", "include"):
        # net: FilterNet: one matching rule is enough, and an empty rule matches; refused beside `exclude`.
        is_open = not message.exclude and any(not is_block_significant(rule) for rule in values)
        return () if is_open else values
    if key == ("LayerParameter", "param") and layer_type != "BatchNorm":
        # net: AppendParam uses defaults past the end; batch_norm_layer uses lr_mult 0 and refuses others.
        end = len(values)
        while end and not is_block_significant(values[end - 1]):
            end -= 1
        return values[:end]
    return values


def _starts_at(filler: Any, start: float) -> bool:  # noqa: ANN401 - a FillerParameter
    """Return whether a filler is equivalent to `value: start`."""
    return bool(filler.value == start) and all(
        field.name == "value" or not is_significant(filler, field) for field, _ in filler.ListFields()
    )


T = TypeVar("T")

# The largest product of two lengths (30,000 each); above it, the bit table would need over 100 MB.
_MOST_BITS = 900_000_000


def match_by_keys(
    old: Sequence[T],
    new: Sequence[T],
    keys: Iterable[Callable[[T], Hashable]],
    known: Mapping[int, int] = MappingProxyType({}),
) -> dict[int, int]:
    """Return pairs of items with equal keys, the most reliable key first; equal items are paired in order.

    The result includes the `known` pairs.

    >>> match_by_keys(["aX", "bX"], ["bY", "aX"], [str, lambda item: item[0]])
    {0: 1, 1: 0}
    """
    pairs = dict(known)
    taken = set(pairs.values())
    for key in keys:
        waiting: dict[Hashable, list[int]] = {}  # indices in reverse, so that pop() returns the first
        for j in range(len(new) - 1, -1, -1):
            if j not in taken:
                waiting.setdefault(key(new[j]), []).append(j)
        for i, item in enumerate(old):
            if waiting and i not in pairs and (places := waiting.get(key(item))):
                pairs[i] = places.pop()
                taken.add(pairs[i])
    return pairs


def match_unique(
    old: Sequence[T], new: Sequence[T], keys: Iterable[Callable[[T], Hashable]]
) -> dict[int, int]:
    """Return pairs of items whose key is unique on both sides, the most reliable key first.

    >>> match_unique(["a", "b", "b"], ["b", "b", "a"], [str])
    {0: 2}
    """
    pairs: dict[int, int] = {}
    taken: set[int] = set()
    for key in keys:
        if len(pairs) == min(len(old), len(new)):
            break
        counts = [Counter(map(key, items)) for items in (old, new)]
        places = {key(item): j for j, item in enumerate(new) if j not in taken}
        for i, item in enumerate(old):
            name = key(item)
            if i not in pairs and name in places and counts[0][name] == counts[1][name] == 1:
                pairs[i] = places[name]
                taken.add(pairs[i])
    return pairs


def longest_common(old: Sequence[Hashable], new: Sequence[Hashable]) -> list[tuple[int, int]]:
    """Return a longest common subsequence, as pairs of indices in order.

    Hyyrö's bit-parallel algorithm: a row of the table is one integer, so comparing 3,000 with 3,000 items
    takes 3,000 additions. If the table would need too much memory, only the common prefix and suffix are
    paired.

    >>> longest_common("abcd", "bxd")
    [(1, 0), (3, 2)]
    """
    start = 0
    while start < min(len(old), len(new)) and old[start] == new[start]:
        start += 1
    end = 0
    while end < min(len(old), len(new)) - start and old[-1 - end] == new[-1 - end]:
        end += 1
    head = [(k, k) for k in range(start)]
    tail = [(len(old) - k, len(new) - k) for k in range(end, 0, -1)]
    a, b = old[start : len(old) - end], new[start : len(new) - end]
    middle = _common_pairs(a, b) if len(a) * len(b) <= _MOST_BITS else []
    return [*head, *((i + start, j + start) for i, j in middle), *tail]


def _common_pairs(a: Sequence[Hashable], b: Sequence[Hashable]) -> list[tuple[int, int]]:
    places: defaultdict[Hashable, int] = defaultdict(int)
    for j, item in enumerate(b):
        places[item] |= 1 << j
    full = (1 << len(b)) - 1
    row, rows = full, [full]
    for item in a:
        matches = row & places.get(item, 0)
        row = ((row + matches) | (row - matches)) & full
        rows.append(row)
    # A zero at bit j of row i means that a[:i] and b[:j+1] have one more item in common than a[:i] and b[:j].
    found = []
    i, j = len(a), len(b)
    while i and j:
        if rows[i] >> (j - 1) & 1:
            j -= 1
        elif rows[i - 1] >> (j - 1) & 1:
            found.append((i - 1, j - 1))
            i, j = i - 1, j - 1
        else:
            i -= 1
    return found[::-1]


_MOST_SHOWN = 8  # list values in a text

# Lists whose items are identified by a field, not by their position.
_KEYS: dict[str, tuple[str, ...]] = {"LabelMapItem": ("label", "name")}


@dataclass(frozen=True, slots=True)
class _Context:
    """How to compare two messages: whether set defaults count, and the types of the layers around them."""

    defaults: bool = False
    types: tuple[str, str] = ("", "")


def diff_messages(
    old: Message, new: Message, *, defaults: bool = False, skip: Collection[str] = ()
) -> list[Change]:
    """Return a change for every field in which two messages of the same type differ, in schema order.

    A block on only one side is one change. With `defaults`, a field set to its default differs from an
    unset one.

    >>> from caffe_recipes.caffe import pb
    >>> [change] = diff_messages(pb.SolverParameter(base_lr=1, type="SGD"), pb.SolverParameter(base_lr=2))
    >>> change.field, change.old.text, change.new.text
    ('base_lr', '1', '2')
    """
    return _diff(old, new, _Context(defaults), skip)


def _diff(
    old: Message, new: Message, context: _Context, skip: Collection[str] = (), prefix: str = ""
) -> list[Change]:
    if is_kind(old, pb.LayerParameter) and is_kind(new, pb.LayerParameter):
        context = replace(context, types=(old.type, new.type))
    if not context.defaults:
        old, new = normalize_differing(old, new)
    fields = {field.name: field for field, _ in (*old.ListFields(), *new.ListFields())}
    rank = field_ranks(old.DESCRIPTOR)
    found: list[Change] = []
    for field in sorted(fields.values(), key=lambda field: rank[field.number]):
        if field.name in skip or _is_same_block(field, old, new):
            continue
        path = f"{prefix}{field.name}"
        if field.is_repeated:
            found += _diff_repeated(path, field, old, new, context)
        elif field.message_type is not None:
            found += _diff_block(path, field, old, new, context)
        else:
            found += _diff_scalar(path, field, old, new, context)
    return found


def _is_same_block(field: FieldDescriptor, old: Message, new: Message) -> bool:
    """Return whether a field is a list or block that is equal on both sides: a quick test."""
    if not field.is_repeated and (
        field.message_type is None or not old.HasField(field.name) or not new.HasField(field.name)
    ):
        return False
    return bool(getattr(old, field.name) == getattr(new, field.name))


def meaning_bytes(message: Message, skip: Collection[str] = ()) -> bytes:
    """Return bytes that are equal for messages of equal meaning, ignoring the fields in `skip`."""
    copy = deepcopy(message)
    for name in skip:
        copy.ClearField(name)
    _remove_insignificant(copy, "")
    return copy.SerializePartialToString(deterministic=True)


def block_text(message: Message) -> str:
    """Return a message on one line, as a block: `{ min_size: 256 max_size: 256 }`."""
    return " ".join(["{", *(line.strip() for line in render_prototxt(message).splitlines()), "}"])


def _remove_insignificant(message: Message, layer_type: str) -> None:
    """Remove the fields of a message that have no effect, in place."""
    if is_kind(message, pb.LayerParameter):
        layer_type = message.type
    normalize_all(message)
    kept = []
    for field, value in message.ListFields():
        if field.is_repeated:
            kept.append(len(significant_items(message, field, value, layer_type)))
        else:
            kept.append(int(is_significant(message, field, layer_type)))
    for (field, value), count in zip(message.ListFields(), kept, strict=True):
        if not count:
            message.ClearField(field.name)
        elif field.is_repeated:
            del value[count:]
        if count and field.message_type is not None:
            for item in value if field.is_repeated else [value]:
                _remove_insignificant(item, layer_type)


def _same(a: object, b: object) -> bool:
    return a == b or (a != a and b != b)  # NaN


def _diff_scalar(
    path: str, field: FieldDescriptor, old: Message, new: Message, context: _Context
) -> Iterator[Change]:
    is_set = old.HasField(field.name), new.HasField(field.name)
    values = getattr(old, field.name), getattr(new, field.name)
    matters = context.defaults or _is_significant_in_either(field, old, new, context)
    if not _same(*values) or (is_set[0] != is_set[1] and matters):
        sides = zip((old, new), values, is_set, context.types, strict=True)
        a, b = (
            NOT_SET
            if not given and is_presence_tested(m, field, type_)
            else _field_value(field, value, given)
            for m, value, given, type_ in sides
        )
        yield Change("changed", path, a, b)


def _is_significant_in_either(field: FieldDescriptor, old: Message, new: Message, context: _Context) -> bool:
    return is_significant(old, field, context.types[0]) or is_significant(new, field, context.types[1])


def _diff_repeated(
    path: str, field: FieldDescriptor, old: Message, new: Message, context: _Context
) -> Iterator[Change]:
    before, after = list(getattr(old, field.name)), list(getattr(new, field.name))
    if not context.defaults:
        before = list(significant_items(old, field, before, context.types[0]))
        after = list(significant_items(new, field, after, context.types[1]))
    if field.message_type is not None:
        return _diff_blocks(path, field, before, after, context)
    defaults = [list_default(m, field, type_) for m, type_ in zip((old, new), context.types, strict=True)]
    return _diff_list(path, field, before, after, defaults)


def _diff_list(
    path: str, field: FieldDescriptor, old: list[object], new: list[object], defaults: Sequence[int | None]
) -> Iterator[Change]:
    if len(old) == len(new):
        places = [k for k, pair in enumerate(zip(old, new, strict=True)) if not _same(*pair)]
        if not places:
            return
        if len(places) == 1:
            k = places[0]
            name = f"{path}[{k}]" if len(old) > 1 else path
            yield Change("changed", name, _field_value(field, old[k]), _field_value(field, new[k]))
            return
    start = 0
    if max(len(old), len(new)) > _MOST_SHOWN:
        while start < min(len(old), len(new)) and _same(old[start], new[start]):
            start += 1
    name = f"{path}[{start}:]" if start else path
    a, b = (
        _list_value(field, values[start:], bool(start), default)
        for values, default in zip((old, new), defaults, strict=True)
    )
    yield Change("changed", name, a, b)


def _diff_block(
    path: str, field: FieldDescriptor, old: Message, new: Message, context: _Context
) -> list[Change]:
    is_set = old.HasField(field.name), new.HasField(field.name)
    blocks = getattr(old, field.name), getattr(new, field.name)
    found = _diff(*blocks, context, prefix=f"{path}.")
    if is_set[0] == is_set[1]:
        return found
    if not (context.defaults or _is_significant_in_either(field, old, new, context)):
        return []
    if len(found) == 1 and not is_presence_tested(old, field, context.types[0]):
        return found
    nothing = _absent_block(old, field)
    a, b = (_block_value(m) if given else nothing for m, given in zip(blocks, is_set, strict=True))
    return [Change("changed", path, a, b)]


def _absent_block(message: Message, field: FieldDescriptor) -> ShownValue:
    """Return the value to show for an absent block: not set, and what Caffe starts at instead."""
    start = FILLER_STARTS.get((message.DESCRIPTOR.name, field.name))
    return NOT_SET if start is None else ShownValue(f"not set (starts at {start:g})", None, is_set=False)


def _diff_blocks(
    path: str, field: FieldDescriptor, old: list[Message], new: list[Message], context: _Context
) -> Iterator[Change]:
    assert field.message_type
    keys = _KEYS.get(field.message_type.name)
    pairs = _pair_by_fields(old, new, keys) if keys else _pair_by_place(old, new)
    for i, item in enumerate(old):
        if i not in pairs:
            yield Change("changed", _item_path(path, item, i, keys), _block_value(item), NOT_SET)
    found_at = {j: i for i, j in pairs.items()}
    for j, item in enumerate(new):
        name = _item_path(path, item, j, keys)
        if j not in found_at:
            yield Change("changed", name, NOT_SET, _block_value(item))
        else:
            yield from _diff(old[found_at[j]], item, context, prefix=f"{name}.")


def _pair_by_fields(old: list[Message], new: list[Message], names: Sequence[str]) -> dict[int, int]:
    def key(*fields: str) -> Callable[[Message], Hashable]:
        return lambda item: tuple(getattr(item, name) for name in fields)

    return match_by_keys(old, new, [key(*names), *(key(name) for name in names)])


def _pair_by_place(old: list[Message], new: list[Message]) -> dict[int, int]:
    """Pair blocks in order if both sides have the same number; else equal blocks, and those between."""
    if len(old) == len(new):
        return {k: k for k in range(len(old))}
    equal = longest_common([meaning_bytes(item) for item in old], [meaning_bytes(item) for item in new])
    pairs = dict(equal)
    i = j = 0
    for end_i, end_j in [*equal, (len(old), len(new))]:
        pairs.update(zip(range(i, end_i), range(j, end_j), strict=False))
        i, j = end_i + 1, end_j + 1
    return pairs


def _item_path(path: str, item: Any, place: int, keys: Sequence[str] | None) -> str:  # noqa: ANN401 - a message
    return f"{path}[{keys[0]} {getattr(item, keys[0])}]" if keys else f"{path}[{place}]"


def _field_value(field: FieldDescriptor, value: object, is_set: bool = True) -> ShownValue:
    if not is_set and not field.has_default_value:
        return NOT_SET
    text, json = _scalar(field, value)
    return ShownValue(text if is_set else f"{text} (default)", json, is_set)


def _list_value(
    field: FieldDescriptor, values: list[object], is_rest: bool, default: int | None
) -> ShownValue:
    if not values and not is_rest:
        if default is None:
            return NOT_SET
        text, json = _scalar(field, default)
        return ShownValue(f"{text} (default)", [json], is_set=False)
    items = [_scalar(field, value) for value in values]
    texts = [text for text, _ in items[:_MOST_SHOWN]]
    more = [f"... {len(values) - _MOST_SHOWN:,} more"] if len(values) > _MOST_SHOWN else []
    text = texts[0] if len(items) == 1 and not is_rest else f"[{', '.join([*texts, *more])}]"
    return ShownValue(text, [json for _, json in items])


def _block_value(message: Message) -> ShownValue:
    return ShownValue(block_text(message), _block_json(message))


def _scalar(field: FieldDescriptor, value: object) -> tuple[str, Json]:
    if field.enum_type is not None and isinstance(value, int):
        name = field.enum_type.values_by_number[value].name
        return name, name
    if isinstance(value, float):
        text = float_text(value, field.cpp_type == FieldDescriptor.CPPTYPE_DOUBLE)
        return text, float(text) if math.isfinite(value) else text
    if isinstance(value, bytes):
        return string_text(value), value.decode("latin-1")
    if isinstance(value, str):
        return value if field.number >= FIRST_FOREIGN else string_text(value), value
    assert isinstance(value, int)
    return str(value).lower(), value


def _block_json(message: Message) -> Json:
    found: dict[str, Json] = {}
    for field, value in message.ListFields():
        items = list(value) if field.is_repeated else [value]
        shown = [
            _block_json(item) if field.message_type is not None else _scalar(field, item)[1] for item in items
        ]
        found[field.name] = shown if field.is_repeated else shown[0]
    return found
