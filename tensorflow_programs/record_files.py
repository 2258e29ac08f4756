"""Assign a folder of TFRecords to ranks: which files, and which records, each rank reads in an epoch.

A folder of records such as `train/` has a manifest. It is beside the folder, as `train.manifest.json`, if
imagenet_to_gcs.py or `caffe-recipes data tfrecords` wrote it, or inside it, as `.manifest.json`, if
`caffe-recipes stage` copied the folder to a node. File names are taken from the manifest, never from a
listing. This module does not need TensorFlow.
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

from trust import UntrustedPathError, check_read, trusting

BUILD_RECORDS = "build the records with imagenet_to_gcs.py"
OWN_RECORDS = "use records in a folder of your own"
FORMAT = 1  # of manifests: that of caffe_recipes/file_format.py, since this module does without caffe_recipes
T = TypeVar("T")


class BadInput(Exception):
    """Raised if training is not possible with the user's input; the text is the complete message.

    If `is_local`, the ranks of other nodes may not have found the problem.
    """

    def __init__(self, message: str, *, is_local: bool = False) -> None:
        super().__init__(message)
        self.is_local = is_local


def deal_files(files: Sequence[T], groups: int, group: int, seed: int) -> list[T]:
    """Return the files of a group, in their order; the assignment is the same for the whole training.

    `caffe-recipes stage` assigns files in the same way, and copies those of group k to node k.
    """
    order = random.Random(f"files {seed}")
    dealt = sorted(range(len(files)), key=lambda index: order.random())
    return [files[index] for index in sorted(dealt[group::groups])]


@dataclass(frozen=True)
class RecordFiles:
    """TFRecord files, the number of records in each, and the seed that assigns them to groups."""

    paths: Sequence[str]
    counts: Sequence[int]
    seed: int

    @property
    def records(self) -> int:
        """The number of records in all files."""
        return sum(self.counts)

    def group(self, number: int, groups: int) -> RecordFiles:
        """Return the files of group `number` out of `groups`."""
        dealt = deal_files(list(zip(self.paths, self.counts, strict=True)), groups, number, self.seed)
        return replace(self, paths=[path for path, _ in dealt], counts=[count for _, count in dealt])


@dataclass(frozen=True)
class Share:
    """What one of `ranks` ranks reads in each epoch; `batch` is the number of images per step on all ranks.

    Neighbouring ranks form `groups`, one per node, and each group has its own files. In an epoch, each record
    belongs to exactly one rank. An epoch has `steps` steps: the number of full batches that every group has
    images for. The remaining images, different ones in each epoch, are left out.
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
        """The number of images per step on one rank."""
        return self.batch // self.ranks

    @property
    def group_ranks(self) -> int:
        """The number of ranks in a group."""
        return self.ranks // self.groups

    @property
    def group_batch(self) -> int:
        """The number of images per step on the ranks of one group."""
        return self.local_batch * self.group_ranks

    @property
    def group_rank(self) -> int:
        """This rank's number within its group."""
        return self.rank % self.group_ranks

    @cached_property
    def group_files(self) -> RecordFiles:
        """The files that the ranks of this group read."""
        return self.files.group(self.rank // self.group_ranks, self.groups)

    @cached_property
    def steps(self) -> int:
        """The number of steps in an epoch, the same on all ranks."""
        fewest = min(self.files.group(number, self.groups).records for number in range(self.groups))
        return fewest // self.group_batch

    @property
    def is_by_file(self) -> bool:
        """Whether each rank reads whole files, which requires that any choice of them has enough records."""
        each, rest = divmod(len(self.group_files.paths), self.group_ranks)
        fewest = sum(sorted(self.group_files.counts)[:each])
        return not self.is_deterministic and rest == 0 and fewest >= self.steps * self.local_batch

    def deal(self, epoch: int) -> list[str]:
        """Return the files that this rank reads in an epoch, in order: its group's, or some if `is_by_file`.

        The order is the same on all ranks of a group, and follows from the seed and the epoch.
        """
        order = random.Random(f"{self.seed} {epoch}")
        files = sorted(self.group_files.paths, key=lambda path: order.random())
        return files[self.group_rank :: self.group_ranks] if self.is_by_file else files


def check_trusted(path: Path) -> None:
    """Raise BadInput if another user could have put a file there; OSError if it does not exist.

    The owner of these programs is trusted, as `caffe-recipes run` trusts the owner of the Caffe root.
    """
    try:
        with trusting((Path(__file__).stat().st_uid,)):
            check_read(path)
    except UntrustedPathError as error:
        message = f"{path}: {error.why} on {socket.gethostname()}; {OWN_RECORDS}"
        raise BadInput(message, is_local=True) from None


def _find_size(file: Path) -> int | None:
    """Return the size of a file that can be trusted; None if there is none."""
    try:
        check_trusted(file)
        return file.stat().st_size if file.is_file() else None
    except OSError:
        return None


def load_files(data_dir: str, images: int, classes: int, groups: int = 1, group: int = 0) -> RecordFiles:
    """Return the files listed in the manifest of a folder of TFRecords.

    Raises BadInput if a file of the group is missing or incomplete, if another user could have put one there,
    or if the manifest does not list `images` records, or names other than `classes` classes.
    """
    folder = Path(data_dir).absolute()
    path = folder / ".manifest.json"
    if not path.exists():
        path = folder.with_name(f"{folder.name}.manifest.json")
    try:
        check_trusted(path)
        manifest = json.loads(path.read_bytes())
        if manifest.get("format") != FORMAT:
            what = f"written by another version of caffe-recipes (this version reads format {FORMAT})"
            raise BadInput(f"{path}: {what}; {BUILD_RECORDS}", is_local=True)
        records, shards, prefix = int(manifest["records"]), int(manifest["shards"]), str(manifest["prefix"])
        sizes, seed = [int(size) for size in manifest["sizes_bytes"]], int(manifest["seed"])
        named = len(manifest["classes"] or range(classes))
        # Files that another program made; those of ours are even.
        counts = [int(count) for count in manifest.get("file_records", ())]
        if counts and (len(counts), sum(counts)) != (shards, records):
            raise ValueError("does not add up")
        if not prefix or "/" in prefix or "\0" in prefix:
            raise ValueError("leads out of the folder")
    except OSError as error:
        raise BadInput(f"{path}: cannot be read: {error.strerror}; {BUILD_RECORDS}", is_local=True) from None
    except (ValueError, OverflowError, TypeError, KeyError, AttributeError):
        raise BadInput(f"{path}: not a manifest of TFRecords; {BUILD_RECORDS}", is_local=True) from None
    if records != images:
        raise BadInput(f"{folder}: {records:,} records, but the flags say {images:,} images")
    if named != classes:
        raise BadInput(f"{folder}: {named:,} classes, but --num_label_classes is {classes}")
    if groups > shards:
        raise BadInput(f"--file_groups {groups} exceeds the {shards} files in {folder}")
    paths = [str(folder / f"{prefix}-{shard:05d}-of-{shards:05d}") for shard in range(shards)]
    of_group = f"; group {group} of {groups} reads it" if groups > 1 else ""
    for file, size in deal_files(list(zip(paths, sizes, strict=True)), groups, group, seed):
        found = _find_size(Path(file))
        if found != size:
            what = "missing" if found is None else f"{found:,} bytes, not {size:,},"
            message = f"{file}: {what} on {socket.gethostname()}{of_group}; copy the records again"
            raise BadInput(message, is_local=True)
    ends = [shard * records // shards for shard in range(shards + 1)]
    return RecordFiles(paths, counts or [end - start for start, end in pairwise(ends)], seed)
