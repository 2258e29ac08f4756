"""Where what is derived is said: beside its field in a solver, else at the top of the files it concerns."""

from __future__ import annotations

from caffe_recipes.recipe.model import Recipe
from caffe_recipes.recipe.phases import Derived, Phase, SolverSettings

_OF_SOLVERS = ("solver", "phases")
_OF_SCRIPTS = ("cluster", "trainer", "evaluation")
# What a job asks Slurm for.
_OF_JOBS = ("cluster.nodes", "cluster.ranks_per_node", "cluster.omp_num_threads")


def beside_fields(recipe: Recipe, phase: Phase) -> dict[str, str]:
    """Return what is derived of a phase's settings, by the key: its own marks, and those of `solver`."""
    common, own = {}, {}
    for mark in recipe.derived:
        key = _setting(mark)
        if key and mark.phase == phase.name:
            own[key] = f"derived: {mark.rule}"
        # What a phase states itself is another value; the phases of a translated recipe state all.
        elif key and not mark.phase and getattr(recipe.solver, key) in (None, (), getattr(phase, key)):
            common[key] = f"derived: {mark.rule}"
    return common | own


def above_solver(recipe: Recipe, phase: Phase) -> list[str]:
    """Return what is derived of a phase, or of all of them, and of no field of a solver."""
    own = [mark for mark in recipe.derived if mark.phase == phase.name]
    marks = [*_concerning(recipe, *_OF_SOLVERS), *own]
    return _lines([mark for mark in marks if not _setting(mark)])


def above_net(recipe: Recipe, net: str) -> list[str]:
    """Return what is derived of a net: of one that a family's rows share, what is derived of all of them."""
    marks = _concerning(recipe, "net", f"nets.{net}", "data", "cluster.batch_per_rank")
    if recipe.nets_dir:
        common = recipe.derived[: recipe.family.derived] if recipe.family else ()
        marks = [mark for mark in marks if mark in common]
    return _lines(marks)


def above_script(recipe: Recipe) -> list[str]:
    """Return what is derived of the machine and the trainer, and whatever no prototxt says."""
    elsewhere = {line for net in recipe.nets for line in above_net(recipe, net)}
    elsewhere |= {line for phase in recipe.phases for line in above_solver(recipe, phase)}
    here = _lines(_concerning(recipe, *_OF_SCRIPTS))
    every = _lines([mark for mark in recipe.derived if not mark.phase and not _setting(mark)])
    return [line for line in every if line in here or line not in elsewhere]


def above_job(recipe: Recipe) -> list[str]:
    """Return what is derived of that which a job asks Slurm for."""
    return _lines(_concerning(recipe, *_OF_JOBS))


def _setting(mark: Derived) -> str:
    """Name the field of a solver that a mark is of; empty if it is of something else.

    >>> [_setting(Derived(key=key, rule="so")) for key in ("solver.momentum", "trainer")]
    ['momentum', '']
    """
    at = "" if mark.phase else "solver."
    key = mark.key.removeprefix(at) if mark.key.startswith(at) else ""
    return key if key in SolverSettings.model_fields else ""


def _concerning(recipe: Recipe, *keys: str) -> list[Derived]:
    """Return the marks without a phase that lie within one of the keys, or have it within themselves."""

    def is_near(mark: str) -> bool:
        return any(f"{mark}.".startswith(f"{key}.") or f"{key}.".startswith(f"{mark}.") for key in keys)

    return [mark for mark in recipe.derived if not mark.phase and is_near(mark.key)]


def _lines(marks: list[Derived]) -> list[str]:
    return [f"Derived: {mark.key}: {mark.rule}" for mark in marks]
