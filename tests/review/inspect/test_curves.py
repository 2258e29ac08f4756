from pathlib import Path

import pytest

from caffe_recipes.errors import InputError
from caffe_recipes.review.inspect.curves import (
    LOSS_KEY,
    CurveMark,
    check_axis,
    load_log_curves,
    name_logs,
    render_curves_csv,
    running_means,
)


def write(path: Path, *texts: str) -> Path:
    """Write a log with a line for each second."""
    lines = [f"I1120 11:49:{second:02}.000000  7 solver.cpp:1] {text}\n" for second, text in enumerate(texts)]
    path.write_text("".join(lines))
    return path


def test_a_run_that_starts_from_weights_continues_the_one_before(tmp_path: Path) -> None:
    log = write(
        tmp_path / "x.log",
        *("Solving a", "Iteration 0, loss = 4", "Iteration 10, loss = 3", "Finetuning from a.caffemodel"),
        *("Solving b", "Iteration 0, loss = 2", "Iteration 5, loss = 1"),
    )
    (curve,) = load_log_curves(log, 0.5)
    assert curve.points(LOSS_KEY, "iterations") == ([0, 10, 10, 15], [4, 3, 2, 1])
    assert curve.points(LOSS_KEY, "epochs")[0] == [0, 5, 5, 7.5]
    assert curve.points(LOSS_KEY, "hours")[0] == [1 / 3600, 2 / 3600, 5 / 3600, 6 / 3600]
    assert list(curve.marks("iterations")) == [CurveMark(10, "join", "b")]


def test_what_a_restart_trains_again_is_shown_once(tmp_path: Path) -> None:
    log = write(
        tmp_path / "x.log",
        *("Solving a", "Iteration 0, loss = 4", "Iteration 10, loss = 3", "Iteration 20, loss = 9"),
        *(
            "Resuming from a_iter_15.solverstate",
            "Solving a",
            "Iteration 15, loss = 2",
            "Iteration 20, loss = 1",
        ),
    )
    (curve,) = load_log_curves(log, None)
    assert curve.points(LOSS_KEY, "iterations") == ([0, 10, 15, 20], [4, 3, 2, 1])
    assert curve.points(LOSS_KEY, "hours")[1] == [4, 3, 2, 1]
    assert [mark.what for mark in curve.marks("iterations")] == ["restart"]
    assert len(list(render_curves_csv([curve]))) == 5


def test_what_two_restarts_train_again_is_shown_once(tmp_path: Path) -> None:
    log = write(
        tmp_path / "x.log",
        *("Solving a", "Iteration 0, loss = 9", "Iteration 5, loss = 8", "Iteration 10, loss = 7"),
        *("Resuming from 8.solverstate", "Solving a", "Iteration 8, loss = 6", "Iteration 10, loss = 5"),
        *("Resuming from 5.solverstate", "Solving a", "Iteration 5, loss = 4", "Iteration 10, loss = 3"),
        *("Finetuning from a.caffemodel", "Solving b", "Iteration 0, loss = 2", "Iteration 5, loss = 1"),
    )
    (curve,) = load_log_curves(log, None)
    assert curve.points(LOSS_KEY, "iterations") == ([0, 5, 10, 10, 15], [9, 4, 3, 2, 1])
    rows = list(render_curves_csv([curve]))[1:]
    assert [float(row.rpartition(",")[2]) for row in rows] == [9, 4, 3, 2, 1]


def test_trainings_that_start_afresh_are_curves_of_their_own(tmp_path: Path) -> None:
    log = write(tmp_path / "x.log", *("Solving a", "Iteration 0, loss = 4", "Iteration 9, loss = 3") * 2)
    assert [curve.name for curve in load_log_curves(log, None)] == ["x.log run 1", "x.log run 2"]
    assert load_log_curves(log, None, "first/x.log")[0].name == "first/x.log run 1"


@pytest.mark.parametrize(
    ("paths", "names"),
    [
        ((), []),
        (("runs/a.log", "runs/b.log"), ["a.log", "b.log"]),
        (("1/log/train.log", "2/log/train.log"), ["1/log/train.log", "2/log/train.log"]),
        (("train.log", "old/train.log"), ["train.log", "old/train.log"]),
        (("old/train.log", "old/train.log"), ["train.log", "train.log"]),
    ],
)
def test_logs_are_named_by_what_tells_their_paths_apart(paths: tuple[str, ...], names: list[str]) -> None:
    assert name_logs([*map(Path, paths)]) == names


def test_the_end_of_a_warm_up_is_marked(tmp_path: Path) -> None:
    rates = [f"Iteration {at}, lr = {rate}" for at, rate in enumerate((0.1, 0.2, 0.3, 0.25))]
    (curve,) = load_log_curves(write(tmp_path / "x.log", *rates), None)
    assert list(curve.marks("iterations")) == [CurveMark(2, "warm-up")]


def test_a_long_log_keeps_a_bounded_number_of_points(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    log.write_text(
        "".join(f"I1120 11:49:33.000000  7 s.cpp:1] Iteration {at}, loss = {at}\n" for at in range(45_000))
    )
    (curve,) = load_log_curves(log, None)
    xs, values = curve.points(LOSS_KEY, "iterations")
    assert xs == values == list(range(0, 45_000, 4))


def test_smoothing_ignores_what_is_not_finite() -> None:
    values = [1.0, 3.0] * 200
    assert running_means(values)[200] == pytest.approx(2, abs=0.2)
    values[200] = float("nan")
    means = running_means(values)
    assert means[200] != means[200] and means[201] == pytest.approx(2, abs=0.3)


def test_an_axis_that_is_not_known_is_refused(tmp_path: Path) -> None:
    curves = load_log_curves(write(tmp_path / "x.log", "Iteration 0, loss = 4"), None)
    with pytest.raises(InputError, match="does not say how many iterations are an epoch"):
        check_axis(curves, "epochs")


def test_the_log_of_an_evaluation_has_no_curve(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    log.write_text("I1120 11:49:33.000000  7 caffe.cpp:517] loss = 2\n")
    with pytest.raises(InputError, match="shows no training"):
        load_log_curves(log, None)
