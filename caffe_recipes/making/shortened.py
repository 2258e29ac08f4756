"""What a shorter run keeps no longer of the authors' rules: the lengths of its collapses and cycles."""

from __future__ import annotations

from collections.abc import Iterator

from caffe_recipes.making.scaled import is_all_warmup
from caffe_recipes.recipe.arithmetic import images_of
from caffe_recipes.recipe.graph import find_leaves
from caffe_recipes.recipe.model import Recipe
from caffe_recipes.recipe.phases import Phase
from caffe_recipes.recipe.rules import COLLAPSE_EPOCHS
from caffe_recipes.recipe.schedule import Cycles

_SAME = 0.99  # iterations are rounded


def find_shortened(source: Recipe, made: Recipe) -> Iterator[str]:
    """Yield which parts of a rescaled recipe are shorter than section VI has them, and than its source's."""
    least, most = COLLAPSE_EPOCHS
    cycle = Cycles()
    whole = cycle.rise_epochs + cycle.fall_epochs
    rules = (
        ("collapse", least, f"the rule is {least} to {most}", _collapses),
        ("cycle", whole, f"the paper's are of {whole:g}", _cycles),
    )
    for name, epochs, rule, lengths in rules:
        before, after = lengths(source), lengths(made)
        if before and after and min(after) < _SAME * min(epochs, *before):
            shorter = f"the shortest {name} is now {min(after):.3g} epochs instead of {min(before):.3g}"
            yield f"{shorter}: {rule} (section VI), and `new` keeps that"


def _collapses(recipe: Recipe) -> list[float]:
    """Return the epochs of each collapse: a model's last phase, called so or without the augmentation."""
    result = []
    for phase in find_leaves(recipe):
        start = recipe.starts_from(phase)
        if isinstance(start, Phase):
            is_bare = _is_augmented(recipe, start) and not _is_augmented(recipe, phase)
            result += [_epochs(recipe, phase)] if is_bare or "coll" in phase.name.lower() else []
    return result


def _cycles(recipe: Recipe) -> list[float]:
    """Return the epochs of each cycle: a rise after the first, and its fall, in one phase or in two."""
    result = []
    for phase in recipe.phases:
        if phase.warmup_iter and isinstance(recipe.starts_from(phase), Phase):
            falls = [other for other in recipe.phases if recipe.starts_from(other) is phase]
            parts = [phase, *(falls[:1] if is_all_warmup(phase) else [])]
            result.append(sum(_epochs(recipe, part) for part in parts))
    return result


def _is_augmented(recipe: Recipe, phase: Phase) -> bool:
    return recipe.nets[phase.net].random_aspect_ratio is not None


def _epochs(recipe: Recipe, phase: Phase) -> float:
    return images_of(recipe, phase) / recipe.data.train.images
