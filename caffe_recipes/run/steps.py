"""The steps of a run as values: what is trained, and what is evaluated. Paths are from the Caffe root."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from dataclasses import dataclass, field

from caffe_recipes.recipe.model import Reported


@dataclass(frozen=True)
class Training:
    """One phase: the trainer's arguments, and what it leaves on the first host.

    `needed` are more files that it leaves, as snapshots on its way from which later phases start: where each
    lies, and where it is kept. `snapshots_at` are the iterations of those, and of the last one if the trainer
    is stopped there. `starts_from` is the phase whose result it starts from. No other phase starts from one
    that `is_end`.
    """

    phase: str
    net: str
    arguments: tuple[str, ...]
    weights: str | None
    snapshot: str
    fetched: str
    last_iter: int
    is_stopped: bool
    images_per_iter: int
    snapshots: int
    needed: tuple[tuple[str, str], ...] = ()
    snapshots_at: tuple[int, ...] = ()
    every_iter: int = 0
    starts_from: str | None = None
    is_end: bool = True
    is_evaluated: bool = False
    reported: Reported = field(default_factory=Reported)

    @property
    def left(self) -> tuple[str, ...]:
        """What it leaves on the first host."""
        return (self.snapshot, *(path for path, _ in self.needed))

    @property
    def kept(self) -> tuple[str, ...]:
        """Where its verified files are kept."""
        return (self.fetched, *(kept for _, kept in self.needed))

    @property
    def images(self) -> int:
        """How many images it trains on."""
        return self.last_iter * self.images_per_iter

    def trained_path(self, kept: str) -> str:
        """Return where a kept file lay when it was trained, on the host of rank 0."""
        return posixpath.join(posixpath.dirname(self.snapshot), posixpath.basename(kept))


@dataclass(frozen=True)
class Testing:
    """The evaluation of a phase's model, by one process on this machine.

    It reads `needed` files besides the `weights`, and `files`, texts that are written before it by path.
    """

    phase: str
    net: str
    arguments: tuple[str, ...]
    weights: str
    iterations: int
    needed: tuple[str, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class RunPlan:
    """All that a run does once its data are in place; `files` are the texts that are placed, by path."""

    files: Mapping[str, str]
    trainings: tuple[Training, ...]
    testings: tuple[Testing, ...] = ()


@dataclass(frozen=True)
class Checkpoint:
    """Two files from which a phase is resumed, kept at `state` and `model` from the Caffe root.

    `state_path` and `model_path` are where every rank reads them, and where the trainer wrote them.
    """

    phase: str
    iteration: int
    state: str
    state_sha256: str
    model: str
    model_sha256: str
    state_path: str
    model_path: str


@dataclass(frozen=True)
class Trial:
    """How a trainer is tried on one host: files in a folder of their own, and each attempt's words, by name.

    `all_well` is what to report of a trainer that does well.
    """

    files: Mapping[str, str]
    attempts: Mapping[str, tuple[str, ...]]
    all_well: str


@dataclass(frozen=True)
class Attempt:
    """One attempt of a trial: how the trainer ended, and the end of its log."""

    code: int
    log: str
