"""Recipes for other Caffes: the same rates to the last bit, own names, and what has no equivalent."""

from __future__ import annotations

import struct
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
import yaml

from caffe_recipes.caffe.rates import lr_at
from caffe_recipes.errors import InputError, RecipeError
from caffe_recipes.recipe.checks import find_contradictions
from caffe_recipes.recipe.model import Phase, Recipe
from caffe_recipes.recipe.source import load_recipe, parse_recipe
from caffe_recipes.recipe.translate import find_inexact, original_name, translate
from caffe_recipes.render.prototxts import build_solver

SHIPPED = ("stampede2-64n-72ep", "digits-local", "stampede2-448n-90ep")


def digits(change: Callable[[dict[str, Any]], object]) -> Recipe:
    """Return `digits-local` with changed values."""
    raw = yaml.safe_load(
        resources.files("caffe_recipes").joinpath("recipes", "digits-local.yaml").read_text()
    )
    change(raw)
    return parse_recipe(yaml.safe_dump(raw), "test.yaml", Path())


def with_phase(index: int = 1, **settings: Any) -> Recipe:  # noqa: ANN401 - a YAML's values
    """Return `digits-local` with one phase's settings changed; None removes one."""

    def change(raw: dict[str, Any]) -> None:
        raw["phases"][index].update(settings)
        for key in [key for key, value in settings.items() if value is None]:
            del raw["phases"][index][key]

    return digits(change)


def plain() -> Recipe:
    """Return a recipe that any Caffe can train: one rank, one phase of poly."""

    def change(raw: dict[str, Any]) -> None:
        raw["cluster"]["ranks_per_node"] = 1
        raw["phases"] = raw["phases"][-1:]

    return digits(change)


def bits(value: float) -> bytes:
    return struct.pack("f", value)


@pytest.mark.parametrize("name", SHIPPED)
def test_the_rates_are_equal_to_the_last_bit_at_every_iteration(name: str) -> None:
    recipe = load_recipe(name)
    translated = translate(recipe, "intel")
    for phase, other in zip(recipe.phases, translated.phases, strict=True):
        assert other.last_iter == phase.last_iter
        ours, theirs = build_solver(recipe, phase), build_solver(translated, other)
        assert theirs.lr_policy == "poly"
        for iteration in range(phase.last_iter):
            assert bits(lr_at(ours, iteration)) == bits(lr_at(theirs, iteration)), (phase.name, iteration)


def test_poly_cyc_becomes_poly_that_is_stopped_at_its_snapshot() -> None:
    phase = translate(load_recipe("stampede2-64n-72ep"), "intel").phase("init")
    assert (phase.lr_policy, phase.max_iter, phase.stop_iter, phase.lr_iter) == ("poly", 18720, 7800, None)
    assert (phase.snapshot_every_iter, phase.warmup_iter, phase.warmup_start_lr) == (7800, 1560, 0.1)
    assert phase.final_snapshot == "/tmp/resnet_50_64nodes_init-intel_iter_7800.caffemodel"
    assert phase.comment == "poly to 18720 in place of poly_cyc with that lr_iter, at the same rates"


def test_a_phase_of_poly_runs_to_its_end_as_before() -> None:
    recipe = load_recipe("stampede2-64n-72ep")
    phase, other = recipe.phase("collapse"), translate(recipe, "intel").phase("collapse")
    assert other == phase.model_copy(update={"snapshot_prefix": f"{phase.snapshot_prefix}-intel"})


def test_poly_cyc_to_its_very_end_is_poly_without_a_stop() -> None:
    phase = translate(with_phase(lr_iter=270), "intel").phase("cyc1")
    assert (phase.lr_policy, phase.max_iter, phase.stop_iter) == ("poly", 270, None)


def test_a_phase_that_the_recipe_itself_stops_keeps_its_stop() -> None:
    own = with_phase(lr_policy="poly", lr_iter=None, max_iter=540, stop_iter=270)
    assert translate(own, "intel").phase("cyc1").stop_iter == 270
    cyclic = with_phase(max_iter=400, stop_iter=270)
    phase = translate(cyclic, "intel").phase("cyc1")
    assert (phase.max_iter, phase.stop_iter, phase.last_iter) == (540, 270, 270)


