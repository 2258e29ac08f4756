from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from caffe_recipes.errors import InputError
from caffe_recipes.recipe.source import load_recipe
from caffe_recipes.review.inspect.curves import EVALUATION, LOSS_KEY
from caffe_recipes.review.inspect.curves_plot import render_curves
from caffe_recipes.run.journal import Journal
from caffe_recipes.run.monitor.curves import (
    find_measured_logs,
    find_run_logs,
    is_run,
    load_run_curve,
    load_run_curves,
)
from tests.cli.command_line import call_main
from tests.run.recorded_run import LOG, WHOLE, Event, append_events, finished, launched, started, write_run

if TYPE_CHECKING:
    from tests.run.conftest import Place


def test_the_phases_of_a_run_follow_each_other(place: Place) -> None:
    folder = write_run(place.root, place.recipe, started(), launched(), log=LOG)
    append_events(folder, finished("init"), launched("cyc1"), after_s=36)
    (folder / "logs" / "cyc1-1.log").write_text(LOG)
    curve = load_run_curve("small-1", str(place.root))
    images = load_recipe(place.recipe).train_images
    assert curve.name == "small-1"
    assert curve.points(LOSS_KEY, "iterations")[0] == [0, 2, 8, 10]
    assert curve.points(LOSS_KEY, "epochs")[0] == [64 * at / images for at in (0, 2, 8, 10)]
    assert curve.points(LOSS_KEY, "hours")[0] == [0, 1 / 3600, 36 / 3600, 37 / 3600]
    assert [(mark.what, mark.name) for mark in curve.marks("iterations")] == [("join", "cyc1")]


def test_a_second_launch_of_a_phase_is_a_restart(place: Place) -> None:
    folder = write_run(
        place.root, place.recipe, started(), launched(), launched("init", 2), launched("init", 3), log=LOG
    )
    text = "I1120 11:49:33.000000  6374 solver.cpp:312] Iteration 1, loss = 2\n"
    (folder / "logs" / "init-2.log").write_text("no loss\n")
    (folder / "logs" / "init-3.log").write_text(text)
    curve = load_run_curve(str(folder), str(place.root))
    assert curve.points(LOSS_KEY, "iterations") == ([0, 1], [2.5, 2])
    assert [mark.what for mark in curve.marks("iterations")] == ["restart"]


def test_a_branch_of_the_recipe_has_a_curve_of_its_own(place: Place) -> None:
    phases = ("last", "cyc1", "../../other")  # the second has no journal
    branched: list[Event] = [("branched", {"phase": phase, "folder": "x", "hosts": []}) for phase in phases]
    folder = write_run(place.root, place.recipe, started(), launched(), *branched, log=LOG)
    branch = folder / "branches" / "last"
    (branch / "logs").mkdir(parents=True)
    Journal(branch / "journal.jsonl", create=True).close()
    append_events(branch, started(), launched("last"))
    (branch / "logs" / "last-1.log").write_text(LOG)
    curves = list(load_run_curves("small-1", str(place.root)))
    assert [[piece.name for piece in curve.pieces] for curve in curves] == [["init"], ["last"]]
    assert curves[1].points(LOSS_KEY, "iterations")[0] == [14, 16]
    logs = [folder / "logs/init-1.log", branch / "logs/last-1.log"]
    assert find_run_logs("small-1", str(place.root)) == logs
    logs[0].write_text("no loss\n")
    assert find_measured_logs(str(folder), str(place.root)) == logs[1:]


def test_the_log_of_an_evaluation_is_one_of_the_run(place: Place) -> None:
    folder = write_run(place.root, place.recipe, *WHOLE, log=LOG)
    (folder / "logs" / "x").write_text(LOG)  # as the event says
    logs = [folder / "logs" / name for name in ("init-1.log", "x")]
    assert find_measured_logs("small-1", str(place.root)) == logs


def test_a_phase_ends_with_the_results_of_its_evaluation(place: Place) -> None:
    pytest.importorskip("matplotlib")
    folder = write_run(place.root, place.recipe, *WHOLE, log=LOG)
    shutil.copy(folder / "logs" / "init-1.log", folder / "logs" / "last-1.log")
    curve = load_run_curve("small-1", str(place.root))
    key = (EVALUATION, 0, "loss3/top-1")
    assert curve.points(key, "iterations") == ([16], [0.75])
    assert b"stars: evaluated -->" in render_curves([curve], "iterations", "svg")


