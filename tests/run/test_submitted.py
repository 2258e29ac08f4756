from __future__ import annotations

import os
from pathlib import Path

import pytest

from caffe_recipes.errors import InputError
from caffe_recipes.recipe.source import load_recipe
from caffe_recipes.run.context import check_submitted, submitted_environment
from tests.run.conftest import RECIPE


def test_a_recipe_that_was_changed_after_its_submit_is_refused_in_its_job(tmp_path: Path) -> None:
    path = tmp_path / "small.yaml"
    path.write_text(RECIPE)
    environment = {
        **submitted_environment(load_recipe(path), "small-3fa210"),
        "SLURM_JOB_NAME": "small-3fa210",
    }
    check_submitted(load_recipe(os.path.relpath(path)), environment)
    changed = RECIPE.replace("batch_per_rank: 32", "batch_per_rank: 8")
    assert changed != RECIPE
    path.write_text(changed)
    with pytest.raises(InputError) as caught:
        check_submitted(load_recipe(path), environment)
    assert str(caught.value) == (
        "small: the recipe has changed since it was submitted; submit it again, or undo the change"
    )
    check_submitted(load_recipe(path), {**environment, "SLURM_JOB_NAME": "another"})
    check_submitted(load_recipe(path), {})


def test_a_title_may_change_after_the_submit(tmp_path: Path) -> None:
    path = tmp_path / "small.yaml"
    path.write_text(RECIPE)
    recipe = load_recipe(path)
    environment = {**submitted_environment(recipe, "small-3fa210"), "SLURM_JOB_NAME": "small-3fa210"}
    check_submitted(recipe.model_copy(update={"title": "Another"}), environment)
