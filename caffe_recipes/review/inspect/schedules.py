"""Schedules as a reviewer looks at them: solvers one after another, over the age of the model they train.

A solver's learning rate, iteration by iteration, as a table.

How many epochs an iteration of solvers' files is: by what the user says, and the nets beside them.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from google.protobuf.message import Message

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.messages import nearest
from caffe_recipes.caffe.prototxt import MOST_BYTES, load_document
from caffe_recipes.caffe.rates import POLICIES, lr_at
from caffe_recipes.caffe.text.writer import float_text
from caffe_recipes.errors import InputError, PrototxtError
from caffe_recipes.files import read_bytes
from caffe_recipes.recipe.graph import images_before, images_per_iter, line_to
from caffe_recipes.review.diff.compare import batch_of
from caffe_recipes.review.naming import need_named

if TYPE_CHECKING:
    from caffe_recipes.caffe.prototxt import Document
    from caffe_recipes.recipe.model import Phase, Recipe

Unit = Literal["epochs", "iterations"]


@dataclass(frozen=True)
class TellingRates:
    """The rates that tell a schedule: the first, both sides of the warm-up's end, and the last update's.

    `warmup_end` and `after_warmup` are None where no warm-up ends.
    """

    first: float
    warmup_end: float | None
    after_warmup: float | None
    last: float


@dataclass(frozen=True)
class Stretch:
    """A solver's part of a schedule; x is the age of the model, in the schedule's unit.

    `taken_iter` is the iteration whose snapshot the next stretch starts from; the stretch itself goes on to
    `iterations`. `rate_before` and `decay_before` are the rate and the weight decay that the weights it
    starts from were last trained at, if known. `lane` is 0 on the line to the last model; a branch off it has
    another, where it is beside no other.
    """

    name: str
    solver: pb.SolverParameter
    iterations: int
    taken_iter: int
    begins: float
    per_iter: float
    rate_before: float | None = None
    decay_before: float | None = None
    lane: int = 0

    def x_at(self, iteration: int) -> float:
        """Give the model's age at an iteration."""
        return self.begins + iteration * self.per_iter


@dataclass(frozen=True)
class PlottedSchedule:
    """Stretches that train one model, under the name that a reader knows it by."""

    name: str
    unit: Unit
    stretches: tuple[Stretch, ...]


def rates_between(solver: pb.SolverParameter, iterations: int) -> TellingRates | None:
    """Return the telling rates of so many iterations; None for `plateau`, whose rate depends on the losses.

    >>> solver = pb.SolverParameter(lr_policy="poly", power=1, base_lr=1, max_iter=8, warmup_iter=4)
    >>> rates_between(solver, 8)
    TellingRates(first=0.0, warmup_end=0.75, after_warmup=0.5, last=0.125)
    """
    if solver.lr_policy not in POLICIES:
        return None
    warmup = solver.warmup_iter
    ends = 0 < warmup < iterations
    return TellingRates(
        first=lr_at(solver, 0),
        warmup_end=lr_at(solver, warmup - 1) if ends else None,
        after_warmup=lr_at(solver, warmup) if ends else None,
        last=lr_at(solver, iterations - 1),
    )


def rate_left(solver: pb.SolverParameter, taken_iter: int, iterations: int) -> float | None:
    """Return the rate at which a snapshot leaves a solver: of the iteration it would go on with, or the last.

    >>> main = pb.SolverParameter(lr_policy="poly", power=1, base_lr=4.8, max_iter=8040)
    >>> [f"{rate_left(main, taken, 8040):.6g}" for taken in (7638, 8040)]
    ['0.24', '0.000597096']
    """
    if solver.lr_policy not in POLICIES:
        return None
    return lr_at(solver, min(taken_iter, iterations - 1))


def rate_before(recipe: Recipe, phase: Phase) -> float | None:
    """Return the rate at which the snapshot that a phase starts from was made, if a phase makes it."""
    from caffe_recipes.recipe.model import Phase  # pydantic
    from caffe_recipes.render.solvers import build_solver  # pydantic

    start = recipe.starts_from(phase)
    if not isinstance(start, Phase):
        return None
    return rate_left(build_solver(recipe, start), phase.weights_iter or start.last_iter, start.last_iter)


