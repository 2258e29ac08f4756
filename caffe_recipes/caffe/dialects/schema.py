"""One schema for all Caffes, which reads every prototxt that any of them can read.

Our own schema refuses a file for nvcaffe at its first `rampup_interval`. The schema here is ours plus every
field, message and enum value that another dialect adds, so that such a file can be read, shown and checked.
Our fields keep their numbers, so a message converts to ours through its binary form. An added field whose
number is already used gets a free one, which is safe because text contains only the names of fields.
"""

from __future__ import annotations

import functools
from collections.abc import Container, Iterator, Mapping
from pathlib import Path

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
from caffe_recipes.caffe.dialects import Definition, load_dialects
from caffe_recipes.caffe.prototxt import KINDS, Document, guess_class, parse_document

_PACKAGE = "caffe"
_FIRST_FREE = 100_000  # above all numbers of all Caffes; protobuf reserves 19000 to 19999
_SCALARS = {
    name: FieldDescriptorProto.Type.Value(f"TYPE_{name.upper()}")
    for name in ("double", "float", "int64", "uint64", "int32", "bool", "string", "bytes", "uint32")
}


def parse_lenient(text: str, path: str | Path = "<text>") -> Document[Message]:
    """Parse text for any Caffe into a message of the schema of all. Raises PrototxtError if none reads it.

    >>> solver = parse_lenient("base_lr: 1 rampup_interval: 5 lr_iter: 9").message
    >>> solver.rampup_interval, solver.lr_iter
    (5, 9)
    """
    return parse_document(text, path, guess_class(text, path, _lenient_kinds()))


def to_ours(message: Message) -> Message:
    """Convert a message of the schema of all Caffes to ours, dropping what our Caffe does not have.

    >>> to_ours(parse_lenient("base_lr: 1 rampup_interval: 5").message) == pb.SolverParameter(base_lr=1)
    True
    """
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


@functools.cache
def _lenient_kinds() -> Mapping[str, type[Message]]:
    messages = lenient_schema().message_types_by_name
    return {
        kind: message_factory.GetMessageClass(messages[cls.DESCRIPTOR.name]) for kind, cls in KINDS.items()
    }


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
