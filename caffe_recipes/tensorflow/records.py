"""Read and write TFRecord files and `tf.train.Example` messages without TensorFlow.

The messages have their own descriptor pool, so that they do not clash with TensorFlow's in the default pool.
A TFRecord file is a sequence of records. A record is the length of the data (8 bytes, little-endian), the
masked CRC32C of these 8 bytes (4 bytes), the data, and the masked CRC32C of the data (4 bytes). Source:
TensorFlow's documentation of the format.
"""

from __future__ import annotations

import os
import random
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from caffe_recipes.errors import DataError
from caffe_recipes.files.bounded_reads import reading
from caffe_recipes.limits import hint_at_limit, limit

_Field = descriptor_pb2.FieldDescriptorProto
_LISTS = {"bytes_list": "BytesList", "float_list": "FloatList", "int64_list": "Int64List"}
_VALUES = {"BytesList": _Field.TYPE_BYTES, "FloatList": _Field.TYPE_FLOAT, "Int64List": _Field.TYPE_INT64}

T = TypeVar("T")
Values = tuple[bytes, ...] | tuple[float, ...] | tuple[int, ...]


def build_example(features: Mapping[str, bytes | int]) -> bytes:
    """Return a serialized Example with one value per feature; the bytes are the same on every machine.

    >>> parse_example(build_example({"image/height": 7, "image/format": b"JPEG"}))
    {'image/format': (b'JPEG',), 'image/height': (7,)}
    """
    example = example_class()()
    feature = example.features.feature
    for name, value in features.items():
        if isinstance(value, bytes):
            feature[name].bytes_list.value.append(value)
        else:
            feature[name].int64_list.value.append(value)
    serialized: bytes = example.SerializeToString(deterministic=True)
    return serialized


def parse_example(data: bytes) -> dict[str, Values]:
    """Return the values of each feature of a serialized Example, sorted by name. Raises ValueError."""
    try:
        features = example_class().FromString(data).features.feature
    except DecodeError:
        raise ValueError("is not a tf.train.Example") from None
    found = {}
    for name in sorted(features):
        kind = features[name].WhichOneof("kind")
        found[name] = tuple(getattr(features[name], kind).value) if kind else ()
    return found


@cache
def example_class() -> Any:  # noqa: ANN401 - made at run time
    """Return the class of the messages."""
    pool = descriptor_pool.DescriptorPool()
    pool.Add(_describe())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("tensorflow.Example"))


def _describe() -> descriptor_pb2.FileDescriptorProto:
    """Return the schema of tf.train.Example, with the field numbers from TensorFlow's proto files."""
    file = descriptor_pb2.FileDescriptorProto(name="example.proto", package="tensorflow", syntax="proto3")
    for name, kind in _VALUES.items():
        add_field(file.message_type.add(name=name), "value", 1, kind, repeated=True)
    feature = file.message_type.add(name="Feature")
    feature.oneof_decl.add(name="kind")
    for number, (name, values) in enumerate(_LISTS.items(), 1):
        add_field(feature, name, number, _Field.TYPE_MESSAGE, f".tensorflow.{values}").oneof_index = 0
    features = file.message_type.add(name="Features")
    entry = features.nested_type.add(name="FeatureEntry")
    entry.options.map_entry = True
    add_field(entry, "key", 1, _Field.TYPE_STRING)
    add_field(entry, "value", 2, _Field.TYPE_MESSAGE, ".tensorflow.Feature")
    of_map = ".tensorflow.Features.FeatureEntry"
    add_field(features, "feature", 1, _Field.TYPE_MESSAGE, of_map, repeated=True)
    example = file.message_type.add(name="Example")
    add_field(example, "features", 1, _Field.TYPE_MESSAGE, ".tensorflow.Features")
    return file


