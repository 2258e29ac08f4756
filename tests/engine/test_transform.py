"""Pixels on their way from a Datum to a batch."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path
from random import Random

import cv2
import numpy as np
import pytest

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.prototxt import parse_prototxt
from caffe_recipes.engine.transform import Transform, decode_datum, match_caffe_opencv, resize_to_shorter
from caffe_recipes.errors import DataError, InputError


def transform(text: str, phase: int = pb.TEST) -> Transform:
    return Transform(parse_prototxt(text, pb.TransformationParameter), phase)


def image(height: int, width: int, channels: int = 3) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (height, width, channels), np.uint8)


def encoded(pixels: np.ndarray, suffix: str = ".png") -> pb.Datum:
    return pb.Datum(encoded=True, data=cv2.imencode(suffix, pixels)[1].tobytes())


NOTHING = pb.TransformationParameter()


def test_raw_datums_are_planes_of_bytes_or_floats() -> None:
    bytes_ = pb.Datum(channels=2, height=1, width=3, data=bytes(range(6)))
    assert decode_datum(bytes_, NOTHING).tolist() == [[[0, 3], [1, 4], [2, 5]]]
    floats = pb.Datum(channels=1, height=1, width=2, float_data=[0.5, -1])
    assert decode_datum(floats, NOTHING).tolist() == [[[0.5], [-1]]]


def test_encoded_datums_are_as_they_were_encoded_unless_forced() -> None:
    colour, grey = image(4, 5), image(4, 5, 1)
    assert (decode_datum(encoded(colour), NOTHING) == colour).all()
    assert (decode_datum(encoded(grey), NOTHING) == grey).all()
    forced = pb.TransformationParameter(force_color=True)
    assert (decode_datum(encoded(grey), forced) == np.repeat(grey, 3, 2)).all()
    assert decode_datum(encoded(colour), pb.TransformationParameter(force_gray=True)).shape == (4, 5, 1)


@pytest.mark.parametrize(
    ("datum", "part"),
    [
        (pb.Datum(encoded=True, data=b"junk"), "not an image"),
        (pb.Datum(encoded=True), "not an image"),
        (pb.Datum(channels=1, height=2, width=2, data=b"123"), "holds 3 values, not 1 x 2 x 2"),
        (pb.Datum(), "holds 0 values"),
        (encoded(np.zeros((2, 2), np.uint16)), "more than 8 bits"),
    ],
)
def test_a_datum_that_is_not_an_image_is_an_error_with_the_reason(datum: pb.Datum, part: str) -> None:
    with pytest.raises(ValueError, match=part):
        decode_datum(datum, NOTHING)


def test_testing_crops_the_centre_and_training_everywhere() -> None:
    pixels = np.arange(36, dtype=np.uint8).reshape(6, 6, 1)
    centre = transform("crop_size: 3").apply(pixels, Random(0))
    assert centre[0, 0, 0] == 7  # (6 - 3) / 2 rounded down is row 1, column 1
    training = transform("crop_size: 3", pb.TRAIN)
    random = Random(0)
    corners = Counter(int(training.apply(pixels, random)[0, 0, 0]) for _ in range(2000))
    assert sorted(corners) == [row * 6 + column for row in range(4) for column in range(4)]
    assert min(corners.values()) > 60


def test_mirroring_turns_every_other_image() -> None:
    pixels = image(3, 4)
    mirror, random = transform("mirror: true"), Random(0)
    results = [mirror.apply(pixels, random) for _ in range(400)]
    turned = sum((result == pixels[:, ::-1]).all() for result in results)
    assert 150 < turned < 250
    assert all((r == pixels).all() or (r == pixels[:, ::-1]).all() for r in results)


def test_the_mean_is_subtracted_before_the_scale() -> None:
    pixels = image(2, 2)
    batch = transform("mean_value: 104 mean_value: 117 mean_value: 123 scale: 0.5").normalise([pixels])
    want = (pixels.astype(np.float32) - np.array([104, 117, 123], np.float32)) * np.float32(0.5)
    assert batch.dtype == np.float32
    assert (batch[0] == want).all()


def test_one_mean_value_is_for_all_channels() -> None:
    assert (
        transform("mean_value: 7").normalise([image(2, 2)])[0] == image(2, 2).astype(np.float32) - 7
    ).all()


def test_the_mean_image_is_cropped_and_turned_with_the_image(tmp_path: Path) -> None:
    mean = np.random.default_rng(1).random((3, 5, 6)).astype(np.float32)
    blob = pb.BlobProto(data=mean.ravel(), shape=pb.BlobShape(dim=mean.shape))
    (tmp_path / "mean").write_bytes(blob.SerializeToString())
    pixels = image(5, 6)
    result = transform(f'mean_file: "{tmp_path / "mean"}" crop_size: 3').apply(pixels, Random(0))
    assert (result == (pixels - mean.transpose(1, 2, 0))[1:4, 1:4]).all()


@pytest.mark.parametrize("content", [b"", b"junk", pb.BlobProto(data=[1, 2]).SerializeToString()])
def test_a_file_that_is_not_a_mean_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "mean").write_bytes(content)
    with pytest.raises(DataError, match="is not a mean file"):
        transform(f'mean_file: "{tmp_path / "mean"}"')


def test_the_shorter_side_is_resized_and_the_longer_rounded_down_in_float32() -> None:
    nearest = pb.ResizeParameter()
    assert resize_to_shorter(image(40, 34), 36, nearest, Random(0)).shape == (42, 36, 3)
    assert resize_to_shorter(image(36, 44), 36, nearest, Random(0)).shape == (36, 44, 3)
    assert resize_to_shorter(image(7, 7, 1), 3, nearest, Random(0)).shape == (3, 3, 1)


def test_an_image_that_cannot_be_resized_is_an_error_with_the_reason() -> None:
    with pytest.raises(ValueError, match="cannot be resized to 0 x 0"):
        resize_to_shorter(image(9, 9), 0, pb.ResizeParameter(), Random(0))


def test_random_resize_draws_the_shorter_side() -> None:
    resize, random = transform("random_resize_param { min_size: 8 max_size: 10 }"), Random(0)
    shapes = {resize.apply(image(6, 12), random).shape for _ in range(200)}
    assert shapes == {(8, 16, 3), (9, 18, 3), (10, 20, 3)}


def test_random_aspect_ratio_ends_at_crop_size() -> None:
    text = "crop_size: 8 random_aspect_ratio_param { min_area_ratio: 0.08 aspect_ratio_change: 0.75 }"
    random = Random(0)
    assert {transform(text, pb.TRAIN).apply(image(20, 30), random).shape for _ in range(50)} == {(8, 8, 3)}


def test_random_aspect_ratio_that_never_fits_resizes_the_shorter_side() -> None:
    text = "crop_size: 8 random_aspect_ratio_param { min_area_ratio: 1 max_area_ratio: 1 max_attempt: 3 }"
    pixels = np.zeros((8, 80, 3), np.uint8)
    pixels[:, 36:44] = 255  # the whole area as a square is higher than the image: only the centre is left
    assert (transform(text, pb.TEST).apply(pixels, Random(0)) == 255).all()


def fixed_point_cubic(pixels: np.ndarray, size: int) -> np.ndarray:
    """Resize to (size, size) with OpenCV's cubic kernel (A = -0.75), in steps of 1/2048, without IPP."""

    def kernel(length: int) -> tuple[np.ndarray, np.ndarray]:
        at = np.float32((np.arange(size) + 0.5) * (length / size) - 0.5)
        first = np.floor(at).astype(int)
        x, a = (at - first).astype(np.float32), np.float32(-0.75)
        left = ((a * (x + 1) - 5 * a) * (x + 1) + 8 * a) * (x + 1) - 4 * a
        near = ((a + 2) * x - (a + 3)) * x * x + 1
        far = ((a + 2) * (1 - x) - (a + 3)) * (1 - x) * (1 - x) + 1
        weights = np.stack([left, near, far, 1 - left - near - far], 1)
        places = np.clip(first[:, None] + np.arange(-1, 3), 0, length - 1)
        return places, np.rint(weights * 2048).astype(np.int64)

    (rows, down), (columns, across) = kernel(pixels.shape[0]), kernel(pixels.shape[1])
    wide = (pixels.astype(np.int64)[:, columns] * across[None, :, :, None]).sum(2)
    whole = (wide[rows] * down[:, :, None, None]).sum(1)
    resized: np.ndarray = np.clip((whole + (1 << 21)) >> 22, 0, 255).astype(np.uint8)
    return resized


