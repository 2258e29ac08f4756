"""A recipe for another Caffe: the same training where that Caffe can do the same, and what stands against it.

`poly_cyc` with `lr_iter` is `poly` with that `max_iter`, stopped where the phase ends: both rates are
`base_lr * (1 - i / n) ^ power`, so they are equal to the last bit.
"""

from __future__ import annotations

import math
import posixpath
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from caffe_recipes.caffe.dialects import OURS, Dialect, find_counterpart, find_dialect
from caffe_recipes.caffe.dialects.check import TITLES
from caffe_recipes.errors import RecipeError
from caffe_recipes.recipe.model import Phase, Recipe, SolverSettings
from caffe_recipes.wording import describe_count, plural

# More than the recipe's own are written to a node's /tmp up to here, and never ten times as many.
_MOST_SNAPSHOTS = 100

# Processes on CPUs train as one over MPI only in Caffes of Intel's line.
_WITHOUT_RANKS = {
    "bvlc": "BVLC's Caffe trains in one process",
    "nvcaffe": "nvcaffe's ranks drive GPUs, and share gradients over NCCL",
}


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a recipe without an exact equivalent in a dialect: the phase, if it is one's, and the key."""

    phase: str
    key: str
    why: str

    def __str__(self) -> str:
        """Write it on one line."""
        phase = f"phase '{self.phase}': " if self.phase else ""
        return f"{phase}{self.key}: {self.why}"


def translate(recipe: Recipe, dialect: str) -> Recipe:
    """Return the recipe for another Caffe, called `<name>-<dialect>`; for its own it is the same.

    Folder of prototxts and snapshots are called so too, and nothing of the original is overwritten; nets that
    recipes share are the same for this one, and stay where they are. Raises
    RecipeError where a schedule has no exact equivalent. What the nets hold is not looked at:
    `generate.dialect.translate_whole` does.
    """
    judge = find_dialect(dialect)
    if dialect == recipe.dialect:
        return recipe
    parts = find_inexact(recipe, dialect)
    if parts:
        raise refusal(recipe, dialect, parts)
    phases = tuple(_translate_phase(recipe, phase, judge) for phase in recipe.phases)
    changes = {
        "name": f"{recipe.name}-{dialect}",
        "title": f"{recipe.title}, for {TITLES[dialect]}",
        "prototxt_dir": _suffixed(recipe.prototxt_dir, dialect),
        "solver": SolverSettings(),  # the phases hold it
        "phases": phases,
    }
    return recipe.in_dialect(dialect, changes)


def original_name(recipe: Recipe) -> str:
    """Return the name that a recipe had before it was translated."""
    return recipe.name if recipe.dialect == OURS else recipe.name.removesuffix(f"-{recipe.dialect}")


def find_inexact(recipe: Recipe, dialect: str) -> list[Part]:
    """List what a dialect cannot do as SURFsara's Caffe does: schedules and ranks, not the nets."""
    judge = find_dialect(dialect)
    found = [part for phase in recipe.phases for part in _inexact_phase(recipe, phase, judge)]
    if recipe.cluster.ranks > 1 and dialect in _WITHOUT_RANKS:
        why = f"{recipe.cluster.ranks} ranks train as one over MPI, and {_WITHOUT_RANKS[dialect]}"
        found.append(Part("", "cluster", f"{why}; only one rank is the same"))
    return found


def refusal(recipe: Recipe, dialect: str, parts: list[Part]) -> RecipeError:
    """Say that a recipe cannot be translated, with the first reason."""
    have = plural(len(parts), "has", "have")
    what = f"{describe_count(len(parts), 'part')} {have} no exact equivalent in {TITLES[dialect]}"
    hint = f"`caffe-recipes generate --dialect {dialect}` lists all" if len(parts) > 1 else ""
    return RecipeError(recipe.name, f"{what}: {parts[0]}", hint)


def _inexact_phase(recipe: Recipe, phase: Phase, dialect: Dialect) -> Iterator[Part]:
    title = TITLES[dialect.name]
    if phase.lr_policy == "poly_cyc" and phase.lr_policy not in dialect.lr_policies:
        assert phase.lr_iter
        if phase.lr_iter < phase.last_iter:
            why = f"poly has no rate past its max_iter, and the phase runs {phase.last_iter} iterations"
            yield Part(phase.name, "lr_iter", f"{why}; end it by {phase.lr_iter}")
        else:
            yield from _too_many_snapshots(recipe, phase)
    elif phase.lr_policy not in dialect.lr_policies:
        yield Part(phase.name, "lr_policy", f"{title} has no {phase.lr_policy}")
    if phase.type and phase.type not in dialect.solver_types:
        yield Part(phase.name, "type", f"{title} has no {phase.type}")
    for key in SolverSettings.model_fields:
        if key in _dropped(phase) or getattr(phase, key) in (None, ()):
            continue
        if not dialect.knows("SolverParameter", key):
            there = find_counterpart(dialect.name, "SolverParameter", key)
            yield Part(phase.name, key, f"{title} has no {key}{f'; there {there}' if there else ''}")


