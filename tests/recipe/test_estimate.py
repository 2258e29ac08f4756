"""The cost of a recipe: the parts of its time, node-hours and traffic."""

from __future__ import annotations

import pytest

from caffe_recipes.cluster.staging.method_choice import CopyRates, chain_s, copy_s
from caffe_recipes.errors import InputError
from caffe_recipes.recipe.estimate import Estimate, estimate_recipe, traffic_of
from caffe_recipes.recipe.model import Recipe
from caffe_recipes.recipe.pace import RunSize, given_pace, measured_pace, reported_pace, shape_of
from caffe_recipes.recipe.source import load_recipe

MODEL_BYTES = (25_557_096 + 53_173) * 4


@pytest.fixture
def recipe() -> Recipe:
    return load_recipe("stampede2-64n-72ep")


def at_reported(recipe: Recipe) -> Estimate:
    found = reported_pace(recipe)
    assert found
    return estimate_recipe(recipe, [found, given_pace(7000)], model_bytes=MODEL_BYTES)


def test_the_72_epochs_at_6303_images_per_second_are_245_minutes(recipe: Recipe) -> None:
    found = at_reported(recipe)
    assert round(found.duration.training_s / 60) == 245
    assert sum(phase.training_s for phase in found.phases) == pytest.approx(found.duration.training_s)
    assert found.epoch_s == pytest.approx(1_281_167 / 6303)
    assert [phase.iterations for phase in found.phases] == [7800, 3750, 4750, 4750, 1560]
    assert [other.images_per_s for other in found.others] == [7000]


def test_the_total_is_training_staging_joins_and_evaluation(recipe: Recipe) -> None:
    found = at_reported(recipe)
    parts = found.duration
    assert found.total_s == parts.training_s + parts.staging_s + parts.joins_s + parts.evaluation_s
    assert parts.joins_s == 300 + 5 * 120
    assert parts.evaluation_s == pytest.approx(50_000 * 128 / 6303 / 3)
    assert found.node_hours == pytest.approx(64 * found.total_s / 3600)


def test_one_node_needs_seconds_to_go_from_phase_to_phase(recipe: Recipe) -> None:
    local = estimate_recipe(load_recipe("digits-local"), [given_pace(2000)])
    assert local.duration.joins_s == 5 * 5
    assert local.total_s == local.duration.training_s + local.duration.evaluation_s + 25
    assert estimate_recipe(recipe, [given_pace(100)], shape=RunSize(1, 2, 32)).duration.joins_s == 25


def test_one_rank_alone_exchanges_nothing(recipe: Recipe) -> None:
    one, two = (
        estimate_recipe(recipe, [given_pace(100)], shape=RunSize(1, ranks, 32), model_bytes=MODEL_BYTES)
        for ranks in (1, 2)
    )
    assert one.traffic is None
    assert two.traffic is not None


def test_a_batch_larger_than_the_training_set_is_refused(recipe: Recipe) -> None:
    message = "a batch of 1,281,280 is larger than the data set of 1,281,167 images; use fewer nodes"
    with pytest.raises(InputError, match=message):
        estimate_recipe(recipe, [given_pace(6303)], shape=RunSize(20_020, 2, 32))
    assert estimate_recipe(recipe, [given_pace(6303)], shape=RunSize(20_018, 2, 32)).epochs > 71


def test_staging_takes_the_fastest_method_and_names_the_other(recipe: Recipe) -> None:
    slow, fast = CopyRates(), CopyRates(link=12.5e9, shared=2e12, disk=5e9)
    ways = [estimate_recipe(recipe, [given_pace(1)], rates=rates).staging for rates in (slow, fast)]
    assert [[way.how for way in each] for each in ways] == [["chain", "copy"], ["copy", "chain"]]
    assert ways[0][0].seconds == chain_s(42 * 10**9, 64, slow)
    assert ways[1][0].seconds == copy_s(42 * 10**9, 64, fast)


def test_without_the_lmdb_s_size_staging_is_left_out_and_it_is_reported(recipe: Recipe) -> None:
    train = recipe.data.train.model_copy(update={"size_gb": None})
    sizeless = recipe.model_copy(update={"data": recipe.data.model_copy(update={"train": train})})
    found = estimate_recipe(sizeless, [given_pace(6303)])
    assert (found.staging, found.duration.staging_s) == ((), 0)
    assert found.notes == ("staging is not included: the recipe does not give the training LMDB's size_gb",)


def test_on_other_nodes_the_epochs_stay_and_the_iterations_change(recipe: Recipe) -> None:
    found = estimate_recipe(recipe, [given_pace(12606)], shape=RunSize(128, 2, 32))
    assert [phase.iterations for phase in found.phases] == [3900, 1875, 2375, 2375, 780]
    assert found.epochs == at_reported(recipe).epochs
    assert round(found.duration.training_s / 60) == 122
    assert "8,192 images per iteration instead of the recipe's 4,096" in found.notes[0]


def test_256_nodes_of_a_rank_each_exchange_49_gb_an_iteration() -> None:
    found = traffic_of(MODEL_BYTES, RunSize(256, 1, 32), 15_000)
    assert round(found.each_way_bytes / 2**20) == 98
    assert round(found.all_bytes / 2**30) == 49
    assert found.bytes_per_s == pytest.approx(found.all_bytes * 15_000 / 8192)


def test_a_recipe_of_unknown_speed_is_refused_with_the_option_to_give() -> None:
    with pytest.raises(InputError, match=r"^digits-local: its speed is unknown; give --log"):
        estimate_recipe(load_recipe("digits-local"), [])


@pytest.mark.parametrize(
    ("name", "note"),
    [
        ("tf-256n-90ep", "the reported speed is that of the TensorFlow run; Caffe's is unknown"),
        ("tf-256n-8k-90ep", "the paper measured Caffe: TensorFlow's speed is unknown; for that, give"),
    ],
)
def test_a_recipe_that_tensorflow_can_train_says_whose_speed_is_used(name: str, note: str) -> None:
    recipe = load_recipe(name)
    pace = reported_pace(recipe) or measured_pace(recipe, None, shape_of(recipe))
    assert pace
    assert estimate_recipe(recipe, [pace]).notes[0].startswith(note)