@pytest.mark.parametrize(
    ("snapshot", "every"),
    [(None, 270), (90, 90), (100, 270), (270, 270), (1000, 270)],
)
def test_a_snapshot_always_fires_where_the_phase_is_stopped(snapshot: int | None, every: int) -> None:
    recipe = with_phase(snapshot=snapshot) if snapshot else load_recipe("digits-local")
    phase = translate(recipe, "intel").phase("cyc1")
    assert (phase.stop_iter, phase.snapshot_every_iter) == (270, every)


def test_the_snapshots_that_later_phases_start_from_fire_too() -> None:
    def change(raw: dict[str, Any]) -> None:
        raw["phases"][1]["snapshot"] = 100
        raw["phases"][2]["weights_iter"] = 200

    phase = translate(digits(change), "intel").phase("cyc1")
    assert phase.stop_iter == 270
    assert 200 % phase.snapshot_every_iter == 0 == 270 % phase.snapshot_every_iter


def snapshots(max_iter: int, snapshot: int, weights_iter: int, lr_iter: int = 2000) -> Recipe:
    def change(raw: dict[str, Any]) -> None:
        raw["phases"][1].update(max_iter=max_iter, snapshot=snapshot, lr_iter=lr_iter)
        raw["phases"][2]["weights_iter"] = weights_iter

    return digits(change)


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        (
            snapshots(1000, 333, 999),
            "999, 1000, so one every iteration: 1000 in total; end it at 999 or 1332,",
        ),
        (
            snapshots(1000, 333, 999, 1100),
            "so one every iteration: 1000 in total; end it at 999, where its snapshot: 333",
        ),
        (
            snapshots(1010, 100, 300),
            "300, 1010, so one every 10 iterations: 101 in total; end it at 1000 or 1100,",
        ),
        (
            snapshots(3001, 10, 300, 4000),
            "300, 3001, so one every iteration: 3001 in total; end it at 3000 or",
        ),
    ],
)
def test_snapshots_in_nearly_every_iteration_are_not_an_equivalent(recipe: Recipe, message: str) -> None:
    (part,) = find_inexact(recipe, "intel")
    assert (part.phase, part.key) == ("cyc1", "max_iter")
    assert message in part.why
    with pytest.raises(RecipeError, match="end it at"):
        translate(recipe, "intel")


@pytest.mark.parametrize(
    "recipe", [snapshots(1000, 10, 300), snapshots(999, 333, 666), snapshots(1001, 333, 999, 1001)]
)
def test_a_recipe_s_own_snapshots_are_not_too_many(recipe: Recipe) -> None:
    assert find_inexact(recipe, "intel") == []


@pytest.mark.parametrize("name", SHIPPED)
@pytest.mark.parametrize("change", [None, 90])
def test_a_translated_recipe_is_a_recipe(name: str, change: int | None) -> None:
    translated = translate(with_phase(snapshot=change) if change else load_recipe(name), "intel")
    again = Recipe.model_validate(translated.model_dump())
    assert again.phases == translated.phases
    assert all(Phase.model_validate(phase.model_dump()) == phase for phase in translated.phases)
    assert list(find_contradictions(again)) == []


def test_no_file_of_the_original_is_overwritten() -> None:
    recipe = load_recipe("digits-local")
    translated = translate(recipe, "intel")
    assert (translated.name, translated.prototxt_dir) == ("digits-local-intel", "prototxt/digits-local-intel")
    assert original_name(translated) == recipe.name == original_name(recipe)
    snapshots = {phase.final_snapshot for phase in recipe.phases}
    others = {phase.final_snapshot for phase in translated.phases}
    assert len(snapshots | others) == 10
    assert translated.folder == recipe.folder
    assert (recipe.dialect, translated.dialect) == ("surfsara", "intel")


