"""Estimate a recipe on one shape or on the shapes of a sweep, from every known source of its speed.

A sweep such as `nodes=64,128` with `batch_per_rank=16..32:8` covers all combinations. With
`global_batch=4096` the ranks share that many images, whatever the number of nodes.
"""

from __future__ import annotations

import difflib
import json
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.log_files import hint_for_log, name_log, read_whole_log
from caffe_recipes.caffe.net_states import restrict_net
from caffe_recipes.caffe.shapes import infer_shapes
from caffe_recipes.cluster.profiles import check_partition, shipped_profiles
from caffe_recipes.errors import InputError
from caffe_recipes.files.bounded_reads import read_within, reading
from caffe_recipes.recipe.accuracy import find_target
from caffe_recipes.recipe.estimate import estimate_recipe
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
from caffe_recipes.render.prototxts import build_net
from caffe_recipes.review.inspect.costs import count_layers, total

if TYPE_CHECKING:
    from caffe_recipes.cluster.profiles import Profile
    from caffe_recipes.cluster.staging.method_choice import CopyRates
    from caffe_recipes.recipe.estimate import Estimate
    from caffe_recipes.recipe.model import Recipe
    from caffe_recipes.recipe.pace import (
        Pace,
        PaceKind,
        RunSize,
    )

_FLOAT_BYTES = 4
# Kinds of pace that the user did not measure.
_PUBLISHED_KINDS: tuple[PaceKind, ...] = ("reported", "measured", "minutes")


@dataclass(frozen=True)
class SpeedInputs:
    """What the user gives about a recipe's speed; `by` is the kind of pace to use.

    `profile` is the machine, if one is given, and `rates` are its copy rates.
    """

    logs: tuple[Path, ...] = ()
    images_per_s: float | None = None
    profile: Profile | None = None
    rates: CopyRates | None = None
    by: PaceKind | None = None


def estimate_shapes(
    recipe: Recipe, shapes: Sequence[RunSize], inputs: SpeedInputs, to_accuracy: float | None = None
) -> tuple[Estimate, ...]:
    """Return an estimate of a recipe for each shape.

    With `to_accuracy`, a top-1 in percent, the epochs are those of the paper to that accuracy. All shapes use
    the kind of pace that the recipe's own shape has, so that they can be compared. Raises InputError if the
    speed, or a speed of the kind `by`, is unknown, and if the paper has no epochs to the accuracy.
    """
    target = None if to_accuracy is None else find_target(recipe, to_accuracy)
    own_paces, size = tuple(_find_own_paces(recipe, inputs)), model_bytes(recipe)
    at_own = _order_paces(recipe, shape_of(recipe), own_paces, inputs, inputs.by)
    by = at_own[0].kind if at_own else None
    estimates = (
        estimate_recipe(
            recipe,
            _order_paces(recipe, shape, own_paces, inputs, by),
            shape=shape,
            rates=inputs.rates,
            model_bytes=size,
            target=target,
        )
        for shape in shapes
    )
    return tuple(replace(each, notes=(*each.notes, *_machine_limits(each, inputs))) for each in estimates)


# Figures 1 and 2 of arXiv:1711.04291 start from four workers, whose speed-up is 1.
FIRST_RANKS = 4


def add_speedups(recipe: Recipe, estimates: Sequence[Estimate], inputs: SpeedInputs) -> tuple[Estimate, ...]:
    """Return the estimates with the speed-up over four ranks, as in the paper's figures.

    Where four ranks are not whole nodes, it is that over the next whole nodes, in proportion.
    """
    firsts = {_first_shape(each.shape) for each in estimates}
    speeds = {
        shape: estimate_shapes(recipe, [shape], inputs)[0].pace.images_per_s / shape.ranks * FIRST_RANKS
        for shape in firsts
    }
    return tuple(
        replace(each, speedup=each.pace.images_per_s / speeds[_first_shape(each.shape)]) for each in estimates
    )


def _first_shape(shape: RunSize) -> RunSize:
    return replace(shape, nodes=math.ceil(FIRST_RANKS / shape.ranks_per_node))


def model_bytes(recipe: Recipe) -> int | None:
    """Return the size of the first phase's complete model in float32; None if a shape is unknown.

    It includes the statistics of the batch norms, as a caffemodel does: ResNet-50 has the paper's 98 MB.
    """
    shapes = infer_shapes(build_net(recipe, recipe.phases[0].net), pb.TRAIN, path=recipe.name)
    totals = total(count_layers(shapes, pb.TRAIN, [""] * len(shapes.layers)))
    return None if totals.unknown else (totals.parameters + totals.statistics) * _FLOAT_BYTES


