"""What a recipe states besides its solvers and nets: the images of its evaluation, and of its digits."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from caffe_recipes.recipe.checks import Location
from caffe_recipes.recipe.model import Recipe
from caffe_recipes.review.findings import Finding
from caffe_recipes.review.lint.rules import finding

# What `prepare: digits` builds: data/digits.py, which stands beside review and is not asked.
DIGITS_CLASSES = 10
DIGITS_SIDE_PX = 32

_Locate = Callable[[Location], str]


def check_recipe_values(recipe: Recipe, locate: _Locate) -> Iterator[Finding]:
    """Find an evaluation of other images than there are, and a net that does not fit the digits."""
    yield from _evaluation(recipe, locate(("evaluation", "iterations")))
    if recipe.data.prepare == "digits":
        yield from _classes(recipe, locate(("net", "classes")))
        yield from _crop(recipe, locate(("data", "crop_size")))


def _evaluation(recipe: Recipe, where: str) -> Iterator[Finding]:
    if recipe.evaluation is None:
        return
    test, iterations = recipe.data.test, recipe.evaluation.iterations
    tested, whole = iterations * test.batch_size, math.ceil(test.images / test.batch_size)
    images = f"{iterations} iterations of {test.batch_size} are {tested:,} images"
    if tested < test.images:
        what = f"the evaluation tests {tested:,} of {test.images:,} images"
        effect = "the accuracy is that of the first images of the test LMDB, in its order"
        write = f"iterations: {whole}"
        yield finding("evaluation-partial", where, what, effect, write, tested=tested, images=test.images)
    elif tested > test.images:
        what = f"{images}, and there are {test.images:,}"
        effect = f"{tested - test.images:,} of them are counted again"
        divisor = max(size for size in range(1, test.batch_size + 1) if test.images % size == 0)
        write = f"iterations: {whole}"
        if iterations == whole:
            once = f"batch_size: {divisor} and iterations: {test.images // divisor}, for each image once"
            write = once if divisor > 1 else "nothing, if it is known to do"
        yield finding("evaluation-repeats", where, what, effect, write, tested=tested, images=test.images)


def _classes(recipe: Recipe, where: str) -> Iterator[Finding]:
    classes = recipe.net.classes
    if classes < DIGITS_CLASSES:
        what = f"classes is {classes}, and the digits have {DIGITS_CLASSES}"
        effect = f"labels {classes} and above make Caffe read beyond the outputs: SIGSEGV"
        yield finding(
            "classes-below-labels", where, what, effect, f"classes: {DIGITS_CLASSES}", classes=classes
        )
    elif classes > DIGITS_CLASSES:
        what = f"classes is {classes}, and the digits have {DIGITS_CLASSES}"
        effect = f"outputs {DIGITS_CLASSES} and above are never right, and cost little"
        yield finding(
            "classes-above-labels", where, what, effect, f"classes: {DIGITS_CLASSES}", classes=classes
        )


def _crop(recipe: Recipe, where: str) -> Iterator[Finding]:
    crop = recipe.data.crop_size or 0
    # What is resized first is as large as it is made.
    trained = [name for name, net in recipe.nets.items() if net.random_aspect_ratio is None]
    tested = [name for name, net in recipe.nets.items() if net.test and not recipe.data.test.shorter_side_px]
    names = list(dict.fromkeys([*trained, *tested]))
    if crop > DIGITS_SIDE_PX and names:
        what = f"crop_size is {crop}, and the digits are {DIGITS_SIDE_PX} pixels high and wide, in {names[0]}"
        effect = "the trainer stops at the first image: Check failed: height >= crop_size"
        yield finding("crop-above-records", where, what, effect, f"crop_size: {DIGITS_SIDE_PX} or less")
