"""`tf.train.Example` without TensorFlow: its messages in a descriptor pool of their own.

So nothing clashes with a TensorFlow that registers the same names in the default pool.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

_Field = descriptor_pb2.FieldDescriptorProto
_LISTS = {"bytes_list": "BytesList", "float_list": "FloatList", "int64_list": "Int64List"}
_VALUES = {"BytesList": _Field.TYPE_BYTES, "FloatList": _Field.TYPE_FLOAT, "Int64List": _Field.TYPE_INT64}

Values = tuple[bytes, ...] | tuple[float, ...] | tuple[int, ...]


def build_example(features: Mapping[str, bytes | int]) -> bytes:
    """Return a serialized Example of one value a feature, the same bytes on every machine.

    >>> parse_example(build_example({"image/height": 7, "image/format": b"JPEG"}))
    {'image/format': (b'JPEG',), 'image/height': (7,)}
    """
    example = _example_class()()
    feature = example.features.feature
    for name, value in features.items():
        if isinstance(value, bytes):
            feature[name].bytes_list.value.append(value)
        else:
            feature[name].int64_list.value.append(value)
    serialized: bytes = example.SerializeToString(deterministic=True)
    return serialized


def parse_example(data: bytes) -> dict[str, Values]:
    """Return the values of each feature of an Example, by name in order; ValueError if it is none."""
    try:
        features = _example_class().FromString(data).features.feature
    except DecodeError:
        raise ValueError("is no tf.train.Example") from None
    found = {}
    for name in sorted(features):
        kind = features[name].WhichOneof("kind")
        found[name] = tuple(getattr(features[name], kind).value) if kind else ()
    return found


@cache
def _example_class() -> Any:  # noqa: ANN401 - made at run time
    pool = descriptor_pool.DescriptorPool()
    pool.Add(_describe())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("tensorflow.Example"))


def _describe() -> descriptor_pb2.FileDescriptorProto:
    """Describe Example and all in it, with the numbers of TensorFlow's example.proto and feature.proto."""
    file = descriptor_pb2.FileDescriptorProto(name="example.proto", package="tensorflow", syntax="proto3")
    for name, kind in _VALUES.items():
        _add_field(file.message_type.add(name=name), "value", 1, kind, repeated=True)
    feature = file.message_type.add(name="Feature")
    feature.oneof_decl.add(name="kind")
    for number, (name, values) in enumerate(_LISTS.items(), 1):
        _add_field(feature, name, number, _Field.TYPE_MESSAGE, f".tensorflow.{values}").oneof_index = 0
    features = file.message_type.add(name="Features")
    entry = features.nested_type.add(name="FeatureEntry")
    entry.options.map_entry = True
    _add_field(entry, "key", 1, _Field.TYPE_STRING)
    _add_field(entry, "value", 2, _Field.TYPE_MESSAGE, ".tensorflow.Feature")
    of_map = ".tensorflow.Features.FeatureEntry"
    _add_field(features, "feature", 1, _Field.TYPE_MESSAGE, of_map, repeated=True)
    example = file.message_type.add(name="Example")
    _add_field(example, "features", 1, _Field.TYPE_MESSAGE, ".tensorflow.Features")
    return file


def _add_field(
    message: descriptor_pb2.DescriptorProto,
    name: str,
    number: int,
    kind: descriptor_pb2.FieldDescriptorProto.Type.ValueType,
    type_name: str | None = None,
    *,
    repeated: bool = False,
) -> descriptor_pb2.FieldDescriptorProto:
    label = _Field.LABEL_REPEATED if repeated else _Field.LABEL_OPTIONAL
    return message.field.add(name=name, number=number, type=kind, label=label, type_name=type_name)
