import os
import pickle
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import get_context
from multiprocessing.context import ForkContext, SpawnContext
from multiprocessing.queues import SimpleQueue
from pathlib import Path

import lmdb
import pytest

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.datums import Datums, check_datums, datum_shape, open_datums, write_datums
from caffe_recipes.errors import DataError

REFERENCE = Path(__file__).parents[3] / "shared" / "reference"
needs_reference = pytest.mark.skipif(not REFERENCE.is_dir(), reason="../shared/reference is not here")


def raw(label: int, size: int = 4) -> pb.Datum:
    return pb.Datum(channels=1, height=size, width=size, label=label, data=bytes([label % 256]) * size * size)


def encoded(label: int, data: bytes = b"\x89PNG") -> pb.Datum:
    return pb.Datum(label=label, data=data, encoded=True)


def build(path: Path, datums: list[pb.Datum]) -> Path:
    write_datums(path, ((f"image_{i}", datum) for i, datum in enumerate(datums)))
    return path


def build_raw(path: Path, records: dict[bytes, bytes]) -> Path:
    """Write an LMDB with arbitrary records."""
    with (
        lmdb.open(str(path), lock=False, map_size=1 << 24) as environment,
        environment.begin(write=True) as transaction,
    ):
        for key, value in records.items():
            transaction.put(key, value)
    return path


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_several_threads_may_open_one_lmdb(tmp_path: Path) -> None:
    path, interval_s = build(tmp_path / "lmdb", [raw(7)]), sys.getswitchinterval()

    def read_first(_: int) -> int:
        with open_datums(path) as datums:
            return datums[0].label

    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as pool:
            assert set(pool.map(read_first, range(400))) == {7}
    finally:
        sys.setswitchinterval(interval_s)


def test_records_come_back_in_key_order_with_convert_imagesets_keys(tmp_path: Path) -> None:
    datums = [raw(label) for label in range(12)]
    with open_datums(build(tmp_path / "lmdb", datums)) as read:
        assert len(read) == 12
        assert read.keys[10] == b"00000010_image_10"
        assert [read[i] for i in range(12)] == datums
        assert read[-1] == datums[-1]
        assert list(read) == list(zip(read.keys, datums, strict=True))


def test_an_index_beyond_the_end_is_an_index_error(tmp_path: Path) -> None:
    with open_datums(build(tmp_path / "lmdb", [raw(0)])) as read, pytest.raises(IndexError):
        read[1]


def test_no_lock_file_is_opened_that_a_link_leads_elsewhere(tmp_path: Path) -> None:
    lmdb_folder = build(tmp_path / "lmdb", [raw(0)])
    kept = tmp_path / "kept"
    kept.write_bytes(b"mine")
    (lmdb_folder / "lock.mdb").unlink(missing_ok=True)
    (lmdb_folder / "lock.mdb").symlink_to(kept)
    with open_datums(lmdb_folder) as datums:
        assert len(list(datums)) == 1
    assert kept.read_bytes() == b"mine"


def test_opening_and_reading_write_nothing_beside_the_data(tmp_path: Path) -> None:
    path = build(tmp_path / "lmdb", [raw(0), raw(1)])
    before = (path / "data.mdb").read_bytes()
    with open_datums(path) as read:
        assert read[1].label == 1
    assert names(path) == ["data.mdb"]
    assert (path / "data.mdb").read_bytes() == before


@needs_reference
@pytest.mark.parametrize(
    ("name", "count", "is_encoded", "shape"),
    [("p1_lenet/train", 512, 0, (1, 28, 28)), ("p2_miniresnet/train", 256, 256, (3, 32, 32))],
)
def test_caffes_own_lmdbs_are_read(name: str, count: int, is_encoded: int, shape: tuple[int, ...]) -> None:
    summary = check_datums(REFERENCE / "parity" / f"{name}_lmdb", classes=10)
    assert (summary.count, summary.checked, summary.encoded) == (count, count, is_encoded)
    assert summary.shapes == {shape: count}
    assert set(summary.labels) <= set(range(10))


def test_one_lmdb_may_be_open_twice(tmp_path: Path) -> None:
    path = build(tmp_path / "lmdb", [raw(0), raw(1)])
    link = tmp_path / "link"
    link.symlink_to(path)
    with open_datums(path) as train, open_datums(link) as test:
        train.close()
        assert test[1].label == 1
    with open_datums(path) as again:
        assert again[0].label == 0


def test_an_open_lmdb_can_be_pickled(tmp_path: Path) -> None:
    path = build(tmp_path / "lmdb", [raw(0), raw(7)])
    with open_datums(path) as read, pickle.loads(pickle.dumps(read)) as copy:
        assert copy[1].label == 7


