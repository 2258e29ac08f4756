"""Check that hosts have the same prototxts and weights as we, and the folders that a run writes to."""

from __future__ import annotations

import hashlib
import os
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path

from caffe_recipes.cluster.commands import Host
from caffe_recipes.cluster.hosts import DIGEST_S, LocalHost, ask_all, file_bytes, remote_sha256
from caffe_recipes.errors import InputError
from caffe_recipes.files.bounded_reads import reading
from caffe_recipes.render.recipe_files import generate
from caffe_recipes.render.tree import check_own_net, find_differences
from caffe_recipes.run.folded_events import describe_run_command
from caffe_recipes.run.lock import RecipeLock
from caffe_recipes.run.preflight.findings import CheckResult, HostProblem, as_findings, as_problem
from caffe_recipes.run.preflight.nodes import NodeView
from caffe_recipes.run.snapshots import verify_kept
from caffe_recipes.run.training_plan import find_step
from caffe_recipes.run_names import RUNS
from caffe_recipes.trust import is_changed_by_group
from caffe_recipes.wording import describe_count, plural

# A host reads this in a second or two; of larger files only the sizes are compared.
HASHED_BYTES = 1e9
_SHARED = "the Caffe root must be on a file system that all hosts share"


def check_files(view: NodeView) -> list[CheckResult]:
    """Compare the trainer's files with those that the recipe generates, and each host's files with ours.

    Raises InputError if a file differs from what the recipe generates, unless it is to be overwritten.
    """
    setting, differences = view.setting, find_differences(view.plan.files, view.setting.root)
    changed = [diff.path for diff in differences if diff.what == "changed"]
    check_own_net(setting.recipe, view.plan.files, setting.root)
    if changed and not setting.overwrite:
        others = f", and so {plural(len(changed) - 1, 'does', 'do')} {len(changed) - 1} more"
        what = f"differs from what the recipe generates{others if len(changed) > 1 else ''}"
        out = "" if setting.root.resolve() == Path.cwd() else f" --out {shlex.quote(str(setting.root))}"
        shows, replaces = (
            describe_run_command("", setting.recipe, f"generate{option}{out}") for option in (" --check", "")
        )
        overwrite = describe_run_command("", setting.recipe, "run --overwrite")
        is_generated = changed[0] in generate(setting.recipe)  # those in a prototxt_dir of `.` are not
        hint = (
            f"{shows} prints the difference, and {replaces} replaces the file"
            if is_generated
            else f"move it away, or overwrite it with {overwrite}"
        )
        raise InputError(setting.path(changed[0]), what, hint)
    ours = {path: _digest_here(path) for path in map(setting.path, view.plan.files) if Path(path).is_file()}
    problems = [
        HostProblem(
            facts.host, "no such file there" if seen is None else "differs from the file here", _SHARED, path
        )
        for facts in view.facts.values()
        for path, digest in ours.items()
        if (seen := facts.digests.get(path)) != digest
    ]
    placed = f"{len(view.plan.files)} in {', '.join(setting.trainer.folders())}"
    return as_findings(f"{setting.trainer.words.file_kind}s", _first_of_each_host(problems), placed)


def _digest_here(path: str) -> str:
    """Return the SHA-256 of a small file of this machine; raises InputError if it cannot be read."""
    with reading(Path(path), InputError, "check the file"):
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def check_lint(view: NodeView) -> list[CheckResult]:
    """Find what `lint` calls an error in the phases that are still to be trained."""
    setting, done = view.setting, view.state.finished
    left = [step.phase for step in view.plan.trainings if step.phase not in done]
    errors = setting.trainer.mistakes(left, setting.root, setting.lmdb_source)
    if not errors:
        return [CheckResult("lint", f"no errors in {describe_count(len(left), 'phase')}")]
    return [CheckResult("lint", str(error), error) for error in errors]


