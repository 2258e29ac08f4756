"""Write the event files that TensorBoard reads: scalars by iteration, as TFRecords of `tensorflow.Event`.

The field numbers are from TensorFlow's event.proto and summary.proto.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any, NamedTuple

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from caffe_recipes.tensorflow.records import add_field, frame_record

EVENT_FILE = "events.out.tfevents.0.caffe-recipes"  # TensorBoard reads files with `tfevents` in their name
_VERSION = "brain.Event:2"
_LAST_STEP = 2**63 - 1
_Field = descriptor_pb2.FieldDescriptorProto


class Scalar(NamedTuple):
    """A value at an iteration; `seconds` are since any fixed time."""

    tag: str
    iteration: int
    seconds: float
    value: float


def render_event_file(scalars: Iterable[Scalar]) -> bytes:
    """Return an event file of scalars, which needs google-crc32c; the same scalars give the same bytes."""
    event = event_class()
    records = [event(file_version=_VERSION)]
    for tag, iteration, seconds, value in scalars:
        record = event(wall_time=seconds, step=min(iteration, _LAST_STEP))
        record.summary.value.add(tag=tag.encode(errors="replace"), simple_value=value)
        records.append(record)
    return b"".join(frame_record(record.SerializeToString(deterministic=True)) for record in records)


@cache
def event_class() -> Any:  # noqa: ANN401 - made at run time
    """Return the class of the messages, from a descriptor pool of its own."""
    file = descriptor_pb2.FileDescriptorProto(name="event.proto", package="tensorflow", syntax="proto3")
    summary = file.message_type.add(name="Summary")
    value = summary.nested_type.add(name="Value")
    add_field(value, "tag", 1, _Field.TYPE_STRING)
    add_field(value, "simple_value", 2, _Field.TYPE_FLOAT)
    # In a oneof, a value of 0 is written too.
    value.oneof_decl.add(name="value")
    value.field[1].oneof_index = 0
    add_field(summary, "value", 1, _Field.TYPE_MESSAGE, ".tensorflow.Summary.Value", repeated=True)
    event = file.message_type.add(name="Event")
    add_field(event, "wall_time", 1, _Field.TYPE_DOUBLE)
    add_field(event, "step", 2, _Field.TYPE_INT64)
    add_field(event, "file_version", 3, _Field.TYPE_STRING)
    add_field(event, "summary", 5, _Field.TYPE_MESSAGE, ".tensorflow.Summary")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("tensorflow.Event"))
