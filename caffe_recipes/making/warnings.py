"""What a batch, and so many epochs of it, are known to cost: the paper's accuracies, and runs with LARS."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from caffe_recipes.recipe.rules import ACCURACY, HIGHEST_LR, LARGE_BATCH, LARS_EPOCHS, lars_epochs

_FALLS_ABOVE = ACCURACY[0][0]
_LARGEST = ACCURACY[-1][0]
# Whose epochs may be compared with those that others needed on ImageNet-1K.
IMAGENET_IMAGES = range(1_000_000, 1_500_000)


def find_warnings(batch: int, epochs: float, images: int) -> Iterator[str]:
    """Yield what is known to be lost at a batch, and on ImageNet with fewer epochs than others need.

    >>> [line.partition(":")[0] for line in find_warnings(16384, 40, 1281167)]
    ['batch 16,384', '40 epochs']
    """
    if batch > _FALLS_ABOVE:
        table = ", ".join(f"{top1:g} % at {size:,}" for size, top1 in ACCURACY)
        what = f"batch {batch:,}: the paper's accuracy falls above 8K (section V-B): {table} (Table X)"
        yield f"{what}; {_what_it_did(batch)}"
    needed = lars_epochs(batch)
    if images not in IMAGENET_IMAGES:
        return
    if needed is None:
        size, most = LARS_EPOCHS[-1]
        yield f"batch {batch:,}: above {size:,}, where runs with LARS take {most:g} epochs, nothing is known"
    elif epochs < needed * 0.995:
        what = f"MLPerf's runs with LARS take {_lars(batch, needed)}"
        yield f"{epochs:.4g} epochs: {what}, and this SGD is no better at it"


def _lars(batch: int, needed: float) -> str:
    """Say what is published of a batch, or of those around it.

    >>> _lars(8192, 42), _lars(16384, 49)
    ('42 to 75.9 % at a batch of 8,192', '42 to 75.9 % at 8,192 and 56 at 32,768, by our line 49 at 16,384')
    """
    least = LARS_EPOCHS[0][0]
    if batch <= least or batch in dict(LARS_EPOCHS):
        return f"{needed:.3g} to 75.9 % at a batch of {max(batch, least):,}"
    (low, before), (high, after) = next(pair for pair in pairwise(LARS_EPOCHS) if batch <= pair[1][0])
    return f"{before:g} to 75.9 % at {low:,} and {after:g} at {high:,}, by our line {needed:.3g} at {batch:,}"


def _what_it_did(batch: int) -> str:
    """Say how the paper held against it."""
    did = "it halved the weight decay and collapsed the end"
    if batch >= LARGE_BATCH:
        did += f", kept the rate at {HIGHEST_LR:g} and warmed up for 7 to 10 epochs (section V-C)"
    if batch >= _LARGEST:
        did += ", and let the weight decay grow in steps, as paper-t9-65536-128n does"
    return did
