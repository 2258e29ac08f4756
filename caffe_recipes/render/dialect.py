"""Translate recipes for another Caffe, and check that it accepts all their generated files."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, overload

from caffe_recipes.caffe.dialects import OURS, Dialect, find_dialect
from caffe_recipes.recipe.model import AnyRecipe, Recipe
from caffe_recipes.recipe.translate import Part, find_inexact, translate, translation_error
from caffe_recipes.render.prototxts import build_for, build_solver

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from caffe_recipes.caffe.dialects.check import DialectDifference

# The key of the recipe that determines a field of its nets.
_KEYS = {
    "BatchNormParameter.filler": "net.builder",
    "DataParameter.prefetch": "data.train.prefetch",
    "DataParameter.shuffle": "data.train.shuffle",
    "TransformationParameter.random_aspect_ratio_param": "nets.{net}.random_aspect_ratio",
    "TransformationParameter.random_resize_param": "data.test.shorter_side_px",
}


@overload
def translate_whole(recipe: Recipe, dialect: str) -> Recipe: ...
@overload
def translate_whole(recipe: AnyRecipe, dialect: str) -> AnyRecipe: ...
def translate_whole(recipe: AnyRecipe, dialect: str) -> AnyRecipe:
    """Return the recipe for another Caffe, as `recipe.translate.translate` does, after checking its nets too.

    Raises RecipeError if a schedule, or anything in a net, has no exact equivalent.
    """
    parts = find_parts(recipe, dialect)
    if parts:
        raise translation_error(recipe, dialect, parts)
    return translate(recipe, dialect) if isinstance(recipe, Recipe) else recipe


def find_parts(recipe: AnyRecipe, dialect: str) -> list[Part]:
    """Return every part of a recipe, including nets, that a dialect's Caffe would refuse or read differently.

    The list is empty for SURFsara's dialect, in which recipes are written.
    """
    if dialect == OURS:
        return []
    if not isinstance(recipe, Recipe):
        return [Part("", "trainer", "TensorFlow trains this recipe, not a Caffe")]
    judge = find_dialect(dialect)
    parts = find_inexact(recipe, dialect)
    if not parts:
        translated = translate(recipe, dialect)
        for phase in translated.phases:
            parts += [
                Part(phase.name, difference.name, difference.what)
                for difference in _find_grave(build_solver(translated, phase), judge)
            ]
    return list(dict.fromkeys([*parts, *_in_nets(recipe, judge)]))


def _in_nets(recipe: Recipe, judge: Dialect) -> Iterator[Part]:
    for net in recipe.nets:
        is_own_dialect = recipe.net.dialect == judge.name
        made = build_for(recipe, net, judge.name)
        for difference in _find_grave(made, judge):
            is_in_net = difference.name not in _KEYS or recipe.data.is_in_net
            if is_own_dialect and is_in_net and difference.rule == "dialect-meaning":
                continue  # the net is written for that Caffe
            known = _KEYS.get(difference.name, "")
            # It is in the user's own net, unless it is in the data layers, which come from the recipe.
            is_own = not known or (known == "net.builder" and not recipe.net.builder)
            key = _origin(recipe) if is_own else known.format(net=net)
            yield Part("", key, f"{difference.what}; {difference.write}")


def _find_grave(message: Message, dialect: Dialect) -> list[DialectDifference]:
    from caffe_recipes.caffe.dialects.check import (  # seldom needed
        BATCH_SIZE,
        DIFFERENCE_RULES,
        check_message,
    )

    # A recipe starts one process for each rank, so no process has several GPUs to divide a batch among.
    return [
        difference
        for difference in check_message(message, dialect)
        if DIFFERENCE_RULES[difference.rule].severity != "note" and difference.name != BATCH_SIZE
    ]


def _origin(recipe: Recipe) -> str:
    """Return the key that gives the source of the net."""
    return next(f"net.{key}" for key in ("builder", "prototxt", "function") if getattr(recipe.net, key))
