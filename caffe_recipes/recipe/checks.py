"""Find keys of a recipe that are valid by themselves but contradict each other."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

from caffe_recipes.errors import InputError
from caffe_recipes.wording import did_you_mean

if TYPE_CHECKING:
    from caffe_recipes.config import Location
    from caffe_recipes.recipe.model import AnyRecipe, Phase, Recipe, TensorFlowRecipe

_FOLDER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")  # as in a recipe's name, which is also a folder's


def find_contradictions(recipe: AnyRecipe) -> Iterator[tuple[Location, str, str]]:
    """Yield (location, what is wrong, hint) for each contradiction."""
    from caffe_recipes.recipe.model import Recipe  # pydantic

    if recipe.cluster.omp_num_threads is None and recipe.cluster.nodes > 1:
        what = f"missing, and {recipe.cluster.nodes:,} nodes may have different cores"
        yield ("cluster", "omp_num_threads"), what, "give the cores of a node divided by its ranks"
    yield from _of_caffe(recipe) if isinstance(recipe, Recipe) else _of_tensorflow(recipe)
    yield from _wrong_records(recipe)
    yield from _wrong_groups(recipe)
    if recipe.cluster.global_batch > recipe.train_images:
        images = recipe.train_images
        what = f"the global batch is {recipe.cluster.global_batch} images, but there are only {images}"
        yield ("cluster", "batch_per_rank"), what, "use fewer ranks or a smaller batch"


def _of_caffe(recipe: Recipe) -> Iterator[tuple[Location, str, str]]:
    names = [phase.name for phase in recipe.phases]
    if recipe.trainer.startswith("-") or recipe.trainer == ":":
        what = f"a launcher would read {recipe.trainer} as one of its options"
        yield ("trainer",), what, f"write ./{recipe.trainer}"
    if recipe.nets_dir and not _FOLDER.fullmatch(posixpath.basename(recipe.nets_dir)):
        yield ("nets_dir",), "does not end in a valid folder name", "use letters, digits, `.`, `_` and `-`"
    for index, phase in enumerate(recipe.phases):
        at: Location = ("phases", index)
        if phase.name in names[:index] or phase.name == "none":
            yield (*at, "name"), f"two phases are called '{phase.name}'", "rename one of them"
        yield from _wrong_net(recipe, phase.net, (*at, "net"), needs_test=phase.test_interval is not None)
        yield from _wrong_start(phase, names[:index], names[index:], (*at, "weights"))
        yield from _wrong_weights_iter(recipe, phase, names[:index], (*at, "weights_iter"))
        yield from _wrong_rates(phase, at)
    yield from _shared_snapshots(recipe)
    if recipe.evaluation:
        yield from _wrong_net(recipe, recipe.evaluation.net, ("evaluation", "net"), needs_test=True)
        yield from _wrong_phases(recipe.evaluation.phases or (), names, ("evaluation", "phases"))
    if recipe.ensemble:
        yield from _wrong_phases(recipe.ensemble.members, names, ("ensemble", "members"))
    yield from _wrong_data_in_net(recipe)
    yield from _wrong_transform(recipe)
    yield from _wrong_input(recipe)
    yield from _wrong_digits(recipe)
    images, batch = recipe.net.batch_norm_images, recipe.cluster.batch_per_rank
    if images and batch % images:
        what = f"{images:,} images do not divide a rank's batch of {batch:,}"
        yield ("net", "batch_norm_images"), what, "give a divisor of cluster.batch_per_rank"
    yield from _wrong_tensorflow_run(recipe)


def _of_tensorflow(recipe: TensorFlowRecipe) -> Iterator[tuple[Location, str, str]]:
    cluster, run = recipe.cluster, recipe.tensorflow
    if cluster.mlsl:
        yield ("cluster", "mlsl"), "TensorFlow does not use MLSL servers", "remove it"
    if cluster.omp_num_threads != run.intra_threads:
        what = f"{cluster.omp_num_threads or 'missing'}, but tensorflow.intra_threads is {run.intra_threads}"
        yield ("cluster", "omp_num_threads"), what, "make them equal"


def _wrong_records(recipe: AnyRecipe) -> Iterator[tuple[Location, str, str]]:
    """Find folders of TFRecords that are the same, or that have more files than images."""
    data = recipe.tensorflow.data if recipe.tensorflow else None
    if data is None:
        return
    at: Location = ("tensorflow", "data")
    train, validation = data.train, data.validation
    for part, records in (("train", train), ("validation", validation)):
        if records.files > records.images:
            what = f"{records.files:,} files are too many for {records.images:,} images"
            yield (*at, part, "files"), what, "give the number of files in the folder"
    if shared := {train.folder, train.source} & {validation.folder, validation.source} - {None}:
        what = f"{shared.pop()} is also the folder of the training images"
        yield (*at, "validation", "folder"), what, "use separate folders"
    built = [(records.source or records.folder).rpartition("/") for records in (train, validation)]
    if data.prepare and (
        built[0][0] != built[1][0] or [names[2] for names in built] != ["train", "validation"]
    ):
        what = "digits are built as FOLDER/train and FOLDER/validation"
        yield (
            (*at, "prepare"),
            what,
            "set each part's `source` (or `folder`, if it has none) to these paths, in the same FOLDER",
        )


def _wrong_groups(recipe: AnyRecipe) -> Iterator[tuple[Location, str, str]]:
    """Find a `file_groups`, the number of nodes that share the files, that the trainer would refuse."""
    run, at = recipe.tensorflow, ("tensorflow", "flags", "file_groups")
    if run is None or "file_groups" not in run.flags:
        return
    groups, ranks = run.flags["file_groups"], recipe.cluster.nodes * recipe.cluster.ranks_per_node
    if type(groups) is not int or groups < 1 or ranks % groups:
        yield at, f"{ranks} ranks cannot be divided into {groups} groups", "give the number of nodes"
    elif run.data and groups > run.data.train.files:
        yield at, f"{run.data.train.files} files are too few for {groups} groups", "give fewer groups"
    elif groups > 1 and run.flags.get("deterministic"):
        what = "with file groups, the images of a step depend on the number of nodes"
        yield at, what, "remove it, or `deterministic`"


def _wrong_data_in_net(recipe: Recipe) -> Iterator[tuple[Location, str, str]]:
    """Find keys that contradict `data: as-in-net`, or that belong to it."""
    if not recipe.data.is_in_net:
        for key, beside in (("images", "train.images"), ("test_images", "test.images")):
            if getattr(recipe, key) is not None:
                yield (key,), "belongs to `data: as-in-net`", f"write it as data.{beside}"
        return
    if recipe.net.builder:
        what = f"as-in-net, but a net of the builder {recipe.net.builder} has no data layers of its own"
        yield ("data",), what, "write `train` and `test` under `data`, or give net.prototxt"
    for name, variant in recipe.nets.items():
        if variant.random_aspect_ratio:
            what = "is for the data layers of a recipe, but with `data: as-in-net` the net keeps its own"
            yield ("nets", name, "random_aspect_ratio"), what, "write random_aspect_ratio_param in the net"
    if recipe.evaluation and recipe.test_images is None:
        yield ("evaluation",), "the number of its images is unknown", "write `test_images: N` beside `images`"


def _wrong_transform(recipe: Recipe) -> Iterator[tuple[Location, str, str]]:
    """Find transformations that Caffe refuses: two means, two colours, or a wrong number of mean values."""
    data = recipe.data
    parts: tuple[Literal["train", "test"], ...] = ("train", "test")
    for part in parts:
        own, merged = getattr(data, part), data.transform_of(part)
        at: Location = ("data", part)
        if len(merged.mean_value) not in (0, 1, 3):
            where = (*at, "mean_value") if own.mean_value else ("data", "mean_value")
            what = f"has {len(merged.mean_value)} values"
            yield where, what, "give one value, or three: blue, green and red"
        if merged.mean_file and merged.mean_value:
            where = (*at, "mean_file") if own.mean_file else ("data", "mean_file")
            what = f"{part} has a mean_file and a mean_value, but Caffe subtracts only one mean"
            yield where, what, "remove one, or move each to `train` or `test`"
        if merged.force_color and merged.force_gray:
            where = (*at, "force_color") if own.force_color else ("data", "force_color")
            yield where, f"{part} has force_color and force_gray", "remove one"
    crops = [data.transform_of(part).crop_size for part in parts]
    if recipe.net.builder and crops[0] != crops[1] and any(net.test for net in recipe.nets.values()):
        what = f"train has {crops[0]} and test has {crops[1]}, but the net of a builder has one input size"
        yield ("data", "test", "crop_size"), what, "give one crop_size under `data`"


def _wrong_input(recipe: Recipe) -> Iterator[tuple[Location, str, str]]:
    """Find a crop that a builder's net needs and the recipe lacks, or that is too small for this net."""
    from caffe_recipes.caffe.nets import smallest_input  # protobuf

    builder, crop = recipe.net.builder, recipe.data.transform_of("train").crop_size
    at: Location = ("data", "train", "crop_size") if recipe.data.train.crop_size else ("data", "crop_size")
    if builder and crop is None:
        yield at, f"net.builder {builder} needs it", "give it in pixels"
    elif builder and crop is not None and crop < (least := smallest_input(builder)):
        yield at, f"{crop} is too small for net.builder {builder}", f"give {least} or more"


