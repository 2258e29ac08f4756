"""Rules for what another Caffe would refuse, ignore or read differently."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from caffe_recipes.caffe.dialects import ENGINE
from caffe_recipes.caffe.dialects.check import DIFFERENCE_RULES, check_message
from caffe_recipes.caffe.dialects.engine import find_judge, find_unrun
from caffe_recipes.caffe.dialects.schema import parse_lenient
from caffe_recipes.review.lint.registry import finding
from caffe_recipes.review.lint.subjects import dialect_text_rule

if TYPE_CHECKING:
    from caffe_recipes.review.lint.findings import Finding


# `caffe.dialects.check` defines the rules of dialects.
for _name, _rule in DIFFERENCE_RULES.items():
    dialect_text_rule.also(_name, _rule.severity, _rule.what, values=("name", "count"))


@dialect_text_rule.add
def check_dialect(text: str, path: str | Path, dialect: str) -> Iterator[Finding]:
    """Find what a dialect's Caffe would not read as SURFsara's does; repeats only at their first place.

    The text may be a net, a solver that contains nets, several solvers, or a label map. Raises PrototxtError
    for text that no Caffe can read, and InputError for an unknown dialect.
    """
    judge = find_judge(dialect)
    document = parse_lenient(text, path)
    is_converted = dialect == ENGINE and not find_unrun(document)
    for each in check_message(document.message, judge, document):
        if is_converted and each.rule == "dialect-field":
            continue
        repeated = f" ({each.count} times in this file; this is the first)" if each.count > 1 else ""
        yield finding(
            each.rule,
            document.where(each.field),
            f"{each.what}{repeated}",
            effect=each.effect,
            write=each.write,
            name=each.name,
            count=each.count,
        )
