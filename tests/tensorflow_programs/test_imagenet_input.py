"""Which rank reads which record: every one once in an epoch, and as many as fill whole batches."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.tensorflow_programs.launch import TRAIN_COUNT, VAL_COUNT, Digits, ask

pytestmark = pytest.mark.tensorflow

# The names of the images that each rank reads, by the ranks and the first step.
NAMES = """
import json, sys
import tensorflow.compat.v1 as tf
from imagenet_input import train_records
from record_files import Share, load_files

data, images, batch, is_deterministic, groups, steps, cases = sys.argv[1:]
files = load_files(data, int(images), 10)

def names(rank, ranks, first):
    share = Share(files, int(batch), rank, ranks, 1, is_deterministic == "True", int(groups))
    for record in train_records(share, first, int(steps)).as_numpy_iterator():
        feature = tf.train.Example.FromString(record).features.feature
        yield feature["image/filename"].bytes_list.value[0].decode()

print(json.dumps([
    [list(names(rank, ranks, first)) for rank in range(ranks)] for ranks, first in json.loads(cases)
]))
"""
BATCH = 60
STEPS = TRAIN_COUNT // BATCH


def names_of(
    data: Path, cases: list[tuple[int, int]], *, steps: int, is_deterministic: bool, groups: int = 1
) -> Any:  # noqa: ANN401
    text = str([list(case) for case in cases])
    return ask(NAMES, data, TRAIN_COUNT, BATCH, is_deterministic, groups, steps, text)


@pytest.mark.parametrize(("groups", "worlds"), [(1, (1, 2, 3, 4)), (2, (2, 4, 6))])
def test_every_record_is_read_by_one_rank_in_an_epoch(
    digits: Digits, groups: int, worlds: tuple[int, ...]
) -> None:
    cases = [(ranks, 0) for ranks in worlds]
    found = names_of(digits.train, cases, steps=2 * STEPS, is_deterministic=False, groups=groups)
    for ranks, read in zip(worlds, found, strict=True):
        part = STEPS * BATCH // ranks
        for start in (0, part):
            epoch = [name for rank in read for name in rank[start : start + part]]
            assert len(epoch) == STEPS * BATCH
            assert set(Counter(epoch).values()) == {1}
        assert [len(rank) for rank in read] == [2 * part] * ranks
        assert all(rank[:part] != rank[part:] for rank in read)


def test_a_deterministic_step_sees_the_same_images_for_any_number_of_ranks(digits: Digits) -> None:
    cases = [(1, 0), (2, 0), (3, 0), (5, 0)]
    (alone,), *others = names_of(digits.train, cases, steps=STEPS + 3, is_deterministic=True)
    assert len(alone) == (2 * STEPS) * BATCH
    for read in others:
        local = BATCH // len(read)
        for step in range(2 * STEPS):
            together = [name for rank in read for name in rank[step * local : (step + 1) * local]]
            assert together == alone[step * BATCH : (step + 1) * BATCH]


def test_a_resumed_deterministic_run_reads_the_records_of_the_steps_that_are_left(digits: Digits) -> None:
    cases = [(2, 0), (2, 7), (2, STEPS), (2, STEPS + 5)]
    whole, *resumed = names_of(digits.train, cases, steps=2 * STEPS, is_deterministic=True)
    for (_, first), read in zip(cases[1:], resumed, strict=True):
        assert read == [rank[first * BATCH // 2 :] for rank in whole]


@pytest.mark.parametrize("ranks", [2, 3])  # whole files, and parts of all files
def test_the_records_of_an_epoch_are_distinct_across_a_resume(digits: Digits, ranks: int) -> None:
    whole, rest = names_of(digits.train, [(ranks, 0), (ranks, 7)], steps=STEPS, is_deterministic=False)
    local = BATCH // ranks
    assert [len(rank) for rank in rest] == [(STEPS - 7) * local] * ranks
    before = [name for rank in whole for name in rank[: 7 * local]]
    after = [name for rank in rest for name in rank]
    assert len({*before, *after}) == len(before) + len(after) == STEPS * BATCH


# The labels that training sees of validation records, whose first class has the label 1.
LABELS = """
import json, sys
import tensorflow.compat.v1 as tf
from imagenet_input import evaluation_input
from record_files import load_files

data, images, start, stop = sys.argv[1:]
files = load_files(data, int(images), 10)
batches = evaluation_input(files, 50, 32, range(int(start), int(stop)))
try:
    found = sorted({int(label) for _, labels in batches for label in labels.numpy()})
except tf.errors.InvalidArgumentError as error:
    found = str(error)
print(json.dumps(found))
"""


@pytest.mark.parametrize(("labels", "seen"), [(range(1, 11), range(10)), (range(11), range(1, 11))])
def test_classes_are_counted_from_the_first_label_of_the_records(
    digits: Digits, labels: range, seen: range
) -> None:
    assert ask(LABELS, digits.val, VAL_COUNT, labels.start, labels.stop) == list(seen)


def test_a_label_beyond_the_classes_is_refused(digits: Digits) -> None:
    assert "label out of range" in ask(LABELS, digits.val, VAL_COUNT, 0, 10)


# The crops (top, left, height, width) of an image of 240 x 320 pixels to train, and of three to evaluate.
CROPS = """
import json
import tensorflow.compat.v1 as tf
from imagenet_input import _center_crop, _random_crop

def jpeg(height, width):
    return tf.io.encode_jpeg(tf.zeros([height, width, 3], tf.uint8))

wide = jpeg(240, 320)
drawn = tf.data.Dataset.range(2000).map(lambda number: _random_crop(wide)).as_numpy_iterator()
middle = [_center_crop(jpeg(*size)).numpy().tolist() for size in ((256, 256), (240, 320), (400, 256))]
print(json.dumps([[crop.tolist() for crop in drawn], middle]))
"""


def test_random_crops_have_8_to_100_percent_of_the_area_and_sides_from_3_4_to_4_3() -> None:
    crops, middle = ask(CROPS)
    assert middle == [[16, 16, 224, 224], [15, 55, 210, 210], [88, 16, 224, 224]]
    assert all(top >= 0 and left >= 0 for top, left, _, _ in crops)
    assert all(top + height <= 240 and left + width <= 320 for top, left, height, width in crops)
    areas = [height * width / (240 * 320) for _, _, height, width in crops]
    assert 0.08 <= min(areas) < 0.12
    assert 0.9 < max(areas) <= 1
    # Sides are whole pixels.
    assert all(
        3 / 4 * (height - 1) <= width + 1 and width - 1 <= 4 / 3 * (height + 1) for *_, height, width in crops
    )
    ratios = [width / height for *_, height, width in crops]
    assert min(ratios) < 0.77
    assert max(ratios) > 1.31