def test_the_default_dialect_leaves_the_recipe_as_it_is() -> None:
    recipe = load_recipe("digits-local")
    assert translate(recipe, "surfsara") is recipe
    assert all(not find_inexact(load_recipe(name), "surfsara") for name in SHIPPED)


def parts(recipe: Recipe, dialect: str) -> list[tuple[str, str]]:
    return [(part.phase, part.key) for part in find_inexact(recipe, dialect)]


@pytest.mark.parametrize(
    ("recipe", "dialect", "expected"),
    [
        (with_phase(max_iter=400, lr_iter=300), "intel", [("cyc1", "lr_iter")]),
        (with_phase(lr_policy="plateau", gamma=0.1, plateau_winsize=[5]), "intel", []),
        (
            with_phase(lr_policy="plateau", gamma=0.1, plateau_winsize=[5]),
            "nvcaffe",
            [("init", "warmup_iter"), ("init", "warmup_start_lr"), ("cyc1", "lr_policy"),
             ("cyc2", "warmup_iter"), ("cyc2", "warmup_start_lr"), ("cyc3", "warmup_iter"),
             ("cyc3", "warmup_start_lr"), ("", "cluster")],
        ),
        (plain(), "bvlc", []),
        (plain(), "nvcaffe", []),
    ],
)  # fmt: skip
def test_settings_without_an_equivalent_are_listed_by_phase_and_key(
    recipe: Recipe, dialect: str, expected: list[tuple[str, str]]
) -> None:
    assert parts(recipe, dialect) == expected


def test_the_warm_up_of_others_is_named() -> None:
    recipe = load_recipe("digits-local")
    assert str(find_inexact(recipe, "nvcaffe")[0]) == (
        "phase 'init': warmup_iter: nvcaffe has no warmup_iter; "
        "the warm-up is rampup_interval, which is quadratic, not linear"
    )
    of_bvlc = [str(part) for part in find_inexact(recipe, "bvlc")]
    assert of_bvlc[0] == "phase 'init': warmup_iter: BVLC's Caffe has no warmup_iter; no rate warms up"
    assert "BVLC's Caffe trains in one process" in of_bvlc[-1]


def test_a_start_rate_without_a_warm_up_is_never_read_and_left_out() -> None:
    def change(raw: dict[str, Any]) -> None:
        raw["cluster"]["ranks_per_node"] = 1
        raw["phases"] = [raw["phases"][-1] | {"warmup_start_lr": 0.1, "lr_iter": 5}]

    recipe = digits(change)
    assert translate(recipe, "bvlc").phases[0].warmup_start_lr is None
    assert translate(recipe, "bvlc").phases[0].lr_iter is None
    assert translate(recipe, "intel").phases[0].warmup_start_lr == 0.1


def test_nvcaffe_is_set_to_test_before_training_as_ours_does() -> None:
    def change(raw: dict[str, Any]) -> None:
        raw["cluster"]["ranks_per_node"] = 1
        tested = {"net": "train_val", "test_iter": 1, "test_interval": 50}
        raw["phases"] = [
            raw["phases"][-1] | tested,
            raw["phases"][-1] | {"name": "x", "snapshot_prefix": "y"},
        ]

    recipe = digits(change)
    assert [phase.test_initialization for phase in translate(recipe, "nvcaffe").phases] == [True, None]
    assert [phase.test_initialization for phase in translate(recipe, "bvlc").phases] == [None, None]


def test_a_recipe_without_an_equivalent_is_refused_with_the_first_reason() -> None:
    message = (
        r"digits-local: 7 parts have no exact equivalent in nvcaffe: phase 'init': warmup_iter: .* lists all"
    )
    with pytest.raises(RecipeError, match=message):
        translate(load_recipe("digits-local"), "nvcaffe")
    with pytest.raises(
        RecipeError, match=r"1 part has no exact .*: phase 'cyc1': lr_iter: .* end it at 300 or before$"
    ):
        translate(with_phase(max_iter=400, lr_iter=300), "intel")
    with pytest.raises(InputError, match="unknown dialect 'itel'; did you mean 'intel'"):
        translate(load_recipe("digits-local"), "itel")
