"""Train ResNet-50 on ImageNet with TensorFlow and Horovod; mpirun starts one process per rank.

    mpirun -np 512 -ppn 2 python resnet_main.py --train_batch_size 24576 --train_steps 4680 \
        --num_intra_threads 22 --num_inter_threads 2 --data_dir=RECORDS/train --model_dir MODELS/name \
        --use_tpu=False --kmp_blocktime 1

SURFsara's and Intel's changes to tensorflow/tpu's models/official/resnet/resnet_main.py of April 2018 are
marked with the numbers that their README gives them, 2 c i to xvi. This program needs Python 3.11,
TensorFlow 2.12 and Horovod with MPI. The exit status is 2 for bad input, and 3 for a failed run.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
import tempfile
import warnings
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from types import ModuleType
from typing import NoReturn

import tensorflow.compat.v1 as tf
from absl import app, flags
from tensorflow.config.experimental import enable_op_determinism

from imagenet_input import train_input
from record_files import BadInput, Share, load_files
from resnet_model import SIZES, build_logits

try:
    import horovod.tensorflow as hvd  # 2 c i
except ImportError as error:
    print(f"resnet_main.py: {error}; build Horovod for {sys.executable} and this MPI", file=sys.stderr)
    sys.exit(2)

FLAGS = flags.FLAGS

flags.DEFINE_bool("use_tpu", True, "TPUs are not supported: give --use_tpu=False.")
flags.DEFINE_string("data_dir", None, "Folder of TFRecords, with its manifest beside it.", required=True)
flags.DEFINE_string("model_dir", None, "Folder for checkpoints and summaries.", required=True)
flags.DEFINE_enum(
    "resnet_depth", "50", [str(depth) for depth in SIZES], "Number of layers; 14 is for small images."
)
flags.DEFINE_integer("train_steps", 4680, "Total steps, including those before a resume.", lower_bound=1)
flags.DEFINE_integer("train_batch_size", 24576, "Images per step over all ranks.", lower_bound=1)
flags.DEFINE_integer("num_train_images", 1281167, "Number of images in data_dir.", lower_bound=1)
flags.DEFINE_integer("num_label_classes", 1000, "Number of classes.", lower_bound=2)
# imagenet_to_gcs.py counts classes from 1; 0 would be a background class.
flags.DEFINE_integer("label_offset", 1, "Label of the first class in the records.", lower_bound=0)
flags.DEFINE_integer("image_size", 224, "Height and width of the model's input, in pixels.", lower_bound=1)
flags.DEFINE_integer(
    "save_checkpoints_steps", None, "Steps between checkpoints [default: 600 s].", lower_bound=1
)
flags.DEFINE_integer("log_step_count_steps", 10, "Steps between log lines.", lower_bound=1)
flags.DEFINE_integer("seed", 1, "Seed of the initial weights, the order of the images, and their crops.")
flags.DEFINE_integer(
    "file_groups", 1, "Number of nodes, if each should read only its own files.", lower_bound=1
)
flags.DEFINE_bool("deterministic", False, "Same images for any number of ranks, without random crops.")
flags.DEFINE_bool("frozen_batch_norm", False, "Normalize with the moving averages, and do not update them.")
# 2 c ii: settings of MKL and OpenMP. OMP_NUM_THREADS in the environment takes precedence.
flags.DEFINE_integer("num_intra_threads", 0, "Threads per operation [default: one per core].")
flags.DEFINE_integer("num_inter_threads", 0, "Parallel operations [default: one per core].")
flags.DEFINE_integer("kmp_blocktime", 0, "Milliseconds that an OpenMP thread spins before it sleeps.")
flags.DEFINE_string("kmp_affinity", "granularity=fine,compact,1,0", "Pinning of OpenMP threads to cores.")
# 2 c iii: less than the 1024 of tensorflow/tpu.
flags.DEFINE_integer("eval_batch_size", 200, "Images per batch of resnet_eval.py.", lower_bound=1)
# 2 c iv: steps_per_eval is not needed: the model is evaluated only at the end, by resnet_eval.py.

MOMENTUM = 0.9
WEIGHT_DECAY = 5e-5  # 2 c v; tensorflow/tpu has 1e-4

# The variables in which launchers pass the number of ranks.
WORLD_SIZES = ("PMI_SIZE", "PMIX_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE")

# What TensorFlow raises for a checkpoint that is damaged or missing.
UNREADABLE = (tf.errors.OpError, IndexError, RuntimeError, ValueError)


def resnet_model_fn(features: tf.Tensor, labels: tf.Tensor, mode: str) -> tf.estimator.EstimatorSpec:
    """Build the graph for training or evaluation on images (batch, size, size, 3) and labels (batch)."""
    is_training = mode == tf.estimator.ModeKeys.TRAIN
    logits = build_logits(
        features,
        int(FLAGS.resnet_depth),
        FLAGS.num_label_classes,
        is_training=is_training and not FLAGS.frozen_batch_norm,
    )
    cross_entropy = tf.losses.softmax_cross_entropy(tf.one_hot(labels, FLAGS.num_label_classes), logits)
    # Weight decay applies to everything except the scales and shifts of batch normalization, so also to the
    # classifier's bias.
    decayed = [one for one in tf.trainable_variables() if "batch_normalization" not in one.name]
    loss = cross_entropy + WEIGHT_DECAY * tf.add_n([tf.nn.l2_loss(variable) for variable in decayed])
    if is_training:
        spec = _training_spec(mode, loss)
        if is_first():
            check_checkpoint(find_checkpoint(FLAGS.model_dir))
        return spec
    check_checkpoint(find_checkpoint(FLAGS.model_dir))
    # The estimator averages the losses of the batches: weigh each by its images, since the last may be short.
    batches = -(-FLAGS.num_eval_images // FLAGS.eval_batch_size)
    loss *= tf.cast(tf.shape(labels)[0], tf.float32) * batches / FLAGS.num_eval_images
    top_5 = tf.cast(tf.nn.in_top_k(logits, labels, 5), tf.float32)
    metrics = {
        "Top-1 accuracy": tf.metrics.accuracy(labels, tf.argmax(logits, axis=1)),
        "Top-5 accuracy": tf.metrics.mean(top_5),
    }
    return tf.estimator.EstimatorSpec(mode, loss=loss, eval_metric_ops=metrics)


def _training_spec(mode: str, loss: tf.Tensor) -> tf.estimator.EstimatorSpec:
    global_step = tf.train.get_global_step()
    learning_rate = build_learning_rate(global_step)
    optimizer = tf.train.MomentumOptimizer(learning_rate, MOMENTUM, use_nesterov=True)
    optimizer = hvd.DistributedOptimizer(optimizer)  # 2 c viii
    mean_loss = hvd.allreduce(loss, name="mean_loss")
    # Read the step and the rate before this update.
    step = tf.cast(global_step, tf.int64) + 0
    with tf.control_dependencies([*tf.get_collection(tf.GraphKeys.UPDATE_OPS), mean_loss, step]):
        train_op = optimizer.minimize(loss, global_step)
    if is_first():  # 2 c ix
        tf.summary.scalar("learning_rate", learning_rate)
    progress = tf.train.LoggingTensorHook(
        {"step": step, "loss": mean_loss, "learning_rate": learning_rate},
        every_n_iter=FLAGS.log_step_count_steps,
        formatter=_progress_line,
    )
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op, training_hooks=[progress])


def build_learning_rate(global_step: tf.Tensor) -> tf.Tensor:
    """Return the learning rate at a global step, counted from 0, from the recipe's tf_rates.py."""
    rates = load_rates()
    return rates.gradual_warmup_then_dec(  # 2 c vii
        rates.LEARNING_RATE,
        rates.WARMUP_STEPS,
        rates.END_LEARNING_RATE,
        global_step,
        FLAGS.train_steps,
        name="gradual_warmup_then_dec",
    )


