"""Check files and disks:

- prototxts and weights, which must be the same on every host as here,
- the folders of the Caffe root that a run writes to on this machine,
- the LMDBs: on the hosts or to be staged, complete, with labels within the net's classes,
  and with images as large as the crop,
- mean files: on the hosts, and as large as the images,
- TFRecords: on the hosts or to be staged, complete, and those of the recipe,
- the disks of the first host and of this machine: free space, and snapshots that nobody else can replace.
"""

from __future__ import annotations

import hashlib
import os
import posixpath
import shlex
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from caffe_recipes.caffe.datums import BadLabel, check_datums
from caffe_recipes.caffe.image_headers import ImageShape
from caffe_recipes.caffe.weights import load_mean, mean_shape, show_image
from caffe_recipes.cluster.commands import Host
from caffe_recipes.cluster.hosts import DIGEST_S, LocalHost, ask_all, file_bytes, remote_sha256
from caffe_recipes.cluster.remote import OTHER_FOLDER, check_trust, own_file_stamp
from caffe_recipes.cluster.staging.file_sets import FileSet, lmdb_set
from caffe_recipes.cluster.staging.relay import DATA
from caffe_recipes.cluster.staging.stage import plan_from, survey
from caffe_recipes.data import digits
from caffe_recipes.data.tfrecords import records_manifest_path
from caffe_recipes.errors import DataError, HostFailed, InputError
from caffe_recipes.files.bounded_reads import reading
from caffe_recipes.recipe.model import Recipe
from caffe_recipes.render.tree import check_own_net, find_differences, generate
from caffe_recipes.run.context import RunSetup
from caffe_recipes.run.events import describe_run_command
from caffe_recipes.run.folders import RUNS
from caffe_recipes.run.lock import RecipeLock
from caffe_recipes.run.preflight.findings import CheckResult, HostProblem, as_findings, as_problem
from caffe_recipes.run.preflight.nodes import Folder, NodeFacts, NodeView, Stray, lmdb_path, snapshot_folders
from caffe_recipes.run.snapshots import verify_kept
from caffe_recipes.run.staging import (
    DataPart,
    ask_about_data,
    check_source_access,
    find_staging_env,
    staging_hint,
)
from caffe_recipes.run.trainer import Training
from caffe_recipes.run.training_plan import find_step
from caffe_recipes.tensorflow.run import Records
from caffe_recipes.trust import is_changed_by_group
from caffe_recipes.units import describe_bytes, describe_duration
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


# The most records of an LMDB to check, evenly spread.
_SAMPLE = 2000


_IN_NETS = "as the nets name them; neither staged nor checked"


def check_train_lmdb(view: NodeView) -> list[CheckResult]:
    """Check the LMDB to stage, and what each host has at its path.

    If there is none to stage, each host must have it. Raises DataError, and ClusterError for a source that
    another user could have put there.
    """
    setting, source = view.setting, view.setting.lmdb_source
    if not setting.data_path:
        return [CheckResult("training data", _IN_NETS, is_checked=False)]
    if source is not None and (source / DATA).exists():
        check_source_access(setting.root, [str(source)])
        records, warnings = _check_records(source, view, "train")
        return [*_plan_staging(view, source, f"{setting.show(source)}: {records}"), *warnings]
    if source in setting.built_data and not source.exists():
        return [CheckResult("training data", _builder(view, source, "train"), is_checked=False)]
    return _compare_lmdbs(view)


