"""What a run needs on disk: the trainer's files, LMDBs and folders before its first phase, where missing.

Before every launch, the very weights that it is to start from.
"""

from __future__ import annotations

import posixpath
from pathlib import Path

from caffe_recipes.cluster.commands import Host
from caffe_recipes.cluster.hosts import ask_all, file_digest, open_all, try_each
from caffe_recipes.errors import HostFailed, InputError, RunFailed, WeightsError
from caffe_recipes.render.tree import find_differences, write_files
from caffe_recipes.run.context import LaunchFailed, Run
from caffe_recipes.run.events import Built, Failed, Placed, Restored, Staged
from caffe_recipes.run.plan import find_step
from caffe_recipes.run.snapshots import (
    digest_weights,
    fetch_snapshot,
    is_whole,
    verify_digest,
    verify_kept,
)
from caffe_recipes.run.staging import find_staging_env, refusal, stage_run

_HASH_S = 600.0


def prepare(run: Run) -> None:
    """Place, build and stage; raises InputError, ClusterError or RunFailed where that is not possible."""
    with run.lock.preparing:
        _place(run)
        _build(run)
        _make_folders(run)
        stage_data(run)


def secure_files(run: Run) -> None:
    """Make sure that what is launched next reads the run's own files; what is missing is placed again.

    Raises InputError for one that has been changed, by another `generate` for instance.
    """
    for difference in find_differences(run.plan.files, run.setting.root):
        if difference.what == "changed":
            what = "has changed since the run began, and is not trained from"
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
            run.setting.trainer.build(missing[0].parent)
        except RunFailed as error:  # a disk that is full
            run.emit(Failed(str(error)))
            raise
        run.emit(Built([str(path) for path in missing]))


def _make_folders(run: Run) -> None:
    """Make the snapshots' folders on the first host: a trainer may die without after its last iteration."""
    folders = {posixpath.dirname(run.setting.path(step.snapshot)) for step in run.plan.trainings}
    first = run.setting.hosts[0]
    done = first.run(["mkdir", "-p", "--", *sorted(folders)])
    if done.returncode != 0:
        raise HostFailed(first.name, f"no folder for snapshots: {done.stderr.strip()}", "check its disk")


def stage_data(run: Run) -> None:
    """Put the training data on the hosts that lack them; ClusterError where one cannot take them."""
    setting, place = run.setting, run.setting.path(run.setting.trainer.data_folder)
    hosts = setting.hosts
    # What this machine does for itself alone needs no plan to be argued with.
    tells = len(hosts) > 1 or not hosts[0].is_local
    ways = find_staging_env(setting.profile, setting.how)
    with run.lock.preparing:
        placed = stage_run(setting, ways, run.notify if tells else lambda line: None)
    sent = [each.host for each in placed if each.outcome == "sent"]
    if sent and setting.lmdb_source is not None:
        size = sum(file.stat().st_size for file in setting.lmdb_source.iterdir() if file.is_file())
        run.emit(Staged(place, size, sent, setting.show(setting.lmdb_source)))
    failed = [(each.host, each.reason) for each in placed if each.outcome == "failed"]
    if failed:
        raise refusal(failed, place, len(placed))


def secure_weights(run: Run, path: str, net: str) -> str:
    """Make sure that weights are still what they were; return their SHA-256.

    A kept snapshot that is not is fetched again from a host where a whole one lies. Raises WeightsError where
    there is none, and for weights of the user's that have changed since a launch started from them.
    """
    if path in run.snapshots():
        return secure_kept(run, path)
    before = run.journal.state().weights.get(path)
    if before is None:
        run.setting.trainer.check_model(net, run.path(path))
        return digest_weights(run.path(path))
    verify_digest(run.path(path), before, "what was trained from", "restore it, or start over with --new")
    return before


def check_read(run: Run, path: str, sha256: str, net: str, *, is_launched: bool = False) -> None:
    """Make sure that every host reads weights as they are here; raises LaunchFailed, which names the host.

    Once the ranks are launched, a host that does not answer shows no damage: heartbeats look after it.
    """
    distant, at = [host for host in run.setting.hosts if not host.is_local], run.setting.path(path)
    for answer in ask_all(distant, lambda host: file_digest(host, at), _HASH_S):
        if answer.error and is_launched:
            continue
        what = answer.error.what if answer.error else "differs from ours"
        if answer.value != sha256 and not is_whole(run.path(path), sha256):
            secure_weights(run, path, net)  # it was damaged for all, just now
            check_read(run, path, sha256, net, is_launched=is_launched)
            return
        if answer.value != sha256:
            hint = "every rank reads it: the Caffe root must be one folder that all hosts see"
            raise LaunchFailed(f"{at} {what}", hint, answer.host.name, answer.host.name)


def secure_kept(run: Run, path: str) -> str:
    """Make sure that a kept snapshot is what its phase finished with, as `secure_weights` does."""
    sha256, phase = run.snapshots()[path]
    step = find_step(run.setting.recipe, phase)
    trained = run.setting.path(step.trained_path(path))

    def check(part: Path) -> None:
        run.setting.trainer.check_model(step.net, part)

    with run.lock.preparing:  # a branch may start from the same
        try:
            verify_kept(run.path(path), sha256, phase, trained)
        except WeightsError as error:
            run.check_folder()
            run.notify(f"{error.without_hint}; looking for a whole one")
            host = _find_whole(run, trained, sha256)
            if host is None:
                raise
            fetch_snapshot(host, trained, None, run.path(path), check, run.setting.root)
            verify_kept(run.path(path), sha256, phase, trained)
            run.emit(Restored(path, host.name))
    return sha256


def _find_whole(run: Run, path: str, sha256: str) -> Host | None:
    """Return a host that has a file with this digest, of all that the run has had ranks on, or may have."""
    setting, state = run.setting, (run.main or run.journal).state()
    known = {host.name: host for host in setting.hosts}
    others = [name for name in dict.fromkeys((*state.hosts, *setting.spares)) if name not in known]
    hosts = (*setting.hosts, *open_all(others, setting.connect))

    def lacks(host: Host) -> str | None:
        return None if file_digest(host, path) == sha256 else "another file"

    without = try_each(hosts, lacks, _HASH_S)
    return next((host for host in hosts if host.name not in without), None)
