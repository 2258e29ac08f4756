"""TensorBoard's own reader reads the event files of a training log back."""

from __future__ import annotations

from pathlib import Path

import pytest

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
