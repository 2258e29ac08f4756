"""The kernels of Intel's `gabor` filler: waves under a Gaussian, for the first convolution of four nets.

A kernel depends on its index, the number of kernels and their size, and on nothing random.
Source: Intel Caffe, include/caffe/gabor.hpp.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import pi

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Wave:
    """`height` cos(`frequency` u + `phase`) under a Gaussian of width `sigma`, times `colour` per channel.

    u is the distance along the direction `angle`. Pixels lie between -1 and 1 along both axes.
    """

    height: float = 1.0
    sigma: float = 0.6
    frequency: float = pi
    angle: float = 0.0
    phase: float = 0.0
    colour: tuple[float, float, float] = (1.0, 1.0, 1.0)

    def draw(self, size: int) -> NDArray[np.float64]:
        """Return the kernel, of three channels of `size` x `size`."""
        line = 2 * np.arange(size) / (size - 1) - 1
        x, y = line[None, :], line[:, None]
        along = x * np.cos(self.angle) - y * np.sin(self.angle)
        fading = np.exp(-(x * x + y * y) / (2 * self.sigma**2))
        values = self.height * fading * np.cos(along * self.frequency + self.phase)
        kernel: NDArray[np.float64] = np.array(self.colour)[:, None, None] * values
        return kernel


# The wave of an index; `turns` is the frequency of which the others are parts.
_Maker = Callable[[int, float], Wave]
_Segment = tuple[int, _Maker]  # for the indexes below a number

_GOOGLENET: Sequence[_Segment] = (
    (
        32,
        lambda k, turns: Wave(
            1 / (1 + k % 8 / 8),
            0.4 + 0.2 * (k % 8) / 8,
            turns / (1 + k % 8 / 2),
            k // 8 * pi / 4,
            k % 2 * pi + pi * 12 / 32,
        ),
    ),
    (40, lambda k, turns: Wave(0.5, 0.45, turns, k % 8 * pi / 8, pi)),
    (
        46,
        lambda k, turns: Wave(
            1 / (1 + (k - 1) % 3 / 2),
            1 / (2.5 - (k - 1) % 3 / 2),
            pi / 4,
            phase=(k - 1) // 3 * pi,
            colour=(0.25, -1, 1),
        ),
    ),
    (48, lambda k, turns: Wave(2 / 3, 1, turns / 12, k % 8 * pi + pi / 8, pi / 2, (1, 0.1, -0.5))),
    (56, lambda k, turns: Wave(2 / 3, 1, turns / 12, k % 8 * pi / 4 + pi / 32, pi / 2, (-0.5, 0.1, 1))),
    (60, lambda k, turns: Wave(1, 1, turns / 12, k % 8 * pi / 2 + pi / 8, pi / 2, (0.25, -1, 1))),
    (64, lambda k, turns: Wave(2 / 3, 1, turns / 12, k % 8 * pi / 2 + pi / 8, pi / 2, (-1, -1, 1))),
)

_ALEXNET: Sequence[_Segment] = (
    (
        48,
        lambda k, turns: Wave(
            1 / 3 / (1 + k % 8 / 8),
            0.5 + 0.2 * (k % 8) / 8,
            turns / (1 + k % 8 / 2),
            k // 8 * pi / 6,
            k % 2 * pi + pi * 12 / 32,
        ),
    ),
    (
        56,
        lambda k, turns: Wave(
            1 / 3 / (1 + k % 4 / 2),
            1 / (2.5 - k % 4 / 2),
            pi / 4,
            phase=k // 4 * pi,
            colour=(0.25, -1, 1),
        ),
    ),
    (60, lambda k, turns: Wave(2 / 9, 0.75, turns / 8, k % 4 * pi / 2 + pi / 8, pi / 2, (-1, 1, -0.5))),
    (64, lambda k, turns: Wave(1 / 9, 2, turns / 8, k % 4 * pi / 2 + pi / 8, pi / 2, (1, -0.5, -0.75))),
    (72, lambda k, turns: Wave(2 / 9, 0.75, turns / 4, k % 8 * pi / 4 + pi / 32, pi / 2, (1, 0.1, -0.75))),
    (80, lambda k, turns: Wave(2 / 9, 1, turns / 12, k % 8 * pi / 4 + pi / 32, pi / 2, (-0.5, 0.1, 1))),
    (88, lambda k, turns: Wave(2 / 15, 1, turns / 8, k % 8 * pi / 4 + pi / 32, pi / 2, (-1, -1, 1))),
    (92, lambda k, turns: Wave(1 / 3, 0.6, turns / 16, k % 4 * pi / 2 + pi / 16, pi / 2)),
    (96, lambda k, turns: Wave(1 / 12, 0.75, turns / 4, k % 8 * pi / 4 + pi / 32, pi / 2, (-1, -1, 1))),
)


def _blob(k: int, turns: float) -> Wave:
    return Wave(0.5, 0.75, turns / 8, 0, k % 2 * pi, (1, -1, 1))


def _edge(k: int, turns: float) -> Wave:
    return Wave(0.5, 0.6, turns / 4, k % 4 * pi / 2 + 3 * pi / 8, pi / 2)


_CIFAR: Sequence[_Segment] = (
    (8, lambda k, turns: Wave(0.5, 0.6, turns, k % 8 * pi / 8)),
    (14, lambda k, turns: Wave(0.5, 0.6, turns / 2, (k - 2) % 6 * pi / 6 + pi / 12)),
    (16, _blob),
    (20, _edge),
    (24, lambda k, turns: replace(_edge(k, turns), colour=(1, 0, -1))),
    (28, lambda k, turns: replace(_edge(k, turns), colour=(-1, 1, 1))),
    (30, lambda k, turns: replace(_edge(k, turns), angle=k % 2 * pi / 2 + pi / 8, colour=(-1, 1, -1))),
    (32, lambda k, turns: replace(_edge(k, turns), angle=k % 2 * pi / 2 + 3 * pi / 8, colour=(1, 1, 0))),
)


def _widened(wave: _Maker) -> _Maker:
    return lambda k, turns: replace(wave(k, turns), sigma=1.0)


_VGG: Sequence[_Segment] = tuple((end, _widened(wave)) for end, wave in _GOOGLENET)

# The waves by number of kernels and size: the nets that the filler knows.
BANKS = {(32, 5): _CIFAR, (64, 7): _GOOGLENET, (64, 3): _VGG, (96, 11): _ALEXNET}


def draw_kernels(count: int, size: int) -> NDArray[np.float32]:
    """Return the kernels of a known number and size, as a blob of count x 3 x size x size."""
    turns = pi * (size - 1) / 2
    waves = [next(wave for end, wave in BANKS[count, size] if k < end)(k, turns) for k in range(count)]
    return np.stack([wave.draw(size) for wave in waves]).astype(np.float32)
