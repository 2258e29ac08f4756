"""Two messages of one type, field by field.

A default that is written and its absence are equal unless asked for, and so are an empty block and none,
but for the fields that Caffe itself asks for: `presence.py` has them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.prototxt import render_prototxt
from caffe_recipes.caffe.text.field_order import field_ranks
from caffe_recipes.caffe.text.writer import float_text, string_text
from caffe_recipes.review.diff.alignment import longest_common, match_by_keys
from caffe_recipes.review.diff.changes import NOT_SET, Change, Given, Json
from caffe_recipes.review.diff.presence import STARTS, is_asked, list_default, meant, says

_MOST_SHOWN = 8  # values of a list

# The items of these lists are known by a field, not by their place.
_KEYS: dict[str, tuple[str, ...]] = {"LabelMapItem": ("label", "name")}


@dataclass(frozen=True, slots=True)
class _Way:
    """How two messages are compared: whether written defaults count, and the types of the layers around."""

    defaults: bool = False
    types: tuple[str, str] = ("", "")


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
    return _diff(old, new, _Way(defaults), skip, prefix)


def _diff(old: Message, new: Message, way: _Way, skip: Collection[str], prefix: str) -> list[Change]:
    if isinstance(old, pb.LayerParameter) and isinstance(new, pb.LayerParameter):
        way = replace(way, types=(old.type, new.type))
    fields = {field.name: field for field, _ in (*old.ListFields(), *new.ListFields())}
    rank = field_ranks(old.DESCRIPTOR)
    found: list[Change] = []
    for field in sorted(fields.values(), key=lambda field: rank[field.number]):
        if field.name in skip or _is_same_block(field, old, new):
            continue
        path = f"{prefix}{field.name}"
        if field.is_repeated:
            found += _diff_repeated(path, field, old, new, way)
        elif field.message_type is not None:
            found += _diff_block(path, field, old, new, way)
        else:
            found += _diff_scalar(path, field, old, new, way)
    return found


def _is_same_block(field: FieldDescriptor, old: Message, new: Message) -> bool:
    """Whether both sides have one value of a list or a block, which is quick to see."""
    if field.is_repeated:
        return bool(getattr(old, field.name) == getattr(new, field.name))
    if field.message_type is None or not old.HasField(field.name) or not new.HasField(field.name):
        return False
    return bool(getattr(old, field.name) == getattr(new, field.name))


def fingerprint(message: Message, skip: Collection[str] = ()) -> bytes:
    """Give bytes that are equal for messages of equal meaning; `skip` are fields that do not count."""
    copy = type(message)()
    copy.CopyFrom(message)
    for name in skip:
        copy.ClearField(name)
    _strip(copy, "")
    return copy.SerializePartialToString(deterministic=True)


def block_text(message: Message) -> str:
    """Write a message on one line, as a block: `{ min_size: 256 max_size: 256 }`."""
    return " ".join(["{", *(line.strip() for line in render_prototxt(message).splitlines()), "}"])


def _strip(message: Message, layer_type: str) -> None:
    """Take out of a message what says nothing."""
    if isinstance(message, pb.LayerParameter):
        layer_type = message.type
    kept = []
    for field, value in message.ListFields():
        if field.is_repeated:
            kept.append(len(meant(message, field, value, layer_type)))
        else:
            kept.append(int(says(message, field, layer_type)))
    for (field, value), count in zip(message.ListFields(), kept, strict=True):
        if not count:
            message.ClearField(field.name)
        elif field.is_repeated:
            del value[count:]
        if count and field.message_type is not None:
            for item in value if field.is_repeated else [value]:
                _strip(item, layer_type)


def _same(a: object, b: object) -> bool:
    return a == b or (a != a and b != b)  # NaN


def _diff_scalar(
    path: str, field: FieldDescriptor, old: Message, new: Message, way: _Way
) -> Iterator[Change]:
    is_set = old.HasField(field.name), new.HasField(field.name)
    values = getattr(old, field.name), getattr(new, field.name)
    told = way.defaults or _says_either(field, old, new, way)
    if not _same(*values) or (is_set[0] != is_set[1] and told):
        sides = zip((old, new), values, is_set, way.types, strict=True)
        a, b = (
            NOT_SET if not given and is_asked(m, field, type_) else _given(field, value, given)
            for m, value, given, type_ in sides
        )
        yield Change("changed", path, a, b)


def _says_either(field: FieldDescriptor, old: Message, new: Message, way: _Way) -> bool:
    return says(old, field, way.types[0]) or says(new, field, way.types[1])


def _diff_repeated(
    path: str, field: FieldDescriptor, old: Message, new: Message, way: _Way
) -> Iterator[Change]:
    before, after = list(getattr(old, field.name)), list(getattr(new, field.name))
    if not way.defaults:
        before = list(meant(old, field, before, way.types[0]))
        after = list(meant(new, field, after, way.types[1]))
    if field.message_type is not None:
        return _diff_blocks(path, field, before, after, way)
    defaults = [list_default(m, field, type_) for m, type_ in zip((old, new), way.types, strict=True)]
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
            yield Change("changed", name, _given(field, old[k]), _given(field, new[k]))
            return
    start = 0
    if max(len(old), len(new)) > _MOST_SHOWN:
        while start < min(len(old), len(new)) and _same(old[start], new[start]):
            start += 1
    name = f"{path}[{start}:]" if start else path
    a, b = (
        _given_list(field, values[start:], bool(start), default)
        for values, default in zip((old, new), defaults, strict=True)
    )
    yield Change("changed", name, a, b)


def _diff_block(path: str, field: FieldDescriptor, old: Message, new: Message, way: _Way) -> list[Change]:
    is_set = old.HasField(field.name), new.HasField(field.name)
    blocks = getattr(old, field.name), getattr(new, field.name)
    found = _diff(*blocks, way, (), f"{path}.")
    if is_set[0] == is_set[1]:
        return found
    if not (way.defaults or _says_either(field, old, new, way)):
        return []
    if len(found) == 1 and not is_asked(old, field, way.types[0]):
        return found
    nothing = _absent(old, field)
    a, b = (_given_block(m) if given else nothing for m, given in zip(blocks, is_set, strict=True))
    return [Change("changed", path, a, b)]


def _absent(message: Message, field: FieldDescriptor) -> Given:
    """Say what there is in place of a block."""
    start = STARTS.get((message.DESCRIPTOR.name, field.name))
    return NOT_SET if start is None else Given(f"not set (starts at {start:g})", None, is_set=False)


def _diff_blocks(
    path: str, field: FieldDescriptor, old: list[Message], new: list[Message], way: _Way
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
            yield from _diff(old[found_at[j]], item, way, (), f"{name}.")


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


def _given_list(field: FieldDescriptor, values: list[object], is_rest: bool, default: int | None) -> Given:
    if not values and not is_rest:
        if default is None:
            return NOT_SET
        text, json = _scalar(field, default)
        return Given(f"{text} (default)", [json], is_set=False)
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
