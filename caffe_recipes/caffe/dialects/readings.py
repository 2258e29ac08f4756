"""What another Caffe reads without a word, and takes otherwise than ours does.

Sources: `dialects.json` for the defaults; nvcaffe's `batch_norm_layer.cpp` for its running statistics.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from google.protobuf.message import Message


@dataclass(frozen=True, slots=True)
class Reading:
    """One thing that a dialect takes otherwise: where it stands, when, and what to say."""

    dialect: str
    owner: str
    field: str
    rule: str
    name: str
    applies: Callable[[Message], bool]
    told: tuple[str, str, str]


def _given(message: Message, field: str) -> bool:
    """Whether a field is there and true; ours has not each field of the others."""
    return bool(getattr(message, field, False))


READINGS = (
    Reading(
        "nvcaffe",
        "SolverParameter",
        "test_interval",
        "dialect-default",
        "SolverParameter.test_initialization",
        lambda solver: _given(solver, "test_interval") and not solver.HasField("test_initialization"),
        (
            "test_initialization is left out: nvcaffe takes it for false, SURFsara's for true",
            "it does not test before the first iteration",
            "write test_initialization: true for the same tests",
        ),
    ),
    Reading(
        "nvcaffe",
        "DataParameter",
        "source",
        "dialect-default",
        "DataParameter.prefetch",
        lambda data: not data.HasField("prefetch"),
        (
            "prefetch is left out: nvcaffe takes it for 0, SURFsara's for 4",
            "it chooses by itself how far to read ahead; the images are the same",
            "nothing, or the prefetch that you want",
        ),
    ),
    Reading(
        "nvcaffe",
        "DataParameter",
        "shuffle",
        "dialect-meaning",
        "DataParameter.shuffle",
        lambda data: _given(data, "shuffle") and not _given(data, "cache"),
        (
            "nvcaffe's shuffle is another one: it stirs the records that it caches",
            "without cache: true the records come in the order of the LMDB in each epoch",
            "add cache: true, or shuffle when the LMDB is built (convert_imageset -shuffle)",
        ),
    ),
    Reading(
        "nvcaffe",
        "LayerParameter",
        "type",
        "dialect-meaning",
        "BatchNorm",
        lambda layer: getattr(layer, "type", "") == "BatchNorm",
        (
            "nvcaffe's BatchNorm keeps running means; SURFsara's keeps sums and the factor to divide them by",
            "tests differ a little, and the statistics in a caffemodel of the other are misread",
            "divide blobs 0 and 1 of each BatchNorm by blob 2 before weights go over",
        ),
    ),
)


def find_readings(message: Message, owner: str, dialect: str) -> Iterator[Reading]:
    """Yield what a dialect takes otherwise in one message, not in those inside it."""
    for reading in READINGS:
        if (reading.dialect, reading.owner) == (dialect, owner) and reading.applies(message):
            yield reading