def _progress_line(values: Mapping[str, float]) -> str:
    """Return the log line of a step, counted from 0: the mean loss of all ranks before it, and its rate."""
    loss, rate = values["loss"], values["learning_rate"]
    return f"step {values['step']}: loss = {loss:.9g}, learning_rate = {rate:.9g}"


def load_rates() -> ModuleType:
    """Import the recipe's generated tf_rates.py. Raises BadInput if it is not found."""
    try:
        # 2 c vi: the function gradual_warmup_then_dec, which can be changed to explore other schedules.
        return importlib.import_module("tf_rates")
    except ImportError:
        message = "tf_rates.py not found; add the folder of the recipe's tf_train.sh to PYTHONPATH"
        raise BadInput(message) from None


def check_flags() -> Share:
    """Return this rank's share of the data. Raises BadInput for any setting that would make training fail."""
    if FLAGS.use_tpu:
        raise BadInput("this program does not support TPUs; give --use_tpu=False")
    if not hvd.mpi_built():
        raise BadInput("Horovod was built without MPI; build it with HOROVOD_WITH_MPI=1")
    launched = max(int(os.environ.get(name, 1)) for name in WORLD_SIZES)
    if launched != hvd.size():
        what = f"the launcher started {launched} ranks, but Horovod sees {hvd.size()}"
        raise BadInput(f"{what}; build Horovod for the MPI of this mpirun")
    rates = load_rates()
    if FLAGS.train_steps <= rates.WARMUP_STEPS:
        raise BadInput(
            f"--train_steps {FLAGS.train_steps} must be more than the {rates.WARMUP_STEPS} steps of warm-up"
        )
    batch, images = FLAGS.train_batch_size, FLAGS.num_train_images
    if batch % hvd.size():
        raise BadInput(f"--train_batch_size {batch} is not divisible by {hvd.size()} ranks")
    if batch > images:
        raise BadInput(f"--train_batch_size {batch} exceeds the {images} images")
    made_for = getattr(rates, "BATCH", batch)
    if batch != made_for:
        hint = "`caffe-recipes rescale --batch` makes rates for another"
        raise BadInput(f"--train_batch_size {batch}: the rates of tf_rates.py are for {made_for}; {hint}")
    groups = FLAGS.file_groups
    if groups > 1 and FLAGS.deterministic:
        what = "with groups of files, the images of a step depend on the number of groups"
        raise BadInput(f"--deterministic with --file_groups {groups}: {what}; remove one of these flags")
    if hvd.size() % groups:
        raise BadInput(f"--file_groups {groups} does not divide {hvd.size()} ranks; give the number of nodes")
    group = hvd.rank() // (hvd.size() // groups)
    share = Share(
        load_files(FLAGS.data_dir, images, FLAGS.num_label_classes, groups, group),
        batch=batch,  # 2 c xiv: divided by hvd.size()
        rank=hvd.rank(),  # 2 c xiii, very important: each rank reads different records
        ranks=hvd.size(),
        seed=FLAGS.seed,
        is_deterministic=FLAGS.deterministic,
        groups=groups,
    )
    if share.steps == 0:
        what = f"a group has fewer records than its {share.group_batch} images per step"
        raise BadInput(f"--file_groups {groups}: {what}; give fewer groups")
    return share


