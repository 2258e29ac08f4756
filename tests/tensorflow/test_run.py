"""The rate of the Horovod run, by its breakpoints."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from caffe_recipes.tensorflow.run import GradualWarmup

RUN = GradualWarmup(learning_rate=0.1, warmup_steps=260, end_learning_rate=4.8, steps=4680)


def test_the_rate_rises_to_its_peak_and_falls_to_0() -> None:
    assert RUN.breakpoints == ((0, 0.1), (260, 4.8), (4680, 0.0))


def test_a_warm_up_that_never_ends_is_refused() -> None:
    with pytest.raises(ValidationError, match="warmup_steps 260 must be less than steps 260"):
        GradualWarmup(learning_rate=0.1, warmup_steps=260, end_learning_rate=4.8, steps=260)
