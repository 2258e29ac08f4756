"""What a build is to do, decided before anything is written: which image becomes which record, and how."""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from random import Random
from typing import TypeVar

from caffe_recipes.data.pictures import Picture, Pictures
from caffe_recipes.data.pixels import Settings, can_encode, suffix_of, tell_excess
from caffe_recipes.errors import DataError, InputError

T = TypeVar("T")


@dataclass(frozen=True)
class Plan:
    """Images in the order of their records; the record of the i-th has the key `%08d_name` of i."""

    pictures: Sequence[Picture]
    classes: tuple[str, ...] | None
    settings: Settings
    seed: int | None

    @cached_property
    def digest(self) -> str:
        """Digest the names, labels, order and settings: all that decides the records, but the images."""
        digest = hashlib.sha256(json.dumps(asdict(self.settings), sort_keys=True).encode())
        for picture in self.pictures:
            digest.update(os.fsencode(f"\n{picture.name}\0{picture.label}"))
        return digest.hexdigest()

    @cached_property
    def size_bytes(self) -> int:
        """Add up the images' files: with another sum they are not the same."""
        return sum(picture.size_bytes for picture in self.pictures)


def plan_build(
    found: Pictures, settings: Settings, *, seed: int | None = None, classes: int | None = None
) -> Plan:
    """Order the images, shuffled if there is a `seed`; raises InputError for what cannot be built.

    `classes` is how many there have to be: labels go from 0 to `classes` - 1.
    """
    check_settings(settings)
    pictures = found.pictures if seed is None else shuffle(found.pictures, seed)
    _check_labels(found, classes)
    if settings.is_encoded and (settings.resizes or settings.is_gray) and settings.encode_type is None:
        _check_suffixes(found, is_gray=settings.is_gray)
    return Plan(pictures, found.classes, settings, seed)


def shuffle(items: Sequence[T], seed: int) -> list[T]:
    """Shuffle: the same seed gives the same order on every machine.

    Only `Random.random()` is drawn from, whose values Python promises to keep.

    >>> shuffle("abcde", 1)
    ['a', 'd', 'e', 'c', 'b']
    """
    random = Random(seed)
    return sorted(items, key=lambda _: random.random())


def check_settings(settings: Settings) -> None:
    """Raise InputError for settings that contradict each other, or make images that no Datum holds.

    convert_imageset would not tell.
    """
    both = settings.resize_height_px, settings.resize_width_px
    if any(both) and not all(both):
        raise InputError("--resize-height, --resize-width", "only one of them is given", "give both")
    if any(both) and settings.shorter_side_px:
        raise InputError("--shorter-side", "stands beside --resize-height", "give one of them")
    if settings.encode_type is not None and not settings.is_encoded:
        raise InputError("--encode-type", "stands beside --raw", "give one of them")
    least = settings.shorter_side_px
    excess = tell_excess(*(both if all(both) else (least, least)), settings)
    if excess:
        raise InputError("--shorter-side" if least else "--resize-height", excess, "give fewer pixels")


def _check_labels(found: Pictures, classes: int | None) -> None:
    if classes is None:
        return
    if found.classes is not None and len(found.classes) != classes:
        raise DataError(found.where, f"has {len(found.classes):,} classes, not {classes:,}", "mend --classes")
    bad = [picture for picture in found.pictures if picture.label >= classes]
    if bad:
        what = f"'{bad[0].name}' has label {bad[0].label}, which is none of the {classes:,} classes from 0"
        raise DataError(found.where, what, "mend the label, or --classes")


def _check_suffixes(found: Pictures, *, is_gray: bool) -> None:
    """See that each image can be encoded again as what it is."""
    suffixes = Counter(suffix_of(picture.name) for picture in found.pictures)
    bad = next((suffix for suffix in suffixes if not can_encode(suffix, is_gray=is_gray)), None)
    if bad is not None:
        name = next(picture.name for picture in found.pictures if suffix_of(picture.name) == bad)
        what = f"'{name}' cannot be encoded as its suffix says{' in grey' if is_gray else ''}"
        raise DataError(found.where, what, "give --encode-type jpg")
