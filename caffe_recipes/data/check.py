"""Check an LMDB of Datums: every label and a sample of the images; and print the result as text or JSON."""

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
from caffe_recipes.caffe.datums import Datums, ImageShape, datum_shape, open_datums, show_key
from caffe_recipes.data.manifest import BuildManifest, RecordsDigest, load_manifest
from caffe_recipes.data.shuffledness import Shuffledness, measure_shuffledness
from caffe_recipes.errors import DataError

_AT_ONCE = 64  # images decoded in one batch: some MB, or some hundred MB of large ones
_AGAIN = "copy the LMDB again, or build it again"


@dataclass(frozen=True)
class Problem:
    """One kind of problem: a description of the first record that has it, and the number of such records.

    `hint` says what to do, if that is not to fix the images that the records were made from.
    """

    what: str
    count: int = 1
    hint: str = ""

    def __str__(self) -> str:
        return self.what if self.count == 1 else f"{self.what}, and {self.count - 1:,} more like it"


def hint_of(problems: Sequence[Problem], fallback: str) -> str:
    """Return the hint of the first problem that has one, else `fallback`.

    >>> hint_of([Problem("has label 3"), Problem("is cut short", hint="copy it")], "fix it")
    'copy it'
    """
    return next((problem.hint for problem in problems if problem.hint), fallback)


@dataclass(frozen=True)
class Checked:
    """The result of a check. `shapes` and `channel_means` (BGR, over all pixels) are of the `decoded` images.

    `labels` has the number of records of each label. `compact_bytes` is the size of a copy by `mdb_copy -c`.
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
        """What to do: by default fix the images, but copy a damaged LMDB again."""
        return hint_of(self.problems, "fix the list of images and build the LMDB again")

    @property
    def missing(self) -> int:
        """The number of labels, from 0 to the largest one, that no record has."""
        return max(self.labels, default=-1) + 1 - sum(label >= 0 for label in self.labels)

    @property
    def first_missing(self) -> int:
        """The smallest label that no record has."""
        return next(label for label in count_up() if label not in self.labels)


@dataclass
class Seen:
    """Collects the labels and the problems of records."""

    labels: list[int] = field(default_factory=list)
    problems: dict[str, Problem] = field(default_factory=dict)

    def add(self, kind: str, what: str, hint: str = "") -> None:
        """Count a bad record; only the first record of a kind is described."""
        known = self.problems.get(kind)
        self.problems[kind] = replace(known, count=known.count + 1) if known else Problem(what, hint=hint)

    def add_label(self, where: str, label: int, first: int, classes: int | None) -> None:
        """Add the label of a record, which must be one of the `classes` labels from `first` on."""
        self.labels.append(label)
        if label < first:
            self.add("label", f"{where} has label {label}, which is below {first}")
        elif classes is not None and label >= first + classes:
            wanted = f"{classes:,} classes {first} to {first + classes - 1}"
            self.add("label", f"{where} has label {label}, which is not one of the {wanted}")

    def measure_order(self, batch: int, *, must_be_shuffled: bool) -> Shuffledness:
        """Return how well the records are shuffled; add a problem if they must be shuffled and are not."""
        order = measure_shuffledness(self.labels, batch)
        if must_be_shuffled and order.verdict != "shuffled":
            self.add("order", f"the records are not shuffled: {order.verdict}")
        return order

    def count_labels(self) -> dict[int, int]:
        """Return how many records have each label."""
        return dict(sorted(Counter(self.labels).items()))


@dataclass
class _SeenRecords(Seen):
    """Collects the images and the digest of an LMDB's records too."""

    encoded: int = 0
    decoded: int = 0
    shapes: Counter[ImageShape] = field(default_factory=Counter)
    sums: dict[int, tuple[int, list[float]]] = field(default_factory=dict)  # by channels: pixels, their sums
    digest: RecordsDigest | None = None
    waiting: list[tuple[str, pb.Datum]] = field(default_factory=list)  # keys and images to be decoded

    def add_image(self, key: str, what: str) -> None:
        """Count a record with a bad image; the first two words of `what` are the kind of problem."""
        self.add(" ".join(what.split()[:2]), f"record '{key}' {what}")


