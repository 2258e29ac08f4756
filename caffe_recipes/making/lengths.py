"""What a run of other length keeps no longer of the authors' rules: its collapses, cycles and their rises."""

from __future__ import annotations

from collections.abc import Iterator

from caffe_recipes.making.scaled import is_all_warmup
from caffe_recipes.recipe.arithmetic import images_of, images_per_iter
from caffe_recipes.recipe.graph import find_leaves
from caffe_recipes.recipe.model import Recipe
from caffe_recipes.recipe.phases import Phase
from caffe_recipes.recipe.rules import COLLAPSE_EPOCHS
from caffe_recipes.recipe.schedule import Cycles

_SAME = 0.99  # iterations are rounded


def find_unruly(source: Recipe, made: Recipe) -> Iterator[str]:
    """Yield which parts of a rescaled recipe are shorter or longer than in section VI and in its source."""
    (least, most), cycles = COLLAPSE_EPOCHS, Cycles()
    rise, whole = cycles.rise_epochs, cycles.rise_epochs + cycles.fall_epochs
    rules = (
        ("collapse", least, most, f"the rule is {least} to {most}", _collapses),
        ("cycle", whole, whole, f"the paper's are of {whole:g}", _cycles),
        ("rise", rise, rise, f"the paper's are of {rise:g}", _rises),
    )
    for name, low, high, rule, lengths in rules:
        before, after = lengths(source), lengths(made)
        if not before or not after:
            continue
        kept = f"{rule} (section VI), and `new` keeps that"
        if min(after) < _SAME * min(low, *before):
            yield f"the shortest {name} is now {min(after):.3g} epochs instead of {min(before):.3g}: {kept}"
        if max(after) * _SAME > max(high, *before):
            yield f"the longest {name} is now {max(after):.3g} epochs instead of {max(before):.3g}: {kept}"


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
    """Return the epochs of each cycle: a rise and its fall, in one phase or in two."""
    result = []
    for phase in _rising(recipe):
        falls = [other for other in recipe.phases if recipe.starts_from(other) is phase]
        parts = [phase, *(falls[:1] if is_all_warmup(phase) else [])]
        result.append(sum(_epochs(recipe, part) for part in parts))
    return result


def _rises(recipe: Recipe) -> list[float]:
    """Return the epochs of each rise after the first."""
    return [
        _epochs(recipe, phase)
        if is_all_warmup(phase)
        else (phase.warmup_iter or 0) * images_per_iter(recipe, phase) / recipe.data.train.images
        for phase in _rising(recipe)
    ]


def _rising(recipe: Recipe) -> list[Phase]:
    """Return the phases that warm up again."""
    return [
        phase for phase in recipe.phases if phase.warmup_iter and isinstance(recipe.starts_from(phase), Phase)
    ]


def _is_augmented(recipe: Recipe, phase: Phase) -> bool:
    return recipe.nets[phase.net].random_aspect_ratio is not None


def _epochs(recipe: Recipe, phase: Phase) -> float:
    return images_of(recipe, phase) / recipe.data.train.images
