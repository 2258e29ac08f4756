"""What another Caffe would refuse in a prototxt, ignore, or read otherwise, at its place in the file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from caffe_recipes.caffe.dialects import find_dialect
from caffe_recipes.caffe.dialects.check import RULES, Difference, check_message
from caffe_recipes.caffe.dialects.schema import parse_lenient
from caffe_recipes.review.findings import Finding, Severity

# Each finding's severity, and what it is about in one line.
DIALECT_RULES: Mapping[str, tuple[Severity, str]] = MappingProxyType(
    {rule: (found.severity, found.what) for rule, found in RULES.items()}
)


def check_dialect(path: str | Path, text: str, dialect: str) -> list[Finding]:
    """Say what a dialect's Caffe would not take as SURFsara's does, each thing once, where it comes first.

    The text may be any Caffe's: nets, solvers with the nets in them, multi-phase solvers, label maps. Raises
    PrototxtError for text that no Caffe reads, InputError for an unknown dialect.
    """
    judge = find_dialect(dialect)
    document = parse_lenient(text, path)
    return [
        _finding(difference, document.where(difference.field))
        for difference in check_message(document.message, judge, document)
    ]


def _finding(difference: Difference, where: str) -> Finding:
    times = f" ({difference.count} times in this file, here first)" if difference.count > 1 else ""
    return Finding(
        difference.rule,
        RULES[difference.rule].severity,
        where,
        f"{difference.what}{times}",
        difference.effect,
        difference.write,
        MappingProxyType({"name": difference.name, "count": difference.count}),
    )