def check_test_lmdb(view: NodeView) -> list[CheckResult]:
    """Check the test LMDB, if anything is tested. Raises DataError."""
    setting, recipe = view.setting, _recipe_of(view)
    path = setting.root / recipe.data.test.lmdb
    phases = [recipe.phase(step.phase) for step in view.plan.trainings]
    if not view.plan.testings and not any(phase.test_iter for phase in phases):
        return [CheckResult("test data", "not needed", is_checked=False)]
    if not setting.data_path:
        return [CheckResult("test data", _IN_NETS, is_checked=False)]
    if path in setting.built_data and not path.exists():
        return [CheckResult("test data", _builder(view, path, "test"), is_checked=False)]
    if problems := _find_untrusted(view, "test"):
        return as_findings("test data", problems)
    try:
        records, warnings = _check_records(path, view, "test")
    except DataError as error:
        if (path / DATA).exists():
            raise
        hint = "build it with `caffe-recipes data build`, or correct data.test.lmdb in the recipe"
        raise error.reworded(hint=hint) from None
    return [CheckResult("test data", f"{setting.show(path)}: {records}"), *warnings]


def _plan_staging(view: NodeView, folder: Path, records: str) -> list[CheckResult]:
    """Return what staging would do, or why it cannot: another LMDB, no space, a folder that is not ours."""
    setting, hosts = view.setting, view.answered(view.setting.lmdb_hosts)
    if not hosts:
        return view.skip_unreachable("training data", [host.name for host in setting.lmdb_hosts])
    lmdb = setting.data_path
    files = lmdb_set(lmdb, folder, [host.name for host in hosts], setting.root)
    env = find_staging_env(setting.profile, setting.how)
    plan = plan_from(*survey(hosts, files, env.cache), env)
    chosen = next((option for option in plan.options if option.how == plan.how), None)
    if chosen is None:
        staged = "staged"
    else:
        takes = (
            f", about {describe_duration(chosen.seconds)}" if chosen.seconds and chosen.seconds >= 1 else ""
        )
        on = f"{len(plan.missing)} of {describe_count(len(hosts), 'host')}"
        staged = f"to be staged on {on} by {chosen.how}{takes}"
    problems = [HostProblem(host, reason, staging_hint(reason), lmdb) for host, reason in plan.refused]
    return as_findings("training data", problems, f"{records}; {staged}")


def _compare_lmdbs(view: NodeView) -> list[CheckResult]:
    """Compare the LMDBs that the hosts have, by their sizes, since hashing takes minutes."""
    setting, lmdb, source = view.setting, _recipe_of(view).data.train.lmdb, view.setting.lmdb_source
    sizes = {
        host.name: view.facts[host.name].sizes[lmdb_path(setting)][0] or 0
        for host in view.answered(setting.lmdb_hosts)
    }
    if not sizes:
        return view.skip_unreachable("training data", [host.name for host in setting.lmdb_hosts])
    what = "no LMDB there, and none to stage" + (f" from {setting.show(source)}" if source else "")
    hint = "build it with `caffe-recipes data build`, or give its folder with --lmdb-source"
    problems = [HostProblem(host, what, hint, lmdb) for host, size in sizes.items() if not size]
    common = max(sizes.values(), key=list(sizes.values()).count)
    problems += [
        HostProblem(host, f"has {size:,} bytes, but the others have {common:,}", "stage it again", lmdb)
        for host, size in sizes.items()
        if size and common and size != common
    ]
    problems += _find_untrusted(view, "train")
    first = setting.lmdb_hosts[0]
    if problems or not first.is_local:
        return as_findings("training data", problems, f"{lmdb}: present")
    records, warnings = _check_records(Path(setting.path(lmdb)), view, "train")
    return [CheckResult("training data", f"{lmdb}: {records}"), *warnings]


def _find_untrusted(view: NodeView, part: DataPart) -> list[HostProblem]:
    """Return the hosts on which another user could have put the data of a part."""
    answers = ask_about_data(view.setting, part, view.hosts)
    return [as_problem(answer.host.name, answer.error) for answer in answers if answer.error is not None]


def _builder(view: NodeView, path: Path, part: DataPart) -> str:
    _check_sizes(path, view, part, [(3, digits.SIDE_PX, digits.SIDE_PX)])
    for module in ("sklearn", "cv2"):
        if find_spec(module) is None:
            hint = "install the extra 'local' of caffe-recipes (see its README)"
            raise DataError(path, f"cannot be built without {module}", hint)
    return f"{view.setting.show(path)}: will be built"