def record_labels() -> range:
    """Return the range of labels in the records."""
    return range(FLAGS.label_offset, FLAGS.label_offset + FLAGS.num_label_classes)


def set_threads() -> None:
    """Set the environment variables of OpenMP, in case TensorFlow was built with it."""
    os.environ["KMP_BLOCKTIME"] = str(FLAGS.kmp_blocktime)  # 2 c xi
    os.environ["KMP_SETTINGS"] = "1"
    os.environ["KMP_AFFINITY"] = FLAGS.kmp_affinity
    if FLAGS.num_intra_threads:
        os.environ.setdefault("OMP_NUM_THREADS", str(FLAGS.num_intra_threads))


def session_config() -> tf.ConfigProto:
    """Return the session configuration with the number of threads."""
    return tf.ConfigProto(
        intra_op_parallelism_threads=FLAGS.num_intra_threads,
        inter_op_parallelism_threads=FLAGS.num_inter_threads,
    )


def is_first() -> bool:
    """Return whether this is rank 0, or a process without a launcher."""
    if hvd.is_initialized():
        return bool(hvd.rank() == 0)
    return not any(int(os.environ.get(name.replace("_SIZE", "_RANK"), 0)) for name in WORLD_SIZES)


def train() -> None:
    """Train to --train_steps from the latest checkpoint in --model_dir, if any. Only rank 0 writes there."""
    set_threads()
    hvd.init()  # 2 c x
    tf.get_logger().setLevel("INFO" if is_first() else "ERROR")
    share = _agree_on_share()
    if FLAGS.deterministic:
        enable_op_determinism()
    with nullcontext(FLAGS.model_dir) if is_first() else tempfile.TemporaryDirectory() as model_dir:
        start = _agree_on_start(model_dir)
        if is_first():
            _log_plan(share, start)
        if start >= FLAGS.train_steps:
            return
        config = tf.estimator.RunConfig(
            model_dir=model_dir,  # 2 c xii: checkpoints and summaries on rank 0 only
            save_summary_steps=100 if is_first() else None,
            save_checkpoints_steps=FLAGS.save_checkpoints_steps if is_first() else None,
            save_checkpoints_secs=600 if is_first() and not FLAGS.save_checkpoints_steps else None,
            log_step_count_steps=None,
            # A different seed, so different crops, on each rank. The broadcast replaces the initial weights.
            tf_random_seed=FLAGS.seed + hvd.rank(),
            session_config=session_config(),
        )
        classifier = tf.estimator.Estimator(resnet_model_fn, config=config)
        broadcast = hvd.BroadcastGlobalVariablesHook(0)  # 2 c xv: all ranks start from rank 0's weights
        size, labels = FLAGS.image_size, record_labels()
        classifier.train(
            lambda: train_input(share, start, FLAGS.train_steps, size, labels),
            max_steps=FLAGS.train_steps,
            hooks=[broadcast],  # 2 c xvi
        )
    if is_first():
        tf.logging.info("Finished training up to step %d.", FLAGS.train_steps)


