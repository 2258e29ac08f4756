"""Check all labels and a sample of the images in an LMDB of Datums, and report the result as text or JSON."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import count as count_up
from pathlib import Path
from statistics import median

import lmdb

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.datums import Datums, datum_shape, open_datums, show_key
from caffe_recipes.caffe.image_headers import ImageShape
from caffe_recipes.data.manifest import BuildManifest, RecordsDigest, load_manifest
from caffe_recipes.data.shuffledness import Shuffledness, measure_shuffledness
from caffe_recipes.errors import DataError
from caffe_recipes.wording import describe_count

_BATCH_IMAGES = 64  # images decoded in one batch: a few MB, or a few hundred MB of large ones
_REBUILD_HINT = "copy the LMDB again, or build it again"


@dataclass(frozen=True)
class Problem:
    """A kind of problem: a description of the first record that has it, and the number of such records.

    `hint` says what to do; it is empty if the source images must be fixed.
    """

    what: str
    count: int = 1
    hint: str = ""

    def __str__(self) -> str:
        return self.what if self.count == 1 else f"{self.what}, and {self.count - 1:,} more like it"


def first_hint(problems: Sequence[Problem], fallback: str) -> str:
    """Return the hint of the first problem that has one, or `fallback`.

    >>> first_hint([Problem("has label 3"), Problem("is truncated", hint="copy it")], "fix it")
    'copy it'
    """
    return next((problem.hint for problem in problems if problem.hint), fallback)


@dataclass(frozen=True)
class LmdbReport:
    """The result of checking an LMDB.

    `labels` has the number of records with each label. `shapes` and `channel_means` (BGR, over all pixels)
    are those of the `decoded` images. `compact_bytes` is the size of a copy by `mdb_copy -c`.
    """

    count: int
    encoded: int
    decoded: int
    labels: Mapping[int, int]
    shapes: Mapping[ImageShape, int]
    channel_means: tuple[float, ...] | None
    order: Shuffledness
    size_bytes: int
    compact_bytes: int
    problems: tuple[Problem, ...]

    @property
    def hint(self) -> str:
        """What to do: copy a damaged LMDB again, or else fix the images."""
        return first_hint(self.problems, "fix the list of images and build the LMDB again")

    @property
    def missing_labels(self) -> int:
        """The number of labels, of 0 to the largest one, that no record has."""
        return max(self.labels, default=-1) + 1 - sum(label >= 0 for label in self.labels)

    @property
    def first_missing_label(self) -> int:
        """The smallest label that no record has."""
        return next(label for label in count_up() if label not in self.labels)


@dataclass
class RecordStats:
    """Collects the labels and problems of records."""

    labels: list[int] = field(default_factory=list)
    problems: dict[str, Problem] = field(default_factory=dict)

    def add(self, kind: str, what: str, hint: str = "") -> None:
        """Count a bad record. Only the first record of each kind is described."""
        known = self.problems.get(kind)
        self.problems[kind] = replace(known, count=known.count + 1) if known else Problem(what, hint=hint)

    def add_label(self, where: str, label: int, first: int, classes: int | None) -> None:
        """Add the label of a record, which must be one of the `classes` labels from `first` on."""
        self.labels.append(label)
        if label < first:
            self.add("label", f"{where} has label {label}, which is below {first}")
        elif classes is not None and label >= first + classes:
            wanted = f"{describe_count(classes, 'class', 'classes')} {first} to {first + classes - 1}"
            self.add("label", f"{where} has label {label}, which is not one of the {wanted}")

    def measure_order(self, batch: int, *, must_be_shuffled: bool) -> Shuffledness:
        """Return how well the records are shuffled. Adds a problem if they must be shuffled and are not."""
        order = measure_shuffledness(self.labels, batch)
        if must_be_shuffled and order.verdict != "shuffled":
            self.add("order", f"the records are not shuffled: {order.verdict}")
        return order

    def count_labels(self) -> dict[int, int]:
        """Return how many records have each label."""
        return dict(sorted(Counter(self.labels).items()))


@dataclass
class _LmdbStats(RecordStats):
    """Also collects the images of an LMDB's records, and their digest."""

    encoded: int = 0
    decoded: int = 0
    shapes: Counter[ImageShape] = field(default_factory=Counter)
    sums: dict[int, tuple[int, list[float]]] = field(
        default_factory=dict
    )  # channels: (pixels, sum of each channel)
    digest: RecordsDigest | None = None
    waiting: list[tuple[str, pb.Datum]] = field(default_factory=list)  # keys and images still to be decoded

    def add_image(self, key: str, what: str) -> None:
        """Count a record with a bad image. The first two words of `what` are the kind of the problem."""
        self.add(" ".join(what.split()[:2]), f"record '{key}' {what}")