def load_solvers(
    path: str | Path, max_bytes: int = MOST_BYTES, iterations: int | None = None
) -> list[tuple[str, pb.SolverParameter]]:
    """Read the solvers of a file, each with its name: one, or each of a MultiPhaseSolverParameter.

    A solver without max_iter gets `iterations` of them, if given.

    Raises InputError for what is no solver's file, and for a solver whose rate nobody can tell: without
    iterations, of an unknown policy, or of `plateau`.
    """
    need_named(str(path), ["file"], "a solver's file")
    document: Document[Message] = load_document(path, max_bytes=max_bytes)
    solvers = list(_solvers_in(document))
    if not solvers:
        raise PrototxtError(
            path, f"is a {document.message.DESCRIPTOR.name}, no solver", "give a solver's file"
        )
    for _, solver, field in solvers:
        if iterations is not None and not solver.HasField("max_iter"):
            solver.max_iter = iterations
        _check_tellable(document, solver, field)
    return [(name, solver) for name, solver, _ in solvers]


def load_schedules(
    names: Sequence[str],
    epochs_per_iter: float | None = None,
    *,
    apart: bool = False,
    max_bytes: int = MOST_BYTES,
) -> list[PlottedSchedule]:
    """Read recipes, by name or YAML file, and solvers' files; the solvers make one schedule, in their order.

    `apart` gives each solver's file a schedule of its own. Raises InputError for what is neither, for a
    solver whose rate nobody can tell, and where recipes stand beside solvers without `epochs_per_iter`.
    """
    from caffe_recipes.recipe.source import load_recipe  # YAML

    named = [need_named(name, ["recipe", "file"], "a recipe, or a solver's file") for name in names]
    recipes = [one.path for one in named if one.kind == "recipe"]
    files = [one.path for one in named if one.kind == "file"]
    if recipes and files and not epochs_per_iter:
        hint = "give --images and --batch, so that solvers have epochs as recipes have"
        raise InputError(files[0], "a solver beside a recipe", hint)
    groups = [[file] for file in files] if apart else [files] if files else []
    schedules = [schedule_recipe(load_recipe(name)) for name in recipes]
    for group in groups:
        solvers = [
            (_short_name(name), solver) for file in group for name, solver in load_solvers(file, max_bytes)
        ]
        path = Path(group[0]).absolute()
        title = f"{path.parent.name}/{path.name}" if len(group) == 1 else path.parent.name
        schedules.append(schedule_solvers(title, solvers, epochs_per_iter))
    return schedules


def schedule_recipe(recipe: Recipe) -> PlottedSchedule:
    """Return a recipe's phases over epochs; a phase that branches off begins where its snapshot was made."""
    from caffe_recipes.recipe.model import Phase  # pydantic
    from caffe_recipes.render.solvers import build_solver  # pydantic

    images = recipe.data.train.images
    trunk = line_to(recipe, recipe.phases[-1])
    stretches: list[Stretch] = []
    for phase in recipe.phases:
        start = recipe.starts_from(phase)
        per_iter = images_per_iter(recipe, phase)
        stretch = Stretch(
            name=phase.name,
            solver=build_solver(recipe, phase),
            iterations=phase.last_iter,
            taken_iter=_taken_iter(recipe, phase),
            begins=images_before(recipe, phase) / images,
            per_iter=per_iter / images,
            rate_before=rate_before(recipe, phase),
            decay_before=build_solver(recipe, start).weight_decay if isinstance(start, Phase) else None,
        )
        stretches.append(stretch if phase in trunk else replace(stretch, lane=_free_lane(stretch, stretches)))
    return PlottedSchedule(recipe.name, "epochs", tuple(stretches))


