"""An LMDB's images as TFRecords of ImageNet's kind, with classes shuffled across files.

Features, their names and their values are those of imagenet_to_gcs.py, which the Horovod run's source makes
its records by: RGB JPEGs, and labels from 1. It shuffles its images over the files, and says that training on
records sorted by class loses 2 to 3 % of accuracy.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.datums import Datums, open_datums
from caffe_recipes.caffe.disk import writing
from caffe_recipes.data.jpegs import jpeg_shape
from caffe_recipes.data.opencv import require_opencv
from caffe_recipes.data.partial import GOES_ON, check_plan, locked
from caffe_recipes.data.record_set import RecordSet, load_record_set, write_record_set
from caffe_recipes.errors import DataError, InputError
from caffe_recipes.tensorflow.examples import build_example
from caffe_recipes.tensorflow.records import require_crc32c, write_records

# Of images that are no JPEG of colours yet, as imagenet_to_gcs.py encodes them.
_QUALITY = 100

Tell = Callable[[int, int], None]


def write_tfrecords(
    lmdb: Path,
    out: Path,
    *,
    shards: int,
    seed: int = 1,
    prefix: str = "train",
    classes: Sequence[str] | None = None,
    tell: Tell = lambda done, total: None,
) -> RecordSet:
    """Write an LMDB's records to `shards` files in the folder `out`, shuffled; go on with what was cut off.

    `classes` are the names (synsets) by label. A finished folder of this plan is kept. `tell` hears of
    records done, and how many there are. Nothing stands at `out` until it is whole. Raises InputError.
    """
    require_crc32c(lmdb)
    require_opencv(lmdb)
    if out.name in ("", ".."):
        raise DataError(out, "is a folder that is there already", "name a new one")
    with open_datums(lmdb) as datums:
        plan = _plan(datums, shards, seed, prefix, tuple(classes) if classes is not None else None)
        if os.path.lexists(out):
            return _check_same(plan, out)
        partial = out.with_name(f".{out.name}.partial")
        with writing(out, GOES_ON):
            partial.mkdir(parents=True, exist_ok=True)
            with locked(partial):
                check_plan(partial, plan.plan)
                (partial / "records").mkdir(exist_ok=True)
                try:
                    _fill(datums, partial / "records", plan, tell)
                except DataError:  # a mended LMDB is another one
                    shutil.rmtree(partial)
                    raise
                sizes = [(partial / "records" / name).stat().st_size for name in plan.counts()]
                write_record_set(out, replace(plan, sizes_bytes=tuple(sizes)))
                (partial / "records").rename(out)
                shutil.rmtree(partial)
    return plan


def _plan(datums: Datums, shards: int, seed: int, prefix: str, classes: tuple[str, ...] | None) -> RecordSet:
    if shards > len(datums):
        what = f"{shards:,} files of {len(datums):,} records: some would be empty"
        raise InputError("--shards", what, "give fewer")
    told = [len(datums), shards, seed, prefix, classes, (datums.path / "data.mdb").stat().st_size]
    digest = hashlib.sha256(json.dumps(told).encode())
    for key in datums.keys:
        digest.update(len(key).to_bytes(4, "little") + key)
    return RecordSet(len(datums), shards, seed, prefix, classes, digest.hexdigest())


def _check_same(plan: RecordSet, out: Path) -> RecordSet:
    try:
        known = load_record_set(out)
    except DataError:  # not ours
        known = None
    if known is None or known.plan != plan.plan:
        what = "is there already" + (", of other images or settings" if known else "")
        raise DataError(out, what, "remove it, or give another path")
    hint = "remove the folder, and give the command again"
    names = [plan.file_name(shard) for shard in range(plan.shards)]
    missing = [name for name in names if not (out / name).is_file()]
    if missing:
        raise DataError(out, f"lacks {len(missing):,} of its {plan.shards:,} files: {missing[0]}", hint)
    for name, size in zip(names, known.sizes_bytes, strict=False):  # of older manifests there are none
        found = (out / name).stat().st_size
        if found != size:
            raise DataError(out / name, f"has {found:,} of {size:,} bytes", hint)
    return plan


def _fill(datums: Datums, folder: Path, plan: RecordSet, tell: Tell) -> None:
    """Write the files that are not there yet; each gets its name when it is whole."""
    from caffe_recipes.data.plan import shuffle

    order = shuffle(range(plan.records), plan.seed)
    for shard in range(plan.shards):
        path = folder / plan.file_name(shard)
        part = order[plan.part(shard)]
        if path.exists():
            continue
        tell(plan.part(shard).start, plan.records)
        growing = folder / f".{path.name}"
        growing.unlink(missing_ok=True)
        write_records(growing, _examples(datums, part, plan.classes))
        growing.rename(path)


def _examples(datums: Datums, part: Sequence[int], classes: tuple[str, ...] | None) -> Iterator[bytes]:
    for index in part:
        key, datum = datums.keys[index], datums[index]
        record = f"record '{key.decode(errors='backslashreplace')}'"
        if classes is not None and datum.label >= len(classes):
            what = f"{record} has label {datum.label}, and the names of classes end at {len(classes) - 1}"
            raise DataError(datums.path, what, "name all classes with --class-list, or mend the LMDB")
        try:
            yield build_example(features_of(key, datum, classes))
        except ValueError as error:
            raise DataError(datums.path, f"{record} {error}", "mend the LMDB") from None


def features_of(key: bytes, datum: pb.Datum, classes: Sequence[str] | None) -> dict[str, bytes | int]:
    """Return a record's features as imagenet_to_gcs.py names them; raises ValueError, saying what is wrong.

    A key is `%08d_<path>`; `classes` name every label. `image/class/label` counts from 1; what is not known
    of a class is empty.
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
        "image/class/synset": os.fsencode(synset),  # of a folder's name, which may be of any bytes
        "image/class/text": b"",
        "image/format": b"JPEG",
        "image/filename": os.fsencode(PurePosixPath(name).name),
        "image/encoded": encoded,
    }


def _as_jpeg(datum: pb.Datum) -> tuple[bytes, int, int]:
    """Give a record's image as a JPEG that TensorFlow reads as RGB, its bytes unchanged if it is one."""
    shape = jpeg_shape(datum.data) if datum.encoded else None
    if shape and shape[0] in (1, 3) and min(shape) > 0:
        return datum.data, shape[1], shape[2]
    import cv2
    import numpy as np

    from caffe_recipes.caffe.datums import datum_shape
    from caffe_recipes.data.pixels import decode, encode, quiet_decoders

    if datum.encoded:
        with quiet_decoders():
            pixels = decode(datum.data, cv2.IMREAD_COLOR)
    else:
        channels, height, width = datum_shape(datum) or (0, 0, 0)
        if channels not in (1, 3) or not datum.data:
            raise ValueError(f"is raw, of {channels} channels: neither grey nor in colours of a byte each")
        pixels = np.frombuffer(datum.data, np.uint8).reshape(channels, height, width).transpose(1, 2, 0)
    settings = [cv2.IMWRITE_JPEG_QUALITY, _QUALITY]
    jpeg = encode(np.ascontiguousarray(pixels), "jpg", settings)
    return jpeg, pixels.shape[0], pixels.shape[1]
