"""Average the predictions of an ensemble, and count how many images each average gets right."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Scores = NDArray[np.float32]
Labels = NDArray[np.int32]

# Images per step: with 1,000 classes and six members their float64 values take 200 MB.
_IMAGES = 4096
_TOP = 5


@dataclass(frozen=True)
class Accuracy:
    """The fractions of images whose class is ranked first, and among the first five."""

    top1: float
    top5: float


@dataclass(frozen=True)
class MemberAccuracies:
    """For each member, the accuracy of it alone, of it with all before it, and of all without it."""

    single: tuple[Accuracy, ...]
    cumulative: tuple[Accuracy, ...]
    without: tuple[Accuracy, ...]

    @property
    def ensemble(self) -> Accuracy:
        """The accuracy of all members together."""
        return self.cumulative[-1]


def measure_members(members: Sequence[Scores], labels: Labels, average: str) -> MemberAccuracies:
    """Return the accuracies of two or more members and their averages; `average` is a key of AVERAGES.

    `members` are scores of shape (images, classes), `labels` of shape (images,). A single member is ranked by
    its scores, whatever the average, as `caffe test` does.
    """
    everyone = range(len(members))
    cumulative = [tuple(range(index + 1)) for index in everyone if index]
    without = [tuple(other for other in everyone if other != index) for index in everyone]
    groups = [group for group in dict.fromkeys((*cumulative, *without)) if len(group) > 1]
    hits = {group: np.zeros(2, np.int64) for group in (*groups, *((index,) for index in everyone))}
    for start in range(0, len(labels), _IMAGES):
        here = slice(start, start + _IMAGES)
        values = [AVERAGES[average](scores[here].astype(np.float64), len(members)) for scores in members]
        for index, scores in enumerate(members):
            hits[(index,)] += _count_hits(scores[here], labels[here])
        for group in groups:
            total = np.sum([values[index] for index in group], axis=0)
            hits[group] += _count_hits(total, labels[here])
    found = {group: Accuracy(*(float(count) / len(labels) for count in each)) for group, each in hits.items()}
    return MemberAccuracies(
        single=tuple(found[(index,)] for index in everyone),
        cumulative=(found[(0,)], *(found[group] for group in cumulative)),
        without=tuple(found[group] for group in without),
    )


def softmax(scores: Floats) -> Floats:
    """Return the class probabilities of each row.

    >>> softmax(np.log([[1.0, 3.0]])).round(6).tolist()
    [[0.25, 0.75]]
    """
    powers = np.exp(scores - scores.max(1, keepdims=True))
    return np.asarray(powers / powers.sum(1, keepdims=True))


def log_softmax(scores: Floats) -> Floats:
    """Return the log probabilities of each row, finite even for probabilities that round to 0.

    >>> log_softmax(np.array([[0.0, 1000.0]])).tolist()
    [[-1000.0, 0.0]]
    """
    less = scores - scores.max(1, keepdims=True)
    return np.asarray(less - np.log(np.exp(less).sum(1, keepdims=True)))


def ranks_of(values: NDArray[np.floating], labels: Labels) -> NDArray[np.int64]:
    """Return how many classes rank above each label; of equal values the later ranks first, as in Caffe.

    A label whose value is NaN ranks last, so that it is never right.

    >>> ranks_of(np.array([[0.2, 0.5, 0.3], [0.4, 0.4, 0.2]]), np.array([2, 0], np.int32)).tolist()
    [1, 1]
    """
    own = np.take_along_axis(values, labels[:, None].astype(np.int64), 1)
    later = np.arange(values.shape[1]) > labels[:, None]
    behind = (values < own) | ((values == own) & ~later)
    return np.asarray((~behind).sum(1))


def _count_hits(values: NDArray[np.floating], labels: Labels) -> NDArray[np.int64]:
    ranks = ranks_of(values, labels)
    return np.array([(ranks < 1).sum(), (ranks < _TOP).sum()], np.int64)


def _votes(scores: Floats, members: int) -> Floats:
    """Return one vote for each row's first class, plus probabilities scaled so that they only break ties."""
    values = softmax(scores) / (members + 1)
    first = scores.shape[1] - 1 - scores[:, ::-1].argmax(1)  # the later of equal values, as in Caffe
    values[np.arange(len(values)), first] += 1
    return values


# How an average weighs a member: from its scores and the number of members, the values to add up.
AVERAGES: Mapping[str, Callable[[Floats, int], Floats]] = {
    "probabilities": lambda scores, members: softmax(scores),
    "geometric": lambda scores, members: log_softmax(scores),
    "votes": _votes,
}