def schedule_solvers(
    name: str, solvers: Sequence[tuple[str, pb.SolverParameter]], epochs_per_iter: float | None
) -> PlottedSchedule:
    """Return solvers one after another, over epochs if an iteration of one batch is known to make so many."""
    stretches: list[Stretch] = []
    begins, before, decay = 0.0, None, None
    for part, solver in solvers:
        per_iter = epochs_per_iter * max(solver.iter_size, 1) if epochs_per_iter else 1.0
        end = solver.max_iter
        stretches.append(Stretch(part, solver, end, end, begins, per_iter, before, decay))
        begins = stretches[-1].x_at(end)
        before, decay = rate_left(solver, end, end), solver.weight_decay
    return PlottedSchedule(name, "epochs" if epochs_per_iter else "iterations", tuple(stretches))


def _free_lane(stretch: Stretch, others: Sequence[Stretch]) -> int:
    """Return the first lane beside the trunk's in which a stretch is beside no other."""
    taken = {
        other.lane
        for other in others
        if other.begins < stretch.x_at(stretch.iterations) and stretch.begins < other.x_at(other.iterations)
    }
    return next(lane for lane in range(1, len(others) + 2) if lane not in taken)


def _short_name(name: str) -> str:
    """Name a solver as its recipe's phase would be.

    >>> _short_name("a/solver_cyc1.prototxt"), _short_name("solver.prototxt:params_pair[0]")
    ('cyc1', 'solver[0]')
    """
    file, _, field = name.partition(".prototxt:params_pair")
    return (Path(file).name.removesuffix(".prototxt").removeprefix("solver_") or "solver") + field


def _solvers_in(document: Document[Message]) -> Iterable[tuple[str, pb.SolverParameter, str]]:
    message = document.message
    if isinstance(message, pb.SolverParameter):
        yield document.path, message, ""
    elif isinstance(message, pb.MultiPhaseSolverParameter):
        for index, pair in enumerate(message.params_pair):
            field = f"params_pair[{index}]"
            yield f"{document.path}:{field}", pair.solver_params, f"{field}.solver_params."


def _check_tellable(document: Document[Message], solver: pb.SolverParameter, field: str) -> None:
    policy = solver.lr_policy
    if solver.max_iter <= 0:
        said = f"max_iter is {solver.max_iter}" if solver.HasField("max_iter") else "max_iter is missing"
        hint = "give max_iter; lr takes --iterations"
        raise PrototxtError(document.where(f"{field}max_iter"), f"{said}: there is no iteration", hint)
    where = document.where(f"{field}lr_policy")
    if policy == "plateau":
        what = "the rate of lr_policy plateau depends on the losses"
        raise PrototxtError(where, what, "read it in the log")
    if policy not in POLICIES:
        said = f"lr_policy '{policy}' is unknown" if policy else "lr_policy is missing"
        raise PrototxtError(where, said, nearest(policy, POLICIES))
    if policy == "step" and solver.stepsize <= 0:
        where = document.where(f"{field}stepsize")
        raise PrototxtError(where, "lr_policy step needs stepsize above 0", "give the iterations of a step")


def _taken_iter(recipe: Recipe, phase: Phase) -> int:
    """Return the last iteration of a phase that the final model, or any later phase, builds on."""
    later = [other for other in recipe.phases if recipe.starts_from(other) is phase]
    return max((other.weights_iter or phase.last_iter for other in later), default=phase.last_iter)


_ROWS_AT_ONCE = 10_000


def iterations_of(max_iter: int, every: int = 1) -> Iterator[int]:
    """Yield 0, every, 2 every, ..., and always the last, where a schedule is looked at first.

    >>> list(iterations_of(10, 4)), list(iterations_of(9, 4))
    ([0, 4, 8, 9], [0, 4, 8])
    """
    yield from range(0, max_iter, every)
    if max_iter > 0 and (max_iter - 1) % every:
        yield max_iter - 1


def rate_rows(solver: pb.SolverParameter, every: int = 1) -> Iterator[tuple[int, str]]:
    """Yield each iteration with its float32 rate, in the fewest digits that read back bit-equal.

    >>> list(rate_rows(pb.SolverParameter(lr_policy="poly", power=1, base_lr=0.3, max_iter=3)))
    [(0, '0.3'), (1, '0.2'), (2, '0.1')]
    """
    for iteration in iterations_of(solver.max_iter, every):
        yield iteration, float_text(lr_at(solver, iteration))


