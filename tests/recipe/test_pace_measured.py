"""Tables V and VI, with interpolation and extrapolation."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from caffe_recipes.recipe.pace import (
    EPOCHS_V,
    EPOCHS_VI,
    PAPER_IMAGES,
    TABLE_V,
    TABLE_VI,
    Table,
    find_throughput,
)


@pytest.mark.parametrize(("batch", "nodes", "seconds"), EPOCHS_V)
def test_a_point_of_table_v_is_reproduced(batch: int, nodes: int, seconds: float) -> None:
    found = find_throughput(TABLE_V, nodes, batch)
    assert found.epoch_s == pytest.approx(seconds)
    assert (found.how, found.notes) == ("measured", ())


@pytest.mark.parametrize(("batch", "sockets", "speed", "seconds"), EPOCHS_VI)
def test_a_point_of_table_vi_is_reproduced_at_half_as_many_nodes_as_sockets(
    batch: int, sockets: int, speed: float, seconds: float
) -> None:
    found = find_throughput(TABLE_VI, sockets // 2, batch)
    assert found.images_per_s == pytest.approx(speed)
    assert found.how == "measured"
    # The paper's epoch is 1.28 million images: its seconds follow from its throughput.
    assert seconds == pytest.approx(PAPER_IMAGES / speed, abs=0.1)


def test_between_node_counts_images_per_second_are_linear_in_nodes() -> None:
    found = find_throughput(TABLE_V, 640, 16)
    ends = [find_throughput(TABLE_V, nodes, 16).images_per_s for nodes in (512, 768)]
    assert found.images_per_s == pytest.approx(sum(ends) / 2)
    assert (found.how, found.notes) == ("interpolated", ())


def test_between_local_batches_the_seconds_of_an_iteration_are_linear_in_the_batch() -> None:
    seconds = [512 * batch / find_throughput(TABLE_V, 512, batch).images_per_s for batch in (24, 28, 32)]
    assert seconds[1] == pytest.approx((seconds[0] + seconds[2]) / 2)
    assert find_throughput(TABLE_V, 512, 28).how == "interpolated"


def efficiency(table: Table, nodes: int, batch: int) -> float:
    return find_throughput(table, nodes, batch).scaling.efficiency


def test_the_reference_is_one_node_as_the_paper_s_efficiencies_have_it() -> None:
    assert efficiency(TABLE_V, 256, 32) == pytest.approx(0.97)
    assert efficiency(TABLE_VI, 256, 32) == pytest.approx(0.9)
    # "above 81% when going from 1 to 1536 KNL nodes", from 256 to 1024 81% with 16 images and 88% with 32.
    assert 0.81 < efficiency(TABLE_V, 1536, 32) < 0.82
    weak = [efficiency(TABLE_V, 1024, batch) / efficiency(TABLE_V, 256, batch) for batch in (16, 32)]
    assert weak == pytest.approx([0.81, 0.88], abs=0.015)
    reference = find_throughput(TABLE_V, 512, 16).scaling.reference
    assert reference == '60.6 images/s with 32 images per node, derived from "above 97%" at 256 nodes'


@pytest.mark.parametrize("table", [TABLE_V, TABLE_VI])
def test_no_efficiency_is_above_100_percent_and_one_node_s_is_that(table: Table) -> None:
    for batch in (1, 8, 16, 18, 20, 24, 27, 32, 64, 512):
        curve = [efficiency(table, nodes, batch) for nodes in range(1, 4097, 5)]
        assert curve[0] == pytest.approx(1)
        assert max(curve) <= 1 + 1e-9
        assert min(curve) > 0.7


@pytest.mark.parametrize("table", [TABLE_V, TABLE_VI])
def test_a_curve_falls_but_between_points_that_were_measured_so_and_never_overshoots(table: Table) -> None:
    for batch in {point.batch_per_node for point in table.points}:
        measured = sorted(point.nodes for point in table.points if point.batch_per_node == batch)
        ends = [1, *measured, 4096]
        for left, right in pairwise(ends):
            curve = [efficiency(table, nodes, batch) for nodes in range(left, right + 1)]
            ordered = sorted(curve, reverse=curve[0] > curve[-1])
            assert curve == pytest.approx(ordered)
            if left == 1 or right == 4096:
                assert curve[0] > curve[-1]


def test_a_point_of_another_local_batch_changes_no_curve_between_its_points() -> None:
    fewer = replace(TABLE_V, points=tuple(point for point in TABLE_V.points if point.batch_per_node != 20))
    for nodes in (256, 400, 700, 1024):
        one, other = (find_throughput(table, nodes, 16) for table in (TABLE_V, fewer))
        assert one == other


def left_out() -> list[tuple[bool, float]]:
    """Whether each inner point of Table V lies between two of its node count, and the error without it."""
    errors = []
    for point in TABLE_V.points:
        rest = replace(TABLE_V, points=tuple(other for other in TABLE_V.points if other != point))
        found = find_throughput(rest, point.nodes, point.batch_per_node)
        if found.how == "interpolated":
            at_512 = point.nodes == 512 and point.batch_per_node in (20, 24)
            errors.append((at_512, abs(found.images_per_s / point.images_per_s - 1)))
    return errors


def test_each_inner_point_is_found_from_the_others_within_9_percent() -> None:
    errors = [error for _, error in left_out()]
    assert len(errors) == 6
    assert max(errors) < 0.09
    assert sum(errors) / 6 < 0.045


def test_points_between_local_batches_are_found_within_2_percent() -> None:
    errors = [error for between_batches, error in left_out() if between_batches]
    assert len(errors) == 2
    assert max(errors) < 0.02


def test_beyond_the_measured_nodes_each_doubling_costs_the_same_and_it_is_reported() -> None:
    for doubled in ((16, 64, 256), (1536, 3072, 6144)):
        costs = [1 / efficiency(TABLE_V, each, 32) for each in doubled]
        assert costs[2] - costs[1] == pytest.approx(costs[1] - costs[0])
    for nodes in (64, 2048):
        found = find_throughput(TABLE_V, nodes, 32)
        assert found.how == "beyond"
        assert found.notes == (
            "outside Table V, which has 256 to 1536 nodes with 32 images per node: extrapolated",
        )


def test_beyond_its_own_points_a_curve_continues_as_the_one_with_a_printed_efficiency() -> None:
    for batch, nodes in ((16, 64), (20, 256), (24, 400)):
        assert efficiency(TABLE_V, nodes, batch) == pytest.approx(efficiency(TABLE_V, nodes, 32))
    assert efficiency(TABLE_V, 1536, 16) < efficiency(TABLE_V, 1024, 16) < efficiency(TABLE_V, 1024, 32)


def test_extrapolation_below_the_measured_batches_matches_table_iv_within_1_percent() -> None:
    found = find_throughput(TABLE_V, 256, 8)
    assert 18120 * 2048 / found.images_per_s / 60 == pytest.approx(64, rel=0.01)
    assert (found.how, len(found.notes)) == ("beyond", 1)
    assert found.notes[0] == "outside Table V: its nearest local batch is 16 images per node"


def test_a_larger_batch_and_a_node_more_are_never_slower() -> None:
    for table in (TABLE_V, TABLE_VI):
        for nodes in (1, 64, 256, 300, 512, 900, 1024, 1536, 4096):
            speeds = [find_throughput(table, nodes, batch).images_per_s for batch in (1, 16, 32, 512)]
            assert speeds == sorted(speeds)
            assert speeds[0] > 0
    for batch in (8, 16, 32, 64):
        speeds = [find_throughput(TABLE_V, nodes, batch).images_per_s for nodes in (64, 256, 512, 768, 1024)]
        assert speeds == sorted(speeds)


def test_a_single_local_batch_gives_the_seconds_per_image() -> None:
    alone = replace(TABLE_V, points=tuple(point for point in TABLE_V.points if point.batch_per_node == 32))
    found = find_throughput(alone, 256, 64)
    assert found.epoch_s == pytest.approx(85)
    assert found.how == "beyond"
