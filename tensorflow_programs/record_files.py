"""Deal a folder of TFRecords to ranks: which files, and which records, each rank reads in an epoch.

A folder of records such as `train/` has its manifest beside it, `train.manifest.json`, as imagenet_to_gcs.py
and `caffe-recipes data tfrecords` write it, or in it, `.manifest.json`, as `caffe-recipes stage` puts it on a
node. The names of the files come from there, never from a listing. This module needs no TensorFlow.
"""

from __future__ import annotations

import json
import random
import socket
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

MAKE_RECORDS = "make the records with imagenet_to_gcs.py"
T = TypeVar("T")


class BadInput(Exception):
    """Something that the user gave cannot be trained with; the text is the whole message.

    With `is_local` the ranks of other nodes may not have found it.
    """

    def __init__(self, message: str, *, is_local: bool = False) -> None:
        super().__init__(message)
        self.is_local = is_local


def deal_files(files: Sequence[T], groups: int, group: int, seed: int) -> list[T]:
    """Return the files of a group, in their order: a deal that is the same for the whole training.

    `caffe-recipes stage` deals alike, and puts the files of group k on node k.
    """
    order = random.Random(f"files {seed}")
    dealt = sorted(range(len(files)), key=lambda index: order.random())
    return [files[index] for index in sorted(dealt[group::groups])]


@dataclass(frozen=True)
class RecordFiles:
    """Files of TFRecords, how many records each holds, and the seed that deals the files to groups."""

    paths: Sequence[str]
    counts: Sequence[int]
    seed: int

    @property
    def records(self) -> int:
        """Count the records of all files."""
        return sum(self.counts)

    def group(self, number: int, groups: int) -> RecordFiles:
        """Return the files of one of several groups."""
        dealt = deal_files(list(zip(self.paths, self.counts, strict=True)), groups, number, self.seed)
        return replace(self, paths=[path for path, _ in dealt], counts=[count for _, count in dealt])


@dataclass(frozen=True)
class Share:
    """What one of `ranks` ranks reads of each epoch: `batch` images a step over all ranks.

    The ranks form `groups` of neighbours, one group a node, and each group has files of its own. Every record
    belongs to exactly one rank in an epoch. An epoch has `steps`, as many whole batches as every group has
    images for; the rest, other ones in each epoch, are left out.
    """

    files: RecordFiles
    batch: int
    rank: int
    ranks: int
    seed: int
    is_deterministic: bool
    groups: int = 1

    @property
    def local_batch(self) -> int:
        """Return the images of a step on one rank."""
        return self.batch // self.ranks

    @property
    def group_ranks(self) -> int:
        """Return the number of ranks in a group."""
        return self.ranks // self.groups

    @property
    def group_batch(self) -> int:
        """Return the images of a step on the ranks of one group."""
        return self.local_batch * self.group_ranks

    @property
    def group_rank(self) -> int:
        """Return this rank's number among those of its group."""
        return self.rank % self.group_ranks

    @cached_property
    def group_files(self) -> RecordFiles:
        """Return the files that the ranks of this group read."""
        return self.files.group(self.rank // self.group_ranks, self.groups)

    @cached_property
    def steps(self) -> int:
        """Return the steps of an epoch, the same for all ranks."""
        fewest = min(self.files.group(number, self.groups).records for number in range(self.groups))
        return fewest // self.group_batch

    @property
    def is_by_file(self) -> bool:
        """Whether a rank reads whole files: only where any deal of them has enough records for each rank."""
        each, rest = divmod(len(self.group_files.paths), self.group_ranks)
        fewest = sum(sorted(self.group_files.counts)[:each])
        return not self.is_deterministic and rest == 0 and fewest >= self.steps * self.local_batch

    def deal(self, epoch: int) -> list[str]:
        """Return the files that this rank reads in an epoch, in its order; all of its group if not by file.

        The order is the same on all ranks of a group, from the seed and the epoch.
        """
        order = random.Random(f"{self.seed} {epoch}")
        files = sorted(self.group_files.paths, key=lambda path: order.random())
        return files[self.group_rank :: self.group_ranks] if self.is_by_file else files


def load_files(data_dir: str, images: int, classes: int, groups: int = 1, group: int = 0) -> RecordFiles:
    """Read the manifest of a folder of TFRecords; raises BadInput unless the files of a group are whole.

    All files together hold `images` records, of `classes` classes where the manifest names them.
    """
    folder = Path(data_dir).absolute()
    path = folder / ".manifest.json"
    if not path.exists():
        path = folder.with_name(f"{folder.name}.manifest.json")
    try:
        manifest = json.loads(path.read_bytes())
        records, shards, prefix = int(manifest["records"]), int(manifest["shards"]), str(manifest["prefix"])
        sizes, seed = [int(size) for size in manifest["sizes_bytes"]], int(manifest["seed"])
        named = len(manifest["classes"] or range(classes))
    except OSError as error:
        raise BadInput(f"{path}: cannot be read: {error.strerror}; {MAKE_RECORDS}", is_local=True) from None
    except (ValueError, TypeError, KeyError):
        raise BadInput(f"{path}: not a manifest of TFRecords; {MAKE_RECORDS}", is_local=True) from None
    if records != images:
        raise BadInput(f"{folder}: {records:,} records, not the {images:,} images of the flags")
    if named != classes:
        raise BadInput(f"{folder}: {named:,} classes, not --num_label_classes {classes}")
    if groups > shards:
        raise BadInput(f"--file_groups {groups} is more than the {shards} files of {folder}")
    paths = [str(folder / f"{prefix}-{shard:05d}-of-{shards:05d}") for shard in range(shards)]
    of_group = f"; group {group} of {groups} reads it" if groups > 1 else ""
    for file, size in deal_files(list(zip(paths, sizes, strict=True)), groups, group, seed):
        found = Path(file).stat().st_size if Path(file).is_file() else None
        if found != size:
            what = "missing" if found is None else f"{found:,} bytes, not {size:,},"
            message = f"{file}: {what} on {socket.gethostname()}{of_group}; copy the records again"
            raise BadInput(message, is_local=True)
    ends = [shard * records // shards for shard in range(shards + 1)]
    return RecordFiles(paths, [end - start for start, end in pairwise(ends)], seed)
