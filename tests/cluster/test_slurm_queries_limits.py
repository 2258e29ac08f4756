from __future__ import annotations

from collections.abc import Callable

import pytest

from caffe_recipes.cluster.slurm_queries import (
    Partition,
    check_limits,
    check_nodes_now,
    parse_partitions,
    parse_sinfo,
)

Recorded = Callable[[str], str]
HOUR = 3600.0


@pytest.fixture
def partitions(recorded: Recorded) -> dict[str, Partition]:
    return {partition.name: partition for partition in parse_partitions(recorded("partitions"))}


def test_a_job_that_fits_has_no_problems(partitions: dict[str, Partition]) -> None:
    assert check_limits(partitions["debug"], nodes=4, time_s=100 * HOUR) == ()
    normal = partitions["normal"]
    assert check_limits(normal, nodes=128, time_s=48 * HOUR, account="chem", qos="long") == ()


def test_a_job_for_more_nodes_than_exist_is_a_problem(partitions: dict[str, Partition]) -> None:
    assert check_limits(partitions["debug"], nodes=5, time_s=HOUR) == (
        "debug has 4 nodes, and the job needs 5; it would never start",
    )


def test_every_limit_has_its_line(partitions: dict[str, Partition]) -> None:
    problems = check_limits(partitions["normal"], nodes=129, time_s=49 * HOUR, account="bio", qos="big")
    assert problems == (
        "normal allows at most 128 nodes per job, and this job needs 129",
        "normal runs a job for at most 2 d 00 h, and this job needs 2 d 01 h",
        "normal accepts only account chem, physics, not 'bio'",
        "normal accepts only QOS long, normal, not 'big'",
    )
    assert "at least 2 nodes" in check_limits(partitions["normal"], nodes=1, time_s=HOUR)[0]
    # Without one Slurm takes the user's own, which only it knows.
    assert check_limits(partitions["normal"], nodes=2, time_s=HOUR) == ()
    closed = check_limits(partitions["old"], nodes=1, time_s=HOUR, account="physics")
    assert closed == (
        "old accepts no new jobs (state DRAIN); wait, or use another partition",
        "old does not accept account 'physics'",
    )


def test_a_job_without_a_time_is_reported_with_its_default_limit(partitions: dict[str, Partition]) -> None:
    problems = check_limits(partitions["normal"], nodes=2, time_s=None, account="chem", qos="long")
    assert problems == ("normal limits jobs without --time to 1 h 00 min; give --time",)


def test_broken_nodes_are_not_counted(partitions: dict[str, Partition], recorded: Recorded) -> None:
    groups = parse_sinfo(recorded("sinfo"))
    (problem,) = check_nodes_now(partitions["debug"], groups, 3)
    assert problem.startswith("debug has 2 working nodes now, but the job needs 3")
    assert check_nodes_now(partitions["debug"], groups, 2) == ()


def test_the_default_partition_is_found(partitions: dict[str, Partition]) -> None:
    assert [name for name, each in partitions.items() if each.is_default] == ["debug"]
