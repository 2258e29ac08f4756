"""TFRecord files: records one behind the other, each with its length and two checksums.

A record is `length` (8 bytes, little-endian), the masked CRC32C of those 8 bytes (4), the data, and the
masked CRC32C of the data (4). Source: TensorFlow's documentation of the format.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path

from caffe_recipes.errors import DataError

_HEAD, _CRC = struct.Struct("<QI"), struct.Struct("<I")
_MASK = 0xA282EAD8
_AGAIN = "make the records again"


class DamagedError(DataError):
    """A record, or a file's beginning, is not whole."""


def require_crc32c(where: str | Path) -> None:
    """Raise DataError unless google-crc32c is installed: Python alone would take hours for ImageNet."""
    if find_spec("google_crc32c") is None:
        hint = "install this project's extra 'data', as its README says"
        raise DataError(where, "TFRecords need google-crc32c", hint)


def masked_crc32c(data: bytes) -> int:
    """Return a CRC32C turned right by 15 bits, plus 0xa282ead8, in 32 bits.

    >>> hex(masked_crc32c(bytes(32)))  # whose CRC32C is 0x8a9136aa, by RFC 3720, B.4
    '0xfd7fffa'
    """
    import google_crc32c

    crc: int = google_crc32c.value(data)
    return ((crc >> 15 | crc << 17) + _MASK) & 0xFFFFFFFF


def frame_record(data: bytes) -> bytes:
    """Return a record as it stands in a file."""
    length = struct.pack("<Q", len(data))
    return b"".join((length, _CRC.pack(masked_crc32c(length)), data, _CRC.pack(masked_crc32c(data))))


def write_records(path: Path, records: Iterable[bytes]) -> int:
    """Write a new file of records, to the disk; return how many they are. Raises OSError."""
    count = 0
    with path.open("xb") as file:
        for record in records:
            file.write(frame_record(record))
            count += 1
        file.flush()
        os.fsync(file.fileno())
    return count


def read_records(path: Path) -> Iterator[bytes]:
    """Yield the records of a file, checksums compared; raises DataError, naming the record and its place."""
    try:
        with path.open("rb") as file:
            size, at, number = os.fstat(file.fileno()).st_size, 0, 0
            while head := file.read(_HEAD.size):
                where = f"record {number:,} at byte {at:,}"
                if len(head) < _HEAD.size:
                    raise DamagedError(path, f"{where} is cut short", _AGAIN)
                length, crc = _HEAD.unpack(head)
                if crc != masked_crc32c(head[:8]):
                    what = "is no TFRecord file" if not number else f"{where} is damaged: so is its length"
                    raise DamagedError(path, what, _AGAIN if number else "give files of TFRecords")
                at += _HEAD.size + length + _CRC.size
                if at > size:
                    raise DamagedError(path, f"{where} is cut short", _AGAIN)
                data, crc = file.read(length), file.read(_CRC.size)
                if _CRC.unpack(crc)[0] != masked_crc32c(data):
                    raise DamagedError(path, f"{where} is damaged", _AGAIN)
                number += 1
                yield data
    except OSError as error:
        raise DataError(path, f"cannot be read: {error.strerror}", "check the path") from None
