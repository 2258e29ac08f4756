"""What a JPEG's header says, without decoding it."""

from __future__ import annotations

# Frames of any kind: SOF0 to SOF15, but the tables DHT, JPG and DAC among their numbers.
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_ALONE = frozenset((0x01, *range(0xD0, 0xD9)))
_SCAN, _END = 0xDA, 0xD9


def jpeg_shape(data: bytes) -> tuple[int, int, int] | None:
    """Return a JPEG's (components, height, width); None if it is none, or is cut short before its frame.

    Source: ITU-T T.81, B.1 and B.2: markers of 0xff and a code, segments with their length, the frame header.

    >>> jpeg_shape(bytes.fromhex("ffd8 ffe00004abcd ffc0000b08 0007 0009 01 011100 ffd9"))
    (1, 7, 9)
    """
    if data[:2] != b"\xff\xd8":
        return None
    at = 2
    while at + 4 <= len(data) and data[at] == 0xFF:
        code = data[at + 1]
        if code == 0xFF:  # padding
            at += 1
        elif code in _ALONE:
            at += 2
        elif code in (_SCAN, _END):
            return None
        elif code in _FRAMES:
            frame = data[at + 5 : at + 10]
            if len(frame) < 5:
                return None
            height, width = int.from_bytes(frame[:2], "big"), int.from_bytes(frame[2:4], "big")
            return frame[4], height, width
        else:
            at += 2 + int.from_bytes(data[at + 2 : at + 4], "big")
    return None
