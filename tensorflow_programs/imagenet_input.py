"""ImageNet's TFRecords: which rank reads which record, and how an image is prepared.

As tensorflow/tpu's imagenet_input.py and resnet_preprocessing.py, except for what a rank reads. A folder of
records, such as `train/`, has its manifest beside it, `train.manifest.json`, which imagenet_to_gcs.py and
`caffe-recipes data tfrecords` write. The names of the files come from there, never from a listing.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import tensorflow.compat.v1 as tf

# Of RGB values from 0 to 1.
MEAN_RGB = (0.485, 0.456, 0.406)
STDDEV_RGB = (0.229, 0.224, 0.225)
# The part of the shorter side that evaluation looks at.
CENTER_CROP = 224 / 256
MAKE_RECORDS = "make the records with imagenet_to_gcs.py"
CYCLE_LENGTH = 64
SHUFFLE_BUFFER = 1024


class BadInput(Exception):
    """Something that the user gave cannot be trained with; the text is the whole message."""


@dataclass(frozen=True)
class RecordFiles:
    """The files of a folder of TFRecords, and how many records each holds."""

    paths: Sequence[str]
    counts: Sequence[int]

    @property
    def records(self) -> int:
        """Count the records of all files."""
        return sum(self.counts)


@dataclass(frozen=True)
class Share:
    """What one of `ranks` ranks reads of each epoch: `batch` images a step over all ranks.

    Every record belongs to exactly one rank in an epoch. An epoch has `steps`, the images that fill whole
    batches; the rest, other ones in each epoch, are left out.
    """

    files: RecordFiles
    batch: int
    rank: int
    ranks: int
    seed: int
    is_deterministic: bool

    @property
    def local_batch(self) -> int:
        """Return the images of a step on one rank."""
        return self.batch // self.ranks

    @property
    def steps(self) -> int:
        """Return the steps of an epoch."""
        return self.files.records // self.batch

    @property
    def is_by_file(self) -> bool:
        """Whether a rank reads whole files: only where any deal of them has enough records for each rank."""
        each, rest = divmod(len(self.files.paths), self.ranks)
        fewest = sum(sorted(self.files.counts)[:each])
        return not self.is_deterministic and rest == 0 and fewest >= self.steps * self.local_batch

    def deal(self, epoch: int) -> list[str]:
        """Return the files that this rank reads in an epoch, in its order; all of them if not by file.

        The order is the same on all ranks, from the seed and the epoch.
        """
        order = random.Random(f"{self.seed} {epoch}")
        files = sorted(self.files.paths, key=lambda path: order.random())
        return files[self.rank :: self.ranks] if self.is_by_file else files


def load_files(data_dir: str, images: int) -> RecordFiles:
    """Read the manifest beside a folder of `images` TFRecords; raises BadInput unless all files are whole."""
    folder = Path(data_dir).absolute()
    path = folder.with_name(f"{folder.name}.manifest.json")
    try:
        manifest = json.loads(path.read_bytes())
        records, shards, prefix = int(manifest["records"]), int(manifest["shards"]), str(manifest["prefix"])
        sizes = [int(size) for size in manifest["sizes_bytes"]]
    except OSError as error:
        raise BadInput(f"{path}: cannot be read: {error.strerror}; {MAKE_RECORDS}") from None
    except (ValueError, TypeError, KeyError):
        raise BadInput(f"{path}: not a manifest of TFRecords; {MAKE_RECORDS}") from None
    if records != images:
        raise BadInput(f"{folder}: {records:,} records, not the {images:,} images of the flags")
    paths = [folder / f"{prefix}-{shard:05d}-of-{shards:05d}" for shard in range(shards)]
    for file, size in zip(paths, sizes, strict=True):
        found = file.stat().st_size if file.is_file() else None
        if found != size:
            what = "missing" if found is None else f"{found:,} bytes, not {size:,}"
            raise BadInput(f"{file}: {what}; copy the records again")
    ends = [shard * records // shards for shard in range(shards + 1)]
    counts = [end - start for start, end in pairwise(ends)]
    return RecordFiles([str(file) for file in paths], counts)


def train_records(share: Share, first_step: int, train_steps: int) -> tf.data.Dataset:
    """Return this rank's serialized examples from a global step on, each epoch those of its own deal."""
    first_epoch, done = divmod(first_step, share.steps)
    epochs = range(first_epoch, -(-train_steps // share.steps))
    deals = tf.data.Dataset.from_tensor_slices([share.deal(epoch) for epoch in epochs])
    starts = tf.data.Dataset.from_tensor_slices([done if epoch == first_epoch else 0 for epoch in epochs])
    read = _read_files if share.is_by_file else _read_records
    return tf.data.Dataset.zip((deals, starts)).flat_map(
        lambda files, start: read(share, files, tf.cast(start, tf.int64))
    )


def _read_files(share: Share, files: tf.Tensor, start: tf.Tensor) -> tf.data.Dataset:
    """Read whole files, many at a time, in whatever order their records come."""
    records = tf.data.Dataset.from_tensor_slices(files).interleave(
        tf.data.TFRecordDataset,
        cycle_length=min(CYCLE_LENGTH, len(share.files.paths) // share.ranks),
        num_parallel_calls=tf.data.AUTOTUNE,
        deterministic=False,
    )
    mine = records.shuffle(SHUFFLE_BUFFER).take(share.steps * share.local_batch)
    return mine.skip(start * share.local_batch)


def _read_records(share: Share, files: tf.Tensor, start: tf.Tensor) -> tf.data.Dataset:
    """Read all files one after the other, and keep this rank's part of each batch.

    Step k sees the same images whatever the number of ranks.
    """
    in_order = tf.data.TFRecordDataset(files).take(share.steps * share.batch).enumerate()
    mine = in_order.skip(start * share.batch).filter(
        lambda number, record: tf.equal(number % share.batch // share.local_batch, share.rank)
    )
    records = mine.map(lambda number, record: record)
    return records if share.is_deterministic else records.shuffle(SHUFFLE_BUFFER)


def train_input(
    share: Share, first_step: int, train_steps: int, image_size: int, classes: int
) -> tf.data.Dataset:
    """Return this rank's batches: images (local batch, size, size, 3) and labels from 0 (local batch)."""
    records = train_records(share, first_step, train_steps)
    is_distorted = not share.is_deterministic
    examples = records.map(
        lambda record: parse_record(record, image_size, classes, is_distorted=is_distorted),
        num_parallel_calls=tf.data.AUTOTUNE,
        deterministic=share.is_deterministic,
    )
    return examples.batch(share.local_batch, drop_remainder=True).prefetch(2)


def evaluation_input(files: RecordFiles, batch: int, image_size: int, classes: int) -> tf.data.Dataset:
    """Return all images once, in their order; the last batch may be smaller."""
    examples = tf.data.TFRecordDataset(list(files.paths)).map(
        lambda record: parse_record(record, image_size, classes, is_distorted=False),
        num_parallel_calls=tf.data.AUTOTUNE,
    )
    return examples.batch(batch).prefetch(2)


def parse_record(
    record: tf.Tensor, image_size: int, classes: int, *, is_distorted: bool
) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the normalized image (size, size, 3) and the label from 0 of a serialized example."""
    features = tf.io.parse_single_example(
        record,
        {
            "image/encoded": tf.io.FixedLenFeature([], tf.string),
            "image/class/label": tf.io.FixedLenFeature([], tf.int64),
        },
    )
    # Records count classes from 1; 0 would be a background class.
    label = tf.cast(features["image/class/label"], tf.int32) - 1
    in_range = tf.logical_and(label >= 0, label < classes)
    with tf.control_dependencies([tf.debugging.Assert(in_range, ["label out of range:", label + 1])]):
        label = tf.identity(label)
    jpeg = features["image/encoded"]
    crop = _random_crop(jpeg) if is_distorted else _center_crop(jpeg)
    pixels = tf.image.decode_and_crop_jpeg(jpeg, crop, channels=3)
    image = tf.image.convert_image_dtype(pixels, tf.float32)
    image = tf.image.resize_bicubic([image], [image_size, image_size])[0]
    image = (image - tf.constant(MEAN_RGB)) / tf.constant(STDDEV_RGB)
    if is_distorted:
        image = tf.image.random_flip_left_right(image)
    return tf.reshape(image, [image_size, image_size, 3]), label


def _center_crop(jpeg: tf.Tensor) -> tf.Tensor:
    """Return (top, left, height, width) of the square in the middle."""
    shape = tf.image.extract_jpeg_shape(jpeg)
    side = tf.cast(CENTER_CROP * tf.cast(tf.minimum(shape[0], shape[1]), tf.float32), tf.int32)
    return tf.stack([(shape[0] - side + 1) // 2, (shape[1] - side + 1) // 2, side, side])


def _random_crop(jpeg: tf.Tensor) -> tf.Tensor:
    """Return (top, left, height, width) of 8 to 100 % of the area; the middle if ten attempts find none."""
    shape = tf.image.extract_jpeg_shape(jpeg)
    begin, size, _ = tf.image.sample_distorted_bounding_box(
        shape,
        bounding_boxes=tf.constant([[[0.0, 0.0, 1.0, 1.0]]]),
        min_object_covered=0.1,
        aspect_ratio_range=(3 / 4, 4 / 3),
        area_range=(0.08, 1.0),
        max_attempts=10,
        use_image_if_no_bounding_boxes=True,
    )
    crop = tf.concat([begin[:2], size[:2]], axis=0)
    is_whole = tf.reduce_all(tf.equal(size[:2], shape[:2]))
    return tf.cond(is_whole, lambda: _center_crop(jpeg), lambda: crop)
