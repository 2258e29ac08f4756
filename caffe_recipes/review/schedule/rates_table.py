"""A solver's learning rate, iteration by iteration, as a table."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Sequence

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.rates import lr_at
from caffe_recipes.caffe.text.writer import float_text

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