def _recipe_of(view: NodeView) -> Recipe:
    recipe = view.setting.recipe
    assert isinstance(recipe, Recipe)  # only the Caffe trainer asks for these checks
    return recipe


_SET_BY_IMAGES: Mapping[DataPart, tuple[str, str]] = {
    "train": ("training data", "from which the epochs are counted"),
    "test": ("test data", "from which the iterations of a test follow"),
}


def _check_records(path: Path, view: NodeView, part: DataPart) -> tuple[str, list[CheckResult]]:
    """Return what an LMDB has, and a warning if that is another number of images than the recipe's."""
    classes, data = view.setting.recipe.classes, _recipe_of(view).data
    images = data.train.images if part == "train" else data.test.images
    try:
        seen = check_datums(path, classes, limit=_SAMPLE)
    except BadLabel as error:
        if error.label is None or error.label < classes:
            raise
        hint = f"write `classes: {error.label + 1}`, or more, in the recipe, or {error.hint}"
        raise error.reworded(hint=hint) from None
    _check_sizes(path, view, part, seen.shapes)
    sampled = "" if seen.checked == seen.count else f" of {seen.checked:,}"
    records = f"{describe_count(seen.count, 'record')}, labels{sampled} within the classes"
    if seen.count == images:
        return records, []
    subject, sets = _SET_BY_IMAGES[part]
    count = describe_count(seen.count, "record")
    what = f"{view.setting.show(path)}: {count}, but data.{part}.images is {images:,}, {sets}"
    hint = f"write `images: {seen.count}`, or use another LMDB"
    return records, [CheckResult(subject, f"{what}; {hint}", warns=True)]


def _check_sizes(path: Path, view: NodeView, part: DataPart, shapes: Collection[ImageShape]) -> None:
    """Raise DataError for an image at whose size the trainer would stop, unless images are resized first.

    That is an image smaller than its crop, or with another shape than the mean image.
    """
    recipe = _recipe_of(view)
    trained = [recipe.nets[recipe.phase(step.phase).net] for step in view.plan.trainings]
    resizes = (
        all(net.random_aspect_ratio for net in trained)
        if part == "train"
        else recipe.data.test.shorter_side_px is not None
    )
    if resizes:
        return
    own = recipe.data.transform_of(part)
    crop = own.crop_size or 0
    _, height, width = min(shapes, key=lambda shape: min(shape[1:]), default=(0, crop, crop))
    if min(height, width) < crop:
        what = f"has an image of {width}x{height} pixels, which is smaller than crop_size: {crop}"
        hint = f"write `crop_size: {min(height, width)}`, or less, in the recipe, or use larger images"
        raise DataError(path, what, hint)
    mean = _known_mean(Path(view.setting.path(own.mean_file))) if own.mean_file else None
    first = 1 if own.force_color or own.force_gray else 0  # which change the number of channels
    other = next((shape for shape in shapes if mean and shape[first:] != mean[first:]), None)
    # `lint` reports it where the first image differs, if there is an LMDB.
    if mean and other and (len(shapes) > 1 or not (path / DATA).exists()):
        what = f"has an image of {show_image(other)}, but mean_file is of {show_image(mean)}"
        raise DataError(path, what, "make it of these images with compute_image_mean, or write mean_value")


def _known_mean(path: Path) -> tuple[int, ...] | None:
    """Return the shape of a mean image; None without one here, which `check_means` reports."""
    try:
        return mean_shape(load_mean(path))
    except DataError:
        return None


