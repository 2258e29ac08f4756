from __future__ import annotations

import math
from itertools import pairwise, permutations
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caffe_recipes.data.shuffledness import measure_shuffledness

CLASSES, EACH = 100, 50
SORTED = [index // EACH for index in range(CLASSES * EACH)]


def shuffled(labels: list[int], seed: int = 1) -> list[int]:
    random = Random(seed)
    return sorted(labels, key=lambda _: random.random())


def in_blocks(size: int) -> list[int]:
    """Shuffle within blocks of the sorted order only, as a too small shuffle buffer does."""
    blocks = (SORTED[start : start + size] for start in range(0, len(SORTED), size))
    return [label for block in blocks for label in shuffled(block)]


def test_a_sorted_order_is_0_and_a_random_one_1() -> None:
    worst, best = measure_shuffledness(SORTED), measure_shuffledness(shuffled(SORTED))
    assert (worst.by_neighbours, worst.by_batches) == (0, 0)
    assert (round(worst.mean_run, 6), worst.verdict) == (EACH, "sorted by class")
    assert best.by_neighbours == pytest.approx(1, abs=0.02)
    assert best.by_batches == pytest.approx(1, abs=0.05)
    assert (round(best.mean_run, 1), best.verdict) == (1.0, "shuffled")


def test_sorted_means_that_each_class_is_in_one_place_in_whatever_order() -> None:
    order = shuffled(list(range(CLASSES)))
    found = measure_shuffledness([label for label in order for _ in range(EACH)])
    assert found.verdict == "sorted by class"


def test_classes_that_drift_along_the_file_are_found_though_neighbours_differ() -> None:
    pairs = [label for first in range(0, CLASSES, 2) for label in (first, first + 1) * EACH]
    found = measure_shuffledness(pairs)
    assert found.by_neighbours == 1
    assert found.by_batches < 0.1
    assert found.verdict == "partly shuffled"


def test_a_small_shuffle_buffer_and_a_half_sorted_file_are_partly_shuffled() -> None:
    half = shuffled(SORTED)
    half[2500:] = sorted(half[2500:])
    for labels in (in_blocks(500), half, [label for label in half for _ in range(4)]):
        assert measure_shuffledness(labels).verdict == "partly shuffled"


def test_classes_that_alternate_count_as_shuffled() -> None:
    assert measure_shuffledness([index % CLASSES for index in range(5000)]).verdict == "shuffled"


@pytest.mark.parametrize("appended", [1, 10, 20, 50])
def test_classes_appended_to_a_shuffled_file_are_found_though_batches_hardly_have_fewer(
    appended: int,
) -> None:
    first = EACH * (CLASSES - appended)
    found = measure_shuffledness(shuffled(SORTED[:first]) + shuffled(SORTED[first:]), batch=64)
    assert found.by_neighbours > 0.9
    assert found.times_alike > 1.2
    assert found.verdict == "partly shuffled"


def test_classes_appended_behind_the_last_whole_batch_are_found() -> None:
    found = measure_shuffledness(shuffled([index % 100 for index in range(2560)]) + [100] * 100)
    assert found.verdict == "partly shuffled"


LONG_TAIL = [label for label in range(50) for _ in range(400 // (label + 1))]


@pytest.mark.parametrize(
    "labels",
    [
        [index % 2 for index in range(400)],
        [index % 10 for index in range(100)],
        [index % 100 for index in range(300)],
        [0] * 300 + list(range(1, 300)),
        LONG_TAIL,
    ],
    ids=["two classes", "few records", "few of each", "one large", "long tail"],
)
def test_none_of_a_thousand_random_orders_is_misjudged(labels: list[int]) -> None:
    verdicts = {measure_shuffledness(shuffled(labels, seed)).verdict for seed in range(1000)}
    assert verdicts == {"shuffled"}


@pytest.mark.parametrize(
    ("labels", "verdict"),
    [
        ([], "too few records to judge"),
        ([3], "too few records to judge"),
        ([0, 1], "too few records to judge"),
        ([0, 0, 1, 1], "too few records to judge"),
        ([3] * 20, "one class"),
        (list(range(50)), "too few records to judge"),
    ],
)
def test_an_order_that_cannot_be_determined_is_not_reported(labels: list[int], verdict: str) -> None:
    assert measure_shuffledness(labels).verdict == verdict


@given(st.integers(0, 10**9), st.sampled_from([2, 3, 10, 1000]), st.sampled_from([40, 300, 2000]))
def test_a_random_order_is_never_reported_as_sorted(seed: int, classes: int, count: int) -> None:
    random = Random(seed)
    found = measure_shuffledness([random.randrange(classes) for _ in range(count)])
    assert found.verdict != "sorted by class"


def test_labels_that_never_repeat_count_as_random_by_either_measure() -> None:
    found = measure_shuffledness(list(range(300)))
    assert (found.by_neighbours, found.by_batches) == (1, 1)


def test_the_random_expectations_are_the_means_over_all_orders() -> None:
    labels = [0, 0, 0, 0, 1, 1, 1, 2]
    orders = list(set(permutations(labels)))
    found = measure_shuffledness(labels, batch=2)
    assert found.batch == 2
    equal = [sum(a == b for a, b in pairwise(order)) / 7 for order in orders]
    assert sum(equal) / len(orders) == pytest.approx(found.equal_random)
    classes = [len(set(order[:2])) for order in orders]
    assert sum(classes) / len(orders) == pytest.approx(found.classes_random)
    alike = [measure_shuffledness(order, batch=2).alike for order in orders]
    mean = sum(alike) / len(orders)
    assert mean == pytest.approx(found.equal_random)
    variance = sum((each - mean) ** 2 for each in alike) / len(orders)
    # Of 4 pairs, at a chance of e^-10; a weight of 1/2 is the least.
    assert found.alike_most == pytest.approx(mean + math.sqrt(20 * variance) + 10 / 4)
