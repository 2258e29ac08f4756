"""Walk the pages of an LMDB in Python, since damaged pages crash LMDB's library and the whole process.

This is LMDB's format 1, as 64-bit machines write it. Pages 0 and 1 are meta pages, each with the root of the
tree; the one with the later transaction is valid. A page of the tree begins with its number, its kind and the
offsets of its nodes, whose keys ascend. A node of a branch points to the page whose keys start at the node's
key. A value too large for a leaf is on overflow pages, which the leaf points to; those are not read.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import lt
from pathlib import Path
from typing import NamedTuple

from caffe_recipes.errors import DataError
from caffe_recipes.files.bounded_reads import reading

# A meta page: kind, magic, version, page size in bytes; the flags, depth, number of entries and root of the
# tree of records; the last page in use, and the transaction.
_META = struct.Struct("<10xH4xII16xI48xHH24xQQQQ")
_MAGIC, _VERSION = 0xBEEFC0DE, 1
_HEAD = struct.Struct("<Q2xHHH")  # page number, kind, end of the list of offsets, start of the nodes
_NODE = struct.Struct("<HHHH")  # value size in two halves, flags, key size
_KEPT_FLAGS = 0x6F  # the flags of a page's kind; the others are used in memory only
_BRANCH, _LEAF, _IS_META = 1, 2, 8
_ON_PAGES, _DATABASE = 1, 2  # a value on overflow pages; a value that is a sub-database
_NO_PAGE = 2**64 - 1
_DEEPEST = 32  # LMDB's own limit
_LONGEST_KEY = 511  # bytes, LMDB's own limit
_MOST_ENTRIES = 2**63 - 1  # that len() can return
_PAGE_BYTES = frozenset(2**power for power in range(8, 17))


class _DamagedError(ValueError):
    """A damaged page; the text says which page and what is wrong with it."""


class _Meta(NamedTuple):
    page_bytes: int
    flags: int
    depth: int
    entries: int
    root: int
    last: int
    transaction: int


@dataclass(frozen=True)
class PageTree:
    """The tree of an LMDB's records; no page beyond `last` is in use."""

    folder: Path
    page_bytes: int
    last: int
    depth: int
    entries: int
    root: int

    def __iter__(self) -> Iterator[bytes]:
        """Yield all keys in order; LMDB can look these up safely. Raises DataError for damaged pages."""
        try:
            with (
                reading(self.folder, DataError, "check its disk"),
                (self.folder / "data.mdb").open("rb") as file,
            ):
                yield from self._keys(file.fileno())
        except _DamagedError as error:
            raise _damaged(self.folder, str(error)) from None

    def _keys(self, file: int) -> Iterator[bytes]:
        count = 0
        # The stack of pages to read, each with its depth, its first key, and the key that follows its last.
        pending: list[tuple[int, int, bytes, bytes | None]] = []
        if self.root != _NO_PAGE:
            pending.append((self.root, 1, b"", None))
        while pending:
            number, depth, first, end = pending.pop()
            page = self._read(file, number)
            if depth < self.depth:
                keys, children = self._branch(page, number)
                keys[0] = first
                _check_keys(keys, first, end, number)
                below = list(zip(children, keys, [*keys[1:], end], strict=True))
                pending.extend((child, depth + 1, begin, until) for child, begin, until in reversed(below))
                continue
            keys = self._leaf(page, number)
            _check_keys(keys, first, end, number)  # before any is yielded
            count += len(keys)
            yield from keys
        if count != self.entries:
            raise _DamagedError(f"found {count:,} of {self.entries:,} records")

    def _read(self, file: int, number: int) -> bytes:
        if not 2 <= number <= self.last:
            raise _DamagedError(f"a branch points to page {number:,}, but the pages are 2 to {self.last:,}")
        page = os.pread(file, self.page_bytes, number * self.page_bytes)
        if len(page) < self.page_bytes:
            raise _DamagedError(f"page {number:,} is truncated")
        return page

    def _branch(self, page: bytes, number: int) -> tuple[list[bytes], list[int]]:
        """Return the keys of a branch, the first of which is unused, and the numbers of its child pages."""
        keys, children = [], []
        for at, (low, high, flags, length) in self._nodes(page, number, _BRANCH):
            keys.append(page[at + 8 : at + 8 + length])
            children.append(low | high << 16 | flags << 32)
            if len(keys[-1]) != length:
                raise _DamagedError(f"page {number:,} has a damaged key at offset {at}")
        if len(keys) < 2:
            raise _DamagedError(f"page {number:,} is a branch with fewer than 2 nodes")
        return keys, children

    def _leaf(self, page: bytes, number: int) -> list[bytes]:
        """Return the keys of a leaf. Raises _DamagedError unless all their values are within the file."""
        keys = []
        for at, (low, high, flags, length) in self._nodes(page, number, _LEAF):
            value, size = at + 8 + length, low | high << 16
            if flags == _ON_PAGES and value + 8 <= self.page_bytes:
                (place,) = struct.unpack_from("<Q", page, value)
                value_end = place * self.page_bytes + _HEAD.size + size
                is_whole = place >= 2 and value_end <= (self.last + 1) * self.page_bytes
            else:
                is_whole = flags in (0, _DATABASE) and value + size <= self.page_bytes
            if not is_whole or not length:
                raise _DamagedError(f"page {number:,} has a damaged record at offset {at}")
            keys.append(page[at + 8 : value])
        return keys

    def _nodes(self, page: bytes, number: int, kind: int) -> Iterator[tuple[int, tuple[int, ...]]]:
        """Yield the offset and the header of each node of a page. Raises _DamagedError if it is damaged."""
        own_number, flags, places_end, nodes = _HEAD.unpack_from(page)
        if own_number != number or flags & _KEPT_FLAGS != kind:
            raise _DamagedError(f"page {number:,} is not a {'branch' if kind == _BRANCH else 'leaf'}")
        if not _HEAD.size < places_end <= nodes <= self.page_bytes or places_end % 2:
            raise _DamagedError(f"page {number:,} has a damaged list of nodes")
        left = self.page_bytes - nodes  # from a small file, overlapping nodes could fill all memory
        for at in struct.unpack_from(f"<{(places_end - _HEAD.size) // 2}H", page, _HEAD.size):
            if not nodes <= at <= self.page_bytes - _NODE.size:
                raise _DamagedError(f"page {number:,} has a damaged node at offset {at}")
            low, high, flags, length = node = _NODE.unpack_from(page, at)
            left -= _NODE.size + length
            if kind == _LEAF:
                left -= 8 if flags == _ON_PAGES else low | high << 16
            if left < 0 or length > _LONGEST_KEY:
                raise _DamagedError(f"page {number:,} has a damaged node at offset {at}")
            yield at, node


