"""What a folder of TFRecords was made of, and what its files are to hold: a manifest beside it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from caffe_recipes.data.manifest import is_count, is_names, manifest_path
from caffe_recipes.errors import DataError
from caffe_recipes.files import write_whole


@dataclass(frozen=True)
class RecordSet:
    """A folder's records; `plan` is the digest of the LMDB's keys and of all settings.

    `sizes_bytes` are those of the files, once they are written.
    """

    records: int
    shards: int
    seed: int
    prefix: str
    classes: tuple[str, ...] | None
    plan: str
    sizes_bytes: tuple[int, ...] = ()

    def file_name(self, shard: int) -> str:
        """Name a file.

        >>> RecordSet(9, 3, 1, "train", None, "").file_name(2)
        'train-00002-of-00003'
        """
        return f"{self.prefix}-{shard:05d}-of-{self.shards:05d}"

    def part(self, shard: int) -> slice:
        """Return which of the shuffled records a file holds: as many as the others, or one more.

        >>> [RecordSet(10, 3, 1, "train", None, "").part(shard) for shard in range(3)]
        [slice(0, 3, None), slice(3, 6, None), slice(6, 10, None)]
        """
        return slice(shard * self.records // self.shards, (shard + 1) * self.records // self.shards)

    def counts(self) -> dict[str, int]:
        """Return how many records each file holds.

        >>> RecordSet(3, 2, 1, "train", None, "").counts()
        {'train-00000-of-00002': 1, 'train-00001-of-00002': 2}
        """
        parts = map(self.part, range(self.shards))
        return {self.file_name(shard): part.stop - part.start for shard, part in enumerate(parts)}


def records_manifest_path(out: Path) -> Path:
    """Name the manifest of a folder of TFRecords: beside it, for all in it may be taken for records."""
    return manifest_path(out)


def load_record_set(out: Path) -> RecordSet | None:
    """Read the manifest beside a folder of TFRecords, if there is one; raises DataError if it is none."""
    path = records_manifest_path(out)
    try:
        known = json.loads(path.read_text("utf-8"))
        classes, sizes = known.pop("classes"), known.pop("sizes_bytes", [])
        classes = tuple(classes) if isinstance(classes, list) else classes
        made = RecordSet(classes=classes, sizes_bytes=tuple(sizes), **known)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DataError(path, f"cannot be read: {error.strerror}", "check its permissions") from None
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        made = None
    if made is None or not _is_sound(made):
        raise DataError(path, "is no manifest of TFRecords", "remove it, or make the records again")
    return made


def write_record_set(out: Path, made: RecordSet) -> None:
    """Write the manifest beside a folder of TFRecords, whole or not at all; raises OSError."""
    text = json.dumps(asdict(made), indent=1) + "\n"
    write_whole({records_manifest_path(out): text.encode()}, is_synced=True)


def _is_sound(made: RecordSet) -> bool:
    counts = (made.records, made.shards, made.seed, *made.sizes_bytes)
    return (
        all(map(is_count, counts))
        and 1 <= made.shards <= made.records
        and len(made.sizes_bytes) in (0, made.shards)
        and isinstance(made.prefix, str)
        and isinstance(made.plan, str)
        and (made.classes is None or is_names(made.classes))
    )