def render_rates(
    solvers: Sequence[tuple[str, pb.SolverParameter]], every: int = 1, *, as_csv: bool = False
) -> Iterator[str]:
    """Write the tables of named solvers, a few thousand lines at a time.

    CSV is `iter,lr` for one solver, and `solver,iter,lr` for several. As text, each solver has a table of its
    own, below its name if there are several.
    """
    if as_csv:
        yield from _csv_of(solvers, every)
        return
    for index, (name, solver) in enumerate(solvers):
        if len(solvers) > 1:
            yield f"\n{name}\n" if index else f"{name}\n"
        width = max(len(str(solver.max_iter - 1)), len("iter"))
        yield f"{'iter':>{width}}  lr\n"
        yield from _joined(f"{iteration:{width}}  {rate}\n" for iteration, rate in rate_rows(solver, every))


def _csv_of(solvers: Sequence[tuple[str, pb.SolverParameter]], every: int) -> Iterator[str]:
    several = len(solvers) > 1
    yield "solver,iter,lr\n" if several else "iter,lr\n"
    for name, solver in solvers:
        before = f"{_csv_cell(name)}," if several else ""
        yield from _joined(f"{before}{iteration},{rate}\n" for iteration, rate in rate_rows(solver, every))


def _csv_cell(text: str) -> str:
    cell = io.StringIO()
    csv.writer(cell, lineterminator="").writerow([text])
    return cell.getvalue()


def _joined(lines: Iterable[str]) -> Iterator[str]:
    """Join lines, so that a write to a terminal or pipe is not made for each."""
    batch: list[str] = []
    for line in lines:
        batch.append(line)
        if len(batch) == _ROWS_AT_ONCE:
            yield "".join(batch)
            batch.clear()
    yield "".join(batch)


def find_epochs_per_iter(
    files: Sequence[str],
    images: int | None,
    ranks: int | None,
    batch: int | None,
    max_bytes: int = MOST_BYTES,
) -> float | None:
    """Give the epochs of an iteration of one batch a rank; None where nothing is said of epochs.

    `ranks` is 1 unless said. A `batch` that is not said is that of the nets beside the solvers' files, or in
    them. Raises InputError that names all that is missing, and where these nets differ.
    """
    if images is None and ranks is None and batch is None:
        return None
    missing = [] if images is not None else ["--images"]
    batches = {} if batch else {file: batch_beside(file, max_bytes) for file in files}
    unknown = [file for file, size in batches.items() if size is None]
    if batch is None and (unknown or not files):
        missing.append("--batch")
    if missing or images is None:
        beside = f" (no net with a batch_size lies beside {unknown[0]})" if unknown else ""
        raise InputError(
            "",
            f"epochs need {' and '.join(missing)}{beside}",
            "give what is missing, or none of them, for iterations",
        )
    sizes = {size for size in batches.values() if size is not None}
    if len(sizes) > 1:
        said = ", ".join(f"{size} of {file}" for file, size in batches.items())
        raise InputError("", f"the nets beside the solvers have other batches: {said}", "give --batch")
    return (ranks or 1) * (batch or sizes.pop()) / images


def batch_beside(file: str, max_bytes: int = MOST_BYTES) -> int | None:
    """Give the images of a rank's batch in the net in a solver's file, or beside it; None if there is none.

    Raises PrototxtError for a solver that cannot be read.
    """
    document: Document[Message] = load_document(file, max_bytes=max_bytes)
    message = document.message
    if isinstance(message, pb.MultiPhaseSolverParameter) and message.params_pair:
        message = message.params_pair[0].solver_params
    return batch_of(message, file, _read) if isinstance(message, pb.SolverParameter) else None


def _read(path: str) -> bytes | None:
    try:
        return read_bytes(path, MOST_BYTES + 1)
    except (OSError, ValueError):
        return None
