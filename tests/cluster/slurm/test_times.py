"""Limits that are written read back, and what is not a time is refused."""

from __future__ import annotations

import math

import pytest

from caffe_recipes.cluster.slurm.times import parse_limit, parse_moment, render_limit
from caffe_recipes.errors import ClusterError


@pytest.mark.parametrize("seconds", [60, 3600, 86_400, 183_840, 30 * 86_400])
def test_a_limit_that_is_written_reads_back(seconds: int) -> None:
    assert parse_limit(render_limit(seconds), "") == seconds


@pytest.mark.parametrize("seconds", [0, -1, math.inf, math.nan])
def test_a_value_that_slurm_reads_as_unlimited_is_not_written(seconds: float) -> None:
    with pytest.raises(ClusterError, match="is not a time limit"):
        render_limit(seconds)


@pytest.mark.parametrize("text", ["1:2:3:4", "-5", "1-", "two hours", "1.5"])
def test_a_value_that_is_not_a_time_is_refused(text: str) -> None:
    with pytest.raises(ClusterError, match="is not a Slurm time"):
        parse_limit(text, "--time")


def test_a_moment_in_another_format_is_refused() -> None:
    assert parse_moment("Unknown", "") is None
    with pytest.raises(ClusterError, match="is not a Slurm timestamp"):
        parse_moment("20 Nov 20:56", "squeue")
