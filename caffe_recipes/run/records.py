"""Find which TFRecords each host of a run is to have; check them: complete, the recipe's, and in place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from caffe_recipes.cluster.commands import Host
from caffe_recipes.cluster.hosts import ask_all, file_bytes
from caffe_recipes.cluster.staging.manifest import cache_folder, known_digest, stat_source
from caffe_recipes.cluster.staging.relay import digest_of
from caffe_recipes.cluster.staging.sets import FileSet, SetFile
from caffe_recipes.data.tfrecords import RecordSet, load_record_set, records_manifest_path
from caffe_recipes.errors import DataError, InputError
from caffe_recipes.recipe.model import Cluster, TensorFlowRecipe
from caffe_recipes.run.preflight.findings import CheckResult, HostProblem, as_findings, as_problem
from caffe_recipes.run.preflight.nodes import NodeView
from caffe_recipes.run.tensorflow import TensorFlow
from caffe_recipes.tensorflow.records import deal_files
from caffe_recipes.tensorflow.run import Records
from caffe_recipes.wording import describe_count


def find_record_sets(
    recipe: TensorFlowRecipe,
    root: Path,
    names: Sequence[str],
    *,
    source: Path | None = None,
    is_whole: bool = False,
) -> list[FileSet]:
    """Return the files of a recipe's TFRecords that each host needs; `names` are in the order of the ranks.

    Each host needs the training records that its ranks read, and the first host all validation records. With
    `is_whole` all hosts, spares included, get everything. Raises InputError if there is no source to stage
    from, and DataError if the records are not those of the recipe.
    """
    data = recipe.tensorflow.data
    if not (source or data.train.source):
        hint = "write it as tensorflow.data.train.source, or give it with --lmdb-source"
        raise InputError(recipe.name, "names no folder to stage TFRecords from", hint)
    folder = root / (source or data.train.source or "")
    trainer = TensorFlow(recipe)
    train = _load_records(data.train, folder, trainer.classes())
    groups = trainer.file_groups
    wanted = dict.fromkeys(names, train.all) if is_whole else _deal(train, names, recipe.cluster, groups)
    sets = [FileSet(str(root / data.train.folder), folder, wanted)]
    if data.validation.source:
        folder = root / data.validation.source
        validation = _load_records(data.validation, folder, trainer.classes())
        wanted = dict.fromkeys(names if is_whole else names[:1], validation.all)
        sets.append(FileSet(str(root / data.validation.folder), folder, wanted))
    return sets


def _deal(
    records: _RecordFiles, names: Sequence[str], cluster: Cluster, groups: int
) -> dict[str, Sequence[SetFile]]:
    """Return the files that the ranks of each host read with this --file_groups; spares get none."""
    ranks = cluster.ranks
    dealt: dict[str, Sequence[SetFile]] = {}
    for node, name in enumerate(names[: cluster.nodes]):
        first = node * cluster.ranks_per_node
        read = {rank * groups // ranks for rank in range(first, first + cluster.ranks_per_node)}
        files = [
            file for group in sorted(read) for file in deal_files(records.files, groups, group, records.seed)
        ]
        dealt[name] = [*files, records.manifest]
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


def _load_set(records: Records, source: Path, classes: int) -> RecordSet:
    """Read the manifest of a folder of TFRecords; raises DataError unless it is of the recipe's records."""
    path, made = records_manifest_path(source), load_record_set(source)
    if made is None:
        raise DataError(path, "no such file", "make the records, or name their folder with --lmdb-source")
    if (made.records, made.shards) != (records.images, records.files):
        what = f"{made.records:,} images in {made.shards:,} files; the recipe says {records.images:,} in "
        raise DataError(path, f"{what}{records.files:,}", "correct the recipe, or name other records")
    if made.classes is not None and len(made.classes) != classes:
        what = f"records of {len(made.classes):,} classes; the recipe says {classes:,}"
        raise DataError(path, what, "correct tensorflow.classes, or name other records")
    return made