def read_logs(paths: Iterable[Path]) -> Iterator[tuple[str, Iterator[str]]]:
    """Yield the name and lines of each log; for a folder, those of each `.log` in it or in its `logs`.

    Raises InputError if a log cannot be read.
    """
    for path in paths:
        for log in _logs_in(path) if path.is_dir() else [path]:
            yield name_log(log), _lines(log)


def _find_own_paces(recipe: Recipe, inputs: SpeedInputs) -> Iterator[Pace]:
    """Yield the known paces of the recipe's own shape, in order of precedence."""
    if inputs.logs:
        for path in inputs.logs:
            _check_run(recipe, path)
        yield logged_pace(recipe, read_logs(inputs.logs), _find_outputs(recipe))
    if inputs.images_per_s is not None:
        yield given_pace(inputs.images_per_s)
    reported = reported_pace(recipe)
    if reported:
        yield replace(reported, is_elsewhere=_is_elsewhere(recipe, inputs.profile))


def _find_outputs(recipe: Recipe) -> set[str]:
    """Return the outputs of all nets that the recipe trains, and tests: blobs that no later layer reads."""
    outputs = set[str]()
    for name in dict.fromkeys(phase.net for phase in recipe.phases):
        net = build_net(recipe, name)
        for phase in (pb.TRAIN, pb.TEST):
            unread = set[str]()
            for layer in restrict_net(net, phase).layer:
                unread = unread - {*layer.bottom} | {*layer.top}
            outputs |= unread
    return outputs


def _is_elsewhere(recipe: Recipe, profile: Profile | None) -> bool:
    """Return whether a profile describes another machine than the recipe's, or an unknown one.

    False without a profile. Machines with the same nodes count as the same, unless the paper measured the
    profile's machine separately.
    """
    own = node_of(recipe)
    if profile is None or own[0] is None:
        return False
    return own != _node_of(profile) or (profile.name in TABLES and profile.name != _measured_on(recipe))


def _measured_on(recipe: Recipe) -> str | None:
    """Return the machine on which the paper ran a recipe; None if the recipe is not from the paper."""
    reported = recipe.reported
    return "marenostrum4" if reported.cpus else "stampede2-knl" if reported.table else None


def _node_of(profile: Profile) -> tuple[int | None, int | None]:
    return profile.node.sockets, profile.node.cores_per_socket


def _order_paces(
    recipe: Recipe, shape: RunSize, own_paces: Sequence[Pace], inputs: SpeedInputs, by: PaceKind | None
) -> list[Pace]:
    """Return all paces for a shape, the one to use first; those of another machine have a note."""
    paces = order_paces(_find_paces(recipe, shape, own_paces, inputs), by)
    machine = inputs.profile.name if inputs.profile else ""
    note = "on the recipe's own machine"
    unknown = f"the speed of {machine} is unknown: give --log or --images-per-s"
    alike = inputs.profile is not None and machine not in shipped_profiles()
    if all(pace.is_elsewhere for pace in paces):
        note += f"; {unknown}"
    elif alike and paces[0].kind in _PUBLISHED_KINDS:
        first = f"of nodes with as many cores; {unknown}"
        paces = [replace(paces[0], notes=(first, *paces[0].notes)), *paces[1:]]
    return [replace(pace, notes=(note, *pace.notes)) if pace.is_elsewhere else pace for pace in paces]


def _find_paces(recipe: Recipe, shape: RunSize, own_paces: Sequence[Pace], inputs: SpeedInputs) -> list[Pace]:
    paces = [
        moved_pace(pace, recipe, shape, _find_table_paces(recipe, shape, inputs.profile, pace))
        for pace in own_paces
    ]
    measured = _find_measured_pace(recipe, shape, inputs.profile)
    paces += [measured] if measured else []
    if inputs.by and not any(pace.kind == inputs.by for pace in paces):
        kinds = ", ".join(pace.kind for pace in paces) or "none"
        how = "add a log with --log, a speed with --images-per-s, a measured machine with --profile"
        hint = f"known: {kinds}; {how}"
        raise InputError(recipe.name, f"no speed is known for --by {inputs.by}", hint)
    return paces


def _find_measured_pace(recipe: Recipe, shape: RunSize, profile: Profile | None) -> Pace | None:
    """Return the paper's pace on a profile's machine, or on the recipe's if a profile has no cores."""
    if profile is None or (profile.name not in TABLES and profile.node.cores is None):
        found = measured_pace(recipe, None, shape)
        return found and replace(found, is_elsewhere=_is_elsewhere(recipe, profile))
    return measured_pace(recipe, profile.name, shape, _node_of(profile))


