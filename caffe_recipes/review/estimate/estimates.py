"""Estimates of a recipe on one shape or several, by all that is known of its speed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.shapes import infer_shapes
from caffe_recipes.cluster.profiles import Profile, check_partition, shipped_profiles
from caffe_recipes.cluster.staging.costs import Rates
from caffe_recipes.errors import InputError
from caffe_recipes.generate.nets import build_net
from caffe_recipes.recipe.estimate import Estimate, estimate_recipe
from caffe_recipes.recipe.measured import TABLES
from caffe_recipes.recipe.model import Recipe
from caffe_recipes.recipe.pace import (
    Kind,
    Pace,
    Shape,
    given_pace,
    logged_pace,
    measured_pace,
    moved_pace,
    node_of,
    order_paces,
    reported_pace,
    shape_of,
)
from caffe_recipes.review.counts import count_layers, total

_FLOAT_BYTES = 4
# Kinds of pace that the user did not measure.
_OF_OTHERS: tuple[Kind, ...] = ("reported", "measured", "minutes")


@dataclass(frozen=True)
class Known:
    """What the user says of a recipe's speed; `by` is the kind of pace that is to count.

    `profile` is the machine, if it is said, and `rates` what it moves.
    """

    logs: tuple[Path, ...] = ()
    images_per_s: float | None = None
    profile: Profile | None = None
    rates: Rates | None = None
    by: Kind | None = None


def estimate_shapes(recipe: Recipe, shapes: Sequence[Shape], known: Known) -> tuple[Estimate, ...]:
    """Estimate a recipe on each shape; raises InputError where its speed, or that of `by`, is not known.

    What counts on the recipe's own shape counts on all, so that they can be compared.
    """
    of_own, size = tuple(_own_paces(recipe, known)), model_bytes(recipe)
    at_own = _ordered(recipe, shape_of(recipe), of_own, known, known.by)
    by = at_own[0].kind if at_own else None
    estimates = (
        estimate_recipe(
            recipe,
            _ordered(recipe, shape, of_own, known, by),
            shape=shape,
            rates=known.rates,
            model_bytes=size,
        )
        for shape in shapes
    )
    return tuple(replace(each, notes=(*each.notes, *_refusals(each, known))) for each in estimates)


def model_bytes(recipe: Recipe) -> int | None:
    """Return the size of the first phase's complete model in float32; None where a shape is unknown.

    With the batch norms' statistics, as a caffemodel holds them: ResNet-50's are the paper's 98 MB.
    """
    shapes = infer_shapes(build_net(recipe, recipe.phases[0].net), pb.TRAIN, path=recipe.name)
    totals = total(count_layers(shapes, pb.TRAIN, [""] * len(shapes.layers)))
    return None if totals.unknown else (totals.parameters + totals.statistics) * _FLOAT_BYTES


def read_logs(paths: Iterable[Path]) -> Iterator[tuple[str, Iterator[str]]]:
    """Yield each log's path and lines; of a folder, as a run's is, each `.log` in it or in its `logs`.

    Raises InputError for what cannot be read.
    """
    for path in paths:
        for log in _logs_in(path) if path.is_dir() else [path]:
            yield str(log), _lines(log)


def _own_paces(recipe: Recipe, known: Known) -> Iterator[Pace]:
    """Yield what is known of the recipe's own shape, the first to count first."""
    if known.logs:
        for path in known.logs:
            _check_run(recipe, path)
        yield logged_pace(recipe, read_logs(known.logs))
    if known.images_per_s is not None:
        yield given_pace(known.images_per_s)
    reported = reported_pace(recipe)
    if reported:
        yield replace(reported, is_elsewhere=_is_elsewhere(recipe, known.profile))


def _is_elsewhere(recipe: Recipe, profile: Profile | None) -> bool:
    """Whether a profile is of another machine than the recipe's, or does not say of which; not without one.

    What has the same nodes is taken for the same, but for a machine that the paper has measured on its own.
    """
    own = node_of(recipe)
    if profile is None or own[0] is None:
        return False
    return own != _node_of(profile) or (profile.name in TABLES and profile.name != _measured_on(recipe))


def _measured_on(recipe: Recipe) -> str | None:
    """Name the machine of the paper's run that a recipe is, if it is one."""
    said = recipe.reported
    return "marenostrum4" if said.cpus else "stampede2-knl" if said.table else None


def _node_of(profile: Profile) -> tuple[int | None, int | None]:
    return profile.node.sockets, profile.node.cores_per_socket


