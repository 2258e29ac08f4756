"""Rules for the text of a file, and for names that its Caffe does not have."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.dialects import ENGINE, OURS
from caffe_recipes.caffe.dialects.engine import find_unrun
from caffe_recipes.caffe.dialects.schema import (
    describe_name,
    foreign_values,
    is_known,
    outer_foreign,
)
from caffe_recipes.caffe.dialects.unsupported_names import FIELDS
from caffe_recipes.caffe.text.parser import V1_TYPE
from caffe_recipes.review.lint.findings import Fix
from caffe_recipes.review.lint.registry import finding
from caffe_recipes.review.lint.subjects import ReadFile, file_rule, text_rule

if TYPE_CHECKING:
    from caffe_recipes.caffe.prototxt import Document
    from caffe_recipes.caffe.text.parser import ForeignName
    from caffe_recipes.review.lint.findings import Finding


@text_rule(
    "byte-order-mark",
    "error",
    "a byte-order mark at the start of a file, which Caffe's parser rejects",
    what="the file starts with a byte-order mark",
    effect="Caffe aborts with `Error parsing text-format`",
    write="save the file as UTF-8 without a BOM, for example with `caffe-recipes fmt`",
)
def check_text(text: str, path: str | Path, dialect: str) -> Iterator[Finding]:
    """Find a byte-order mark."""
    if text.startswith("\ufeff"):
        yield finding("byte-order-mark", f"{path}:1:1")


@file_rule(
    "newer-text",
    "note",
    "text that a Caffe built with an old protobuf cannot read",
    what="{field}: {fault}",
    effect="a Caffe built with {versions} would {outcome}",
    write="{advice}; `caffe-recipes fmt` writes text that all versions read",
)
def check_newer_text(file: ReadFile) -> Iterator[Finding]:
    """Find text that a Caffe built with an old protobuf cannot read; each kind once, at its first place."""
    document, seen = file.given, set[str]()
    for form in document.newer_forms:
        if form.what not in seen:
            seen.add(form.what)
            yield finding(
                "newer-text",
                document.place(form.offset),
                field=form.field.rpartition(".")[2],
                fault=form.what,
                versions=form.versions,
                outcome=form.effect,
                advice=form.write,
            )


@file_rule(
    "label-twice",
    "warning",
    "a label map with a duplicate label or name",
    what="{key} {value!r} appears twice, in items {first} and {index}",
    effect="only the first or the last of the two is used",
    write="keep one item for each {key}",
)
def check_labels(file: ReadFile) -> Iterator[Finding]:
    """Find duplicate labels and names in a label map."""
    document = file.given
    is_map = document.message.DESCRIPTOR.name == pb.LabelMap.DESCRIPTOR.name
    for key in ("label", "name") if is_map else ():
        seen: dict[object, int] = {}
        for index, item in enumerate(document.message.item):
            if not item.HasField(key):
                continue
            value = getattr(item, key)
            first = seen.setdefault(value, index)
            if first != index:
                where = document.where(f"item[{index}].{key}")
                yield finding("label-twice", where, key=key, value=value, first=first, index=index)


@file_rule(
    "unknown-field",
    "error",
    "a field or an enum value that this Caffe does not have",
    effect="Caffe aborts when it reads the file; lint checked the rest of it",
    values=("name", "count"),
    fix="removes the field, if it has no effect here",
)
def check_foreign(file: ReadFile) -> Iterator[Finding]:
    """Find the names that a document's Caffe does not have, each once, at its first place.

    Those that another known Caffe has are left to the rules of dialects, if the dialect is not ours.
    """
    document = file.given
    values: dict[tuple[str, str], list[tuple[str, object]]] = {}
    for path, owner, field, value in foreign_values(document.message):
        values.setdefault((owner, field), []).append((path, value))
    names = find_unrun(document) if file.dialect == ENGINE else outer_foreign(document)
    for name in names:
        if name.owner != V1_TYPE and (file.dialect == OURS or not is_known(name)):
            found = _unknown_field(document, name, values.get((name.owner, name.name), []))
            is_ours = file.dialect == ENGINE
            yield (
                replace(found, effect="caffe-torch refuses the file, with exit code 2") if is_ours else found
            )


def _unknown_field(document: Document[Any], name: ForeignName, values: list[tuple[str, object]]) -> Finding:
    what, write = describe_name(name)
    fork = FIELDS.get((name.owner, name.name))
    idle = [path for path, value in values if fork and fork.default and value == fork.default]
    others = [path for path, _ in values if path not in idle]
    if idle and fork and not others:
        write = f"remove it; here {fork.here}"
    if len(values) > 1:
        what = f"{what}, which is given {len(values)} times"
    return finding(
        "unknown-field",
        document.where(others[0]) if others and idle else document.place(name.offset),
        what,
        write=write,
        fixes=tuple(Fix(document.where(path), name.name) for path in idle),
        name=f"{name.owner}.{name.name}",
        count=max(1, len(values)),
    )