def add_field(
    message: descriptor_pb2.DescriptorProto,
    name: str,
    number: int,
    kind: descriptor_pb2.FieldDescriptorProto.Type.ValueType,
    type_name: str | None = None,
    *,
    repeated: bool = False,
) -> descriptor_pb2.FieldDescriptorProto:
    """Add a field to the description of a message and return it."""
    label = _Field.LABEL_REPEATED if repeated else _Field.LABEL_OPTIONAL
    return message.field.add(name=name, number=number, type=kind, label=label, type_name=type_name)


_HEAD, _CRC = struct.Struct("<QI"), struct.Struct("<I")
_MASK = 0xA282EAD8
_REBUILD = "create the records again"


class DamagedError(DataError):
    """Raised if a record, or the start of a file, is damaged."""


def require_crc32c(where: str | Path) -> None:
    """Raise DataError unless google-crc32c is installed; pure Python would take hours for ImageNet."""
    if find_spec("google_crc32c") is None:
        hint = "install the extra 'data' of caffe-recipes (see its README)"
        raise DataError(where, "TFRecords need google-crc32c, which is not installed", hint)


def deal_files(files: Sequence[T], groups: int, group: int, seed: int) -> list[T]:
    """Return the files that one of several nodes reads, in their order; the seed of the set assigns them.

    record_files.py of the training program assigns them in the same way, so that the ranks find the staged
    files.

    >>> [deal_files(range(7), 3, node, seed=1) for node in range(3)]
    [[2, 3, 5], [0, 4], [1, 6]]
    """
    order = random.Random(f"files {seed}")
    dealt = sorted(range(len(files)), key=lambda index: order.random())
    return [files[index] for index in sorted(dealt[group::groups])]


def masked_crc32c(data: bytes) -> int:
    """Return the CRC32C of `data`, rotated right by 15 bits, plus 0xa282ead8, in 32 bits.

    >>> hex(masked_crc32c(bytes(32)))  # whose CRC32C is 0x8a9136aa, by RFC 3720, B.4
    '0xfd7fffa'
    """
    import google_crc32c

    crc: int = google_crc32c.value(data)
    return ((crc >> 15 | crc << 17) + _MASK) & 0xFFFFFFFF


def frame_record(data: bytes) -> bytes:
    """Return the bytes of a record in a file."""
    length = struct.pack("<Q", len(data))
    return b"".join((length, _CRC.pack(masked_crc32c(length)), data, _CRC.pack(masked_crc32c(data))))


def write_records(path: Path, records: Iterable[bytes]) -> int:
    """Write records to a new file and sync it to disk; return their number. Raises OSError."""
    count = 0
    with path.open("xb") as file:
        for record in records:
            file.write(frame_record(record))
            count += 1
        file.flush()
        os.fsync(file.fileno())
    return count


def read_records(path: Path) -> Iterator[bytes]:
    """Yield the records of a file, and verify their checksums. Raises DataError with the record's offset."""
    with reading(path, DataError, "check the path"), path.open("rb") as file:
        size, at, number = os.fstat(file.fileno()).st_size, 0, 0
        while head := file.read(_HEAD.size):
            where = f"record {number:,} at byte {at:,}"
            if len(head) < _HEAD.size:
                raise DamagedError(path, f"{where} is truncated", _REBUILD)
            length, crc = _HEAD.unpack(head)
            if crc != masked_crc32c(head[:8]):
                what = "is not a TFRecord file" if not number else f"{where} is damaged: its length is wrong"
                raise DamagedError(path, what, _REBUILD if number else "give TFRecord files")
            if length > limit("record-bytes"):
                raise DataError(path, f"{where} has {length:,} bytes", hint_at_limit("record-bytes"))
            at += _HEAD.size + length + _CRC.size
            if at > size:
                raise DamagedError(path, f"{where} is truncated", _REBUILD)
            data, crc = file.read(length), file.read(_CRC.size)
            if _CRC.unpack(crc)[0] != masked_crc32c(data):
                raise DamagedError(path, f"{where} is damaged", _REBUILD)
            number += 1
            yield data
