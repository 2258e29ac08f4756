"""Schedules for reviewers: solvers one after another, over the age of the model that they train.

A solver's learning rate, iteration by iteration, as a table.

Epochs per iteration of solver files, from options and the nets beside them.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from google.protobuf.message import Message

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.messages import nearest
from caffe_recipes.caffe.prototxt import MOST_BYTES, load_document
from caffe_recipes.caffe.rates import POLICIES, lr_at
from caffe_recipes.caffe.text.writer import float_text
from caffe_recipes.errors import InputError, PrototxtError
from caffe_recipes.recipe.graph import images_before, images_per_iter, line_to
from caffe_recipes.review.diff.compare import batch_of
from caffe_recipes.review.diff.sources import read_if_there
from caffe_recipes.review.lint.chain import Chain, read_links
from caffe_recipes.review.lint.snapshot_rules import phase_name_from_path
from caffe_recipes.review.naming import need_named

if TYPE_CHECKING:
    from caffe_recipes.caffe.prototxt import Document
    from caffe_recipes.recipe.model import Phase, Recipe
    from caffe_recipes.review.lint.chain import Link

Unit = Literal["epochs", "iterations"]


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
        """Return the model's age at an iteration."""
        return self.begins + iteration * self.per_iter


@dataclass(frozen=True)
class PlottedSchedule:
    """Stretches that train one model, and its name for readers."""

    name: str
    unit: Unit
    stretches: tuple[Stretch, ...]


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


def load_chain(paths: Sequence[str], max_bytes: int = MOST_BYTES, iterations: int | None = None) -> Chain:
    """Read the solvers of files as one chain, in their order; their nets stay unread.

    A solver without max_iter gets `iterations` of them, if given.

    Raises InputError for other files, and for a solver whose rate is unknown: without iterations, with an
    unknown policy, or with `plateau`.
    """
    links: list[Link] = []
    for path in paths:
        need_named(path, ["file"], "a solver file")
        document: Document[Message] = load_document(path, max_bytes=max_bytes)
        found = read_links(document, phase_name_from_path(path))
        if not found:
            what = f"expected a solver, found a {document.message.DESCRIPTOR.name}"
            raise PrototxtError(path, what, "give a solver file")
        for link in found:
            solver = link.solver.message
            if iterations is not None and not solver.HasField("max_iter"):
                solver.max_iter = iterations
            _check_tellable(document, link)
            links.append(replace(link, last_iter=solver.max_iter))
    return Chain(tuple(links))


def load_schedules(
    names: Sequence[str],
    epochs_per_iter: float | None = None,
    *,
    apart: bool = False,
    max_bytes: int = MOST_BYTES,
) -> list[PlottedSchedule]:
    """Read recipes, by name or YAML file, and solvers' files; the solvers make one schedule, in their order.

    `apart` gives each solver file its own schedule. Raises InputError for other files, for a solver whose
    rate is unknown, and for recipes together with solvers without `epochs_per_iter`.
    """
    from caffe_recipes.recipe.source import load_recipe  # YAML

    named = [need_named(name, ["recipe", "file"], "a recipe or a solver file") for name in names]
    recipes = [one.path for one in named if one.kind == "recipe"]
    files = [one.path for one in named if one.kind == "file"]
    if recipes and files and not epochs_per_iter:
        hint = "give --images and --batch, so that solvers have epochs too"
        raise InputError(files[0], "a solver beside a recipe", hint)
    groups = [[file] for file in files] if apart else [files] if files else []
    schedules = [schedule_recipe(load_recipe(name)) for name in recipes]
    for group in groups:
        path = Path(group[0]).absolute()
        title = f"{path.parent.name}/{path.name}" if len(group) == 1 else path.parent.name
        schedules.append(schedule_chain(title, load_chain(group, max_bytes), epochs_per_iter))
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


def schedule_chain(name: str, chain: Chain, epochs_per_iter: float | None) -> PlottedSchedule:
    """Return phases one after another, over epochs if an iteration of one batch is known to make so many."""
    stretches: list[Stretch] = []
    begins, before, decay = 0.0, None, None
    for link in chain.links:
        solver, end = link.solver.message, link.last_iter
        per_iter = epochs_per_iter * max(solver.iter_size, 1) if epochs_per_iter else 1.0
        stretches.append(Stretch(link.name, solver, end, end, begins, per_iter, before, decay))
        begins = stretches[-1].x_at(end)
        before, decay = rate_left(solver, end, end), solver.weight_decay
    return PlottedSchedule(name, "epochs" if epochs_per_iter else "iterations", tuple(stretches))


