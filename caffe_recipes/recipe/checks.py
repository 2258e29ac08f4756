"""What no single key shows: parts of a recipe that contradict each other."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

from caffe_recipes.wording import did_you_mean

if TYPE_CHECKING:
    from caffe_recipes.recipe.model import Phase, Recipe

Location = tuple[str | int, ...]

_FOLDER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")  # as a recipe's name: its nets are generated into one


def find_contradictions(recipe: Recipe) -> Iterator[tuple[Location, str, str]]:
    """Yield (location, what, hint) of whatever does not fit together."""
    names = [phase.name for phase in recipe.phases]
    if recipe.trainer.startswith("-") or recipe.trainer == ":":
        what = f"a launcher would take {recipe.trainer} for a word of its own"
        yield ("trainer",), what, f"write ./{recipe.trainer}"
    if recipe.nets_dir and not _FOLDER.fullmatch(posixpath.basename(recipe.nets_dir)):
        yield ("nets_dir",), "ends in no name of a folder", "end it in letters, digits, `.`, `_` or `-`"
    for index, phase in enumerate(recipe.phases):
        at: Location = ("phases", index)
        if phase.name in names[:index] or phase.name == "none":
            yield (*at, "name"), f"two phases are called '{phase.name}'", "names of phases are unique"
        yield from _wrong_net(recipe, phase.net, (*at, "net"), needs_test=phase.test_interval is not None)
        yield from _wrong_start(phase, names[:index], names[index:], (*at, "weights"))
        yield from _wrong_weights_iter(recipe, phase, names[:index], (*at, "weights_iter"))
    yield from _shared_snapshots(recipe)
    if recipe.evaluation:
        yield from _wrong_net(recipe, recipe.evaluation.net, ("evaluation", "net"), needs_test=True)
        yield from _wrong_phases(recipe.evaluation.phases or (), names, ("evaluation", "phases"))
    if recipe.ensemble:
        yield from _wrong_phases(recipe.ensemble.members, names, ("ensemble", "members"))
    yield from _wrong_transform(recipe)
    yield from _wrong_digits(recipe)
    yield from _other_steps(recipe)
    if recipe.cluster.global_batch > recipe.data.train.images:
        what = f"an iteration takes {recipe.cluster.global_batch} of {recipe.data.train.images} images"
        yield ("cluster", "batch_per_rank"), what, "take fewer ranks or a smaller batch"


def _wrong_transform(recipe: Recipe) -> Iterator[tuple[Location, str, str]]:
    """Caffe stops at two means, at two colours, and at as many means as an image has no channels."""
    data = recipe.data
    parts: tuple[Literal["train", "test"], ...] = ("train", "test")
    for part in parts:
        own, merged = getattr(data, part), data.transform_of(part)
        at: Location = ("data", part)
        if len(merged.mean_value) not in (0, 1, 3):
            where = (*at, "mean_value") if own.mean_value else ("data", "mean_value")
            yield where, "one value, or one for each of blue, green and red", "write three numbers"
        if merged.mean_file and merged.mean_value:
            where = (*at, "mean_file") if own.mean_file else ("data", "mean_file")
            what = f"{part} has a mean_file and a mean_value, and Caffe subtracts only one mean"
            yield where, what, "remove one, or give each under `train` or `test`"
        if merged.force_color and merged.force_gray:
            where = (*at, "force_color") if own.force_color else ("data", "force_color")
            yield where, f"{part} has force_color and force_gray", "remove one"
    crops = [data.transform_of(part).crop_size for part in parts]
    if recipe.net.builder and crops[0] != crops[1] and any(net.test for net in recipe.nets.values()):
        what = f"train has {crops[0]} and test {crops[1]}, and a builder's net has one size"
        yield ("data", "test", "crop_size"), what, "give one crop_size under `data`"


def _wrong_phases(
    chosen: tuple[str, ...], names: list[str], where: Location
) -> Iterator[tuple[Location, str, str]]:
    for index, name in enumerate(chosen):
        at = (*where, index)
        if name not in names:
            yield at, f"no phase '{name}'", did_you_mean(name, names, f"there are {', '.join(names)}")
        elif name in chosen[:index]:
            yield at, f"phase '{name}' is named twice", "name each phase once"


def _shared_snapshots(recipe: Recipe) -> Iterator[tuple[Location, str, str]]:
    """The snapshots that a chain keeps, each phase's last and what others start from, meet in one folder."""
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
            what = f"a snapshot of another phase is called {name} too"
            hint = "they meet in one folder: give each phase its own name"
            yield ("phases", index, "snapshot_prefix"), what, hint


