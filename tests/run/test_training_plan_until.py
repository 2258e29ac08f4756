"""A run that stops after a phase of its chain, like each job of a chain that is split into jobs."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from caffe_recipes.errors import InputError, WeightsError
from caffe_recipes.recipe.source import load_recipe
from caffe_recipes.run.training_plan import plan_steps, plan_training

if TYPE_CHECKING:
    from tests.run.conftest import Place


def test_a_run_stops_after_the_named_phase_and_resumes_when_called_again(place: Place) -> None:
    state = place.run(until="init")
    assert (list(state.finished), state.outputs) == (["init"], None)
    assert place.output.getvalue().endswith("model: runs/small-1/snapshots/small_init_iter_8.caffemodel\n")
    assert list(place.run(until="cyc1").finished) == ["init", "cyc1"]
    assert place.run().outputs
    assert place.trained() == ["init", "cyc1", "last"]
    assert len(list((place.root / "runs").iterdir())) == 1


def test_the_evaluation_follows_the_last_phase(place: Place) -> None:
    assert place.run(until="last").outputs


def test_finished_phases_are_not_repeated(place: Place) -> None:
    place.run(until="cyc1")
    before = place.tree()
    for until in ("init", "cyc1"):
        place.run(until=until)
    assert place.tree() == before
    assert "small-1 is finished up to init; use --new to start another run\n" in place.output.getvalue()
    (place.root / "runs/small-1/snapshots/small_cyc1_iter_6.caffemodel").write_bytes(b"")
    with pytest.raises(WeightsError):
        place.run(until="cyc1")


def test_inputs_of_the_evaluation_may_be_missing_until_it_starts(place: Place) -> None:
    shutil.rmtree(place.root / "data/test_lmdb")
    place.run(until="cyc1")
    with pytest.raises(InputError, match="test_lmdb"):
        place.run()


def test_an_unknown_phase_is_one_line_and_changes_nothing(place: Place) -> None:
    before = place.tree()
    code, stdout, stderr = place.call("--until", "cyc2")
    assert (code, stdout) == (2, "")
    assert stderr == (
        "Error: --until: no phase 'cyc2' in small; did you mean 'cyc1'? the phases are init, cyc1, last\n"
    )
    assert place.tree() == before


def test_a_plan_holds_the_phases_up_to_one_and_all_prototxts() -> None:
    recipe = load_recipe("stampede2-64n-72ep")
    whole, part = plan_training(recipe, "runs/x"), plan_training(recipe, "runs/x", "cyc1")
    assert part.trainings == whole.trainings[:2]
    assert part.files == whole.files
    assert (part.testings, plan_training(recipe, "runs/x", "collapse")) == ((), whole)
    assert plan_steps(recipe) == plan_steps(recipe, until="collapse")
    assert [step.phase for step in plan_steps(recipe)] == [phase.name for phase in recipe.phases]