def test_what_two_launches_train_again_is_shown_once(place: Place) -> None:
    launches = [launched("init", number) for number in (1, 2, 3)]
    folder = write_run(place.root, place.recipe, started(), *launches, log=LOG)
    line = "I1120 11:49:33.000000  6374 solver.cpp:312] Iteration {}, loss = {}\n"
    for number, losses in enumerate(({0: 9, 5: 8, 10: 7}, {8: 6, 10: 5}, {5: 4, 10: 3}), 1):
        text = "".join(line.format(*each) for each in losses.items())
        (folder / "logs" / f"init-{number}.log").write_text(text)
    curve = load_run_curve(str(folder), str(place.root))
    assert curve.points(LOSS_KEY, "iterations") == ([0, 5, 10], [9, 4, 3])


def test_a_run_is_plotted_by_its_name_or_folder(place: Place) -> None:
    pytest.importorskip("matplotlib")
    folder = write_run(place.root, place.recipe, started(), launched(), log=LOG)
    for name in ("small-1", "runs/small-1", folder):
        done = call_main("plot", name, "-o", "a.csv", cwd=place.root)
        assert (done.stdout, done.stderr) == ("wrote a.csv\n", "")
    assert call_main("plot", "small-1", "-o", "a.svg", cwd=place.root).returncode == 0
    assert b"epochs" in (place.root / "a.svg").read_bytes()


@pytest.mark.parametrize("option", ["--images", "--ranks", "--batch"])
def test_a_run_knows_its_epochs_without_options(place: Place, option: str) -> None:
    write_run(place.root, place.recipe, started(), launched(), log=LOG)
    done = call_main("plot", "small-1", option, 2, "-o", "a.csv", cwd=place.root)
    assert (done.returncode, (place.root / "a.csv").exists()) == (2, False)
    assert done.stderr == f"Error: {option}: is for solver files and logs; leave it out\n"


def test_runs_of_one_name_are_told_apart(place: Place) -> None:
    write_run(place.root, place.recipe, started(), launched(), log=LOG)
    shutil.copytree(place.root / "runs", place.root / "theirs")
    done = call_main("plot", "small-1", "theirs/small-1", "-o", "a.csv", cwd=place.root)
    assert (done.returncode, done.stderr) == (0, "")
    names = {row.partition(",")[0] for row in (place.root / "a.csv").read_text().splitlines()[1:]}
    assert names == {"small-1", "theirs/small-1"}


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        ("journal.jsonl", "has no journal"),
        ("recipe.json", "no run or recipe is named|no such file"),
        ("logs/init-1.log", "shows no loss"),
    ],
)
def test_a_run_folder_that_is_half_written_is_one_clear_line(
    place: Place, missing: str, message: str
) -> None:
    folder = write_run(place.root, place.recipe, started(), launched(), log=LOG)
    (folder / missing).unlink()
    done = call_main("plot", "runs/small-1", "-o", "a.svg", cwd=place.root)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert any(text in done.stderr for text in message.split("|")), done.stderr


def test_a_link_in_a_run_shows_no_file_of_ours(
    place: Place, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = write_run(place.root, place.recipe, started(), launched(), log=LOG)
    log = folder / "logs" / "init-1.log"
    log.symlink_to(log.rename(tmp_path_factory.mktemp("home") / "mine.log"))
    with pytest.raises(InputError, match="is not shown: a link leads to it"):
        load_run_curve("small-1", str(place.root))
    with pytest.raises(InputError, match="is not shown: a link leads to it"):
        find_run_logs("small-1", str(place.root))


def test_the_logs_of_a_run_are_parsed_and_explained(place: Place) -> None:
    folder = write_run(place.root, place.recipe, started(), launched(), launched("init", 2), log=LOG)
    full = "F1120 11:49:33.000000  6374 io.cpp:66] write: No space left on device\n"
    (folder / "logs" / "init-2.log").write_text(full)
    done = call_main("parse-log", "small-1", cwd=place.root)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("runs/small-1/logs/init-1.log: ") and "init-2" not in done.stdout
    done = call_main("explain", "runs/small-1", cwd=place.root)
    assert done.returncode == 0
    assert done.stdout.startswith("runs/small-1/logs/init-1.log: no known failure in ")
    assert f"runs/small-1/logs/init-2.log:1: {full}  cause: a disk is full" in done.stdout
    (folder / "logs" / "init-1.log").unlink()
    done = call_main("parse-log", "small-1", "--json", cwd=place.root)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    (folder / "logs" / "init-2.log").unlink()
    done = call_main("explain", "small-1", cwd=place.root)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "runs/small-1: has no log yet; " in done.stderr


def test_a_run_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    assert not is_run("small-1", str(tmp_path))
    with pytest.raises(InputError, match="no run or recipe is named"):
        load_run_curve("small-1", str(tmp_path))
