"""A recipe as the plain values that its YAML is to hold: no defaults, and once what its phases share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from caffe_recipes.errors import RecipeError
from caffe_recipes.making.text import Comments, render_yaml
from caffe_recipes.recipe.model import Recipe
from caffe_recipes.recipe.phases import SolverSettings
from caffe_recipes.recipe.source import parse_recipe

# What tells phases apart stays with each of them.
_OWN = (
    "base_lr", "lr_policy", "gamma", "power", "stepsize", "stepvalue", "plateau_winsize", "max_iter",
    "lr_iter", "warmup_iter", "warmup_start_lr",
)  # fmt: skip
_FIRST = ("name", "net", "weights", "weights_iter", *_OWN)
_SHARED = tuple(key for key in SolverSettings.model_fields if key not in _OWN)


def recipe_values(recipe: Recipe) -> dict[str, Any]:
    """Return what a recipe's YAML needs to hold, in the model's order."""
    values = recipe.model_dump(exclude_defaults=True, exclude_none=True)
    phases = [dict(phase) for phase in values.pop("phases")]
    values.pop("solver", None)
    solver, phases = share_settings(phases)
    result: dict[str, Any] = {}
    for key in Recipe.model_fields:
        if key == "solver" and solver:
            result[key] = solver
        elif key == "phases":
            result[key] = [_in_order(phase) for phase in phases]
        elif key in values:
            result[key] = values[key]
    return result


def share_settings(phases: Sequence[Mapping[str, Any]]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Take out of phases what all of them give, and most give alike; return that, and what is left of each.

    >>> share_settings([{"name": "a", "display": 1}, {"name": "b", "display": 1, "max_iter": 9}])
    ({'display': 1}, [{'name': 'a'}, {'name': 'b', 'max_iter': 9}])
    """
    shared: dict[str, Any] = {}
    for key in _SHARED:
        given = [phase[key] for phase in phases if key in phase]
        if len(given) < len(phases):
            continue
        value, count = Counter(given).most_common(1)[0]
        if count > len(phases) // 2:
            shared[key] = value
    left = [
        {key: value for key, value in phase.items() if key not in shared or shared[key] != value}
        for phase in phases
    ]
    return shared, left


def write_recipe(recipe: Recipe, comments: Comments) -> str:
    """Write a recipe's YAML, from which the same is generated."""
    return render_yaml(recipe_values(recipe), comments)


def make_recipe(
    values: Mapping[str, Any],
    where: str,
    folder: Path = Path(),
    options: Mapping[str, str] = MappingProxyType({}),
) -> Recipe:
    """Make a recipe of plain values; RecipeError for what contradicts itself, told by its key.

    `options` gives, by keys, the options that their values are from, as `name` is from --name: the error is
    told of the option then.
    """
    text = render_yaml(values, {})
    if not _is_utf8(text):
        raise RecipeError(where, "a name or path is not UTF-8, as a recipe has to be", "name it otherwise")
    try:
        return parse_recipe(text, where, folder)
    except RecipeError as error:
        # The line is one of a text that nobody sees.
        place, _, line = error.where.rpartition(":")
        if place != where or not line.isdigit():
            raise
        key, _, what = error.what.partition(": ")
        if key in ("name", *options):
            raise RecipeError(options.get(key, "--name"), what, error.hint) from None
        raise RecipeError(where, error.what, error.hint) from None


def _is_utf8(text: str) -> bool:
    """Whether text can be written: a name that is not UTF-8 comes as surrogates from the command line."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _in_order(phase: Mapping[str, Any]) -> dict[str, Any]:
    """Put a phase's keys as people write them: what it is first, then its rate, then all else."""
    first = {key: phase[key] for key in _FIRST if key in phase}
    return first | {key: value for key, value in phase.items() if key not in first}
