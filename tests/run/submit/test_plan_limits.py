from __future__ import annotations

import math

import pytest

from caffe_recipes.cluster.profiles import Profile, SbatchDefaults, parse_profile
from caffe_recipes.cluster.slurm_jobs import NodeGroup
from caffe_recipes.cluster.slurm_queries import Partition
from caffe_recipes.errors import InputError
from caffe_recipes.run.submit.plan import Resources, check_slurm, choose_partition

DEBUG = Partition("debug", "UP", 4, max_s=3600.0, default_s=1800.0, is_default=True)
LONG = Partition("long", "UP", 64, max_s=math.inf)


def profile(partitions: str) -> Profile:
    return parse_profile(f"name: site\ntitle: A site\npartitions: {partitions}\n", "site.yaml")


def asked(nodes: int = 1, time_s: float | None = 600.0, **batch: str) -> Resources:
    return Resources(nodes, time_s, SbatchDefaults(**batch))  # type: ignore[arg-type]


def test_a_profile_without_partitions_leaves_the_choice_to_slurm() -> None:
    assert choose_partition(profile("{}"), SbatchDefaults(), 10_000, None) == SbatchDefaults()


def test_the_only_fitting_partition_is_chosen_but_none_of_several() -> None:
    known = profile("{short: {hours: 1}, wide: {nodes: 128, hours: 48}}")
    assert choose_partition(known, SbatchDefaults(), 4, 7200.0).partition == "wide"
    assert choose_partition(known, SbatchDefaults(), 4, 600.0).partition is None


def test_a_shorter_time_is_proposed_only_where_it_helps() -> None:
    known = profile("{debug: {nodes: 1, hours: 2}}")
    for partition in (None, "debug"):
        with pytest.raises(InputError) as caught:
            choose_partition(known, SbatchDefaults(partition=partition), 2, 7200.0)
        allows = "site: debug allows at most 1 node, and the recipe needs 2"
        assert str(caught.value) == f"{allows}; use another machine, or rescale --nodes 1"
        with pytest.raises(InputError, match=r"; use another machine, or a shorter --time$"):
            choose_partition(known, SbatchDefaults(partition=partition), 1, 9000.0)


def test_another_partition_is_proposed_only_where_the_profile_has_one() -> None:
    known = profile("{small: {nodes: 8}, large: {nodes: 64}}")
    with pytest.raises(InputError, match=r"; use another --partition, or rescale --nodes 8$"):
        choose_partition(known, SbatchDefaults(partition="small"), 16, None)
    with pytest.raises(InputError, match=r"; use another machine, or rescale --nodes 64$"):
        choose_partition(known, SbatchDefaults(), 128, None)


@pytest.mark.parametrize(
    ("partition", "nodes", "expected"),
    [
        (None, 200, "site: wide allows at most 128 nodes, and the recipe needs 200; use another machine"),
        (
            "wide",
            200,
            "site: wide allows at most 128 nodes, and the recipe needs 200; use another machine",
        ),
        ("wdie", 4, "site: unknown partition 'wdie'; known partitions: wide"),
    ],
)
def test_a_request_beyond_the_limits_of_the_profile_is_reported(
    partition: str | None, nodes: int, expected: str
) -> None:
    with pytest.raises(InputError) as caught:
        choose_partition(
            profile("{wide: {nodes: 128, hours: 48}}"), SbatchDefaults(partition=partition), nodes, None
        )
    assert str(caught.value).startswith(expected)


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
