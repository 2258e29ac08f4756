"""Read the size and channels of an encoded image from its header, as OpenCV would decode it for Caffe.

Caffe infers the shape of its batches from the first record, which it decodes without changing its channels
(BVLC Caffe, DataTransformer::InferBlobShape and DecodeDatumToCVMatNative).
"""

from __future__ import annotations

import re

from caffe_recipes.limits import limit

ImageShape = tuple[int, int, int]

_PNG = b"\x89PNG\r\n\x1a\n"
# By PNG's color type. OpenCV expands a palette to BGR, and grey with alpha to BGRA.
_PNG_CHANNELS = {0: 1, 2: 3, 3: 3, 4: 4, 6: 4}
_PNM = re.compile(rb"P([56])((?:\s+|#[^\n]*\n)+)(\d{1,9})\s+(?:#[^\n]*\n\s*)*(\d{1,9})\s")


def image_shape(data: bytes) -> ImageShape | None:
    """Return an encoded image's (channels, height, width); None for a format or header that is not known.

    >>> image_shape(b"P5 9 7 255 "), image_shape(b"GIF89a")
    ((1, 7, 9), None)
    """
    jpeg = jpeg_shape(data)
    if jpeg and jpeg[0] == 4:  # CMYK, which OpenCV converts to BGR
        jpeg = (3, *jpeg[1:])
    found = jpeg or _png_shape(data) or _bmp_shape(data) or _pnm_shape(data)
    return found if found and min(found) > 0 else None


def _png_shape(data: bytes) -> ImageShape | None:
    """Source: PNG specification, 11.2.1 IHDR; a tRNS chunk before the pixels adds alpha."""
    if data[:8] != _PNG or data[12:16] != b"IHDR" or len(data) < 26:
        return None
    width, height = int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big")
    channels = _PNG_CHANNELS.get(data[25], 0)
    if channels == 3 and b"tRNS" in data[33 : max(33, data.find(b"IDAT"))]:
        channels = 4
    return channels, height, width


def _bmp_shape(data: bytes) -> ImageShape | None:
    """Source: BITMAPINFOHEADER; without a palette, which may be of greys or of colors."""
    if data[:2] != b"BM" or len(data) < 30 or int.from_bytes(data[14:18], "little") < 40:
        return None
    width, height = (int.from_bytes(data[at : at + 4], "little", signed=True) for at in (18, 22))
    channels = {24: 3, 32: 4}.get(int.from_bytes(data[28:30], "little"), 0)
    return channels, abs(height), width


def _pnm_shape(data: bytes) -> ImageShape | None:
    header = _PNM.match(data)
    return (1 if header[1] == b"5" else 3, int(header[4]), int(header[3])) if header else None


# The start-of-frame markers SOF0 to SOF15, without DHT, JPG and DAC, whose codes are in the same range.
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_STANDALONE = frozenset((0x01, *range(0xD0, 0xD9)))
_SCAN, _END = 0xDA, 0xD9


def jpeg_shape(data: bytes) -> ImageShape | None:
    """Return a JPEG's (components, height, width); None if it is not a JPEG or ends before its frame header.

    Source: ITU-T T.81, B.1 and B.2: markers (0xff and a code), segments with their length, the frame header.

    >>> jpeg_shape(bytes.fromhex("ffd8 ffe00004abcd ffc0000b08 0007 0009 01 011100 ffd9"))
    (1, 7, 9)
    """
    found = _jpeg_frame(data)
    return found[1:] if found else None


_MANY_SCANS = 20  # progressive encoders write about ten


def describe_scans(data: bytes) -> str:
    """Return why decoding a JPEG would take too long, or "": each scan goes through all pixels again.

    Source: ITU-T T.81, B.2.3: a scan begins with the marker 0xffda, which entropy-coded data cannot contain.
    """
    found = _jpeg_frame(data)
    if found is None:
        return ""
    at, _, height, width = found
    scans, most = data.count(b"\xff\xda", at), limit("image-pixels")
    if scans * height * width <= (most if scans > _MANY_SCANS else 10 * most):
        return ""
    return f"has {scans:,} scans of {height} x {width} pixels, more than can be decoded"


def _jpeg_frame(data: bytes) -> tuple[int, int, int, int] | None:
    """Return the offset of a JPEG's frame header, and its components, height and width."""
    if data[:2] != b"\xff\xd8":
        return None
    at = 2
    while at + 4 <= len(data) and data[at] == 0xFF:
        code = data[at + 1]
        if code == 0xFF:  # padding
            at += 1
        elif code in _STANDALONE:
            at += 2
        elif code in (_SCAN, _END):
            return None
        elif code in _FRAMES:
            frame = data[at + 5 : at + 10]
            if len(frame) < 5:
                return None
            height, width = int.from_bytes(frame[:2], "big"), int.from_bytes(frame[2:4], "big")
            return at, frame[4], height, width
        else:
            at += 2 + int.from_bytes(data[at + 2 : at + 4], "big")
    return None
