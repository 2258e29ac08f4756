"""Phases as lint sees them: snapshots that are written, what a phase starts from, images of a rank."""

from __future__ import annotations

from typing import Any

import pytest

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.chain import (
    Chain,
    Link,
    Start,
    batch_per_rank,
    has_known_rates,
    plan_starts,
    planned_snapshots,
    snapshot_rate,
    split_weights,
)
from caffe_recipes.caffe.prototxt import Document, parse_document
from tests.review.conftest import net_text

FIRST: dict[str, Any] = {"base_lr": 1, "lr_policy": "poly", "power": 1, "max_iter": 1000, "snapshot": 100}


def link(name: str, weights: str | None = None, **fields: Any) -> Link:  # noqa: ANN401
    solver = pb.SolverParameter(**fields)
    return Link(name, Document("", "", solver, {}, {}), None, solver.max_iter, weights)


def fired(**fields: Any) -> list[int]:  # noqa: ANN401
    return list(planned_snapshots(link("a", **fields)))


def test_snapshots_fire_at_multiples_and_at_the_end() -> None:
    assert fired(max_iter=10, snapshot=4) == [4, 8, 10]
    assert fired(max_iter=8, snapshot=4) == [4, 8]
    assert fired(max_iter=8) == [8]
    assert fired(max_iter=10, snapshot=4, snapshot_after_train=False) == [4, 8]
    assert fired(max_iter=8, snapshot=20) == [8]
    assert fired(max_iter=0, snapshot=4) == fired(max_iter=-4, snapshot=-4) == []


def test_the_nearest_snapshot_is_found_without_counting_them() -> None:
    snapshots = planned_snapshots(link("a", max_iter=2**31 - 1, snapshot=1000))
    assert len(snapshots) == 2_147_484
    assert 5_000_000 in snapshots
    assert 5_000_001 not in snapshots
    assert [snapshots.nearest(number) for number in (1, 5_499, 2**31)] == [1000, 5000, 2**31 - 1]
    assert snapshots[-1] == 2**31 - 1
    assert snapshots[-2] == snapshots[2_147_482] == 2_147_483_000


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("/tmp/a_iter_30.caffemodel", ("a", 30)),
        ("a_iter_30.caffemodel.h5", ("a", 30)),
        ("b_iter_5_iter_7.caffemodel", ("b_iter_5", 7)),
        ("a.b_iter_3.prototxt", ("a.b", 3)),
        ("bvlc_reference.caffemodel", ("bvlc_reference", None)),
        ("a_iter_x.caffemodel", ("a_iter_x.caffemodel", None)),
        ("", ("", None)),
    ],
)
def test_a_snapshot_s_name_is_prefix_and_iteration(name: str, parts: tuple[str, int | None]) -> None:
    assert split_weights(name) == parts


def test_a_phase_that_is_stopped_writes_nothing_after() -> None:
    stopped = Link("a", Document("", "", pb.SolverParameter(max_iter=1000, snapshot=300), {}, {}), None, 600)
    assert list(planned_snapshots(stopped)) == [300, 600]


def test_a_snapshot_has_the_rate_of_its_iteration_or_of_the_last_update() -> None:
    first = link("a", **FIRST)
    assert snapshot_rate(first, 800) == pytest.approx(0.2)
    assert snapshot_rate(first, 1000) == pytest.approx(0.001, rel=1e-4)


def test_the_start_of_a_phase_is_given_or_guessed() -> None:
    first = link("a", **FIRST, snapshot_prefix="/tmp/a")

    def starts(weights: str | None) -> list[Start | None]:
        last = link("b", weights, max_iter=9, base_lr=0.31, lr_policy="fixed")
        return plan_starts(Chain((first, last)))

    assert starts(None) == [None, Start(0, 700, candidates=10, is_guess=True)]
    assert starts("x/a_iter_500.caffemodel") == [None, Start(0, 500)]
    assert starts("other_iter_500.caffemodel") == starts("") == [None, None]


def test_a_rate_is_not_known_without_all_that_its_policy_needs() -> None:
    assert has_known_rates(pb.SolverParameter(base_lr=1, lr_policy="fixed", max_iter=1))
    assert not has_known_rates(pb.SolverParameter(base_lr=1, lr_policy="step", max_iter=1))
    assert not has_known_rates(pb.SolverParameter(base_lr=1, lr_policy="fixed"))


def test_the_images_of_a_rank_are_the_training_layer_s() -> None:
    net = parse_document(net_text("TEST", "TRAIN").replace("32", "50", 1), "n", pb.NetParameter)
    solver = Document("", "", pb.SolverParameter(iter_size=3), {}, {})
    assert batch_per_rank(Link("a", solver, net, 1)) == 96
    assert batch_per_rank(Link("a", solver, None, 1)) is None


def test_the_training_layers_are_found_once_since_each_phase_is_compared_with_all_before() -> None:
    net = parse_document(net_text("TEST", "TRAIN"), "n", pb.NetParameter)
    one = Link("a", Document("", "", pb.SolverParameter(), {}, {}), net, 1)
    first = one.data_layers
    assert [layer.include[0].phase for layer in first] == [pb.TRAIN]
    assert one.data_layers is first
    assert link("a").data_layers == ()
