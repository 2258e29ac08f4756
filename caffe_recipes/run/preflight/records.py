"""Check the TFRecords of a run: complete, those of the recipe, and on the hosts or to be staged there."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from caffe_recipes.cluster.commands import Host
from caffe_recipes.cluster.hosts import ask_all, file_bytes
from caffe_recipes.data.tfrecords import load_record_set, records_manifest_path
from caffe_recipes.errors import DataError
from caffe_recipes.run.preflight.findings import CheckResult, HostProblem, as_findings, as_problem
from caffe_recipes.run.preflight.nodes import NodeView
from caffe_recipes.run.staging import find_record_sets
from caffe_recipes.tensorflow.run import Records

_ASK_S = 120.0
_TRAIN, _TEST = "train records", "test records"


def check_train_records(view: NodeView) -> list[CheckResult]:
    """Check the records to stage; without a source, check that each host has the manifest of its records."""
    setting, data = view.setting, _data_of(view)
    source = setting.lmdb_source
    if source in setting.built_data and not records_manifest_path(source).exists():
        return [CheckResult(_TRAIN, f"{setting.show(source)}: will be built")]
    if source is None:
        return _compare(view, view.hosts, data, _TRAIN)
    sets = find_record_sets(setting.recipe, setting.root, [host.name for host in setting.hosts])
    files = sum(len(each) for each in sets[0].wanted.values())
    shown = f"{setting.show(source)}: {data.images:,} images in {data.files} files"
    return [
        CheckResult(_TRAIN, f"{shown}; {files} to be staged on {len(sets[0].wanted)} hosts where missing")
    ]


def check_test_records(view: NodeView) -> list[CheckResult]:
    """Check the records for the evaluation on this machine. Raises DataError if they are wrong."""
    setting, run = view.setting, view.setting.recipe.tensorflow
    assert run is not None and run.data is not None
    data = run.data.validation
    folder = setting.root / (data.source or data.folder)
    if folder in setting.built_data and not records_manifest_path(folder).exists():
        return [CheckResult(_TEST, f"{setting.show(folder)}: will be built")]
    if not view.plan.testings:
        return [CheckResult(_TEST, "not needed")]
    made = load_record_set(folder)
    if made is None:
        what = "no such file"
        raise DataError(records_manifest_path(folder), what, "make the records, or correct the recipe")
    if (made.records, made.shards) != (data.images, data.files):
        what = f"{made.records:,} images in {made.shards:,} files; the recipe says {data.images:,} in "
        hint = "correct the recipe, or make the records again"
        raise DataError(records_manifest_path(folder), f"{what}{data.files:,}", hint)
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
