"""Which rank reads which record: every one once in an epoch, and as many as fill whole batches."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.tensorflow_programs.launch import TRAIN_COUNT, Digits, ask

pytestmark = pytest.mark.tensorflow

# The names of the images that each rank reads, by the ranks and the first step.
NAMES = """
import json, sys
import tensorflow.compat.v1 as tf
from imagenet_input import Share, load_files, train_records

data, images, batch, is_deterministic, steps, cases = sys.argv[1:]
files = load_files(data, int(images))

def names(rank, ranks, first):
    share = Share(files, int(batch), rank, ranks, seed=1, is_deterministic=is_deterministic == "True")
    for record in train_records(share, first, int(steps)).as_numpy_iterator():
        feature = tf.train.Example.FromString(record).features.feature
        yield feature["image/filename"].bytes_list.value[0].decode()

print(json.dumps([
    [list(names(rank, ranks, first)) for rank in range(ranks)] for ranks, first in json.loads(cases)
]))
"""
BATCH = 60
STEPS = TRAIN_COUNT // BATCH


def names_of(data: Path, cases: list[tuple[int, int]], *, steps: int, is_deterministic: bool) -> Any:  # noqa: ANN401
    text = str([list(case) for case in cases])
    return ask(NAMES, data, TRAIN_COUNT, BATCH, is_deterministic, steps, text)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4], ids=lambda ranks: f"{ranks} ranks")
def test_every_record_is_read_by_one_rank_in_an_epoch(digits: Digits, ranks: int) -> None:
    (read,) = names_of(digits.train, [(ranks, 0)], steps=2 * STEPS, is_deterministic=False)
    part = STEPS * BATCH // ranks
    for start in (0, part):
        epoch = [name for rank in read for name in rank[start : start + part]]
        assert len(epoch) == STEPS * BATCH
        assert set(Counter(epoch).values()) == {1}
    assert all(len(rank) == 2 * part for rank in read)
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


def test_what_is_left_of_an_epoch_is_read_after_a_resume(digits: Digits) -> None:
    (read,) = names_of(digits.train, [(2, 7)], steps=STEPS, is_deterministic=False)
    assert [len(rank) for rank in read] == [(STEPS - 7) * BATCH // 2] * 2


REFUSAL = """
import json, sys
from imagenet_input import BadInput, load_files

try:
    load_files(sys.argv[1], int(sys.argv[2]))
except BadInput as error:
    print(json.dumps(str(error)))
"""


def test_records_that_are_missing_cut_short_or_of_another_count_are_refused(
    digits: Digits, tmp_path: Path
) -> None:
    data = tmp_path / "train"
    shutil.copytree(digits.train, data)
    assert "manifest.json: cannot be read: No such file" in ask(REFUSAL, data, TRAIN_COUNT)
    manifest = tmp_path / "train.manifest.json"
    shutil.copy(digits.train.with_name(manifest.name), manifest)
    assert "1,438 records, not the 1,281,167 images" in ask(REFUSAL, data, 1281167)
    last = data / "train-00007-of-00008"
    last.write_bytes(last.read_bytes()[:-1])
    assert "train-00007-of-00008: 282,024 bytes, not 282,025" in ask(REFUSAL, data, TRAIN_COUNT)
    last.unlink()
    assert "train-00007-of-00008: missing" in ask(REFUSAL, data, TRAIN_COUNT)
    manifest.write_text("{}")
    assert "not a manifest of TFRecords" in ask(REFUSAL, data, TRAIN_COUNT)
