"""The steps of a run: its trainings and evaluations. Paths are relative to the Caffe root."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from dataclasses import dataclass, field

from caffe_recipes.recipe.model import Reported


@dataclass(frozen=True)
class Training:
    """The training of one phase: the trainer's arguments, and the files that it writes on the first host.

    The trainer writes its last model to `snapshot`; once verified, a copy is kept at `fetched`. `needed` are
    earlier snapshots from which later phases start, as pairs of paths: as written, and as kept.
    `snapshots_at` are the iterations of those, and of the last one if the trainer is stopped there
    (`is_stopped`). `snapshots` is the number of snapshots that it writes, one every `every_iter` iterations.
    Its log shows the loss every `display_iter` iterations; 0 if that is not known.
    `starts_from` is the phase whose model it starts from. No other phase starts from one that `is_end`.
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
    display_iter: int = 0
    starts_from: str | None = None
    is_end: bool = True
    is_evaluated: bool = False
    reported: Reported = field(default_factory=Reported)

    @property
    def snapshot_paths(self) -> tuple[str, ...]:
        """The paths on the first host to which the trainer writes the snapshots that are needed."""
        return (self.snapshot, *(path for path, _ in self.needed))

    @property
    def kept(self) -> tuple[str, ...]:
        """The paths where its verified files are kept."""
        return (self.fetched, *(kept for _, kept in self.needed))

    @property
    def images(self) -> int:
        """The number of images that it trains on, over all iterations."""
        return self.last_iter * self.images_per_iter

    def trained_path(self, kept: str) -> str:
        """Return the path on rank 0's host to which the trainer wrote a kept file."""
        return posixpath.join(posixpath.dirname(self.snapshot), posixpath.basename(kept))


@dataclass(frozen=True)
class Testing:
    """The evaluation of a phase's model, by one process on this machine.

    It reads the `weights`, the `needed` files, and `files`, {path: text}, which are written before it starts.
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
    """What a run does once its data are staged; `files` are written first: {path: text}."""

    files: Mapping[str, str]
    trainings: tuple[Training, ...]
    testings: tuple[Testing, ...] = ()


@dataclass(frozen=True)
class Checkpoint:
    """The two files from which a phase is resumed, kept at `state` and `model` under the Caffe root.

    The trainer wrote them to `state_path` and `model_path`, where every rank reads them on resuming.
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
    """A short test of a trainer on one host: files for a temporary folder, and the arguments of each attempt.

    `attempts` are by name; `all_well` is the message if all of them succeed.
    """

    files: Mapping[str, str]
    attempts: Mapping[str, tuple[str, ...]]
    all_well: str


@dataclass(frozen=True)
class Attempt:
    """One attempt of a trial: the trainer's exit code, and the end of its log."""

    code: int
    log: str
