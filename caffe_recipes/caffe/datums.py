"""Read, check and write LMDBs of Datums as Caffe does: one record per image, in the order of the keys."""

from __future__ import annotations

import errno
import math
import os
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import TracebackType
from weakref import WeakValueDictionary

import lmdb
from google.protobuf.message import DecodeError

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.image_headers import ImageShape, image_shape
from caffe_recipes.caffe.lmdb_pages import PageTree, load_tree
from caffe_recipes.errors import CaffeRecipesError, DataError, RunFailed, hint_for
from caffe_recipes.files.atomic_writes import make_own_folder, name_beside
from caffe_recipes.limits import hint_at_limit, limit

# Errors of the machine, not of the user's input.
_FAILED = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.ESTALE}
_FAILED |= {errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE}


@contextmanager
def writing(out: Path, then: str = "") -> Iterator[None]:
    """Turn an OSError while writing `out` into RunFailed if the machine is at fault, or else into DataError.

    `then` is what to do once the error is fixed. LMDB's own errors, whose codes are negative, pass unchanged.
    """
    try:
        yield
    except (OSError, lmdb.Error) as error:
        number = error.errno if isinstance(error, OSError) else getattr(error, "code", errno.EIO)
        if number is None or number < 0:
            raise
        kind: type[CaffeRecipesError] = DataError
        hint = "check the path and its permissions, or give another path"
        if number in _FAILED:
            kind, hint = RunFailed, "check this machine's memory, limits (ulimit -a) and disks"
        if isinstance(error, OSError):
            why, hint = error.strerror, hint_for(error, hint)
        elif number == errno.EIO:  # LMDB's own error for an incomplete write
            why, hint = os.strerror(number), "free space on its disk, or have it checked"
        else:
            why, hint = os.strerror(number), hint_for(OSError(number, ""), hint)
        raise kind(out, f"cannot be written: {why}", "; ".join(filter(None, (hint, then)))) from None


# LMDB forbids opening a file twice in one process, but a TRAIN and a TEST net may read the same one.
_environments: WeakValueDictionary[Path, lmdb.Environment] = WeakValueDictionary()
_opening = threading.Lock()  # the checks of a preflight open one LMDB from several threads

_COMMIT_EVERY = 1000


class Datums:
    """An open LMDB: `len()`, `datums[i]` in key order, iteration over (key, Datum). Close it, or use `with`.

    It survives a fork. It can also be pickled; the process that unpickles it opens the LMDB itself.
    """

    def __init__(self, path: Path, tree: PageTree, environment: lmdb.Environment) -> None:
        """Wrap an open environment. Use open_datums to open an LMDB."""
        self.path = path
        self._tree = tree
        self._environment: lmdb.Environment | None = environment

    def __len__(self) -> int:
        """Return the number of records."""
        return int(self._open.stat()["entries"])

    @cached_property
    def keys(self) -> list[bytes]:
        """All keys, sorted. ImageNet's 1.28 million keys take about 100 MB of memory."""
        return list(self._tree)

    def __getitem__(self, index: int) -> pb.Datum:
        """Return the record at `index` in key order."""
        key = self.keys[index]
        with self._reading() as transaction:
            return _read(self.path, key, transaction)

    def __iter__(self) -> Iterator[tuple[bytes, pb.Datum]]:
        """Yield all records, with their keys, in key order."""
        with self._reading() as transaction:
            for key in self._tree:  # not by a cursor, which would follow damaged pages
                yield key, _read(self.path, key, transaction)

    def close(self) -> None:
        """Release the environment, which closes when the last Datums of its file is closed."""
        with _opening:
            self._environment = None

    def __enter__(self) -> Datums:
        """Return the open LMDB, for a `with` block."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the LMDB."""
        self.close()

    def __reduce__(self) -> tuple[Callable[[Path], Datums], tuple[Path]]:
        """Pickle only the path."""
        return open_datums, (self.path,)

    @contextmanager
    def _reading(self) -> Iterator[lmdb.Transaction]:
        try:
            # buffers=True, so that no value is copied before its size has been checked.
            with self._open.begin(buffers=True) as transaction:
                yield transaction
        except lmdb.Error as error:
            raise DataError(self.path, f"is damaged ({error})", "copy or build the LMDB again") from None

    @property
    def _open(self) -> lmdb.Environment:
        if self._environment is None:
            raise ValueError(f"{self.path} is closed")
        return self._environment


