"""Solvers: a phase's settings as a message, and comments that explain its numbers."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

import caffe_recipes as cr
from caffe_recipes.caffe import pb
from caffe_recipes.caffe.prototxt import parse_prototxt
from caffe_recipes.errors import InputError, RecipeError
from caffe_recipes.recipe.model import Recipe
from caffe_recipes.render.prototxts import build_solver, render_solver

MakeRecipe = Callable[..., Recipe]

PUBLISHED = cr.load_recipe("stampede2-64n-72ep")


def lines_of(phase: str) -> list[str]:
    return render_solver(PUBLISHED, PUBLISHED.phase(phase)).splitlines()


def test_the_comments_explain_epochs_at_the_global_batch() -> None:
    lines = lines_of("init")
    assert lines[1] == (
        "# init, phase 1 of 5. 4,096 images an iteration (128 ranks x 32), 1,281,167 an epoch."
    )
    assert {"max_iter: 7800 # 24.94 epochs", "warmup_iter: 1560 # 4.99 epochs"} <= set(lines)


def test_the_comments_describe_the_rate_and_its_drop_after_warm_up() -> None:
    lines = lines_of("init")
    above = lines.index("base_lr: 1.6")
    assert lines[above - 2 : above] == [
        "# The rate by iteration: 0.1 at 0, 1.59904 at 1559 where the warm-up ends,",
        "# 1.46667 at 1560, since warm-up iterations count, 0.933419 at 7799.",
    ]
    assert "# The rate by iteration: 1.02 at 0, 0.255136 at 3749." in lines_of("cyc1")


def test_a_changed_weight_decay_is_marked() -> None:
    assert "weight_decay: 0.0002 # 4 times that of cyc3" in lines_of("collapse")
    assert "weight_decay: 0.00005" in lines_of("cyc3")


def test_text_and_message_of_every_phase_agree(make_recipe: MakeRecipe) -> None:
    recipe = make_recipe()
    for phase in recipe.phases:
        solver = build_solver(recipe, phase)
        assert parse_prototxt(render_solver(recipe, phase), pb.SolverParameter) == solver
        assert solver.net == f"prototxt/digits-local/{phase.net}.prototxt"


def test_the_settings_of_any_solver_reach_their_fields(make_recipe: MakeRecipe) -> None:
    settings = {
        "type": "RMSProp",
        "rms_decay": 0.98,
        "delta": 0.001,
        "lr_policy": "multistep",
        "gamma": 0.1,
        "stepvalue": [10, 20],
        "regularization_type": "L1",
        "clip_gradients": 35.0,
        "iter_size": 2,
        "average_loss": 20,
        "test_iter": 3,
        "test_interval": 50,
        "test_initialization": False,
        "snapshot": 40,
        "comment": "plateaus were short",
    }
    recipe = make_recipe(lambda raw: raw["phases"][1].update(settings))
    solver = build_solver(recipe, recipe.phase("cyc1"))
    assert list(solver.test_iter) == [3]
    assert list(solver.stepvalue) == [10, 20]
    assert (solver.type, solver.snapshot, solver.test_initialization) == ("RMSProp", 40, False)
    assert "# plateaus were short" in render_solver(recipe, recipe.phase("cyc1"))


def test_the_comments_of_a_warm_up_longer_than_the_phase_mention_no_end(make_recipe: MakeRecipe) -> None:
    warmup = {"max_iter": 10, "lr_policy": "fixed", "warmup_iter": 20, "warmup_start_lr": 0.1}
    recipe = make_recipe(lambda raw: raw["phases"][1].update(warmup))
    (line,) = (x for x in render_solver(recipe, recipe.phase("cyc1")).splitlines() if "The rate" in x)
    assert re.findall(r"at (\d+)", line) == ["0", "9"]


def test_a_plateau_has_no_rate_that_is_known_before(make_recipe: MakeRecipe) -> None:
    plateau = {"lr_policy": "plateau", "gamma": 0.1, "plateau_winsize": [5]}
    recipe = make_recipe(lambda raw: raw["phases"][1].update(plateau))
    assert "The rate" not in render_solver(recipe, recipe.phase("cyc1"))


def test_a_schedule_that_ends_in_nan_is_refused_also_if_no_yaml_has_it(make_recipe: MakeRecipe) -> None:
    recipe = make_recipe()
    phase = recipe.phase("cyc1").model_copy(update={"power": 0.5, "lr_iter": 100})
    with pytest.raises(RecipeError, match=r"digits-local: phase 'cyc1': the rate .* is nan at iteration 101"):
        build_solver(recipe, phase)


def test_a_number_beyond_float32_is_refused_by_phase_and_field(make_recipe: MakeRecipe) -> None:
    recipe = make_recipe()
    phase = recipe.phase("init").model_copy(update={"base_lr": 1e39})
    with pytest.raises(InputError, match=r"phase 'init': base_lr: invalid value 1e\+39"):
        build_solver(recipe, phase)


def test_a_phase_stopped_by_the_recipe_shows_the_rate_at_its_own_end(
    make_recipe: MakeRecipe,
) -> None:
    stopped = {"lr_policy": "poly", "max_iter": 540, "stop_iter": 270, "lr_iter": None}
    recipe = make_recipe(lambda raw: raw["phases"][1].update(stopped))
    text = render_solver(recipe, recipe.phase("cyc1"))
    assert "# To be stopped (SIGINT) after the snapshot of 270; its schedule extends to 540." in text
    assert "max_iter: 540 # stopped at 270, 12.02 epochs\n" in text
    assert "at 269.\n" in text
    assert "snapshot: 270\n" in text
    assert "stop_iter" not in text


def test_epochs_count_every_batch_of_an_iteration(make_recipe: MakeRecipe) -> None:
    recipe = make_recipe(lambda raw: raw["phases"][1].update(iter_size=2))
    text = render_solver(recipe, recipe.phase("cyc1"))
    assert "128 images an iteration (2 ranks x 32 x 2), 1,438 an epoch." in text
    assert "max_iter: 270 # 24.03 epochs\n" in text
