"""Check LMDBs and mean files.

The LMDBs are on the hosts or to be staged, complete, with labels within the net's classes, and with images as
large as the crop; mean files are on the hosts, and as large as the images.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path

from caffe_recipes.caffe.datums import BadLabel, check_datums
from caffe_recipes.caffe.image_headers import ImageShape
from caffe_recipes.caffe.weights import load_mean, mean_shape, show_image
from caffe_recipes.cluster.staging.file_sets import lmdb_set
from caffe_recipes.cluster.staging.relay import DATA
from caffe_recipes.cluster.staging.stage import plan_from, survey
from caffe_recipes.data import digits
from caffe_recipes.errors import DataError
from caffe_recipes.recipe.model import Recipe
from caffe_recipes.run.preflight.findings import CheckResult, HostProblem, as_findings, as_problem
from caffe_recipes.run.preflight.nodes import NodeView, lmdb_path
from caffe_recipes.run.staging import (
    DataPart,
    ask_about_data,
    check_source_access,
    find_staging_env,
    staging_hint,
)
from caffe_recipes.units import describe_duration
from caffe_recipes.wording import describe_count

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
    if problems := find_untrusted_data(view, "test"):
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
    problems += find_untrusted_data(view, "train")
    first = setting.lmdb_hosts[0]
    if problems or not first.is_local:
        return as_findings("training data", problems, f"{lmdb}: present")
    records, warnings = _check_records(Path(setting.path(lmdb)), view, "train")
    return [CheckResult("training data", f"{lmdb}: {records}"), *warnings]


def find_untrusted_data(view: NodeView, part: DataPart) -> list[HostProblem]:
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
