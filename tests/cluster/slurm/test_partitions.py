from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from caffe_recipes.cluster.profiles import SbatchDefaults
from caffe_recipes.cluster.slurm.answers import parse_sinfo
from caffe_recipes.cluster.slurm.jobs import NodeGroup
from caffe_recipes.cluster.slurm.partitions import (
    Partition,
    Resources,
    check_limits,
    check_nodes_now,
    check_slurm,
    parse_partitions,
)
from caffe_recipes.errors import InputError

Recorded = Callable[[str], str]
HOUR = 3600.0
DEBUG = Partition("debug", "UP", 4, max_s=3600.0, default_s=1800.0, is_default=True)
LONG = Partition("long", "UP", 64, max_s=math.inf)


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


def asked(nodes: int = 1, time_s: float | None = 600.0, **batch: str) -> Resources:
    return Resources(nodes, time_s, SbatchDefaults(**batch))  # type: ignore[arg-type]


def test_without_a_partition_the_default_s_limits_count() -> None:
    with pytest.raises(InputError, match="debug has 4 nodes, and the job needs 5; it would never start"):
        check_slurm(asked(5), [DEBUG, LONG], [])
    assert check_slurm(asked(5, partition="long"), [DEBUG, LONG], []).notes == ()
    with pytest.raises(
        InputError, match="Slurm has no default partition; give --partition; the partitions are long"
    ):
        check_slurm(asked(), [LONG], [])


def test_at_least_one_of_several_partitions_must_accept_the_job() -> None:
    assert not check_slurm(asked(5, partition="debug,long"), [DEBUG, LONG], []).must_wait
    with pytest.raises(InputError, match=r"debug has 4 nodes, .*; long has 64 nodes"):
        check_slurm(asked(65, partition="debug,long"), [DEBUG, LONG], [])


def test_a_job_without_a_time_is_reported_with_the_default() -> None:
    (note,) = check_slurm(asked(time_s=None), [DEBUG], []).notes
    assert note == "time: not known, using the default of debug, 30 min; give --time to change it"
    (note,) = check_slurm(asked(time_s=None, partition="long"), [LONG], []).notes
    assert "using the default of long, no limit" in note


def test_a_job_that_must_wait_for_broken_nodes_gets_a_note() -> None:
    broken = NodeGroup("debug", 3, "drained", "n[1-3]")
    verdict = check_slurm(asked(2), [DEBUG], [broken])
    assert verdict.must_wait
    assert verdict.notes[0].startswith("debug has 1 working node now, but the job needs 2")
