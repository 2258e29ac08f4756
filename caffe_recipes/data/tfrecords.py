"""Write images as TFRecords in ImageNet's format, shuffled across files, and check TFRecords.

The features are those of imagenet_to_gcs.py, which the source of the Horovod run uses: RGB JPEGs, and labels
from 1. That source shuffles images across all files, and reports that training on records sorted by class
loses 2 to 3% of accuracy. A manifest next to a folder of TFRecords records what its files were made from.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.datums import open_datums, writing
from caffe_recipes.caffe.image_headers import jpeg_shape
from caffe_recipes.caffe.weights import TooManyFieldsError, count_fields
from caffe_recipes.cluster.staging.relay import digest_of
from caffe_recipes.data.check import (
    MIB,
    Problem,
    RecordStats,
    first_hint,
    label_range_text,
    order_text,
    order_values,
)
from caffe_recipes.data.images import ConversionSettings, Pictures, Progress, require_opencv
from caffe_recipes.data.manifest import check_own_data, is_count, is_names, manifest_path, read_manifest
from caffe_recipes.data.shuffledness import Shuffledness
from caffe_recipes.errors import DataError, InputError
from caffe_recipes.file_format import FORMAT
from caffe_recipes.files.atomic_writes import make_own_folder, write_whole
from caffe_recipes.limits import MOST_RECORD_FILES, hint_at_limit, limit
from caffe_recipes.tensorflow.records import (
    DamagedError,
    Values,
    build_example,
    example_class,
    parse_example,
    read_records,
    require_crc32c,
    write_records,
)
from caffe_recipes.wording import describe_count


@dataclass(frozen=True)
class RecordSet:
    """The manifest of a folder of TFRecords. `plan` is the digest of the image keys and all settings.

    `sizes_bytes` and `digests` are those of the files once they are written, with the digest used in staging.
    `file_records` are the records of each file, if another program distributed them; else they are even.
    """

    records: int
    shards: int
    seed: int
    prefix: str
    classes: tuple[str, ...] | None
    plan: str
    sizes_bytes: tuple[int, ...] = ()
    digests: tuple[str, ...] = ()
    file_records: tuple[int, ...] = ()

    def file_name(self, shard: int) -> str:
        """Return the name of a file.

        >>> RecordSet(9, 3, 1, "train", None, "").file_name(2)
        'train-00002-of-00003'
        """
        return f"{self.prefix}-{shard:05d}-of-{self.shards:05d}"

    def shard_slice(self, shard: int) -> slice:
        """Return the slice of the shuffled records that a file contains. Sizes differ by at most one.

        >>> [RecordSet(10, 3, 1, "train", None, "").shard_slice(shard) for shard in range(3)]
        [slice(0, 3, None), slice(3, 6, None), slice(6, 10, None)]
        """
        return slice(shard * self.records // self.shards, (shard + 1) * self.records // self.shards)

    def counts(self) -> dict[str, int]:
        """Return the number of records in each file.

        >>> RecordSet(3, 2, 1, "train", None, "").counts()
        {'train-00000-of-00002': 1, 'train-00001-of-00002': 2}
        """
        parts = map(self.shard_slice, range(self.shards))
        even = [part.stop - part.start for part in parts]
        return {self.file_name(shard): count for shard, count in enumerate(self.file_records or even)}


def records_manifest_path(out: Path) -> Path:
    """Return the path of the manifest: next to the folder, since any file inside may be read as records."""
    return manifest_path(out)


def load_record_set(out: Path) -> RecordSet | None:
    """Return the manifest of a folder of TFRecords, or None if it has none. Raises DataError."""
    hint = "remove it, or create the records again"
    return read_manifest(records_manifest_path(out), _parse_set, "is not a manifest of TFRecords", hint)


def _parse_set(known: dict[str, Any]) -> RecordSet | None:
    classes, sizes, digests = known.pop("classes"), known.pop("sizes_bytes"), known.pop("digests")
    classes = tuple(classes) if isinstance(classes, list) else classes
    counts = tuple(known.pop("file_records", ()))
    made = RecordSet(
        classes=classes, sizes_bytes=tuple(sizes), digests=tuple(digests), file_records=counts, **known
    )
    return made if _is_valid(made) else None


def write_record_set(out: Path, made: RecordSet) -> None:
    """Write the manifest of a folder of TFRecords atomically. Raises OSError."""
    text = json.dumps({"format": FORMAT, **asdict(made)}, indent=1) + "\n"
    write_whole({records_manifest_path(out): text.encode()}, is_synced=True)


def _is_valid(made: RecordSet) -> bool:
    counts = (made.records, made.shards, made.seed, *made.sizes_bytes, *made.file_records)
    return (
        all(map(is_count, counts))
        and 1 <= made.shards <= min(made.records, MOST_RECORD_FILES)
        and len(made.sizes_bytes) == len(made.digests) == made.shards
        and (
            not made.file_records
            or (len(made.file_records), sum(made.file_records)) == (made.shards, made.records)
        )
        and all(re.fullmatch("[0-9a-f]{64}", digest) for digest in made.digests)
        and isinstance(made.prefix, str)
        and re.fullmatch(r"[^/\0]+", made.prefix) is not None  # the files are in the folder itself
        and isinstance(made.plan, str)
        and (made.classes is None or is_names(made.classes))
    )


# The JPEG quality with which imagenet_to_gcs.py encodes images that are not RGB JPEGs.
_QUALITY = 100


def write_tfrecords(
    lmdb: Path,
    out: Path,
    *,
    shards: int,
    seed: int = 1,
    prefix: str = "train",
    classes: Sequence[str] | None = None,
    on_progress: Progress = lambda done, total: None,
) -> RecordSet:
    """Write an LMDB's records, shuffled, to `shards` files in the folder `out`, or resume writing them.

    `classes` are the class names (synsets) by label. A finished folder of this plan is kept. `on_progress`
    gets the number of records done and their total. `out` does not exist until it is complete. Raises
    InputError.
    """
    require_crc32c(lmdb)
    require_opencv(lmdb)
    with open_datums(lmdb) as datums:

        def read(order: Sequence[int]) -> Iterator[tuple[bytes, pb.Datum]]:
            return ((datums.keys[index], datums[index]) for index in order)

        size_bytes = (datums.path / "data.mdb").stat().st_size
        names = tuple(classes) if classes is not None else None
        images = _ImageSource(datums.path, datums.keys, size_bytes, names, read, "fix the LMDB")
        return _write(images, _plan(images, shards, seed, prefix), out, on_progress)


def write_picture_tfrecords(
    found: Pictures,
    out: Path,
    *,
    shards: int,
    seed: int = 1,
    prefix: str = "train",
    workers: int = 1,
    on_progress: Progress = lambda done, total: None,
) -> RecordSet:
    """Write images to TFRecords files without an LMDB, else like `write_tfrecords`. Raises InputError."""
    require_crc32c(found.where)
    require_opencv(found.where)
    from caffe_recipes.data.convert import convert_all  # cv2

    keys = [b"%08d_%b" % (picture.label, os.fsencode(picture.name)) for picture in found.pictures]

    def read(order: Sequence[int]) -> Iterator[tuple[bytes, pb.Datum]]:
        converted = convert_all([found.pictures[index] for index in order], ConversionSettings(), workers)
        with closing(converted):
            for index, made in zip(order, converted, strict=True):
                if made.error:
                    what = f"image '{found.pictures[index].name}' {made.error}"
                    raise DataError(found.where, what, "replace or remove the image")
                yield keys[index], pb.Datum.FromString(made.value)

    size_bytes = sum(picture.size_bytes for picture in found.pictures)
    images = _ImageSource(found.where, keys, size_bytes, found.classes, read, "replace or remove the image")
    return _write(images, _plan(images, shards, seed, prefix), out, on_progress)


@dataclass(frozen=True)
class _ImageSource:
    """The images to write as TFRecords. `read` yields the key and the Datum of each given index.

    A key is `%08d_<path>`, `size_bytes` is the total size of the images, and `hint` says how to fix a bad
    one.
    """

    where: Path
    keys: Sequence[bytes]
    size_bytes: int
    classes: tuple[str, ...] | None
    read: Callable[[Sequence[int]], Iterator[tuple[bytes, pb.Datum]]]
    hint: str


def _write(images: _ImageSource, plan: RecordSet, out: Path, on_progress: Progress) -> RecordSet:
    from caffe_recipes.data.build import RESUME_HINT, build_lock, check_plan  # cv2

    if out.name in ("", ".."):
        raise DataError(out, "is a folder that already exists", "give the path to a new folder")
    if os.path.lexists(out):
        return _check_existing(plan, out)
    partial = out.with_name(f".{out.name}.partial")
    with writing(out, RESUME_HINT):
        make_own_folder(partial)
        with build_lock(partial):
            check_plan(partial, plan.plan)
            (partial / "records").mkdir(exist_ok=True)
            try:
                _write_missing(images, partial / "records", plan, on_progress)
            except DataError:  # the fixed images will differ, so a build cannot resume from these records
                shutil.rmtree(partial)
                raise
            files = [partial / "records" / name for name in plan.counts()]
            sizes = tuple(file.stat().st_size for file in files)
            digests = tuple(map(digest_of, files))
            write_record_set(out, replace(plan, sizes_bytes=sizes, digests=digests))
            (partial / "records").rename(out)
            shutil.rmtree(partial)
    return plan


def _plan(images: _ImageSource, shards: int, seed: int, prefix: str) -> RecordSet:
    count = len(images.keys)
    if shards > count:
        what = f"{describe_count(shards, 'file')} for {describe_count(count, 'record')}: some would be empty"
        raise InputError("--shards", what, "give fewer")
    settings = [count, shards, seed, prefix, images.classes, images.size_bytes]
    digest = hashlib.sha256(json.dumps(settings).encode())
    for key in images.keys:
        digest.update(len(key).to_bytes(4, "little") + key)
    return RecordSet(count, shards, seed, prefix, images.classes, digest.hexdigest())


def _check_existing(plan: RecordSet, out: Path) -> RecordSet:
    check_own_data(out)
    try:
        known = load_record_set(out)
    except DataError:  # written by another program
        known = None
    if known is None or replace(known, sizes_bytes=(), digests=()) != plan:
        what = "already exists" + (", made from other images or settings" if known else "")
        raise DataError(out, what, "remove it, or give another path")
    hint = "remove the folder, and run the command again"
    names = [plan.file_name(shard) for shard in range(plan.shards)]
    missing = [name for name in names if not (out / name).is_file()]
    if missing:
        raise DataError(
            out, f"is missing {len(missing):,} of its {plan.shards:,} files, e.g. {missing[0]}", hint
        )
    for name, size in zip(names, known.sizes_bytes, strict=True):
        found = (out / name).stat().st_size
        if found != size:
            raise DataError(out / name, f"has {found:,} of {size:,} bytes", hint)
    return plan


def _write_missing(images: _ImageSource, folder: Path, plan: RecordSet, on_progress: Progress) -> None:
    """Write the missing files. Each gets its final name when it is complete."""
    from caffe_recipes.data.build import shuffle

    order = shuffle(range(plan.records), plan.seed)
    missing = [shard for shard in range(plan.shards) if not (folder / plan.file_name(shard)).exists()]
    examples = _examples(images, [index for shard in missing for index in order[plan.shard_slice(shard)]])
    with closing(examples):
        for shard in missing:
            path, part = folder / plan.file_name(shard), plan.shard_slice(shard)
            on_progress(part.start, plan.records)
            growing = folder / f".{path.name}"
            growing.unlink(missing_ok=True)
            write_records(growing, islice(examples, part.stop - part.start))
            growing.rename(path)


def _examples(images: _ImageSource, order: Sequence[int]) -> Generator[bytes, None, None]:
    classes = images.classes
    for key, datum in images.read(order):
        record = f"record '{key.decode(errors='backslashreplace')}'"
        if classes is not None and datum.label >= len(classes):
            what = f"{record} has label {datum.label}, but there are only {len(classes)} class names"
            raise DataError(images.where, what, "name all classes with --class-list, or fix the LMDB")
        try:
            yield build_example(build_features(key, datum, classes))
        except ValueError as error:
            raise DataError(images.where, f"{record} {error}", images.hint) from None


def build_features(key: bytes, datum: pb.Datum, classes: Sequence[str] | None) -> dict[str, bytes | int]:
    """Return a record's features, named as in imagenet_to_gcs.py. Raises ValueError if the record is bad.

    A key is `%08d_<path>`, and `classes` are the class names by label. `image/class/label` counts from 1;
    `image/class/text` is always empty.
    """
    if not datum.HasField("label") or datum.label < 0:
        raise ValueError("has no label" if not datum.HasField("label") else f"has label {datum.label}")
    encoded, height, width = _as_jpeg(datum)
    synset = classes[datum.label] if classes is not None else ""
    name = key.decode(errors="surrogateescape").partition("_")[2]
    return {
        "image/height": height,
        "image/width": width,
        "image/colorspace": b"RGB",
        "image/channels": 3,
        "image/class/label": datum.label + 1,
        "image/class/synset": os.fsencode(synset),  # a folder name may contain any bytes
        "image/class/text": b"",
        "image/format": b"JPEG",
        "image/filename": os.fsencode(PurePosixPath(name).name),
        "image/encoded": encoded,
    }


def _as_jpeg(datum: pb.Datum) -> tuple[bytes, int, int]:
    """Return a record's image as a JPEG that TensorFlow reads as RGB, and its height and width.

    An image that already is such a JPEG is not re-encoded. Raises ValueError if it cannot be converted.
    """
    shape = jpeg_shape(datum.data) if datum.encoded else None
    if shape and shape[0] in (1, 3) and min(shape) > 0:
        return datum.data, shape[1], shape[2]
    import cv2
    import numpy as np

    from caffe_recipes.caffe.datums import datum_shape
    from caffe_recipes.data.convert import decode_image, encode, quiet_decoders

    if datum.encoded:
        with quiet_decoders():
            pixels = decode_image(datum.data, cv2.IMREAD_COLOR)
    else:
        channels, height, width = datum_shape(datum) or (0, 0, 0)
        if channels not in (1, 3) or not datum.data:
            raise ValueError(f"is raw with {channels} channels, not 8-bit grey or BGR")
        pixels = np.frombuffer(datum.data, np.uint8).reshape(channels, height, width).transpose(1, 2, 0)
    settings = [cv2.IMWRITE_JPEG_QUALITY, _QUALITY]
    jpeg = encode(np.ascontiguousarray(pixels), "jpg", settings)
    return jpeg, pixels.shape[0], pixels.shape[1]


_NAME = re.compile(r"(.+)-(\d{5,})-of-(\d{5,})")
_REBUILD_HINT = "copy or create the records again"

V = TypeVar("V", bytes, int)


@dataclass(frozen=True)
class RecordsReport:
    """The result of checking TFRecords. Labels count from 1, as in the records.

    `order` is that of all records, in the files' name order. `files` has the number of records in each file,
    `fewest_classes` is the smallest number of classes in a file, and `synsets` the class names of each label.
    """

    files: Mapping[str, int]
    labels: Mapping[int, int]
    order: Shuffledness
    fewest_classes: int
    size_bytes: int
    problems: tuple[Problem, ...]
    synsets: Mapping[int, frozenset[bytes]]

    @property
    def count(self) -> int:
        """The number of records."""
        return sum(self.files.values())

    @property
    def hint(self) -> str:
        """What to do: copy files again that lost records, or else fix the images."""
        return first_hint(self.problems, "fix the source images, and create the records again")


def is_records(path: Path) -> bool:
    """Return whether a path is a TFRecords file or folder, by file names such as `train-00000-of-01024`."""
    try:
        return bool(_NAME.fullmatch(path.name)) if path.is_file() else bool(_files(path))
    except OSError:
        return False


def check_tfrecords(
    path: Path, classes: int | None = None, *, batch: int = 256, must_be_shuffled: bool = False
) -> RecordsReport:
    """Check every record in a TFRecords file or folder. Labels must be 1 to `classes`.

    The records after a damaged one cannot be read. The number of records is compared with the manifest, if
    there is one. Raises DataError if there are no files to read.
    """
    require_crc32c(path)
    paths = [path] if path.is_file() else _files(path)
    if not paths:
        raise DataError(path, "contains no TFRecords", "file names must be like train-00000-of-01024")
    made = load_record_set(path if path.is_dir() else path.parent)
    expected = made.counts() if made else {}
    stats, files, fewest, size_bytes = RecordStats(), {}, 0, 0
    synsets: dict[int, frozenset[bytes]] = {}
    for file in paths:
        before, damaged = len(stats.labels), stats.problems.get("damaged")
        files[file.name] = sum(1 for _ in _check_file(file, classes, stats, synsets))
        if stats.problems.get("damaged") is damaged:
            _check_count(file.name, files[file.name], expected, stats)
        here = len(set(stats.labels[before:]))
        fewest = here if file is paths[0] else min(fewest, here)
        size_bytes += file.stat().st_size
    if not any(files.values()) and not stats.problems:
        stats.add("count", "the files contain no records", _REBUILD_HINT)
    if path.is_dir():
        _check_names(paths, stats)
    order = stats.measure_order(batch, must_be_shuffled=must_be_shuffled)
    return RecordsReport(
        files, stats.count_labels(), order, fewest, size_bytes, tuple(stats.problems.values()), synsets
    )


def adopt_records(folder: Path, seed: int = 1) -> RecordSet:
    """Write the manifest of a folder of TFRecords that another program made, and return it.

    Its files are read once to count and check their records, and once for their digests. Class names are
    those of `image/class/synset`, if each label has one. Raises DataError for files that training would
    refuse, and if there is another manifest.
    """
    if not folder.is_dir():
        raise DataError(folder, "is not a folder", "give the folder that holds the TFRecords")
    check_own_data(folder)
    if os.path.lexists(records_manifest_path(folder)):
        raise DataError(
            records_manifest_path(folder), "already exists", "remove it to adopt the records again"
        )
    report = check_tfrecords(folder)
    if report.problems:
        raise DataError(folder, str(report.problems[0]), report.hint)
    empty = next((name for name, count in report.files.items() if not count), None)
    if empty is not None:
        raise DataError(
            folder / empty, "has no records", "remove it, and name the other files for their number"
        )
    paths = [folder / name for name in report.files]
    prefix = re.fullmatch(_NAME, paths[0].name).group(1)  # type: ignore[union-attr]
    digests = tuple(map(digest_of, paths))
    made = RecordSet(
        records=report.count,
        shards=len(paths),
        seed=seed,
        prefix=prefix,
        classes=_name_classes(report),
        plan=hashlib.sha256("\n".join(digests).encode()).hexdigest(),
        sizes_bytes=tuple(path.stat().st_size for path in paths),
        digests=digests,
        file_records=tuple(report.files.values()),
    )
    with writing(folder, "check the permissions of the folder that contains it"):
        write_record_set(folder, made)
    return made


def _name_classes(report: RecordsReport) -> tuple[str, ...] | None:
    """Return the class names by label, if the labels 1 to N all occur, and each has one name of its own."""
    names = [report.synsets.get(label, frozenset()) for label in range(1, max(report.labels, default=0) + 1)]
    only = [os.fsdecode(next(iter(each))) for each in names if len(each) == 1]
    found = tuple(only)
    return found if len(found) == len(names) == len(set(found)) and is_names(found) else None


def records_values(report: RecordsReport) -> dict[str, object]:
    """Return the report as values for JSON."""
    return {
        "records": report.count,
        "files": dict(report.files),
        "labels": {str(label): count for label, count in report.labels.items()},
        "order": order_values(report.order),
        "fewest_classes_in_file": report.fewest_classes,
        "size_bytes": report.size_bytes,
        "problems": [{"what": problem.what, "records": problem.count} for problem in report.problems],
    }


def render_records_text(report: RecordsReport) -> Iterator[str]:
    """Yield the report as lines of text, with the problems last."""
    counts = list(report.files.values())
    yield (
        f"{describe_count(report.count, 'TFRecord')} in {describe_count(len(counts), 'file')} of "
        f"{min(counts):,} to {max(counts):,}, "
        f"{report.size_bytes / MIB:,.1f} MiB"
    )
    if report.labels:
        yield f"{label_range_text(report.labels)}; each file has {report.fewest_classes:,} or more"
    yield order_text(report.order)
    yield from (f"bad: {problem}" for problem in report.problems)


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if _NAME.fullmatch(path.name) and path.is_file())


def _check_count(name: str, count: int, expected: Mapping[str, int], stats: RecordStats) -> None:
    """Add a problem if a file is missing records: a file that was cut between two records looks complete."""
    if expected and name not in expected:
        stats.add("manifest", f"{name}: is not listed in the manifest")
    elif count != expected.get(name, count):
        stats.add("count", f"{name}: has {count:,} of {expected[name]:,} records", _REBUILD_HINT)


def _check_names(paths: Sequence[Path], stats: RecordStats) -> None:
    """Add a problem if the files belong to several sets, or if files are missing."""
    sets: dict[tuple[str, int], set[int]] = {}
    for path in paths:
        prefix, number, count = re.fullmatch(_NAME, path.name).groups()  # type: ignore[union-attr]
        sets.setdefault((prefix, int(count)), set()).add(int(number))
    if len(sets) > 1:
        named = " and ".join(f"{prefix} of {count:,}" for prefix, count in sets)
        stats.add("sets", f"the folder has files of several sets: {named}")
    for (prefix, count), numbers in sets.items():
        missing = count - sum(number < count for number in numbers)
        if missing:  # do not build a set of all numbers: a file name may claim any count
            first = next(number for number in range(count) if number not in numbers)
            name = f"{prefix}-{first:05d}-of-{count:05d}"
            stats.add("files", f"{missing:,} of {count:,} files are missing, e.g. {name}", _REBUILD_HINT)


def _check_file(
    file: Path, classes: int | None, stats: RecordStats, synsets: dict[int, frozenset[bytes]]
) -> Iterator[None]:
    try:
        for number, data in enumerate(read_records(file)):
            where = f"{file.name}: record {number:,}"
            try:
                if len(data) > MIB:  # a smaller one costs little to parse, whatever it contains
                    count_fields(data, example_class().DESCRIPTOR, limit("weights-fields"))
                features = parse_example(data)
            except TooManyFieldsError:
                what = f"record {number:,} has more than {limit('weights-fields'):,} values and other fields"
                raise DataError(file, what, hint_at_limit("weights-fields")) from None
            except ValueError as error:
                stats.add("example", f"{where} {error}")
            else:
                _check_features(features, classes, where, stats)
                label = _single_value(features, "image/class/label", int)
                synset = _single_value(features, "image/class/synset", bytes)
                known = synsets.get(label or 0, frozenset())
                if label and synset and len(known) < 2:
                    synsets[label] = known | {synset}
            yield
    except DamagedError as error:
        stats.add("damaged", f"{file.name}: {error.what}", _REBUILD_HINT)


def _check_features(
    features: Mapping[str, Values], classes: int | None, where: str, stats: RecordStats
) -> None:
    label = _single_value(features, "image/class/label", int)
    if label is None:
        stats.add("no label", f"{where} has no image/class/label")
    else:
        stats.add_label(where, label, 1, classes)
    encoded = _single_value(features, "image/encoded", bytes)
    shape = jpeg_shape(encoded) if encoded else None
    if shape is None:
        stats.add("image", f"{where} {'is not a JPEG' if encoded else 'has no image/encoded'}")
        return
    stated = (_single_value(features, "image/height", int), _single_value(features, "image/width", int))
    if None not in stated and stated != shape[1:]:
        size = " x ".join(map(str, stated))
        stats.add("size", f"{where} says {size}, but its image is {shape[1]} x {shape[2]}")


def _single_value(features: Mapping[str, Values], name: str, kind: type[V]) -> V | None:
    """Return the value of a feature that has a single value of this type, or None for any other."""
    values = features.get(name, ())
    return values[0] if len(values) == 1 and isinstance(values[0], kind) else None
