"""Estimates of a recipe on one shape or several, by all that is known of its speed.

What a sweep tries: the shapes that `nodes=64,128` and `batch_per_rank=16..32:8` ask for.

With `global_batch=4096` the ranks share so many images, whatever the nodes.
"""

from __future__ import annotations

import difflib
import io
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.logs import LONGEST_LINE_BYTES
from caffe_recipes.caffe.shapes import infer_shapes
from caffe_recipes.cluster.profiles import check_partition, shipped_profiles
from caffe_recipes.errors import InputError
from caffe_recipes.files import read_within
from caffe_recipes.recipe.estimate import check_accuracy, estimate_recipe
from caffe_recipes.recipe.pace import (
    TABLES,
    given_pace,
    logged_pace,
    measured_pace,
    moved_pace,
    node_of,
    order_paces,
    reported_pace,
    shape_of,
)
from caffe_recipes.render.nets import build_net
from caffe_recipes.review.inspect.costs import count_layers, total

if TYPE_CHECKING:
    from caffe_recipes.cluster.profiles import Profile
    from caffe_recipes.cluster.staging.plan import CopyRates
    from caffe_recipes.recipe.estimate import Estimate
    from caffe_recipes.recipe.model import Recipe
    from caffe_recipes.recipe.pace import (
        Kind,
        Pace,
        Shape,
    )

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
    rates: CopyRates | None = None
    by: Kind | None = None


def estimate_shapes(
    recipe: Recipe, shapes: Sequence[Shape], known: Known, to_accuracy: float | None = None
) -> tuple[Estimate, ...]:
    """Estimate a recipe on each shape; raises InputError where its speed, or that of `by`, is not known.

    With `to_accuracy`, a top-1 in percent: by the paper's epochs to it; raises InputError where it has none.
    What counts on the recipe's own shape counts on all, so that they can be compared.
    """
    if to_accuracy is not None:
        check_accuracy(recipe, to_accuracy)
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
            to_accuracy=to_accuracy,
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
    reported = recipe.reported
    return "marenostrum4" if reported.cpus else "stampede2-knl" if reported.table else None


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
        frozen = json.loads(read_within(path / "recipe.json", "json-bytes"))
    except (OSError, ValueError, RecursionError):  # a log, or a folder of logs alone
        return
    there, here = _run_shape(frozen), _run_shape(recipe.model_dump(mode="json"))
    for what, value in here.items():
        if there[what] not in (None, value):
            problem = f"is a run of {what} {there[what]}, and {recipe.name}'s is {value}"
            raise InputError(path, problem, f"give logs of {recipe.name}'s own shape")


def _run_shape(values: object) -> dict[str, object]:
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
        if not log.is_file():  # a pipe, as of `<(zcat log.gz)`
            yield from io.StringIO(read_within(log, "list-bytes").decode(errors="replace"))
            return
        with log.open(encoding="utf-8", errors="replace") as file:
            yield from iter(lambda: file.readline(LONGEST_LINE_BYTES), "")
    except OSError as error:
        raise InputError(log, f"cannot be read: {error.strerror}", "give the path of Caffe's log") from None


_FASTER = 1.002  # as measured speeds are rounded
KEYS = ("nodes", "batch_per_rank", "global_batch")
_MOST = 1000
_LARGEST = 2**31 - 1
_RANGE = re.compile(r"([0-9]{1,10})\.\.([0-9]{1,10})(?::(x?)([0-9]{1,10}))?")
_HINT = "e.g. nodes=64,128,256, nodes=64..512:64 or nodes=64..1024:x2"


def parse_sweep(text: str) -> tuple[str, tuple[int, ...]]:
    """Read a key and its values: numbers, and ranges by a step or a factor; raises InputError.

    >>> parse_sweep("nodes=64,128..256:64"), parse_sweep("batch_per_rank=8..32:x2")
    (('nodes', (64, 128, 192, 256)), ('batch_per_rank', (8, 16, 32)))
    """
    key, equals, values = text.partition("=")
    if key not in KEYS:
        near = difflib.get_close_matches(key, KEYS, n=1)
        near_hint = f"did you mean '{near[0]}'? " if near else ""
        raise InputError("--sweep", f"unknown key '{key[:80]}'", f"{near_hint}there are {', '.join(KEYS)}")
    if not equals or not values:
        raise InputError(f"--sweep {key}", "has no values", _HINT)
    numbers = tuple(dict.fromkeys(number for part in values.split(",") for number in _numbers(key, part)))
    if len(numbers) > _MOST:
        raise InputError(f"--sweep {key}", f"has {len(numbers)} values", f"give {_MOST} at most")
    return key, numbers


