from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from caffe_recipes.errors import InputError
from caffe_recipes.run.report.writing import REPORT, write_own_report, write_report
from tests.run.recorded_run import LOG, append_events, failed, launched, started, write_run

if TYPE_CHECKING:
    from tests.run.conftest import Place


def test_a_run_writes_its_report_at_its_end(place: Place) -> None:
    place.run()
    folder = place.root / "runs" / "small-1"
    assert "<dd>finished" in (folder / REPORT).read_text()
    assert not [path for path in folder.iterdir() if path.name.startswith(".")]


def test_a_later_report_leaves_out_the_environment_of_a_profile_that_has_changed_since(place: Place) -> None:
    profile = place.root / "mine.yaml"
    profile.write_text("name: mine\ntitle: mine\nlauncher: {environment: {TOKEN: hunter2-hunter3}}\n")
    place.run(profile=str(profile))
    profile.unlink()
    folder = place.root / "runs" / "small-1"
    append_events(folder, failed("init", "could not log in with hunter2-hunter3"))
    write_report([str(folder)], place.root / "later.html", str(place.root))
    later = (place.root / "later.html").read_text()
    assert "hunter2" not in later
    assert "could not log in with (hidden)" in later
    assert "hunter3" not in (folder / "journal.jsonl").read_text().partition("could not log in")[0]


def test_runs_of_one_name_are_told_apart(place: Place) -> None:
    write_run(place.root, place.recipe, started(), launched(), log=LOG)
    shutil.copytree(place.root / "runs", place.root / "theirs")
    out = place.root / "a.html"
    assert write_report(["small-1", str(place.root / "theirs" / "small-1")], out, str(place.root)) == ()
    page = out.read_text()
    assert "runs/small-1, theirs/small-1 - report</title>" in page
    assert '"runs":["runs/small-1","theirs/small-1"]' in page


def test_a_file_that_is_no_page_is_left_alone(place: Place) -> None:
    folder = write_run(place.root, place.recipe, started(), launched(), log=LOG)
    recipe = place.root / "mine.yaml"
    recipe.write_text("name: mine\n")
    with pytest.raises(InputError, match=r"mine\.yaml: is not an \.html file"):
        write_report([str(folder)], recipe, str(place.root))
    assert recipe.read_text() == "name: mine\n"


def test_what_goes_wrong_is_returned_and_not_raised(place: Place) -> None:
    folder = write_run(place.root, place.recipe, started(), launched(), log=LOG)
    (folder / REPORT).mkdir()
    assert write_own_report(folder, place.root).endswith("cannot be written: Is a directory")
    (folder / REPORT).rmdir()
    (folder / "recipe.json").write_text('{"format": 1}')
    assert "is not the recipe of a run" in write_own_report(folder, place.root)
    with (folder / "logs" / "init-1.log").open("a") as log:
        log.truncate(3 << 20)
    assert write_own_report(folder, place.root).startswith("its logs are large; write it with `caffe-recipes")


def test_the_report_of_a_long_run_is_written_from_logs_of_its_size(place: Place) -> None:
    folder = write_run(place.root, place.recipe, started(), launched(), log=LOG)
    with (folder / "logs" / "init-1.log").open("a") as log:
        log.truncate(3 << 20)
    assert write_own_report(folder, place.root, ran_s=600.0).startswith("its logs are large")
    assert write_own_report(folder, place.root, ran_s=700.0) == ""
    assert (folder / REPORT).stat().st_size > 10_000
