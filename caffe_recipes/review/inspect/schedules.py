"""The schedules of recipes and solver files: learning rates over the age of the model, to plot and as tables.

The age is counted in iterations, or in epochs if the options and the nets beside the solvers give the images
per iteration.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from google.protobuf.message import Message

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.chain import RATE_OF_LOSSES, Chain, phase_name_from_path, read_links
from caffe_recipes.caffe.messages import nearest
from caffe_recipes.caffe.prototxt import MOST_BYTES, load_document
from caffe_recipes.caffe.rates import POLICIES, lr_at
from caffe_recipes.caffe.text.writer import float_text
from caffe_recipes.errors import InputError, PrototxtError
from caffe_recipes.recipe.graph import images_before, images_per_iter, line_to
from caffe_recipes.review.diff.compare import solver_batch
from caffe_recipes.review.diff.sources import read_if_exists
from caffe_recipes.review.naming import require_named
from caffe_recipes.review.text_columns import csv_row

if TYPE_CHECKING:
    from caffe_recipes.caffe.chain import Link
    from caffe_recipes.caffe.prototxt import Document
    from caffe_recipes.recipe.model import Phase, Recipe

Axis = Literal["epochs", "iterations"]


@dataclass(frozen=True)
class Stretch:
    """One solver's part of a schedule; x is the age of the model, in the schedule's unit.

    `taken_iter` is the iteration whose snapshot the next stretch starts from; this stretch itself trains
    `iterations`. `rate_before` and `decay_before` are the last rate and weight decay of the weights that it
    starts from, if known. `lane` is 0 on the line to the last model; a branch has a lane in which it overlaps
    no other stretch.
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
    """The stretches that train one model, and a name for its schedule."""

    name: str
    unit: Axis
    stretches: tuple[Stretch, ...]


def rate_at_snapshot(solver: pb.SolverParameter, taken_iter: int, iterations: int) -> float | None:
    """Return the rate at a snapshot: that of the next iteration, or of the last one if training ends there.

    >>> main = pb.SolverParameter(lr_policy="poly", power=1, base_lr=4.8, max_iter=8040)
    >>> [f"{rate_at_snapshot(main, taken, 8040):.6g}" for taken in (7638, 8040)]
    ['0.24', '0.000597096']
    """
    if solver.lr_policy not in POLICIES:
        return None
    return lr_at(solver, min(taken_iter, iterations - 1))


def rate_before(recipe: Recipe, phase: Phase) -> float | None:
    """Return the rate at the snapshot that a phase starts from; None if no phase writes that snapshot."""
    from caffe_recipes.recipe.model import Phase  # pydantic
    from caffe_recipes.render.prototxts import build_solver  # pydantic

    start = recipe.starts_from(phase)
    if not isinstance(start, Phase):
        return None
    return rate_at_snapshot(
        build_solver(recipe, start), phase.weights_iter or start.last_iter, start.last_iter
    )


def load_chain(paths: Sequence[str], max_bytes: int = MOST_BYTES, iterations: int | None = None) -> Chain:
    """Return the solvers of files as one chain, in their order, without reading their nets.

    `iterations`, if given, is the max_iter of solvers that have none.

    Raises InputError for a file that is not a solver, and for a solver whose rate is unknown: without
    iterations, with an unknown policy, or with `plateau`.
    """
    links: list[Link] = []
    for path in paths:
        require_named(path, ["file"], "a solver file")
        document: Document[Message] = load_document(path, max_bytes=max_bytes)
        found = read_links(document, phase_name_from_path(path))
        if not found:
            what = f"expected a solver, found a {document.message.DESCRIPTOR.name}"
            raise PrototxtError(path, what, "give a solver file")
        for link in found:
            solver = link.solver.message
            if iterations is not None and not solver.HasField("max_iter"):
                solver.max_iter = iterations
            _check_rate_known(document, link)
            links.append(replace(link, last_iter=solver.max_iter))
    return Chain(tuple(links))


