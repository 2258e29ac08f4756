"""Read and write the manifest next to an LMDB: what it was built from, and the digest of its records."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from caffe_recipes.errors import DataError
from caffe_recipes.file_format import FORMAT, take_format
from caffe_recipes.files.atomic_writes import write_whole
from caffe_recipes.files.bounded_reads import read_within, reading
from caffe_recipes.trust import UntrustedPathError, check_write

M = TypeVar("M")


@dataclass(frozen=True)
class BuildManifest:
    """A finished build. It is the same on every machine and for any number of workers.

    `plan` is the digest of the images' names, labels, order and settings, `size_bytes` the total size of
    their files, and `sha256` the digest of the records.
    """

    images: int
    size_bytes: int
    labels: Mapping[int, int]
    classes: Sequence[str] | None
    skipped: Sequence[str]
    settings: Mapping[str, Any]
    seed: int | None
    plan: str
    sha256: str


def check_own_data(out: Path) -> None:
    """Raise DataError for an existing folder of data that another user could have made."""
    try:
        if out.is_dir():
            check_write(out / "data.mdb")
    except UntrustedPathError as error:
        raise DataError(out, f"already exists, and {error.why}", "give another path") from None


def manifest_path(lmdb: Path) -> Path:
    """Return the path of the manifest, next to its LMDB."""
    named = lmdb.resolve() if lmdb.name == ".." else lmdb.absolute()  # '.' and '..' need a name
    return Path(f"{named}.manifest.json")


def load_manifest(lmdb: Path) -> BuildManifest | None:
    """Return the manifest of an LMDB, or None if it has none. Raises DataError if the file is invalid."""
    hint = "remove it, or build the LMDB again"
    return read_manifest(manifest_path(lmdb), _parse, "is not a manifest of an LMDB", hint)


def read_manifest(path: Path, parse: Callable[[dict[str, Any]], M | None], what: str, hint: str) -> M | None:
    """Return the result of `parse` for a JSON file, or None if the file does not exist.

    Raises DataError if the file cannot be read or is of another format, or, with `what` and `hint`, if
    `parse` returns None or fails because of the types of values.
    """
    made = None
    with reading(path, DataError, "check its permissions"):
        try:
            values = json.loads(read_within(path, "json-bytes"))
            take_format(values, path, hint, DataError)
            made = parse(values)
        except FileNotFoundError:
            return None
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            pass
    if made is None:
        raise DataError(path, what, hint)
    return made


def _parse(known: dict[str, Any]) -> BuildManifest | None:
    labels = {int(label): count for label, count in known.pop("labels").items()}
    manifest = BuildManifest(labels=labels, **known)
    return manifest if _is_valid(manifest) else None


def is_count(value: object) -> bool:
    """Return whether a JSON value is an integer of 0 or more.

    >>> is_count(3), is_count(True), is_count(1.0)
    (True, False, False)
    """
    return type(value) is int and value >= 0


def is_names(value: object) -> bool:
    """Return whether a JSON value is a list of strings."""
    return isinstance(value, list | tuple) and all(isinstance(name, str) for name in value)


def _is_valid(manifest: BuildManifest) -> bool:
    """Return whether all values have the right types, since JSON may contain any."""
    return (
        all(map(is_count, (manifest.images, manifest.size_bytes, *manifest.labels.values())))
        and (manifest.classes is None or (is_names(manifest.classes) and len(manifest.classes) > 0))
        and is_names(manifest.skipped)
        and isinstance(manifest.settings, dict)
        and (manifest.seed is None or is_count(manifest.seed))
        and isinstance(manifest.plan, str)
        and isinstance(manifest.sha256, str)
    )


def write_manifest(lmdb: Path, manifest: BuildManifest) -> None:
    """Write the manifest of an LMDB atomically, with a line for each key. Raises OSError."""
    labels = {str(label): count for label, count in sorted(manifest.labels.items())}
    found = {"format": FORMAT, **asdict(manifest), "labels": labels}
    lines = ",\n".join(f" {json.dumps(key)}: {json.dumps(value)}" for key, value in found.items())
    write_whole({manifest_path(lmdb): f"{{\n{lines}\n}}\n".encode()}, is_synced=True)


class RecordsDigest:
    """SHA-256 over the key and value of each record, each preceded by its length (4 bytes, little-endian)."""

    def __init__(self) -> None:
        self._digest = hashlib.sha256()

    def add(self, key: bytes, value: bytes) -> None:
        """Add the next record."""
        for part in (key, value):
            self._digest.update(len(part).to_bytes(4, "little"))
            self._digest.update(part)

    def hexdigest(self) -> str:
        """Return the digest of all records added so far."""
        return self._digest.hexdigest()
