"""What to tell somebody who wrote a field or an enum value that the schema has not."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.dialects import OURS, field_dialects
from caffe_recipes.caffe.dialects.counterparts import find_counterpart

_MOST_OWNERS = 3


def hint_for_field(message: str, known: Iterable[str], name: str) -> str:
    """Say which other Caffe knows the field, or else the nearest field, or else the messages that have it.

    >>> hint_for_field("SolverParameter", ["net", "gamma"], "gama")
    "did you mean 'gamma'?"
    >>> hint_for_field("SolverParameter", ["net", "gamma"], "rampup_interval")
    'it belongs to nvcaffe; here the warm-up is warmup_iter, linear and not quadratic'
    """
    others = field_dialects(message, name)
    if others:
        here = find_counterpart(OURS, message, name)
        return f"it belongs to {_join(others)}; {f'here {here}' if here else 'take it out for this Caffe'}"
    near = difflib.get_close_matches(name, known, n=1)
    if near:
        return f"did you mean '{near[0]}'?"
    schema = pb.DESCRIPTOR.message_types_by_name.values()
    owners = [owner.name for owner in schema if name in owner.fields_by_name]
    if owners:
        return f"it is a field of {_join(owners)}: is a brace missing or too many?"
    return f"the fields of {message} are in caffe.proto"


def hint_for_value(enum: str, known: Iterable[str], name: str) -> str:
    """Say which other Caffe knows the value, or else the nearest, or else all.

    >>> hint_for_value("DataParameter.DB", ["LEVELDB", "LMDB"], "LMBD")
    "did you mean 'LMDB'?"
    """
    others = field_dialects(enum, name)
    if others:
        return f"it belongs to {_join(others)}; take it out for this Caffe"
    near = difflib.get_close_matches(name, known, n=1)
    return f"did you mean '{near[0]}'?" if near else f"write {_join(known, 'or')}"


def _join(names: Iterable[str], last: str = "and") -> str:
    shown = list(names)
    if last == "and" and len(shown) > _MOST_OWNERS:
        shown = [*shown[:_MOST_OWNERS], "others"]
    return f" {last} ".join([", ".join(shown[:-1]), shown[-1]] if len(shown) > 1 else shown)
