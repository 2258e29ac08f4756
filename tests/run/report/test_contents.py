from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from caffe_recipes.errors import InputError
from caffe_recipes.run.report.contents import load_contents
from tests.run.recorded_run import LOG, WHOLE, append_events, failed, finished, launched, started, write_run

if TYPE_CHECKING:
    from tests.run.conftest import Place


def test_a_finished_run_has_its_phases_its_curve_and_its_origins(place: Place) -> None:
    folder = write_run(place.root, place.recipe, *WHOLE, log=LOG)
    run = load_contents("small-1", str(place.root))
    assert (run.name, run.state, run.path) == ("small-1", "finished", str(folder))
    assert [(one.step.phase, one.state, one.attempts) for one in run.phases] == [
        ("init", "finished", 1),
        ("cyc1", "finished", 1),
        ("last", "finished", 1),
    ]
    assert run.curve is not None
    kinds = {origin.what for origin in run.origins}
    assert {"recipe", "file", "snapshot", "file of the run", "version"} <= kinds
    assert "name: small" in run.recipe_yaml


def test_a_phase_has_its_images_per_s_by_host_of_its_last_launch(place: Place) -> None:
    events = (
        *(started(), launched(hosts=["a", "b"]), launched("init", 2, hosts=["a", "c", "d"])),
        *(finished("init"), launched("cyc1")),
    )
    folder = write_run(place.root, place.recipe, *events, log=LOG)
    phases = load_contents(str(folder), str(place.root)).phases
    assert [one.images_per_s_by_host for one in phases] == [411.5, None, None]


def test_a_failed_run_says_what_failed_and_explains_its_log(place: Place) -> None:
    log = f"{LOG}\n[1] Host key verification failed.\n"
    events = (started(), launched(), failed("init", "the ranks ended"), started(host="again"))
    folder = write_run(place.root, place.recipe, *events, log=log)
    run = load_contents(str(folder), str(place.root))
    assert (run.incidents[0].what, run.incidents[0].is_action) == ("the ranks ended", False)
    assert run.incidents[1].what.startswith("resumed by process")
    assert [line.diagnosis.name for one in run.explained for line in one.found] == ["ssh-host-key"]


@pytest.mark.parametrize("damage", ["\nhi\n", "a\rb\n", "\u2028\n", "\x85\x0b\x0c\x1c\n", "\n\n"])
def test_a_journal_without_any_event_is_one_error(place: Place, damage: str) -> None:
    folder = write_run(place.root, place.recipe, started(), launched(), log=LOG)
    (folder / "journal.jsonl").write_text(damage)
    with pytest.raises(InputError, match=r"journal\.jsonl"):
        load_contents(str(folder), str(place.root))


def test_what_cannot_be_read_is_counted_and_the_rest_is_shown(place: Place) -> None:
    folder = write_run(place.root, place.recipe, started(), launched(), log=LOG)
    with (folder / "journal.jsonl").open("a") as journal:
        journal.write('damaged\n{"time": 3}\n')
    append_events(folder, failed("init", "later"))
    run = load_contents(str(folder), str(place.root))
    assert run.state == "failed"
    assert run.unread[0] == f"{folder}/journal.jsonl: 2 lines damaged"


@pytest.mark.parametrize(
    ("missing", "message"), [("recipe.json", "no such file"), ("journal.jsonl", "no run or recipe is named")]
)
def test_a_folder_that_is_not_a_run_is_one_error(place: Place, missing: str, message: str) -> None:
    folder = write_run(place.root, place.recipe, started(), launched(), log=LOG)
    (folder / missing).unlink()
    with pytest.raises(InputError, match=message):
        load_contents(str(folder), str(place.root))


def test_a_run_without_logs_has_no_curve(place: Place) -> None:
    folder = write_run(place.root, place.recipe, started(), launched(), log=LOG)
    (folder / "logs" / "init-1.log").unlink()
    run = load_contents(str(folder), str(place.root))
    assert (run.curve, run.unread) == (None, ("runs/small-1/logs/init-1.log: no such file",))