def _ordered(
    recipe: Recipe, shape: Shape, of_own: Sequence[Pace], known: Known, by: Kind | None
) -> list[Pace]:
    """Return all paces for a shape, the one that counts first; those of another machine say so."""
    paces = order_paces(_paces(recipe, shape, of_own, known), by)
    machine = known.profile.name if known.profile else ""
    note = "on the recipe's own machine"
    alike = known.profile is not None and machine not in shipped_profiles()
    if all(pace.is_elsewhere for pace in paces):
        note += f"; how fast {machine} is, is not known: give --log or --images-per-s"
    elif alike and paces[0].kind in _OF_OTHERS:
        first = (
            f"of nodes with as many cores; how fast {machine} is, is not known: give --log or --images-per-s"
        )
        paces = [replace(paces[0], notes=(first, *paces[0].notes)), *paces[1:]]
    return [replace(pace, notes=(note, *pace.notes)) if pace.is_elsewhere else pace for pace in paces]


def _paces(recipe: Recipe, shape: Shape, of_own: Sequence[Pace], known: Known) -> list[Pace]:
    paces = [moved_pace(pace, recipe, shape, _tabled(recipe, shape, known.profile, pace)) for pace in of_own]
    measured = _measured(recipe, shape, known.profile)
    paces += [measured] if measured else []
    if known.by and not any(pace.kind == known.by for pace in paces):
        there = ", ".join(pace.kind for pace in paces) or "none"
        how = "a log is given with --log, a speed with --images-per-s, a measured machine with --profile"
        hint = f"there are: {there}; {how}"
        raise InputError(recipe.name, f"no {known.by} pace is known for it", hint)
    return paces


def _measured(recipe: Recipe, shape: Shape, profile: Profile | None) -> Pace | None:
    """Return what the paper measured on a profile's machine, or on the recipe's where that tells no cores."""
    if profile is None or (profile.name not in TABLES and profile.node.cores is None):
        found = measured_pace(recipe, None, shape)
        return found and replace(found, is_elsewhere=_is_elsewhere(recipe, profile))
    return measured_pace(recipe, profile.name, shape, _node_of(profile))


def _tabled(recipe: Recipe, shape: Shape, profile: Profile | None, pace: Pace) -> tuple[Pace, Pace] | None:
    """Return what a table has for the recipe's own shape and another, of the machine that a pace is of."""
    machine = None if pace.kind in _OF_OTHERS else profile
    own, there = (_measured(recipe, each, machine) for each in (shape_of(recipe), shape))
    return (own, there) if own and there else None


def _refusals(estimate: Estimate, known: Known) -> Iterator[str]:
    """Say what the machine does not give: links for the traffic, partitions for the whole as one job."""
    profile, hours = known.profile, estimate.total_s / 3600
    if profile is not None:
        link, traffic = profile.rates.link_gb_per_s, estimate.traffic
        if link and traffic:
            needed = traffic.bytes_per_s / (2 * estimate.shape.ranks) / 1e9
            if needed > link and estimate.shape.nodes > 1:
                what = f"each rank sends and receives {needed:.2g} GB/s at such a pace"
                yield f"{what}, more than the {link:g} GB/s of {profile.name}'s links: it is slower there"
        for name in profile.partitions:
            yield from check_partition(profile, name, nodes=estimate.shape.nodes, hours=hours)


def _check_run(recipe: Recipe, path: Path) -> None:
    """Raise InputError for a run's folder of another recipe, or of another net or batch of this one."""
    try:
        frozen = json.loads((path / "recipe.json").read_text("utf-8"))
    except (OSError, ValueError):  # a log, or a folder of logs alone
        return
    there, here = _tell_shape(frozen), _tell_shape(recipe.model_dump(mode="json"))
    for what, value in here.items():
        if there[what] not in (None, value):
            told = f"is a run of {what} {there[what]}, and {recipe.name}'s is {value}"
            raise InputError(path, told, f"give logs of {recipe.name}'s own shape")


def _tell_shape(values: object) -> dict[str, object]:
    """Take from a recipe's JSON values what its speed stands or falls with."""
    recipe = values if isinstance(values, dict) else {}
    net, cluster = (part if isinstance(part := recipe.get(key), dict) else {} for key in ("net", "cluster"))
    return {
        "recipe": recipe.get("name"),
        "net": net.get("builder") or net.get("prototxt") or net.get("function"),
        "batch": cluster.get("batch_per_rank"),
    }


def _logs_in(folder: Path) -> list[Path]:
    try:
        found = (sorted(place.glob("*.log")) for place in (folder, folder / "logs"))
        logs = next((files for each in found if (files := [log for log in each if log.is_file()])), [])
    except OSError as error:
        raise InputError(folder, f"cannot be read: {error.strerror}", "give a log's path") from None
    if not logs:
        raise InputError(folder, "holds no logs", "give a run's folder, or a log")
    return logs


def _lines(log: Path) -> Iterator[str]:
    try:
        with log.open(encoding="utf-8", errors="replace") as file:
            yield from file
    except OSError as error:
        raise InputError(log, f"cannot be read: {error.strerror}", "give the path of Caffe's log") from None
