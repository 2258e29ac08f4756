"""The paper's rules, at known values."""

from __future__ import annotations

import pytest

from caffe_recipes.recipe import paper_rules


def test_the_published_recipes_peak_where_linear_scaling_puts_them() -> None:
    assert paper_rules.peak_lr(4096) == 1.6  # solver_init of the 64-node recipe
    assert paper_rules.scaled_lr(14336) == 5.6  # that of 448 nodes has 4.8: it departs from the rule


def test_the_rate_is_constant_from_16384_images_on_and_meets_the_line_there() -> None:
    assert paper_rules.peak_lr(16383) == pytest.approx(paper_rules.peak_lr(16384), rel=1e-4)
    assert {paper_rules.peak_lr(batch) for batch in (16384, 20000, 65536)} == {6.4}


def test_a_warm_up_never_gets_shorter_with_the_batch() -> None:
    epochs = [paper_rules.warmup_epochs(batch) for batch in range(256, 131072, 256)]
    assert epochs == sorted(epochs)
    assert (epochs[0], epochs[-1]) == (5, 10)


@pytest.mark.parametrize("epochs", [70, 90, 120])
def test_a_collapse_is_within_what_the_paper_has(epochs: float) -> None:
    collapse = paper_rules.collapse_epochs(epochs)
    assert 0.05 <= collapse / epochs <= 0.07
    assert 3 <= collapse <= 10


def test_a_horizon_is_where_the_decay_would_reach_0() -> None:
    for length, times, power in ((12.0, 4.0, 2.0), (25.0, 1.5, 1.0), (15.0, 0.5 / 0.22, 2.0)):
        horizon = paper_rules.decay_horizon(length, times, power)
        assert (1 - length / horizon) ** power == pytest.approx(1 / times)


def test_the_published_cycle_falls_to_a_quarter_at_half_its_horizon() -> None:
    assert paper_rules.decay_horizon(3750, 4, power=2) == 7500  # solver_cyc1 of the 64-node recipe
