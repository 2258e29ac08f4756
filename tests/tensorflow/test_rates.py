"""The rate of the Horovod run, by its breakpoints."""

from __future__ import annotations

from itertools import pairwise

import pytest
from pydantic import ValidationError

from caffe_recipes.tensorflow.run import GradualWarmup

RUN = GradualWarmup(learning_rate=0.1, warmup_steps=260, end_learning_rate=4.8, steps=4680)


def test_the_rate_is_that_of_each_breakpoint_there() -> None:
    assert RUN.breakpoints == ((0, 0.1), (260, 4.8), (4680, 0.0))
    for step, rate in RUN.breakpoints:
        assert RUN.rate_at(step) == pytest.approx(rate, abs=1e-15)


def test_the_rate_is_linear_between_the_breakpoints_and_stays_at_0() -> None:
    rates = [RUN.rate_at(step) for step in range(5000)]
    rises = {round(after - before, 9) for before, after in pairwise(rates[:260])}
    falls = {round(after - before, 9) for before, after in pairwise(rates[260:4681])}
    assert rises == {round(4.7 / 260, 9)}
    assert falls == {round(-4.8 / 4420, 9)}
    assert set(rates[4680:]) == {0.0}


def test_a_warm_up_that_never_ends_is_refused() -> None:
    with pytest.raises(ValidationError, match="warmup_steps 260 must be less than steps 260"):
        GradualWarmup(learning_rate=0.1, warmup_steps=260, end_learning_rate=4.8, steps=260)
