from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from caffe_recipes.review.inspect.curves import TrainingCurve, load_pieces
from caffe_recipes.run.report.charts import MOST_POINTS, ChartPoint, find_slow, thin


def load_curve(path: Path, seconds: Sequence[int]) -> TrainingCurve:
    """Return the curve of a log whose displays, one every 20 iterations, are at these times."""
    path.write_text(
        "".join(
            f"I1120 11:{at // 60:02}:{at % 60:02}.000000  6374 solver.cpp:312] "
            f"Iteration {20 * number}, loss = 1\n"
            for number, at in enumerate(seconds)
        )
    )
    return TrainingCurve("small-1", load_pieces(path), None, None)


def test_displays_that_took_over_twice_the_median_are_the_slow_ones(tmp_path: Path) -> None:
    count, slow = find_slow(load_curve(tmp_path / "x.log", [0, 10, 20, 30, 55, 65, 75, 94]))
    assert count == 1
    assert [(one.iteration, one.seconds, one.times) for one in slow] == [(80, 1.25, 2.5)]
    assert find_slow(load_curve(tmp_path / "x.log", [0, 10, 20, 30, 40, 50])) == (0, [])


def test_without_times_of_enough_displays_slow_ones_are_not_known(tmp_path: Path) -> None:
    assert find_slow(load_curve(tmp_path / "x.log", [0, 10, 20])) == (None, [])
    assert find_slow(load_curve(tmp_path / "x.log", [0] * 20)) == (None, [])


def test_thinning_keeps_both_ends_and_every_peak() -> None:
    values = [math.sin(at / 50) for at in range(22_610)]
    values[12_345], values[777] = 87.3365, -9.0
    kept = thin([ChartPoint(at, at, at, value) for at, value in enumerate(values)])
    assert len(kept) <= MOST_POINTS
    assert (kept[0].iterations, kept[-1].iterations) == (0, 22_609)
    assert {87.3365, -9.0} <= {point.value for point in kept}
    assert [point.iterations for point in kept] == sorted({point.iterations for point in kept})


def test_thinning_survives_values_that_are_not_finite() -> None:
    kept = thin([ChartPoint(at, at, at, math.nan) for at in range(10_000)])
    assert [point.iterations for point in kept] == [0, 9999]
