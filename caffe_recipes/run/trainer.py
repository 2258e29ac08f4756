"""The interface between a run and the program that trains, and the types that both use: the steps of a run.

A `Trainer` plans phases and evaluations, writes commands and reads logs. Its `TrainingData` are staged, and
its `ModelFiles` fetched and checked. Only `plan` chooses a program; `ensemble` and
`preflight.storage` use parts of one. Paths are relative to the Caffe root.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Protocol

from caffe_recipes.caffe.logs import LogSummary
from caffe_recipes.cluster.commands import Host
from caffe_recipes.cluster.profiles import Profile
from caffe_recipes.cluster.staging.file_sets import FileSet
from caffe_recipes.config import Location
from caffe_recipes.errors import InputError
from caffe_recipes.recipe.model import Reported


@dataclass(frozen=True)
class Training:
    """The training of one phase: the trainer's arguments, and the files that it writes on the first host.

    The trainer writes its last model to `snapshot`; once verified, a copy is kept at `fetched`. `needed` are
    earlier snapshots from which later phases start, as pairs of paths: as written, and as kept.
    `snapshots_at` are the iterations of those, and of the last one if the trainer is stopped there
    (`is_stopped`). `snapshots` is the number of snapshots that it writes, one every `every_iter` iterations.
    Its log shows the loss every `display_iter` iterations; 0 if that is not known.
    `starts_from` is the phase whose model it starts from, and `images_before` counts the images of that
    model's training. No other phase starts from one that `is_end`. One that is not `is_main` is a branch,
    which may be trained beside the main phases.
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
    images_before: int = 0
    starts_from: str | None = None
    is_end: bool = True
    is_main: bool = True
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
class TrainingPlan:
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
class HandedOn:
    """A model that a finished run hands on: where it is from, its results, and the digests of its weights."""

    recipe: str
    recipe_sha256: str
    accuracy: Mapping[str, float]
    weights_sha256: str
    weights_sha1: str


@dataclass(frozen=True)
class LockFree:
    """Arguments of a trainer with the files, {path: text}, and links, {path: target}, that they need."""

    arguments: tuple[str, ...]
    files: Mapping[str, str] = field(default_factory=dict)
    links: Mapping[str, Path] = field(default_factory=dict)


@dataclass(frozen=True)
class Attempt:
    """One attempt of a trial: the trainer's exit code, and the end of its log."""

    code: int
    log: str


@dataclass(frozen=True)
class Trial:
    """A short test of a trainer on one host: files for a temporary folder, and the arguments of each attempt.

    `attempts` are by name; `all_well` is the message if all of them succeed. `judge` returns what went wrong
    in an attempt that had a number of seconds; None if nothing did. With the `world` arguments, each rank of
    a launch prints `caffe-recipes: rank R of N`; they are empty if the program cannot do that.
    """

    files: Mapping[str, str]
    attempts: Mapping[str, tuple[str, ...]]
    all_well: str
    judge: Callable[[Attempt, float], str | None]
    world: tuple[str, ...] = ()


@dataclass(frozen=True)
class ProgramWords:
    """The words of messages about a program.

    Its `title`, such as "Caffe"; the `file_kind` of one of its files, such as "prototxt"; the
    `initialization` of a phase that starts from no weights; and the hint `if_broken`.
    """

    title: str
    file_kind: str
    initialization: str
    if_broken: str


