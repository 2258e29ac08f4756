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
    for one in tf.global_variables():
        value = session.run(one)
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
