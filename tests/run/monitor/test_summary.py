from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from caffe_recipes.errors import InputError
from caffe_recipes.recipe.source import load_recipe
from caffe_recipes.run.monitor.follow import StatusOptions
from caffe_recipes.run.monitor.summary import RunSummary, summarize_runs
from tests.run.recorded_run import LOG, WHOLE, finished, launched, started, write_run

if TYPE_CHECKING:
    from tests.run.conftest import Place


def _summarize(place: Place, *names: str) -> list[RunSummary]:
    return summarize_runs(names, StatusOptions(str(place.root)))


def test_a_finished_run_has_its_epochs_speed_and_accuracy(place: Place) -> None:
    write_run(place.root, place.recipe, *WHOLE)
    (found,) = _summarize(place)
    recipe = load_recipe(place.recipe)
    assert found.epochs == sum(phase.last_iter for phase in recipe.phases) * 64 / recipe.train_images
    assert found.images_per_s is not None
    assert round(found.images_per_s, 3) == 1234.5
    rest = replace(found, epochs=None, images_per_s=None, frozen=None)
    path = str(place.root / "runs/small-1")
    assert rest == RunSummary("small-1", "small", "finished", hours=0.0, loss=0.25, top1=0.75, path=path)


def test_an_unfinished_run_has_the_loss_and_the_epochs_of_its_log(place: Place) -> None:
    write_run(place.root, place.recipe, started(), launched(), log=LOG)
    (found,) = _summarize(place, "small-1")
    assert (found.state, found.loss, found.top1) == ("stopped", 1.25, None)
    assert found.frozen is not None
    assert found.epochs == 2 * 64 / found.frozen.train_images


def test_a_run_that_cannot_be_read_has_its_error(place: Place) -> None:
    folder = write_run(place.root, place.recipe, started(), finished("init"))
    (folder / "journal.jsonl").write_text("{\n{\n")
    for names in ((), ("small-1",)):
        (found,) = _summarize(place, *names)
        assert (found.run, found.state, found.epochs) == ("small-1", "unreadable", None)
        assert "journal.jsonl" in found.error


def test_a_name_without_a_run_is_refused(place: Place) -> None:
    write_run(place.root, place.recipe, started())
    with pytest.raises(InputError, match="no run or recipe is named 'large'"):
        _summarize(place, "large")
