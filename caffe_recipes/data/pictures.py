"""Which images become an LMDB, and with which labels: what a list, a folder or an archive is read into."""

from __future__ import annotations

import codecs
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import NamedTuple

from caffe_recipes.errors import DataError

# What is taken for an image in folders and archives; a list may name any file. A GIF is, to be refused.
SUFFIXES = frozenset((".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"))
MOST_LABEL = 2**31 - 1
_SPLITS = frozenset(("train", "training", "val", "valid", "validation", "test"))
_CONTROL = re.compile(rb"[\0-\x08\x0e-\x1f]")  # but blanks of all kinds
_MOST_KEY_BYTES = 511 - len("00000000_")  # LMDB's


class Picture(NamedTuple):
    """An image: its name, as the record's key has it, its label, and where its bytes are.

    `path` is a file beneath the root; `offset` is of an archive's member, else None.
    """

    name: str
    label: int
    size_bytes: int
    path: str
    offset: int | None = None


@dataclass(frozen=True)
class Pictures:
    """All images that `where` names, in its order; `classes` are their names by label, if they have any.

    `left_out` are the files beside them that are no images by their names, sorted.
    """

    where: Path
    pictures: Sequence[Picture]
    classes: tuple[str, ...] | None = None
    left_out: tuple[str, ...] = ()


@contextmanager
def reading() -> Iterator[Callable[[Picture], bytes]]:
    """Give a function that reads pictures; it keeps the archive open between them. It raises OSError."""
    files: dict[str, int] = {}

    def read(picture: Picture) -> bytes:
        if picture.offset is None:
            return Path(picture.path).read_bytes()
        if picture.path not in files:
            files[picture.path] = os.open(picture.path, os.O_RDONLY)
        return os.pread(files[picture.path], picture.size_bytes, picture.offset)

    try:
        yield read
    finally:
        for descriptor in files.values():
            os.close(descriptor)


def is_image(name: str) -> bool:
    """Tell by its suffix, of either case, if a file is an image."""
    path = PurePath(name)
    return path.suffix.lower() in SUFFIXES and not path.name.startswith(".")


def parse_label(text: str) -> int | None:
    """Read a label, 0 to 2^31 - 1; None if it is none.

    >>> parse_label("7"), parse_label("-1"), parse_label("7.5"), parse_label("1_0")
    (7, None, None, None)
    """
    is_number = text.isascii() and text.isdigit() and len(text) <= 10
    return int(text) if is_number and int(text) <= MOST_LABEL else None


def check_name(name: str, where: str | Path) -> None:
    """Raise DataError for a name that no key of LMDB can hold."""
    if len(os.fsencode(name)) > _MOST_KEY_BYTES:
        what = f"the name '{name[:40]}...' has over {_MOST_KEY_BYTES} bytes, the most of an LMDB's key"
        raise DataError(where, what, "shorten it, by --root if it is a path")


def check_agree(labels: Iterable[tuple[str, str, str | int]]) -> None:
    """Raise DataError if an image has two labels; `labels` are (`file:line`, image, label)."""
    first: dict[str, tuple[str, str | int]] = {}
    for where, name, label in labels:
        before, other = first.setdefault(name, (where, label))
        if other != label:
            line = before.rpartition(":")[2]
            what = f"'{name}' has label {label}, and {other} in line {line}"
            raise DataError(where, what, "give each image one label")


def check_nesting(names: Iterable[str], where: Path, hint: str) -> None:
    """Raise DataError if a class, the first folder of the `class/file` names, holds folders of classes.

    One folder in each of several classes is none: archives have `n01/images/a.jpg`. `hint` has a `{}` for the
    class.
    """
    inner: dict[str, set[str]] = {}
    for name in names:
        first, _, rest = name.partition("/")
        inner.setdefault(first, set()).add(rest.rpartition("/")[0].partition("/")[0])
    for first, folders in inner.items():
        is_nested = len(folders) > 1 or len(inner) == 1 or first in _SPLITS
        if "" not in folders and is_nested:
            raise DataError(where, f"class '{first}' holds only folders", hint.format(first))


def read_lines(path: Path) -> Iterator[tuple[str, list[str]]]:
    """Read a text's lines that are not empty as (`file:line`, its words); a name may hold any bytes but
    control characters, which tell that it is no text. Raises DataError.
    """
    try:
        lines = path.read_bytes().removeprefix(codecs.BOM_UTF8).split(b"\n")
    except OSError as error:
        raise DataError(path, f"cannot be read: {error.strerror}", "give a text file") from None
    for number, line in enumerate(lines, 1):
        if _CONTROL.search(line):
            raise DataError(f"{path}:{number}", "is no text", "save it as UTF-8, if it is one")
        words = os.fsdecode(line.strip()).rsplit(None, 1)
        if words:
            yield f"{path}:{number}", words


def number_classes(names: set[str], known: Sequence[str] | None, where: Path) -> dict[str, int]:
    """Give each class its label: its place among the `known` ones, else in sorted order; raises DataError."""
    if known is None:
        return {name: label for label, name in enumerate(sorted(names))}
    labels = {name: label for label, name in enumerate(known)}
    strange = sorted(names - labels.keys())
    if strange:
        what = f"class '{strange[0]}' is none of the {len(known)} of the list of classes"
        raise DataError(where, what, "give the list that has all classes")
    return labels


def name_classes(labels: dict[str, int]) -> tuple[str, ...]:
    """Give the classes' names by label."""
    return tuple(sorted(labels, key=labels.__getitem__))
