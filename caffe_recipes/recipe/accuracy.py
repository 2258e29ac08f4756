"""The epochs in which the paper's ResNet-50 reaches a top-1 accuracy.

Source of all numbers: arXiv:1711.04291, cited by section or table.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from caffe_recipes.errors import InputError
from caffe_recipes.recipe.model import Recipe

_IMAGENET_IMAGES = 1_281_167
_CYCLES = "Figure 4's cycles and a collapse"
_LINEAR = "a warm-up of 5 epochs and a linear decay"
# Section VI: "for batch sizes of up to 8K/12K".
_HOLDS_TO = 12 * 1024


@dataclass(frozen=True)
class Target:
    """A top-1 accuracy in percent, the epochs that it takes, and how the paper reached it.

    `batch` is the global batch that the paper trained with, and `most` the largest for which it says, or
    shows, that the epochs hold.
    """

    percent: float
    epochs: int
    how: str
    batch: int
    most: int


def _large(percent: float, epochs: int, batch: int) -> Target:
    """Return a target that the paper reached with a very large batch (Table IX)."""
    return Target(percent, epochs, f"a run at {batch:,} images per iteration, Table IX", batch, batch)


# Linear decay: section V-A 1 (Tables II to IV hold the runs, with up to 12,288 images per iteration).
# Cycles: sections IV-D and VI. One epoch count for each accuracy: the section's, not that of single runs.
TARGETS = (
    Target(73, 29, f"{_LINEAR}, section V-A", 8192, _HOLDS_TO),
    _large(73.94, 107, 65_536),
    Target(74, 50, f"{_LINEAR}, section V-A; 37 at 4,096 images per iteration, Table III", 8192, _HOLDS_TO),
    _large(74.6, 100, 49_152),
    Target(75, 90, f"{_LINEAR}, section V-A: 75 to 75.8%", 8192, _HOLDS_TO),
    _large(75.31, 100, 32_768),
    Target(75.5, 48, f"{_CYCLES}, section VI", 4096, _HOLDS_TO),
    Target(76, 64, f"{_CYCLES}, section VI", 4096, _HOLDS_TO),
    _large(76.26, 92, 16_384),
    _large(76.4, 91, 10_240),
    Target(76.5, 78, f"{_CYCLES}, section VI", 4096, _HOLDS_TO),
    Target(77, 120, f"{_CYCLES}, section IV-D; Table XI has at most 76.83%", 4096, _HOLDS_TO),
    Target(77.5, 120, f"{_CYCLES}, five models averaged by `ensemble`, section VI", 4096, _HOLDS_TO),
)
# The accuracies of Tables XII and XIII.
PROJECTED = (75.5, 76.0, 76.5)


def find_target(recipe: Recipe, percent: float) -> Target:
    """Return the paper's epochs to an accuracy.

    Raises InputError if the paper has none, or for another net or other images than the paper's.
    """
    found = next((target for target in TARGETS if target.percent == percent), None)
    if found is None:
        known = ", ".join(f"{target.percent:g} ({target.epochs} epochs)" for target in TARGETS)
        what = f"the epochs to {percent:g}% top-1 are unknown"
        raise InputError("--to-accuracy", what, f"the paper gives them for {known}")
    if recipe.net.builder != "resnet50" or recipe.data.train.images != _IMAGENET_IMAGES:
        what = f"{recipe.name} does not train the paper's net on the paper's images"
        raise InputError("--to-accuracy", what, "give a recipe for ResNet-50 on ImageNet-1K")
    return found


def describe_target(target: Target, batch: int) -> Iterator[str]:
    """Yield notes on a target at a global batch: its source, and whether the paper says that it holds."""
    takes = f"{target.percent:g}% top-1 takes {target.epochs} epochs"
    yield f"{takes} according to the paper ({target.how}), not by the recipe's phases"
    if batch > target.most:
        what = f"{batch:,} images per iteration: the paper trained with {target.batch:,}"
        holds = ", and says that the same seems to hold for batch sizes of up to 8K to 12K"
        yield what + (holds if target.most > target.batch else "")