def _wrong_phases(
    chosen: tuple[str, ...], names: list[str], where: Location
) -> Iterator[tuple[Location, str, str]]:
    for index, name in enumerate(chosen):
        at = (*where, index)
        if name not in names:
            yield at, f"no phase '{name}'", did_you_mean(name, names, f"the phases are {', '.join(names)}")
        elif name in chosen[:index]:
            yield at, f"phase '{name}' is named twice", "list each phase once"


def _shared_snapshots(recipe: Recipe) -> Iterator[tuple[Location, str, str]]:
    """Find snapshots with the same file name among those that a run keeps, in one folder.

    A run keeps each phase's last snapshot, and those that other phases start from.
    """
    from caffe_recipes.recipe.model import Phase  # pydantic

    kept = {(index, phase.last_iter) for index, phase in enumerate(recipe.phases)}
    for phase in recipe.phases:
        start = recipe.starts_from(phase)
        if isinstance(start, Phase) and phase.weights_iter:
            kept.add((recipe.phases.index(start), phase.weights_iter))
    owners: dict[str, int] = {}
    for index, iteration in sorted(kept):
        name = recipe.phases[index].snapshot_at(iteration).rpartition("/")[2]
        if owners.setdefault(name, index) != index:
            what = f"a snapshot of another phase is also called {name}"
            hint = "give each phase a different prefix, since snapshots are copied into one folder"
            yield ("phases", index, "snapshot_prefix"), what, hint


