"""Run several recipes, such as the rows of a family, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from caffe_recipes.errors import CaffeRecipesError, InUse, RunFailed
from caffe_recipes.recipe.model import AnyRecipe
from caffe_recipes.wording import describe_count, join_names


def run_each(
    recipes: Sequence[AnyRecipe], train: Callable[[AnyRecipe], object], say: Callable[[str], None]
) -> None:
    """Train the recipes in turn; one that fails, or that another process trains, is reported and left out.

    `train` resumes a run that was begun, and only shows the results of one that is finished. Raises RunFailed
    at the end if any failed or was left out.
    """
    failed, trained_elsewhere = list[str](), list[str]()
    for number, recipe in enumerate(recipes, 1):
        say(f"{recipe.name}: run {number} of {len(recipes)}")
        try:
            train(recipe)
        except InUse as error:
            say(f"{recipe.name}: left out: {error}")
            trained_elsewhere.append(recipe.name)
        except CaffeRecipesError as error:
            say(f"{recipe.name}: failed: {error}")
            failed.append(recipe.name)
    if failed or trained_elsewhere:
        counts = [(failed, "failed"), (trained_elsewhere, "in use by another process")]
        what = ", ".join(f"{len(names)} {word}: {join_names(names)}" for names, word in counts if names)
        raise RunFailed(
            "",
            f"of {describe_count(len(recipes), 'run')}, {what}",
            "run the same command again to resume; finished runs are not repeated",
        )