def labels_in_child(datums: Datums, queue: SimpleQueue[list[int]]) -> None:
    queue.put([datums[i].label for i in range(len(datums))])


@pytest.mark.parametrize("context", [get_context("fork"), get_context("spawn")], ids=["fork", "spawn"])
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_an_open_lmdb_crosses_to_another_process(tmp_path: Path, context: ForkContext | SpawnContext) -> None:
    queue: SimpleQueue[list[int]] = context.SimpleQueue()
    with open_datums(build(tmp_path / "lmdb", [raw(3), raw(5)])) as read:
        child = context.Process(target=labels_in_child, args=(read, queue))
        child.start()
        child.join()
        assert queue.get() == [3, 5]
        assert read[1].label == 5


def test_use_after_close_is_refused(tmp_path: Path) -> None:
    read = open_datums(build(tmp_path / "lmdb", [raw(0)]))
    read.close()
    with pytest.raises(ValueError, match="is closed"):
        len(read)


def not_an_lmdb(folder: Path) -> Iterator[tuple[Path, str]]:
    yield folder / "missing", "no such LMDB"
    (folder / "bare").mkdir()
    yield folder / "bare", "holds no data.mdb"
    (folder / "file").write_text("hello")
    yield folder / "file", "is a file"
    for name, data in [("empty", b""), ("short", b"x" * 10), ("garbage", b"x" * 10_000)]:
        (folder / name).mkdir()
        (folder / name / "data.mdb").write_bytes(data)
        yield folder / name, "is empty" if name == "empty" else "is not an LMDB"
    (folder / "nested" / "data.mdb").mkdir(parents=True)
    yield folder / "nested", "holds a data.mdb that is not a file"
    (folder / "fifo").mkdir()
    os.mkfifo(folder / "fifo" / "data.mdb")
    yield folder / "fifo", "holds a data.mdb that is not a file"
    yield folder / "a\0b", "cannot be read: embedded null"
    yield folder / ("x" * 300), "cannot be read: File name too long"
    yield build_raw(folder / "zero", {}), "holds no records"
    whole = build(folder / "whole", [raw(i, size=64) for i in range(9)])
    data = (whole / "data.mdb").read_bytes()
    for part in (0.3, 0.6, 0.99):
        (folder / f"cut{part}").mkdir()
        (folder / f"cut{part}" / "data.mdb").write_bytes(data[: int(len(data) * part)])
        yield folder / f"cut{part}", "is truncated"


def test_a_path_that_is_not_an_lmdb_is_described_and_left_alone(tmp_path: Path) -> None:
    for path, what in not_an_lmdb(tmp_path):
        before = names(path) if path.name[0] != "x" and path.is_dir() else None
        with pytest.raises(DataError, match=what) as caught:
            open_datums(path)
        assert caught.value.where == str(path)
        assert "\n" not in str(caught.value)
        if before is not None:
            assert names(path) == before


def why_it_cannot_open(path: Path, queue: SimpleQueue[str]) -> None:
    if os.geteuid() == 0:
        os.setuid(65534)
    try:
        open_datums(path)
    except DataError as error:
        queue.put(str(error))


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_an_unreadable_lmdb_is_refused(tmp_path: Path) -> None:
    path = build(tmp_path / "lmdb", [raw(0)])
    (path / "data.mdb").chmod(0)
    context = get_context("fork")
    queue: SimpleQueue[str] = context.SimpleQueue()
    child = context.Process(target=why_it_cannot_open, args=(path, queue))
    child.start()
    child.join()
    assert not queue.empty()
    assert "cannot be read: permission denied" in queue.get().lower()


def test_damaged_pages_are_reported(tmp_path: Path) -> None:
    path = build(tmp_path / "lmdb", [raw(i, size=64) for i in range(9)])
    data = bytearray((path / "data.mdb").read_bytes())
    data[8192:] = bytes(len(data) - 8192)  # all but the two meta pages
    (path / "data.mdb").write_bytes(data)
    with open_datums(path) as read, pytest.raises(DataError, match="is damaged"):
        read[0]


def test_a_record_that_is_not_a_datum_is_named(tmp_path: Path) -> None:
    path = build_raw(tmp_path / "lmdb", {b"good": raw(0).SerializeToString(), b"zz\xff": b"\xff\xff"})
    with open_datums(path) as read:
        assert read[0].label == 0
        with pytest.raises(DataError, match=r"record 'zz\\xff' is not a Datum"):
            read[1]


def test_a_whole_lmdb_passes_with_its_counts(tmp_path: Path) -> None:
    path = build(tmp_path / "lmdb", [raw(0), raw(2, size=5), encoded(2)])
    summary = check_datums(path, classes=3)
    assert (summary.count, summary.checked, summary.encoded) == (3, 3, 1)
    assert summary.labels == {0: 1, 2: 2}
    assert summary.shapes == {(1, 4, 4): 1, (1, 5, 5): 1}