def _wrong_digits(recipe: Recipe) -> Iterator[tuple[Location, str, str]]:
    """`prepare: digits` builds two LMDBs of fixed names in one folder; training data is staged from there."""
    source, test = recipe.data.train.source, recipe.data.test.lmdb
    folder, _, name = (source or "").rpartition("/")
    if recipe.data.prepare and (name != "digits_train_lmdb" or test != f"{folder}/digits_val_lmdb"):
        what = "digits are built as FOLDER/digits_train_lmdb and FOLDER/digits_val_lmdb"
        yield ("data", "prepare"), what, "name them as `train.source` and `test.lmdb`, with one FOLDER"


def _other_steps(recipe: Recipe) -> Iterator[tuple[Location, str, str]]:
    """The phases are the schedule of the run of TensorFlow, if there is one."""
    iterations = sum(phase.last_iter for phase in recipe.phases)
    if recipe.tensorflow and recipe.tensorflow.schedule.steps != iterations:
        what = f"{recipe.tensorflow.schedule.steps:,} steps, and the phases make {iterations:,} iterations"
        yield ("tensorflow", "schedule", "steps"), what, "make them equal"


def _wrong_net(
    recipe: Recipe, name: str, at: Location, *, needs_test: bool
) -> Iterator[tuple[Location, str, str]]:
    if name not in recipe.nets:
        hint = did_you_mean(name, recipe.nets, f"there are {', '.join(recipe.nets)}")
        yield at, f"no net '{name}' under `nets`", hint
    elif needs_test and not recipe.nets[name].test:
        yield at, f"net '{name}' has no TEST data layer", f"set `nets.{name}.test: true` or take another net"


def _wrong_start(
    phase: Phase, earlier: list[str], later: list[str], at: Location
) -> Iterator[tuple[Location, str, str]]:
    weights = phase.weights
    if weights is None or weights == "none" or weights in earlier or weights.endswith(".caffemodel"):
        return
    if weights in later:
        yield (
            at,
            f"phase '{phase.name}' starts from '{weights}', which does not come before it",
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
        what = f"phase '{phase.name}' starts from {from_what}, no earlier phase"
        yield at, what, "remove it, or name an earlier phase in `weights`"
    elif iteration > start.last_iter:
        what = f"phase '{start.name}' ends at iteration {start.last_iter}, before {iteration}"
        yield at, what, f"take {_nearest_snapshot(start, iteration)}"
    elif iteration % start.snapshot_every_iter and iteration != start.last_iter:
        what = (
            f"phase '{start.name}' snapshots every {start.snapshot_every_iter} iterations, not at {iteration}"
        )
        yield at, what, f"take {_nearest_snapshot(start, iteration)}"


def _nearest_snapshot(phase: Phase, iteration: int) -> int:
    """Give the iteration nearest to one at which a snapshot of a phase fires.

    >>> from caffe_recipes.recipe.source import load_recipe
    >>> _nearest_snapshot(load_recipe("stampede2-448n-90ep").phases[0], 7700)
    7638
    """
    every, last = phase.snapshot_every_iter, phase.last_iter
    before = iteration // every * every
    fires = [at for at in (before, before + every) if 0 < at <= last]
    return min((*fires, last), key=lambda at: abs(at - iteration))
