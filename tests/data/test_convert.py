from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest

from caffe_recipes.data.convert import can_encode, convert_image, load_pixels
from caffe_recipes.data.images import ConversionSettings
from tests.data.conftest import encode, noise

Image = pytest.importorskip("PIL.Image", reason="Pillow, of the extra 'plot', is not installed")

RAW, PNG = ConversionSettings(is_encoded=False), ConversionSettings(8, 8, encode_type="png")


def by_pillow(mode: str, kind: str, orientation: int = 1) -> bytes:
    """Write an image that OpenCV cannot: CMYK, or turned by its EXIF."""
    picture = Image.fromarray(noise(20, 40)).convert(mode)
    exif = picture.getexif()
    exif[0x0112] = orientation
    file = io.BytesIO()
    picture.save(file, kind, exif=exif)
    return file.getvalue()


def test_an_image_that_its_type_cannot_hold_is_refused_rather_than_left_empty() -> None:
    with pytest.raises(ValueError, match="is 30 x 90000 pixels and cannot be encoded as jpg"):
        convert_image(encode(".png", 1, 3000), "a.jpg", 0, ConversionSettings(shorter_side_px=30))


def test_an_image_too_large_for_a_datum_is_refused_before_it_is_created(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    long = encode(".png", 8, 3000)
    with pytest.raises(ValueError, match=r"15000 x 5625000 pixels are more than can be decoded"):
        convert_image(long, "a.png", 0, ConversionSettings(shorter_side_px=15_000))
    with pytest.raises(ValueError, match=r"8000 x 3000000 pixels are 72\.0 GB raw"):
        convert_image(long, "a.png", 0, ConversionSettings(shorter_side_px=8000, is_encoded=False))
    monkeypatch.setattr("caffe_recipes.data.convert._MAX_BYTES", 8 * 3000 * 3 - 1)
    with pytest.raises(ValueError, match=r"8 x 3000 pixels are 0\.0 GB raw"):
        convert_image(long, "a.png", 0, ConversionSettings(is_encoded=False))
    monkeypatch.setattr("caffe_recipes.data.convert._MAX_BYTES", len(long) - 1)
    with pytest.raises(ValueError, match=r"is 0\.0 GB, more than a Datum can hold"):
        convert_image(long, "a.png", 0, ConversionSettings())


@pytest.mark.parametrize(
    ("data", "size"),
    [
        (by_pillow("L", "JPEG"), (3, 20, 40)),
        (by_pillow("CMYK", "JPEG"), (3, 20, 40)),
        (by_pillow("RGB", "JPEG", 6), (3, 40, 20)),
        (by_pillow("RGBA", "PNG"), (3, 20, 40)),
        (by_pillow("P", "PNG"), (3, 20, 40)),
        (bytes(cv2.imencode(".png", noise(4, 6).astype(np.uint16) * 256)[1]), (3, 4, 6)),
        (encode(".jpg", 1, 1), (3, 1, 1)),
        (encode(".png", 1, 1), (3, 1, 1)),
        (encode(".bmp"), (3, 30, 40)),
    ],
    ids=["grey", "cmyk", "turned", "alpha", "palette", "16 bits", "1x1 jpg", "1x1 png", "bmp"],
)
def test_any_image_becomes_three_channels_of_bytes_as_it_is_seen(
    data: bytes, size: tuple[int, int, int]
) -> None:
    datum, shape, _ = convert_image(data, "x.jpg", 5, RAW)
    assert (datum.channels, datum.height, datum.width, datum.label) == (*size, 5)
    assert len(datum.data) == np.prod(size)
    assert (datum.HasField("encoded"), datum.encoded, shape) == (True, False, (*size[1:], 3))
    assert convert_image(data, "x.jpg", 5, PNG)[1] == (8, 8, 3)


@pytest.mark.parametrize("mode", ["L", "CMYK", "RGB"])
def test_an_image_that_needs_no_change_is_kept_byte_by_byte(mode: str) -> None:
    data = by_pillow(mode, "JPEG", 6)
    for name, settings in (
        ("x.jpeg", ConversionSettings()),
        ("x.JPG", ConversionSettings()),
        ("x.jpeg", ConversionSettings(encode_type="jpg")),
        ("x.png", ConversionSettings()),  # a wrong suffix is not looked into
        ("x.jpg", ConversionSettings(check_size=True)),
    ):
        datum, _, _ = convert_image(data, name, 2, settings)
        assert (datum.data, datum.label, datum.encoded) == (data, 2, True)
        assert not datum.HasField("channels")


def test_an_image_of_another_type_than_requested_is_re_encoded() -> None:
    datum, _, _ = convert_image(encode(".png"), "x.png", 0, ConversionSettings(encode_type="jpg"))
    assert datum.data[:2] == b"\xff\xd8"
    datum, _, _ = convert_image(encode(".jpg"), "x.jpg", 0, ConversionSettings(encode_type="png"))
    assert datum.data[:4] == b"\x89PNG"


def test_grey_is_one_channel_and_a_coloured_file_is_not_kept_for_it() -> None:
    grey = ConversionSettings(is_gray=True)
    own = by_pillow("L", "JPEG")
    assert convert_image(own, "x.jpg", 0, grey)[0].data == own
    datum, shape, _ = convert_image(encode(".jpg"), "x.jpg", 0, grey)
    assert shape == (30, 40)
    pixels = cv2.imdecode(np.frombuffer(datum.data, np.uint8), cv2.IMREAD_UNCHANGED)
    assert pixels is not None
    assert pixels.shape == (30, 40)
    datum, _, _ = convert_image(
        encode(".jpg"), "x.jpg", 0, ConversionSettings(is_gray=True, is_encoded=False)
    )
    assert (datum.channels, datum.height, datum.width) == (1, 30, 40)


@pytest.mark.parametrize(
    "settings",
    [ConversionSettings(), RAW, PNG, ConversionSettings(is_gray=True), ConversionSettings(check_size=True)],
)
@pytest.mark.parametrize("suffix", [".jpg", ".png"])
def test_undecodable_and_truncated_images_are_refused(settings: ConversionSettings, suffix: str) -> None:
    whole = encode(suffix, 60, 80)
    for data in (whole[: len(whole) // 2], whole[:-20], whole[:10], b"<html>", b"\0" * 100):
        with pytest.raises(ValueError, match="is not an image that OpenCV can decode, or is truncated"):
            convert_image(data, f"x{suffix}", 0, settings)
    with pytest.raises(ValueError, match="is empty"):
        convert_image(b"", f"x{suffix}", 0, settings)


@pytest.mark.parametrize("settings", [ConversionSettings(), RAW, PNG])
def test_a_gif_is_refused_because_no_trainer_reads_it(settings: ConversionSettings) -> None:
    with pytest.raises(ValueError, match="is a GIF, which Caffe's OpenCV cannot read"):
        convert_image(by_pillow("P", "GIF"), "x.gif", 0, settings)


def test_an_image_is_turned_by_its_exif_where_it_is_decoded_and_not_where_it_is_kept() -> None:
    turned = by_pillow("RGB", "JPEG", 6)
    upright, _, _ = convert_image(
        turned, "x.jpg", 0, ConversionSettings(shorter_side_px=20, encode_type="png")
    )
    assert load_pixels(upright).shape == (40, 20, 3)
    kept, _, _ = convert_image(turned, "x.jpg", 0, ConversionSettings())
    assert load_pixels(kept).shape == (20, 40, 3)


def test_a_strip_keeps_at_least_what_opencv_can_resize() -> None:
    wide, _, _ = convert_image(
        encode(".png", 1, 900), "x.png", 0, ConversionSettings(shorter_side_px=2, is_encoded=False)
    )
    assert (wide.height, wide.width) == (2, 1800)


def test_images_one_after_the_other_are_converted_in_the_same_memory(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(encode(".jpg", 375, 500))
    call = (
        "import pathlib, resource, sys\n"
        "from caffe_recipes.data.convert import convert_image, keep_freed_memory\n"
        "from caffe_recipes.data.images import ConversionSettings\n"
        "data = pathlib.Path(sys.argv[1]).read_bytes()\n"
        "keep_freed_memory()\n"
        "for index in range(20):\n"
        "    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt\n"
        "    convert_image(data, 'a.jpg', 0, ConversionSettings(256, 256))\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)\n"
    )
    # In a separate process, because memory freed by this one matters. An image's pixels have 138 pages.
    argv = [sys.executable, "-c", call, str(tmp_path / "a.jpg")]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert int(done.stdout) < 20


DEEP = bytes(cv2.imencode(".png", noise(4, 6).astype(np.uint16) * 256)[1])
FLOATS = bytes(cv2.imencode(".tiff", noise(4, 6).astype(np.float32))[1])


def test_an_image_of_more_than_bytes_is_never_kept() -> None:
    with pytest.raises(
        ValueError, match=r"has 16 bits per channel, but Caffe reads only 8 \(--encode-type converts"
    ):
        convert_image(DEEP, "x.png", 0, ConversionSettings())
    with pytest.raises(ValueError, match=r"has 32 bits per channel, but Caffe reads only 8$"):
        convert_image(FLOATS, "x.tiff", 0, ConversionSettings())
    made, shape, _ = convert_image(DEEP, "x.png", 0, ConversionSettings(encode_type="png"))
    assert load_pixels(made).shape == shape == (4, 6, 3)
    made, _, _ = convert_image(DEEP, "x.png", 0, ConversionSettings(is_gray=True))
    assert load_pixels(made).shape == (4, 6, 1)


@pytest.mark.parametrize(
    ("suffix", "in_colour", "in_grey"),
    [
        ("jpg", True, True),
        ("jpeg", True, True),
        ("png", True, True),
        ("webp", True, False),
        ("pgm", False, True),
        ("txt", False, False),
        ("exr", False, False),
        ("", False, False),
    ],
)
def test_grey_images_are_written_only_in_formats_that_keep_them_grey(
    suffix: str, in_colour: bool, in_grey: bool
) -> None:
    assert (can_encode(suffix, is_gray=False), can_encode(suffix, is_gray=True)) == (in_colour, in_grey)