def _find_table_paces(
    recipe: Recipe, shape: RunSize, profile: Profile | None, pace: Pace
) -> tuple[Pace, Pace] | None:
    """Return the paces in the table of a pace's machine: for the recipe's own shape, and for `shape`."""
    machine = None if pace.kind in _PUBLISHED_KINDS else profile
    own, other = (_find_measured_pace(recipe, each, machine) for each in (shape_of(recipe), shape))
    return (own, other) if own and other else None


def _machine_limits(estimate: Estimate, inputs: SpeedInputs) -> Iterator[str]:
    """Yield the limits of the machine: links too slow for the traffic, partitions too small for one job."""
    profile, hours = inputs.profile, estimate.total_s / 3600
    if profile is not None:
        link, traffic = profile.rates.link_gb_per_s, estimate.traffic
        if link and traffic:
            needed = traffic.bytes_per_s / (2 * estimate.shape.ranks) / 1e9
            if needed > link and estimate.shape.nodes > 1:
                what = f"at this speed each rank sends and receives {needed:.2g} GB/s"
                yield f"{what}, more than the {link:g} GB/s of {profile.name}'s links, so it will be slower"
        for name in profile.partitions:
            yield from check_partition(profile, name, nodes=estimate.shape.nodes, hours=hours)


def _check_run(recipe: Recipe, path: Path) -> None:
    """Raise InputError if a run's folder is of another recipe, net or batch."""
    try:
        frozen = json.loads(read_within(path / "recipe.json", "json-bytes"))
    except (OSError, ValueError, RecursionError):  # a log, or a folder that holds only logs
        return
    ran, wanted = _run_shape(frozen), _run_shape(recipe.model_dump(mode="json"))
    for what, value in wanted.items():
        if ran[what] not in (None, value):
            problem = f"is a run with {what} {ran[what]}, not {value}"
            hint = f"give logs of {recipe.name} with the recipe's own nodes, ranks and batch size"
            raise InputError(path, problem, hint)


def _run_shape(values: object) -> dict[str, object]:
    """Return the values that a recipe's speed depends on, from its JSON."""
    recipe = values if isinstance(values, dict) else {}
    net, cluster = (part if isinstance(part := recipe.get(key), dict) else {} for key in ("net", "cluster"))
    return {
        "recipe": recipe.get("name"),
        "net": net.get("builder") or net.get("prototxt") or net.get("function"),
        "batch": cluster.get("batch_per_rank"),
    }


def _logs_in(folder: Path) -> list[Path]:
    with reading(folder, InputError, "give a log's path"):
        found = (sorted(place.glob("*.log")) for place in (folder, folder / "logs"))
        logs = next((files for each in found if (files := [log for log in each if log.is_file()])), [])
    if not logs:
        raise InputError(folder, "contains no logs", "give a run's folder or a log")
    return logs


def _lines(log: Path) -> Iterator[str]:
    with reading(name_log(log), InputError, hint_for_log(log, "give the path to Caffe's log")):
        for text, _ in read_whole_log(log):
            yield from text[:-1].split("\n")


_FASTER = 1.002  # a smaller factor may come from rounding of the measured speeds
KEYS = ("nodes", "batch_per_rank", "global_batch")
_MOST = 1000
_LARGEST = 2**31 - 1
_RANGE = re.compile(r"([0-9]{1,10})\.\.([0-9]{1,10})(?::(x?)([0-9]{1,10}))?")
_HINT = "e.g. nodes=64,128,256, nodes=64..512:64 or nodes=64..1024:x2"


def parse_sweep(text: str) -> tuple[str, tuple[int, ...]]:
    """Parse a key and its values: numbers, and ranges with a step or a factor.

    Raises InputError for an unknown key or malformed values.

    >>> parse_sweep("nodes=64,128..256:64"), parse_sweep("batch_per_rank=8..32:x2")
    (('nodes', (64, 128, 192, 256)), ('batch_per_rank', (8, 16, 32)))
    """
    key, equals, values = text.partition("=")
    if key not in KEYS:
        near = difflib.get_close_matches(key, KEYS, n=1)
        near_hint = f"did you mean '{near[0]}'? " if near else ""
        raise InputError("--sweep", f"unknown key '{key[:80]}'", f"{near_hint}the keys are {', '.join(KEYS)}")
    if not equals or not values:
        raise InputError(f"--sweep {key}", "has no values", _HINT)
    numbers = tuple(dict.fromkeys(number for part in values.split(",") for number in _numbers(key, part)))
    if len(numbers) > _MOST:
        raise InputError(f"--sweep {key}", f"has {len(numbers)} values", f"give {_MOST} at most")
    return key, numbers