def check_lmdb(
    path: Path,
    classes: int | None = None,
    *,
    decode: int | None = 256,
    batch: int = 256,
    must_be_shuffled: bool = False,
) -> LmdbReport:
    """Check all labels of an LMDB, and decode `decode` evenly spread images, or all of them if it is None.

    Labels must be 0 to `classes` - 1; the default for `classes` is the number in the manifest. Raises
    DataError if `path` is not an LMDB.
    """
    manifest = load_manifest(path)
    if classes is None and manifest is not None and manifest.classes is not None:
        classes = len(manifest.classes)
    with open_datums(path) as datums:
        chosen = set(spread_evenly(len(datums), len(datums) if decode is None else decode))
        is_hashed = decode is None and manifest is not None
        stats = _LmdbStats(digest=RecordsDigest() if is_hashed else None)
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            for index in range(len(datums)):
                _check_record(datums, index, classes, stats, decodes=index in chosen)
                if len(stats.waiting) == _BATCH_IMAGES or (index + 1 == len(datums) and stats.waiting):
                    _decode_waiting(stats, pool)
        if manifest is not None:
            _compare_with_manifest(manifest, len(datums), stats)
        order = stats.measure_order(batch, must_be_shuffled=must_be_shuffled)
        records = len(datums)
    size_bytes, compact_bytes = _sizes(path)
    return LmdbReport(
        count=records,
        encoded=stats.encoded,
        decoded=stats.decoded,
        labels=stats.count_labels(),
        shapes=dict(sorted(stats.shapes.items())),
        channel_means=_channel_means(stats),
        order=order,
        size_bytes=size_bytes,
        compact_bytes=compact_bytes,
        problems=tuple(stats.problems.values()),
    )


