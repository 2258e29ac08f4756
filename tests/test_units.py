"""How times and numbers are written, however long or large."""

from __future__ import annotations

import pytest

from caffe_recipes.units import unit_of, write_number, write_time

YEAR_S = 365.25 * 86_400


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0.0 s"),
        (10_000, "10,000.0 s"),
        (10_001, "2.8 h"),
        (1e8, "1,157.4 days"),
        (1e12, "31,688.1 years"),
        (1e300, "3.17e+292 years"),
    ],
)
def test_a_time_has_a_unit_that_fits(seconds: float, text: str) -> None:
    assert write_time(seconds) == text


def test_times_longer_than_any_unit_use_the_largest() -> None:
    assert unit_of(1e6 * YEAR_S).name == "years"


@pytest.mark.parametrize(
    ("value", "decimals", "text"),
    [(0, 0, "0"), (0.5, 0, "0.5"), (0.04, 1, "0.04"), (285.04, 1, "285.0"), (1e300, 0, "1e+300")],
)
def test_a_number_is_written_with_its_significant_digits(value: float, decimals: int, text: str) -> None:
    assert write_number(value, decimals) == text
