"""TensorBoard's own reader reads the event files of a run back."""

from __future__ import annotations

from pathlib import Path

import pytest

from caffe_recipes.review.inspect.curves import TrainingCurve, load_pieces
from caffe_recipes.review.inspect.event_files import render_run_events
from caffe_recipes.tensorflow.event_files import EVENT_FILE, Scalar, render_event_file
from tests.tensorflow_programs.launch import ask

pytestmark = pytest.mark.tensorflow

READ = """
import json, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
found = EventAccumulator(sys.argv[1], size_guidance={"scalars": 0}).Reload()
scalars = {tag: [[each.step, each.value] for each in found.Scalars(tag)] for tag in found.Tags()["scalars"]}
print(json.dumps(scalars))
"""


def test_tensorboard_reads_the_scalars_of_each_tag_back(tmp_path: Path) -> None:
    losses = [
        Scalar("loss", iteration, iteration / 2, 1 / (iteration + 1)) for iteration in range(0, 300, 20)
    ]
    rates = [Scalar("lr", 0, 0.0, 0.0), Scalar("lr", 2**40, 9.0, 0.5)]
    (tmp_path / EVENT_FILE).write_bytes(render_event_file([*losses, *rates]))
    found = ask(READ, tmp_path)
    assert found["lr"] == [[0, 0.0], [2**40, 0.5]]
    assert [step for step, _ in found["loss"]] == [scalar.iteration for scalar in losses]
    assert [value for _, value in found["loss"]] == pytest.approx([scalar.value for scalar in losses])


LOG = """\
I1120 11:49:33.000000  7 solver.cpp:312] Iteration 0, loss = nan
I1120 11:49:34.000000  7 sgd_solver.cpp:219] Iteration 0, lr = 0.5
I1120 11:49:35.000000  7 solver.cpp:312] Iteration 20, loss = 2
I1120 11:49:36.000000  7 solver.cpp:474] Iteration 20, Testing net (#0)
I1120 11:49:37.000000  7 solver.cpp:562]     Test net output #0: loss3/top-1 = 0.25
I1120 11:49:37.000000  7 solver.cpp:562]     Test net output #1: loss3/top-5 = 0.75
"""


def test_tensorboard_reads_loss_rate_speed_and_accuracies_of_each_phase_back(tmp_path: Path) -> None:
    log = tmp_path / "init-1.log"
    log.write_text(LOG)
    phases = {"init": 0, "cyc1": 100}
    pieces = [load_pieces(log)[0] for _ in phases]
    for piece, (name, begins) in zip(pieces, phases.items(), strict=True):
        piece.name, piece.begins_iter, piece.images_per_iter = name, begins, 64
    files = render_run_events([TrainingCurve("run-1", pieces)], tmp_path / "run-1")
    for path, data in files.items():
        path.parent.mkdir(parents=True)
        path.write_bytes(data)
    for name, begins in phases.items():
        found = ask(READ, tmp_path / "run-1" / name)
        losses = found.pop("train/average loss")
        assert [step for step, _ in losses] == [begins, begins + 20]
        assert str(losses[0][1]) == "nan"
        assert losses[1][1] == 2
        assert found == {
            "train/lr": [[begins, 0.5]],
            "train/images per s": [[begins + 20, 640]],
            "test/loss3/top-1": [[begins + 20, 0.25]],
            "test/loss3/top-5": [[begins + 20, 0.75]],
        }
