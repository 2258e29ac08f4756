"""How long a chain takes: its parts, and the time requested from a batch system."""

from __future__ import annotations

import pytest

from caffe_recipes.cluster.staging.plan import CopyRates
from caffe_recipes.recipe.estimate import Duration, duration_at, estimate_duration
from caffe_recipes.recipe.model import Recipe
from caffe_recipes.recipe.source import load_recipe


def found(recipe: Recipe, phase: str | None = None) -> Duration:
    duration = estimate_duration(recipe, phase)
    assert duration is not None
    return duration


def test_the_published_chain_trains_for_its_images_at_the_reported_rate() -> None:
    duration = found(load_recipe("stampede2-64n-72ep"))
    assert duration.training_s == pytest.approx(22_610 * 4096 / 6303)
    assert duration.evaluation_s == pytest.approx(50_000 / (6303 / 128))
    assert duration.staging_s == pytest.approx(64 * 42e9 / 5e9)
    assert duration.limit_s == 20_400


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
    assert fast.staging_s == pytest.approx(64 * 42e9 / 50e9)


def test_the_limit_is_above_the_total_and_in_whole_tens_of_minutes() -> None:
    for seconds in (1.0, 3000.0, 14_000.0):
        limit_s = Duration(seconds, 0, 0, 1).limit_s
        assert limit_s % 600 == 0
        assert limit_s > 1.2 * seconds + 300