def sweep_shapes(own: Shape, sweeps: Sequence[str], *, nodes: Sequence[int] = ()) -> tuple[Shape, ...]:
    """Return the shapes to estimate: all combinations of what is swept; raises InputError.

    `nodes` are values of that key too.
    """
    asked: dict[str, tuple[int, ...]] = {"nodes": tuple(dict.fromkeys(nodes))} if nodes else {}
    for key, values in map(parse_sweep, sweeps):
        if key in asked:
            raise InputError(f"--sweep {key}", "is given twice", "give all values of a key in one")
        asked[key] = values
    if {"batch_per_rank", "global_batch"} <= asked.keys():
        what = "cannot be given with batch_per_rank"
        raise InputError("--sweep global_batch", what, "one follows from the other")
    several = list(product(*asked.values()))
    if len(several) > _MOST:
        raise InputError("--sweep", f"asks for {len(several):,} estimates", f"give {_MOST} at most")
    shapes = [_shape(own, dict(zip(asked, values, strict=True))) for values in several]
    if "global_batch" in asked:
        return tuple(sorted(shapes, key=lambda shape: (shape.global_batch, shape.nodes)))
    return tuple(sorted(shapes, key=lambda shape: (shape.batch_per_rank, shape.nodes)))


def group_lines(estimates: Sequence[Estimate]) -> dict[str, list[Estimate]]:
    """Return estimates over nodes by what they have in common: a rank's batch, or that of all ranks."""
    shapes = [each.shape for each in estimates]
    apart = {shape.batch_per_rank for shape in shapes}
    together = len({shape.global_batch for shape in shapes}) < len(apart)
    lines: dict[str, list[Estimate]] = {}
    for each in estimates:
        batch = each.shape.global_batch if together else each.shape.batch_per_rank
        lines.setdefault(f"{batch:,} images {'an iteration' if together else 'a rank'}", []).append(each)
    return lines


def explain_rises(line: Sequence[Estimate]) -> Iterator[str]:
    """Say where a node is faster among more nodes, which is so only where it was so measured."""
    low = 0
    for index in range(1, len(line)):
        if not _is_faster(line[index - 1], line[index]):
            low = index
        elif index == len(line) - 1 or not _is_faster(line[index], line[index + 1]):
            few, many = line[low].shape, line[index].shape
            yield (
                f"with {many.batch_per_node} images a node, each is faster among {many.nodes:,} nodes than "
                f"among {few.nodes:,}: so the paper measured it"
            )


def _is_faster(few: Estimate, many: Estimate) -> bool:
    """Whether a node of the second is the faster, at the same local batch."""
    one, other = few.pace.scaling, many.pace.scaling
    same = few.shape.batch_per_node == many.shape.batch_per_node
    return bool(same and one and other and other.efficiency > _FASTER * one.efficiency)


def _shape(own: Shape, asked: dict[str, int]) -> Shape:
    together = asked.pop("global_batch", None)
    shape = replace(own, **asked)
    if together is None:
        return shape
    if together % shape.ranks:
        ranks = f"{shape.ranks:,} ranks of {shape.nodes:,} nodes"
        what = f"{together:,} images cannot be shared evenly by the {ranks}"
        raise InputError("--sweep global_batch", what, f"give a multiple of {shape.ranks:,}")
    return replace(shape, batch_per_rank=together // shape.ranks)


def _numbers(key: str, text: str) -> Sequence[int]:
    found = _RANGE.fullmatch(text)
    if found is None:
        return (_number(key, text),)
    low, high = _number(key, found[1]), _number(key, found[2])
    step = _number(key, found[4]) if found[4] else 1
    if low > high:
        raise InputError(f"--sweep {key}", f"'{text}' goes down", _HINT)
    if not found[3]:
        if (high - low) // step >= _MOST:
            raise InputError(f"--sweep {key}", f"'{text}' has over {_MOST} values", f"{_HINT}")
        return range(low, high + 1, step)
    if step < 2:
        raise InputError(f"--sweep {key}", f"'{text}' never ends", "give a factor of 2 or more")
    values = []
    while low <= high:
        values.append(low)
        low *= step
    return values


def _number(key: str, text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,10}", text) or not 1 <= int(text) <= _LARGEST:
        raise InputError(f"--sweep {key}", f"'{text[:80]}' is not an integer of 1 or more", _HINT)
    return int(text)
