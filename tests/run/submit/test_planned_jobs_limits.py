from __future__ import annotations

import pytest

from caffe_recipes.cluster.profiles import Profile, SbatchDefaults, parse_profile
from caffe_recipes.errors import InputError
from caffe_recipes.run.submit.planned_jobs import choose_partition


def profile(partitions: str) -> Profile:
    return parse_profile(f"name: site\ntitle: A site\npartitions: {partitions}\n", "site.yaml")


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
