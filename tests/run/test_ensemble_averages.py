"""The arithmetic of ensembles, against results counted by hand."""

from __future__ import annotations

import numpy as np
import pytest

from caffe_recipes.run.ensemble_averages import (
    AVERAGES,
    Accuracy,
    Labels,
    Scores,
    log_softmax,
    measure_members,
    ranks_of,
    softmax,
)


def scores_of(*rows: tuple[float, ...]) -> Scores:
    """Give scores whose softmax is these probabilities."""
    return np.asarray(np.log(np.array(rows)), np.float32)


def labels_of(*labels: int) -> Labels:
    return np.array(labels, np.int32)


def test_members_that_are_wrong_elsewhere_are_right_together() -> None:
    first = scores_of((0.9, 0.05, 0.05), (0.8, 0.1, 0.1), (0.4, 0.5, 0.1))
    second = scores_of((0.4, 0.5, 0.1), (0.9, 0.05, 0.05), (0.8, 0.1, 0.1))
    third = scores_of((0.8, 0.1, 0.1), (0.4, 0.5, 0.1), (0.9, 0.05, 0.05))
    for average in AVERAGES:
        found = measure_members([first, second, third], labels_of(0, 0, 0), average)
        assert found.ensemble.top1 == 1
        assert [each.top1 for each in found.single] == pytest.approx([2 / 3] * 3)


def test_the_averages_differ_where_they_should() -> None:
    sure = scores_of((0.98, 0.01, 0.01))
    wavering = scores_of((0.001, 0.5, 0.499))
    members = [sure, wavering, wavering]
    hits = {average: measure_members(members, labels_of(1), average).ensemble.top1 for average in AVERAGES}
    # means 0.327 to 0.337; logarithms in favour of what none thinks impossible; two votes to one
    assert hits == {"probabilities": 1.0, "geometric": 1.0, "votes": 1.0}
    members = [sure, scores_of((0.3, 0.4, 0.3)), scores_of((0.3, 0.4, 0.3))]
    hits = {average: measure_members(members, labels_of(1), average).ensemble.top1 for average in AVERAGES}
    assert hits == {"probabilities": 0.0, "geometric": 0.0, "votes": 1.0}
    members = [scores_of((0.9, 0.099, 0.001)), scores_of((0.001, 0.099, 0.9))]
    hits = {average: measure_members(members, labels_of(1), average).ensemble.top1 for average in AVERAGES}
    assert hits == {"probabilities": 0.0, "geometric": 1.0, "votes": 0.0}


def test_probabilities_decide_between_equal_votes() -> None:
    members = [scores_of((0.7, 0.2, 0.1)), scores_of((0.2, 0.6, 0.2))]
    assert measure_members(members, labels_of(0), "votes").ensemble.top1 == 1


def test_members_are_measured_alone_cumulatively_and_left_out() -> None:
    right, wrong = scores_of((0.9, 0.1)), scores_of((0.4, 0.6))
    found = measure_members([right, wrong, wrong], labels_of(0), "votes")
    assert [each.top1 for each in found.single] == [1, 0, 0]
    assert [each.top1 for each in found.cumulative] == [1, 1, 0]
    assert [each.top1 for each in found.without] == [0, 1, 1]


def test_two_members_leave_one_where_one_is_left_out() -> None:
    found = measure_members([scores_of((0.9, 0.1)), scores_of((0.4, 0.6))], labels_of(0), "probabilities")
    assert [each.top1 for each in found.without] == [0, 1]


def test_many_images_are_counted_as_few_are() -> None:
    random = np.random.default_rng(0)
    members = [random.normal(size=(9000, 7)).astype(np.float32) for _ in range(3)]
    labels = random.integers(0, 7, 9000).astype(np.int32)
    whole = sum(softmax(each.astype(np.float64)) for each in members)
    ranks = ranks_of(np.asarray(whole), labels)
    found = measure_members(members, labels, "probabilities").ensemble
    assert found == Accuracy(float((ranks == 0).sum()) / 9000, float((ranks < 5).sum()) / 9000)


def test_among_equal_scores_the_later_class_comes_first_as_in_caffe() -> None:
    assert ranks_of(np.zeros((2, 3)), labels_of(2, 0)).tolist() == [0, 2]


def test_nan_scores_are_never_correct() -> None:
    nothing = np.full((2, 3), np.nan, np.float32)
    assert ranks_of(nothing, labels_of(2, 0)).tolist() == [3, 3]
    for average in AVERAGES:
        with np.errstate(invalid="ignore"):
            found = measure_members([nothing, nothing], labels_of(2, 0), average)
        assert (found.ensemble.top1, [each.top1 for each in found.single]) == (0, [0, 0])


def test_a_probability_that_rounds_to_nothing_keeps_its_logarithm() -> None:
    scores = np.array([[0.0, 2000.0, -3000.0]])
    assert softmax(scores)[0, 0] == 0
    assert log_softmax(scores)[0].tolist() == [-2000.0, 0.0, -5000.0]
