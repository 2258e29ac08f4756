"""Turn Datums into the pixels of a batch: decode, resize, crop, mirror, subtract the mean, and scale."""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.image_headers import describe_scans
from caffe_recipes.caffe.weights import blob_values, load_mean, mean_shape
from caffe_recipes.errors import InputError
from caffe_recipes.limits import limit
from caffe_recipes.wording import describe_count

Pixels = NDArray[Any]  # (height, width, channels); uint8, or float32 if the Datum has floats
Resize = Callable[[Pixels, Random], Pixels]

_INTERPOLATION = {
    pb.ResizeParameter.LINEAR: cv2.INTER_LINEAR,
    pb.ResizeParameter.AREA: cv2.INTER_AREA,
    pb.ResizeParameter.NEAREST: cv2.INTER_NEAREST,
    pb.ResizeParameter.CUBIC: cv2.INTER_CUBIC,
    pb.ResizeParameter.LANCZOS4: cv2.INTER_LANCZOS4,
}

# The supported fields of TransformationParameter. Others are errors, since Caffe would not ignore them.
_SUPPORTED = frozenset(
    (
        "scale",
        "mirror",
        "crop_size",
        "mean_file",
        "mean_value",
        "force_color",
        "force_gray",
        "random_resize_param",
        "random_aspect_ratio_param",
    )
)

cv2.setNumThreads(1)  # ranks already use all cores
cv2.utils.logging.setLogLevel(0)  # our errors say what is wrong with an image, in one line


def match_caffe_opencv() -> None:
    """Make OpenCV resize as Caffe's does in this thread: IPP's CUBIC rounds some pixels differently."""
    cv2.ipp.setUseIPP(False)  # affects only the calling thread


def decode_datum(datum: pb.Datum, param: pb.TransformationParameter) -> Pixels:
    """Return a Datum's pixels as (height, width, channels) in BGR. Raises ValueError for a bad image."""
    if not datum.encoded:
        shape = (datum.channels, datum.height, datum.width)
        values = np.frombuffer(datum.data, np.uint8) if datum.data else np.array(datum.float_data, np.float32)
        if values.size != math.prod(shape) or not values.size:
            raise ValueError(f"holds {values.size} values, not {' x '.join(map(str, shape))}")
        return values.reshape(shape).transpose(1, 2, 0)
    if excess := describe_scans(datum.data):
        raise ValueError(excess)
    flag = cv2.IMREAD_UNCHANGED
    if param.force_color or param.force_gray:
        flag = cv2.IMREAD_COLOR if param.force_color else cv2.IMREAD_GRAYSCALE
    try:
        image = cv2.imdecode(np.frombuffer(datum.data, np.uint8), flag) if datum.data else None
    except cv2.error:
        raise ValueError(f"has over {limit('image-pixels'):,} pixels") from None
    if image is None:
        raise ValueError("is not an image that OpenCV can decode with 8 bits per channel")
    if image.dtype != np.uint8:
        raise ValueError("has more than 8 bits per channel")
    return image if image.ndim == 3 else image[:, :, None]


def format_size(image: Pixels) -> str:
    """Return an image's size as text, `channels x height x width`."""
    height, width, channels = image.shape
    return f"{channels} x {height} x {width}"


def resize_to_shorter(image: Pixels, shorter: int, param: pb.ResizeParameter, random: Random) -> Pixels:
    """Return the image resized to a shorter side of `shorter`. The longer one is rounded down as in Caffe."""
    height, width = image.shape[:2]
    if height < width:
        longer = int(np.float32(width) / np.float32(height) * np.float32(shorter))
        return resize_to(image, shorter, longer, param, random)
    longer = int(np.float32(height) / np.float32(width) * np.float32(shorter))
    return resize_to(image, longer, shorter, param, random)


def resize_to(image: Pixels, height: int, width: int, param: pb.ResizeParameter, random: Random) -> Pixels:
    """Return the image resized. Raises ValueError if that fails."""
    modes = param.interp_mode
    mode = modes[0 if len(modes) == 1 else random.randrange(len(modes))] if modes else param.LINEAR
    try:
        resized: Pixels = cv2.resize(image, (width, height), interpolation=_INTERPOLATION[mode])
    except cv2.error as error:
        raise ValueError(f"cannot be resized to {height} x {width}: {error.err}") from None
    return resized if resized.ndim == 3 else resized[:, :, None]


def random_resize(param: pb.TransformationParameter) -> Resize:
    """Return the function for `random_resize_param`: the shorter side is drawn from [min_size, max_size]."""
    own = param.random_resize_param

    def resize(image: Pixels, random: Random) -> Pixels:
        low = own.min_size or min(image.shape[:2])
        high = own.max_size or max(image.shape[:2])
        return resize_to_shorter(image, random.randint(low, high), own.resize_param, random)

    return resize


def random_aspect_ratio(param: pb.TransformationParameter) -> Resize:
    """Return the function for `random_aspect_ratio_param`: a random crop, resized to crop_size x crop_size.

    The area ratio a and the side ratio c are drawn in steps of 1/1000. The crop is sqrt(a * area) * c high
    and sqrt(a * area) / c wide, or vice versa. If no crop fits the image within max_attempt attempts, the
    image is resized to a shorter side of crop_size.
    """
    own, size = param.random_aspect_ratio_param, param.crop_size
    change = own.aspect_ratio_change

    def resize(image: Pixels, random: Random) -> Pixels:
        height, width = image.shape[:2]
        for _ in range(own.max_attempt):
            side = math.sqrt(_draw(random, own.min_area_ratio, own.max_area_ratio) * height * width)
            ratio = _draw(random, change, 1 / change)
            h, w = int(side * ratio), int(side / ratio)
            if _draw(random, 0, 1) < 0.5:
                h, w = w, h
            if 0 < h <= height and 0 < w <= width:
                y, x = random.randrange(height - h + 1), random.randrange(width - w + 1)
                return resize_to(image[y : y + h, x : x + w], size, size, own.resize_param, random)
        return resize_to_shorter(image, size, own.resize_param, random)

    return resize


