from collections.abc import Iterable
from pathlib import Path

import pytest

from caffe_recipes.caffe.measurements import MOST_OUTPUTS, MOST_RUNS, MeasuredLog
from caffe_recipes.errors import InputError
from caffe_recipes.review.inspect.training_logs import LogDigest, load_measurements


def test_the_steps_and_evaluations_of_tensorflow_are_measured(tmp_path: Path) -> None:
    path = tmp_path / "tf.log"
    path.write_text(
        "[0] I1120 11:49:33.581089 140000 resnet_main.py:150] step 0: loss = 7.5, learning_rate = 0.1\n"
        "[1] I1120 11:49:33.581089 140000 resnet_main.py:150] step 0: loss = 9, learning_rate = 0.1\n"
        "INFO:tensorflow:loss = 7.25, step = 100 (12.3 sec)\n"
        "INFO:tensorflow:Saving dict for global step 100: Top-1 accuracy = 0.5, loss = 2\n"
        "INFO:tensorflow:global_step/sec: 4.1\n"
    )
    log = MeasuredLog()
    rows = [row for group in load_measurements(path, log) for row in group]
    assert [(row.iteration, row.phase, row.output, row.value) for row in rows] == [
        (0, "train", "average loss", 7.5),
        (0, "train", "lr", 0.1),
        (100, "train", "average loss", 7.25),
        (100, "test", "top-1", 0.5),
        (100, "test", "loss", 2),
    ]
    assert log.unknown == 2


def test_only_line_feeds_count_as_line_breaks(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    place = "I1120 11:49:33.581089 7 solver.cpp:312]"
    path.write_text(
        f"a\rb\x1cc\fd\u2028e\n 5%\r10%\r{place} Iteration 0, loss = 2\r\n{place} Iteration 1, lo\r\n",
        newline="",
    )
    log = MeasuredLog()
    rows = [row for group in load_measurements(path, log) for row in group]
    assert [row.value for row in rows] == [2]
    assert (log.lines, log.unknown, log.unreadable, log.first_unreadable) == (3, 1, 1, 3)


def write(path: Path, texts: Iterable[str]) -> Path:
    path.write_text("".join(f"I1120 11:49:33.000000  7 caffe.cpp:1] {text}\n" for text in texts))
    return path


def test_a_log_of_too_many_runs_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "x.log", ["Iteration 0, loss = 1", *(f"Solving {at}" for at in range(MOST_RUNS))])
    with pytest.raises(InputError, match="has over 1,000 runs; give a part of it"):
        list(load_measurements(path, MeasuredLog()))


@pytest.mark.parametrize("text", ["Batch 0, a{} = 1", "a{} = 1", "    Test net output #{}: a{} = 1"])
def test_a_log_of_too_many_outputs_is_refused(tmp_path: Path, text: str) -> None:
    texts = (text.format(at, at) for at in range(MOST_OUTPUTS + 1))
    path = write(tmp_path / "x.log", ["Iteration 0, Testing net (#0)", *texts])
    with pytest.raises(InputError, match="has over 10,000 outputs in an iteration; give a part of it"):
        list(load_measurements(path, MeasuredLog()))


def test_a_summary_holds_a_bounded_number_of_outputs(tmp_path: Path) -> None:
    log, digest = MeasuredLog(), LogDigest()
    path = write(tmp_path / "x.log", (f"Batch {at}, a{at} = 1" for at in range(MOST_OUTPUTS + 2)))
    for rows in load_measurements(path, log):
        digest.add([*rows, *rows[:1]])
    lines = list(digest.render(log))
    assert len(lines) == MOST_OUTPUTS + 2
    assert lines[-1] == "  not shown: 2 measurements, of outputs after the first 10,000"
