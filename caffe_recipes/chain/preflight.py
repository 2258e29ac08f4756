"""Preflight: everything that can be known to be wrong before a run, looked at before anything is changed."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from caffe_recipes.caffe.datums import check_datums
from caffe_recipes.caffe.weights import weights_bytes
from caffe_recipes.chain.journal import RunState
from caffe_recipes.chain.plan import Plan
from caffe_recipes.chain.setting import OUR_TRAINER, Setting
from caffe_recipes.chain.snapshots import verify_kept, verify_weights
from caffe_recipes.chain.staging import find_means, refusal
from caffe_recipes.chain.units import describe_bytes, describe_duration, describe_names
from caffe_recipes.cluster.hostfile import render_hostfile
from caffe_recipes.cluster.hosts import Host, file_bytes, free_bytes
from caffe_recipes.cluster.parallel import on_all
from caffe_recipes.cluster.staging.manifest import cache_folder, find_source
from caffe_recipes.cluster.staging.stage import plan_from, survey
from caffe_recipes.errors import CaffeRecipesError, ClusterError, DataError, InputError
from caffe_recipes.generate.nets import build_net
from caffe_recipes.generate.tree import find_differences

# Of a huge LMDB so many records are looked at, evenly spread.
_SAMPLE = 2000
_START_S = 120.0
# Hydra dies of SIGPIPE if its ranks end before it has told them that there is no standard input.
_RANK = ("sleep", "0.3")


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at: what was seen, which may be worth a warning, or the error."""

    subject: str
    said: str
    error: CaffeRecipesError | None = None
    warns: bool = False


def run_preflight(setting: Setting, plan: Plan, state: RunState) -> list[Finding]:
    """Look at everything, whatever is wrong with the rest."""
    return [_look(subject, partial(check, setting, plan, state)) for subject, check in _CHECKS.items()]


def _look(subject: str, check: Callable[[], str | Finding]) -> Finding:
    try:
        said = check()
        return said if isinstance(said, Finding) else Finding(subject, said)
    except CaffeRecipesError as error:
        return Finding(subject, str(error), error)


def _check_hosts(setting: Setting, plan: Plan, state: RunState) -> str:
    cluster = setting.recipe.cluster
    on_all(setting.hosts, lambda host: _check_host(host, setting))
    named = describe_names([host.name for host in setting.hosts])
    return f"{named}: {cluster.nodes} x {cluster.ranks_per_node} ranks of {cluster.batch_per_rank} images"


def _check_host(host: Host, setting: Setting) -> None:
    program = setting.path(setting.trainer)
    if host.run(["test", "-x", program]).returncode != 0:
        hint = "the Caffe root and the trainer must be on a file system of all hosts"
        raise ClusterError(f"{host.name}:{program}", "no such program there", hint)


def _check_launcher(setting: Setting, plan: Plan, state: RunState) -> str | Finding:
    launcher = setting.find_launcher()
    with os.fdopen(os.memfd_create("hostfile"), "w") as hostfile:  # nothing may be written to a disk yet
        hostfile.write(render_hostfile([host.name for host in setting.hosts]))
        hostfile.flush()
        number = hostfile.fileno()
        argv = setting.launch_argv(_RANK, f"/dev/fd/{number}")
        named = describe_names([host.name for host in setting.hosts])
        by_hand = shlex.join(setting.launch_argv(_RANK, "HOSTFILE"))
        hint = f"try `{by_hand}` by hand, with {named} in HOSTFILE"
        _start(argv, setting, hint, keep=(number,))
    said = f"{launcher} starts a process for each rank"
    if not setting.left_out:
        return said
    options = ", ".join(setting.left_out)
    return Finding("launcher", f"{said}, without {options}, which it does not know", warns=True)


def _check_trainer(setting: Setting, plan: Plan, state: RunState) -> str:
    # gflags ends with 1 where it is asked for help.
    hint = f"try `{shlex.quote(setting.trainer)} --help` by hand"
    _start(setting.trainer_argv(["--help"]), setting, hint, succeeds=setting.recipe.trainer == OUR_TRAINER)
    return setting.trainer