def _load_records(records: Records, source: Path, classes: int) -> _RecordFiles:
    """Return the files of a folder of TFRecords. Raises DataError unless they are complete and the recipe's.

    Digests come from the manifest; if it is too old to have any, the files are hashed once.
    """
    path, made = records_manifest_path(source), _load_set(records, source, classes)
    files = []
    for number, name in enumerate(made.counts()):
        seen = stat_source(source / name)
        size = made.sizes_bytes[number] if made.sizes_bytes else seen.size_bytes
        if seen.size_bytes != size:
            what = f"{seen.size_bytes:,} bytes; the manifest says {size:,}"
            raise DataError(seen.data, what, "copy the records again, or make them again")
        digest = made.digests[number] if made.digests else known_digest(seen, cache_folder())
        files.append(SetFile(name, seen, digest))
    manifest = SetFile(".manifest.json", stat_source(path), digest_of(path))
    return _RecordFiles(files, manifest, made.seed)


_ASK_S = 120.0
_TRAIN, _TEST = "train records", "test records"


def check_train_records(view: NodeView) -> list[CheckResult]:
    """Check the records to stage; without a source, check that each host has the manifest of its records."""
    setting, data = view.setting, _data_of(view)
    source = setting.lmdb_source
    if source in setting.built_data and not records_manifest_path(source).exists():
        return [CheckResult(_TRAIN, f"{setting.show(source)}: will be built", is_checked=False)]
    if source is None:
        return _compare(view, view.hosts, data, _TRAIN)
    assert isinstance(setting.recipe, TensorFlowRecipe)  # only TensorFlow names these rows
    names = [host.name for host in setting.hosts]
    sets = find_record_sets(setting.recipe, setting.root, names, source=source)
    files = sum(len(each) for each in sets[0].wanted.values())
    shown = f"{setting.show(source)}: {data.images:,} images in {data.files} files"
    hosts = describe_count(len(sets[0].wanted), "host")
    return [CheckResult(_TRAIN, f"{shown}; {files} to be staged on {hosts} where missing")]


def check_test_records(view: NodeView) -> list[CheckResult]:
    """Check the records for the evaluation on this machine. Raises DataError if they are wrong."""
    setting, run = view.setting, view.setting.recipe.tensorflow
    assert run is not None and run.data is not None
    data = run.data.validation
    folder = setting.root / (data.source or data.folder)
    if folder in setting.built_data and not records_manifest_path(folder).exists():
        return [CheckResult(_TEST, f"{setting.show(folder)}: will be built", is_checked=False)]
    if not view.plan.testings:
        return [CheckResult(_TEST, "not needed", is_checked=False)]
    made = _load_set(data, folder, setting.trainer.classes())
    return [CheckResult(_TEST, f"{setting.show(folder)}: {made.records:,} images in {made.shards} files")]


def _data_of(view: NodeView) -> Records:
    run = view.setting.recipe.tensorflow
    assert run is not None and run.data is not None  # only the TensorFlow trainer asks for these checks
    return run.data.train


def _compare(view: NodeView, hosts: Sequence[Host], data: Records, subject: str) -> list[CheckResult]:
    """Check that every host has the manifest of its records, and all the same one."""
    manifest = str(records_manifest_path(Path(view.setting.path(data.folder))))
    problems: list[HostProblem] = []
    sizes: dict[str, int] = {}
    for answer in ask_all(hosts, lambda host: file_bytes(host, manifest), _ASK_S):
        if answer.error is not None:
            problems.append(as_problem(answer.host.name, answer.error))
        elif answer.value is None:
            hint = "stage the records there, or write their source into the recipe"
            problems.append(HostProblem(answer.host.name, "no such file there", hint, manifest))
        else:
            sizes[answer.host.name] = answer.value
    common = max(sizes.values(), key=list(sizes.values()).count, default=0)
    problems += [
        HostProblem(host, "differs from those of the other hosts", "stage the records again", manifest)
        for host, size in sizes.items()
        if size != common
    ]
    return as_findings(subject, problems, f"{data.folder}: present")
