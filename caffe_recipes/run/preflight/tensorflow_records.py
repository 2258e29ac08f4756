"""Check TFRecords: on the hosts or to be staged, complete, and those of the recipe."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from caffe_recipes.cluster.commands import Host
from caffe_recipes.cluster.hosts import ask_all, file_bytes
from caffe_recipes.cluster.remote import OTHER_FOLDER, check_trust
from caffe_recipes.cluster.staging.file_sets import FileSet
from caffe_recipes.data.manifest import manifest_path
from caffe_recipes.run.context import RunSetup
from caffe_recipes.run.preflight.findings import CheckResult, HostProblem, as_findings, as_problem
from caffe_recipes.run.preflight.lmdbs import find_untrusted_data
from caffe_recipes.run.preflight.nodes import NodeView
from caffe_recipes.run.staging import (
    check_source_access,
)
from caffe_recipes.tensorflow.run import Records
from caffe_recipes.wording import describe_count

_ASK_RECORDS_S = 120.0
_TRAIN, _TEST = "train records", "test records"


def check_train_records(view: NodeView) -> list[CheckResult]:
    """Check the records to stage; without a source, check that each host has the manifest of its records.

    Raises ClusterError if another user could have put the records to stage there.
    """
    setting, data = view.setting, _data_of(view)
    source = setting.lmdb_source
    if source in setting.built_data and not manifest_path(source).exists():
        return [CheckResult(_TRAIN, f"{setting.show(source)}: will be built", is_checked=False)]
    if source is None:
        return _compare_records(view, view.hosts, data, _TRAIN)
    sets = setting.trainer.data.file_sets(setting.root, [host.name for host in setting.hosts], source)
    for each in sets:
        check_source_access(setting.root, each.read_paths)
    if problems := [problem for each in sets for problem in _find_unusable(setting, each)]:
        return as_findings(_TRAIN, problems)
    files = sum(len(each) for each in sets[0].wanted.values())
    shown = f"{setting.show(source)}: {data.images:,} images in {describe_count(data.files, 'file')}"
    hosts = describe_count(len(sets[0].wanted), "host")
    return [CheckResult(_TRAIN, f"{shown}; {files} to be staged on {hosts} where missing")]


def _find_unusable(setting: RunSetup, files: FileSet) -> list[HostProblem]:
    """Return the hosts on which another user could exchange the records that are to be staged there."""
    words, hosts = (
        (files.folder, str(setting.root)),
        [one for one in setting.hosts if one.name in files.wanted],
    )
    answers = ask_all(
        hosts, lambda host: check_trust(host, "trust", *words, hint=OTHER_FOLDER), _ASK_RECORDS_S
    )
    return [as_problem(answer.host.name, answer.error) for answer in answers if answer.error]


def check_test_records(view: NodeView) -> list[CheckResult]:
    """Check the records for the evaluation on this machine. Raises DataError if they are wrong."""
    setting, run = view.setting, view.setting.recipe.tensorflow
    assert run is not None and run.data is not None
    data = run.data.validation
    folder = setting.root / (data.source or data.folder)
    if folder in setting.built_data and not manifest_path(folder).exists():
        return [CheckResult(_TEST, f"{setting.show(folder)}: will be built", is_checked=False)]
    if not view.plan.testings:
        return [CheckResult(_TEST, "not needed", is_checked=False)]
    if problems := find_untrusted_data(view, "test"):
        return as_findings(_TEST, problems)
    from caffe_recipes.run.tensorflow_data import load_records_manifest  # not for a run of Caffe

    made = load_records_manifest(data, folder, setting.recipe.classes)
    files = describe_count(made.shards, "file")
    return [CheckResult(_TEST, f"{setting.show(folder)}: {made.records:,} images in {files}")]


def _data_of(view: NodeView) -> Records:
    run = view.setting.recipe.tensorflow
    assert run is not None and run.data is not None  # only the TensorFlow trainer asks for these checks
    return run.data.train


def _compare_records(view: NodeView, hosts: Sequence[Host], data: Records, subject: str) -> list[CheckResult]:
    """Check that every host has the manifest of its records, and all the same one."""
    manifest = str(manifest_path(Path(view.setting.path(data.folder))))
    problems: list[HostProblem] = []
    sizes: dict[str, int] = {}
    for answer in ask_all(hosts, lambda host: file_bytes(host, manifest), _ASK_RECORDS_S):
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
    problems += find_untrusted_data(view, "train")
    return as_findings(subject, problems, f"{data.folder}: present")
