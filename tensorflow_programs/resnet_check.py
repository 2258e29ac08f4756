"""Verify a checkpoint of resnet_main.py: its global step, names and shapes, and that all values are finite.

    python resnet_check.py --checkpoint=MODELS/name/model.ckpt-4680 --train_steps 4680 \
        --data_dir=. --model_dir=. --use_tpu=False
"""

from __future__ import annotations

import numpy as np
import tensorflow.compat.v1 as tf
from absl import flags

from record_files import BadInput
from resnet_main import UNREADABLE, check_checkpoint, first_line, load_step, run
from resnet_model import build_logits

FLAGS = flags.FLAGS
flags.DEFINE_string(
    "checkpoint", None, "Path of the checkpoint, such as MODELS/name/model.ckpt-4680.", required=True
)


def check() -> None:
    """Log one line if the checkpoint fits the model and is of step --train_steps, else raise BadInput."""
    path = FLAGS.checkpoint
    step = load_step(path)
    if step != FLAGS.train_steps:
        raise BadInput(f"{path}: global step is {step:,}, not {FLAGS.train_steps:,}")
    with tf.Graph().as_default():
        tf.train.get_or_create_global_step()
        images = tf.placeholder(tf.float32, [1, FLAGS.image_size, FLAGS.image_size, 3])
        build_logits(images, int(FLAGS.resnet_depth), FLAGS.num_label_classes, is_training=False)
        check_checkpoint(path)
    reader = tf.train.load_checkpoint(path)
    names = sorted(reader.get_variable_to_shape_map())
    for name in names:
        try:
            values = np.asarray(reader.get_tensor(name))
        except UNREADABLE as error:
            raise BadInput(f"{path}: {name} cannot be read: {first_line(error)}") from None
        bad = int(np.sum(~np.isfinite(values)))
        if bad:
            raise BadInput(f"{path}: {name} has {bad:,} of {values.size:,} values that are not finite")
    tf.logging.info("Read back %s: global step %d, %d variables, all finite.", path, step, len(names))


if __name__ == "__main__":
    run("resnet_check.py", check)
