"""`caffe-recipes lr`: print the learning rate of solvers, iteration by iteration."""

from __future__ import annotations

import click

from caffe_recipes.cli.options import PROTOTXT, Whole, examples
from caffe_recipes.cli.streams import echo_rows, max_bytes_option
from caffe_recipes.review.inspect.schedules import load_chain, render_rates


@click.command(
    epilog=examples(
        "caffe-recipes lr solver.prototxt --every 100",
        "caffe-recipes lr init.prototxt cyc1.prototxt --csv",
    )
)
@click.argument("solvers", metavar="SOLVER.prototxt...", nargs=-1, required=True, type=PROTOTXT)
@click.option(
    "--every",
    metavar="N",
    type=Whole(1),
    default=1,
    show_default=True,
    help="Print every N-th iteration, and the last one.",
)
@click.option(
    "--iterations", metavar="N", type=Whole(1), help="Iterations to print for a solver without max_iter."
)
@click.option(
    "--csv", "as_csv", is_flag=True, help="Print CSV: iter,lr or, for several solvers, solver,iter,lr."
)
@max_bytes_option
def lr(solvers: tuple[str, ...], every: int, iterations: int | None, as_csv: bool, max_bytes: int) -> None:
    """Print a solver's learning rate at each iteration, as Caffe computes it in float32.

    Any solver can be read, even one that cannot be trained. Rates are printed with the fewest digits that
    give the same float32 value.
    """
    chain = load_chain(solvers, max_bytes, iterations)
    for lines in render_rates(chain, every, as_csv=as_csv):
        echo_rows(lines)