def open_datums(path: str | Path) -> Datums:
    """Open an LMDB for reading, without writing anything into its folder, not even a lock file.

    Raises DataError, which names the path, if it is missing, empty, unreadable, truncated or not an LMDB.
    """
    path = Path(path)
    file = path / "data.mdb"
    try:
        file.stat()
        if not file.is_file():
            raise DataError(path, "holds a data.mdb that is not a file", "give another folder")
        key = file.resolve()
        tree = load_tree(path)
        with _opening:
            environment = _environments.get(key) or lmdb.open(
                os.fsencode(path), readonly=True, lock=False, create=False
            )
            _environments[key] = environment
    except FileNotFoundError:
        what = "holds no data.mdb" if path.is_dir() else "no such LMDB"
        raise DataError(path, what, "give the folder that holds data.mdb") from None
    except NotADirectoryError:
        raise DataError(path, "is a file", "give the folder that holds data.mdb") from None
    except (OSError, ValueError) as error:  # ValueError: a null character in the path
        reason = getattr(error, "strerror", None) or error
        raise DataError(path, f"cannot be read: {reason}", hint_for(error, "check the path")) from None
    except lmdb.Error as error:
        raise DataError(path, _reason(file, error), "build or copy the LMDB again") from None
    if tree is None:
        raise DataError(path, "is not an LMDB", "build or copy the LMDB again")
    datums = Datums(path, tree, environment)
    if not len(datums):
        raise DataError(path, "holds no records", "build the LMDB again")
    return datums


def first_shape(path: Path) -> ImageShape | None:
    """Return the shape of an LMDB's first image; None if there is no readable LMDB, or it is not known."""
    try:
        with open_datums(path) as datums:
            return datum_shape(next(iter(datums))[1])  # without listing all keys
    except (DataError, ValueError):
        return None


_REBUILD_HINT = "fix the list of images and build the LMDB again"


class BadLabel(DataError):
    """A record without a label, or whose `label` is not one of the classes."""

    def __init__(self, path: str | Path, key: str, label: int | None, classes: int) -> None:
        self.label = label
        wanted = f"label {label}, which is not one of the {classes} classes 0 to {classes - 1}"
        what = f"record '{key}' has {'no label' if label is None else wanted}"
        super().__init__(path, what, _REBUILD_HINT)


@dataclass(frozen=True)
class DatumsSummary:
    """The result of check_datums: the LMDB has `count` records, of which `checked` were checked.

    `labels` counts the checked records by label, `shapes` by (channels, height, width), if known.
    """

    count: int
    checked: int
    encoded: int
    labels: Mapping[int, int]
    shapes: Mapping[ImageShape, int]


