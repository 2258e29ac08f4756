"""The model is tensorflow/tpu's ResNet-50 of April 2018, as TensorFlow 1.6 starts it."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tests.tensorflow_programs.launch import ask

pytestmark = pytest.mark.tensorflow

FRESH = """
import json
import tensorflow.compat.v1 as tf
from resnet_model import build_logits

tf.disable_eager_execution()
tf.set_random_seed(1)
build_logits(tf.zeros([2, 224, 224, 3]), 50, 1000, is_training=True)
trained = {one.name for one in tf.trainable_variables()}
found = {}
with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    variables = tf.global_variables()
    for one, value in zip(variables, session.run(variables)):
        found[one.name] = {
            "shape": value.shape, "std": float(value.std()), "largest": float(abs(value).max()),
            "is_trained": one.name in trained,
        }
print(json.dumps({"variables": found, "updates": len(tf.get_collection(tf.GraphKeys.UPDATE_OPS))}))
"""


@pytest.fixture(scope="module")
def fresh() -> dict[str, Any]:
    found: dict[str, Any] = ask(FRESH)
    return found


def test_resnet_50_has_the_variables_of_its_53_convolutions(fresh: dict[str, Any]) -> None:
    variables = fresh["variables"]
    numbers = ["", *(f"_{number}" for number in range(1, 53))]
    parts = ("gamma", "beta", "moving_mean", "moving_variance")
    norms = {f"batch_normalization{number}/{part}:0" for number in numbers for part in parts}
    convolutions = {f"conv2d{number}/kernel:0" for number in numbers}
    assert set(variables) == norms | convolutions | {"dense/kernel:0", "dense/bias:0"}
    trained = [math.prod(one["shape"]) for one in variables.values() if one["is_trained"]]
    assert len(trained) == 161
    assert sum(trained) == 25_557_032
    assert fresh["updates"] == 106


def test_fresh_weights_are_a_normal_cut_off_at_two_standard_deviations(fresh: dict[str, Any]) -> None:
    # What is left of a standard deviation of 1 when the normal ends at 2: TensorFlow 1.6 does not widen it.
    left = 0.87962566
    for name, one in fresh["variables"].items():
        if name.startswith("conv2d"):
            sigma = 1 / math.sqrt(math.prod(one["shape"][:3]))
            assert one["std"] == pytest.approx(left * sigma, rel=0.05), name
            assert one["largest"] <= 2 * sigma * 1.000001, name
    assert fresh["variables"]["dense/kernel:0"]["std"] == pytest.approx(0.01, rel=0.01)
    assert fresh["variables"]["dense/bias:0"]["largest"] == 0


def test_the_last_normalization_of_each_of_the_16_blocks_starts_at_zero(fresh: dict[str, Any]) -> None:
    gammas = {name: one for name, one in fresh["variables"].items() if name.endswith("gamma:0")}
    zeros = [name for name, one in gammas.items() if one["largest"] == 0]
    assert len(zeros) == 16
    assert all(one["largest"] == 1 for name, one in gammas.items() if name not in zeros)
    assert {tuple(gammas[name]["shape"]) for name in zeros} == {(256,), (512,), (1024,), (2048,)}


# What a step of 14 layers updates, and by what.
STEP = """
import json, sys
import tensorflow.compat.v1 as tf
sys.argv = ["resnet_main.py", "--data_dir=.", "--model_dir=nowhere"]
sys.argv += ["--resnet_depth=14", "--num_label_classes=10", "--image_size=32"]
import resnet_main

resnet_main.FLAGS(sys.argv)
resnet_main.hvd.init()
tf.disable_eager_execution()
tf.train.get_or_create_global_step()
images, labels = tf.random.normal([8, 32, 32, 3]), tf.range(8)
loss = resnet_main.resnet_model_fn(images, labels, tf.estimator.ModeKeys.TRAIN).loss
graph = tf.get_default_graph()

def operations(kind):
    return [one for one in graph.get_operations() if one.type.endswith(kind)]

updates = operations("ApplyMomentum")
norms = operations("FusedBatchNormV3")
squares = operations("L2Loss")
decay = loss - tf.add_n(tf.get_collection(tf.GraphKeys.LOSSES)), tf.add_n([one.outputs[0] for one in squares])
moving = next(one for one in tf.global_variables() if one.op.name == "batch_normalization/moving_mean")
with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    (added, squared), mean, _ = session.run(
        [decay, norms[0].outputs[1], tf.get_collection(tf.GraphKeys.UPDATE_OPS)]
    )
    moved = (session.run(moving) / mean).tolist()
    print(json.dumps({
        "momentum": [float(session.run(one.inputs[4])) for one in updates],
        "nesterov": [one.get_attr("use_nesterov") for one in updates],
        "trained": [one.op.name for one in tf.trainable_variables()],
        "decayed": [one.inputs[0].op.inputs[0].op.name for one in squares],
        "weight_decay": float(added / squared),
        "epsilons": [one.get_attr("epsilon") for one in norms],
        "moved": moved,
    }))
"""


@pytest.fixture(scope="module")
def step() -> dict[str, Any]:
    found: dict[str, Any] = ask(STEP)
    return found


def test_every_variable_has_a_momentum_of_0_9_by_nesterov(step: dict[str, Any]) -> None:
    assert step["momentum"] == pytest.approx([0.9] * len(step["trained"]))
    assert step["nesterov"] == [True] * len(step["trained"])


def test_weight_decay_is_5e_5_on_all_but_the_scales_and_shifts(step: dict[str, Any]) -> None:
    kernels = [f"conv2d{number}/kernel" for number in ("", *(f"_{number}" for number in range(1, 17)))]
    assert sorted(step["decayed"]) == sorted([*kernels, "dense/kernel", "dense/bias"])
    left_out = {name.partition("/")[0].rstrip("_0123456789") for name in step["trained"]} - {
        "conv2d",
        "dense",
    }
    assert left_out == {"batch_normalization"}
    assert step["weight_decay"] == pytest.approx(5e-5, rel=1e-4)


def test_normalization_has_an_epsilon_of_1e_5_and_keeps_95_percent_of_its_averages(
    step: dict[str, Any],
) -> None:
    assert step["epsilons"] == pytest.approx([1e-5] * 17)
    assert step["moved"] == pytest.approx([0.05] * 16, rel=1e-4)
