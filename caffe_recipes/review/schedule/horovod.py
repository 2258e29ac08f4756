"""The arithmetic behind the numbers of a TensorFlow and Horovod run; as values, and as lines of text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass

from caffe_recipes.recipe.model import Recipe
from caffe_recipes.recipe.rules import REFERENCE_BATCH, REFERENCE_LR, scaled_lr


@dataclass(frozen=True)
class HorovodArithmetic:
    """The run's numbers from its shape; epochs by the source's round count of images, and by the recipe's.

    Speeds are images a second, `minutes` those of training at the reported one; None where none is reported.
    """

    workers: int
    batch: int
    steps: int
    steps_per_epoch: float
    warmup_epochs: float
    epochs: float
    images_per_epoch: int
    epochs_of_all_images: float
    images: int
    scaled_learning_rate: float
    end_learning_rate: float
    images_per_s: float | None
    images_per_s_per_node: float | None
    images_per_s_if_linear: float | None
    minutes: float | None


def horovod_arithmetic(recipe: Recipe) -> HorovodArithmetic | None:
    """Compute a recipe's run of TensorFlow; None if it has none.

    Source: section 7 b of SURFsara's and Intel's recipe for TensorFlow 1.6.
    """
    run, cluster, images = recipe.tensorflow, recipe.cluster, recipe.data.train.images
    if run is None:
        return None
    per_epoch = run.images_per_epoch / cluster.global_batch
    trained = run.schedule.steps * cluster.global_batch
    speed = recipe.reported.images_per_s
    return HorovodArithmetic(
        workers=cluster.ranks,
        batch=cluster.global_batch,
        steps=run.schedule.steps,
        steps_per_epoch=per_epoch,
        warmup_epochs=run.schedule.warmup_steps / per_epoch,
        epochs=run.schedule.steps / per_epoch,
        images_per_epoch=run.images_per_epoch,
        epochs_of_all_images=trained / images,
        images=images,
        scaled_learning_rate=scaled_lr(cluster.global_batch),
        end_learning_rate=run.schedule.end_learning_rate,
        images_per_s=speed,
        images_per_s_per_node=speed / cluster.nodes if speed else None,
        images_per_s_if_linear=speed / run.linear_share if speed and run.linear_share else None,
        minutes=trained / speed / 60 if speed else None,
    )


def horovod_values(recipe: Recipe) -> dict[str, object] | None:
    """Return what the run is told and what follows from it, for JSON."""
    found = horovod_arithmetic(recipe)
    if found is None or recipe.tensorflow is None:
        return None
    return {**recipe.tensorflow.model_dump(), "arithmetic": asdict(found)}


def horovod_lines(recipe: Recipe) -> Iterator[str]:
    """Yield the arithmetic of a recipe's run of TensorFlow, a sentence each; nothing if it has none."""
    found, run, cluster = horovod_arithmetic(recipe), recipe.tensorflow, recipe.cluster
    if found is None or run is None:
        return
    told = run.schedule
    yield f"{found.workers} workers x {cluster.batch_per_rank} images = {found.batch:,} images a step"
    yield f"{found.images_per_epoch:,} / {found.batch:,} = {found.steps_per_epoch:.2f} steps an epoch"
    yield (
        f"{found.steps:,} steps / {found.steps_per_epoch:.2f} = {found.epochs:.1f} epochs; of all "
        f"{found.images:,} images {found.epochs_of_all_images:.1f}"
    )
    scaled, times = found.scaled_learning_rate, found.scaled_learning_rate / found.end_learning_rate
    parted = "halved to" if times == 2 else f"divided by {times:.3g}:"
    yield (
        f"{REFERENCE_LR:g} x {found.batch:,} / {REFERENCE_BATCH} = {scaled:g}, {parted} "
        f"{found.end_learning_rate:g}"
    )
    yield (
        f"rate {told.learning_rate:g} to {told.end_learning_rate:g} in {told.warmup_steps} steps, "
        f"{found.warmup_epochs:.2f} epochs, then linearly to 0 in {told.steps - told.warmup_steps:,}"
    )
    if found.minutes is not None and found.images_per_s:
        yield (
            f"{found.steps:,} x {found.batch:,} images / {found.images_per_s:,g} images/s = "
            f"{found.minutes:.0f} minutes"
        )
    if found.images_per_s_if_linear and run.linear_share:
        yield (
            f"{found.images_per_s:,g} images/s are {100 * run.linear_share:g} % of linear, "
            f"{found.images_per_s_if_linear:,.0f}: {found.images_per_s_per_node:.1f} a node, where a node "
            f"alone makes {found.images_per_s_if_linear / cluster.nodes:.1f}"
        )


def of_another_run(recipe: Recipe, step: int) -> str | None:
    """Say why a model of a global step is not what a recipe's run ends with; None if it is.

    >>> from caffe_recipes.recipe.source import load_recipe
    >>> of_another_run(load_recipe("tf-256n-90ep"), 14075)
    'tf-256n-90ep ends at step 4,680; 14,075 steps are 90 epochs at a batch of 8,192, another run'
    """
    run = recipe.tensorflow
    if run is None or step == run.schedule.steps:
        return None
    ends = f"{recipe.name} ends at step {run.schedule.steps:,}"
    epochs, images = recipe.reported.epochs, recipe.data.train.images
    batch = _batch_of(step, epochs * images) if epochs and step else None
    if batch:
        return f"{ends}; {step:,} steps are {epochs:g} epochs at a batch of {batch:,}, another run"
    return f"{ends}; {'a model on its way, or ' if step < run.schedule.steps else ''}another run"


def _batch_of(step: int, images: float) -> int | None:
    """Return the batch, a whole number of times 256, with which so many images are so many steps.

    The last batch of an epoch may be left out or be a part: within a step.

    >>> _batch_of(14075, 90 * 1281167), _batch_of(14000, 90 * 1281167)
    (8192, None)
    """
    batch = round(images / step / REFERENCE_BATCH) * REFERENCE_BATCH
    return batch if batch and abs(images / batch - step) < 1 else None
