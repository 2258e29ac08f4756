"""`caffe-recipes plot`: learning rate and weight decay of recipes and solvers as a picture."""

from __future__ import annotations

from pathlib import Path

import click

from caffe_recipes.cli.names import RECIPE_OR_PROTOTXT
from caffe_recipes.generate.tree import write_file
from caffe_recipes.review.plot import format_of, render_plot
from caffe_recipes.review.schedules import load_schedules

_COUNT = click.IntRange(1, 2**31 - 1)


@click.command()
@click.argument(
    "names",
    metavar="NAME|FILE.yaml|SOLVER.prototxt...",
    nargs=-1,
    required=True,
    type=RECIPE_OR_PROTOTXT,
)
@click.option(
    "-o",
    "--out",
    metavar="FILE",
    type=click.Path(path_type=Path),
    required=True,
    help="A .svg, .png or .pdf.",
)
@click.option("--log", is_flag=True, help="Draw the rate on a logarithmic axis, of four decades at most.")
@click.option("--images", metavar="N", type=_COUNT, help="Images of an epoch, for solvers' files.")
@click.option("--ranks", metavar="N", type=_COUNT, default=1, help="MPI ranks, for solvers' files.")
@click.option("--batch", metavar="N", type=_COUNT, help="Images of a rank's batch, for solvers' files.")
@click.option("--apart", is_flag=True, help="Draw each solver's file from 0, not one after another.")
def plot(
    names: tuple[str, ...],
    out: Path,
    log: bool,
    images: int | None,
    ranks: int,
    batch: int | None,
    apart: bool,
) -> None:
    """Draw learning rate and weight decay of recipes over epochs, on one axis, with phases and jumps marked.

    Solvers' files are drawn one after another, over iterations, or over epochs with --images and --batch.
    """
    if (images is None) != (batch is None):
        raise click.UsageError("epochs need both --images and --batch")
    kind = format_of(out)
    per_iter = ranks * batch / images if images and batch else None
    picture = render_plot(load_schedules(names, per_iter, apart=apart), kind, log=log)
    write_file(out, picture)
    click.echo(f"wrote {click.format_filename(out)}")
