"""What a run needs on disk before its first phase: prototxts, LMDBs, folders; each where it is missing."""

from __future__ import annotations

import posixpath

from caffe_recipes.chain.run import Run
from caffe_recipes.chain.staging import find_means, refusal
from caffe_recipes.chain.units import describe_bytes, describe_names
from caffe_recipes.cluster.staging.stage import stage
from caffe_recipes.errors import ClusterError, RunFailed
from caffe_recipes.generate.tree import write_files


def prepare(run: Run) -> None:
    """Place, build and stage; raises InputError or RunFailed if a disk or a host does not let us."""
    with run.lock.preparing:
        _place(run)
        _build(run)
        _make_folders(run)
        stage_lmdb(run)


def _place(run: Run) -> None:
    written = write_files(run.plan.prototxts, run.setting.root)
    if written:
        run.journal.append("placed", files=written)
        run.reporter.say(f"placed {len(written)} prototxts in {', '.join(run.setting.recipe.prototxt_dirs)}")


def _build(run: Run) -> None:
    missing = [path for path in run.setting.built_lmdbs if not path.exists()]
    if missing:
        from caffe_recipes.data.digits import build_digits

        run.reporter.say(f"building {', '.join(run.setting.show(path) for path in missing)}")
        try:
            build_digits(missing[0].parent)
        except RunFailed as error:  # a disk that is full
            run.journal.append("failed", reason=str(error))
            raise
        run.journal.append("built", lmdbs=[str(path) for path in missing])


def _make_folders(run: Run) -> None:
    """Make the snapshots' folders on the first host: Caffe may die without after its last iteration."""
    folders = {posixpath.dirname(run.setting.path(step.snapshot)) for step in run.plan.trainings}
    first = run.setting.hosts[0]
    done = first.run(["mkdir", "-p", "--", *sorted(folders)])
    if done.returncode != 0:
        raise ClusterError(first.name, f"no folder for snapshots: {done.stderr.strip()}", "check its disk")


def stage_lmdb(run: Run) -> None:
    """Put the training LMDB on the hosts that lack it; raises ClusterError for those that cannot take it."""
    setting, source = run.setting, run.setting.lmdb_source
    if source is None or not (source / "data.mdb").exists():
        return
    hosts, lmdb = setting.lmdb_hosts, setting.path(setting.recipe.data.train.lmdb)
    size = (source / "data.mdb").stat().st_size
    # What this machine does for itself alone needs no plan to be argued with.
    tells = len(hosts) > 1 or not hosts[0].is_local
    means = find_means(setting.profile, setting.how)
    with run.lock.preparing:
        placed = stage(hosts, lmdb, source, means, run.reporter.say if tells else lambda line: None)
    sent = [each.host for each in placed if each.outcome == "sent"]
    if sent:
        what = f"{setting.show(source)} ({describe_bytes(size)}) to {setting.show(lmdb)}"
        run.reporter.say(f"staged {what} on {describe_names(sent)}")
        run.journal.append("staged", lmdb=lmdb, bytes=size, hosts=sent)
    failed = [(each.host, each.reason) for each in placed if each.outcome == "failed"]
    if failed:
        raise refusal(failed, lmdb, len(hosts))
