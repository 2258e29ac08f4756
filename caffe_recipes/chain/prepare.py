"""What a run needs on disk before its first phase: prototxts, LMDBs, folders; each where it is missing."""

from __future__ import annotations

import posixpath

from caffe_recipes.chain.phase import Run
from caffe_recipes.chain.units import describe_bytes, describe_names
from caffe_recipes.cluster.staging.plain import find_unstaged, on_all, stage_lmdb
from caffe_recipes.errors import ClusterError
from caffe_recipes.generate.tree import write_files


def prepare(run: Run) -> None:
    """Place, build and stage; raises InputError if a disk or a host does not let us."""
    _place(run)
    _build(run)
    _make_folders(run)
    _stage(run)


def _place(run: Run) -> None:
    written = write_files(run.plan.prototxts, run.setting.root)
    if written:
        run.journal.append("placed", files=written)
        run.reporter.say(f"placed {len(written)} prototxts in {run.setting.recipe.prototxt_dir}")


def _build(run: Run) -> None:
    missing = [path for path in run.setting.built_lmdbs if not path.exists()]
    if missing:
        from caffe_recipes.data.digits import build_digits

        run.reporter.say(f"building {', '.join(run.setting.show(path) for path in missing)}")
        build_digits(missing[0].parent)
        run.journal.append("built", lmdbs=[str(path) for path in missing])


def _make_folders(run: Run) -> None:
    """Make the snapshots' folders on the first host: Caffe may die without after its last iteration."""
    folders = {posixpath.dirname(run.setting.path(step.snapshot)) for step in run.plan.trainings}
    first = run.setting.hosts[0]
    done = first.run(["mkdir", "-p", "--", *sorted(folders)])
    if done.returncode != 0:
        raise ClusterError(first.name, f"no folder for snapshots: {done.stderr.strip()}", "check its disk")


def _stage(run: Run) -> None:
    setting, source = run.setting, run.setting.lmdb_source
    if source is None or not (source / "data.mdb").exists():
        return
    lmdb, size = setting.path(setting.recipe.data.train.lmdb), (source / "data.mdb").stat().st_size
    bare = find_unstaged(setting.lmdb_hosts, size, lmdb)
    if bare:
        names = [host.name for host in bare]
        what = f"{setting.show(source)} ({describe_bytes(size)}) to {setting.show(lmdb)}"
        run.reporter.say(f"staging {what} on {describe_names(names)}")
        on_all(bare, lambda host: stage_lmdb(host, source, lmdb))
        run.journal.append("staged", lmdb=lmdb, bytes=size, hosts=names)
