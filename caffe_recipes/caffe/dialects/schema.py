"""Read a prototxt of any Caffe, with a schema that is extended by what ours does not have.

Our own schema refuses a file for nvcaffe at its first `rampup_interval`. The schema of all Caffes is ours
plus every field, message and enum value that another dialect adds, so that such a file can be read, shown and
checked. Our fields keep their numbers, so a message converts to ours through its binary form. An added field
whose number is already used gets a free one, which is safe because text contains only the names of fields.

A fork's names, which no dialect has, are added for one file: a block as a message, a value as the text that
was written. Their numbers follow from their names, so they are the same for every file.
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
)
from google.protobuf.message import Message

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.dialects import Definition, field_dialects, load_dialects, names_of
from caffe_recipes.caffe.dialects.unsupported_names import FIELDS, find_fork_type
from caffe_recipes.caffe.prototxt import (
    KINDS,
    MOST_BYTES,
    Document,
    empty_file_error,
    guess_class,
    has_known_field,
    parse_document,
    read_prototxt,
)
from caffe_recipes.caffe.text.hints import OLD_TYPES, hint_for_field, hint_for_value
from caffe_recipes.caffe.text.parser import Foreign, ForeignName, UnknownNameError, foreign_block, survey_text
from caffe_recipes.caffe.text.writer import FIRST_FOREIGN
from caffe_recipes.errors import PrototxtError
from caffe_recipes.wording import find_slip

_PACKAGE = "caffe"
_FIRST_FREE = 100_000  # above all numbers of all Caffes; protobuf reserves 19000 to 19999
_FOREIGN_NUMBERS = 500_000_000  # protobuf's field numbers end at 536,870,911
_SCALARS = {
    name: FieldDescriptorProto.Type.Value(f"TYPE_{name.upper()}")
    for name in ("double", "float", "int64", "uint64", "int32", "bool", "string", "bytes", "uint32")
}


def parse_lenient(text: str, path: str | Path = "<text>") -> Document[Message]:
    """Parse text of any Caffe, also of one that is not known here; `foreign` has the names that ours lacks.

    Without such names, the message is of our schema. Raises PrototxtError for text that no Caffe reads, such
    as that of another program, which has no outermost field of a Caffe.

    >>> solver = parse_lenient("base_lr: 1 rampup_interval: 5 lr_iter: 9 my_rate { x: 1e-3 }")
    >>> solver.message.rampup_interval, [name.name for name in solver.foreign]
    (5, ['rampup_interval', 'my_rate', 'x'])
    """
    kind = guess_class(text, path, _lenient_kinds()).DESCRIPTOR.name
    ours: type[Message] = getattr(pb, kind)
    try:
        return parse_document(text, path, ours)
    except UnknownNameError as error:
        if not has_known_field(text, _lenient_kinds()):
            raise
        found: Foreign = {}
        try:
            survey_text(text, _find_class(lenient_schema(), kind)(), path, found)
            schema = _extend(lenient_schema(), (*found.values(),))
        except (PrototxtError, TypeError) as worse:
            # A misplaced brace makes names foreign that are not.
            is_dialect = all(map(is_known, found.values()))
            raise (worse if is_dialect and isinstance(worse, PrototxtError) else error) from None
    document = parse_document(text, path, _find_class(schema, kind))
    return replace(document, foreign=(*found.values(),))


def load_lenient(path: str | Path, max_bytes: int = MOST_BYTES) -> Document[Message]:
    """Read a prototxt file of any Caffe. Raises PrototxtError as `load_document` does."""
    document = parse_lenient(read_prototxt(path, max_bytes), path)
    if not document.message.ListFields():
        raise empty_file_error(path)
    return document


def outer_foreign(document: Document[Any]) -> list[ForeignName]:
    """Return the names in a document that our Caffe lacks, without those inside a block of such a name."""
    return [name for name in document.foreign if name.owner in _owners_of_ours()]


@functools.cache
def _owners_of_ours() -> frozenset[str]:
    file = FileDescriptorProto()
    pb.DESCRIPTOR.CopyToProto(file)
    return frozenset(_owners(file))


def describe_name(name: ForeignName) -> tuple[str, str]:
    """Return what our Caffe lacks, and a hint: whose it is, or what was meant.

    >>> describe_name(ForeignName("SolverParameter", "gama", 0))
    ("SolverParameter has no field 'gama'", "did you mean 'gamma'?")
    """
    known = _names_beside(name)
    if name.kind != "enum value":
        return f"{name.owner} has no field '{name.name}'", hint_for_field(name.owner, known, name.name)
    return f"{name.owner} has no value '{name.name}'", hint_for_value(name.owner, known, name.name)


def nearest_name(name: ForeignName) -> str | None:
    """Return the field or value of any Caffe that a name is a slip of the keyboard for, or None.

    >>> nearest_name(ForeignName("SolverParameter", "gama", 0)), nearest_name(ForeignName("NetState", "x", 0))
    ('gamma', None)
    """
    return find_slip(name.name, _names_beside(name))


def _names_beside(name: ForeignName) -> list[str]:
    """Return the names that could be in the place of one: fields of its message, or values of its enum."""
    owner = lenient_schema().message_types_by_name.get(name.owner)
    return [*names_of(name.owner)] if name.kind == "enum value" else [*owner.fields_by_name] if owner else []


def list_unknown_names(document: Document[Any]) -> list[ForeignName]:
    """Return the names in a document that no known Caffe has."""
    return [name for name in outer_foreign(document) if not (is_known(name) or is_of_fork(name))]


def name_error(document: Document[Any], name: ForeignName) -> PrototxtError:
    """Return the error for a name in a document that our Caffe lacks, with its place and a hint."""
    return PrototxtError(document.place(name.offset), *describe_name(name))


def is_of_fork(name: ForeignName) -> bool:
    """Return whether a public fork that is not a dialect has a name: a field, or the type of an old layer."""
    is_type = name.owner == OLD_TYPES and find_fork_type(name.name) is not None
    return is_type or (name.owner.removeprefix("V1"), name.name) in FIELDS


def foreign_values(message: Message, prefix: str = "") -> Iterator[tuple[str, str, str, Any]]:
    """Yield path, owner, name and value of each field that ours lacks, without those inside such a field."""
    if message.DESCRIPTOR.file is pb.DESCRIPTOR:
        return
    owner = message.DESCRIPTOR.full_name.removeprefix(f"{_PACKAGE}.")
    ours = names_of(owner)
    for field, given in message.ListFields():
        for index, value in enumerate(given if field.is_repeated else [given]):
            path = f"{prefix}{field.name}{f'[{index}]' if field.is_repeated else ''}"
            if field.name not in ours:
                yield path, owner, field.name, value
            elif field.message_type:
                yield from foreign_values(value, f"{path}.")


# Fields of other dialects that change the shape of a layer's output in a way that is not computed here.
_RESHAPING = frozenset(("torch_pooling",))
_ROUNDING = "ceil_mode"
# Fields and blocks of forks that the shapes of layers take into account.
_ACCOUNTED = frozenset(
    (
        _ROUNDING,
        "bn_param",
        "center_loss_param",
        "class_weighting",
        "convolution3d_param",
        "filter_group",
        "interp_param",
        "kernel_depth",
        "pooling3d_param",
        "seg_accuracy_param",
        "shuffle_channel_param",
        "temporal_pad",
        "temporal_stride",
        "upsample_param",
        "weight_by_label_freqs",
    )
)


def has_unknown_effect(layer: Message) -> bool:
    """Return whether a layer has fields of another Caffe that may change its shapes in an unknown way."""
    if layer.DESCRIPTOR.file is pb.DESCRIPTOR:
        return False
    for field, value in layer.ListFields():
        fork = FIELDS.get((layer.DESCRIPTOR.name, field.name))
        is_idle = fork is not None and value == fork.default
        if field.name in _RESHAPING or (
            field.number >= FIRST_FOREIGN and not is_idle and field.name not in _ACCOUNTED
        ):
            return True
        if field.name in _ACCOUNTED:
            continue
        if field.message_type and any(map(has_unknown_effect, value if field.is_repeated else [value])):
            return True
    return False


def rounds_down(pooling: Message) -> bool:
    """Return whether another Caffe rounds the size of a pooled output down: BVLC's, or a fork with ceil_mode.

    Ours always rounds it up.
    """
    return bool(getattr(pooling, "round_mode", 0)) or getattr(pooling, _ROUNDING, "true") in ("false", "0")


def is_known(name: ForeignName) -> bool:
    """Return whether any dialect has a name that our Caffe lacks."""
    return bool(field_dialects(name.owner, name.name))


def share_schema(one: Message, other: Message) -> tuple[Message, Message]:
    """Return two messages of one kind in a schema that has the fields of both."""
    if type(one) is type(other):
        return one, other
    names = {
        (name.owner, name.name): name for each in (one, other) for name in _own_names(each.DESCRIPTOR.file)
    }
    for name in _own_names(one.DESCRIPTOR.file):
        names[name.owner, name.name].is_repeated |= name.is_repeated
    cls = _find_class(_extend(lenient_schema(), tuple(names.values())), one.DESCRIPTOR.name)
    first, second = (cls.FromString(each.SerializePartialToString()) for each in (one, other))
    return first, second


def to_any(message: Message) -> Message:
    """Return a message of ours in the schema of all Caffes; one that has foreign names is of such a schema.

    >>> to_any(pb.SolverParameter(base_lr=1)).rampup_interval
    0
    """
    if message.DESCRIPTOR.file is not pb.DESCRIPTOR:
        return message
    cls = _find_class(lenient_schema(), message.DESCRIPTOR.name)
    return cls.FromString(message.SerializePartialToString())


def to_ours(message: Message) -> Message:
    """Convert a message of the schema of all Caffes to ours, dropping what our Caffe does not have.

    >>> to_ours(parse_lenient("base_lr: 1 rampup_interval: 5").message) == pb.SolverParameter(base_lr=1)
    True
    """
    if message.DESCRIPTOR.file is pb.DESCRIPTOR:
        return message
    ours: Message = getattr(pb, message.DESCRIPTOR.name)()
    ours.MergeFromString(message.SerializePartialToString())
    # Enum values that ours lacks become unknown fields, since enums are closed in proto2.
    ours.DiscardUnknownFields()
    return ours


@functools.cache
def lenient_schema() -> FileDescriptor:
    """Return the schema of all Caffes, in a private descriptor pool."""
    file = FileDescriptorProto()
    pb.DESCRIPTOR.CopyToProto(file)
    owners = _owners(file)
    additions = _additions()
    for name, added in sorted(additions.items()):  # outer owners before those nested in them
        if name not in owners:
            owners[name] = _new_owner(file, owners, name, is_enum=isinstance(next(iter(added.values())), int))
    for name, added in additions.items():
        owner = owners[name]
        for key, definition in added.items():
            if isinstance(owner, EnumDescriptorProto):
                assert isinstance(definition, int)
                number = _free_number(definition, {value.number for value in owner.value})
                owner.value.add(name=key, number=number)
            else:
                assert isinstance(definition, Definition)
                _add_field(owner, owners, key, definition)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return pool.FindFileByName(file.name)


def _find_class(schema: FileDescriptor, name: str) -> type[Message]:
    return message_factory.GetMessageClass(schema.message_types_by_name[name])


@functools.cache
def _lenient_kinds() -> Mapping[str, type[Message]]:
    return {kind: _find_class(lenient_schema(), cls.DESCRIPTOR.name) for kind, cls in KINDS.items()}


def _extend(schema: FileDescriptor, names: Sequence[ForeignName]) -> FileDescriptor:
    """Return the schema with the names that no dialect has. Raises TypeError if two of them clash."""
    added = tuple(
        (name.owner, name.name, name.kind, name.is_repeated) for name in names if not is_known(name)
    )
    return _extended(schema, added)


@functools.lru_cache(maxsize=32)
def _extended(schema: FileDescriptor, names: tuple[tuple[str, str, str, bool], ...]) -> FileDescriptor:
    file = FileDescriptorProto()
    schema.CopyToProto(file)
    owners = _owners(file)
    for owner, name, kind, is_repeated in names:
        holder = owners[owner]
        number = FIRST_FOREIGN + zlib.crc32(name.encode()) % _FOREIGN_NUMBERS
        if isinstance(holder, EnumDescriptorProto):
            holder.value.add(name=name, number=number)
            continue
        label = "repeated" if is_repeated else "optional"
        block = foreign_block(owner, name)
        if kind == "block":
            owners[block] = _new_owner(file, owners, block, is_enum=False)
        field = Definition(number, label, block if kind == "block" else "string", None)
        _add_field(holder, owners, name, field)
        current = owners["LayerParameter"]  # takes over the fields of an old layer when it is upgraded
        assert isinstance(current, DescriptorProto)
        if owner == "V1LayerParameter" and all(known.name != name for known in current.field):
            _add_field(current, owners, name, field)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return pool.FindFileByName(file.name)


def _own_names(schema: Any) -> Iterator[ForeignName]:  # noqa: ANN401 - a FileDescriptor
    """Yield the names with which a schema was extended, outer ones before those in them."""
    file = FileDescriptorProto()
    schema.CopyToProto(file)
    for owner, holder in _owners(file).items():
        if isinstance(holder, EnumDescriptorProto):
            for value in holder.value:
                if value.number >= FIRST_FOREIGN:
                    yield ForeignName(owner, value.name, 0, "enum value")
            continue
        for field in holder.field:
            if field.number >= FIRST_FOREIGN:
                is_repeated = field.label == FieldDescriptorProto.LABEL_REPEATED
                kind: Literal["block", "value"] = "block" if field.type_name else "value"
                yield ForeignName(owner, field.name, 0, kind, is_repeated)


def _additions() -> dict[str, dict[str, Definition | int]]:
    """Return what the dialects add; the first dialect that has a field defines it."""
    gathered: dict[str, dict[str, Definition | int]] = {}
    for dialect in load_dialects().values():
        for owner, added in dialect.added.items():
            gathered[owner] = {**added, **gathered.get(owner, {})}
    return gathered


def _owners(file: FileDescriptorProto) -> dict[str, DescriptorProto | EnumDescriptorProto]:
    """Return all messages and enums by the names that are used in `dialects.json`."""
    found: dict[str, DescriptorProto | EnumDescriptorProto] = {enum.name: enum for enum in file.enum_type}
    for message in file.message_type:
        found |= dict(_with_nested(message, message.name))
    return found


def _with_nested(
    message: DescriptorProto, name: str
) -> Iterator[tuple[str, DescriptorProto | EnumDescriptorProto]]:
    yield name, message
    for enum in message.enum_type:
        yield f"{name}.{enum.name}", enum
    for inner in message.nested_type:
        yield from _with_nested(inner, f"{name}.{inner.name}")


def _new_owner(
    file: FileDescriptorProto,
    owners: Mapping[str, DescriptorProto | EnumDescriptorProto],
    name: str,
    *,
    is_enum: bool,
) -> DescriptorProto | EnumDescriptorProto:
    """Add a message or an enum, nested in its outer message if its name has one."""
    outer, _, inner = name.rpartition(".")
    if not outer:
        return file.enum_type.add(name=name) if is_enum else file.message_type.add(name=name)
    message = owners[outer]
    assert isinstance(message, DescriptorProto)
    return message.enum_type.add(name=inner) if is_enum else message.nested_type.add(name=inner)


def _add_field(
    message: DescriptorProto,
    owners: Mapping[str, DescriptorProto | EnumDescriptorProto],
    name: str,
    definition: Definition,
) -> None:
    field = message.field.add(
        name=name,
        number=_free_number(definition.number, {field.number for field in message.field}),
        label=FieldDescriptorProto.Label.Value(f"LABEL_{definition.label.upper()}"),
    )
    if definition.type in _SCALARS:
        field.type = _SCALARS[definition.type]
    else:
        is_enum = isinstance(owners[definition.type], EnumDescriptorProto)
        field.type = FieldDescriptorProto.TYPE_ENUM if is_enum else FieldDescriptorProto.TYPE_MESSAGE
        field.type_name = f".{_PACKAGE}.{definition.type}"
    if definition.default is not None:
        field.default_value = definition.default


def _free_number(number: int, taken: Container[int]) -> int:
    """Return the number if it is free, or else the first free one above all numbers of all Caffes."""
    if number not in taken:
        return number
    free = _FIRST_FREE
    while free in taken:
        free += 1
    return free
