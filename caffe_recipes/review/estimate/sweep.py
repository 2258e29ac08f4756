"""What a sweep tries: the shapes that `nodes=64,128` and `batch_per_rank=16..32:8` ask for.

With `global_batch=4096` the ranks share so many images, whatever the nodes.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import product

from caffe_recipes.errors import InputError
from caffe_recipes.recipe.estimate import Estimate
from caffe_recipes.recipe.pace import Shape

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
        meant = f"did you mean '{near[0]}'? " if near else ""
        raise InputError("--sweep", f"unknown key '{key[:80]}'", f"{meant}there are {', '.join(KEYS)}")
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
        raise InputError(f"--sweep {key}", f"'{text[:80]}' is no count of 1 or more", _HINT)
    return int(text)
