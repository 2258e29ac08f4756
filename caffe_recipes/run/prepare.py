"""Prepare what a run needs on disk: the trainer's files, its data and folders, if missing.

Before every launch, verify the weights that it starts from.
"""

from __future__ import annotations

import posixpath
from pathlib import Path

from caffe_recipes.cluster.commands import Host
from caffe_recipes.cluster.hosts import DIGEST_S, ask_all, open_all, remote_sha256, try_each
from caffe_recipes.errors import HostFailed, InputError, RunFailed, WeightsError, hint_for_reason
from caffe_recipes.render.tree import find_differences, write_files
from caffe_recipes.run.context import LaunchFailed, Run
from caffe_recipes.run.events import Built, Failed, Placed, Restored, Staged
from caffe_recipes.run.snapshots import (
    digest_weights,
    fetch_snapshot,
    is_whole,
    verify_digest,
    verify_kept,
)
from caffe_recipes.run.staging import check_data, find_staging_env, stage_run, staging_error
from caffe_recipes.run.training_plan import find_step


def prepare(run: Run) -> None:
    """Write files, build and stage data. Raises InputError, ClusterError or RunFailed if that fails."""
    with run.lock.preparing:
        _place(run)
        _build(run)
        _make_folders(run)
        stage_data(run)


def ensure_files(run: Run) -> None:
    """Make sure that the next launch reads the run's own files; write those that are missing.

    Raises InputError if a file has been changed, for instance by `generate`.
    """
    for difference in find_differences(run.plan.files, run.setting.root):
        if difference.what == "changed":
            what = "has changed since the run began"
            raise InputError(
                run.setting.path(difference.path), what, "run again with --overwrite to continue"
            )
    with run.lock.preparing:
        _place(run)


def _place(run: Run) -> None:
    written = write_files(run.plan.files, run.setting.root)
    if written:
        run.emit(Placed(written))


def _build(run: Run) -> None:
    missing = [path for path in run.setting.built_data if not path.exists()]
    if missing:
        run.notify(f"building {', '.join(run.setting.show(path) for path in missing)}")
        try:
            run.setting.trainer.data.build(missing[0].parent)
        except RunFailed as error:  # the disk is full
            run.emit(Failed(str(error)))
            raise
        run.emit(Built([str(path) for path in missing]))


# A login on another host may have a umask that lets anybody write.
_MAKE = 'case $(umask) in *[0145]) umask 022 ;; esac; exec mkdir -p -- "$@"'


def _make_folders(run: Run) -> None:
    """Create the snapshot folders on the first host; without them Caffe fails at its first snapshot."""
    folders = {posixpath.dirname(run.setting.path(step.snapshot)) for step in run.plan.trainings}
    first = run.setting.hosts[0]
    done = first.run(["sh", "-c", _MAKE, "sh", *sorted(folders)])
    if done.returncode != 0:
        what = f"cannot create a folder for snapshots: {done.stderr.strip()}"
        raise HostFailed(first.name, what, hint_for_reason(what, "check its disk"))


def stage_data(run: Run) -> None:
    """Stage the training data on the hosts that lack it. Raises ClusterError if that fails on a host.

    Raises it as well if another user could have put the data, or their source, there.
    """
    setting, place = run.setting, run.setting.data_path
    hosts = setting.hosts
    # The plan of staging is not worth printing if this machine is the only host.
    is_worth_printing = len(hosts) > 1 or not hosts[0].is_local
    ways = find_staging_env(setting.profile, setting.how)
    check_data(setting, "test", may_be_absent=True)
    with run.lock.preparing:
        placed = stage_run(setting, ways, run.notify if is_worth_printing else lambda line: None)
    sent = [each.host for each in placed if each.outcome == "sent"]
    if sent and setting.lmdb_source is not None:
        size = sum(file.stat().st_size for file in setting.lmdb_source.iterdir() if file.is_file())
        run.emit(Staged(place, size, sent, setting.show(setting.lmdb_source)))
    failed = [(each.host, each.reason) for each in placed if each.outcome == "failed"]
    if failed:
        raise staging_error(failed, place, len(placed))
    check_data(setting, "train")
    if setting.trainer.data.tests_on_ranks:
        check_data(setting, "test")


def ensure_weights(run: Run, path: str, net: str) -> str:
    """Make sure that weights are undamaged; return their SHA-256.

    A damaged snapshot is fetched again from a host that has an intact copy. Raises WeightsError if no host
    has one, or if a file of the user's has changed since a launch started from it.
    """
    if path in run.snapshots():
        return ensure_snapshot(run, path)
    before = run.journal.state().weights.get(path)
    if before is None:
        run.setting.trainer.models.check_model(run.plan.files, net, run.path(path))
        return digest_weights(run.path(path))
    verify_digest(
        run.path(path), before, "the file that training started from", "restore it, or start over with --new"
    )
    return before


def check_hosts_read(run: Run, path: str, sha256: str, net: str, *, is_launched: bool = False) -> None:
    """Raise LaunchFailed if a host reads other weights than this machine does; it names the host.

    Once the ranks are launched, hosts that do not answer are ignored, since their heartbeats are watched.
    """
    distant, at = [host for host in run.setting.hosts if not host.is_local], run.setting.path(path)
    for answer in ask_all(distant, lambda host: remote_sha256(host, at), DIGEST_S):
        if answer.error and is_launched:
            continue
        what = answer.error.what if answer.error else "differs from the file here"
        if answer.value != sha256 and not is_whole(run.path(path), sha256):
            ensure_weights(run, path, net)  # our own copy was damaged just now
            check_hosts_read(run, path, sha256, net, is_launched=is_launched)
            return
        if answer.value != sha256:
            hint = "every rank reads it: the Caffe root must be on a file system that all hosts share"
            raise LaunchFailed(f"{at} {what}", hint, answer.host.name, answer.host.name)


def ensure_snapshot(run: Run, path: str) -> str:
    """Make sure that a kept snapshot is undamaged, as `ensure_weights` does; return its SHA-256."""
    sha256, phase = run.snapshots()[path]
    step = find_step(run.setting.recipe, phase)
    trained = run.setting.path(step.trained_path(path))

    def check(part: Path) -> None:
        run.setting.trainer.models.check_model(run.plan.files, step.net, part)

    with run.lock.preparing:  # a branch may start from the same snapshot
        try:
            verify_kept(run.path(path), sha256, phase, trained)
        except WeightsError as error:
            run.check_folder()
            run.notify(f"{error.without_hint}; looking for an intact copy")
            host = _find_intact_copy(run, trained, sha256)
            if host is None:
                raise
            fetch_snapshot(host, run.setting.root, trained, None, run.path(path), check)
            verify_kept(run.path(path), sha256, phase, trained)
            run.emit(Restored(path, host.name))
    return sha256


def _find_intact_copy(run: Run, path: str, sha256: str) -> Host | None:
    """Return a host that has a file with this digest, among all past and present hosts and the spares."""
    setting, state = run.setting, (run.main or run.journal).state()
    known = {host.name: host for host in setting.hosts}
    others = [name for name in dict.fromkeys((*state.hosts, *setting.spares)) if name not in known]
    hosts = (*setting.hosts, *open_all(others, setting.connect))

    def lacks(host: Host) -> str | None:
        return None if remote_sha256(host, path) == sha256 else "has another file"

    without = try_each(hosts, lacks, DIGEST_S)
    return next((host for host in hosts if host.name not in without), None)
