"""TFRecord files, byte by byte, and errors about damaged ones."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from caffe_recipes.errors import DataError
from caffe_recipes.tensorflow.records import (
    build_example,
    frame_record,
    masked_crc32c,
    parse_example,
    read_records,
    write_records,
)

RECORDS = [b"", b"123456789", bytes(range(256)) * 300]


def mask(crc: int) -> int:
    return (((crc >> 15) | (crc << 17 & 0xFFFFFFFF)) + 0xA282EAD8) % 2**32


def test_a_record_is_its_length_and_data_each_behind_a_checksum() -> None:
    # CRC32C of "123456789" is 0xe3069283: the check value by which that sum is known.
    crc32c = pytest.importorskip("crc32c").crc32c
    length = struct.pack("<Q", 9)
    crcs = [struct.pack("<I", mask(crc)) for crc in (crc32c(length), 0xE3069283)]
    assert frame_record(b"123456789") == length + crcs[0] + b"123456789" + crcs[1]


def test_an_independent_checksum_is_the_same() -> None:
    crc32c = pytest.importorskip("crc32c").crc32c
    for data in RECORDS:
        assert masked_crc32c(data) == mask(crc32c(data))


def test_written_records_are_read_back(tmp_path: Path) -> None:
    assert write_records(tmp_path / "file", RECORDS) == 3
    assert list(read_records(tmp_path / "file")) == RECORDS


def test_an_independent_reader_reads_what_was_written(tmp_path: Path) -> None:
    reader = pytest.importorskip("tfrecord.reader")
    write_records(tmp_path / "file", RECORDS)
    assert [bytes(data) for data in reader.tfrecord_iterator(str(tmp_path / "file"))] == RECORDS


def test_a_file_without_records_is_read_as_such(tmp_path: Path) -> None:
    write_records(tmp_path / "file", [])
    assert list(read_records(tmp_path / "file")) == []


@pytest.mark.parametrize("size", range(1, 26))
def test_a_truncated_file_is_reported_as_truncated(tmp_path: Path, size: int) -> None:
    path = tmp_path / "file"
    write_records(path, [b"first", b"123456789"])
    whole = path.read_bytes()
    path.write_bytes(whole[: -size % 25 or -25])
    first = 21
    if len(path.read_bytes()) == first:
        assert list(read_records(path)) == [b"first"]
        return
    with pytest.raises(DataError, match=r"file: record [01] at byte (0|21) is truncated; create the records"):
        list(read_records(path))


@pytest.mark.parametrize(
    ("at", "message"),
    [
        (0, "is not a TFRecord file; give TFRecord files"),
        (14, "record 0 at byte 0 is damaged; create the records again"),
        (20, "record 0 at byte 0 is damaged; create"),
        (22, "record 1 at byte 21 is damaged: its length is wrong; create"),
        (40, "record 1 at byte 21 is damaged; create"),
    ],
)
def test_a_changed_byte_is_detected(tmp_path: Path, at: int, message: str) -> None:
    path = tmp_path / "file"
    write_records(path, [b"first", b"123456789"])
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)
    with pytest.raises(DataError, match=message):
        list(read_records(path))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="nowhere: cannot be read: No such file"):
        list(read_records(tmp_path / "nowhere"))


# tf.train.Example by messages of our own: what others write is read, and what we write is read by others.


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
