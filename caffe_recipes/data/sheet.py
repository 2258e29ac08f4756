"""Draw a contact sheet: images of an LMDB in a grid, each with its label and class name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from caffe_recipes.caffe.datums import Datums, open_datums
from caffe_recipes.data.check import spread_evenly
from caffe_recipes.data.convert import encode, load_pixels, quiet_decoders
from caffe_recipes.data.manifest import load_manifest
from caffe_recipes.errors import DataError
from caffe_recipes.wording import describe_count

_IMAGES, _COLUMNS = 64, 8


_SIDE_PX, _TEXT_PX, _GAP_PX = 112, 16, 4


_FONT = (cv2.FONT_HERSHEY_SIMPLEX, 0.4)
_BLACK, _RED = (0, 0, 0), (0, 0, 255)


def draw_sheet(path: Path) -> bytes:
    """Return a PNG of up to `_IMAGES` images, evenly spread over an LMDB. Raises DataError.

    The class names come from the LMDB's manifest, if it has them.
    """
    manifest = load_manifest(path)
    names = manifest.classes or () if manifest is not None else ()
    with open_datums(path) as datums:
        indices = spread_evenly(len(datums.keys), _IMAGES)  # reading all keys first finds damaged pages
        rows = -(-len(indices) // _COLUMNS)
        high, wide = _SIDE_PX + _TEXT_PX + _GAP_PX, _SIDE_PX + _GAP_PX
        sheet = np.full((rows * high + _GAP_PX, _COLUMNS * wide + _GAP_PX, 3), 255, np.uint8)
        for number, index in enumerate(indices):
            top, left = (number // _COLUMNS * high + _GAP_PX, number % _COLUMNS * wide + _GAP_PX)
            tile = sheet[top : top + high, left : left + _SIDE_PX]
            text, colour = _draw(tile, datums, index, names)
            baseline = (0, _SIDE_PX + _TEXT_PX - 4)
            cv2.putText(tile, text, baseline, *_FONT, colour, 1, cv2.LINE_AA)
    return encode(sheet, "png")


def _draw(
    tile: NDArray[np.uint8], datums: Datums, index: int, names: Sequence[str]
) -> tuple[str, tuple[int, int, int]]:
    """Draw a record's image into its tile, and return the caption and its colour."""
    try:
        datum = datums[index]
    except DataError:
        return "no Datum", _RED
    try:
        with quiet_decoders():
            _draw_image(tile, load_pixels(datum))
    except ValueError:
        return f"{datum.label}: broken", _RED
    return name_label(datum.label, names), _BLACK


def name_label(label: int, names: Sequence[str]) -> str:
    """Return a label and its class name in ASCII, shortened to the width of a tile.

    >>> name_label(3, ["a", "b", "c", "tench"]), name_label(1, ["0", "1"]), name_label(7, ())
    ('3 tench', '1', '7')
    """
    name = names[label] if 0 <= label < len(names) else ""
    text = f"{label} {name}" if name not in ("", str(label)) else str(label)
    text = text.encode("ascii", "replace").decode()  # the font has only ASCII
    shown = text
    while _text_width(shown) > _SIDE_PX:
        text = text[:-1]
        shown = f"{text}.."
    return shown


def _text_width(text: str) -> int:
    return int(cv2.getTextSize(text, *_FONT, 1)[0][0])


def _draw_image(tile: NDArray[np.uint8], pixels: NDArray[np.uint8]) -> None:
    """Draw an image centred in its tile, keeping its aspect ratio."""
    height, width, channels = pixels.shape
    if channels not in (1, 3, 4):
        raise ValueError(f"has {describe_count(channels, 'channel')}")
    shrunk = _SIDE_PX / max(height, width)
    size = max(1, round(width * shrunk)), max(1, round(height * shrunk))
    way = cv2.INTER_AREA if shrunk < 1 else cv2.INTER_NEAREST
    small = cv2.resize(np.ascontiguousarray(pixels.astype(np.uint8)), size, interpolation=way)
    if small.ndim == 2:
        small = small[:, :, None]
    top, left = (_SIDE_PX - small.shape[0]) // 2, (_SIDE_PX - small.shape[1]) // 2
    tile[top : top + small.shape[0], left : left + small.shape[1]] = small[:, :, :3]
