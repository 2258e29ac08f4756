"""`caffe-recipes lr`: the learning rate of solvers, iteration by iteration."""

from __future__ import annotations

import click

from caffe_recipes.caffe.prototxt import MOST_BYTES
from caffe_recipes.cli.options import PROTOTXT, Whole, examples
from caffe_recipes.cli.streams import echo
from caffe_recipes.review.inspect.schedules import load_chain, render_rates


@click.command(
    epilog=examples(
        "caffe-recipes lr solver.prototxt --every 100",
        "caffe-recipes lr init.prototxt cyc1.prototxt --csv",
    )
)
@click.argument("solvers", metavar="SOLVER.prototxt...", nargs=-1, required=True, type=PROTOTXT)
@click.option(
    "--every", metavar="N", type=Whole(1), default=1, help="Print every N-th iteration, and the last."
)
@click.option(
    "--iterations", metavar="N", type=Whole(1), help="Iterations to print, for a solver without max_iter."
)
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV: iter,lr; of several solvers solver,iter,lr.")
@click.option(
    "--max-bytes", metavar="N", type=Whole(1), default=MOST_BYTES, help="Refuse files over N bytes."
)
def lr(solvers: tuple[str, ...], every: int, iterations: int | None, as_csv: bool, max_bytes: int) -> None:
    """Print a solver's learning rate at each iteration, as Caffe computes it in float32.

    Any solver will do. A rate has the fewest digits that give the same float32 again.
    """
    chain = load_chain(solvers, max_bytes, iterations)
    for text in render_rates(chain, every, as_csv=as_csv):
        echo(text, nl=False)