class TrainingData(Protocol):
    """The data that a recipe trains and tests on: where they come from, and where the ranks read them.

    They are staged as `file_sets` from a source, or from the folders in `built`, which `build` fills.
    """

    @property
    def folder(self) -> str | None:
        """The folder on each node that holds the training data; None if the nets name their data."""

    @property
    def source(self) -> str | None:
        """The folder from which the training data are staged; None if the recipe names none."""

    @property
    def test_folder(self) -> str | None:
        """The folder that holds the test data; None if nothing is tested."""

    @property
    def tests_on_ranks(self) -> bool:
        """Whether each rank opens the test data during training, too."""
        return False

    @property
    def mean_files(self) -> tuple[str, ...]:
        """The mean images that each rank subtracts from the images that it trains or tests on."""
        return ()

    def manifests(self, folder: str) -> tuple[str, ...]:
        """Return the files that say what a folder of data contains, in or beside it; an LMDB has none."""
        return ()

    @property
    def staged_folders(self) -> tuple[str, ...]:
        """The folders on the nodes to which data are staged."""
        return () if self.folder is None else (self.folder,)

    def file_sets(
        self, root: Path, names: Sequence[str], source: Path | None, *, is_whole: bool = False
    ) -> Sequence[FileSet]:
        """Return the files of the training data that each host needs.

        `names` are the hosts in the order of their ranks. Without `source`, the recipe's own is used. With
        `is_whole`, every host gets all files. Raises InputError if there is no source, and DataError if the
        files are not those of the recipe.
        """

    def check_source(self, root: Path, given: Path | None) -> None:
        """Raise DataError unless the `given` folder, or else `source`, holds complete data.

        Raises InputError without either.
        """

    @property
    def built(self) -> tuple[str, ...]:
        """The data folders that a run builds if they are missing."""

    def build(self, folder: Path) -> None:
        """Build the data of `built` inside `folder`. Raises RunFailed if the disk is full."""


class ModelFiles(Protocol):
    """The models that a program writes, by their paths and contents.

    A model is a file of trained weights, with a name that ends in `model_suffix`. A snapshot is a model that
    the program writes in a phase, with a file of the solver's state. A checkpoint is a snapshot that is kept
    to resume the phase from.
    """

    model_suffix: ClassVar[str]

    def prefix(self, training: Training) -> str:
        """Return the common prefix of the paths of all snapshots of a phase."""

    def written_at(self, training: Training, iteration: int) -> tuple[str, ...]:
        """Return the paths of the snapshot that a phase writes at an iteration."""

    def model_bytes(self, files: Mapping[str, str], net: str, root: Path, source: Path | None) -> int | None:
        """Return the size of a model in bytes; None if it depends on the training data."""

    def check_model(self, files: Mapping[str, str], net: str, path: Path) -> None:
        """Raise WeightsError if a model file is damaged or does not fit `net`."""

    def hand_on(self, files: Mapping[str, str], net: str, root: Path, handed: HandedOn) -> dict[str, bytes]:
        """Return the files that a model is handed on with besides its weights, by name; none by default.

        Raises InputError if a program could not predict with it.
        """
        return {}

    def checkpoint_iter(self, state: str) -> int | None:
        """Return the iteration of a checkpoint by the path of its state file; None for any other path."""

    def model_beside(self, state: str) -> str:
        """Return the model file that belongs to a checkpoint's state file."""

    def fetch_checkpoint(
        self, host: Host, root: Path, files: Mapping[str, str], training: Training, state: str, folder: str
    ) -> Checkpoint:
        """Return a checkpoint that `host` holds, verified, and copied into `folder` if needed.

        Raises RunFailed if it cannot be fetched, or is damaged.
        """

    def verify_checkpoint(
        self, root: Path, files: Mapping[str, str], net: str, checkpoint: Checkpoint
    ) -> None:
        """Raise WeightsError if the kept files of a checkpoint are missing or damaged."""


