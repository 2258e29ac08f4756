"""Random values of the fields of a message."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any


def random_value(
    random: Random,
    field: Any,  # noqa: ANN401
    texts: Sequence[str],
    reals: Sequence[float],
    integers: Sequence[int],
) -> Any:  # noqa: ANN401
    """Return one of the given values that the type of a field allows; nothing is drawn for a single text."""
    kind = field.cpp_type
    if kind == field.CPPTYPE_ENUM:
        return random.choice(field.enum_type.values).number
    if kind == field.CPPTYPE_BOOL:
        return random.random() < 0.5
    if kind == field.CPPTYPE_STRING:
        return random.choice(texts) if len(texts) > 1 else texts[0]
    if kind in (field.CPPTYPE_FLOAT, field.CPPTYPE_DOUBLE):
        return random.choice(reals)
    bounds = {
        field.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
        field.CPPTYPE_UINT32: (0, 2**32 - 1),
        field.CPPTYPE_UINT64: (0, 2**64 - 1),
    }
    least, most = bounds.get(kind, (-(2**63), 2**63 - 1))
    return random.choice([number for number in integers if least <= number <= most])
