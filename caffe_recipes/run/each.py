"""Run several recipes, such as the rows of a family, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from caffe_recipes.errors import CaffeRecipesError, RunFailed
from caffe_recipes.recipe.model import AnyRecipe
from caffe_recipes.wording import describe_count, join_names


def run_each(
    recipes: Sequence[AnyRecipe], train: Callable[[AnyRecipe], object], say: Callable[[str], None]
) -> None:
    """Train the recipes in turn; one that fails is reported, and the next one follows.

    `train` resumes a run that was begun, and only shows the results of one that is finished. Raises RunFailed
    at the end if any failed.
    """
    failed = []
    for number, recipe in enumerate(recipes, 1):
        say(f"{recipe.name}: run {number} of {len(recipes)}")
        try:
            train(recipe)
        except CaffeRecipesError as error:
            say(f"{recipe.name}: failed: {error}")
            failed.append(recipe.name)
    if failed:
        raise RunFailed(
            join_names(failed),
            f"failed, {len(failed)} of {describe_count(len(recipes), 'run')}",
            "run the same command again to resume; finished runs are not repeated",
        )