def test_cubic_resizing_in_a_thread_is_opencvs_own_and_not_ipps() -> None:
    pixels, results = image(20, 20), []
    cubic = pb.ResizeParameter(interp_mode=[pb.ResizeParameter.CUBIC])

    def work() -> None:
        match_caffe_opencv()
        results.append(resize_to_shorter(pixels, 17, cubic, Random(0)))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    differing = (results[0] != fixed_point_cubic(pixels, 17)).mean()
    assert differing < 0.005  # with IPP it is 0.029


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("noise_param { prob: 1 }", "noise_param is not supported"),
        ("resize_param { height: 3 width: 3 }", "resize_param is not supported"),
        ("crop_h: 3", "crop_h is not supported"),
        ('mean_file: "m" mean_value: 1', "mean_file and mean_value"),
        ("force_color: true force_gray: true", "force_color and force_gray"),
        ("random_resize_param { min_size: 9 max_size: 3 }", "max_size is below min_size"),
        ("random_aspect_ratio_param { }", "needs crop_size"),
        ("crop_size: 3 random_aspect_ratio_param { aspect_ratio_change: 0 }", "aspect_ratio_change"),
        ("crop_size: 3 random_aspect_ratio_param { min_area_ratio: 2 }", "min_area_ratio"),
    ],
)
def test_unsupported_transformations_are_refused(text: str, part: str) -> None:
    with pytest.raises(InputError, match=part):
        transform(text)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("means", ["", "mean_value: 104.7 ", "each"])
def test_bytes_are_normalised_as_floats_are(channels: int, means: str) -> None:
    text = "".join(f"mean_value: {100.3 + c} " for c in range(channels)) if means == "each" else means
    made = np.random.default_rng(3).integers(0, 256, (2, 5, 7, channels), np.uint8)
    pixels = [made[0], made[1][:, ::-1]]  # the second one is mirrored
    found = transform(f"{text} scale: 0.017").normalise([*pixels])
    wanted = transform(f"{text} scale: 0.017").normalise([one.astype(np.float32) for one in pixels])
    assert np.array_equal(found, wanted)
