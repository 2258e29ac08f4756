"""The arithmetic of the TensorFlow run: the source's numbers, from its shape."""

from __future__ import annotations

import json

import pytest

import caffe_recipes as cr
from caffe_recipes.recipe.source import load_any_recipe
from caffe_recipes.review.inspect.show import (
    explain_other_run,
    horovod_arithmetic,
    horovod_lines,
    horovod_values,
    render_recipe,
    shown_values,
)

RECIPE = cr.load_recipe("tf-256n-90ep")


def test_the_source_s_numbers_follow_from_the_run_s_shape() -> None:
    found = horovod_arithmetic(RECIPE)
    assert found
    assert (found.workers, found.batch, found.steps) == (512, 24_576, 4_680)
    assert round(found.steps_per_epoch, 2) == 52.08
    assert round(52.08 * 5) == 260
    assert found.warmup_epochs == pytest.approx(5, rel=0.002)
    assert (round(found.epochs, 1), round(found.epochs_of_all_images, 1)) == (89.9, 89.8)
    assert found.scaled_learning_rate == 9.6
    assert found.end_learning_rate == 4.8
    assert found.minutes and round(found.minutes) == 117


def test_the_reported_speed_is_81_percent_of_linear() -> None:
    found = horovod_arithmetic(RECIPE)
    assert found and found.images_per_s and found.images_per_s_if_linear
    assert found.images_per_s / found.images_per_s_if_linear == pytest.approx(0.81)


def test_show_explains_how_each_number_is_computed() -> None:
    text = "\n".join(render_recipe(RECIPE))
    for line in horovod_lines(RECIPE):
        assert line in text
    for phrase in (
        "1,280,000 / 24,576 = 52.08 steps per epoch",
        "4,680 steps / 52.08 = 89.9 epochs; of all 1,281,167 images 89.8",
        "0.1 x 24,576 / 256 = 9.6, halved to 4.8",
        "16,400 images/s = 117 minutes",
        "81% of linear",
        "that log is from another run, tf-256n-8k-90ep",
    ):
        assert phrase in " ".join(text.split())


def test_the_values_are_json_and_none_for_other_recipes() -> None:
    values = shown_values(RECIPE)["tensorflow"]
    assert values == json.loads(json.dumps(horovod_values(RECIPE)))
    assert shown_values(cr.load_recipe("digits-local"))["tensorflow"] is None
    assert list(horovod_lines(cr.load_recipe("digits-local"))) == []


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (14_075, "ends at step 4,680; 14,075 steps are 90 epochs at a batch of 8,192: tf-256n-8k-90ep"),
        (7_038, "ends at step 4,680; 7,038 steps are 90 epochs at a batch of 16,384, another run"),
        (14_000, "ends at step 4,680; another run"),
        (2_000, "ends at step 4,680; an intermediate checkpoint, or another run"),
        (0, "ends at step 4,680; an intermediate checkpoint, or another run"),
        (10**15, "ends at step 4,680; another run"),
    ],
)
def test_a_step_that_does_not_fit_is_of_another_run(step: int, expected: str) -> None:
    assert explain_other_run(RECIPE, step) == f"tf-256n-90ep {expected}"


def test_the_last_step_fits() -> None:
    assert explain_other_run(RECIPE, 4_680) is None


def test_a_recipe_that_tensorflow_trains_is_shown_on_a_page_of_its_own() -> None:
    recipe = load_any_recipe("tf-digits-local")
    text = " ".join("\n".join(render_recipe(recipe, 64)).split())
    for shown in (
        "ResNet-14, 10 classes, 32 px",
        "1,438 images in 8 files of TFRecords, tmp/digits_records/train",
        "359 images in 8 files of TFRecords, examples/digits/validation",
        "0.1 x 64 / 256 = 0.025, times 4: 0.1",
        "11.0 minutes of training at 64 images/s",
    ):
        assert shown in text
    values = shown_values(recipe)
    assert (values["trainer"], values["training_images"]) == ("tensorflow", 1438)
    assert values["tensorflow"] == json.loads(json.dumps(horovod_values(recipe)))
    assert "phases" not in values


def test_both_runs_and_the_other_program_s_accuracy_are_shown() -> None:
    printed = cr.load_recipe("tf-256n-8k-90ep")
    text = " ".join("\n".join(render_recipe(printed)).split())
    for shown in (
        "14,075 iterations, loss 1.90243, top-1 75.232%, top-5 92.41%",
        "14,075 steps / 156.25 = 90.1 epochs; of all 1,281,167 images 90.0",
        "0.1 x 8,192 / 256 = 3.2",
        "iterations: published 14,062",
        "cluster.batch_per_rank: 14,075 x 8,192 / 1,281,167 = 90.0 epochs",
        "73.5, with tf_cnn_benchmarks",
    ):
        assert shown in text
    assert "73.5, with tf_cnn_benchmarks" in " ".join("\n".join(render_recipe(RECIPE)).split())
    assert explain_other_run(printed, 14_075) is None
