"""Labels that stand apart from their images, and lists of classes."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from caffe_recipes.data.pictures import (
    check_agree,
    is_image,
    name_classes,
    number_classes,
    parse_label,
    read_lines,
)
from caffe_recipes.errors import DataError

_SYNSET = re.compile(r"n\d{8}\s")


def load_classes(path: Path) -> tuple[str, ...]:
    """Read the names of classes in label order: one a line, or of a manifest of `data build`.

    Words behind a synset are left out, so that ImageNet's `synset_words.txt` serves. Raises DataError.
    """
    if path.suffix == ".json":
        try:
            names = json.loads(path.read_text("utf-8"))["classes"]
        except OSError as error:
            raise DataError(path, f"cannot be read: {error.strerror}", "give a list of classes") from None
        except (ValueError, KeyError, TypeError):
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
    twice = next((name for index, name in enumerate(names) if name in names[:index]), None)
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
            raise DataError(path, "holds numbers alone, whose classes it does not tell", hint)
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
            raise DataError(path, "names classes, and does not tell their labels", hint)
        labels = number_classes({value for _, value in values.values()}, known, path)
        return {name: labels[value] for name, (_, value) in values.items()}, name_classes(labels)
    numbers: dict[str, int] = {}
    for name, (where, value) in values.items():
        label = parse_label(value)
        if label is None:
            raise DataError(where, f"label '{value}' is no whole number from 0", "labels are 0 to 2^31 - 1")
        numbers[name] = label
    return numbers, tuple(known) if known else None


def _plain(name: str) -> str:
    return PurePosixPath(name).name
