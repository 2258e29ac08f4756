"""Rules for the rest of a recipe: its evaluation, and its nets for the digits data set."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.layers import source_batch
from caffe_recipes.caffe.net_states import NetState, select_data_layers
from caffe_recipes.review.lint.registry import finding
from caffe_recipes.review.lint.subjects import RecipeView, recipe_rule

if TYPE_CHECKING:
    from caffe_recipes.review.lint.findings import Finding


# The images that `prepare: digits` builds. They are defined in data/digits.py, which this package must not
# import.
DIGITS_CLASSES = 10
DIGITS_SIDE_PX = 32


@recipe_rule(
    "unknown-flag",
    "warning",
    "a flag that the TensorFlow programs of this package do not know",
    what="{fault}",
    effect="every rank exits at once, unless RESNET_DIR names other programs",
    values=("flag",),
)
def _check_flags(view: RecipeView) -> Iterator[Finding]:
    recipe = view.recipe
    from caffe_recipes.tensorflow.run import find_unknown_flags  # slow, since pydantic is

    for location, fault, hint in find_unknown_flags(recipe.tensorflow) if recipe.tensorflow else ():
        yield finding("unknown-flag", view.locate(location), write=hint, fault=fault, flag=location[-1])


_MOST_DIVISORS = 100_000  # that are tried; the batch of a net may be any number


@recipe_rule(
    "evaluation-partial",
    "warning",
    "an evaluation that does not use all test images",
    what="the evaluation tests only {tested:,} of {images:,} images",
    effect="the accuracy is measured on the first images of the test set only",
    write="iterations: {whole}",
    values=("tested", "images"),
)
@recipe_rule(
    "evaluation-repeats",
    "note",
    "an evaluation that counts test images twice",
    effect="{extra:,} of them are counted twice",
    values=("tested", "images"),
)
def _check_evaluation(view: RecipeView) -> Iterator[Finding]:
    recipe, where = view.recipe, view.locate(("evaluation", "iterations"))
    if recipe.evaluation is None:
        return
    count, batch = recipe.data.test.images, recipe.data.test.batch_size
    if recipe.data.is_in_net:
        layers = select_data_layers(view.evaluated, NetState(pb.TEST)) if view.evaluated else []
        batch = next(filter(None, map(source_batch, layers)), 0)
    if not batch:
        return
    iterations = recipe.evaluation.iterations
    tested, whole = iterations * batch, math.ceil(count / batch)
    images = f"{iterations} iterations of {batch} test {tested:,} images"
    if tested < count:
        yield finding("evaluation-partial", where, tested=tested, images=count, whole=whole)
    elif tested > count:
        what = f"{images}, but the test set has {count:,}"
        divisor = max(size for size in range(1, min(batch, _MOST_DIVISORS) + 1) if count % size == 0)
        write = f"iterations: {whole}"
        if iterations == whole:
            once = f"batch_size: {divisor} and iterations: {count // divisor}, to test each image once"
            write = once if divisor > 1 else "no change needed if this is intended"
        yield finding(
            "evaluation-repeats",
            where,
            what,
            write=write,
            tested=tested,
            images=count,
            extra=tested - count,
        )


@recipe_rule(
    "classes-below-labels",
    "error",
    "fewer classes than the data set that `prepare` builds",
    what="classes is {classes}, but the digits have {known}",
    effect="labels from {classes} on make Caffe read past the outputs and crash (SIGSEGV)",
    write="classes: {known}",
    values=("classes",),
)
@recipe_rule(
    "classes-above-labels",
    "note",
    "more classes than the data set that `prepare` builds",
    what="classes is {classes}, but the digits have {known}",
    effect="outputs from {known} on are never used, which is harmless",
    write="classes: {known}",
    values=("classes",),
)
def _check_classes(view: RecipeView) -> Iterator[Finding]:
    if view.recipe.data.prepare != "digits":
        return
    where, classes = view.locate(("net", "classes")), view.recipe.net.classes
    if classes < DIGITS_CLASSES:
        yield finding("classes-below-labels", where, classes=classes, known=DIGITS_CLASSES)
    elif classes > DIGITS_CLASSES:
        yield finding("classes-above-labels", where, classes=classes, known=DIGITS_CLASSES)


@recipe_rule(
    "crop-above-records",
    "error",
    "a crop_size larger than the images that `prepare` builds",
    what="crop_size is {crop} in {field}, but the digits are {side_px}x{side_px} pixels",
    effect="the trainer aborts at the first image: Check failed: height >= crop_size",
    write="crop_size: {side_px} or less",
)
def _check_crop(view: RecipeView) -> Iterator[Finding]:
    recipe = view.recipe
    crop = recipe.data.crop_size or 0
    # Images that are resized first are large enough.
    trained = [name for name, net in recipe.nets.items() if net.random_aspect_ratio is None]
    tested = [name for name, net in recipe.nets.items() if net.test and not recipe.data.test.shorter_side_px]
    names = list(dict.fromkeys([*trained, *tested]))
    if recipe.data.prepare == "digits" and crop > DIGITS_SIDE_PX and names:
        where = view.locate(("data", "crop_size"))
        yield finding("crop-above-records", where, crop=crop, field=names[0], side_px=DIGITS_SIDE_PX)