def load_schedules(
    names: Sequence[str],
    epochs_per_iter: float | None = None,
    *,
    apart: bool = False,
    max_bytes: int = MOST_BYTES,
) -> list[PlottedSchedule]:
    """Return the schedules of recipes, named or in YAML files, and of solver files, which form one schedule.

    With `apart`, each solver file has its own schedule. Raises InputError for other files, for a solver whose
    rate is unknown, and for recipes together with solvers if `epochs_per_iter` is not given.
    """
    from caffe_recipes.recipe.source import load_recipe  # YAML

    wanted = "a recipe or a solver file"
    named = [require_named(name, ["recipe", "file"], wanted, takes_runs=True) for name in names]
    recipes = [one.path for one in named if one.kind == "recipe"]
    files = [one.path for one in named if one.kind == "file"]
    if recipes and files and not epochs_per_iter:
        hint = "give --images and --batch to count its epochs"
        raise InputError(files[0], "cannot be drawn beside a recipe, whose schedule is in epochs", hint)
    groups = [[file] for file in files] if apart else [files] if files else []
    schedules = [schedule_recipe(load_recipe(name)) for name in recipes]
    for group in groups:
        path = Path(group[0]).absolute()
        title = f"{path.parent.name}/{path.name}" if len(group) == 1 else path.parent.name
        schedules.append(schedule_chain(title, load_chain(group, max_bytes), epochs_per_iter))
    return schedules


def schedule_recipe(recipe: Recipe) -> PlottedSchedule:
    """Return a recipe's schedule over epochs; a branch begins at the age of its starting snapshot."""
    from caffe_recipes.recipe.model import Phase  # pydantic
    from caffe_recipes.render.prototxts import build_solver  # pydantic

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
            taken_iter=_find_taken_iter(recipe, phase),
            begins=images_before(recipe, phase) / images,
            per_iter=per_iter / images,
            rate_before=rate_before(recipe, phase),
            decay_before=build_solver(recipe, start).weight_decay if isinstance(start, Phase) else None,
        )
        stretches.append(
            stretch if phase in trunk else replace(stretch, lane=_find_free_lane(stretch, stretches))
        )
    return PlottedSchedule(recipe.name, "epochs", tuple(stretches))


def schedule_chain(name: str, chain: Chain, epochs_per_iter: float | None) -> PlottedSchedule:
    """Return a chain's schedule, in epochs if `epochs_per_iter`, for one batch, is given."""
    stretches: list[Stretch] = []
    begins, before, decay = 0.0, None, None
    for link in chain.links:
        solver, end = link.solver.message, link.last_iter
        per_iter = epochs_per_iter * max(solver.iter_size, 1) if epochs_per_iter else 1.0
        stretches.append(Stretch(link.name, solver, end, end, begins, per_iter, before, decay))
        begins = stretches[-1].x_at(end)
        before, decay = rate_at_snapshot(solver, end, end), solver.weight_decay
    return PlottedSchedule(name, "epochs" if epochs_per_iter else "iterations", tuple(stretches))


def _find_free_lane(stretch: Stretch, others: Sequence[Stretch]) -> int:
    """Return the first lane beside the trunk in which a stretch overlaps no other."""
    taken = {
        other.lane
        for other in others
        if other.begins < stretch.x_at(stretch.iterations) and stretch.begins < other.x_at(other.iterations)
    }
    return next(lane for lane in range(1, len(others) + 2) if lane not in taken)


def _check_rate_known(document: Document[Message], link: Link) -> None:
    """Raise PrototxtError, with the place in the file, if a solver's rate is unknown."""
    field = f"{link.part}.solver_params." if link.part else ""
    solver = link.solver.message
    policy = solver.lr_policy
    if solver.max_iter <= 0:
        given = f"max_iter is {solver.max_iter}" if solver.HasField("max_iter") else "max_iter is missing"
        hint = "set max_iter, or give lr --iterations"
        raise PrototxtError(document.where(f"{field}max_iter"), f"{given}, so no iteration is trained", hint)
    where = document.where(f"{field}lr_policy")
    if policy == "plateau":
        raise PrototxtError(where, RATE_OF_LOSSES, "read the rate in the log")
    if policy not in POLICIES:
        what = f"lr_policy '{policy}' is unknown" if policy else "lr_policy is missing"
        raise PrototxtError(where, what, nearest(policy, POLICIES))
    if policy == "step" and solver.stepsize <= 0:
        where = document.where(f"{field}stepsize")
        raise PrototxtError(
            where, "lr_policy step needs stepsize above 0", "set stepsize to the iterations of a step"
        )


