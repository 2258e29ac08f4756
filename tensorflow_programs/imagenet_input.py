"""Read a rank's share of ImageNet's TFRecords, and preprocess the images.

This follows tensorflow/tpu's imagenet_input.py and resnet_preprocessing.py, except for which records a rank
reads, which record_files.py decides.
"""

from __future__ import annotations

import tensorflow.compat.v1 as tf

from record_files import RecordFiles, Share

# For RGB values from 0 to 1.
MEAN_RGB = (0.485, 0.456, 0.406)
STDDEV_RGB = (0.229, 0.224, 0.225)
# The side of the crop used in evaluation, as a fraction of the shorter side.
CENTER_CROP = 224 / 256
CYCLE_LENGTH = 64
SHUFFLE_BUFFER = 1024


def train_records(share: Share, first_step: int, train_steps: int) -> tf.data.Dataset:
    """Return this rank's serialized examples from a global step on; its files are dealt anew each epoch.

    Their order follows from the seed, the epoch and the rank, so a resumed run reads those that are left.
    """
    first_epoch, done = divmod(first_step, share.steps)
    epochs = range(first_epoch, -(-train_steps // share.steps))
    deals = tf.data.Dataset.from_tensor_slices([share.deal(epoch) for epoch in epochs])
    starts = tf.data.Dataset.from_tensor_slices([done if epoch == first_epoch else 0 for epoch in epochs])
    numbers = tf.data.Dataset.from_tensor_slices(tf.constant(list(epochs), tf.int64))
    read = _read_files if share.is_by_file else _read_records

    def read_epoch(files: tf.Tensor, start: tf.Tensor, epoch: tf.Tensor) -> tf.data.Dataset:
        records = read(share, files)
        if not share.is_deterministic:
            seed = epoch * share.ranks + share.rank + (share.seed << 32)
            records = records.shuffle(SHUFFLE_BUFFER, seed, reshuffle_each_iteration=False)
        mine = records.take(share.steps * share.local_batch)
        return mine.skip(tf.cast(start, tf.int64) * share.local_batch)

    return tf.data.Dataset.zip((deals, starts, numbers)).flat_map(read_epoch)


def _read_files(share: Share, files: tf.Tensor) -> tf.data.Dataset:
    """Read whole files, many at a time."""
    return tf.data.Dataset.from_tensor_slices(files).interleave(
        tf.data.TFRecordDataset,
        cycle_length=min(CYCLE_LENGTH, len(share.group_files.paths) // share.group_ranks),
        num_parallel_calls=tf.data.AUTOTUNE,
        deterministic=True,
    )


def _read_records(share: Share, files: tf.Tensor) -> tf.data.Dataset:
    """Read all files of the group one after another, and keep this rank's part of the group's batches.

    In a single group, step k gets the same images regardless of the number of ranks.
    """
    batch = share.group_batch
    in_order = tf.data.TFRecordDataset(files).take(share.steps * batch).enumerate()
    mine = in_order.filter(
        lambda number, record: tf.equal(number % batch // share.local_batch, share.group_rank)
    )
    return mine.map(lambda number, record: record)


def train_input(
    share: Share, first_step: int, train_steps: int, image_size: int, labels: range
) -> tf.data.Dataset:
    """Return this rank's batches: images (local batch, size, size, 3) and labels (local batch) from 0."""
    records = train_records(share, first_step, train_steps)
    is_distorted = not share.is_deterministic
    examples = records.map(
        lambda record: parse_record(record, image_size, labels, is_distorted=is_distorted),
        num_parallel_calls=tf.data.AUTOTUNE,
        deterministic=True,  # else a resumed run would miss some images, and read others twice
    )
    return examples.batch(share.local_batch, drop_remainder=True).prefetch(2)


def evaluation_input(files: RecordFiles, batch: int, image_size: int, labels: range) -> tf.data.Dataset:
    """Return batches of all images once, in order; the last batch may be smaller."""
    examples = tf.data.TFRecordDataset(list(files.paths)).map(
        lambda record: parse_record(record, image_size, labels, is_distorted=False),
        num_parallel_calls=tf.data.AUTOTUNE,
    )
    return examples.batch(batch).prefetch(2)


def parse_record(
    record: tf.Tensor, image_size: int, labels: range, *, is_distorted: bool
) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the normalized image (size, size, 3) and the label, counted from 0, of a serialized example.

    `labels` is the range of labels in the records.
    """
    features = tf.io.parse_single_example(
        record,
        {
            "image/encoded": tf.io.FixedLenFeature([], tf.string),
            "image/class/label": tf.io.FixedLenFeature([], tf.int64),
        },
    )
    label = tf.cast(features["image/class/label"], tf.int32)
    in_range = tf.logical_and(label >= labels.start, label < labels.stop)
    wanted = f"is not from {labels[0]} to {labels[-1]}; check --label_offset and --num_label_classes"
    with tf.control_dependencies([tf.debugging.Assert(in_range, ["label out of range:", label, wanted])]):
        label -= labels.start
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
    """Return (top, left, height, width) of the central square."""
    shape = tf.image.extract_jpeg_shape(jpeg)
    side = tf.cast(CENTER_CROP * tf.cast(tf.minimum(shape[0], shape[1]), tf.float32), tf.int32)
    return tf.stack([(shape[0] - side + 1) // 2, (shape[1] - side + 1) // 2, side, side])


def _random_crop(jpeg: tf.Tensor) -> tf.Tensor:
    """Return (top, left, height, width) of a crop of 8 to 100% of the area; central if ten attempts fail."""
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