def check_lmdb(
    path: Path,
    classes: int | None = None,
    *,
    decode: int | None = 256,
    batch: int = 256,
    must_be_shuffled: bool = False,
) -> Checked:
    """Check all labels, and decode `decode` images, evenly spread, or all of them if it is None.

    Labels must be 0 to `classes` - 1; by default `classes` is that of the manifest. Raises DataError if
    `path` is not an LMDB.
    """
    manifest = load_manifest(path)
    if classes is None and manifest is not None and manifest.classes is not None:
        classes = len(manifest.classes)
    with open_datums(path) as datums:
        chosen = set(spread(len(datums), len(datums) if decode is None else decode))
        is_hashed = decode is None and manifest is not None
        seen = _SeenRecords(digest=RecordsDigest() if is_hashed else None)
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            for index in range(len(datums)):
                _look(datums, index, classes, seen, decodes=index in chosen)
                if len(seen.waiting) == _AT_ONCE or (index + 1 == len(datums) and seen.waiting):
                    _decode_waiting(seen, pool)
        if manifest is not None:
            _compare(manifest, len(datums), seen)
        order = seen.measure_order(batch, must_be_shuffled=must_be_shuffled)
        records = len(datums)
    size_bytes, compact_bytes = _sizes(path)
    return Checked(
        count=records,
        encoded=seen.encoded,
        decoded=seen.decoded,
        labels=seen.count_labels(),
        shapes=dict(sorted(seen.shapes.items())),
        channel_means=_channel_means(seen),
        order=order,
        size_bytes=size_bytes,
        compact_bytes=compact_bytes,
        problems=tuple(seen.problems.values()),
    )


