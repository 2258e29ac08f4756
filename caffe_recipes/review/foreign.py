"""Describe the names in prototxts that our Caffe does not have: whose they are, and that they are kept."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from caffe_recipes.caffe.dialects import TITLES, field_dialects
from caffe_recipes.caffe.dialects.schema import describe_name, outer_foreign
from caffe_recipes.wording import describe_count, join_names

if TYPE_CHECKING:
    from caffe_recipes.caffe.prototxt import Document
    from caffe_recipes.caffe.text.parser import ForeignName


def describe_foreign(documents: Iterable[Document[Any]], dialect: str | None = None) -> list[str]:
    """Return a line for each other Caffe that files are read as, and one for each name that it does not have.

    Without a `dialect`, a file is that of the Caffes that have most of its names. Each line has the first
    place, and the number of files with more.
    """
    found: dict[tuple[str, str], list[str]] = {}
    for document in documents:
        names = outer_foreign(document)
        its = (dialect,) if dialect else _likely_dialects(names)
        read_as = ""
        for name in names:
            place = document.place(name.offset)
            what, hint = describe_name(name)
            if not its or not set(its) & set(field_dialects(name.owner, name.name)):
                here = TITLES[dialect] if dialect else "any known Caffe"
                found.setdefault((f"{what} in {here}", hint), []).append(place)
            elif not dialect and not read_as:
                read_as = _read_as(its)
                found.setdefault((read_as, f"it has {name.name}"), []).append(place)
    return [f"{places[0]}: {what}{_more(len(places) - 1)}; {hint}" for (what, hint), places in found.items()]


def recognize_dialect(documents: Sequence[Document[Any]]) -> tuple[str, str] | None:
    """Return the dialect that has most of the names of files that ours lacks, and a line that says why.

    Return None if the files have no name of another dialect.
    """
    its = _likely_dialects([name for document in documents for name in outer_foreign(document)])
    for document in documents:
        for name in outer_foreign(document):
            if set(its) & set(field_dialects(name.owner, name.name)):
                return its[0], f"{document.place(name.offset)}: {_read_as(its)}; it has {name.name}"
    return None


def _read_as(dialects: Sequence[str]) -> str:
    return f"read as a file of {join_names([TITLES[each] for each in dialects], 'or')}"


def _likely_dialects(names: Sequence[ForeignName]) -> tuple[str, ...]:
    having = [dialect for name in names for dialect in field_dialects(name.owner, name.name)]
    most = max(map(having.count, having), default=0)
    return tuple(dialect for dialect in TITLES if most and having.count(dialect) == most)


def _more(files: int) -> str:
    return f" (and in {describe_count(files, 'other file')})" if files else ""