def check_means(view: NodeView) -> list[CheckResult]:
    """Check the mean files that the ranks read, and the one that the evaluation reads here, if there are any.

    Raises DataError for a file that is read here and is not a mean image.
    """
    setting, read = view.setting, _means_of_ranks(view)
    tested = _recipe_of(view).data.transform_of("test").mean_file if view.plan.testings else None
    if read and not view.facts:
        return view.skip_unreachable("mean file")
    if problems := judge_means(view):
        return as_findings("mean file", problems)
    paths = dict.fromkeys([*read, *filter(None, [tested])])
    is_host = any(host.is_local for host in view.hosts)
    for path in paths:
        # A path outside the Caffe root, which all hosts share, may lead to another file on each host.
        if is_host or path == tested or Path(setting.path(path)).is_relative_to(setting.root):
            load_mean(setting.path(path))
    return [CheckResult("mean file", ", ".join(paths))] if paths else []


def judge_means(view: NodeView) -> list[HostProblem]:
    """Return the hosts where a mean file is missing, empty, unreadable, or not as long as on the others."""
    paths = map(view.setting.path, _means_of_ranks(view))
    return [problem for path in paths for problem in _judge_mean(view, path)]


def _means_of_ranks(view: NodeView) -> tuple[str, ...]:
    return view.setting.trainer.data.mean_files if view.unfinished else ()


def _judge_mean(view: NodeView, path: str) -> Iterator[HostProblem]:
    seen = {name: facts.sizes[path] for name, facts in view.facts.items()}
    sizes = [size for size, is_readable in seen.values() if size and is_readable]
    common = max(sizes, key=sizes.count, default=0)
    for host, (size, is_readable) in seen.items():
        if size is None:
            what = "no such file there"
        elif not is_readable:
            what = "is not a file that can be read"
        elif not size:
            what = "is empty"
        elif size != common:
            what = f"has {size:,} bytes, but the others have {common:,}"
        else:
            continue
        hint = "every rank reads it: copy it there, or correct `mean_file` in the recipe"
        yield HostProblem(host, what, hint, path)


# Files of checkpoints that exist at a time: two pairs are kept, and a third is being written.
_CHECKPOINTS = 6
_HERE = "this machine"
_STRAYS = {
    "link": "is a symbolic link owned by user {}; Caffe would write through it",
    "foreign": "belongs to user {}, who could replace the snapshot",
    "other": "is not a regular file, and belongs to user {}",
    "more": "over 100 of these files are not yours (one belongs to user {}), and the rest are not checked",
}


@dataclass
class _Disk:
    """A disk that is written to: its host, a folder on it, the free bytes, and the bytes to write."""

    host: str
    path: str
    free_bytes: int
    snapshot_bytes: int = 0
    lmdb_bytes: int = 0

    @property
    def needed_bytes(self) -> int:
        return self.snapshot_bytes + self.lmdb_bytes


def _room_at(folder: Path) -> int:
    room = os.statvfs(folder)
    return room.f_bavail * room.f_frsize


def check_snapshots(view: NodeView) -> list[CheckResult]:
    """Report files of others at the paths of snapshots, and folders that are not safe to write them to."""
    facts = view.first
    if facts is None:
        return view.skip_unreachable("snapshots", [view.setting.hosts[0].name])
    shown = ", ".join(view.setting.show(path) for path in snapshot_folders(view.setting, view.plan))
    problems = judge_snapshots(view, facts) or _find_unsafe(view, facts.host)
    return as_findings("snapshots", problems, f"{facts.host}: in {shown}")


def _find_unsafe(view: NodeView, name: str) -> list[HostProblem]:
    """Return the folders of snapshots on a host in which a run would not trust a snapshot."""
    host = next(host for host in view.hosts if host.name == name)
    problems = []
    for folder in snapshot_folders(view.setting, view.plan):
        try:
            own_file_stamp(host, f"{folder}/.caffe-recipes", view.setting.root)
        except HostFailed as error:
            problems.append(HostProblem(name, error.what, error.hint, folder))
    return problems