def _wrong_digits(recipe: Recipe) -> Iterator[tuple[Location, str, str]]:
    """Find paths that do not fit `prepare: digits`, which builds two LMDBs with fixed names in one folder."""
    source, test = recipe.data.train.source, recipe.data.test.lmdb
    folder, _, name = (source or "").rpartition("/")
    if recipe.data.prepare and (name != "digits_train_lmdb" or test != f"{folder}/digits_val_lmdb"):
        what = "digits are built as FOLDER/digits_train_lmdb and FOLDER/digits_val_lmdb"
        yield ("data", "prepare"), what, "use these as `train.source` and `test.lmdb`, in the same FOLDER"


def _wrong_tensorflow_run(recipe: Recipe) -> Iterator[tuple[Location, str, str]]:
    """Find a TensorFlow run whose steps, classes or images differ from those of the phases."""
    run = recipe.tensorflow
    if run is None:
        return
    iterations = sum(phase.last_iter for phase in recipe.phases)
    if run.schedule.steps != iterations:
        what = f"{run.schedule.steps:,} steps, but the phases have {iterations:,} iterations"
        yield ("tensorflow", "schedule", "steps"), what, "make them equal"
    if run.classes not in (None, recipe.net.classes):
        what = f"{run.classes:,}, but net.classes is {recipe.net.classes:,}"
        yield ("tensorflow", "classes"), what, "make them equal"
    if run.data is None:
        return
    images = {"train": recipe.data.train.images, "validation": recipe.data.test.images}
    for part, records in (("train", run.data.train), ("validation", run.data.validation)):
        if records.images != images[part]:
            what = f"{records.images:,}, but the LMDB has {images[part]:,}"
            yield ("tensorflow", "data", part, "images"), what, "make them equal"


