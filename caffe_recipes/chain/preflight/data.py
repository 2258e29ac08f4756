"""The LMDBs: there or to be staged, whole, and with labels that the net has classes for."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from caffe_recipes.caffe.datums import check_datums
from caffe_recipes.chain.preflight.findings import Finding, Trouble, tell
from caffe_recipes.chain.preflight.look import Look, lmdb_path
from caffe_recipes.chain.setting import Setting
from caffe_recipes.chain.staging import find_means, refusal
from caffe_recipes.chain.units import describe_duration
from caffe_recipes.cluster.staging.manifest import cache_folder, find_source
from caffe_recipes.cluster.staging.stage import plan_from, survey
from caffe_recipes.errors import DataError

# Of a huge LMDB so many records are looked at, evenly spread.
_SAMPLE = 2000


def check_train_lmdb(look: Look) -> list[Finding]:
    """Look into the LMDB that is to be staged, and at what lies at its place on each host.

    Without one to stage, each host must have it. Raises DataError.
    """
    setting, source = look.setting, look.setting.lmdb_source
    if source is not None and (source / "data.mdb").exists():
        seen = _count_records(source, setting, setting.recipe.data.train.images)
        return _plan_staging(look, source, f"{setting.show(source)}: {seen}")
    if source in setting.built_lmdbs and not source.exists():
        return [Finding("training data", _builder(setting, source))]
    return _compare_lmdbs(look)


def check_test_lmdb(look: Look) -> list[Finding]:
    """Look into the test LMDB, where anything is tested; raises DataError."""
    setting, recipe = look.setting, look.setting.recipe
    path = setting.root / recipe.data.test.lmdb
    phases = [recipe.phase(step.phase) for step in look.plan.trainings]
    if not look.plan.testings and not any(phase.test_iter for phase in phases):
        said = "none is needed"
    elif path in setting.built_lmdbs and not path.exists():
        said = _builder(setting, path)
    else:
        said = f"{setting.show(path)}: {_count_records(path, setting, recipe.data.test.images)}"
    return [Finding("test data", said)]


def _plan_staging(look: Look, folder: Path, said: str) -> list[Finding]:
    """Say what staging would do, or where it cannot: another LMDB, no room, a folder that is not ours."""
    setting, hosts = look.setting, look.answered(look.setting.lmdb_hosts)
    if not hosts:
        return look.skip("training data", [host.name for host in setting.lmdb_hosts])
    lmdb, source = setting.path(setting.recipe.data.train.lmdb), find_source(folder)
    states, manifest = survey(hosts, lmdb, source, cache_folder())
    plan = plan_from(states, lmdb, source, manifest, find_means(setting.profile, setting.how))
    chosen = next((option for option in plan.options if option.how == plan.how), None)
    if chosen is None:
        staged = "staged"
    else:
        takes = (
            f", some {describe_duration(chosen.seconds)}" if chosen.seconds and chosen.seconds >= 1 else ""
        )
        staged = f"to be staged on {len(plan.missing)} of {len(states)} hosts by {chosen.how}{takes}"
    troubles = [
        Trouble(host, reason, refusal([(host, reason)], lmdb, 1).hint, lmdb) for host, reason in plan.refused
    ]
    return tell("training data", troubles, f"{said}; {staged}")


def _compare_lmdbs(look: Look) -> list[Finding]:
    """Compare the LMDBs that hosts have already: by their sizes, since hashing takes minutes."""
    setting, data, source = look.setting, look.setting.recipe.data.train, look.setting.lmdb_source
    sizes = {
        host.name: look.facts[host.name].sizes[lmdb_path(setting)][0] or 0
        for host in look.answered(setting.lmdb_hosts)
    }
    if not sizes:
        return look.skip("training data", [host.name for host in setting.lmdb_hosts])
    what = "no LMDB there, and none to stage" + (f" from {setting.show(source)}" if source else "")
    hint = "give the folder that holds data.mdb with --lmdb-source"
    troubles = [
        Trouble(host, what, hint, data.lmdb, kind=DataError) for host, size in sizes.items() if not size
    ]
    common = max(sizes.values(), key=list(sizes.values()).count)
    troubles += [
        Trouble(
            host, f"has {size:,} bytes, the others {common:,}", "stage it again", data.lmdb, kind=DataError
        )
        for host, size in sizes.items()
        if size and common and size != common
    ]
    first = setting.lmdb_hosts[0]
    if troubles or not first.is_local:
        return tell("training data", troubles, f"{data.lmdb}: there")
    return [
        Finding(
            "training data",
            f"{data.lmdb}: {_count_records(Path(setting.path(data.lmdb)), setting, data.images)}",
        )
    ]


def _builder(setting: Setting, path: Path) -> str:
    for module in ("sklearn", "cv2"):
        if find_spec(module) is None:
            hint = "install this project's extra 'local', as its README says"
            raise DataError(path, f"cannot be built without {module}", hint)
    return f"{setting.show(path)}: will be built"


def _count_records(path: Path, setting: Setting, images: int) -> str:
    seen = check_datums(path, setting.recipe.net.classes, limit=_SAMPLE)
    counted = f"{seen.count:,} records" + (f" (the recipe says {images:,})" if seen.count != images else "")
    sampled = "" if seen.checked == seen.count else f" of {seen.checked:,}"
    return f"{counted}, labels{sampled} within the classes"
