"""The recipes that ship: which Caffe trains, and which the repository holds the files of."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from caffe_recipes.recipe.shipped import shipped_recipes
from caffe_recipes.tensorflow.run import GradualWarmup

OF_CAFFE = [
    name
    for name, one in shipped_recipes().items()
    if "\ntrainer: tensorflow\n" not in one.file.read_text("utf-8")
]
_MAKEFILE = (Path(__file__).parent.parent / "Makefile").read_text()
# What `make generate` writes; the others have digests.
COMMITTED = _MAKEFILE.partition("\nRECIPES := ")[2].partition("\n")[0].split()


def rates_of(schedule: GradualWarmup) -> list[float]:
    """Return the rate of every step of a TensorFlow run."""
    return [
        low + (high - low) * (step - begin) / (end - begin)
        for (begin, low), (end, high) in pairwise(schedule.breakpoints)
        for step in range(begin, end)
    ]