def _wrong_net(
    recipe: Recipe, name: str, at: Location, *, needs_test: bool
) -> Iterator[tuple[Location, str, str]]:
    if name not in recipe.nets:
        hint = did_you_mean(name, recipe.nets, f"the nets are {', '.join(recipe.nets)}")
        yield at, f"no net '{name}' under `nets`", hint
    elif needs_test and not recipe.nets[name].test:
        yield (
            at,
            f"net '{name}' has no TEST data layer",
            f"set `nets.{name}.test: true` or choose another net",
        )


def _wrong_start(
    phase: Phase, earlier: list[str], later: list[str], at: Location
) -> Iterator[tuple[Location, str, str]]:
    weights = phase.weights
    if weights is None or weights == "none" or weights in earlier or weights.endswith(".caffemodel"):
        return
    if weights in later:
        yield (
            at,
            f"phase '{phase.name}' starts from '{weights}', which is a later phase",
            "reorder the phases",
        )
    else:
        hint = did_you_mean(weights, earlier, "name an earlier phase, a .caffemodel file, or none")
        yield at, f"no phase '{weights}'", hint


def _wrong_weights_iter(
    recipe: Recipe, phase: Phase, earlier: list[str], at: Location
) -> Iterator[tuple[Location, str, str]]:
    from caffe_recipes.recipe.model import Phase  # pydantic

    iteration = phase.weights_iter
    if iteration is None:
        return
    start = recipe.starts_from(phase)
    if not isinstance(start, Phase) or start.name not in earlier:
        from_what = f"'{phase.weights}'" if phase.weights else "its fillers"
        what = f"phase '{phase.name}' starts from {from_what}, not from an earlier phase"
        yield at, what, "remove it, or name an earlier phase in `weights`"
    elif iteration > start.last_iter:
        what = f"phase '{start.name}' ends at iteration {start.last_iter}, before {iteration}"
        yield at, what, f"use {_nearest_snapshot(start, iteration)}"
    elif iteration % start.snapshot_every_iter and iteration != start.last_iter:
        every = f"every {start.snapshot_every_iter} iterations"
        what = f"phase '{start.name}' writes a snapshot {every}, not at {iteration}"
        yield at, what, f"use {_nearest_snapshot(start, iteration)}"


def _wrong_rates(phase: Phase, at: Location) -> Iterator[tuple[Location, str, str]]:
    """Find a value that Caffe cannot hold, or a rate that is not finite, with which it exits 0."""
    from caffe_recipes.caffe import pb  # protobuf
    from caffe_recipes.caffe.messages import set_fields
    from caffe_recipes.caffe.rates import check_rates
    from caffe_recipes.recipe.model import SolverSettings  # pydantic

    solver = pb.SolverParameter()
    for key in SolverSettings.model_fields:
        try:
            set_fields(solver, key, {key: getattr(phase, key)})
        except InputError as error:
            yield (*at, key), error.what, error.hint
            return
    for fault in check_rates(solver):
        yield (*at, "lr_policy"), str(fault), "correct the schedule"


def _nearest_snapshot(phase: Phase, iteration: int) -> int:
    """Return the iteration nearest to the given one at which a phase writes a snapshot.

    >>> from caffe_recipes.recipe.source import load_recipe
    >>> _nearest_snapshot(load_recipe("stampede2-448n-90ep").phases[0], 7700)
    7638
    """
    every, last = phase.snapshot_every_iter, phase.last_iter
    before = iteration // every * every
    fires = [at for at in (before, before + every) if 0 < at <= last]
    return min((*fires, last), key=lambda at: abs(at - iteration))
