"""The values of a blob as bytes: value by value, those of ResNet-50 would take ten seconds."""

from __future__ import annotations

from collections.abc import Sequence

from caffe_recipes.caffe import pb

_DATA_TAG = bytes([pb.BlobProto.DATA_FIELD_NUMBER << 3 | 2])  # of a packed field: length and values follow


def fill_blob(blob: pb.BlobProto, shape: Sequence[int], values: bytes) -> None:
    """Fill a blob with little-endian float32, in wire format."""
    blob.shape.dim.extend(shape)
    blob.MergeFromString(_DATA_TAG + _varint(len(values)) + values)


def _varint(number: int) -> bytes:
    """Return a number in protobuf's varint encoding: seven bits per byte, the lowest first.

    >>> _varint(300).hex()
    'ac02'
    """
    low = []
    while number > 0x7F:
        low.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*low, number])


def packed_data(blob: pb.BlobProto) -> bytes:
    """Return the bytes of `data`, as little-endian float32, without creating a Python float per value."""
    bare = pb.BlobProto()
    bare.data.MergeFrom(blob.data)
    message = bare.SerializeToString()  # a tag and a length, then the values
    return message[len(message) - 4 * len(blob.data) :]
