"""The epochs, and the images of an epoch, that the comments of solvers and titles state."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from caffe_recipes.caffe.chain import Chain, Link
    from caffe_recipes.caffe.text.comments import Comment


TOLERANCE = 0.02
_NUMBER = r"(\d[\d,]{0,14}(?:\.\d{1,9})?)"
# `1 epoch = 313 iterations` explains the size of an epoch and claims nothing about a field.
EPOCH_CLAIM = re.compile(rf"(?<![\d.,]){_NUMBER}[ -]?epochs?\b(?!\s*(?:=|is\b|are\b|of\b))", re.IGNORECASE)
_IMAGES_OVER_BATCH = re.compile(rf"(?<![\d.,]){_NUMBER}\s*/\s*{_NUMBER}")
# The header of a generated solver.
_HEADER = re.compile(rf"{_NUMBER} images an iteration.{{0,99}}?, {_NUMBER} an epoch")
_MIN_IMAGES = 1000  # `3 / 4` is not images / batch


@dataclass(frozen=True)
class EpochSize:
    """The size of an epoch: images per epoch, and images per iteration (`batch`)."""

    images: float
    batch: float

    def epochs(self, iterations: float) -> float:
        """Convert iterations to epochs.

        >>> round(EpochSize(1281167, 4096).epochs(1000), 2)
        3.2
        """
        return iterations * self.batch / self.images


def parse_epoch_claims(text: str) -> tuple[float, ...]:
    """Return the numbers of epochs that a text states.

    >>> [parse_epoch_claims(text) for text in ("1281167 / 4096  * 5 epochs", "a 90-epoch run", "1 epoch = 9")]
    [(5.0,), (90.0,), ()]
    """
    return tuple(parse_count(match[1]) for match in EPOCH_CLAIM.finditer(text))


def parse_epoch_size(text: str) -> EpochSize | None:
    """Return the images / batch in a text, such as `1281167 / 4096`; None if there are none.

    >>> parse_epoch_size("1281167 / 4096  * 5 epochs")
    EpochSize(images=1281167.0, batch=4096.0)
    """
    header = _HEADER.search(text)
    if header:
        return EpochSize(parse_count(header[2]), parse_count(header[1]))
    for match in _IMAGES_OVER_BATCH.finditer(text):
        images, batch = parse_count(match[1]), parse_count(match[2])
        if images >= _MIN_IMAGES and 0 < batch <= images:
            return EpochSize(images, batch)
    return None


def find_epoch_size(links: Iterable[Link]) -> EpochSize | None:
    """Return the first images / batch in the comments of a chain's solvers; None if there is none."""
    for link in links:
        for field, comment in link.solver.comments.items():
            # A comment on test_iter is about the test set.
            texts = () if field.partition("[")[0] == "test_iter" else comment_texts([comment])
            if basis := next(filter(None, map(parse_epoch_size, texts)), None):
                return basis
    return None


def comment_texts(comments: Iterable[Comment]) -> Iterator[str]:
    """Yield the texts of comments that are not empty."""
    for comment in comments:
        yield from filter(None, comment.texts)


def parse_count(number: str) -> float:
    """Return a number that may have thousands separators.

    >>> parse_count("1,281,167")
    1281167.0
    """
    return float(number.replace(",", ""))


def differs(one: float, other: float) -> bool:
    """Return whether two numbers of images or epochs differ by more than 2%.

    >>> differs(4000, 4096), differs(4050, 4096)
    (True, False)
    """
    return abs(one - other) > TOLERANCE * abs(other)


def find_epoch_size_of(chain: Chain, link: Link) -> EpochSize | None:
    """Return the epoch size in the comments of a chain, for the iter_size of one of its phases."""
    source = next((one for one in chain.links if find_epoch_size([one])), None)
    basis = find_epoch_size([source]) if source else None
    if basis is None or source is None:
        return None
    times = max(link.solver.message.iter_size, 1) / max(source.solver.message.iter_size, 1)
    return EpochSize(basis.images, basis.batch * times)
