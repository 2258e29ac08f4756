"""From an image's bytes to its Datum, by OpenCV and as convert_imageset makes it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from caffe_recipes.caffe import pb

_MOST_BYTES = 2**31 - 1 - 64  # protobuf's most of a message, less what a Datum's other fields take
_TOO_MUCH = f"more than a Datum holds ({_MOST_BYTES / 1e9:.1f} GB)"
_MOST_PIXELS = 2**30  # of an image that OpenCV decodes, by itself

Pixels = NDArray[np.uint8]  # (height, width, 3) in BGR, or (height, width)


@dataclass(frozen=True)
class Settings:
    """What is done to each image; convert_imageset's flags of these names do the same.

    `encode_type` is jpg or png; an encoded image has its file's own if it is None. `shorter_side_px` keeps
    the ratio of the sides, and is no flag of Caffe's.
    """

    resize_height_px: int = 0
    resize_width_px: int = 0
    shorter_side_px: int = 0
    is_gray: bool = False
    is_encoded: bool = True
    encode_type: str | None = None
    check_size: bool = False

    @property
    def resizes(self) -> bool:
        """Whether any image is."""
        return bool(self.resize_height_px or self.shorter_side_px)


def use_one_thread() -> None:
    """Keep OpenCV to the calling thread: images are converted side by side, each by one."""
    cv2.setNumThreads(1)


def keep_memory() -> None:
    """Keep an image's memory for the next one: to ask the system for it anew takes up to a fifth of the time.

    glibc gives back what is free at its heap's end once that is twice the largest block that was mapped for
    itself and freed, of those up to 32 MB (mallopt(3), M_MMAP_THRESHOLD). This one is not written to.
    """
    np.empty(31 << 20, np.uint8)


@contextmanager
def quiet_decoders() -> Iterator[None]:
    """Let libjpeg and libpng say nothing on standard error: what is wrong is said once, with a name."""
    try:
        stderr = os.dup(2)
    except OSError:  # it is closed
        yield
        return
    silent = os.open(os.devnull, os.O_WRONLY)
    try:
        sys.stderr.flush()
        os.dup2(silent, 2)
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
        os.close(silent)


def can_encode(suffix: str, *, is_gray: bool) -> bool:
    """Tell if images can be written as, say, `jpg`, grey ones as grey: a WebP has colours, and a PGM none."""
    pixels = np.zeros((64, 64) if is_gray else (64, 64, 3), np.uint8)
    try:
        with quiet_decoders():
            if not suffix or not cv2.haveImageWriter(f"x.{suffix}"):
                return False
            return decode(encode(pixels, suffix), cv2.IMREAD_UNCHANGED).shape == pixels.shape
    except (ValueError, cv2.error):  # an EXR's writer is there, and refuses to be asked
        return False


def suffix_of(name: str) -> str:
    """Give a name's suffix in lower case.

    >>> suffix_of("a.b/c.JPEG"), suffix_of("a.b/c")
    ('jpeg', '')
    """
    return PurePath(name).suffix[1:].lower()


def tell_excess(height: int, width: int, settings: Settings) -> str:
    """Say why no Datum can be of an image of this size in pixels; say nothing if one can."""
    size = f"{height} x {width} pixels are"
    if settings.is_encoded:
        return "" if height * width <= _MOST_PIXELS else f"{size} more than OpenCV decodes ({_MOST_PIXELS:,})"
    made_bytes = height * width * (1 if settings.is_gray else 3)
    return "" if made_bytes <= _MOST_BYTES else f"{size} {made_bytes / 1e9:.1f} GB raw, {_TOO_MUCH}"


def convert(data: bytes, name: str, label: int, settings: Settings) -> tuple[pb.Datum, tuple[int, ...]]:
    """Make a Datum of an image's file, and give the image's (height, width[, channels]).

    An encoded image that needs no change is kept byte by byte. What is encoded states no size, as Caffe's;
    what is not is (channels, height, width), in BGR. Raises ValueError, saying what is wrong.
    """
    own = suffix_of(name)
    wanted = settings.encode_type or own
    is_same = wanted == own or (wanted, own) == ("jpg", "jpeg")
    if settings.is_encoded and not settings.resizes and is_same:
        seen = _look(data, settings)
        is_bytes = seen.dtype == np.uint8
        if not is_bytes and not settings.is_gray and settings.encode_type is None:
            # Of floats OpenCV makes no bytes: they have no white.
            way = " (--encode-type makes them 8)" if seen.dtype == np.uint16 else ""
            raise ValueError(f"has {8 * seen.itemsize} bits per channel, and Caffe reads 8{way}")
        if is_bytes and (not settings.is_gray or seen.ndim == 2):
            return _encoded_datum(data, label), seen.shape
    pixels = decode(data, cv2.IMREAD_GRAYSCALE if settings.is_gray else cv2.IMREAD_COLOR)
    pixels = _resize(pixels, settings)
    if settings.is_encoded:
        return _encoded_datum(encode(pixels, wanted), label), pixels.shape
    planes = pixels if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
    height, width = pixels.shape[:2]
    datum = pb.Datum(channels=pixels.size // (height * width), height=height, width=width)
    datum.data, datum.label, datum.encoded = planes.tobytes(), label, False
    return datum, pixels.shape


def _encoded_datum(data: bytes, label: int) -> pb.Datum:
    if len(data) > _MOST_BYTES:
        raise ValueError(f"is {len(data) / 1e9:.1f} GB, {_TOO_MUCH}")
    return pb.Datum(data=data, label=label, encoded=True)


def decode(data: bytes, flag: int) -> Pixels:
    """Decode an image; raises ValueError. Unlike imread, imdecode refuses a file that is cut short.

    OpenCV reads GIFs since 4.11 only, and a trainer's is older.
    """
    if data[:4] == b"GIF8":
        raise ValueError("is a GIF, which Caffe's OpenCV does not read")
    try:
        pixels: NDArray[Any] | None = cv2.imdecode(np.frombuffer(data, np.uint8), flag)
    except cv2.error:  # empty, or larger than OpenCV takes
        pixels = None
    if pixels is None:
        raise ValueError("is empty" if not data else "is no image that OpenCV decodes, or is cut short")
    return pixels


def load_pixels(datum: pb.Datum) -> NDArray[Any]:
    """Give a Datum's image as the trainer has it, (height, width, channels); raises ValueError."""
    if datum.encoded:
        pixels: NDArray[Any] = decode(datum.data, cv2.IMREAD_UNCHANGED)
        if pixels.dtype != np.uint8:
            raise ValueError("has more than 8 bits per channel")
        return pixels if pixels.ndim == 3 else pixels[:, :, None]
    shape = (datum.channels, datum.height, datum.width)
    values = np.frombuffer(datum.data, np.uint8) if datum.data else np.array(datum.float_data, np.float32)
    return values.reshape(shape).transpose(1, 2, 0)


