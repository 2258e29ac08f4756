"""A recipe with branches: each starts from its phase, and the model at each end is evaluated."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from rich.console import Console

from caffe_recipes.errors import RecipeError, RunFailed, WeightsError
from caffe_recipes.recipe.source import load_recipe
from caffe_recipes.run.console import Reporter
from caffe_recipes.run.monitor.follow import AttachOptions, StatusOptions, attach
from caffe_recipes.run.monitor.status import find_status
from caffe_recipes.run.monitor.status_text import status_as_json, status_details, summarize_status
from caffe_recipes.run.training_plan import plan_training

if TYPE_CHECKING:
    from tests.run.conftest import Place

LAST = "  - {name: last, net: train_val_noaug,"
SIDE = """\
  - {name: side, weights: init, net: train_val_noaug, base_lr: 0.01, max_iter: 4, snapshot_prefix: tmp/side}
"""
KEPT = "runs/small-1/snapshots"
OUTPUTS = {"loss": 0.25, "loss3/top-1": 0.75, "loss3/top-5": 0.9375}


@pytest.fixture
def branched(place: Place) -> Place:
    """Let a phase branch off the first one, before the last."""
    place.edit(LAST, SIDE + LAST.replace("name: last,", "name: last, weights: cyc1,"))
    return place


def test_a_branch_starts_from_its_phase_and_each_end_is_evaluated(branched: Place) -> None:
    state = branched.run()
    assert (branched.root / "trained.txt").read_text().splitlines() == [
        "init -",
        f"cyc1 {KEPT}/small_init_iter_8.caffemodel",
        f"side {KEPT}/small_init_iter_8.caffemodel",
        f"last {KEPT}/small_cyc1_iter_6.caffemodel",
    ]
    assert state.evaluations == {"side": OUTPUTS, "last": OUTPUTS}
    output = branched.output.getvalue()
    assert f"evaluating {KEPT}/side_iter_4.caffemodel" in output
    assert "side: loss: 0.25, loss3/top-1: 75.00%, loss3/top-5: 93.75%" in output
    assert output.splitlines()[-2:] == [
        f"model: {KEPT}/{name}_iter_4.caffemodel" for name in ("side", "small_last")
    ]


def test_the_phases_to_evaluate_can_be_listed(branched: Place) -> None:
    branched.edit("iterations: 1}", "iterations: 1, phases: [cyc1, last]}")
    assert list(branched.run().evaluations) == ["cyc1", "last"]


def test_only_what_is_not_evaluated_yet_is(branched: Place) -> None:
    branched.run()
    journal = branched.root / "runs/small-1/journal.jsonl"
    journal.write_text("".join(journal.read_text().splitlines(keepends=True)[:-1]))
    assert list(branched.state().evaluations) == ["side"]
    state = branched.run()
    assert list(state.evaluations) == ["side", "last"]
    assert [event["phase"] for event in branched.events() if event["event"] == "evaluated"] == [
        "side",
        "last",
    ]
    assert branched.trained() == ["init", "cyc1", "side", "last"]


def test_an_evaluation_that_fails_is_the_runs_failure_and_the_models_stay(branched: Place) -> None:
    branched.behave(evaluation="fails")
    with pytest.raises(RunFailed, match="evaluation: no outputs"):
        branched.run()
    branched.behave()
    assert list(branched.run().evaluations) == ["side", "last"]


def test_a_finished_run_is_finished_only_while_every_end_is_what_it_was(branched: Place) -> None:
    branched.run()
    (branched.root / KEPT / "side_iter_4.caffemodel").write_bytes(b"spoilt")
    with pytest.raises(WeightsError, match="no longer the snapshot that phase side finished with"):
        branched.run()


def test_attach_and_status_show_the_end_of_each_branch(branched: Place) -> None:
    branched.run()
    reporter = Reporter(Console(file=branched.output, soft_wrap=True, highlight=False))
    branched.output.truncate(0)
    attach("small", AttachOptions(str(branched.root)), reporter)
    output = branched.output.getvalue()
    assert "last: loss: 0.25, loss3/top-1: 75.00%" in output
    status = find_status("small", StatusOptions(str(branched.root)))
    assert status.state == "finished"
    assert "side: loss: 0.25" in summarize_status(status)
    models = [value for word, value in status_details(status, 0.0) if word == "model"]
    assert [Path(model).name for model in models] == [
        "side_iter_4.caffemodel",
        "small_last_iter_4.caffemodel",
    ]
    assert status_as_json(status)["evaluations"] == {"side": OUTPUTS, "last": OUTPUTS}


def test_the_cyclic_digits_are_planned_as_a_graph() -> None:
    plan = plan_training(load_recipe("digits-cyclic"), "runs/x")
    weights = {step.phase: Path(step.weights or "").name for step in plan.trainings}
    for number in range(1, 6):
        assert weights[f"collapse{number}"] == f"digits_cyclic_cyc{number}_iter_270.caffemodel"
    assert [testing.phase for testing in plan.testings] == [f"collapse{number}" for number in range(1, 6)]


@pytest.mark.parametrize(
    ("members", "part"),
    [
        ("[init, lsat]", "ensemble.members.1.: no phase 'lsat'; did you mean 'last'"),
        ("[last, last]", "ensemble.members.1.: phase 'last' is named twice"),
        ("[last]", "ensemble.members: "),
    ],
)
def test_an_ensemble_of_no_phase_or_of_one_is_refused(place: Place, members: str, part: str) -> None:
    place.edit("iterations: 1}", f"iterations: 1}}\nensemble: {{members: {members}}}")
    with pytest.raises(RecipeError, match=part):
        load_recipe(place.recipe)


@pytest.mark.parametrize(
    ("phases", "part"),
    [
        ("[lsat]", "no phase 'lsat'; did you mean 'last'"),
        ("[last, last]", "phase 'last' is named twice"),
        ("[]", "phases"),
    ],
)
def test_an_evaluation_of_no_phase_is_refused(place: Place, phases: str, part: str) -> None:
    place.edit("iterations: 1}", f"iterations: 1, phases: {phases}}}")
    with pytest.raises(RecipeError, match=part):
        load_recipe(place.recipe)
