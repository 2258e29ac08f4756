"""Build protobuf messages from plain Python values, checking each field."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping
from operator import index
from typing import Any, SupportsFloat, SupportsIndex, TypeVar

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.message import Message

from caffe_recipes.caffe.text.writer import FLOAT_MAX, float_text
from caffe_recipes.errors import InputError
from caffe_recipes.wording import did_you_mean, shorten

M = TypeVar("M", bound=Message)

# A scalar, the name of an enum value, a message, a mapping of its fields, a list of these, or None for unset.
FieldValue = Any

# Converts a plain value to one that protobuf accepts, or raises.
_Check = Callable[[FieldValue], bool | int | float | str | bytes]

_INTEGERS = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
}
_FLOATS = {
    FieldDescriptor.CPPTYPE_FLOAT: FLOAT_MAX,
    FieldDescriptor.CPPTYPE_DOUBLE: math.inf,
}
_TEXTS: dict[int, tuple[type[bool | str | bytes], str]] = {
    FieldDescriptor.TYPE_BOOL: (bool, "True or False"),
    FieldDescriptor.TYPE_STRING: (str, "text"),
    FieldDescriptor.TYPE_BYTES: (bytes, "bytes"),
}


def build_message(cls: type[M], where: str, fields: Mapping[str, FieldValue]) -> M:
    """Build a message from a mapping of its fields; errors name `where`.

    A field whose value is None stays unset; an empty mapping sets a field to an empty message. A repeated
    field accepts a single value. Raises InputError for an unknown field or an invalid value.

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
    """Set fields of an existing message. Raises InputError as `build_message` does."""
    try:
        _set_fields(message, fields)
    except _InvalidValueError as error:
        raise InputError(": ".join((where, *error.path)), error.what, error.hint) from None


def nearest(name: str, known: Iterable[str]) -> str:
    """Suggest the known name most similar to `name`; if none is similar, list them if they are fewer than 20.

    >>> nearest("kernal_size", ["kernel_size", "pad"]), nearest("x", ["kernel_size", "pad"])
    ("did you mean 'kernel_size'?", 'choose from kernel_size, pad')
    """
    names = list(known)
    return did_you_mean(name, names, f"choose from {', '.join(names)}" if len(names) < 20 else "")


class _InvalidValueError(Exception):
    """An invalid value or field name; each enclosing block prepends its field's name to the path."""

    def __init__(self, what: str, hint: str) -> None:
        super().__init__(what)
        self.path: tuple[str, ...] = ()
        self.what = what
        self.hint = hint


def _set_fields(message: Message, fields: Mapping[str, FieldValue]) -> None:
    known = _checks(message.DESCRIPTOR)
    for name, value in fields.items():
        if name not in known:
            raise _InvalidValueError(f"{message.DESCRIPTOR.name} has no field '{name}'", nearest(name, known))
        if value is None:
            continue
        is_repeated, check = known[name]
        try:
            if is_repeated:
                _extend(getattr(message, name), check, value)
            elif check:
                setattr(message, name, check(value))
            else:
                _fill(getattr(message, name), value)
        except _InvalidValueError as error:
            error.path = (name, *error.path)
            raise


def _extend(target: Any, check: _Check | None, value: FieldValue) -> None:  # noqa: ANN401 - protobuf's containers
    is_one = isinstance(value, (str, bytes, dict, Message, Mapping)) or not isinstance(value, Iterable)
    for item in (value,) if is_one else value:
        if check:
            target.append(check(item))
        else:
            _fill(target.add(), item)


def _fill(target: Message, value: FieldValue) -> None:
    if isinstance(value, (dict, Mapping)):  # dict first: checking for an abstract Mapping is slower
        target.SetInParent()
        _set_fields(target, value)
    elif isinstance(value, type(target)):
        target.CopyFrom(value)
    else:
        raise _invalid(value, f"a {target.DESCRIPTOR.name} or a mapping of its fields")


@functools.cache
def _checks(message: Descriptor) -> Mapping[str, tuple[bool, _Check | None]]:
    """Return {field: (whether it is repeated, its check)}; the check of a message field is None."""
    return {field.name: (field.is_repeated, _check_of(field)) for field in message.fields}


def _check_of(field: FieldDescriptor) -> _Check | None:
    if field.message_type:
        return None
    if field.enum_type:
        return functools.partial(_enum_number, field.enum_type)
    if field.cpp_type in _INTEGERS:
        return functools.partial(_integer, *_INTEGERS[field.cpp_type])
    if field.cpp_type in _FLOATS:
        return functools.partial(_number, _FLOATS[field.cpp_type])
    return functools.partial(_text, *_TEXTS[field.type])


def _integer(least: int, most: int, value: FieldValue) -> int:
    if (
        isinstance(value, (int, SupportsIndex))
        and not isinstance(value, bool)
        and least <= index(value) <= most
    ):
        return index(value)
    raise _invalid(value, f"an integer from {least} to {most}")


def _number(largest: float, value: FieldValue) -> float:
    if isinstance(value, (float, int, SupportsFloat)) and not isinstance(value, bool):
        number = _float(value)
        if abs(number) <= largest:
            return number
    raise _invalid(value, f"a number of at most {float_text(largest)}")


def _text(python_type: type[bool | str | bytes], expected: str, value: FieldValue) -> bool | str | bytes:
    if not isinstance(value, python_type):
        raise _invalid(value, expected)
    return value


def _float(value: SupportsFloat) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.nan


def _enum_number(enum: EnumDescriptor, value: FieldValue) -> int:
    if isinstance(value, str) and value in enum.values_by_name:
        return int(enum.values_by_name[value].number)
    if isinstance(value, int) and not isinstance(value, bool) and value in enum.values_by_number:
        return value
    names = enum.values_by_name
    raise _InvalidValueError(f"{enum.name} has no value {_shorten(value)}", nearest(str(value), names))


def _invalid(value: FieldValue, expected: str) -> _InvalidValueError:
    return _InvalidValueError(f"invalid value {_shorten(value)}", f"expected {expected}")


def _shorten(value: FieldValue) -> str:
    return shorten(" ".join(repr(value).split()), 60)
