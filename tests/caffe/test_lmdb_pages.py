"""Damaged pages are found before LMDB follows them, and intact ones are never reported as damaged."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

import lmdb
import pytest

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.datums import open_datums
from caffe_recipes.errors import DataError

_PAGE_BYTES = 4096
_LEAF = 2  # kind of page
_ENTRIES = 120  # offset in a meta page of the number of entries

# Prints a line for each LMDB; a process that LMDB aborts stops printing.
_READ_ALL = """
import sys
from caffe_recipes.caffe.datums import open_datums
from caffe_recipes.errors import DataError
for path in sys.argv[1:]:
    for read in (lambda datums: list(datums), lambda datums: [datums[i] for i in range(len(datums))]):
        try:
            with open_datums(path) as datums:
                print(len(read(datums)))
        except DataError as error:
            print(error)
"""


def build(path: Path, order: Sequence[int], size: int = 200) -> Path:
    """Write records of a size, and more of nine times that, in one transaction: all pages are in use."""
    with (
        lmdb.open(str(path), lock=False, map_size=1 << 27) as environment,
        environment.begin(write=True) as transaction,
    ):
        for number in order:
            datum = pb.Datum(label=number, data=bytes(size * 9 if number % 3 else size), encoded=True)
            transaction.put(b"%08d_image" % number, datum.SerializeToString())
    return path


def damaged(whole: Path, path: Path, change: Callable[[bytearray], None]) -> Path:
    data = bytearray((whole / "data.mdb").read_bytes())
    change(data)
    path.mkdir()
    (path / "data.mdb").write_bytes(data)
    return path


def read_apart(paths: Sequence[Path]) -> list[str]:
    """Read LMDBs in another process; give its lines, two for each."""
    done = subprocess.run(
        [sys.executable, "-c", _READ_ALL, *map(os.fspath, paths)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr or done.returncode
    return done.stdout.splitlines()


@pytest.mark.parametrize(("count", "size"), [(1, 10), (2, 700), (525, 700), (525, 200), (20_000, 10)])
def test_whole_lmdbs_of_any_depth_are_read(count: int, size: int, tmp_path: Path) -> None:
    for name, order in (("sorted", range(count)), ("shuffled", Random(1).sample(range(count), count))):
        with open_datums(build(tmp_path / name, order, size)) as datums:
            assert datums.keys == [b"%08d_image" % number for number in range(count)]
            assert [datum.label for _, datum in datums] == list(range(count))


def test_records_that_were_removed_and_a_compact_copy_are_read(tmp_path: Path) -> None:
    path = build(tmp_path / "lmdb", range(3000))
    (tmp_path / "compact").mkdir()
    with lmdb.open(str(path), lock=False, map_size=1 << 27) as environment:
        with environment.begin(write=True) as transaction:
            for number in range(3000):
                if number % 7:
                    transaction.delete(b"%08d_image" % number)
        environment.copy(str(tmp_path / "compact"), compact=True)
    for kept in (path, tmp_path / "compact"):
        with open_datums(kept) as datums:
            assert [datum.label for _, datum in datums] == list(range(0, 3000, 7))


def test_a_truncated_copy_in_a_preallocated_file_is_damaged(tmp_path: Path) -> None:
    def cut(data: bytearray) -> None:
        whole = len(data) * 9 // 10
        data[whole:] = bytes(len(data) - whole)

    path = damaged(build(tmp_path / "whole", range(525)), tmp_path / "cut", cut)
    for line in read_apart([path]):
        assert line.startswith(f"{path}: is damaged (page ")
        assert line.endswith("; copy or build the LMDB again")


def test_no_damage_ends_the_process(tmp_path: Path) -> None:
    random = Random(2)
    whole = build(tmp_path / "whole", range(525))

    def zero_page(data: bytearray) -> None:
        at = random.randrange(len(data) // _PAGE_BYTES) * _PAGE_BYTES
        data[at : at + _PAGE_BYTES] = bytes(_PAGE_BYTES)

    def swap_pages(data: bytearray) -> None:
        one, other = (random.randrange(len(data) // _PAGE_BYTES) * _PAGE_BYTES for _ in range(2))
        kept = data[one : one + _PAGE_BYTES]
        data[one : one + _PAGE_BYTES] = data[other : other + _PAGE_BYTES]
        data[other : other + _PAGE_BYTES] = kept

    def change_head(data: bytearray) -> None:
        at = random.randrange(len(data) // _PAGE_BYTES) * _PAGE_BYTES
        for _ in range(4):
            data[at + random.randrange(160)] = random.randrange(256)

    def change_tree(data: bytearray) -> None:
        """Change a branch or a leaf anywhere."""
        pages = [at for at in range(0, len(data), _PAGE_BYTES) if data[at + 10] in (1, 2)]
        for _ in range(3):
            data[random.choice(pages) + random.randrange(_PAGE_BYTES)] = random.randrange(256)

    changes = (zero_page, swap_pages, change_head, change_tree)
    paths = [damaged(whole, tmp_path / str(i), changes[i % len(changes)]) for i in range(80)]
    lines = read_apart(paths)
    assert len(lines) == 2 * len(paths)
    assert sum("is damaged (" in line for line in lines) > len(paths) // 2


def test_a_branch_that_leads_to_one_page_twice_is_damaged(tmp_path: Path) -> None:
    def lead_back(data: bytearray) -> None:
        root = next(at for at in reversed(range(0, len(data), _PAGE_BYTES)) if data[at + 10] == 1)
        first, second = (int.from_bytes(data[root + at : root + at + 2], "little") + root for at in (16, 18))
        data[second : second + 6] = data[first : first + 6]

    path = damaged(build(tmp_path / "whole", range(525)), tmp_path / "twice", lead_back)
    with open_datums(path) as datums, pytest.raises(DataError, match="out of order"):
        list(datums)


def test_the_first_record_is_read_without_the_others(tmp_path: Path) -> None:
    def end_early(data: bytearray) -> None:
        leaves = [at for at in range(0, len(data), _PAGE_BYTES) if data[at + 10] == 2]
        data[leaves[-1] : leaves[-1] + 16] = bytes(16)

    path = damaged(build(tmp_path / "whole", range(525)), tmp_path / "damaged", end_early)
    with open_datums(path) as datums:
        assert next(iter(datums))[1].label == 0
        with pytest.raises(DataError, match="is damaged"):
            list(datums)


def _first_page(data: bytearray, kind: int) -> int:
    return next(at for at in range(0, len(data), _PAGE_BYTES) if data[at + 10] == kind)


@pytest.mark.parametrize("kind", [1, _LEAF], ids=["branch", "leaf"])
@pytest.mark.parametrize("length", [512, 400], ids=["a long key", "keys that overlap"])
def test_overlapping_nodes_and_keys_over_511_bytes_are_refused(
    tmp_path: Path, kind: int, length: int
) -> None:
    def lengthen(data: bytearray) -> None:
        page = _first_page(data, kind)
        end = int.from_bytes(data[page + 12 : page + 14], "little")
        places = [int.from_bytes(data[at : at + 2], "little") for at in range(page + 16, page + end, 2)]
        fitting = [place for place in places if place + 8 + length <= _PAGE_BYTES]
        for place in fitting if length < 512 else places[:1]:
            if kind == _LEAF:  # without a value
                data[page + place : page + place + 6] = bytes(6)
            data[page + place + 6 : page + place + 8] = length.to_bytes(2, "little")

    path = damaged(build(tmp_path / "whole", range(525), 20), tmp_path / "cut", lengthen)
    with open_datums(path) as datums, pytest.raises(DataError, match="has a damaged node at offset"):
        datums.keys  # noqa: B018


def test_more_entries_than_an_lmdb_can_have_are_refused(tmp_path: Path) -> None:
    def claim(data: bytearray) -> None:
        for page in (0, _PAGE_BYTES):
            data[page + _ENTRIES : page + _ENTRIES + 8] = b"\xff" * 8

    path = damaged(build(tmp_path / "whole", range(5)), tmp_path / "cut", claim)
    with pytest.raises(DataError, match="its meta pages are inconsistent"):
        open_datums(path)
