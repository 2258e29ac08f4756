"""What trains a recipe, as a value: all that a run asks of a program. No other module here knows one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from caffe_recipes.caffe.logs import LogSummary
from caffe_recipes.cluster.commands import Host
from caffe_recipes.cluster.profiles import Profile
from caffe_recipes.recipe.model import AnyRecipe, TensorFlowRecipe
from caffe_recipes.run.caffe import Caffe
from caffe_recipes.run.steps import Attempt, Checkpoint, Testing, Training, Trial
from caffe_recipes.run.tensorflow import TensorFlow


class Trainer(Protocol):
    """A program that trains a recipe. Paths are from the Caffe root unless they are `Path`s."""

    @property
    def title(self) -> str:
        """What people call it."""

    @property
    def is_ours(self) -> bool:
        """Whether it is installed beside this program."""

    @property
    def another(self) -> str:
        """What to do where it does not work."""

    @property
    def model_suffix(self) -> str:
        """What the names of trained models end with."""

    @property
    def file_kind(self) -> str:
        """What one of the texts is called that are placed for it."""

    @property
    def untrained(self) -> str:
        """What a phase starts from that starts from no weights."""

    @property
    def checks(self) -> tuple[str, ...]:
        """The rows of the preflight, besides those that every run has."""

    @property
    def landmarks(self) -> tuple[str, ...]:
        """Paths by any of which the current folder is known as the recipe's Caffe root."""

    @property
    def always_checkpoints(self) -> bool:
        """Whether it writes checkpoints without being told an interval."""

    @property
    def data_folder(self) -> str:
        """The folder of its training data on each node."""

    @property
    def data_source(self) -> str | None:
        """The folder that these are staged from."""

    @property
    def built(self) -> tuple[str, ...]:
        """The folders of data that are built where they are missing."""

    def build(self, folder: Path) -> None:
        """Build them in the folder that holds them; raises RunFailed."""

    # The plan.

    def find_program(self, root: Path, path: str, profile: Profile) -> str:
        """Return the program as it is called from the Caffe root; raises InputError if it is not there."""

    def environment(self, root: Path) -> dict[str, str]:
        """Return the variables that each of its processes needs."""

    def steps(self, folder: str) -> tuple[Training, ...]:
        """Return what is trained, in order, for a run in `folder`."""

    def testings(self, folder: str) -> tuple[Testing, ...]:
        """Return what is evaluated."""

    def read_back(self, training: Training) -> Testing | None:
        """Return what reads the kept files of a phase; None where `check_model` has done that."""

    def main_line(self) -> frozenset[str]:
        """Return the phases beside which all others may be trained."""

    def classes(self) -> int:
        """Return among how many classes the net chooses."""

    def files(self) -> dict[str, str]:
        """Return the texts that must be in place before anything is launched, by path."""

    def folders(self) -> tuple[str, ...]:
        """Return the folders of these texts."""

    def digest_files(self, files: Mapping[str, str]) -> dict[str, str]:
        """Return the digest of what each of these texts says, by path."""

    # A launch, and its log.

    def launch_arguments(
        self,
        training: Training,
        checkpoint: Checkpoint | None,
        every: int | None,
        files: Mapping[str, str],
        folder: str,
    ) -> tuple[tuple[str, ...], dict[str, str]]:
        """Return the arguments of a launch that resumes a checkpoint and writes one `every` iterations.

        And the files, by path, that it reads besides; they are written into `folder`.
        """

    def set_aside(self, root: Path, training: Training, checkpoint: Checkpoint | None) -> Iterator[str]:
        """Move what it would resume from instead of `checkpoint` out of its way; yield the names."""

    def started_from(self, arguments: Sequence[str]) -> str | None:
        """Return the weights that a launch of these arguments starts from."""

    def resumed_iter(self, arguments: Sequence[str]) -> int | None:
        """Return the iteration of the checkpoint that a launch of these arguments resumes."""

    def known_by(self, arguments: Sequence[str]) -> str | None:
        """Return the argument by which rank 0 is known, to be asked for a snapshot; None if it cannot be."""

    def begin_log(self) -> LogSummary:
        """Return what folds the lines of a log."""

    def find_omission(self, summary: LogSummary, training: Training, root: Path) -> str | None:
        """Return what it has left out of the weights that it started from, by its log."""

    # What it leaves: models, and checkpoints.

    def prefix(self, training: Training) -> str:
        """Return what the paths of all that a phase writes begin with."""

    def written_at(self, training: Training, iteration: int) -> tuple[str, ...]:
        """Return what a phase writes at an iteration."""

    def model_bytes(self, net: str) -> int | None:
        """Return the bytes of a model; None where only the data tell."""

    def check_model(self, net: str, path: Path) -> None:
        """Look into one file that a phase leaves; raises WeightsError if it is not what it should be."""

    def checkpoint_iter(self, state: str) -> int | None:
        """Return the iteration of a checkpoint, by what its log calls it; None for what is none."""

    def model_beside(self, state: str) -> str:
        """Return the model that a checkpoint is written with."""

    def fetch_checkpoint(
        self, host: Host, root: Path, training: Training, state: str, folder: str
    ) -> Checkpoint:
        """Bring a checkpoint into `folder`, verified; raises RunFailed."""

    def verify_checkpoint(self, root: Path, net: str, checkpoint: Checkpoint) -> None:
        """Make sure that a checkpoint's kept files are whole; raises WeightsError."""

    # Trying it, and evaluating.

    def trial(self) -> Trial:
        """Return how it is tried on one host."""

    def judge(self, attempt: Attempt, limit_s: float) -> str | None:
        """Say what went wrong in an attempt; None if nothing did."""

    def world_words(self) -> tuple[str, ...]:
        """Return its words with which each rank says `caffe-recipes: rank R of N`; none if it cannot."""

    def outputs(self, summary: LogSummary, testing: Testing) -> dict[str, float]:
        """Return what an evaluation gave, by name; nothing if its log has no result."""


def find_trainer(recipe: AnyRecipe) -> Trainer:
    """Return what trains a recipe."""
    return TensorFlow(recipe) if isinstance(recipe, TensorFlowRecipe) else Caffe(recipe)