def sweep_shapes(own: RunSize, sweeps: Sequence[str], *, nodes: Sequence[int] = ()) -> tuple[RunSize, ...]:
    """Return the shapes to estimate: all combinations of the swept values; `nodes` adds values of that key.

    Raises InputError for malformed sweeps, and if there are too many combinations.
    """
    asked: dict[str, tuple[int, ...]] = {"nodes": tuple(dict.fromkeys(nodes))} if nodes else {}
    for key, values in map(parse_sweep, sweeps):
        if key in asked:
            raise InputError(f"--sweep {key}", "is given twice", "give all values of a key in one --sweep")
        asked[key] = values
    if {"batch_per_rank", "global_batch"} <= asked.keys():
        what = "cannot be given with batch_per_rank"
        raise InputError("--sweep global_batch", what, "give one of the two; it determines the other")
    several = list(product(*asked.values()))
    if len(several) > _MOST:
        raise InputError("--sweep", f"asks for {len(several):,} estimates", f"give {_MOST} at most")
    shapes = [_shape(own, dict(zip(asked, values, strict=True))) for values in several]
    if "global_batch" in asked:
        return tuple(sorted(shapes, key=lambda shape: (shape.global_batch, shape.nodes)))
    return tuple(sorted(shapes, key=lambda shape: (shape.batch_per_rank, shape.nodes)))


def group_lines(estimates: Sequence[Estimate]) -> dict[str, list[Estimate]]:
    """Group estimates over nodes by the batch that they share: that of a rank, or that of all ranks."""
    shapes = [each.shape for each in estimates]
    per_rank = {shape.batch_per_rank for shape in shapes}
    is_global = len({shape.global_batch for shape in shapes}) < len(per_rank)
    lines: dict[str, list[Estimate]] = {}
    for each in estimates:
        batch = each.shape.global_batch if is_global else each.shape.batch_per_rank
        lines.setdefault(f"{batch:,} images per {'iteration' if is_global else 'rank'}", []).append(each)
    return lines


def explain_rises(line: Sequence[Estimate]) -> Iterator[str]:
    """Yield a note for each range of node counts over which a node gets faster, as some measurements show."""
    low = 0
    for index in range(1, len(line)):
        if not _is_faster(line[index - 1], line[index]):
            low = index
        elif index == len(line) - 1 or not _is_faster(line[index], line[index + 1]):
            few, many = line[low].shape, line[index].shape
            yield (
                f"with {many.batch_per_node} images per node, each node is faster among {many.nodes:,} nodes "
                f"than among {few.nodes:,}, as the paper measured"
            )


def _is_faster(few: Estimate, many: Estimate) -> bool:
    """Return whether a node of `many` is faster than one of `few`, at the same local batch."""
    one, other = few.pace.scaling, many.pace.scaling
    same = few.shape.batch_per_node == many.shape.batch_per_node
    return bool(same and one and other and other.efficiency > _FASTER * one.efficiency)


def _shape(own: RunSize, asked: dict[str, int]) -> RunSize:
    global_batch = asked.pop("global_batch", None)
    shape = replace(own, **asked)
    if global_batch is None:
        return shape
    if global_batch % shape.ranks:
        ranks = f"{shape.ranks:,} ranks of {shape.nodes:,} nodes"
        what = f"{global_batch:,} images cannot be shared evenly by the {ranks}"
        raise InputError("--sweep global_batch", what, f"give a multiple of {shape.ranks:,}")
    return replace(shape, batch_per_rank=global_batch // shape.ranks)


def _numbers(key: str, text: str) -> Sequence[int]:
    found = _RANGE.fullmatch(text)
    if found is None:
        return (_number(key, text),)
    low, high = _number(key, found[1]), _number(key, found[2])
    step = _number(key, found[4]) if found[4] else 1
    if low > high:
        raise InputError(f"--sweep {key}", f"'{text}' is descending", _HINT)
    if not found[3]:
        if (high - low) // step >= _MOST:
            raise InputError(f"--sweep {key}", f"'{text}' has over {_MOST} values", f"{_HINT}")
        return range(low, high + 1, step)
    if step < 2:
        raise InputError(f"--sweep {key}", f"'{text}' has the factor 1", "give a factor of 2 or more")
    values = []
    while low <= high:
        values.append(low)
        low *= step
    return values


def _number(key: str, text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,10}", text) or not 1 <= int(text) <= _LARGEST:
        raise InputError(f"--sweep {key}", f"'{text[:80]}' is not an integer of 1 or more", _HINT)
    return int(text)