def find_checkpoint(model_dir: str) -> str | None:
    """Return the path of the newest checkpoint, None if there is none. Raises BadInput if it is missing."""
    state = tf.train.get_checkpoint_state(model_dir)
    if state is None:
        return None
    path = str(state.model_checkpoint_path)
    if not tf.train.checkpoint_exists(path):
        raise BadInput(
            f"{model_dir}/checkpoint: {path} is missing; set it to the newest checkpoint that exists"
        )
    return path


def check_checkpoint(path: str | None) -> None:
    """Raise BadInput unless a checkpoint matches this graph; TensorFlow does not compare shapes."""
    saved = dict(tf.train.list_variables(path)) if path else None
    for variable in tf.global_variables():
        name, shape = variable.op.name, variable.shape.as_list()
        if saved is not None and saved.get(name) != shape:
            found = "is missing" if name not in saved else f"has shape {saved[name]}"
            hint = "give the same flags as in training"
            raise BadInput(f"{path}: {name} {found}, but the model needs shape {shape}; {hint}")


def _agree_on_share() -> Share:
    """Return this rank's share of the data.

    Raises BadInput on all ranks if it is raised on one; on the others, the message is empty.
    """
    share, refusal = None, None
    try:
        share = check_flags()
    except BadInput as error:
        refusal = error
    with tf.Graph().as_default(), tf.Session(config=session_config()) as session:
        refused = int(session.run(hvd.allreduce(tf.constant(int(refusal is not None)), op=hvd.Sum)))
    if refused or share is None:
        raise refusal or BadInput("")
    return share