@pytest.mark.parametrize(
    ("bad", "what"),
    [
        (raw(3), "has label 3, which is not one of the 3 classes 0 to 2"),
        (raw(-1, 0), "holds no image"),
        (pb.Datum(channels=1, height=1, width=1, label=-1, data=b"x"), "has label -1"),
        (pb.Datum(channels=1, height=1, width=1, data=b"x"), "has no label"),
        (pb.Datum(), "holds no image"),
        (pb.Datum(label=1, encoded=True), "holds no image"),
        (
            pb.Datum(channels=3, height=2, width=2, label=1, data=b"x"),
            "is a raw image of 3x2x2, but has 1 values",
        ),
        (pb.Datum(channels=-1, height=-1, width=1, label=1, data=b"x"), "is a raw image of -1x-1x1"),
    ],
)
def test_a_bad_record_is_named_by_its_key(tmp_path: Path, bad: pb.Datum, what: str) -> None:
    path = build(tmp_path / "lmdb", [raw(0), bad, raw(1)])
    with pytest.raises(DataError, match=f"record '00000001_image_1'.*{what}") as caught:
        check_datums(path, classes=3)
    assert caught.value.where == str(path)


def test_a_limit_spreads_over_the_whole_lmdb(tmp_path: Path) -> None:
    path = build(tmp_path / "lmdb", [raw(i) for i in range(100)])
    summary = check_datums(path, classes=100, limit=10)
    assert (summary.count, summary.checked) == (100, 10)
    assert sorted(summary.labels) == list(range(0, 100, 10))
    assert check_datums(path, classes=100, limit=1000).checked == 100


def test_float_records_have_shapes_too() -> None:
    assert datum_shape(pb.Datum(channels=2, height=1, width=2, float_data=[1, 2, 3, 4])) == (2, 1, 2)


def test_writing_grows_with_what_is_written(tmp_path: Path) -> None:
    blob = bytes(50_000)
    count = write_datums(tmp_path / "lmdb", (("x", encoded(0, blob)) for _ in range(1_500)))
    assert count == 1_500
    assert names(tmp_path) == ["lmdb"]
    with open_datums(tmp_path / "lmdb") as read:
        assert len(read) == 1_500
        assert len(read[1_499].data) == 50_000


def test_a_failed_write_leaves_nothing_behind(tmp_path: Path) -> None:
    def broken() -> Iterator[tuple[str, pb.Datum]]:
        yield "a", raw(0)
        raise KeyError("lost")

    with pytest.raises(KeyError):
        write_datums(tmp_path / "lmdb", broken())
    with pytest.raises(DataError, match="would hold no records"):
        write_datums(tmp_path / "lmdb", [])
    with pytest.raises(DataError, match="cannot be written"):
        write_datums(tmp_path / "lmdb", [("x" * 1000, raw(0))])
    assert names(tmp_path) == []


def test_an_existing_lmdb_is_never_overwritten(tmp_path: Path) -> None:
    path = build(tmp_path / "lmdb", [raw(0)])
    with pytest.raises(DataError, match="already exists"):
        write_datums(path, [("x", raw(1))])
    with open_datums(path) as read:
        assert read[0].label == 0


@pytest.mark.promise("no file is put where others could exchange it")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can play another user")
def test_no_lmdb_is_written_to_a_folder_of_another_user_or_through_a_link_of_theirs(tmp_path: Path) -> None:
    shared, mine = tmp_path / "shared", tmp_path / "mine"
    for folder in (shared, shared / "theirs", mine):
        folder.mkdir()
    shared.chmod(0o1777)
    (shared / "link").symlink_to(mine)
    for path in (shared / "theirs", shared / "link"):
        os.chown(path, 54321, 54321, follow_symlinks=False)
    for path in (shared / "theirs", shared / "link"):
        with pytest.raises(DataError, match=r"lmdb: cannot be written: .* choose another folder$"):
            write_datums(path / "lmdb", [("a", raw(1))])
    assert not list(mine.iterdir())
    assert not list((shared / "theirs").iterdir())


def test_a_folder_that_cannot_be_created_is_refused_with_a_hint_about_its_path(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    hint = "check the path and its permissions, or give another path"
    with pytest.raises(DataError, match=f"lmdb: cannot be written: Not a directory; {hint}$"):
        write_datums(tmp_path / "file" / "lmdb", [("x", raw(0))])
    with pytest.raises(DataError, match=f"^/proc/x/lmdb: cannot be written: No such file .*; {hint}$"):
        write_datums("/proc/x/lmdb", [("x", raw(0))])
