"""Translate a recipe for another Caffe, or list what has no exact equivalent there.

`poly_cyc` with `lr_iter` equals `poly` with that `max_iter`, stopped where the phase ends: both rates are
`base_lr * (1 - i / n) ^ power`, so they are equal to the last bit.
"""

from __future__ import annotations

import math
import posixpath
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from caffe_recipes.caffe.dialects import OURS, TITLES, Dialect, find_counterpart, find_dialect
from caffe_recipes.errors import RecipeError
from caffe_recipes.recipe.model import AnyRecipe, Phase, Recipe, SolverSettings
from caffe_recipes.wording import describe_count, plural

# A translation may write more snapshots to /tmp than the recipe: up to ten times as many, and up to this.
_MOST_SNAPSHOTS = 100

# Only Intel's Caffe and its descendants train with several CPU processes over MPI.
_WITHOUT_RANKS = {
    "bvlc": "BVLC's Caffe trains in one process",
    "nvcaffe": "nvcaffe's ranks drive GPUs, and share gradients over NCCL",
}


@dataclass(frozen=True, slots=True)
class Part:
    """A key of a recipe without an exact equivalent in a dialect; `phase` is "" for keys outside phases."""

    phase: str
    key: str
    why: str

    def __str__(self) -> str:
        """Return the part and the reason in one line."""
        phase = f"phase '{self.phase}': " if self.phase else ""
        return f"{phase}{self.key}: {self.why}"


def translate(recipe: Recipe, dialect: str) -> Recipe:
    """Return the recipe for another Caffe, named `<name>-<dialect>`; for its own Caffe, unchanged.

    The folder of prototxts and the snapshots get the same suffix, so that nothing of the original is
    overwritten; shared nets stay where they are. Raises RecipeError if a schedule has no exact equivalent.
    Nets are not checked here: `render.dialect.translate_whole` does that.
    """
    judge = find_dialect(dialect)
    if dialect == recipe.dialect:
        return recipe
    parts = find_inexact(recipe, dialect)
    if parts:
        raise translation_error(recipe, dialect, parts)
    phases = tuple(_translate_phase(recipe, phase, judge) for phase in recipe.phases)
    changes = {
        "name": f"{recipe.name}-{dialect}",
        "title": f"{recipe.title}, for {TITLES[dialect]}",
        "prototxt_dir": _suffixed(recipe.prototxt_dir, dialect),
        "solver": SolverSettings(),  # its keys are in the phases
        "phases": phases,
    }
    return recipe.in_dialect(dialect, changes)


def original_name(recipe: AnyRecipe) -> str:
    """Return the recipe's name without the suffix that `translate` added."""
    return recipe.name if recipe.dialect == OURS else recipe.name.removesuffix(f"-{recipe.dialect}")


def find_inexact(recipe: Recipe, dialect: str) -> list[Part]:
    """List the keys of schedules and ranks without an exact equivalent in a dialect."""
    judge = find_dialect(dialect)
    found = [part for phase in recipe.phases for part in _inexact_phase(recipe, phase, judge)]
    if recipe.cluster.ranks > 1 and dialect in _WITHOUT_RANKS:
        why = f"{recipe.cluster.ranks} ranks train as one over MPI, and {_WITHOUT_RANKS[dialect]}"
        found.append(Part("", "cluster", f"{why}; only a single rank gives the same training"))
    return found


def translation_error(recipe: AnyRecipe, dialect: str, parts: list[Part]) -> RecipeError:
    """Return the error for a recipe that cannot be translated, which names the first part."""
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
            yield Part(phase.name, "lr_iter", f"{why}; end it at {phase.lr_iter} or before")
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
            yield Part(phase.name, key, f"{title} has no {key}{f'; {there}' if there else ''}")


def _too_many_snapshots(recipe: Recipe, phase: Phase) -> Iterator[Part]:
    """Yield a part if a snapshot at the last iteration needs an interval that writes too many of them.

    A snapshot of ResNet-50 takes 205 MB, and an interval of 1 would write one in every iteration.
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
    often = "every iteration" if every == 1 else f"every {every} iterations"
    why = f"stopping there needs snapshots at {iterations}, so one {often}: {count} in total"
    yield Part(phase.name, "max_iter", f"{why}; end it at {ends}, where its snapshot: {own} fires")


def _needed(recipe: Recipe, phase: Phase) -> tuple[int, ...]:
    """Return the iterations that need a snapshot: the last, and those that later phases start from."""
    return (phase.last_iter, *recipe.needed_iters(phase))


def _common_interval(recipe: Recipe, phase: Phase) -> int:
    """Return the phase's own snapshot interval if it includes all needed iterations, else the widest."""
    needed = _needed(recipe, phase)
    own = phase.snapshot_every_iter
    return math.gcd(*needed) if any(iteration % own for iteration in needed) else own


def _dropped(phase: Phase) -> set[str]:
    """Return the keys that the phase's Caffe would never read, or that the translation removes."""
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
    # Caffe always writes one at max_iter; a phase that stops before needs one at its last iteration.
    return {**changes, "stop_iter": phase.last_iter, "snapshot": _common_interval(recipe, phase)}


def _test_default_differs(dialect: Dialect) -> bool:
    return "test_initialization" in dialect.changed.get("SolverParameter", {})


def _suffixed(path: str, dialect: str) -> str:
    """Append the dialect to the last folder of a path, or as a folder if the path has no name.

    >>> _suffixed("/models/x", "intel"), _suffixed("models/x/", "intel"), _suffixed(".", "intel")
    ('/models/x-intel', 'models/x-intel', 'intel')
    """
    folder, name = posixpath.split(posixpath.normpath(path))
    if name in ("", ".", ".."):
        return posixpath.normpath(posixpath.join(path, dialect))
    return posixpath.join(folder, f"{name}-{dialect}")
