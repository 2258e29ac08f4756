"""Find the images for an LMDB, and their labels, in a list or a folder; the settings of their conversion.

A list has the format of convert_imageset: lines `path label`, with paths relative to a root folder. A folder
has a subfolder for each class; classes are numbered in the order of their names. Labels may also be in a
separate file, and class names in a list. None of this loads OpenCV, as the conversion itself does.
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
from importlib.util import find_spec
from pathlib import Path, PurePath, PurePosixPath
from typing import NamedTuple

from caffe_recipes.errors import DataError, hint_for
from caffe_recipes.file_format import take_format
from caffe_recipes.files.bounded_reads import load_within, read_within, too_large
from caffe_recipes.limits import limit

# In folders and archives, files with these suffixes are images; a list may name any file. GIFs are found and
# then rejected.
SUFFIXES = frozenset((".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"))
MAX_LABEL = 2**31 - 1
_SPLITS = frozenset(("train", "training", "val", "valid", "validation", "test"))
_CONTROL = re.compile(rb"[\0-\x08\x0e-\x1f]")  # control characters except blanks
_MAX_KEY_BYTES = 511 - len("00000000_")  # LMDB's limit for a key


# Gets the number of images that are done, and of all.
Progress = Callable[[int, int], None]


class Picture(NamedTuple):
    """An image: its name, as in the record's key, its label, and where its bytes are.

    `path` is the image file, or the archive that contains it at byte `offset`.
    """

    name: str
    label: int
    size_bytes: int
    path: str
    offset: int | None = None


@dataclass(frozen=True)
class Pictures:
    """All images in the list, folder or archive `where`, in order.

    `classes` are the class names by label, or None if the classes have no names. `ignored` are the files
    whose suffix is not that of an image, sorted.
    """

    where: Path
    pictures: Sequence[Picture]
    classes: tuple[str, ...] | None = None
    ignored: tuple[str, ...] = ()


@dataclass(frozen=True)
class ConversionSettings:
    """How each image is converted. Except for `shorter_side`, convert_imageset has flags of the same names.

    `encode_type` is jpg or png; None keeps the type of each file. `shorter_side_px` keeps the aspect ratio. A
    size of 0 means no resizing.
    """

    resize_height_px: int = 0
    resize_width_px: int = 0
    shorter_side_px: int = 0
    is_gray: bool = False
    is_encoded: bool = True
    encode_type: str | None = None
    check_size: bool = False

    @property
    def resizes(self) -> bool:
        """Whether images are resized."""
        return bool(self.resize_height_px or self.shorter_side_px)

    @property
    def size_text(self) -> str:
        """The size that images are resized to, as text."""
        if self.shorter_side_px:
            return f"a shorter side of {self.shorter_side_px}"
        return f"{self.resize_height_px} x {self.resize_width_px}"


def require_opencv(where: str | Path) -> None:
    """Raise DataError unless numpy and OpenCV are installed, without the slow import of them."""
    for name in ("numpy", "cv2"):
        if find_spec(name) is None:
            hint = "install the extra 'data' of caffe-recipes (see its README)"
            raise DataError(where, f"images cannot be read without {name}", hint)


@contextmanager
def picture_reader() -> Iterator[Callable[[Picture], bytes]]:
    """Yield a function that returns the bytes of a picture. It keeps archives open, and raises OSError."""
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
    """Return whether a file is an image, by its suffix in any case."""
    path = PurePath(name)
    return path.suffix.lower() in SUFFIXES and not path.name.startswith(".")


def parse_label(text: str) -> int | None:
    """Return a label from 0 to 2^31 - 1, or None for any other text.

    >>> parse_label("7"), parse_label("-1"), parse_label("7.5"), parse_label("1_0")
    (7, None, None, None)
    """
    is_number = text.isascii() and text.isdigit() and len(text) <= 10
    return int(text) if is_number and int(text) <= MAX_LABEL else None


def check_name(name: str, where: str | Path) -> None:
    """Raise DataError if a name is too long for an LMDB key."""
    if len(os.fsencode(name)) > _MAX_KEY_BYTES:
        what = f"the name '{name[:40]}...' has over {_MAX_KEY_BYTES} bytes, the limit of an LMDB key"
        raise DataError(where, what, "shorten it; --root shortens a path")


def check_labels_agree(labels: Iterable[tuple[str, str, str | int]]) -> None:
    """Raise DataError if an image has two different labels. `labels` are (`file:line`, image, label)."""
    first: dict[str, tuple[str, str | int]] = {}
    for where, name, label in labels:
        before, other = first.setdefault(name, (where, label))
        if other != label:
            line = before.rpartition(":")[2]
            what = f"'{name}' has label {label}, but {other} on line {line}"
            raise DataError(where, what, "give each image one label")


def check_nesting(names: Iterable[str], where: Path, hint: str) -> None:
    """Raise DataError if a class, the top-level folder of a name, contains class folders itself.

    A single folder in each of several classes is accepted, as in `n01/images/a.jpg`. `{}` in `hint` is
    replaced with the name of the class.
    """
    inner: dict[str, set[str]] = {}
    for name in names:
        first, _, rest = name.partition("/")
        inner.setdefault(first, set()).add(rest.rpartition("/")[0].partition("/")[0])
    for first, folders in inner.items():
        is_nested = len(folders) > 1 or len(inner) == 1 or first in _SPLITS
        if "" not in folders and is_nested:
            raise DataError(where, f"class '{first}' contains only folders", hint.format(first))


def read_list(path: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield the non-empty lines of a text file as (`file:line`, one or two words). Raises DataError.

    The second word is the last one of the line; what precedes it, such as a path, may contain blanks and any
    bytes except control characters.
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
    """Return the label of each class: its index in `known`, by default in sorted order. Raises DataError."""
    if known is None:
        return {name: label for label, name in enumerate(sorted(names))}
    labels = {name: label for label, name in enumerate(known)}
    unknown = sorted(names - labels.keys())
    if unknown:
        what = f"class '{unknown[0]}' is not one of the {len(known)} classes in the list"
        raise DataError(where, what, "give a list of all classes")
    return labels


def name_classes(labels: dict[str, int]) -> tuple[str, ...]:
    """Return the class names in label order."""
    return tuple(sorted(labels, key=labels.__getitem__))


# A network file system answers slowly, but serves many requests at once.
_THREADS, _STAT_BATCH = 16, 512


def load_list(path: Path, root: Path | None = None) -> Pictures:
    """Return the images in a list. Raises DataError for the first bad line or missing image.

    Paths may contain blanks, and are relative to `root`, by default the folder of the list.
    """
    if root is not None and not root.is_dir():
        raise DataError(
            root,
            "does not exist, or is not a folder",
            "give the folder that the paths are relative to with --root",
        )
    base = path.parent if root is None else root
    pictures: list[Picture] = []
    wheres: list[str] = []
    for where, words in read_list(path):
        pictures.append(_parse(where, words, base, is_rooted=root is not None))
        wheres.append(where)
    if not pictures:
        raise DataError(path, "lists no images", "write a line 'path label' for each image")
    # Compare paths, not names: './a.jpg' is the same file as 'a.jpg'.
    files = (one.path.removeprefix(f"{base}/") for one in pictures)
    check_labels_agree(zip(wheres, files, (one.label for one in pictures), strict=True))
    sized: list[Picture] = []
    bad: list[tuple[str, str, str]] = []
    for where, picture, size in zip(wheres, pictures, _sizes(pictures), strict=True):
        if isinstance(size, str):
            bad.append((where, picture.name, size))
        else:
            sized.append(picture._replace(size_bytes=size))
    if bad:
        where, name, what = bad[0]
        more = f"; {len(bad) - 1:,} more cannot be read" if len(bad) > 1 else ""
        raise DataError(where, f"image '{name}' {what}{more}", "fix the list, or give --root")
    return Pictures(path, sized)


def _parse(where: str, words: list[str], root: Path, *, is_rooted: bool) -> Picture:
    if len(words) < 2:
        raise DataError(
            where, f"'{words[0][:60]}' is not of the form 'path label'", "write the image's path and label"
        )
    name, text = words
    label = parse_label(text)
    if label is None:
        raise DataError(
            where, f"label '{text[:20]}' is not an integer of 0 or more", "labels go from 0 to 2^31 - 1"
        )
    check_name(name, where)
    # Caffe concatenates the two, so even '/n01/a.jpg' is below the root.
    return Picture(name, label, 0, str(root / (name.lstrip("/") if is_rooted else name)))


def _sizes(pictures: list[Picture]) -> Iterator[int | str]:
    """Yield the size of each image in bytes, or why it cannot be read."""
    parts = [pictures[start : start + _STAT_BATCH] for start in range(0, len(pictures), _STAT_BATCH)]
    with ThreadPoolExecutor(_THREADS) as pool:
        for sizes in pool.map(lambda part: [_size(picture.path) for picture in part], parts):
            yield from sizes


def _size(path: str) -> int | str:
    try:
        found = Path(path).stat()
    except FileNotFoundError:
        return "does not exist"
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    return found.st_size if stat.S_ISREG(found.st_mode) else "is not a file"


def load_folder(folder: Path, known: Sequence[str] | None = None) -> Pictures:
    """Return the images in the subfolders of a folder, sorted by name. Raises DataError.

    Each subfolder is a class; `known` lists the classes in label order. Files that are not images, and names
    that begin with a dot, are ignored.
    """
    try:
        with os.scandir(folder) as entries:
            seen = sorted((entry.name, entry.is_dir()) for entry in entries if entry.name[0] != ".")
    except OSError as error:
        hint = hint_for(error, "give a list or a folder")
        raise DataError(error.filename, f"cannot be read: {error.strerror}", hint) from None
    names = [name for name, is_folder in seen if is_folder]
    if not names:
        hint = "make a subfolder for each class, or give a list of images"
        raise DataError(folder, "has no class subfolders", hint)
    loose = next((name for name, is_folder in seen if not is_folder and is_image(name)), None)
    if loose is not None:
        hint = "move it into its class's folder, or give a list of images"
        raise DataError(folder / loose, "is next to the class folders, not inside one", hint)
    labels = number_classes(set(names), known, folder)
    pictures: list[Picture] = []
    ignored: list[str] = []
    for name in names:
        before = len(pictures)
        for path in _find_files(folder / name):
            relative = os.path.relpath(path, folder)
            if not is_image(relative):
                ignored.append(relative)
                continue
            if not path.is_file():
                raise DataError(path, "is a broken link or not a regular file", "fix or remove it")
            check_name(relative, folder)
            pictures.append(Picture(relative, labels[name], path.stat().st_size, str(path)))
        if len(pictures) == before:
            if (folder / name / "data.mdb").exists():
                raise DataError(folder / name, "is an LMDB among the class folders", "move it elsewhere")
            hint = f"check --images: each subfolder of {folder} must hold the images of a class"
            raise DataError(folder / name, "contains no images", hint)
    # After the loop, so that a folder without images gets its own message.
    check_nesting((picture.name for picture in pictures), folder, f"give --images {folder}/{{}}")
    return Pictures(folder, pictures, name_classes(labels), tuple(sorted(ignored)))


def _find_files(folder: Path) -> Iterator[Path]:
    """Yield all files in and below a folder, sorted."""

    def fail(error: OSError) -> None:
        hint = hint_for(error, "check its permissions")
        raise DataError(error.filename, f"cannot be read: {error.strerror}", hint)

    for parent, folders, files in os.walk(folder, onerror=fail):
        folders.sort()
        for name in sorted(files):
            yield Path(parent, name)


_SYNSET = re.compile(r"n\d{8}\s")


def load_classes(path: Path) -> tuple[str, ...]:
    """Return the class names in a file, in label order. Raises DataError.

    The file has one name per line, or is a manifest of `data build`. Words after a synset are ignored, so
    that ImageNet's `synset_words.txt` can be used.
    """
    if path.suffix == ".json":
        data = load_within(path, "json-bytes", DataError, "give a list of classes")
        try:
            values = json.loads(data)
            take_format(values, path, "build its LMDB again, or give a text file of classes", DataError)
            names = values["classes"]
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            names = None
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise DataError(
                path, "contains no class names", "give the manifest of an LMDB built from class folders"
            )
    else:
        found = [words for _, words in read_list(path)]
        lines = [" ".join(words) for words in found]
        names = [line.split()[0] if _SYNSET.match(line) else line for line in lines]
        if any(len(words) == 2 and is_image(words[0]) for words in found):
            what = f"'{lines[0]}' has the form 'image label', but a class name is expected"
            raise DataError(path, what, "write only the class names, one per line, in label order")
    if not names:
        raise DataError(path, "contains no class names", "write one per line")
    counts = Counter(names)
    duplicate = next((name for name in names if counts[name] > 1), None)
    if duplicate is not None:
        raise DataError(path, f"lists class '{duplicate}' twice", "write each class once")
    return tuple(names)


def load_labels(
    path: Path, images: Sequence[str], known: Sequence[str] | None = None
) -> tuple[dict[str, int], tuple[str, ...] | None]:
    """Return the {name: label} of `images`, which are sorted names, and the class names if they are known.

    A line of the file is `image label` or `image class`; or all lines are only `class`, one per image in
    order. `known` gives the label order of classes, and is required for them. Numbers without image names
    are rejected, since ImageNet's ground truth numbers the classes in a different order. Raises DataError.
    """
    lines = [(where, words[0] if len(words) == 2 else None, words[-1]) for where, words in read_list(path)]
    if not lines:
        raise DataError(path, "lists no labels", "write a line 'image label' for each image")
    bare = sum(name is None for _, name, _ in lines)
    if bare == len(lines):
        if len(lines) != len(images):
            what = f"has {len(lines):,} labels for {len(images):,} images"
            raise DataError(path, what, "give the list of these images")
        if any(value.isdigit() for *_, value in lines):
            hint = "give lines 'image label', or the class (synset) of each image"
            raise DataError(path, "has only numbers, without image names", hint)
        lines = [(where, name, value) for (where, _, value), name in zip(lines, images, strict=True)]
    elif bare:
        where, _, value = next(line for line in lines if line[1] is None)
        raise DataError(
            where, f"'{value}' is not of the form 'image label'", "write the image's name and its label"
        )
    check_labels_agree((where, _file_name(str(name)), value) for where, name, value in lines)
    values = {_file_name(str(name)): (where, value) for where, name, value in lines}
    missing = [name for name in images if _file_name(name) not in values]
    if missing:
        raise DataError(path, f"has no label for '{missing[0]}'", "give the list of these images")
    wanted = {_file_name(name) for name in images}
    unknown = [(where, name) for name, (where, _) in values.items() if name not in wanted]
    if unknown:
        (where, name), more = unknown[0], len(unknown) - 1
        what = f"labels '{name}', which is not among the images" + (
            f" ({more:,} more are not)" if more else ""
        )
        raise DataError(where, what, "give the list of these images")
    return _number({name: values[_file_name(name)] for name in images}, known, path)


def _number(
    values: dict[str, tuple[str, str]], known: Sequence[str] | None, path: Path
) -> tuple[dict[str, int], tuple[str, ...] | None]:
    """Turn the value of each image, a number or a class name, into a label."""
    if not any(value.lstrip("-").isdigit() for _, value in values.values()):
        if known is None:  # sorting would shift the labels of all classes after a missing one
            hint = "give their order with --class-list, e.g. the manifest of the training LMDB"
            raise DataError(path, "has class names but no labels", hint)
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


def _file_name(name: str) -> str:
    return PurePosixPath(name).name
