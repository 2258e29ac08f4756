from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from caffe_recipes.errors import InputError
from caffe_recipes.run.monitor.tensorboard import write_event_files
from caffe_recipes.tensorflow.event_files import EVENT_FILE, event_class
from caffe_recipes.tensorflow.records import read_records
from tests.run.recorded_run import LOG, append_events, finished, launched, started, write_run

if TYPE_CHECKING:
    from tests.run.conftest import Place

BEGAN_S = 1_700_000_000.0


def scalars_of(path: Path) -> list[tuple[str, int, float, float]]:
    """Return the scalars of an event file: tag, iteration, time, and value to six digits."""
    events = [event_class().FromString(record) for record in read_records(path)][1:]
    return [
        (value.tag, event.step, event.wall_time, round(value.simple_value, 6))
        for event in events
        for value in event.summary.value
    ]


def test_a_run_has_a_folder_for_each_phase_with_iterations_and_times_of_the_whole(place: Place) -> None:
    folder = write_run(place.root, place.recipe, started(), launched(), log=LOG)
    append_events(folder, finished("init"), launched("cyc1"), after_s=36)
    append_events(folder, launched("cyc1", 2), after_s=60)
    (folder / "logs" / "cyc1-1.log").write_text(LOG)
    again = "I1120 12:00:00.000000  6374 solver.cpp:312] Iteration 2, loss = 0.5\n"
    (folder / "logs" / "cyc1-2.log").write_text(again)
    (place.root / "other.log").write_text(LOG)
    out = place.root / "curves"
    names = ["small-1", str(place.root / "other.log")]
    files = write_event_files(names, str(place.root), out)
    assert files == [out / name / EVENT_FILE for name in ("small-1/init", "small-1/cyc1", "other")]
    assert scalars_of(files[0]) == [
        ("train/average loss", 0, BEGAN_S, 2.5),
        ("train/lr", 0, BEGAN_S, 0.1),
        ("train/average loss", 2, BEGAN_S + 1, 1.25),
        ("train/lr", 2, BEGAN_S + 1, 0.1),
        ("train/images per s", 2, BEGAN_S + 1, 128),
    ]
    assert [row[:4:3] for row in scalars_of(files[1]) if row[0] == "train/average loss"] == [
        ("train/average loss", 2.5),
        ("train/average loss", 0.5),
    ]
    assert [row[1:3] for row in scalars_of(files[1])][-1] == (10, BEGAN_S + 60)


def test_a_run_given_as_the_folder_above_has_the_name_of_that_folder(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(write_run(place.root, place.recipe, started(), launched(), log=LOG) / "logs")
    files = write_event_files([".."], str(place.root), tmp_path / "out")
    assert files == [tmp_path / "out" / "small-1" / "init" / EVENT_FILE]


def test_runs_of_one_name_are_refused_and_nothing_is_written(place: Place, tmp_path: Path) -> None:
    write_run(place.root, place.recipe, started(), launched(), log=LOG)
    (tmp_path / "b").mkdir()
    other = write_run(tmp_path / "b", place.recipe, started(), launched(), log=LOG)
    with pytest.raises(InputError, match="has the name of another run"):
        write_event_files(["small-1", str(other)], str(place.root), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_run_writes_event_files_at_its_end_and_a_finished_one_when_it_is_asked_again(
    place: Place, tmp_path: Path
) -> None:
    place.run(tensorboard=tmp_path / "first")
    phases = sorted(str(path.relative_to(tmp_path)) for path in (tmp_path / "first").glob("*/*"))
    assert phases == [f"first/small-1/{phase}" for phase in ("cyc1", "init", "last")]
    place.run(tensorboard=tmp_path / "second")
    assert len(list((tmp_path / "second").rglob(EVENT_FILE))) == 3
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="file: is not a folder"):
        place.run(tensorboard=tmp_path / "file")
    place.run(tensorboard=tmp_path / "file/below")  # it cannot be written, which fails nothing
    assert "the event files of small-1 were not written" in place.output.getvalue()
