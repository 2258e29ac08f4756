"""What TFRecords of labelled images hold, and what is wrong with them: every record, and their order."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from caffe_recipes.data.check import Problem, hint_of
from caffe_recipes.data.check_text import order_text, order_values
from caffe_recipes.data.jpegs import jpeg_shape
from caffe_recipes.data.record_set import load_record_set
from caffe_recipes.data.shuffledness import Shuffledness, measure_shuffledness
from caffe_recipes.errors import DataError
from caffe_recipes.tensorflow.examples import Values, parse_example
from caffe_recipes.tensorflow.records import DamagedError, read_records, require_crc32c

_NAME = re.compile(r"(.+)-(\d{5,})-of-(\d{5,})")
_MIB = 2**20
_AGAIN = "copy the records again, or make them again"

V = TypeVar("V", bytes, int)


@dataclass(frozen=True)
class CheckedRecords:
    """What was seen; labels as they stand there, from 1.

    `order` is of the records as they follow each other, file after file by name; `files` has each file's
    records, and `fewest_classes` is of the file with the fewest.
    """

    files: Mapping[str, int]
    labels: Mapping[int, int]
    order: Shuffledness
    fewest_classes: int
    size_bytes: int
    problems: tuple[Problem, ...]

    @property
    def count(self) -> int:
        """Count the records."""
        return sum(self.files.values())

    @property
    def hint(self) -> str:
        """Say what to do: where files lost records, there is nothing to mend in what they were made of."""
        return hint_of(self.problems, "mend what they were made of, and make them again")


@dataclass
class _Seen:
    labels: list[int] = field(default_factory=list)
    problems: dict[str, Problem] = field(default_factory=dict)

    def add(self, kind: str, what: str, hint: str = "") -> None:
        known = self.problems.get(kind)
        self.problems[kind] = replace(known, count=known.count + 1) if known else Problem(what, hint=hint)


def is_records(path: Path) -> bool:
    """Tell if a path is a file of TFRecords or a folder of them, by names as `train-00000-of-01024`."""
    try:
        return bool(_NAME.fullmatch(path.name)) if path.is_file() else bool(_files(path))
    except OSError:
        return False


def check_records(
    path: Path, classes: int | None = None, *, batch: int = 256, must_be_shuffled: bool = False
) -> CheckedRecords:
    """Look at every record of a file or folder of TFRecords; labels are to go from 1 to `classes`.

    Behind a damaged record nothing of its file can be read. A manifest beside the folder tells how many
    records there are. Raises DataError for what cannot be read at all.
    """
    require_crc32c(path)
    paths = [path] if path.is_file() else _files(path)
    if not paths:
        raise DataError(path, "holds no files of TFRecords", "their names are as train-00000-of-01024")
    made = load_record_set(path if path.is_dir() else path.parent)
    expected = made.counts() if made else {}
    seen, files, fewest, size_bytes = _Seen(), {}, 0, 0
    for file in paths:
        before, damaged = len(seen.labels), seen.problems.get("damaged")
        files[file.name] = sum(1 for data in _look(file, classes, seen))
        if seen.problems.get("damaged") is damaged:
            _check_count(file.name, files[file.name], expected, seen)
        here = len(set(seen.labels[before:]))
        fewest = here if file is paths[0] else min(fewest, here)
        size_bytes += file.stat().st_size
    if not any(files.values()) and not seen.problems:
        seen.add("count", "the files hold no records", _AGAIN)
    if path.is_dir():
        _check_names(paths, seen)
    order = measure_shuffledness(seen.labels, batch)
    if must_be_shuffled and order.verdict != "shuffled":
        seen.add("order", f"the records are not shuffled: {order.verdict}")
    labels = dict(sorted(Counter(seen.labels).items()))
    return CheckedRecords(files, labels, order, fewest, size_bytes, tuple(seen.problems.values()))


def render_records_text(seen: CheckedRecords) -> str:
    """Write what was seen, line by line; the last lines tell what is wrong."""
    return "\n".join(_lines(seen)) + "\n"


def records_values(seen: CheckedRecords) -> dict[str, object]:
    """Return what was seen, for JSON."""
    return {
        "records": seen.count,
        "files": dict(seen.files),
        "labels": {str(label): count for label, count in seen.labels.items()},
        "order": order_values(seen.order),
        "fewest_classes_in_file": seen.fewest_classes,
        "size_bytes": seen.size_bytes,
        "problems": [{"what": problem.what, "records": problem.count} for problem in seen.problems],
    }


def _lines(seen: CheckedRecords) -> Iterator[str]:
    counts = list(seen.files.values())
    yield (
        f"{seen.count:,} TFRecords in {len(counts):,} files of {min(counts):,} to {max(counts):,}, "
        f"{seen.size_bytes / _MIB:,.1f} MiB"
    )
    if seen.labels:
        yield (
            f"labels {min(seen.labels)} to {max(seen.labels)}, {len(seen.labels):,} different; "
            f"each file has {seen.fewest_classes:,} or more"
        )
    yield order_text(seen.order)
    yield from (f"bad: {problem}" for problem in seen.problems)


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if _NAME.fullmatch(path.name) and path.is_file())


def _check_count(name: str, count: int, expected: Mapping[str, int], seen: _Seen) -> None:
    """See that a file holds what was written to it: one that is cut off between two records looks whole."""
    if expected and name not in expected:
        seen.add("manifest", f"{name}: is none of the files that the manifest tells of")
    elif count != expected.get(name, count):
        seen.add("count", f"{name}: holds {count:,} of {expected[name]:,} records", _AGAIN)


def _check_names(paths: Sequence[Path], seen: _Seen) -> None:
    """See that the files are those of one set, and that none is missing."""
    sets: dict[tuple[str, int], set[int]] = {}
    for path in paths:
        prefix, number, count = re.fullmatch(_NAME, path.name).groups()  # type: ignore[union-attr]
        sets.setdefault((prefix, int(count)), set()).add(int(number))
    if len(sets) > 1:
        named = " and ".join(f"{prefix} of {count:,}" for prefix, count in sets)
        seen.add("sets", f"files of several sets lie together: {named}")
    for (prefix, count), numbers in sets.items():
        missing = count - len(numbers & set(range(count)))
        if missing:
            first = next(number for number in range(count) if number not in numbers)
            name = f"{prefix}-{first:05d}-of-{count:05d}"
            seen.add("files", f"{missing:,} of {count:,} files are missing: {name}", _AGAIN)


def _look(file: Path, classes: int | None, seen: _Seen) -> Iterator[None]:
    try:
        for number, data in enumerate(read_records(file)):
            where = f"{file.name}: record {number:,}"
            try:
                features = parse_example(data)
            except ValueError as error:
                seen.add("example", f"{where} {error}")
            else:
                _check_features(features, classes, where, seen)
            yield
    except DamagedError as error:
        seen.add("damaged", f"{file.name}: {error.what}", _AGAIN)


def _check_features(features: Mapping[str, Values], classes: int | None, where: str, seen: _Seen) -> None:
    label = _only(features, "image/class/label", int)
    if label is None:
        seen.add("no label", f"{where} has no image/class/label")
    else:
        seen.labels.append(label)
        if label < 1 or (classes is not None and label > classes):
            of = "below 1" if label < 1 else f"none of the {classes:,} classes 1 to {classes}"
            seen.add("label", f"{where} has label {label}, which is {of}")
    encoded = _only(features, "image/encoded", bytes)
    shape = jpeg_shape(encoded) if encoded else None
    if shape is None:
        seen.add("image", f"{where} {'is no JPEG' if encoded else 'has no image/encoded'}")
        return
    stated = (_only(features, "image/height", int), _only(features, "image/width", int))
    if None not in stated and stated != shape[1:]:
        said = " x ".join(map(str, stated))
        seen.add("size", f"{where} says {said}, and its image is {shape[1]} x {shape[2]}")


def _only(features: Mapping[str, Values], name: str, kind: type[V]) -> V | None:
    """Return a feature's one value."""
    values = features.get(name, ())
    return values[0] if len(values) == 1 and isinstance(values[0], kind) else None
