"""A recipe as a graph: its phases, each with an edge from the one that it starts from."""

from __future__ import annotations

from caffe_recipes.recipe.arithmetic import images_of
from caffe_recipes.recipe.model import Recipe
from caffe_recipes.recipe.phases import Phase


def find_leaves(recipe: Recipe) -> tuple[Phase, ...]:
    """Return the phases that no other starts from, in the recipe's order; a line has one, its last.

    >>> from caffe_recipes.recipe.source import load_recipe
    >>> [phase.name for phase in find_leaves(load_recipe("digits-cyclic"))][:2]
    ['collapse1', 'collapse2']
    """
    begun_from = {
        start.name for phase in recipe.phases if isinstance(start := recipe.starts_from(phase), Phase)
    }
    return tuple(phase for phase in recipe.phases if phase.name not in begun_from)


def find_evaluated(recipe: Recipe) -> tuple[Phase, ...]:
    """Return the phases whose models are evaluated, in the recipe's order; none without an evaluation."""
    if recipe.evaluation is None:
        return ()
    named = recipe.evaluation.phases
    if named is None:
        return find_leaves(recipe)
    return tuple(phase for phase in recipe.phases if phase.name in named)


def find_averaged(recipe: Recipe) -> tuple[str, ...]:
    """Return the names of the phases whose models an ensemble has, unless others are asked for.

    >>> from caffe_recipes.recipe.source import load_recipe
    >>> find_averaged(load_recipe("paper-f4-4096-120ep"))
    ('c2', 'c3', 'c4', 'c5', 'c6')
    """
    return recipe.ensemble.members if recipe.ensemble else tuple(leaf.name for leaf in find_leaves(recipe))


def line_to(recipe: Recipe, phase: Phase) -> tuple[Phase, ...]:
    """Return the phases that a phase's model has gone through, the first one first and the phase last.

    >>> from caffe_recipes.recipe.source import load_recipe
    >>> cyclic = load_recipe("digits-cyclic")
    >>> [each.name for each in line_to(cyclic, cyclic.phase("collapse2"))]
    ['init', 'cyc1', 'cyc2', 'collapse2']
    """
    line = [phase]
    while isinstance(start := recipe.starts_from(line[0]), Phase):
        line.insert(0, start)
    return tuple(line)


def main_line(recipe: Recipe) -> tuple[Phase, ...]:
    """Return the line that takes longest, by images trained on; of several the one that ends last.

    No phase of it waits for one that is not on it: those are branches, and may be trained beside it.

    >>> from caffe_recipes.recipe.source import load_recipe
    >>> [phase.name for phase in main_line(load_recipe("digits-cyclic"))]
    ['init', 'cyc1', 'cyc2', 'cyc3', 'cyc4', 'cyc5', 'collapse5']
    """
    lines = [line_to(recipe, leaf) for leaf in find_leaves(recipe)]
    return max(reversed(lines), key=lambda line: sum(images_of(recipe, phase) for phase in line))