class Trainer(Protocol):
    """A program that trains a recipe. Paths given as `str` are relative to the Caffe root.

    Messages have its `words`. `checks` are the preflight checks that it needs besides those of every run. A
    program that `always_checkpoints` writes checkpoints even if the user asks for none. If it `pins_threads`
    of its ranks, the launcher does not bind them to sockets.

    A method with a body here is the default; a program overrides it where it differs.
    """

    words: ClassVar[ProgramWords]
    checks: ClassVar[tuple[str, ...]]
    always_checkpoints: ClassVar[bool]
    pins_threads: ClassVar[bool] = True

    @property
    def data(self) -> TrainingData:
        """The data that the recipe trains and tests on."""

    @property
    def models(self) -> ModelFiles:
        """The models that the program writes."""

    # The program and its files.

    @property
    def is_ours(self) -> bool:
        """Whether the program ships with this package, as caffe-torch does."""
        return False

    @property
    def landmarks(self) -> tuple[str, ...]:
        """Paths by any of which the current folder is known as the recipe's Caffe root."""

    @property
    def inputs(self) -> tuple[str, ...]:
        """The files that the program runs or reads besides the data and what phases write."""

    def find_program(self, root: Path, path: str, profile: Profile) -> str:
        """Return the program's path, relative to the Caffe root. Raises InputError if it does not exist."""

    def environment(self, root: Path) -> dict[str, str]:
        """Return the environment variables that each process of the program needs."""
        return {}

    def files(self) -> dict[str, str]:
        """Return the files that must exist before a launch: {path: text}."""

    def folders(self) -> tuple[str, ...]:
        """Return the folders that hold `files`."""

    def digest_files(self, files: Mapping[str, str]) -> dict[str, str]:
        """Return a digest of the meaning of each file, by path. Comments and formatting do not change it."""

    def mistakes(self, phases: Collection[str], root: Path, source: Path | None) -> tuple[InputError, ...]:
        """Return the errors of `lint` in what some phases train, without those that the recipe accepts.

        `source` is where the training data are staged from, without which it is the recipe's own.
        """
        return ()

    def unknown_flags(self) -> tuple[tuple[Location, str, str], ...]:
        """Return the flags of the recipe that the programs do not know: location, what is wrong, hint."""
        return ()

    def trial(self) -> Trial:
        """Return the short trial that shows on one host whether the program works."""

    # The plan.

    def steps(self, folder: str) -> tuple[Training, ...]:
        """Return the phases to train, in order, for a run whose folder is `folder`."""

    def testings(self, folder: str) -> tuple[Testing, ...]:
        """Return the evaluations to do after training, for a run whose folder is `folder`."""

    def read_back(self, training: Training) -> Testing | None:
        """Return a process that verifies a phase's fetched files by loading them with the program itself.

        None if `models.check_model` is enough.
        """
        return None

    # A launch, and its log.

    def launch_arguments(
        self,
        training: Training,
        checkpoint: Checkpoint | None,
        every: int | None,
        files: Mapping[str, str],
        folder: str,
    ) -> tuple[tuple[str, ...], dict[str, str]]:
        """Return the arguments of a launch, and the files to write before it: {path: text}.

        The launch resumes `checkpoint` unless that is None, and writes a checkpoint every `every` iterations
        unless that is None. `files` are those that the run has placed; new ones go into `folder`.
        """

    def avoid_locks(
        self, arguments: tuple[str, ...], files: Mapping[str, str], root: Path, folder: str
    ) -> LockFree:
        """Return how to read the data of other users without opening their lock files.

        `files` are those that the arguments name; new ones go into `folder`.
        """
        return LockFree(arguments)

    def set_aside(self, root: Path, training: Training, checkpoint: Checkpoint | None) -> Iterator[str]:
        """Move away any checkpoint that the program would resume instead of `checkpoint`.

        Yields the names of those that were moved; none if the program reads only the one that it is given.
        """
        yield from ()

    def snapshot_argument(self, arguments: Sequence[str]) -> str | None:
        """Return the argument that identifies rank 0's process, which is then signalled to write a snapshot.

        None if the program cannot write a snapshot on request.
        """
        return None

    def new_log_summary(self) -> LogSummary:
        """Return an empty log summary to feed lines into."""
        return LogSummary()

    def find_omission(self, summary: LogSummary, training: Training, root: Path) -> str | None:
        """Return which of its initial weights the program ignored, as a message based on its log.

        None if it loaded all of them, or compares the names and shapes with its model itself.
        """
        return None

    def outputs(self, summary: LogSummary, testing: Testing) -> dict[str, float]:
        """Return the results of an evaluation by name; empty if its log has none."""
