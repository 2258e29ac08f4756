"""The arithmetic of epochs, iterations and time."""

from __future__ import annotations

from caffe_recipes.recipe.model import Recipe
from caffe_recipes.recipe.phases import Phase


def epochs_of(iterations: int, global_batch: int, images: int) -> float:
    """Return the passes over the images in so many iterations of a global batch.

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


def total_images(recipe: Recipe) -> int:
    """Return the images that all phases train on."""
    return sum(images_of(recipe, phase) for phase in recipe.phases)


def total_epochs(recipe: Recipe) -> float:
    """Return the epochs of all phases."""
    return total_images(recipe) / recipe.data.train.images


def images_before(recipe: Recipe, phase: Phase) -> int:
    """Return the images that the weights a phase starts from have been trained on by earlier phases."""
    start = recipe.starts_from(phase)
    if not isinstance(start, Phase):
        return 0
    iterations = phase.weights_iter or start.last_iter
    return images_before(recipe, start) + iterations * images_per_iter(recipe, start)


def model_images(recipe: Recipe) -> int:
    """Return the images that the last phase's model has been trained on, which a branch may make fewer."""
    last = recipe.phases[-1]
    return images_before(recipe, last) + images_of(recipe, last)


def model_epochs(recipe: Recipe) -> float:
    """Return the epochs behind the last phase's model.

    Source: the 448-node collapse starts from iteration 7638 of 8040 and adds 402, so its model is 8040
    iterations, 89.97 epochs old, while both phases together are 94.46.
    """
    return model_images(recipe) / recipe.data.train.images


def training_minutes(recipe: Recipe, images_per_s: float) -> float:
    """Return the minutes that all phases train at a rate; staging and evaluation are extra.

    Source: 22,610 iterations of 4,096 images at the published 6,303 images/s are 244.9 minutes.
    """
    return total_images(recipe) / images_per_s / 60