def check_datums(path: str | Path, classes: int, *, limit: int | None = None) -> DatumsSummary:
    """Check every record, or at most `limit`, evenly spread. Raises DataError at the first bad record.

    A good record has a label in [0, classes) (others crash Caffe with SIGSEGV) and an image: a raw one of the
    stated size, or an encoded one, which is not decoded.
    """
    with open_datums(path) as datums:
        step = max(1, -(-len(datums) // limit)) if limit else 1
        records = datums if step == 1 else ((datums.keys[i], datums[i]) for i in range(0, len(datums), step))
        labels: Counter[int] = Counter()
        shapes: Counter[ImageShape] = Counter()
        encoded = 0
        for key, datum in records:
            try:
                shape = datum_shape(datum)
            except ValueError as error:
                raise DataError(path, f"record '{show_key(key)}' {error}", _REBUILD_HINT) from None
            if not (datum.HasField("label") and 0 <= datum.label < classes):
                raise BadLabel(path, show_key(key), datum.label if datum.HasField("label") else None, classes)
            labels[datum.label] += 1
            encoded += datum.encoded
            shapes.update([shape] if shape else [])
        return DatumsSummary(len(datums), labels.total(), encoded, labels, shapes)


def datum_shape(datum: pb.Datum) -> ImageShape | None:
    """Return a record's (channels, height, width), or None for an encoded image whose size is unknown.

    An encoded image's size comes from its header, or from the record itself. Raises ValueError for a record
    without an image, or with a raw image of another size.
    """
    stated = (datum.channels, datum.height, datum.width)
    if not datum.encoded:
        values = len(datum.data) or len(datum.float_data)
        if not values:
            raise ValueError("holds no image")
        if values != math.prod(stated) or min(stated) < 1:
            raise ValueError(f"is a raw image of {'x'.join(map(str, stated))}, but has {values} values")
        return stated
    if not datum.data:
        raise ValueError("holds no image")
    return image_shape(datum.data) or (stated if min(stated) > 0 else None)


def write_datums(path: str | Path, items: Iterable[tuple[str, pb.Datum]]) -> int:
    """Write (name, Datum) pairs as an LMDB with convert_imageset's keys, `%08d_name`; return their number.

    The LMDB is built next to `path` and renamed when complete. Raises DataError if `path` already exists or
    cannot be written, and RunFailed if its disk is full.
    """
    path = Path(path)
    if path.exists():
        raise DataError(path, "already exists", "remove it, or give another path")
    temporary = name_beside(path)
    try:
        with writing(path):
            make_own_folder(temporary)
            count = _write(temporary, items)
            if not count:
                raise DataError(path, "would hold no records", "give at least one image")
            temporary.rename(path)
    except lmdb.Error as error:
        raise DataError(path, f"cannot be written: {error}", "check its disk") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return count


def _write(folder: Path, items: Iterable[tuple[str, pb.Datum]]) -> int:
    count = 0
    pending: list[tuple[bytes, bytes]] = []
    with lmdb.open(os.fsencode(folder), lock=False, sync=False, map_size=1 << 24) as environment:
        for count, (name, datum) in enumerate(items, 1):
            pending.append(
                (os.fsencode(f"{count - 1:08d}_{name}"), datum.SerializeToString(deterministic=True))
            )
            if len(pending) == _COMMIT_EVERY:
                commit_records(environment, pending)
        commit_records(environment, pending)
        environment.sync(True)
    return count


def commit_records(environment: lmdb.Environment, pending: list[tuple[bytes, bytes]]) -> None:
    """Append (key, value) records, sorted by key, growing the map as needed; then empty `pending`."""
    while True:
        try:
            with environment.begin(write=True) as transaction:
                for key, value in pending:
                    transaction.put(key, value, append=True)
            return pending.clear()
        except lmdb.MapFullError:
            environment.set_mapsize(2 * environment.info()["map_size"])


def _read(path: Path, key: bytes, transaction: lmdb.Transaction) -> pb.Datum:
    value = transaction.get(key) or b""
    if len(value) > limit("record-bytes"):
        what = f"record '{show_key(key)}' has {len(value):,} bytes"
        raise DataError(path, what, hint_at_limit("record-bytes"))
    try:
        return pb.Datum.FromString(bytes(value))
    except DecodeError:
        what = f"record '{show_key(key)}' is not a Datum"
        raise DataError(
            path, what, "build the LMDB with convert_imageset or `caffe-recipes data build`"
        ) from None


def show_key(key: bytes) -> str:
    r"""Return a key as text on one line, with unprintable bytes escaped.

    >>> show_key(b"00000001_a\n\xff.jpg")
    '00000001_a\\n\\xff.jpg'
    """
    text = key.decode(errors="backslashreplace")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _reason(file: Path, error: lmdb.Error) -> str:
    if not file.stat().st_size:
        return "is empty: data.mdb has 0 bytes"
    if not os.access(file, os.R_OK):
        return "cannot be read: permission denied"
    return (
        f"is not an LMDB ({error})" if isinstance(error, lmdb.InvalidError) else f"cannot be opened ({error})"
    )