def judge_snapshots(view: NodeView, facts: NodeFacts) -> list[HostProblem]:
    """Return the problems at the paths on a host to which snapshots of unfinished phases would be written."""
    names = {name for step in view.unfinished for name in _written(view, step)}
    strays = [stray for stray in facts.strays if stray.path in names or stray.kind == "more"]
    problems = [_stray_problem(facts, stray) for stray in strays]
    for path in snapshot_folders(view.setting, view.plan):
        if not facts.folders[path].writable:
            problems.append(HostProblem(facts.host, "cannot be written to", "fix its mode or owner", path))
        elif facts.folders[path].open_to_all:
            what = "anybody can replace the files in it"
            problems.append(HostProblem(facts.host, what, "set its sticky bit: chmod +t", path))
    return problems


def check_disk(view: NodeView, room_at: Callable[[Path], int] = _room_at) -> list[CheckResult]:
    """Check the free space for snapshots on the first host, for those kept here, and for the LMDB to stage.

    Our own disk is a separate finding, unless the first host writes to it as well. `room_at` returns the
    free bytes of a local folder.
    """
    facts = view.first
    if facts is None:
        return view.skip_unreachable("disk", [view.setting.hosts[0].name])
    sizes = _sizes(view)
    disks = _count(view, facts, sizes, room_at)
    found: list[CheckResult] = []
    for subject, rows in (
        ("disk", [disk for name, disk in disks.items() if name != _HERE]),
        ("disk here", [disk for name, disk in disks.items() if name == _HERE]),
    ):
        problems = [_space_problem(disk) for disk in rows if disk.free_bytes < disk.needed_bytes]
        size = describe_bytes(sum(disk.snapshot_bytes for disk in rows))
        wanted = (
            "snapshots of a size that depends on the images"
            if None in sizes.values()
            else f"{size} of snapshots"
        )
        free = describe_bytes(min((disk.free_bytes for disk in rows), default=0))
        found += as_findings(subject, problems, f"{free} free on {rows[0].host} for {wanted}" if rows else "")
    return found or [CheckResult("disk", "nothing left to write")]


def judge_disk(view: NodeView, facts: NodeFacts) -> list[HostProblem]:
    """Return the disks that lack space if a host writes the snapshots of the unfinished phases."""
    disks = _count(view, facts, _sizes(view), _room_at)
    return [_space_problem(disk) for disk in disks.values() if disk.free_bytes < disk.needed_bytes]


def _sizes(view: NodeView) -> dict[str, int | None]:
    """Return the size in bytes of each unfinished net; None if it depends on images not here."""
    setting = view.setting
    size, data = setting.trainer.models.model_bytes, (setting.root, setting.lmdb_source)
    nets = dict.fromkeys(step.net for step in view.unfinished)  # each is parsed once
    return {net: size(view.plan.files, net, *data) for net in nets}


def _count(
    view: NodeView, facts: NodeFacts, sizes: Mapping[str, int | None], room_at: Callable[[Path], int]
) -> dict[str, _Disk]:
    """Return the disks that are written to, with the bytes that are still to be written to each."""
    keeps = _nearest_folder(view.setting.root / RUNS)
    here = _Disk(_HERE, str(keeps), room_at(keeps))
    disks = _count_snapshots(view, facts, here, {net: size or 0 for net, size in sizes.items()})
    _add_lmdb(view, facts, disks)
    return disks


