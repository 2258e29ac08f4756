from contextlib import chdir
from pathlib import Path

import pytest

from caffe_recipes.errors import InputError
from caffe_recipes.review.inspect.event_files import render_log_events
from caffe_recipes.tensorflow.event_files import EVENT_FILE, event_class
from caffe_recipes.tensorflow.records import read_records

LOG = """\
I1120 11:49:33.000000  7 solver.cpp:397] Solving TinyNet
I1120 11:49:34.000000  7 solver.cpp:474] Iteration 0, Testing net (#0)
I1120 11:49:35.000000  7 solver.cpp:562]     Test net output #0: accuracy = 0.25
I1120 11:49:36.500000  7 solver.cpp:312] Iteration 0, loss = nan
I1120 11:49:37.000000  7 sgd_solver.cpp:219] Iteration 0, lr = 0.001
I1120 11:49:38.000000  7 solver.cpp:312] Iteration 20, loss = 2
"""


def test_a_log_is_a_run_with_its_scalars_by_iteration(tmp_path: Path) -> None:
    log = tmp_path / "init-1.log"
    log.write_text(LOG)
    files = render_log_events([log], tmp_path / "out")
    shown = {}
    for path, data in files.items():
        log.write_bytes(data)
        events = [event_class().FromString(record) for record in read_records(log)][1:]
        shown[str(path.relative_to(tmp_path / "out"))] = [
            (event.step, event.wall_time, value.tag, str(round(value.simple_value, 6)))
            for event in events
            for value in event.summary.value
        ]
    assert shown == {
        f"init-1/{EVENT_FILE}": [
            (0, 2.0, "test/accuracy", "0.25"),
            (0, 3.5, "train/average loss", "nan"),
            (0, 4.0, "train/lr", "0.001"),
            (20, 5.0, "train/average loss", "2.0"),
        ]
    }


def test_runs_of_a_log_have_a_folder_each_and_logs_are_named_as_their_curves(tmp_path: Path) -> None:
    log, other = tmp_path / "a.log", tmp_path / "b" / "a.log"
    other.parent.mkdir()
    for path in (log, other):
        path.write_text(LOG + LOG)
    folders = {path.parts[0] for path in render_log_events([log], Path())}
    assert folders == {"a-run1", "a-run2"}
    with chdir(other.parent):  # what lies above the folder is not written
        files = render_log_events([Path("../a.log"), Path("a.log"), Path("a.log")], Path("out"))
    folders = {str(path.parent) for path in files}
    above = tmp_path.name
    assert folders == {f"out/{name}-run{run}" for name in (f"{above}/a", "b/a") for run in (1, 2)}
    single = tmp_path / "a-run1.log"
    single.write_text(LOG)
    with pytest.raises(InputError, match="has a run of the name of another log, a-run1"):
        render_log_events([log, single], Path())
