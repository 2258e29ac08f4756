"""The size and channels of encoded images, compared with what OpenCV decodes."""

from __future__ import annotations

import cv2
import numpy as np
import pytest

from caffe_recipes.caffe.image_headers import image_shape


@pytest.mark.parametrize(
    ("suffix", "channels"),
    [(".png", 1), (".png", 3), (".png", 4), (".jpg", 1), (".jpg", 3), (".bmp", 3), (".pgm", 1), (".ppm", 3)],
)
def test_the_shape_is_that_of_the_decoded_image(suffix: str, channels: int) -> None:
    data = bytes(cv2.imencode(suffix, np.zeros((7, 9, channels), np.uint8))[1])
    decoded = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED)
    assert image_shape(data) == (channels, 7, 9)
    assert decoded is not None and decoded.reshape(7, 9, -1).shape[2] == channels


@pytest.mark.parametrize(
    "data", [b"", b"GIF89a", b"\x89PNG\r\n\x1a\n", b"BM", b"P5 0 4 255 ", b"RIFF....WEBP"]
)
def test_a_header_that_is_not_known_has_no_shape(data: bytes) -> None:
    assert image_shape(data) is None


@pytest.mark.parametrize("suffix", [".png", ".bmp", ".ppm"])
def test_an_image_cut_at_any_byte_has_its_shape_or_none(suffix: str) -> None:
    data = bytes(cv2.imencode(suffix, np.zeros((7, 9, 3), np.uint8))[1])
    assert {image_shape(data[:size]) for size in range(len(data))} == {None, (3, 7, 9)}