def load_tree(folder: Path) -> PageTree | None:
    """Read the tree of an LMDB's records; None for a file that is not an LMDB, which the library reports.

    Raises DataError if the LMDB is damaged or truncated, and OSError if it is unreadable.
    """
    with (folder / "data.mdb").open("rb") as file:
        size_bytes = os.fstat(file.fileno()).st_size
        one = _read_meta(file.fileno(), 0)
        other = _read_meta(file.fileno(), one.page_bytes) if one else None
    if one is None or other is None:
        return None
    meta = other if other.transaction > one.transaction else one
    is_possible = meta.page_bytes in _PAGE_BYTES and meta.entries <= _MOST_ENTRIES
    if not is_possible or one.page_bytes != other.page_bytes or meta.flags:
        raise _damaged(folder, "its meta pages are inconsistent")
    needed = (meta.last + 1) * meta.page_bytes
    if size_bytes < needed:  # a read beyond the end of the mapped file would kill the process
        what = f"is truncated: data.mdb has {size_bytes:,} of {needed:,} bytes"
        raise DataError(folder, what, "copy the LMDB again")
    return PageTree(folder, meta.page_bytes, meta.last, min(meta.depth, _DEEPEST), meta.entries, meta.root)


def _read_meta(file: int, at: int) -> _Meta | None:
    found = os.pread(file, _META.size, at)
    if len(found) < _META.size:
        return None
    kind, magic, version, *places = _META.unpack(found)
    return _Meta(*places) if kind & _IS_META and (magic, version) == (_MAGIC, _VERSION) else None


def _check_keys(keys: Sequence[bytes], first: bytes, end: bytes | None, number: int) -> None:
    """Check that keys ascend and are within the range of the branches above, where LMDB looks for them."""
    ascends = keys[0] >= first and all(map(lt, keys, keys[1:])) and (end is None or keys[-1] < end)
    if not ascends:
        raise _DamagedError(f"the keys of page {number:,} are out of order")


def _damaged(folder: Path, what: str) -> DataError:
    return DataError(folder, f"is damaged ({what})", "copy or build the LMDB again")
