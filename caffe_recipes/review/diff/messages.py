"""Two messages of one type, field by field.

A default that is written and its absence are equal unless asked for. That is so for the defaults that the
schema declares, and a few that only Caffe's code does; without one Caffe may ask whether the field is there
(`use_global_stats`, a rule's `phase`, `kernel_h`), so there a written zero and its absence differ.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from caffe_recipes.caffe.field_order import field_ranks
from caffe_recipes.caffe.prototxt import render_prototxt
from caffe_recipes.caffe.text_writer import float_text, string_text
from caffe_recipes.review.diff.alignment import longest_common, match_by_keys
from caffe_recipes.review.diff.changes import NOT_SET, Change, Given, Json

_MOST_SHOWN = 8  # values of a list

# Lists that Caffe takes for one such value where they are empty, as the schema cannot say.
_LIST_DEFAULTS: Mapping[tuple[str, str], int] = {
    ("ConvolutionParameter", "pad"): 0,
    ("ConvolutionParameter", "stride"): 1,
    ("ConvolutionParameter", "dilation"): 1,
}

# Blocks that say nothing at the end of their list if they are empty: Caffe takes defaults past it.
_PADDING = ("ParamSpec",)

# The items of these lists are known by a field, not by their place.
_KEYS: dict[str, tuple[str, ...]] = {"LabelMapItem": ("label", "name")}


def diff_messages(
    old: Message, new: Message, *, defaults: bool = False, skip: Collection[str] = (), prefix: str = ""
) -> list[Change]:
    """Give every field in which two messages of one type differ, in the order of writing.

    A block that only one side has is one change. `defaults` tells a written default from its absence.

    >>> from caffe_recipes.caffe import pb
    >>> [change] = diff_messages(pb.SolverParameter(base_lr=1, type="SGD"), pb.SolverParameter(base_lr=2))
    >>> change.field, change.old.text, change.new.text
    ('base_lr', '1', '2')
    """
    fields = {field.name: field for field, _ in (*old.ListFields(), *new.ListFields())}
    rank = field_ranks(old.DESCRIPTOR)
    found: list[Change] = []
    for field in sorted(fields.values(), key=lambda field: rank[field.number]):
        if field.name in skip:
            continue
        a, b = getattr(old, field.name), getattr(new, field.name)
        path = f"{prefix}{field.name}"
        if field.is_repeated:
            compare = _diff_blocks if field.message_type else _diff_list
            lists = (list(a), list(b)) if defaults else (_meant(field, a), _meant(field, b))
            found += compare(path, field, *lists, defaults)
        elif field.message_type is not None:
            both = old.HasField(field.name), new.HasField(field.name)
            found += _diff_block(path, a, b, both, defaults)
        else:
            found += _diff_scalar(path, field, old, new, defaults)
    return found


def strip_defaults(message: Message, skip: Collection[str] = ()) -> Message:
    """Copy a message without what says nothing: written defaults, empty blocks, and the fields in `skip`."""
    copy = type(message)()
    copy.CopyFrom(message)
    for name in skip:
        copy.ClearField(name)
    _strip(copy)
    return copy


def fingerprint(message: Message, skip: Collection[str] = ()) -> bytes:
    """Give bytes that are equal for messages of equal meaning; `skip` are fields that do not count."""
    return strip_defaults(message, skip).SerializePartialToString(deterministic=True)


def block_text(message: Message) -> str:
    """Write a message on one line, as a block: `{ min_size: 256 max_size: 256 }`."""
    return " ".join(["{", *(line.strip() for line in render_prototxt(message).splitlines()), "}"])


def _strip(message: Message) -> None:
    default = type(message)()
    for field, value in message.ListFields():
        if field.is_repeated:
            del value[len(_meant(field, value)) :]
        if field.message_type is not None:
            for item in value if field.is_repeated else [value]:
                _strip(item)
            if not field.is_repeated and not value.ListFields():
                message.ClearField(field.name)
        elif not field.is_repeated and field.has_default_value and value == getattr(default, field.name):
            message.ClearField(field.name)


def _meant(field: FieldDescriptor, values: Sequence[Any]) -> list[Any]:
    """Give a list without what Caffe would take anyway."""
    kept = list(values)
    schema = field.message_type
    if schema is not None and schema.name in _PADDING:
        while kept and not strip_defaults(kept[-1]).ListFields():
            kept.pop()
    elif len(kept) == 1 and _list_default(field) == kept[0]:
        kept.clear()
    return kept


def _list_default(field: FieldDescriptor) -> int | None:
    return _LIST_DEFAULTS.get((field.containing_type.name, field.name)) if field.containing_type else None


def _same(a: object, b: object) -> bool:
    return a == b or (a != a and b != b)  # NaN


def _diff_scalar(
    path: str, field: FieldDescriptor, old: Message, new: Message, defaults: bool
) -> Iterator[Change]:
    is_set = old.HasField(field.name), new.HasField(field.name)
    values = getattr(old, field.name), getattr(new, field.name)
    told_apart = is_set[0] != is_set[1] and (defaults or not field.has_default_value)
    if told_apart or not _same(*values):
        a, b = (_given(field, value, given) for value, given in zip(values, is_set, strict=True))
        yield Change("changed", path, a, b)


def _diff_list(
    path: str, field: FieldDescriptor, old: list[object], new: list[object], defaults: bool
) -> Iterator[Change]:
    del defaults  # lists have none
    if len(old) == len(new):
        places = [k for k, pair in enumerate(zip(old, new, strict=True)) if not _same(*pair)]
        if not places:
            return
        if len(places) == 1:
            k = places[0]
            name = f"{path}[{k}]" if len(old) > 1 else path
            yield Change("changed", name, _given(field, old[k]), _given(field, new[k]))
            return
    start = 0
    if max(len(old), len(new)) > _MOST_SHOWN:
        while start < min(len(old), len(new)) and _same(old[start], new[start]):
            start += 1
    name = f"{path}[{start}:]" if start else path
    a, b = (_given_list(field, values[start:], bool(start)) for values in (old, new))
    yield Change("changed", name, a, b)


def _diff_block(
    path: str, old: Message, new: Message, is_set: tuple[bool, bool], defaults: bool
) -> list[Change]:
    found = diff_messages(old, new, defaults=defaults, prefix=f"{path}.")
    if is_set[0] == is_set[1] or len(found) == 1 or not (found or defaults):
        return found
    old_block, new_block = (
        _given_block(m) if given else NOT_SET for m, given in zip((old, new), is_set, strict=True)
    )
    return [Change("changed", path, old_block, new_block)]


def _diff_blocks(
    path: str, field: FieldDescriptor, old: list[Message], new: list[Message], defaults: bool
) -> Iterator[Change]:
    assert field.message_type
    keys = _KEYS.get(field.message_type.name)
    pairs = _pair_by_fields(old, new, keys) if keys else _pair_by_place(old, new)
    for i, item in enumerate(old):
        if i not in pairs:
            yield Change("changed", _item_path(path, item, i, keys), _given_block(item), NOT_SET)
    found_at = {j: i for i, j in pairs.items()}
    for j, item in enumerate(new):
        name = _item_path(path, item, j, keys)
        if j not in found_at:
            yield Change("changed", name, NOT_SET, _given_block(item))
        else:
            yield from diff_messages(old[found_at[j]], item, defaults=defaults, prefix=f"{name}.")


def _pair_by_fields(old: list[Message], new: list[Message], names: Sequence[str]) -> dict[int, int]:
    def key(*fields: str) -> Callable[[Message], Hashable]:
        return lambda item: tuple(getattr(item, name) for name in fields)

    return match_by_keys(old, new, [key(*names), *(key(name) for name in names)])


def _pair_by_place(old: list[Message], new: list[Message]) -> dict[int, int]:
    """Pair blocks of as many each in order; else those that are equal, and what stands between them."""
    if len(old) == len(new):
        return {k: k for k in range(len(old))}
    equal = longest_common([fingerprint(item) for item in old], [fingerprint(item) for item in new])
    pairs = dict(equal)
    i = j = 0
    for end_i, end_j in [*equal, (len(old), len(new))]:
        pairs.update(zip(range(i, end_i), range(j, end_j), strict=False))
        i, j = end_i + 1, end_j + 1
    return pairs


def _item_path(path: str, item: Any, place: int, keys: Sequence[str] | None) -> str:  # noqa: ANN401 - a message
    return f"{path}[{keys[0]} {getattr(item, keys[0])}]" if keys else f"{path}[{place}]"


def _given(field: FieldDescriptor, value: object, is_set: bool = True) -> Given:
    if not is_set and not field.has_default_value:
        return NOT_SET
    text, json = _scalar(field, value)
    return Given(text if is_set else f"{text} (default)", json, is_set)


def _given_list(field: FieldDescriptor, values: list[object], is_rest: bool) -> Given:
    if not values and not is_rest:
        default = _list_default(field)
        return NOT_SET if default is None else Given(f"{default} (default)", [default], is_set=False)
    items = [_scalar(field, value) for value in values]
    texts = [text for text, _ in items[:_MOST_SHOWN]]
    more = [f"... {len(values) - _MOST_SHOWN:,} more"] if len(values) > _MOST_SHOWN else []
    text = texts[0] if len(items) == 1 and not is_rest else f"[{', '.join([*texts, *more])}]"
    return Given(text, [json for _, json in items])


def _given_block(message: Message) -> Given:
    return Given(block_text(message), _block_json(message))


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
        return string_text(value), value
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