def _start(
    argv: Sequence[str], setting: Setting, hint: str, *, succeeds: bool = True, keep: tuple[int, ...] = ()
) -> None:
    """Run a program to its end; raises ClusterError with its own first word if it does not start.

    A shell returns 126 for what is no program, and the loader 127 for one that lacks a library.
    """
    environment = {**os.environ, **setting.environment}
    try:
        done = subprocess.run(
            argv, cwd=setting.root, env=environment, pass_fds=keep, stdin=subprocess.DEVNULL,
            capture_output=True, timeout=_START_S, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise ClusterError(argv[0], f"does not end within {_START_S:.0f} s", hint) from None
    except OSError as error:
        raise ClusterError(argv[0], f"does not start: {error.strerror}", "check its installation") from None
    if done.returncode != 0 and (succeeds or done.returncode < 0 or done.returncode in (126, 127)):
        lines = [line for line in done.stderr.decode(errors="replace").splitlines() if line.strip()]
        reason = lines[0].strip() if lines else f"returned {done.returncode}"
        raise ClusterError(argv[0], f"does not start: {reason}", hint)


def _check_prototxts(setting: Setting, plan: Plan, state: RunState) -> str:
    changed = [diff.path for diff in find_differences(plan.prototxts, setting.root) if diff.what == "changed"]
    if changed and not setting.overwrite:
        what = "differs from what the recipe generates"
        raise InputError(setting.path(changed[0]), what, "move it away, or give --overwrite")
    return f"{len(plan.prototxts)} in {setting.recipe.prototxt_dir}"


def _check_train_lmdb(setting: Setting, plan: Plan, state: RunState) -> str:
    data, source = setting.recipe.data.train, setting.lmdb_source
    if source is not None and (source / "data.mdb").exists():
        seen = _check_records(source, setting, data.images)
        return f"{setting.show(source)}: {seen}; {_check_room(setting, source)}"
    if source in setting.built_lmdbs and not source.exists():
        return _check_builder(setting, source)
    sizes = on_all(setting.lmdb_hosts, lambda host: file_bytes(host, setting.path(f"{data.lmdb}/data.mdb")))
    for host, size in zip(setting.lmdb_hosts, sizes, strict=True):
        if not size:
            what = "no LMDB there, and none to stage"
            hint = "give the folder that holds data.mdb with --lmdb-source"
            raise DataError(
                f"{host.name}:{data.lmdb}", f"{what} from {setting.show(source)}" if source else what, hint
            )
    first = setting.lmdb_hosts[0]
    seen = _check_records(Path(setting.path(data.lmdb)), setting, data.images) if first.is_local else "there"
    return f"{data.lmdb}: {seen}"


def _check_builder(setting: Setting, path: Path) -> str:
    for module in ("sklearn", "cv2"):
        if find_spec(module) is None:
            raise DataError(
                path,
                f"cannot be built without {module}",
                "install this project's extra 'local', as its README says",
            )
    return f"{setting.show(path)}: will be built"


def _check_room(setting: Setting, folder: Path) -> str:
    lmdb, source = setting.path(setting.recipe.data.train.lmdb), find_source(folder)
    states, manifest = survey(setting.lmdb_hosts, lmdb, source, cache_folder())
    plan = plan_from(states, lmdb, source, manifest, find_means(setting.profile, setting.how))
    if plan.refused:
        raise refusal(plan.refused, lmdb, len(states))
    chosen = next((option for option in plan.options if option.how == plan.how), None)
    if chosen is None:
        return "staged"
    takes = f", some {describe_duration(chosen.seconds)}" if chosen.seconds and chosen.seconds >= 1 else ""
    return f"to be staged on {len(plan.missing)} of {len(states)} hosts by {chosen.how}{takes}"


def _check_test_lmdb(setting: Setting, plan: Plan, state: RunState) -> str:
    path = setting.root / setting.recipe.data.test.lmdb
    recipe = setting.recipe
    if not recipe.evaluation and not any(phase.test_iter for phase in recipe.phases):
        return "none is needed"
    if path in setting.built_lmdbs and not path.exists():
        return _check_builder(setting, path)
    return f"{setting.show(path)}: {_check_records(path, setting, setting.recipe.data.test.images)}"


def _check_records(path: Path, setting: Setting, images: int) -> str:
    seen = check_datums(path, setting.recipe.net.classes, limit=_SAMPLE)
    counted = f"{seen.count:,} records" + (f" (the recipe says {images:,})" if seen.count != images else "")
    sampled = "" if seen.checked == seen.count else f" of {seen.checked:,}"
    return f"{counted}, labels{sampled} within the classes"


def _check_start(setting: Setting, plan: Plan, state: RunState) -> str:
    """Look into what the unfinished phases start from, unless an unfinished phase is still to make it."""
    finished = {
        path: (digest, done.phase)
        for done in state.finished.values()
        for path, digest in ((done.snapshot, done.sha256), *done.needed.items())
    }
    made = {path for step in plan.trainings for path in step.kept} - finished.keys()
    needed = [(step.weights, step.net) for step in plan.trainings if step.phase not in state.finished]
    needed += [(plan.testing.weights, plan.testing.net)] if plan.testing else []
    given = dict.fromkeys((path, net) for path, net in needed if path and path not in made)
    for path, net in given:
        if path in finished:
            verify_kept(Path(setting.path(path)), *finished[path])
        verify_weights(Path(setting.path(path)), build_net(setting.recipe, net))
    first = needed[0][0] if needed else None
    return first or "the nets' fillers"


def _check_disk(setting: Setting, plan: Plan, state: RunState) -> str:
    """Count on all caffemodels and solverstates at the first host, and on the caffemodels that are kept here.

    A solverstate is about as large as its caffemodel.
    """
    unfinished = [step for step in plan.trainings if step.phase not in state.finished]
    # None where only the images tell the number of channels.
    sizes = {step.net: weights_bytes(build_net(setting.recipe, step.net)) for step in unfinished}
    first, snapshot = setting.hosts[0], setting.path(plan.trainings[0].snapshot)
    room = free_bytes(first, snapshot)
    files = {
        step.phase: 2 * step.snapshots + (len(step.kept) if first.is_local else 0) for step in unfinished
    }
    needed = sum(files[step.phase] * (sizes[step.net] or 0) for step in unfinished)
    _need(first, snapshot, needed, room)
    wanted = (
        "snapshots, whose size the images decide"
        if None in sizes.values()
        else f"{describe_bytes(needed)} of snapshots"
    )
    return f"{describe_bytes(room)} free on {first.name} for {wanted}"


def _need(host: Host, path: str, needed: int, room: int) -> None:
    if room < needed:
        what = f"{describe_bytes(room)} are free, {describe_bytes(needed)} are needed"
        raise ClusterError(f"{host.name}:{path}", what, "make room")


_CHECKS: dict[str, Callable[[Setting, Plan, RunState], str | Finding]] = {
    "hosts": _check_hosts,
    "launcher": _check_launcher,
    "trainer": _check_trainer,
    "prototxts": _check_prototxts,
    "training data": _check_train_lmdb,
    "test data": _check_test_lmdb,
    "starts from": _check_start,
    "disk": _check_disk,
}
