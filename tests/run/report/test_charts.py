from __future__ import annotations

import math

from caffe_recipes.run.report.charts import MOST_POINTS, ChartPoint, thin


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
