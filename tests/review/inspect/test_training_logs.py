from pathlib import Path

from caffe_recipes.caffe.measurements import MeasuredLog
from caffe_recipes.review.inspect.training_logs import load_measurements


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
