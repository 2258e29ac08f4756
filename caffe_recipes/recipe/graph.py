"""A recipe's phases as a graph, with an edge from each phase to those that start from it.

Also here: the arithmetic of iterations, images and epochs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from caffe_recipes.recipe.model import AnyRecipe, Phase, Recipe


def epochs_of(iterations: int, global_batch: int, images: int) -> float:
    """Return the epochs (passes over `images`) in a number of iterations.

    >>> round(epochs_of(7800, 4096, 1281167), 2)
    24.94
    """
    return iterations * global_batch / images


def images_of(recipe: Recipe, phase: Phase) -> int:
    """Return the images that a phase trains on; each iteration takes `iter_size` global batches."""
    return phase.last_iter * images_per_iter(recipe, phase)


def images_per_iter(recipe: Recipe, phase: Phase) -> int:
    """Return the images of one iteration of a phase over all ranks."""
    return recipe.cluster.global_batch * (phase.iter_size or 1)


def total_iterations(recipe: Recipe) -> int:
    """Return the iterations of all phases."""
    return sum(phase.last_iter for phase in recipe.phases)


def total_images(recipe: AnyRecipe) -> int:
    """Return the images that all phases train on, or all steps of TensorFlow."""
    from caffe_recipes.recipe.model import TensorFlowRecipe  # pydantic

    if isinstance(recipe, TensorFlowRecipe):
        return recipe.tensorflow.schedule.steps * recipe.cluster.global_batch
    return sum(images_of(recipe, phase) for phase in recipe.phases)


def total_epochs(recipe: Recipe) -> float:
    """Return the epochs of all phases."""
    return total_images(recipe) / recipe.data.train.images


def images_before(recipe: Recipe, phase: Phase) -> int:
    """Return the number of images that the initial weights of a phase have been trained on."""
    from caffe_recipes.recipe.model import Phase  # pydantic

    start = recipe.starts_from(phase)
    if not isinstance(start, Phase):
        return 0
    iterations = phase.weights_iter or start.last_iter
    return images_before(recipe, start) + iterations * images_per_iter(recipe, start)


def model_images(recipe: Recipe) -> int:
    """Return the number of images that the last phase's model has been trained on, without other branches."""
    last = recipe.phases[-1]
    return images_before(recipe, last) + images_of(recipe, last)


def model_epochs(recipe: Recipe) -> float:
    """Return the number of epochs that the last phase's model has been trained for.

    Source: the 448-node collapse starts from iteration 7638 of 8040 and adds 402, so its model has been
    trained for 8040 iterations, or 89.97 epochs; both phases together take 94.46 epochs.
    """
    return model_images(recipe) / recipe.data.train.images


def training_minutes(recipe: Recipe, images_per_s: float) -> float:
    """Return the training time of all phases in minutes, without staging and evaluation.

    Source: 22,610 iterations of 4,096 images at the published 6,303 images/s are 244.9 minutes.
    """
    return total_images(recipe) / images_per_s / 60


def find_leaves(recipe: Recipe) -> tuple[Phase, ...]:
    """Return the phases from which no other phase starts, in the recipe's order.

    >>> from caffe_recipes.recipe.source import load_recipe
    >>> [phase.name for phase in find_leaves(load_recipe("digits-cyclic"))][:2]
    ['collapse1', 'collapse2']
    """
    from caffe_recipes.recipe.model import Phase  # pydantic

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
    """Return the names of the phases whose models an ensemble averages by default.

    >>> from caffe_recipes.recipe.source import load_recipe
    >>> find_averaged(load_recipe("paper-f4-4096-120ep"))
    ('c2', 'c3', 'c4', 'c5', 'c6')
    """
    return recipe.ensemble.members if recipe.ensemble else tuple(leaf.name for leaf in find_leaves(recipe))


def line_to(recipe: Recipe, phase: Phase) -> tuple[Phase, ...]:
    """Return the phases that lead to a phase, from the first one to the phase itself.

    >>> from caffe_recipes.recipe.source import load_recipe
    >>> cyclic = load_recipe("digits-cyclic")
    >>> [each.name for each in line_to(cyclic, cyclic.phase("collapse2"))]
    ['init', 'cyc1', 'cyc2', 'collapse2']
    """
    from caffe_recipes.recipe.model import Phase  # pydantic

    line = [phase]
    while isinstance(start := recipe.starts_from(line[0]), Phase):
        line.insert(0, start)
    return tuple(line)


def main_line(recipe: Recipe) -> tuple[Phase, ...]:
    """Return the line of phases that trains on the most images; if several do, the one that ends last.

    All other phases are branches: the main line does not wait for them, so they may train at the same time.

    >>> from caffe_recipes.recipe.source import load_recipe
    >>> [phase.name for phase in main_line(load_recipe("digits-cyclic"))]
    ['init', 'cyc1', 'cyc2', 'cyc3', 'cyc4', 'cyc5', 'collapse5']
    """
    lines = [line_to(recipe, leaf) for leaf in find_leaves(recipe)]
    return max(reversed(lines), key=lambda line: sum(images_of(recipe, phase) for phase in line))
