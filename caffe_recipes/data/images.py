"""Which images become an LMDB, and with which labels: what a list, a folder or an archive is read into.

convert_imageset's list of images: lines `path label`, paths beneath a root folder.

A folder of images: a subfolder for each class, labelled in the order of their names.

Labels that stand apart from their images, and lists of classes.
"""

from __future__ import annotations

import codecs
import json
import os
import re
import stat
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePath, PurePosixPath
from typing import NamedTuple

from caffe_recipes.errors import DataError
from caffe_recipes.files import load_within, read_within, too_large
from caffe_recipes.limits import limit

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
def picture_reader() -> Iterator[Callable[[Picture], bytes]]:
    """Give a function that reads pictures; it keeps the archive open between them. It raises OSError."""
    files: dict[str, int] = {}

    def read(picture: Picture) -> bytes:
        if picture.offset is None:
            return read_within(picture.path, "record-bytes")
        if picture.size_bytes > limit("record-bytes"):
            raise too_large(picture.path, "record-bytes")
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
    data = load_within(path, "list-bytes", DataError, "give a text file")
    lines = data.removeprefix(codecs.BOM_UTF8).split(b"\n")
    for number, line in enumerate(lines, 1):
        if _CONTROL.search(line):
            raise DataError(f"{path}:{number}", "is not text", "save it as UTF-8 if it is")
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
        what = f"class '{strange[0]}' is not one of the {len(known)} in the list of classes"
        raise DataError(where, what, "give the list that has all classes")
    return labels


def name_classes(labels: dict[str, int]) -> tuple[str, ...]:
    """Give the classes' names by label."""
    return tuple(sorted(labels, key=labels.__getitem__))


# A network's file system answers slowly, and many at once.
_THREADS, _AT_ONCE = 16, 512


def load_list(path: Path, root: Path | None = None) -> Pictures:
    """Read a list and look for all its images; a path may hold blanks, and is beneath the list's folder
    unless a `root` is given. Raises DataError for the first bad line or missing image.
    """
    if root is not None and not root.is_dir():
        raise DataError(root, "is not an existing folder", "give the folder of the list's paths with --root")
    base = path.parent if root is None else root
    pictures: list[Picture] = []
    wheres: list[str] = []
    for where, words in read_lines(path):
        pictures.append(_parse(where, words, base, is_rooted=root is not None))
        wheres.append(where)
    if not pictures:
        raise DataError(path, "lists no images", "write a line 'path label' for each")
    # As paths have it, in which './a.jpg' is 'a.jpg'.
    files = (one.path.removeprefix(f"{base}/") for one in pictures)
    check_agree(zip(wheres, files, (one.label for one in pictures), strict=True))
    sized: list[Picture] = []
    bad: list[tuple[str, str, str]] = []
    for where, picture, size in zip(wheres, pictures, _sizes(pictures), strict=True):
        if isinstance(size, str):
            bad.append((where, picture.name, size))
        else:
            sized.append(picture._replace(size_bytes=size))
    if bad:
        where, name, what = bad[0]
        more = f", nor can {len(bad) - 1:,} more be read" if len(bad) > 1 else ""
        raise DataError(where, f"image '{name}' {what}{more}", "fix the list, or give --root")
    return Pictures(path, sized)


def _parse(where: str, words: list[str], root: Path, *, is_rooted: bool) -> Picture:
    if len(words) < 2:
        raise DataError(where, f"'{words[0][:60]}' is not 'path label'", "write an image and its label")
    name, text = words
    label = parse_label(text)
    if label is None:
        raise DataError(
            where, f"label '{text[:20]}' is not an integer of 0 or more", "labels go from 0 to 2^31 - 1"
        )
    check_name(name, where)
    # Caffe writes the two one behind the other, so that even '/n01/a.jpg' is beneath the root.
    return Picture(name, label, 0, str(root / (name.lstrip("/") if is_rooted else name)))


def _sizes(pictures: list[Picture]) -> Iterator[int | str]:
    """Give each image's size, or say what is wrong with it."""
    parts = [pictures[start : start + _AT_ONCE] for start in range(0, len(pictures), _AT_ONCE)]
    with ThreadPoolExecutor(_THREADS) as pool:
        for sizes in pool.map(lambda part: [_size(picture.path) for picture in part], parts):
            yield from sizes


def _size(path: str) -> int | str:
    try:
        found = Path(path).stat()
    except FileNotFoundError:
        return "is not there"
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    return found.st_size if stat.S_ISREG(found.st_mode) else "is not a file"


def load_folder(folder: Path, known: Sequence[str] | None = None) -> Pictures:
    """Find the images of a folder's classes, sorted by name; `known` names the classes in label order.

    Other files than images, and names that begin with a dot, are left out. Raises DataError.
    """
    try:
        with os.scandir(folder) as entries:
            seen = sorted((entry.name, entry.is_dir()) for entry in entries if entry.name[0] != ".")
    except OSError as error:
        raise DataError(
            error.filename, f"cannot be read: {error.strerror}", "give a list or a folder"
        ) from None
    names = [name for name, is_folder in seen if is_folder]
    if not names:
        hint = "make a subfolder for each class, or give a list of images"
        raise DataError(folder, "has no subfolders of classes", hint)
    loose = next((name for name, is_folder in seen if not is_folder and is_image(name)), None)
    if loose is not None:
        hint = "move it into its class's folder, or give a list of images"
        raise DataError(folder / loose, "lies beside the folders of classes", hint)
    labels = number_classes(set(names), known, folder)
    pictures: list[Picture] = []
    left_out: list[str] = []
    for name in names:
        before = len(pictures)
        for path in _find_files(folder / name):
            relative = os.path.relpath(path, folder)
            if not is_image(relative):
                left_out.append(relative)
                continue
            if not path.is_file():
                raise DataError(path, "is not a file, or a broken link", "fix or remove it")
            check_name(relative, folder)
            pictures.append(Picture(relative, labels[name], path.stat().st_size, str(path)))
        if len(pictures) == before:
            if (folder / name / "data.mdb").exists():
                raise DataError(folder / name, "is an LMDB among folders of classes", "move it elsewhere")
            hint = "remove the folder, or put the class's images there"
            raise DataError(folder / name, "holds no images", hint)
    # Only now: a folder of no images is told for what it is.
    check_nesting((picture.name for picture in pictures), folder, f"give --images {folder}/{{}}")
    return Pictures(folder, pictures, name_classes(labels), tuple(sorted(left_out)))


