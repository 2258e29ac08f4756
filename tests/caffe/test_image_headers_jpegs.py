"""The header of a JPEG as OpenCV's decoder sees it; other files have none."""

from __future__ import annotations

import cv2
import numpy as np
import pytest

from caffe_recipes.caffe.image_headers import jpeg_shape


def encode(channels: int, *settings: int) -> bytes:
    pixels = np.zeros((7, 9, channels), np.uint8)
    return bytes(cv2.imencode(".jpg", pixels, settings)[1])


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(
    "settings", [(), (cv2.IMWRITE_JPEG_PROGRESSIVE, 1), (cv2.IMWRITE_JPEG_RST_INTERVAL, 1)]
)
def test_the_shape_of_a_jpeg_is_read(channels: int, settings: tuple[int, ...]) -> None:
    assert jpeg_shape(encode(channels, *settings)) == (channels, 7, 9)


def test_segments_and_padding_before_the_frame_are_skipped() -> None:
    data = encode(3)
    exif = b"\xff\xff\xff\xe1\x00\x0aExif\x00\x00\xff\xc0"
    assert jpeg_shape(data[:2] + exif + data[2:]) == (3, 7, 9)


@pytest.mark.parametrize(
    "data", [b"", b"\xff\xd8", b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff\xd9", b"\xff\xd8\xff\xe0"]
)
def test_a_file_that_is_not_a_jpeg_has_no_shape(data: bytes) -> None:
    assert jpeg_shape(data) is None


def test_a_jpeg_cut_at_any_byte_has_its_shape_or_none() -> None:
    data = encode(3)
    found = {jpeg_shape(data[:size]) for size in range(len(data))}
    assert found == {None, (3, 7, 9)}
