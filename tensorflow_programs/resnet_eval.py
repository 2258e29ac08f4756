"""Measure the top-1 and top-5 accuracy of the latest checkpoint of resnet_main.py, in one process.

    OMP_NUM_THREADS=46 python resnet_eval.py --eval_batch_size 200 --num_intra_threads 46 \
        --num_inter_threads 2 --data_dir=RECORDS/validation --model_dir=MODELS/name --use_tpu=False \
        --kmp_blocktime 1

All images count, including those of a last, smaller batch. `caffe-recipes tf log` reads the output.
"""

from __future__ import annotations

import tensorflow.compat.v1 as tf
from absl import flags

from imagenet_input import evaluation_input
from record_files import BadInput, load_files
from resnet_main import find_checkpoint, record_labels, resnet_model_fn, run, session_config, set_threads

FLAGS = flags.FLAGS
flags.DEFINE_integer("num_eval_images", 50000, "Number of images in data_dir.", lower_bound=1)


def evaluate() -> None:
    """Log the accuracies in the last two lines. Raises BadInput if there is no checkpoint."""
    set_threads()
    if FLAGS.use_tpu:
        raise BadInput("this program does not support TPUs; give --use_tpu=False")
    if find_checkpoint(FLAGS.model_dir) is None:
        raise BadInput(f"{FLAGS.model_dir}: no checkpoint found; give the --model_dir of resnet_main.py")
    files = load_files(FLAGS.data_dir, FLAGS.num_eval_images, FLAGS.num_label_classes)
    config = tf.estimator.RunConfig(model_dir=FLAGS.model_dir, session_config=session_config())
    classifier = tf.estimator.Estimator(resnet_model_fn, config=config)
    results = classifier.evaluate(
        lambda: evaluation_input(files, FLAGS.eval_batch_size, FLAGS.image_size, record_labels()),
        steps=-(-files.records // FLAGS.eval_batch_size),
    )
    tf.logging.info("Eval results: %s", results)


if __name__ == "__main__":
    run("resnet_eval.py", evaluate)
