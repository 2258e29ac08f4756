"""The arithmetic of epochs, iterations and time."""

from __future__ import annotations

from caffe_recipes.recipe.model import Recipe


def epochs_of(iterations: int, global_batch: int, images: int) -> float:
    """Return the passes over the images in so many iterations of a global batch.

    >>> round(epochs_of(7800, 4096, 1281167), 2)
    24.94
    """
    return iterations * global_batch / images


def total_iterations(recipe: Recipe) -> int:
    """Return the iterations of all phases."""
    return sum(phase.last_iter for phase in recipe.phases)


def total_epochs(recipe: Recipe) -> float:
    """Return the epochs of all phases."""
    return epochs_of(total_iterations(recipe), recipe.cluster.global_batch, recipe.data.train.images)


def training_minutes(recipe: Recipe, images_per_s: float) -> float:
    """Return the minutes that all phases train at a rate; staging and evaluation are extra.

    Source: 22,610 iterations of 4,096 images at the published 6,303 images/s are 244.9 minutes.
    """
    return total_iterations(recipe) * recipe.cluster.global_batch / images_per_s / 60
