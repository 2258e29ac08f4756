"""How long a chain takes: its parts, and the time requested from a batch system."""

from __future__ import annotations

import pytest

from caffe_recipes.cluster.staging.method_choice import CopyRates, chain_s, copy_s
from caffe_recipes.recipe.estimate import (
    Duration,
    describe_limits,
    duration_at,
    estimate_duration,
    estimate_recipe,
)
from caffe_recipes.recipe.model import Recipe, train_by_tensorflow
from caffe_recipes.recipe.pace import measured_pace, order_paces, reported_pace, shape_of
from caffe_recipes.recipe.source import load_recipe


def found(recipe: Recipe, phase: str | None = None) -> Duration:
    duration = estimate_duration(recipe, phase)
    assert duration is not None
    return duration


def test_the_published_chain_trains_for_its_images_at_the_reported_rate() -> None:
    duration = found(load_recipe("stampede2-64n-72ep"))
    assert duration.training_s == pytest.approx(22_610 * 4096 / 6303)
    assert duration.evaluation_s == pytest.approx(50_000 / (6303 / 128) / 3)
    assert duration.staging_s == chain_s(42 * 10**9, 64, CopyRates())
    assert duration.joins_s == 300 + 5 * 120
    assert duration.limit_s == 19_800


def test_a_limit_is_the_estimate_plus_a_fifth_in_whole_tens_of_minutes() -> None:
    for name in ("paper-t9-49152-1536n", "stampede2-64n-72ep"):
        recipe = load_recipe(name)
        pace = order_paces(
            [each for each in (reported_pace(recipe), measured_pace(recipe, None, shape_of(recipe))) if each]
        )
        total_s = estimate_recipe(recipe, pace).total_s
        assert found(recipe).total_s == pytest.approx(total_s)
        assert 0 <= found(recipe).limit_s - 1.2 * total_s < 600


def test_1536_nodes_ask_an_hour_for_the_run_of_28_minutes_and_say_what_is_assumed() -> None:
    recipe = load_recipe("paper-t9-49152-1536n")
    assert found(recipe).limit_s == 3600
    assert describe_limits(recipe, [None]) == (
        "training 27 min 57 s at 76,190 images/s (the paper's Table V (nodes with 1 x 68 cores)); "
        "staging by chain 4 min 00 s (by copy 3 h 35 min); "
        "starts and snapshots 9 min 00 s; evaluation 5 min 36 s; and a fifth more"
    )


def test_a_method_of_staging_that_the_user_has_chosen_counts_and_is_named_first() -> None:
    recipe = load_recipe("paper-t9-49152-1536n")
    assert "staging by copy 3 h 35 min (by chain 4 min 00 s)" in describe_limits(recipe, [None], "copy")
    assert "staging by ssh 14 h 20 min (by chain 4 min 00 s, by copy" in describe_limits(
        recipe, [None], "ssh"
    )
    assert duration_at(recipe, 76_190, how="copy").staging_s == copy_s(42 * 10**9, 1536, CopyRates())


def test_the_jobs_of_a_split_chain_stage_once_each() -> None:
    recipe = load_recipe("stampede2-64n-72ep")
    assumed = describe_limits(recipe, [phase.name for phase in recipe.phases])
    assert "staging by chain for each job 1 min 33 s" in assumed
    assert "starts and snapshots 35 min 00 s" in assumed
    assert describe_limits(load_recipe("digits-local"), [None]) == ""


def test_a_recipe_that_tensorflow_trains_has_no_staging_in_its_limit() -> None:
    run = train_by_tensorflow(load_recipe("tf-256n-90ep"))
    assert describe_limits(run, [None]).startswith("training 1 h 57 min at 16,400 images/s (the recipe's")
    assert "staging" not in describe_limits(run, [None])


def test_without_a_speed_the_reported_minutes_give_the_duration() -> None:
    assert found(load_recipe("stampede2-448n-90ep")).training_s == pytest.approx(65 * 60)


def test_a_node_s_rate_counts_for_all_nodes() -> None:
    recipe = load_recipe("stampede2-64n-72ep")
    reported = recipe.reported.model_copy(update={"images_per_s": None})
    by_node = found(recipe.model_copy(update={"reported": reported}))
    assert by_node.training_s == pytest.approx(22_610 * 4096 / (98.5 * 64))


def test_without_reported_values_no_duration_is_invented() -> None:
    assert estimate_duration(load_recipe("digits-local")) is None


def test_a_phase_trains_for_its_own_images_and_the_last_one_is_tested() -> None:
    recipe = load_recipe("stampede2-64n-72ep")
    parts = [found(recipe, phase.name) for phase in recipe.phases]
    assert sum(part.training_s for part in parts) == pytest.approx(found(recipe).training_s)
    assert [part.evaluation_s > 0 for part in parts] == [False] * 4 + [True]
    assert len({part.staging_s for part in parts}) == 1


def test_a_faster_file_system_stages_faster() -> None:
    recipe = load_recipe("stampede2-64n-72ep")
    fast = duration_at(recipe, 6303, rates=CopyRates(link=12.5e9, shared=50e9, disk=2e9))
    assert fast.staging_s == chain_s(42 * 10**9, 64, CopyRates(link=12.5e9, shared=50e9, disk=2e9))


def test_the_limit_is_above_the_total_and_in_whole_tens_of_minutes() -> None:
    for seconds in (1.0, 3000.0, 14_000.0):
        limit_s = Duration(seconds, 0, 0, 420).limit_s
        assert limit_s % 600 == 0
        assert limit_s >= 1.2 * (seconds + 420)