def encode(pixels: Pixels, suffix: str, settings: Sequence[int] = ()) -> bytes:
    """Encode, by default with OpenCV's own settings: JPEG's quality is 95.

    Raises ValueError for what a type cannot hold: a JPEG has 65,500 pixels a side at most.
    """
    try:
        is_done, data = cv2.imencode(f".{suffix}", pixels, settings)
    except cv2.error:  # of what a newer one gives back as undone
        is_done = False
    if not is_done:
        size = " x ".join(map(str, pixels.shape[:2]))
        raise ValueError(f"is {size} pixels, and cannot be encoded as {suffix}")
    return bytes(data)


def shorter_side(height: int, width: int, shorter_px: int) -> tuple[int, int]:
    """Give (height, width) with the shorter side at `shorter_px`, the longer rounded down in float32.

    As Caffe's own resize by the shorter side does.

    >>> shorter_side(375, 500, 256), shorter_side(500, 375, 256), shorter_side(7, 7, 3)
    ((256, 341), (341, 256), (3, 3))
    """
    low, high = sorted((height, width))
    longer = int(np.float32(high) / np.float32(low) * np.float32(shorter_px))
    return (shorter_px, longer) if height < width else (longer, shorter_px)


def _resize(pixels: Pixels, settings: Settings) -> Pixels:
    height, width = settings.resize_height_px, settings.resize_width_px
    if settings.shorter_side_px:
        height, width = shorter_side(pixels.shape[0], pixels.shape[1], settings.shorter_side_px)
    is_resized = bool(height)
    if not is_resized:
        height, width = pixels.shape[:2]
    excess = tell_excess(height, width, settings)
    if excess:
        raise ValueError(excess)
    if not is_resized:
        return pixels
    try:
        resized: NDArray[Any] = cv2.resize(pixels, (width, height), interpolation=cv2.INTER_LINEAR)
    except cv2.error:
        raise ValueError(f"cannot be resized to {height} x {width}") from None
    return resized


def _look(data: bytes, settings: Settings) -> NDArray[Any]:
    """Decode what is kept as it is, only to see that it can be, in what shape and with what depth.

    A JPEG's pixels are left out where nobody asks for the shape: an eighth of a side takes half the time.
    """
    is_jpeg = data[:2] == b"\xff\xd8"
    if is_jpeg and not settings.is_gray and not settings.check_size:
        return decode(data, cv2.IMREAD_REDUCED_COLOR_8)
    return decode(data, cv2.IMREAD_UNCHANGED)