def _find_files(folder: Path) -> Iterator[Path]:
    """Yield each file at or beneath a folder, sorted."""

    def fail(error: OSError) -> None:
        raise DataError(error.filename, f"cannot be read: {error.strerror}", "check its permissions")

    for parent, folders, files in os.walk(folder, onerror=fail):
        folders.sort()
        for name in sorted(files):
            yield Path(parent, name)


_SYNSET = re.compile(r"n\d{8}\s")


def load_classes(path: Path) -> tuple[str, ...]:
    """Read the names of classes in label order: one a line, or of a manifest of `data build`.

    Words behind a synset are left out, so that ImageNet's `synset_words.txt` serves. Raises DataError.
    """
    if path.suffix == ".json":
        data = load_within(path, "json-bytes", DataError, "give a list of classes")
        try:
            names = json.loads(data)["classes"]
        except (ValueError, KeyError, TypeError, RecursionError):
            names = None
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise DataError(path, "names no classes", "give the manifest of an LMDB built of class folders")
    else:
        found = [words for _, words in read_lines(path)]
        lines = [" ".join(words) for words in found]
        names = [line.split()[0] if _SYNSET.match(line) else line for line in lines]
        if any(len(words) == 2 and is_image(words[0]) for words in found):
            what = f"'{lines[0]}' is 'image label', and no class"
            raise DataError(
                path, what, "write the names of classes alone, one a line, in the order of labels"
            )
    if not names:
        raise DataError(path, "names no classes", "write one a line")
    counts = Counter(names)
    twice = next((name for name in names if counts[name] > 1), None)
    if twice is not None:
        raise DataError(path, f"names class '{twice}' twice", "write each class once")
    return tuple(names)


def load_labels(
    path: Path, images: Sequence[str], known: Sequence[str] | None = None
) -> tuple[dict[str, int], tuple[str, ...] | None]:
    """Read a label for each of `images`, sorted names; give {name: label} and the classes' names, if told.

    A line is `image label` or `image class`; or `class` alone, the lines then being those of the images in
    their order. Classes are numbered by the `known` ones, and refused without. Numbers alone are refused too:
    ImageNet's ground truth counts classes in an order of its own.
    """
    lines = [(where, words[0] if len(words) == 2 else None, words[-1]) for where, words in read_lines(path)]
    if not lines:
        raise DataError(path, "lists no labels", "write a line 'image label' for each image")
    bare = sum(name is None for _, name, _ in lines)
    if bare == len(lines):
        if len(lines) != len(images):
            what = f"has {len(lines):,} labels for {len(images):,} images"
            raise DataError(path, what, "give the list of these images")
        if any(value.isdigit() for *_, value in lines):
            hint = "give lines 'image label', or the class (synset) of each image"
            raise DataError(path, "holds numbers alone, and does not say their classes", hint)
        lines = [(where, name, value) for (where, _, value), name in zip(lines, images, strict=True)]
    elif bare:
        where, _, value = next(line for line in lines if line[1] is None)
        raise DataError(where, f"'{value}' is not 'image label'", "write an image and its label")
    check_agree((where, _plain(str(name)), value) for where, name, value in lines)
    values = {_plain(str(name)): (where, value) for where, name, value in lines}
    missing = [name for name in images if _plain(name) not in values]
    if missing:
        raise DataError(path, f"has no label for '{missing[0]}'", "give the list of these images")
    wanted = {_plain(name) for name in images}
    strange = [(where, name) for name, (where, _) in values.items() if name not in wanted]
    if strange:
        (where, name), more = strange[0], len(strange) - 1
        what = f"labels '{name}', which is not among the images" + (
            f", nor are {more:,} more" if more else ""
        )
        raise DataError(where, what, "give the list of these images")
    return _number({name: values[_plain(name)] for name in images}, known, path)


def _number(
    values: dict[str, tuple[str, str]], known: Sequence[str] | None, path: Path
) -> tuple[dict[str, int], tuple[str, ...] | None]:
    """Turn what stands behind each image into labels: numbers, or names of classes."""
    if not any(value.lstrip("-").isdigit() for _, value in values.values()):
        if known is None:  # numbered as they come, all behind one that is missing here would be others
            hint = "give their order by --class-list, e.g. the manifest of the training LMDB"
            raise DataError(path, "names classes, and does not say their labels", hint)
        labels = number_classes({value for _, value in values.values()}, known, path)
        return {name: labels[value] for name, (_, value) in values.items()}, name_classes(labels)
    numbers: dict[str, int] = {}
    for name, (where, value) in values.items():
        label = parse_label(value)
        if label is None:
            raise DataError(
                where, f"label '{value}' is not an integer of 0 or more", "labels are 0 to 2^31 - 1"
            )
        numbers[name] = label
    return numbers, tuple(known) if known else None


def _plain(name: str) -> str:
    return PurePosixPath(name).name
