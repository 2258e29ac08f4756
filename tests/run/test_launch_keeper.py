"""Which snapshots of a launch are kept as checkpoints: a log as it stands, and its files on this machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from caffe_recipes.cluster.hosts import LocalHost
from caffe_recipes.recipe.model import Recipe
from caffe_recipes.recipe.source import load_recipe
from caffe_recipes.render.prototxts import build_net
from caffe_recipes.run.console import Reporter
from caffe_recipes.run.context import Run, RunOptions, find_setting
from caffe_recipes.run.folders import create_run
from caffe_recipes.run.launch import CheckpointKeeper
from caffe_recipes.run.lock import RecipeLock
from caffe_recipes.run.policy import Policy
from caffe_recipes.run.signals import Interrupts
from caffe_recipes.run.trainer import Training
from caffe_recipes.run.trainer_log import LogTail
from caffe_recipes.run.training_plan import plan_training
from tests.stand_in.messages import render_model, render_state
from tests.stand_in.training import shapes_of

if TYPE_CHECKING:
    from tests.run.conftest import Place

DIGEST = bytes(32)
WELL = ("Iteration 0, loss = 2.5",)


@dataclass
class Launch:
    """The second phase's: it starts from weights; a run that is to keep checkpoints, and what it kept."""

    run: Run
    training: Training
    log: Path

    def keeper(self, *lines: str) -> CheckpointKeeper:
        """Write these lines to the log, all at once, and read it."""
        self.log.write_text("".join(f"I1120 11:49:33.768350  6374 x.cpp:1] {text}\n" for text in lines))
        tail = LogTail(self.log)
        tail.read(to_end=True)
        return CheckpointKeeper(self.run, self.training, tail, lambda: LocalHost("n1"))

    def snapshot(self, iteration: int) -> tuple[str, ...]:
        """Write both files; return the log lines about them."""
        model = self.training.snapshot.replace("_iter_6", f"_iter_{iteration}")
        state = model.replace(".caffemodel", ".solverstate")
        recipe = self.run.setting.recipe
        assert isinstance(recipe, Recipe)
        net = build_net(recipe, self.training.net)
        self.run.path(model).write_bytes(render_model(net.name, shapes_of(net), DIGEST))
        self.run.path(state).write_bytes(render_state(iteration, model, shapes_of(net), DIGEST))
        return (
            f"Snapshotting to binary proto file {model}",
            f"Snapshotting solver state to binary proto file {state}",
            "Snapshot end",
        )

    def kept(self) -> list[int]:
        checkpoints = self.run.journal.state().checkpoints.get(self.training.phase, ())
        return [checkpoint.iteration for checkpoint in checkpoints]


@pytest.fixture
def make(place: Place) -> Iterator[Callable[..., Launch]]:
    """Give a function that makes a launch of the small recipe, by a policy."""
    made: list[Run] = []

    def make(policy: Policy) -> Launch:
        recipe = load_recipe(place.recipe)
        options = RunOptions(root=place.root, policy=policy)
        setting = find_setting(recipe, options, lambda name, copy_with: LocalHost(name))
        plan = plan_training(recipe, "runs/small-1")
        journal = create_run(place.root / "runs/small-1", recipe, plan.files)
        lock = RecipeLock(place.root, recipe.name)
        run = Run("0" * 16, setting, plan, "runs/small-1", journal, Reporter(), Interrupts(), lock)
        made.append(run)
        training = plan.trainings[1]
        assert training.weights is not None
        net = build_net(recipe, training.net)
        weights = run.path(training.weights)
        weights.parent.mkdir(exist_ok=True)
        weights.write_bytes(render_model(net.name, shapes_of(net), DIGEST))
        (place.root / "tmp").mkdir()
        return Launch(run, training, place.root / "log")

    yield make
    for run in made:
        run.journal.close()


def test_intermediate_snapshots_are_kept_once_as_checkpoints_but_not_the_last(
    make: Callable[[Policy], Launch],
) -> None:
    launch = make(Policy(checkpoint_every=2))
    keeper = launch.keeper(*WELL, *launch.snapshot(2), *launch.snapshot(4), *launch.snapshot(6))
    assert keeper.keep_new()
    assert not keeper.keep_new()
    assert launch.kept() == [2, 4]


@pytest.mark.parametrize(
    "line", ["Ignoring source layer conv1", "Iteration 0, loss = nan", "Iteration 0, loss = 87.3365"]
)
def test_no_checkpoint_is_kept_that_must_not_be_resumed_from(
    make: Callable[[Policy], Launch], line: str
) -> None:
    launch = make(Policy(checkpoint_every=2))
    assert launch.keeper(line, *launch.snapshot(2)).keep_new()
    assert launch.kept() == []


def test_a_layer_without_weights_may_be_ignored(make: Callable[[Policy], Launch]) -> None:
    launch = make(Policy(checkpoint_every=2))
    launch.keeper("Ignoring source layer data", *WELL, *launch.snapshot(2)).keep_new()
    assert launch.kept() == [2]


def test_without_a_policy_only_what_comes_after_the_wish_is_kept(make: Callable[[Policy], Launch]) -> None:
    launch = make(Policy())
    first = launch.snapshot(2)
    keeper = launch.keeper(*WELL, *first)
    assert not keeper.keep_new()
    keeper.is_wanted = True
    keeper.skip()
    assert not keeper.keep_new()
    assert launch.kept() == []