def check_start(view: NodeView) -> list[CheckResult]:
    """Check the weights that unfinished phases start from, here and on every host that reads them.

    Weights that an unfinished phase will write are skipped. Raises WeightsError.
    """
    setting, state = view.setting, view.state
    finished = state.snapshots
    made = {path for step in view.plan.trainings for path in step.kept} - finished.keys()
    trained = [(step.weights, step.net) for step in view.unfinished]
    needed = [*trained, *((testing.weights, testing.net) for testing in view.plan.testings)]
    given = dict.fromkeys((path, net) for path, net in needed if path and path not in made)
    for path, net in given:
        if path in finished:
            digest, phase = finished[path]
            before = find_step(setting.recipe, phase).trained_path(path)
            verify_kept(Path(setting.path(path)), digest, phase, before)
        setting.trainer.models.check_model(view.plan.files, net, Path(setting.path(path)))
    read = dict.fromkeys(path for path, _ in trained if path and path not in made)
    first = needed[0][0] if needed else None
    kept = state.checkpoints.get(view.unfinished[0].phase) if view.unfinished else None
    if kept:
        first = f"the checkpoint at {kept[-1].iteration} of {view.unfinished[0].phase}"
    problems = find_differing_files(view.hosts, [setting.path(path) for path in read])
    if not given and not problems:
        return [CheckResult("starts from", first or setting.trainer.words.initialization, is_checked=False)]
    return as_findings("starts from", problems, first or setting.trainer.words.initialization)


def find_differing_files(hosts: Sequence[Host], paths: Sequence[str]) -> list[HostProblem]:
    """Compare files on all hosts with ours: their sizes, and, if they are small, their digests."""
    here, distant = LocalHost(), [host for host in hosts if not host.is_local]
    if not distant:
        return []
    problems: list[HostProblem] = []
    for path in paths:
        size = file_bytes(here, path) or 0
        digest = remote_sha256(here, path) if size <= HASHED_BYTES else None

        def judge(host: Host, path: str = path, size: int = size, digest: str | None = digest) -> str | None:
            seen = file_bytes(host, path)
            if seen is None:
                return "no such file there"
            if seen != size:
                return f"has {seen:,} bytes there, {size:,} here"
            return "differs from the file here" if digest and remote_sha256(host, path) != digest else None

        for answer in ask_all(distant, judge, DIGEST_S):
            if answer.error is not None:
                problems.append(as_problem(answer.host.name, answer.error))
            elif answer.value is not None:
                hint = f"every rank reads it: {_SHARED}"
                problems.append(HostProblem(answer.host.name, answer.value, hint, path))
    return problems


def _first_of_each_host(problems: Sequence[HostProblem]) -> list[HostProblem]:
    """Keep the first problem of each host: if one file differs, others of its folder do as well."""
    return list({problem.host: problem for problem in reversed(problems)}.values())[::-1]


MayWrite = Callable[[Path], bool]


def may_write(folder: Path) -> bool:
    """Return whether files can be created in a folder; False on a read-only file system, even for root."""
    return os.access(folder, os.W_OK | os.X_OK)


def check_folders(view: NodeView, writes: MayWrite = may_write) -> list[CheckResult]:
    """Report the folders where a run, its lock, or the missing files of the trainer cannot be written."""
    setting = view.setting
    lacking = [one for one in find_differences(view.plan.files, setting.root) if one.what != "stale"]
    folders = [RUNS, setting.show(RecipeLock(setting.root, setting.recipe.name).folder)]
    folders += setting.trainer.folders() if lacking else []
    nearest: dict[Path, list[str]] = {}
    for name in folders:
        nearest.setdefault(_nearest_path(setting.root / name), []).append(name)
    errors = [error for near, names in nearest.items() if (error := _judge_folder(near, names, writes))]
    if errors:
        return [CheckResult("folders", str(error), error) for error in errors]
    found = f"{', '.join(folders)} can be written to"
    shared = [near for near in nearest if is_changed_by_group(near)]
    if not shared:
        return [CheckResult("folders", found)]
    groups = f"also by the group of {', '.join(map(str, shared))}, whose members are trusted as you are"
    return [CheckResult("folders", f"{found}, {groups}", warns=True)]


def _nearest_path(folder: Path) -> Path:
    """Return the nearest existing path at or above a folder; it need not be a folder."""
    return next(path for path in (folder, *folder.parents) if os.path.lexists(path))


def _judge_folder(near: Path, names: Sequence[str], writes: MayWrite) -> InputError | None:
    needed = f"a run writes in {', '.join(names)}"
    if not near.is_dir():
        return InputError(near, f"is not a folder, and {needed}", "move it away")
    if not writes(near):
        return InputError(near, f"cannot be written to, and {needed}", "fix its mode, owner or mount")
    return None
