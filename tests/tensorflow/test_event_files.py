"""Event files, read back by our own reader of records; tests/tensorflow_programs has TensorBoard's."""

from __future__ import annotations

import math
from pathlib import Path

from caffe_recipes.tensorflow.event_files import Scalar, event_class, render_event_file
from caffe_recipes.tensorflow.records import read_records


def test_an_event_file_is_its_version_and_a_record_for_each_scalar(tmp_path: Path) -> None:
    path = tmp_path / "events"
    path.write_bytes(render_event_file([Scalar("loss", 7, 1.5, 0.0), Scalar("a\udc80b", 2**70, 0, 1e300)]))
    version, zero, huge = (event_class().FromString(record) for record in read_records(path))
    assert version.file_version == "brain.Event:2"
    (value,) = zero.summary.value
    assert (zero.wall_time, zero.step, value.tag, value.simple_value) == (1.5, 7, "loss", 0.0)
    assert value.WhichOneof("value") == "simple_value"
    assert (huge.step, huge.summary.value[0].tag) == (2**63 - 1, "a?b")
    assert math.isinf(huge.summary.value[0].simple_value)


def test_the_bytes_are_those_that_tensorflow_writes() -> None:
    # tf.train.Event(wall_time=1.5, step=7, summary={tag "loss", simple_value 2}), by the wire format.
    event = b"\x09\0\0\0\0\0\0\xf8\x3f\x10\x07\x2a\x0d\x0a\x0b\x0a\x04loss\x15\0\0\0\x40"
    assert event in render_event_file([Scalar("loss", 7, 1.5, 2.0)])
