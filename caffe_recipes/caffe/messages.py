"""Messages from plain values: what a person writes by keyword, checked field by field."""

from __future__ import annotations

import difflib
import functools
import math
from collections.abc import Iterable, Mapping
from operator import index
from typing import Any, SupportsFloat, SupportsIndex, TypeVar

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.message import Message

from caffe_recipes.caffe.text_writer import float_text
from caffe_recipes.errors import InputError

M = TypeVar("M", bound=Message)

# A scalar, an enum's name, a message, a mapping of its fields, a list of these, or None for "not given".
FieldValue = Any

_LARGEST_FLOAT32 = (2 - 2**-23) * 2.0**127
_INTEGERS = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
}
_FLOATS = {
    FieldDescriptor.CPPTYPE_FLOAT: _LARGEST_FLOAT32,
    FieldDescriptor.CPPTYPE_DOUBLE: math.inf,
}
_TEXTS: dict[int, tuple[type[bool | str | bytes], str]] = {
    FieldDescriptor.TYPE_BOOL: (bool, "True or False"),
    FieldDescriptor.TYPE_STRING: (str, "text"),
    FieldDescriptor.TYPE_BYTES: (bytes, "bytes"),
}


def build_message(cls: type[M], where: str, fields: Mapping[str, FieldValue]) -> M:
    """Build a message from its fields by name; `where` is named in errors.

    A field that is None stays absent, and an empty mapping is an empty message that is present. One value
    will do for a repeated field. Raises InputError for an unknown field and a value that does not fit it.

    >>> from caffe_recipes.caffe import pb
    >>> print(build_message(pb.PoolingParameter, "pool1", {"pool": "AVE", "kernel_size": 7, "stride": None}))
    pool: AVE
    kernel_size: 7
    <BLANKLINE>
    """
    message = cls()
    set_fields(message, where, fields)
    return message


def set_fields(message: Message, where: str, fields: Mapping[str, FieldValue]) -> None:
    """Set the fields of a message that is there already, as `build_message` does."""
    known = fields_of(message.DESCRIPTOR)
    for name, value in fields.items():
        if name not in known:
            raise InputError(where, f"{message.DESCRIPTOR.name} has no field '{name}'", nearest(name, known))
        if value is not None:
            _set_field(message, known[name], value, f"{where}: {name}")


def nearest(name: str, known: Iterable[str]) -> str:
    """Suggest the known name that is nearest, or say what there is.

    >>> nearest("kernal_size", ["kernel_size", "pad"]), nearest("x", ["kernel_size", "pad"])
    ("did you mean 'kernel_size'?", 'there are kernel_size, pad')
    """
    names = list(known)
    near = difflib.get_close_matches(name, names, n=1)
    if near:
        return f"did you mean '{near[0]}'?"
    return f"there are {', '.join(names)}" if len(names) < 20 else ""


@functools.cache
def fields_of(message: Descriptor) -> Mapping[str, FieldDescriptor]:
    """Return the fields of a message by name."""
    return {field.name: field for field in message.fields}


def _set_field(message: Message, field: FieldDescriptor, value: FieldValue, at: str) -> None:
    if field.is_repeated:
        is_one = isinstance(value, str | bytes | Mapping | Message) or not isinstance(value, Iterable)
        for item in (value,) if is_one else value:
            if field.message_type:
                _fill(getattr(message, field.name).add(), item, at)
            else:
                getattr(message, field.name).append(_scalar(field, item, at))
    elif field.message_type:
        _fill(getattr(message, field.name), value, at)
    else:
        setattr(message, field.name, _scalar(field, value, at))


def _fill(target: Message, value: FieldValue, at: str) -> None:
    if isinstance(value, Mapping):
        target.SetInParent()
        set_fields(target, at, value)
    elif isinstance(value, type(target)):
        target.CopyFrom(value)
    else:
        raise _unfit(at, value, f"a {target.DESCRIPTOR.name} or a mapping of its fields")


def _scalar(field: FieldDescriptor, value: FieldValue, at: str) -> bool | int | float | str | bytes:
    if field.enum_type:
        return _enum_number(field.enum_type, value, at)
    is_bool = isinstance(value, bool)
    if field.cpp_type in _INTEGERS:
        least, most = _INTEGERS[field.cpp_type]
        if isinstance(value, int | SupportsIndex) and not is_bool and least <= index(value) <= most:
            return index(value)
        raise _unfit(at, value, f"a whole number from {least} to {most}")
    if field.cpp_type in _FLOATS:
        largest = _FLOATS[field.cpp_type]
        if (
            isinstance(value, int | float | SupportsFloat)
            and not is_bool
            and abs(number := _float(value)) <= largest
        ):
            return number
        raise _unfit(at, value, f"a number of at most {float_text(largest)}")
    python_type, wanted = _TEXTS[field.type]
    if not isinstance(value, python_type):
        raise _unfit(at, value, wanted)
    return value


def _float(value: SupportsFloat) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.nan


def _enum_number(enum: EnumDescriptor, value: FieldValue, at: str) -> int:
    if isinstance(value, str) and value in enum.values_by_name:
        return int(enum.values_by_name[value].number)
    if isinstance(value, int) and not isinstance(value, bool) and value in enum.values_by_number:
        return value
    names = enum.values_by_name
    raise InputError(at, f"{enum.name} has no value {_shown(value)}", nearest(str(value), names))


def _unfit(at: str, value: FieldValue, wanted: str) -> InputError:
    return InputError(at, f"{_shown(value)} does not fit", f"give {wanted}")


def _shown(value: FieldValue) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else f"{text[:57]}..."