def _agree_on_start(model_dir: str) -> int:
    """Return, on all ranks, the step of rank 0's newest checkpoint; other ranks may not see its folder.

    Raises BadInput.
    """
    refusal = None
    try:
        step = load_step(find_checkpoint(model_dir))
    except BadInput as error:
        refusal, step = error, -1
    with tf.Graph().as_default(), tf.Session(config=session_config()) as session:
        agreed = int(session.run(hvd.broadcast(tf.constant(step, tf.int64), root_rank=0)))
    if agreed < 0:
        raise refusal or BadInput("rank 0 cannot resume")
    return agreed


def load_step(path: str | None) -> int:
    """Return the global step of a checkpoint, 0 if `path` is None. Raises BadInput if it cannot be read."""
    if path is None:
        return 0
    try:
        return int(tf.train.load_variable(path, tf.GraphKeys.GLOBAL_STEP))
    except UNREADABLE as error:
        raise BadInput(f"{path}: cannot be read: {first_line(error)}; resume from an older one") from None


def _log_plan(share: Share, start: int) -> None:
    left_over = share.files.records - share.steps * share.batch
    deal = "whole files" if share.is_by_file else "single records"
    if share.groups > 1:
        deal += f" of {share.groups} groups of files"
    tf.logging.info(
        "Training from step %d to %d: %d ranks with %d images each, dealt %s; an epoch has %d steps and "
        "leaves out %d of %d images.",
        *(start, FLAGS.train_steps, share.ranks, share.local_batch, deal),
        *(share.steps, left_over, share.files.records),
    )


def run(program: str, work: Callable[[], None]) -> None:
    """Parse the flags and call `work`; if it fails, print one line to stderr and exit with 2 or 3."""

    def parse(argv: list[str]) -> list[str]:
        try:
            extra = FLAGS(argv)[1:]
        except flags.Error as error:
            _end(program, "; ".join(str(error).splitlines()), 2)
        if extra:
            _end(program, f"{extra[0]!r} is not a flag", 2)
        return argv

    def main(argv: list[str]) -> None:
        tf.disable_eager_execution()
        _log_once()
        try:
            work()
        except BadInput as error:
            _end(program, str(error), 2, is_local=error.is_local)
        except (tf.errors.OpError, tf.train.NanLossDuringTrainingError) as error:
            _end(program, first_line(error), 3)

    app.run(main, flags_parser=parse)


def _log_once() -> None:
    """Log each line only once, with absl's prefix, and without deprecation warnings."""
    warnings.filterwarnings("ignore", r"`tf\.layers")
    logger = tf.get_logger()
    logger.handlers.clear()
    logger.addFilter(lambda record: record.filename != "deprecation.py")
    logger.setLevel("INFO")


def first_line(error: Exception) -> str:
    """Return the first line of a TensorFlow error, without its location in the graph."""
    text = re.sub(r"(?s)Detected at node.*?\nNode: [^\n]*\n", "", str(error))
    line = text.removeprefix("Graph execution error:").strip().partition("\n")[0]
    # tf.debugging.Assert prints each of its values in brackets.
    return re.sub(r"assertion failed: \[(.*?)\]$", lambda found: found[1].replace("] [", " "), line)


def _is_first_of_node() -> bool:
    """Return whether this rank is the one to report for its node or its group of files."""
    return 0 in (hvd.local_rank(), hvd.rank() % (hvd.size() // FLAGS.file_groups))


def _end(program: str, message: str, status: int, *, is_local: bool = False) -> NoReturn:
    """Print why on rank 0, or where only this node knows; exit without waiting for the other ranks."""
    if message and (status == 3 or is_first() or (is_local and _is_first_of_node())):
        print(f"{program}: {message}", file=sys.stderr, flush=True)
    sys.exit(status)


if __name__ == "__main__":
    run("resnet_main.py", train)
