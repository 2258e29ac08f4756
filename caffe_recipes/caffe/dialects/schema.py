"""One schema for all Caffes: what any of them reads in a prototxt, this reads.

Our own schema refuses a file of nvcaffe's at its first `rampup_interval`. The schema here is ours with every
field, message and enum value that another dialect adds, so that such a file can be read, shown and judged.
Our fields keep their numbers, so a message goes over into ours by its bytes. Where another's number is taken
it gets a free one: text names fields, it does not number them.
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
_FIRST_FREE = 100_000  # above every number of any Caffe's; protobuf keeps 19000 to 19999 for itself
_SCALARS = {
    name: FieldDescriptorProto.Type.Value(f"TYPE_{name.upper()}")
    for name in ("double", "float", "int64", "uint64", "int32", "bool", "string", "bytes", "uint32")
}


def parse_lenient(text: str, path: str | Path = "<text>") -> Document[Message]:
    """Parse text of any Caffe's into the message of the schema of all; PrototxtError where none reads it.

    >>> solver = parse_lenient("base_lr: 1 rampup_interval: 5 lr_iter: 9").message
    >>> solver.rampup_interval, solver.lr_iter
    (5, 9)
    """
    return parse_document(text, path, guess_class(text, path, _lenient_kinds()))


def to_ours(message: Message) -> Message:
    """Turn a message of the schema of all Caffes into ours, without what our Caffe does not have.

    >>> to_ours(parse_lenient("base_lr: 1 rampup_interval: 5").message) == pb.SolverParameter(base_lr=1)
    True
    """
    ours: Message = getattr(pb, message.DESCRIPTOR.name)()
    ours.MergeFromString(message.SerializePartialToString())
    # Enum values that ours lacks are among the unknown: the schema is proto2's, whose enums are closed.
    ours.DiscardUnknownFields()
    return ours


@functools.cache
def lenient_schema() -> FileDescriptor:
    """Return the schema of all Caffes, in a descriptor pool of its own."""
    file = FileDescriptorProto()
    pb.DESCRIPTOR.CopyToProto(file)
    owners = _owners(file)
    additions = _additions()
    for name, added in sorted(additions.items()):  # outer ones before what is inside them
        if name not in owners:
            owners[name] = _new_owner(file, owners, name, is_enum=isinstance(next(iter(added.values())), int))
    for name, added in additions.items():
        owner = owners[name]
        for key, definition in added.items():
            if isinstance(owner, EnumDescriptorProto):
                assert isinstance(definition, int)
                number = _free(definition, {value.number for value in owner.value})
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
    """Gather what the dialects add; the first to name a field defines it."""
    gathered: dict[str, dict[str, Definition | int]] = {}
    for dialect in load_dialects().values():
        for owner, added in dialect.added.items():
            gathered[owner] = {**added, **gathered.get(owner, {})}
    return gathered


def _owners(file: FileDescriptorProto) -> dict[str, DescriptorProto | EnumDescriptorProto]:
    """Find messages and enums by the names that the dialects give them."""
    found: dict[str, DescriptorProto | EnumDescriptorProto] = {enum.name: enum for enum in file.enum_type}
    for message in file.message_type:
        found |= dict(_with_inner(message, message.name))
    return found


def _with_inner(
    message: DescriptorProto, name: str
) -> Iterator[tuple[str, DescriptorProto | EnumDescriptorProto]]:
    yield name, message
    for enum in message.enum_type:
        yield f"{name}.{enum.name}", enum
    for inner in message.nested_type:
        yield from _with_inner(inner, f"{name}.{inner.name}")


def _new_owner(
    file: FileDescriptorProto,
    owners: Mapping[str, DescriptorProto | EnumDescriptorProto],
    name: str,
    *,
    is_enum: bool,
) -> DescriptorProto | EnumDescriptorProto:
    """Add a message or an enum, inside its outer message if its name has one."""
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
        number=_free(definition.number, {field.number for field in message.field}),
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


def _free(number: int, taken: Container[int]) -> int:
    """Return the number, or the first that is free above all Caffes' numbers."""
    if number not in taken:
        return number
    free = _FIRST_FREE
    while free in taken:
        free += 1
    return free
