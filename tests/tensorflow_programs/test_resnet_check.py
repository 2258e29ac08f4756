"""A checkpoint is read back: its step, its variables and its values, and what is wrong is named."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.tensorflow_programs.launch import (
    PROGRAMS,
    PYTHON,
    RATES,
    SMALL,
    ask,
    environment,
    fork,
    refuse,
    run,
)

pytestmark = pytest.mark.tensorflow

# Checkpoints of step 20: a sound one, one with a value that is infinite, and one without a variable.
SAVE = """
import sys
import tensorflow.compat.v1 as tf
from resnet_model import build_logits

tf.disable_eager_execution()
step = tf.train.get_or_create_global_step()
build_logits(tf.zeros([1, 32, 32, 3]), 14, 10, is_training=False)
variables = {one.op.name: one for one in tf.global_variables()}
with tf.Session() as session:
    def save(name, saved):
        tf.train.Saver(saved).save(session, f"{sys.argv[1]}/{name}", write_meta_graph=False)

    session.run([tf.global_variables_initializer(), step.initializer])
    session.run(step.assign(20))
    save("model", variables)
    bias = variables["dense/bias"]
    session.run(bias.assign([0.0] * 9 + [float("inf")]))
    save("infinite", variables)
    del variables["dense/bias"]
    save("fewer", variables)
print(len(variables))
"""


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved")
    ask(SAVE, folder)
    return folder


def check_command(checkpoint: Path, *more: str) -> list[str]:
    """Return the argv that reads a checkpoint of step 20 back."""
    folders = ("--data_dir=.", "--model_dir=.", f"--checkpoint={checkpoint}", "--train_steps=20")
    return [str(PYTHON), str(PROGRAMS / "resnet_check.py"), *SMALL, *folders, *more]


def test_a_sound_checkpoint_is_read_back(saved: Path) -> None:
    done = run(check_command(saved / "model"), environment(RATES))
    assert done.returncode == 0, done.stdout
    assert f"Read back {saved}/model: global step 20, " in done.stdout
    assert ", all finite." in done.stdout


@pytest.mark.parametrize(
    ("name", "option", "message"),
    [
        ("model", "--train_steps=21", "global step is 20, not 21"),
        (
            "model",
            "--num_label_classes=11",
            "dense/kernel has shape [512, 10], but the model needs shape [512, 11]",
        ),
        ("fewer", "", "dense/bias is missing, but the model needs shape [10]"),
        ("infinite", "", "dense/bias has 1 of 10 values that are not finite"),
        ("nowhere", "", "cannot be read: "),
    ],
)
def test_a_checkpoint_that_is_not_the_finished_model_is_refused(
    saved: Path, name: str, option: str, message: str
) -> None:
    line = refuse(fork(check_command(saved / name, *option.split())), environment(RATES))
    assert line.startswith(f"resnet_check.py: {saved / name}: {message}")


@pytest.mark.parametrize(
    ("part", "is_filled", "message"),
    [
        ("index", False, "cannot be read: "),
        ("data-00000-of-00001", False, "cannot be read: "),
        # As long as it will be, with the values of the middle still to be written.
        ("data-00000-of-00001", True, r"conv2d_\d+/kernel cannot be read: "),
    ],
)
def test_a_checkpoint_that_is_half_written_is_refused(
    saved: Path, tmp_path: Path, part: str, is_filled: bool, message: str
) -> None:
    for file in saved.glob("model.*"):
        data = file.read_bytes()
        if file.name == f"model.{part}":
            size = len(data)
            data = data[: size // 2] + (bytes(size // 4) + data[size // 2 + size // 4 :]) * is_filled
        (tmp_path / file.name).write_bytes(data)
    line = refuse(fork(check_command(tmp_path / "model")), environment(RATES))
    assert re.match(f"resnet_check.py: {tmp_path}/model: {message}", line)
