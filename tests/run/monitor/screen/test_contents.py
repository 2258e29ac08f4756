from __future__ import annotations

from pathlib import Path

from caffe_recipes.recipe.source import load_recipe
from caffe_recipes.run.monitor.followed_run import FollowedRun
from caffe_recipes.run.monitor.run_files import LocalFiles
from caffe_recipes.run.monitor.screen.contents import CurveHistory, ScreenContents, read_contents
from tests.run.conftest import Place
from tests.run.recorded_run import LOG, Event, append_events, finished, launched, started, write_run

START_S = 1_700_000_000.0


def follow(run: FollowedRun, history: CurveHistory, quiet_s: float = 0.0) -> ScreenContents:
    for _ in range(2):  # the journal names the log
        run.update(LocalFiles().read(run.requests(), run.process).pieces, live=False)
    return read_contents(run, history, quiet_s, START_S + 90)


def test_the_phases_show_what_is_finished_in_progress_and_to_come(place: Place) -> None:
    events: list[Event] = [started(), launched(hosts=["n1", "n2"])]
    folder = write_run(place.root, place.recipe, *events, log=LOG)
    run, history = FollowedRun("small", str(folder), load_recipe(place.recipe)), CurveHistory()
    shown = follow(run, history)
    assert (shown.name, shown.doing, shown.ran_s) == ("runs/small-1", "init, phase 1 of 3", 90)
    assert [(row.name, row.word, row.iteration) for row in shown.phases] == [
        ("init", "training", 2),
        ("cyc1", "waiting", 0),
        ("last", "waiting", 0),
    ]
    assert (shown.images_per_s, shown.phases[0].loss) == (128, 1.25)
    assert [(host.name, host.state) for host in shown.hosts] == [("n1", "ok"), ("n2", "ok")]
    append_events(folder, finished("init"))
    shown = follow(run, history)
    assert (shown.doing, shown.phases[0].word, shown.phases[0].loss) == ("between phases", "finished", 0.25)
    assert len(shown.losses) == 2  # the curve stays


def test_the_curve_continues_through_launches_and_has_each_loss_once(place: Place) -> None:
    folder = write_run(place.root, place.recipe, started(), launched(), log=LOG)
    run, history = FollowedRun("small", str(folder), load_recipe(place.recipe)), CurveHistory()
    follow(run, history)
    assert follow(run, history).losses == [(0.0, 2.5), (2 * 64 / 128, 1.25)]
    append_events(folder, finished("init"), launched("cyc1"))
    (folder / "logs" / "cyc1-1.log").write_text(LOG)
    shown = follow(run, history)
    assert [loss for _, loss in shown.losses] == [2.5, 1.25, 2.5, 1.25]
    epochs = [epoch for epoch, _ in shown.losses]
    assert epochs == sorted(epochs)
    assert shown.epochs == epochs[-1]


def test_alarms_of_the_log_are_shown(place: Place) -> None:
    log = LOG.replace("loss = 1.25", "loss = nan")
    folder = write_run(place.root, place.recipe, started(), launched(), log=log)
    shown = follow(FollowedRun("small", str(folder), load_recipe(place.recipe)), CurveHistory())
    assert shown.alarms == ("the loss is nan at iteration 2",)


def test_the_curve_s_memory_does_not_grow_with_the_run() -> None:
    history = CurveHistory(losses=[(number / 10, 1.0) for number in range(4000)])
    for _ in range(5000):
        history.losses.append((400.0, 1.0))
        history.trim()
    assert len(history.losses) <= 4096
    assert history.losses[0] == (0.0, 1.0)


def test_a_run_of_which_nothing_is_known_is_starting(tmp_path: Path, place: Place) -> None:
    run = FollowedRun("small", str(tmp_path), load_recipe(place.recipe))
    shown = read_contents(run, CurveHistory(), 0.0, START_S)
    assert (shown.doing, shown.ran_s, shown.left_s, shown.alarms) == ("starting", None, None, ())