def spread(count: int, limit: int) -> list[int]:
    """Return up to `limit` of the indices 0 to `count` - 1, evenly spread, with 0 among them.

    >>> spread(10, 4), spread(3, 4)
    ([0, 2, 5, 7], [0, 1, 2])
    """
    return [place * count // limit for place in range(limit)] if limit < count else list(range(count))


def _look(datums: Datums, index: int, classes: int | None, seen: _SeenRecords, *, decodes: bool) -> None:
    """Check one record."""
    key = show_key(datums.keys[index])
    try:
        datum = datums[index]
    except DataError as error:
        seen.add("record", error.what, error.hint)
        return
    if seen.digest is not None:
        seen.digest.add(datums.keys[index], datum.SerializeToString(deterministic=True))
    seen.encoded += datum.encoded
    if datum.HasField("label"):
        seen.add_label(f"record '{key}'", datum.label, 0, classes)
    else:
        seen.add("no label", f"record '{key}' has no label")
    try:
        datum_shape(datum)
    except ValueError as error:
        seen.add_image(key, str(error))
    else:
        seen.waiting += [(key, datum)] if decodes else []


def _decode_waiting(seen: _SeenRecords, pool: ThreadPoolExecutor) -> None:
    """Decode the waiting images in several threads, since OpenCV releases the GIL."""
    from caffe_recipes.data.convert import quiet_decoders  # cv2

    with quiet_decoders():
        found = list(pool.map(_decode, [datum for _, datum in seen.waiting]))
    for (key, _), image in zip(seen.waiting, found, strict=True):
        if isinstance(image, str):
            seen.add_image(key, image)
            continue
        shape, channel_sums = image
        seen.decoded += 1
        seen.shapes[shape] += 1
        count, sums = seen.sums.get(shape[0], (0, [0.0] * shape[0]))
        added = [total + value for total, value in zip(sums, channel_sums, strict=True)]
        seen.sums[shape[0]] = count + shape[1] * shape[2], added
    seen.waiting.clear()


def _decode(datum: pb.Datum) -> tuple[ImageShape, list[float]] | str:
    """Return an image's (channels, height, width) and the sum of each channel, or what is wrong with it."""
    from caffe_recipes.data.convert import load_pixels  # cv2

    try:
        pixels = load_pixels(datum)
    except ValueError as error:
        return str(error)
    height, width, channels = pixels.shape
    return (channels, height, width), pixels.sum(axis=(0, 1), dtype="float64").tolist()


def _compare(manifest: BuildManifest, count: int, seen: _SeenRecords) -> None:
    """Compare the records with the manifest."""
    if count != manifest.images:
        seen.add("manifest", f"holds {count:,} records, but its manifest says {manifest.images:,}", _AGAIN)
    elif seen.digest is not None and seen.digest.hexdigest() != manifest.sha256:
        seen.add("manifest", "holds other records than its manifest says", _AGAIN)


def _channel_means(seen: _SeenRecords) -> tuple[float, ...] | None:
    """Return the mean of each channel; among colour images a grey one counts for all three channels."""
    if not seen.sums:
        return None
    width = 1 if set(seen.sums) == {1} else 3
    pixels, totals = 0, [0.0] * width
    for channels, (count, sums) in seen.sums.items():
        if channels != 2:  # grey and alpha, which the trainer cannot use
            pixels += count
            values = sums * width if channels == 1 else sums[:width]
            totals = [total + value for total, value in zip(totals, values, strict=True)]
    return tuple(total / pixels for total in totals) if pixels else None


def _sizes(path: Path) -> tuple[int, int]:
    """Return the bytes of an LMDB, and the bytes of its used pages, which is the size of a compact copy."""
    with lmdb.open(os.fspath(path), readonly=True, lock=False) as environment:
        used = environment.stat()
        pages = 2 + used["branch_pages"] + used["leaf_pages"] + used["overflow_pages"]  # and 2 meta pages
        return (path / "data.mdb").stat().st_size, pages * used["psize"]


_MOST_SHAPES = 4
_MOST_CLASSES = 20  # with more classes their counts are summarised
_MIB = 2**20


def render_text(seen: Checked) -> str:
    """Return the result as lines of text; the last ones are the problems."""
    return "\n".join(_lines(seen)) + "\n"


def render_json(seen: Checked) -> str:
    """Return the result as JSON, with the count of every label."""
    values = {
        "records": seen.count,
        "encoded": seen.encoded,
        "decoded": seen.decoded,
        "labels": {str(label): count for label, count in seen.labels.items()},
        "labels_missing": seen.missing,
        "shapes": {" x ".join(map(str, shape)): count for shape, count in seen.shapes.items()},
        "means_bgr": seen.channel_means,
        "order": order_values(seen.order),
        "size_bytes": seen.size_bytes,
        "compact_bytes": seen.compact_bytes,
        "problems": [{"what": problem.what, "records": problem.count} for problem in seen.problems],
    }
    return json.dumps(values, indent=1) + "\n"


def _lines(seen: Checked) -> Iterator[str]:
    yield f"{seen.count:,} records, {seen.encoded:,} of them encoded images; {seen.decoded:,} decoded"
    yield from _label_lines(seen)
    yield from _shape_lines(seen)
    if seen.channel_means is not None:
        channels = "BGR" if len(seen.channel_means) == 3 else "grey"
        yield f"mean {channels} " + ", ".join(f"{mean:.2f}" for mean in seen.channel_means)
    yield order_text(seen.order)
    size, compact = seen.size_bytes, seen.compact_bytes
    yield f"{size / _MIB:,.1f} MiB, {compact / _MIB:,.1f} if compacted ({1 - compact / size:.1%} less)"
    yield from (f"bad: {problem}" for problem in seen.problems)


def label_range_text(labels: Mapping[int, int]) -> str:
    """Return the range of the labels and their number, as text."""
    return f"labels {min(labels)} to {max(labels)}, {len(labels):,} different"


def order_text(order: Shuffledness) -> str:
    """Return how well records are shuffled, as a line of text."""
    return (
        f"order: {order.verdict} (1 is random, 0 sorted: neighbours {order.by_neighbours:.2f}, "
        f"batches of {order.batch} {order.by_batches:.2f}, with {order.classes:.1f} classes "
        f"of {order.classes_random:.1f} expected and {order.times_alike:.2f} times the pairs of one class; "
        f"mean run {order.mean_run:.1f})"
    )


def order_values(order: Shuffledness) -> dict[str, object]:
    """Return how well records are shuffled, for JSON."""
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


def _label_lines(seen: Checked) -> Iterator[str]:
    if not seen.labels:
        return
    yield label_range_text(seen.labels)
    counts = list(seen.labels.values())
    if len(counts) <= _MOST_CLASSES:
        yield "images by label: " + ", ".join(f"{label}: {count:,}" for label, count in seen.labels.items())
    else:
        yield f"images of a label: {min(counts):,} to {max(counts):,}, median {median(counts):,.0f}"
    if seen.missing:
        yield f"note: {seen.missing:,} smaller labels have no images; the first is {seen.first_missing}"


def _shape_lines(seen: Checked) -> Iterator[str]:
    if len(seen.shapes) <= _MOST_SHAPES:
        for (channels, height, width), count in seen.shapes.items():
            yield f"{count:,} images of {channels} x {height} x {width}"
    else:
        heights, widths = ([shape[axis] for shape in seen.shapes] for axis in (1, 2))
        sizes = f"{min(heights)} to {max(heights)} high, {min(widths)} to {max(widths)} wide"
        yield f"images of {len(seen.shapes):,} sizes: {sizes}"
    depths = sorted({shape[0] for shape in seen.shapes})
    if len(depths) > 1:
        found = " and ".join(map(str, depths))
        yield f"note: images have {found} channels; a net needs transform_param.force_color to read them"
