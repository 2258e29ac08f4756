"""The authors' rules for a schedule: each a formula, with where it is from.

Source, where no other is named: arXiv:1711.04291, by its sections. What it leaves open is fixed here, once,
and said to be so.
"""

from __future__ import annotations

import math
from itertools import pairwise

REFERENCE_LR, REFERENCE_BATCH = 0.1, 256
HIGHEST_LR = 6.4
LARGE_BATCH = 16_384
WARMUP_START_LR = 0.1
WEIGHT_DECAY, SMALL_WEIGHT_DECAY = 0.0001, 0.00005
MOMENTUM = 0.9
STEPS_EPOCHS = (30, 60, 80)
STEP_GAMMA = 0.1
WARMUP_EPOCHS = 5
COLLAPSE_SHARE = 0.06
COLLAPSE_EPOCHS = (3, 10)  # the least and the most

_LARGE_WARMUP_EPOCHS, _LONGEST_WARMUP_EPOCHS = 7, 10
_WARMUP_EPOCHS_PER_DOUBLING = 1.5


def scaled_lr(batch: int) -> float:
    """Return the rate by linear scaling, 0.1 for each 256 images of a batch.

    Source: section IV-D, which takes it from Goyal et al., arXiv:1706.02677.

    >>> scaled_lr(4096), scaled_lr(11520)
    (1.6, 4.5)
    """
    return round(REFERENCE_LR * batch / REFERENCE_BATCH, 10)


def peak_lr(batch: int) -> float:
    """Return the rate that a run of this batch warms up to: scaled linearly, and 6.4 from 16,384 images on.

    Source: section V-C. At 16,384 both are the same.

    >>> peak_lr(12288), peak_lr(16384), peak_lr(65536)
    (4.8, 6.4, 6.4)
    """
    return min(scaled_lr(batch), HIGHEST_LR)


def warmup_start_lr(batch: int) -> float:
    """Return the rate at which a warm-up begins: 0.1, or the peak itself where that is lower.

    Source: both published recipes, and Goyal et al.

    >>> warmup_start_lr(8192), warmup_start_lr(32)
    (0.1, 0.0125)
    """
    return min(WARMUP_START_LR, peak_lr(batch))


def warmup_epochs(batch: int) -> float:
    """Return the epochs of warm-up: 5, and from 16,384 images on 7, with 1.5 more for each doubling up to 10.

    Source: section IV-D for the 5; section V-C says "typically longer, at around 7-10 epochs" of the batches
    of 16,384 to 65,536 images. That 7 belongs to the least of them and 10 to the largest is ours.

    >>> [warmup_epochs(batch) for batch in (8192, 16384, 32768, 65536, 131072)]
    [5, 7.0, 8.5, 10.0, 10]
    """
    if batch < LARGE_BATCH:
        return WARMUP_EPOCHS
    longer = _LARGE_WARMUP_EPOCHS + _WARMUP_EPOCHS_PER_DOUBLING * math.log2(batch / LARGE_BATCH)
    return min(longer, _LONGEST_WARMUP_EPOCHS)


def collapse_epochs(epochs: float) -> float:
    """Return the epochs of a run's final collapse: 6 % of all, but 3 to 10.

    Source: section V-B has "the last 5-7 %", section VI "between 3-10 epochs". The middle is ours.

    >>> [round(collapse_epochs(epochs), 2) for epochs in (40, 90, 200)]
    [3, 5.4, 10]
    """
    least, most = COLLAPSE_EPOCHS
    return min(max(COLLAPSE_SHARE * epochs, least), most)


def ramp_decays(start: float, end: float, steps: int) -> tuple[float, ...]:
    """Return weight decays that grow by equal factors from `start`, and would be `end` after as many steps.

    Source: sections V-C and VI have a weight decay that grows several times; by how much is ours. Rounded to
    two digits.

    >>> ramp_decays(0.00005, 0.0001, 3)
    (5e-05, 6.3e-05, 7.9e-05)
    """
    return tuple(float(f"{start * (end / start) ** (step / steps):.2g}") for step in range(steps))


def decay_horizon(length: float, times: float, power: float) -> float:
    """Return after how long a polynomial decay reaches 0 that divides the rate by `times` within `length`.

    (1 - length / horizon)^power = 1 / times. `length` may be in any unit; the horizon is in the same.

    >>> decay_horizon(12, 4, power=2), decay_horizon(30, 2, power=1)
    (24.0, 60.0)
    """
    return length / (1 - math.pow(times, -1 / power))


# Batch, and epochs to a top-1 accuracy of 75.9 %: public results of MLPerf Training's ResNet-50 with LARS.
LARS_EPOCHS = ((4096, 40.0), (8192, 42.0), (32_768, 56.0), (65_536, 84.5))

# Table X: batch, and the paper's top-1 accuracy in percent.
ACCURACY = ((8192, 76.6), (16_384, 76.26), (32_768, 75.31), (49_152, 74.6), (65_536, 73.94))


def lars_epochs(batch: int) -> float | None:
    """Return the epochs that LARS takes to 75.9 % at a batch; None beyond the largest that is published.

    Below the smallest it is that one's. Between two it is a line over the batch's logarithm, which is ours.

    >>> lars_epochs(1024), lars_epochs(8192), lars_epochs(16_384), lars_epochs(131_072)
    (40.0, 42.0, 49.0, None)
    """
    if batch <= LARS_EPOCHS[0][0]:
        return LARS_EPOCHS[0][1]
    for (low, before), (high, after) in pairwise(LARS_EPOCHS):
        if batch <= high:
            share = math.log(batch / low) / math.log(high / low)
            return before + share * (after - before)
    return None
