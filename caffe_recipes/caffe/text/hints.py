"""Say which name of a field or of the value of an enum was meant."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.dialects import OURS, field_dialects, find_counterpart
from caffe_recipes.caffe.dialects.unsupported_names import FIELDS, describe_fork
from caffe_recipes.wording import find_slip, join_names

OLD_TYPES = "V1LayerParameter.LayerType"
_MOST_OWNERS = 3
_MOST_VALUES = 12  # of an enum, in a hint


def hint_for_field(message: str, known: Iterable[str], name: str) -> str:
    """Return a hint for an unknown field: Caffes that have it, what was meant, or messages that have it.

    >>> hint_for_field("SolverParameter", ["net", "gamma"], "gama")
    "did you mean 'gamma'?"
    >>> hint_for_field("SolverParameter", ["net", "gamma"], "rampup_interval")
    'it belongs to nvcaffe; here the warm-up is warmup_iter, which is linear, not quadratic'
    """
    others = field_dialects(message, name)
    if others:
        here = find_counterpart(OURS, message, name)
        return f"it belongs to {join_names(others)}; {f'here {here}' if here else 'remove it for this Caffe'}"
    fork = FIELDS.get((message.removeprefix("V1"), name))
    if fork:
        return f"it is {describe_fork(fork)}"
    near = find_slip(name, known)
    if near:
        return f"did you mean '{near}'?"
    schema = pb.DESCRIPTOR.message_types_by_name.values()
    owners = [owner.name for owner in schema if name in owner.fields_by_name]
    if len(owners) > _MOST_OWNERS:
        owners = [*owners[:_MOST_OWNERS], "others"]
    if owners:
        return f"it is a field of {join_names(owners)}; check for a missing or an extra brace"
    return f"the fields of {message} are in caffe.proto"


def hint_for_value(enum: str, known: Sequence[str], name: str) -> str:
    """Return a hint for an unknown enum value: Caffes that have it, a similar value, or all values.

    >>> hint_for_value("DataParameter.DB", ["LEVELDB", "LMDB"], "LMBD")
    "did you mean 'LMDB'?"
    """
    if enum == OLD_TYPES and not name.isupper():
        return "write `layer`: `layers` is the old format, whose types are names such as DATA, without quotes"
    others = field_dialects(enum, name)
    if others:
        return f"it belongs to {join_names(others)}; remove it for this Caffe"
    near = find_slip(name, known)
    if near:
        return f"did you mean '{near}'?"
    if len(known) > _MOST_VALUES:
        return f"the values of {enum} are in caffe.proto"
    return f"write {join_names(known, 'or')}"