def _count_snapshots(
    view: NodeView, facts: NodeFacts, here: _Disk, sizes: Mapping[str, int]
) -> dict[str, _Disk]:
    """Return the disks that are written to, with the bytes of all snapshots and of the copies that are kept.

    A solverstate is about as large as its caffemodel. Old checkpoints are deleted once a newer one is
    complete.
    """
    setting = view.setting
    disks: dict[str, _Disk] = {}
    on_the_way: dict[tuple[str, str], int] = defaultdict(int)
    for step in view.unfinished:
        path, size = posixpath.dirname(setting.path(step.snapshot)), sizes[step.net]
        folder = facts.folders[path]
        keeps = folder.disk if _is_ours(view, path, folder, here) else _HERE
        written = disks.setdefault(folder.disk, _Disk(facts.host, path, folder.free_bytes))
        kept = disks.setdefault(keeps, here)
        written.snapshot_bytes += 2 * step.snapshots * size
        kept.snapshot_bytes += sum(not (setting.root / name).exists() for name in step.kept) * size
        left = _CHECKPOINTS - 2 * len(view.state.checkpoints.get(step.phase, ()))
        for use, disk, count in (("written", folder.disk, _CHECKPOINTS), ("kept", keeps, left)):
            on_the_way[use, disk] = max(on_the_way[use, disk], count * size)
    for (_, disk), size in on_the_way.items() if setting.policy.checkpoint_every else ():
        disks[disk].snapshot_bytes += size
    return disks


def _is_ours(view: NodeView, path: str, folder: Folder, here: _Disk) -> bool:
    """Return whether the first host writes to our own disk, as this machine or over a shared file system."""
    disk = Path(here.path).stat().st_dev
    if view.setting.hosts[0].is_local:
        return folder.disk == str(disk)
    # Device numbers differ between hosts, but the Caffe root is on a shared file system.
    return Path(path).is_relative_to(view.setting.root) and _nearest_folder(Path(path)).stat().st_dev == disk


def _nearest_folder(path: Path) -> Path:
    """Return the nearest existing folder at or above a path."""
    return next(folder for folder in (path, *path.parents) if folder.is_dir())


def _space_problem(disk: _Disk) -> HostProblem:
    free, needed = describe_bytes(disk.free_bytes), describe_bytes(disk.needed_bytes)
    return HostProblem(disk.host, f"has {free} free, but {needed} is needed", "free space there", disk.path)


def _add_lmdb(view: NodeView, facts: NodeFacts, disks: Mapping[str, _Disk]) -> None:
    """Add the LMDB to its disk, if it is still to be staged there."""
    source, lmdb = view.setting.lmdb_source, view.setting.data_path
    if source is None or facts.sizes[lmdb_path(view.setting)][0] is not None:
        return
    data, disk = source / DATA, disks.get(facts.folders[lmdb].disk)
    if disk is not None and data.is_file():
        disk.lmdb_bytes = data.stat().st_size


def _stray_problem(facts: NodeFacts, stray: Stray) -> HostProblem:
    what = _STRAYS[stray.kind].format(stray.owner)
    them = "them" if stray.kind == "more" else "it"
    hint = f"ask the owner to remove {them}, or set another snapshot_prefix"
    return HostProblem(facts.host, what, hint, stray.path)


def _written(view: NodeView, step: Training) -> list[str]:
    """Return the paths of all snapshots that the trainer writes in a phase."""
    iterations = (*range(step.every_iter, step.last_iter, step.every_iter), step.last_iter)
    written = (path for at in iterations for path in view.setting.trainer.models.written_at(step, at))
    return [view.setting.path(path) for path in written]


_ASK_RECORDS_S = 120.0
_TRAIN, _TEST = "train records", "test records"


def check_train_records(view: NodeView) -> list[CheckResult]:
    """Check the records to stage; without a source, check that each host has the manifest of its records.

    Raises ClusterError if another user could have put the records to stage there.
    """
    setting, data = view.setting, _data_of(view)
    source = setting.lmdb_source
    if source in setting.built_data and not records_manifest_path(source).exists():
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
    if folder in setting.built_data and not records_manifest_path(folder).exists():
        return [CheckResult(_TEST, f"{setting.show(folder)}: will be built", is_checked=False)]
    if not view.plan.testings:
        return [CheckResult(_TEST, "not needed", is_checked=False)]
    if problems := _find_untrusted(view, "test"):
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
    manifest = str(records_manifest_path(Path(view.setting.path(data.folder))))
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
    problems += _find_untrusted(view, "train")
    return as_findings(subject, problems, f"{data.folder}: present")