def _too_many_snapshots(recipe: Recipe, phase: Phase) -> Iterator[Part]:
    """Refuse a phase whose last iteration shares an interval with the others only at great cost.

    A snapshot of ResNet-50 is 205 MB, and an interval of 1 would write that in every iteration.
    """
    needed = _needed(recipe, phase)
    own, every = phase.snapshot_every_iter, _common_interval(recipe, phase)
    own_count = -(-phase.last_iter // own)
    count = phase.last_iter // every
    if phase.lr_iter == phase.last_iter or count <= max(own_count, min(10 * own_count, _MOST_SNAPSHOTS)):
        return
    assert phase.lr_iter
    below = phase.last_iter // own * own
    ends = " or ".join(str(end) for end in (below, below + own) if end <= phase.lr_iter)
    iterations = ", ".join(map(str, sorted(needed)))
    why = f"to be stopped there it needs snapshots at {iterations}, one every {every}: {count} of them"
    yield Part(phase.name, "max_iter", f"{why}; end it at {ends}, where its snapshot: {own} fires")


def _needed(recipe: Recipe, phase: Phase) -> tuple[int, ...]:
    """Name the iterations whose snapshots have to fire: the last, and those that later phases start from."""
    return (phase.last_iter, *recipe.needed_iters(phase))


def _common_interval(recipe: Recipe, phase: Phase) -> int:
    """Give the phase's own interval of snapshots if it meets all that is needed, else the widest."""
    needed = _needed(recipe, phase)
    own = phase.snapshot_every_iter
    return math.gcd(*needed) if any(iteration % own for iteration in needed) else own


def _dropped(phase: Phase) -> set[str]:
    """Name the keys that the phase's Caffe would never read, or that the translation takes away."""
    return {"lr_iter", *([] if phase.warmup_iter else ["warmup_start_lr"])}


def _translate_phase(recipe: Recipe, phase: Phase, dialect: Dialect) -> Phase:
    unknown = {key: None for key in _dropped(phase) if not dialect.knows("SolverParameter", key)}
    changes: dict[str, Any] = {
        **unknown,
        **_as_poly(recipe, phase, dialect),
        "snapshot_prefix": f"{phase.snapshot_prefix}-{dialect.name}",
    }
    if phase.test_interval and phase.test_initialization is None and _test_default_differs(dialect):
        changes["test_initialization"] = True
    return phase.model_copy(update=changes)


def _as_poly(recipe: Recipe, phase: Phase, dialect: Dialect) -> dict[str, Any]:
    if phase.lr_policy != "poly_cyc" or "poly_cyc" in dialect.lr_policies:
        return {}
    why = f"poly to {phase.lr_iter} in place of poly_cyc with that lr_iter, at the same rates"
    changes: dict[str, Any] = {
        "comment": f"{phase.comment} {why}" if phase.comment else why,
        "lr_policy": "poly",
        "max_iter": phase.lr_iter,
        "lr_iter": None,
        "stop_iter": None,
    }
    if phase.lr_iter == phase.last_iter:
        return changes
    # Caffe writes one at max_iter anyway; short of it the snapshot has to fall on the last iteration.
    return {**changes, "stop_iter": phase.last_iter, "snapshot": _common_interval(recipe, phase)}


def _test_default_differs(dialect: Dialect) -> bool:
    return "test_initialization" in dialect.changed.get("SolverParameter", {})


def _suffixed(path: str, dialect: str) -> str:
    """Give a folder a suffix, or one without a name a folder in it.

    >>> _suffixed("/models/x", "intel"), _suffixed("models/x/", "intel"), _suffixed(".", "intel")
    ('/models/x-intel', 'models/x-intel', 'intel')
    """
    folder, name = posixpath.split(posixpath.normpath(path))
    if name in ("", ".", ".."):
        return posixpath.normpath(posixpath.join(path, dialect))
    return posixpath.join(folder, f"{name}-{dialect}")
