"""tf.train.Example by messages of our own: what others write is read, and what we write is read by others."""

from __future__ import annotations

import pytest

from caffe_recipes.tensorflow.records import build_example, parse_example

FEATURES: dict[str, bytes | int] = {
    "image/width": 9,
    "image/encoded": b"\xff\xd8",
    "image/class/label": 2**40,
    "image/class/text": b"",
}


def test_built_examples_are_parsed_with_features_ordered_by_name() -> None:
    found = parse_example(build_example(FEATURES))
    assert list(found) == sorted(FEATURES)
    assert found == {name: (value,) for name, value in FEATURES.items()}


def test_the_bytes_do_not_depend_on_the_order_of_features() -> None:
    assert build_example(FEATURES) == build_example(dict(reversed(FEATURES.items())))


def test_another_s_messages_read_ours_and_ours_theirs() -> None:
    pb = pytest.importorskip("tfrecord.example_pb2")
    example = pb.Example.FromString(build_example(FEATURES))
    assert example.features.feature["image/width"].int64_list.value == [9]
    assert example.features.feature["image/encoded"].bytes_list.value == [b"\xff\xd8"]
    example.features.feature["floats"].float_list.value.extend([0.5, 2])
    example.features.feature["nothing"].SetInParent()
    found = parse_example(example.SerializeToString())
    assert found == {
        **{name: (value,) for name, value in FEATURES.items()},
        "floats": (0.5, 2.0),
        "nothing": (),
    }


def test_invalid_examples_are_refused() -> None:
    with pytest.raises(ValueError, match=r"is not a tf\.train\.Example"):
        parse_example(b"\xff\xff\xff")