def _draw(random: Random, low: float, high: float) -> float:
    """Return a random number from [low, high], in steps of 1/1000."""
    return (random.randrange(int((high - low) * 1000 + 1)) + low * 1000) / 1000


class Transform:
    """The transformation of a data layer. Raises InputError for parameters that are not supported."""

    def __init__(self, param: pb.TransformationParameter, phase: int) -> None:
        check_transform(param)
        self._param, self._crop, self._training = param, param.crop_size, phase == pb.TRAIN
        self._resize: Resize | None = None
        if param.HasField("random_resize_param"):
            self._resize = random_resize(param)
        elif param.HasField("random_aspect_ratio_param"):
            self._resize = random_aspect_ratio(param)
        self._mean_image = _load_mean_pixels(param.mean_file) if param.HasField("mean_file") else None
        self._mean = np.array(param.mean_value, np.float32)
        self._scale = np.float32(param.scale)
        # The value of each byte and channel: looking it up is faster than computing it for each pixel.
        levels = np.arange(256, dtype=np.float32)[None, :, None]
        self._table = self._shifted(np.repeat(levels, max(1, self._mean.size), axis=2))

    @property
    def resizes(self) -> bool:
        """Whether images are resized; Caffe scrambles raw Datums when it resizes them."""
        return self._resize is not None

    def apply(self, image: Pixels, random: Random) -> Pixels:
        """Return an image resized, cropped and mirrored. Raises ValueError if its size is wrong."""
        if self._resize is not None:
            image = self._resize(image, random)
        height, width = image.shape[:2]
        mean = self._mean_image
        if mean is not None and mean.shape != image.shape:
            raise ValueError(f"is {format_size(image)}, but mean_file is {format_size(mean)}")
        top, left = 0, 0
        size = self._crop
        if size:
            if height < size or width < size:
                raise ValueError(f"is {height} x {width}, smaller than crop_size {size}")
            top, left = self._corner(height - size, width - size, random)
            height = width = size
        window = (slice(top, top + height), slice(left, left + width))
        pixels: Pixels = image[window]
        if mean is not None:
            pixels = pixels.astype(np.float32) - mean[window]
        return pixels[:, ::-1] if self._param.mirror and random.randrange(2) else pixels

    def _corner(self, down: int, right: int, random: Random) -> tuple[int, int]:
        if self._training:
            return random.randrange(down + 1), random.randrange(right + 1)
        return down // 2, right // 2

    def normalise(self, images: list[Pixels]) -> NDArray[np.float32]:
        """Return images of one size as a batch (n, height, width, channels): (pixel - mean_value) * scale."""
        count, channels = self._mean.size, images[0].shape[2]
        if count not in (0, 1, channels):
            raise ValueError(f"has {describe_count(channels, 'channel')}, but mean_value has {count} values")
        batch = np.empty((len(images), *images[0].shape), np.float32)
        for values, image in zip(batch, images, strict=True):
            if image.dtype == np.uint8:
                # One table for all channels takes the pixels of a row as those of one channel.
                shape = image.shape if count > 1 else (image.shape[0], -1)
                cv2.LUT(np.ascontiguousarray(image).reshape(shape), self._table, values.reshape(shape))
            else:
                values[:] = self._shifted(image)
        return batch

    def _shifted(self, pixels: Pixels) -> NDArray[np.float32]:
        """Return (pixel - mean_value) * scale."""
        values: NDArray[np.float32] = pixels.astype(np.float32)
        if self._mean.size:
            values -= self._mean
        if self._scale != 1:
            with np.errstate(over="ignore"):  # Caffe gets infinity too; the loss shows it
                values *= self._scale
        return values


def check_transform(param: pb.TransformationParameter) -> None:
    """Raise InputError for parameters that the engine does not support or that Caffe rejects."""
    for field, _ in param.ListFields():
        if field.name not in _SUPPORTED and getattr(param, field.name):
            raise InputError("transform_param", f"{field.name} is not supported", "remove it")
    if param.HasField("mean_file") and param.mean_value:
        raise InputError("transform_param", "has both mean_file and mean_value", "give only one")
    if param.force_color and param.force_gray:
        raise InputError("transform_param", "has both force_color and force_gray", "give only one")
    if param.HasField("random_resize_param"):
        sizes = param.random_resize_param
        if sizes.max_size and sizes.max_size < sizes.min_size:
            raise InputError("random_resize_param", "max_size is below min_size", "swap them")
    elif param.HasField("random_aspect_ratio_param"):
        own = param.random_aspect_ratio_param
        if not param.crop_size:
            raise InputError("random_aspect_ratio_param", "needs crop_size", "give crop_size")
        if not 0 < own.min_area_ratio <= own.max_area_ratio or not 0 < own.aspect_ratio_change <= 1:
            what = "needs 0 < min_area_ratio <= max_area_ratio and 0 < aspect_ratio_change <= 1"
            raise InputError("random_aspect_ratio_param", what, "correct them")


def _load_mean_pixels(path: str) -> NDArray[np.float32]:
    """Return the mean image in a file as (height, width, channels). Raises DataError."""
    mean = load_mean(path)
    return np.array(blob_values(mean), np.float32).reshape(mean_shape(mean)).transpose(1, 2, 0)