def spread_evenly(count: int, limit: int) -> list[int]:
    """Return up to `limit` of the indices 0 to `count` - 1, evenly spread, starting with 0.

    >>> spread_evenly(10, 4), spread_evenly(3, 4)
    ([0, 2, 5, 7], [0, 1, 2])
    """
    return [step * count // limit for step in range(limit)] if limit < count else list(range(count))


def _check_record(
    datums: Datums, index: int, classes: int | None, stats: _LmdbStats, *, decodes: bool
) -> None:
    """Check one record, and queue its image if it is to be decoded."""
    key = show_key(datums.keys[index])
    try:
        datum = datums[index]
    except DataError as error:
        stats.add("record", error.what, error.hint)
        return
    if stats.digest is not None:
        stats.digest.add(datums.keys[index], datum.SerializeToString(deterministic=True))
    stats.encoded += datum.encoded
    if datum.HasField("label"):
        stats.add_label(f"record '{key}'", datum.label, 0, classes)
    else:
        stats.add("no label", f"record '{key}' has no label")
    try:
        datum_shape(datum)
    except ValueError as error:
        stats.add_image(key, str(error))
    else:
        stats.waiting += [(key, datum)] if decodes else []


def _decode_waiting(stats: _LmdbStats, pool: ThreadPoolExecutor) -> None:
    """Decode the waiting images in several threads, since OpenCV releases the GIL."""
    from caffe_recipes.data.convert import quiet_decoders  # cv2

    with quiet_decoders():
        found = list(pool.map(_decode, [datum for _, datum in stats.waiting]))
    for (key, _), image in zip(stats.waiting, found, strict=True):
        if isinstance(image, str):
            stats.add_image(key, image)
            continue
        shape, channel_sums = image
        stats.decoded += 1
        stats.shapes[shape] += 1
        count, sums = stats.sums.get(shape[0], (0, [0.0] * shape[0]))
        added = [total + value for total, value in zip(sums, channel_sums, strict=True)]
        stats.sums[shape[0]] = count + shape[1] * shape[2], added
    stats.waiting.clear()


def _decode(datum: pb.Datum) -> tuple[ImageShape, list[float]] | str:
    """Return an image's (channels, height, width) and the sum of each channel, or its problem."""
    from caffe_recipes.data.convert import load_pixels  # cv2

    try:
        pixels = load_pixels(datum)
    except ValueError as error:
        return str(error)
    height, width, channels = pixels.shape
    return (channels, height, width), pixels.sum(axis=(0, 1), dtype="float64").tolist()


def _compare_with_manifest(manifest: BuildManifest, count: int, stats: _LmdbStats) -> None:
    """Compare the records with the manifest."""
    if count != manifest.images:
        what = f"holds {describe_count(count, 'record')}, but its manifest says {manifest.images:,}"
        stats.add("manifest", what, _REBUILD_HINT)
    elif stats.digest is not None and stats.digest.hexdigest() != manifest.sha256:
        stats.add("manifest", "has different records from those in its manifest", _REBUILD_HINT)


def _channel_means(stats: _LmdbStats) -> tuple[float, ...] | None:
    """Return the mean of each channel. Among colour images, a grey one counts for all three channels."""
    if not stats.sums:
        return None
    width = 1 if set(stats.sums) == {1} else 3
    pixels, totals = 0, [0.0] * width
    for channels, (count, sums) in stats.sums.items():
        if channels != 2:  # grey and alpha, which the trainer cannot use
            pixels += count
            values = sums * width if channels == 1 else sums[:width]
            totals = [total + value for total, value in zip(totals, values, strict=True)]
    return tuple(total / pixels for total in totals) if pixels else None


def _sizes(path: Path) -> tuple[int, int]:
    """Return the size of an LMDB, and that of its used pages, the size of a compact copy, in bytes."""
    with lmdb.open(os.fsencode(path), readonly=True, lock=False) as environment:
        used = environment.stat()
        pages = 2 + used["branch_pages"] + used["leaf_pages"] + used["overflow_pages"]  # and 2 meta pages
        return (path / "data.mdb").stat().st_size, pages * used["psize"]


_MAX_SHAPES = 4
_MAX_CLASSES = 20  # with more classes, their counts are summarized
MIB = 2**20


def render_report_json(report: LmdbReport) -> str:
    """Return the report as JSON, with the count of every label."""
    values = {
        "records": report.count,
        "encoded": report.encoded,
        "decoded": report.decoded,
        "labels": {str(label): count for label, count in report.labels.items()},
        "labels_missing": report.missing_labels,
        "shapes": {" x ".join(map(str, shape)): count for shape, count in report.shapes.items()},
        "means_bgr": report.channel_means,
        "order": order_values(report.order),
        "size_bytes": report.size_bytes,
        "compact_bytes": report.compact_bytes,
        "problems": [{"what": problem.what, "records": problem.count} for problem in report.problems],
    }
    return json.dumps(values, indent=1) + "\n"


def render_text(report: LmdbReport) -> Iterator[str]:
    """Yield the report as lines of text, with the problems last."""
    count = describe_count(report.count, "record")
    yield f"{count}, {report.encoded:,} of them encoded images; {report.decoded:,} decoded"
    yield from _label_lines(report)
    yield from _shape_lines(report)
    if report.channel_means is not None:
        channels = "BGR" if len(report.channel_means) == 3 else "grey"
        yield f"mean {channels} " + ", ".join(f"{mean:.2f}" for mean in report.channel_means)
    yield order_text(report.order)
    size, compact = report.size_bytes, report.compact_bytes
    yield f"{size / MIB:,.1f} MiB, {compact / MIB:,.1f} if compacted ({1 - compact / size:.1%} less)"
    yield from (f"bad: {problem}" for problem in report.problems)


def label_range_text(labels: Mapping[int, int]) -> str:
    """Return the range and number of the labels as text."""
    return f"labels {min(labels)} to {max(labels)}, {len(labels):,} distinct"


def order_text(order: Shuffledness) -> str:
    """Return how well the records are shuffled, as a line of text."""
    if not order.is_judged:
        return f"order: {order.verdict}"
    found = min(order.by_neighbours, order.by_batches)
    text = f"order: {order.verdict} ({found:.2f} on a scale from 0, sorted, to 1, random)"
    if order.alike > order.alike_most and order.verdict != "sorted by class":
        text += f"; batches have {order.times_alike:.2f} times as many same-class pairs as in random order"
    return text


def order_values(order: Shuffledness) -> dict[str, object]:
    """Return how well the records are shuffled, as values for JSON."""
    return {
        "verdict": order.verdict,
        "by_neighbours": order.by_neighbours,
        "by_batches": order.by_batches,
        "batch": order.batch,
        "classes_in_batch": order.classes,
        "classes_in_batch_random": order.classes_random,
        "times_alike_in_batch": order.times_alike,
        "mean_run": order.mean_run,
    }


def _label_lines(report: LmdbReport) -> Iterator[str]:
    if not report.labels:
        return
    yield label_range_text(report.labels)
    counts = list(report.labels.values())
    if len(counts) <= _MAX_CLASSES:
        yield "images by label: " + ", ".join(f"{label}: {count:,}" for label, count in report.labels.items())
    else:
        yield f"images per label: {min(counts):,} to {max(counts):,}, median {median(counts):,.0f}"
    if report.missing_labels:
        first = report.first_missing_label
        yield f"note: {report.missing_labels:,} smaller labels have no images; the first is {first}"


def _shape_lines(report: LmdbReport) -> Iterator[str]:
    if len(report.shapes) <= _MAX_SHAPES:
        for (channels, height, width), count in report.shapes.items():
            yield f"{describe_count(count, 'image')} of {channels} x {height} x {width}"
    else:
        heights, widths = ([shape[axis] for shape in report.shapes] for axis in (1, 2))
        sizes = f"{min(heights)} to {max(heights)} high, {min(widths)} to {max(widths)} wide"
        yield f"images of {len(report.shapes):,} sizes: {sizes}"
    depths = sorted({shape[0] for shape in report.shapes})
    if len(depths) > 1:
        found = " and ".join(map(str, depths))
        yield f"note: images have {found} channels; a net needs transform_param.force_color to read them"