def _free_lane(stretch: Stretch, others: Sequence[Stretch]) -> int:
    """Return the first lane beside the trunk that is free for a stretch."""
    taken = {
        other.lane
        for other in others
        if other.begins < stretch.x_at(stretch.iterations) and stretch.begins < other.x_at(other.iterations)
    }
    return next(lane for lane in range(1, len(others) + 2) if lane not in taken)


def _check_tellable(document: Document[Message], link: Link) -> None:
    """Raise PrototxtError for a solver whose rate is unknown, at its place in the file."""
    field = f"{link.part}.solver_params." if link.part else ""
    solver = link.solver.message
    policy = solver.lr_policy
    if solver.max_iter <= 0:
        given = f"max_iter is {solver.max_iter}" if solver.HasField("max_iter") else "max_iter is missing"
        hint = "give max_iter; lr takes --iterations"
        raise PrototxtError(document.where(f"{field}max_iter"), f"{given}: there is no iteration", hint)
    where = document.where(f"{field}lr_policy")
    if policy == "plateau":
        what = "the rate of lr_policy plateau depends on the losses"
        raise PrototxtError(where, what, "read the rate in the log")
    if policy not in POLICIES:
        what = f"lr_policy '{policy}' is unknown" if policy else "lr_policy is missing"
        raise PrototxtError(where, what, nearest(policy, POLICIES))
    if policy == "step" and solver.stepsize <= 0:
        where = document.where(f"{field}stepsize")
        raise PrototxtError(
            where, "lr_policy step needs stepsize above 0", "set stepsize to the iterations of a step"
        )


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


def render_rates(chain: Chain, every: int = 1, *, as_csv: bool = False) -> Iterator[str]:
    """Write the tables of a chain's solvers, a few thousand lines at a time.

    CSV is `iter,lr` for one solver, and `solver,iter,lr` for several. As text, each solver has a table of its
    own, below its file's path if there are several.
    """
    if as_csv:
        yield from _csv_of(chain, every)
        return
    for index, link in enumerate(chain.links):
        if len(chain.links) > 1:
            yield f"\n{_title(link)}\n" if index else f"{_title(link)}\n"
        solver = link.solver.message
        width = max(len(str(solver.max_iter - 1)), len("iter"))
        yield f"{'iter':>{width}}  lr\n"
        yield from _joined(f"{iteration:{width}}  {rate}\n" for iteration, rate in rate_rows(solver, every))


def _title(link: Link) -> str:
    """Name a solver by its file, and by its field in one of several."""
    return f"{link.solver.path}:{link.part}" if link.part else link.solver.path


def _csv_of(chain: Chain, every: int) -> Iterator[str]:
    several = len(chain.links) > 1
    yield "solver,iter,lr\n" if several else "iter,lr\n"
    for link in chain.links:
        before = f"{_csv_cell(_title(link))}," if several else ""
        rows = rate_rows(link.solver.message, every)
        yield from _joined(f"{before}{iteration},{rate}\n" for iteration, rate in rows)


def _csv_cell(text: str) -> str:
    cell = io.StringIO()
    csv.writer(cell, lineterminator="").writerow([text])
    return cell.getvalue()


def _joined(lines: Iterable[str]) -> Iterator[str]:
    """Join lines into chunks, to save writes to a terminal or pipe."""
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
    """Return the epochs of an iteration of one batch per rank; None if no option asks for epochs.

    `ranks` is 1 by default. The default `batch` is that of the nets beside or in the solver files. Raises
    InputError with all that is missing, and if these nets differ.
    """
    if images is None and ranks is None and batch is None:
        return None
    missing = [] if images is not None else ["--images"]
    batches = {} if batch else {file: batch_beside(file, max_bytes) for file in files}
    unknown = [file for file, size in batches.items() if size is None]
    if batch is None and (unknown or not files):
        missing.append("--batch")
    if missing or images is None:
        beside = f" (found no net with a batch_size beside {unknown[0]})" if unknown else ""
        raise InputError(
            "",
            f"epochs need {' and '.join(missing)}{beside}",
            "give what is missing, or leave all of them out to count in iterations",
        )
    sizes = {size for size in batches.values() if size is not None}
    if len(sizes) > 1:
        among = ", ".join(f"{size} of {file}" for file, size in batches.items())
        raise InputError(
            "", f"the nets beside the solvers have different batch sizes: {among}", "give --batch"
        )
    return (ranks or 1) * (batch or sizes.pop()) / images


def batch_beside(file: str, max_bytes: int = MOST_BYTES) -> int | None:
    """Return a rank's batch size in the net in or beside a solver file; None if there is none.

    Raises PrototxtError for a solver that cannot be read.
    """
    links = read_links(load_document(file, max_bytes=max_bytes), file)
    read = partial(read_if_there, max_bytes=max_bytes)
    return batch_of(links[0].solver.message, file, read, max_bytes) if links else None