def _find_taken_iter(recipe: Recipe, phase: Phase) -> int:
    """Return the last iteration of a phase that a later phase starts from; its own last one if none does."""
    later = [other for other in recipe.phases if recipe.starts_from(other) is phase]
    return max((other.weights_iter or phase.last_iter for other in later), default=phase.last_iter)


_ROWS_AT_ONCE = 10_000


def sample_iterations(max_iter: int, every: int = 1) -> Iterator[int]:
    """Yield 0, every, 2 every, ..., and always the last iteration.

    >>> list(sample_iterations(10, 4)), list(sample_iterations(9, 4))
    ([0, 4, 8, 9], [0, 4, 8])
    """
    yield from range(0, max_iter, every)
    if max_iter > 0 and (max_iter - 1) % every:
        yield max_iter - 1


def rate_rows(solver: pb.SolverParameter, every: int = 1) -> Iterator[tuple[int, str]]:
    """Yield each iteration and its float32 rate, in the fewest digits that parse to the same float32.

    >>> list(rate_rows(pb.SolverParameter(lr_policy="poly", power=1, base_lr=0.3, max_iter=3)))
    [(0, '0.3'), (1, '0.2'), (2, '0.1')]
    """
    for iteration in sample_iterations(solver.max_iter, every):
        yield iteration, float_text(lr_at(solver, iteration))


def render_rates(chain: Chain, every: int = 1, *, as_csv: bool = False) -> Iterator[list[str]]:
    """Yield the lines of the rate tables of a chain's solvers, some thousands at a time.

    The CSV columns are `iter,lr` for one solver, and `solver,iter,lr` for several. As text, each solver has
    its own table, headed by the path of its file if there are several.
    """
    if as_csv:
        yield from _render_csv(chain, every)
        return
    for index, link in enumerate(chain.links):
        if len(chain.links) > 1:
            yield ["", _title(link)] if index else [_title(link)]
        solver = link.solver.message
        width = max(len(str(solver.max_iter - 1)), len("iter"))
        yield [f"{'iter':>{width}}  lr"]
        yield from _batch_lines(
            f"{iteration:{width}}  {rate}" for iteration, rate in rate_rows(solver, every)
        )


def _title(link: Link) -> str:
    """Return a solver's file, and its field if the file contains several solvers."""
    return f"{link.solver.path}:{link.part}" if link.part else link.solver.path


def _render_csv(chain: Chain, every: int) -> Iterator[list[str]]:
    several = len(chain.links) > 1
    yield ["solver,iter,lr" if several else "iter,lr"]
    for link in chain.links:
        before = f"{csv_row([_title(link)])}," if several else ""
        rows = rate_rows(link.solver.message, every)
        yield from _batch_lines(f"{before}{iteration},{rate}" for iteration, rate in rows)


def _batch_lines(lines: Iterable[str]) -> Iterator[list[str]]:
    """Yield lines in batches, to save writes to a terminal or pipe."""
    batch: list[str] = []
    for line in lines:
        batch.append(line)
        if len(batch) == _ROWS_AT_ONCE:
            yield batch
            batch = []
    if batch:
        yield batch


def find_epochs_per_iter(
    files: Sequence[str],
    images: int | None,
    ranks: int | None,
    batch: int | None,
    max_bytes: int = MOST_BYTES,
) -> float | None:
    """Return the epochs per iteration of one batch per rank; None if no option asks for epochs.

    `ranks` is 1 by default. The default `batch` is that of the nets beside or in the solver files. Raises
    InputError, naming every missing option, and if the batches of these nets differ.
    """
    if images is None and ranks is None and batch is None:
        return None
    missing = [] if images is not None else ["--images"]
    batches = {} if batch else {file: find_batch_size(file, max_bytes) for file in files}
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


def find_batch_size(file: str, max_bytes: int = MOST_BYTES) -> int | None:
    """Return the batch size per rank of the net in or beside a solver file; None if there is no such net.

    Raises PrototxtError if the solver cannot be read.
    """
    links = read_links(load_document(file, max_bytes=max_bytes), file)
    read = partial(read_if_exists, max_bytes=max_bytes)
    return solver_batch(links[0].solver.message, file, read, max_bytes) if links else None
