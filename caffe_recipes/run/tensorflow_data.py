"""The TFRecords that a recipe for TensorFlow trains and tests on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from caffe_recipes.cluster.staging.file_sets import FileSet, SetFile, stat_source
from caffe_recipes.cluster.staging.relay import digest_of
from caffe_recipes.data.tfrecords import RecordSet, load_record_set, records_manifest_path
from caffe_recipes.errors import DataError, InputError
from caffe_recipes.recipe.model import TensorFlowRecipe
from caffe_recipes.run.trainer import TrainingData
from caffe_recipes.tensorflow.records import deal_files
from caffe_recipes.tensorflow.run import (
    Records,
    own_programs,
)

_STAGED_MANIFEST = ".manifest.json"


@dataclass(frozen=True)
class TensorFlowData(TrainingData):
    """The training records, each node's own, and the validation records."""

    recipe: TensorFlowRecipe

    @property
    def folder(self) -> str:
        """The folder on each node that holds the training records."""
        return self.recipe.tensorflow.data.train.folder

    @property
    def source(self) -> str | None:
        """The folder from which the training records are staged; None if the recipe names none."""
        return self.recipe.tensorflow.data.train.source

    @property
    def test_folder(self) -> str | None:
        """The folder that holds the validation records."""
        return self.recipe.tensorflow.data.validation.folder

    def manifests(self, folder: str) -> tuple[str, ...]:
        """Return where the manifest of records may be: in the folder if they were staged, else beside it."""
        return (f"{folder}/{_STAGED_MANIFEST}", str(records_manifest_path(Path(folder))))

    @property
    def staged_folders(self) -> tuple[str, ...]:
        """The folders of training records, and of validation records if they have a source."""
        data = self.recipe.tensorflow.data
        return (data.train.folder, *([data.validation.folder] if data.validation.source else []))

    def file_sets(
        self, root: Path, names: Sequence[str], source: Path | None, *, is_whole: bool = False
    ) -> list[FileSet]:
        """Return the records that each host's ranks read, and for the first host all validation records."""
        data = self.recipe.tensorflow.data
        if not (source or data.train.source):
            hint = "write it as tensorflow.data.train.source, or give it with --lmdb-source"
            raise InputError(self.recipe.name, "names no folder to stage TFRecords from", hint)
        folder = root / (source or data.train.source or "")
        train = _load_records(data.train, folder, self.recipe.classes)
        wanted = dict.fromkeys(names, train.all) if is_whole else self._deal(train, names)
        sets = [FileSet(str(root / data.train.folder), folder, wanted, root)]
        if data.validation.source:
            folder = root / data.validation.source
            validation = _load_records(data.validation, folder, self.recipe.classes)
            wanted = dict.fromkeys(names if is_whole else names[:1], validation.all)
            sets.append(FileSet(str(root / data.validation.folder), folder, wanted, root))
        return sets

    def check_source(self, root: Path, given: Path | None) -> None:
        """Do nothing: `file_sets` checks the records."""

    @property
    def built(self) -> tuple[str, ...]:
        """The folders of records that a run builds if they are missing."""
        data = self.recipe.tensorflow.data
        if data.prepare is None:
            return ()
        return tuple(each.source or each.folder for each in (data.train, data.validation))

    def build(self, folder: Path) -> None:
        """Build the records of the digits inside `folder`. Raises RunFailed if the disk is full."""
        from caffe_recipes.data.digits import build_digit_records

        data = self.recipe.tensorflow.data
        build_digit_records(folder, (data.train.files, data.validation.files))

    @property
    def file_groups(self) -> int:
        """To how many groups of ranks the training files are dealt: by default each node gets its own.

        Not by default where the images of a step must not depend on the nodes, where there are too few files,
        and for the user's own programs, which may not know the flag.
        """
        run, nodes = self.recipe.tensorflow, self.recipe.cluster.nodes
        is_shared = run.flags.get("deterministic") or run.data.train.files < nodes or own_programs()
        return int(run.flags.get("file_groups", 1 if is_shared else nodes))

    def _deal(self, records: _RecordFiles, names: Sequence[str]) -> dict[str, Sequence[SetFile]]:
        """Return the files that the ranks of each host read; spares get none."""
        cluster, groups = self.recipe.cluster, self.file_groups
        dealt: dict[str, Sequence[SetFile]] = {}
        for node, name in enumerate(names[: cluster.nodes]):
            first = node * cluster.ranks_per_node
            ranks = range(first, first + cluster.ranks_per_node)
            read = sorted({rank * groups // cluster.ranks for rank in ranks})
            dealt_to = (deal_files(records.files, groups, group, records.seed) for group in read)
            dealt[name] = [*chain.from_iterable(dealt_to), records.manifest]
        return dealt


@dataclass(frozen=True)
class _RecordFiles:
    """The files of a folder of TFRecords, their manifest, and the seed that deals them to the ranks."""

    files: Sequence[SetFile]
    manifest: SetFile
    seed: int

    @property
    def all(self) -> Sequence[SetFile]:
        return [*self.files, self.manifest]


def load_records_manifest(records: Records, source: Path, classes: int) -> RecordSet:
    """Read the manifest of a folder of TFRecords; raises DataError unless it is of the recipe's records."""
    path, made = records_manifest_path(source), load_record_set(source)
    if made is None:
        raise DataError(path, "no such file", "create the records, or name their folder with --lmdb-source")
    if (made.records, made.shards) != (records.images, records.files):
        what = f"{made.records:,} images in {made.shards:,} files; the recipe says {records.images:,} in "
        raise DataError(path, f"{what}{records.files:,}", "correct the recipe, or name other records")
    if made.classes is not None and len(made.classes) != classes:
        what = f"records of {len(made.classes):,} classes; the recipe says {classes:,}"
        raise DataError(path, what, "correct tensorflow.classes, or name other records")
    return made


def _load_records(records: Records, source: Path, classes: int) -> _RecordFiles:
    """Return the files of a folder of TFRecords; raises DataError unless complete and as the recipe says."""
    path, made = records_manifest_path(source), load_records_manifest(records, source, classes)
    files = []
    for name, size, digest in zip(made.counts(), made.sizes_bytes, made.digests, strict=True):
        seen = stat_source(source / name)
        if seen.size_bytes != size:
            what = f"{seen.size_bytes:,} bytes; the manifest says {size:,}"
            raise DataError(seen.data, what, "copy or create the records again")
        files.append(SetFile(name, seen, digest))
    manifest = SetFile(_STAGED_MANIFEST, stat_source(path), digest_of(path))
    return _RecordFiles(files, manifest, made.seed)
