"""`caffe-recipes plot`: draw the learning rate and weight decay of recipes and solvers."""

from __future__ import annotations

from pathlib import Path

import click

from caffe_recipes.cli.options import PATH, RECIPE, RECIPE_OR_PROTOTXT, Whole, examples
from caffe_recipes.cli.streams import echo, max_bytes_option
from caffe_recipes.render.tree import write_file
from caffe_recipes.review.inspect.plots import format_of, render_plot
from caffe_recipes.review.inspect.schedules import find_epochs_per_iter, load_schedules
from caffe_recipes.review.lint.folders import find_chain

_COUNT = Whole(1, 2**31 - 1)


@click.command(
    epilog=examples(
        "caffe-recipes plot stampede2-64n-72ep -o schedule.svg",
        "caffe-recipes plot init.prototxt cyc1.prototxt -o rates.png",
        "caffe-recipes plot models/resnet50 -o rates.png",
    )
)
@click.argument(
    "names",
    metavar="NAME|FILE.yaml|FOLDER|SOLVER.prototxt...",
    nargs=-1,
    required=True,
    type=RECIPE_OR_PROTOTXT,
)
@click.option(
    "-o",
    "--out",
    metavar="FILE",
    type=PATH,
    required=True,
    help="The .svg, .png or .pdf file to write.",
)
@click.option("--log", is_flag=True, help="Plot the rate on a logarithmic axis (four decades at most).")
@click.option("--images", metavar="N", type=_COUNT, help="Images in an epoch, for solver files.")
@click.option("--ranks", metavar="N", type=_COUNT, help="MPI ranks, for solver files [default: 1]")
@click.option(
    "--batch",
    metavar="N",
    type=_COUNT,
    help="Images per rank per iteration [default: read from the nets next to the solvers]",
)
@click.option(
    "--apart", is_flag=True, help="Plot each solver file from iteration 0, instead of one after another."
)
@max_bytes_option
def plot(
    names: tuple[str, ...],
    out: Path,
    log: bool,
    images: int | None,
    ranks: int | None,
    batch: int | None,
    apart: bool,
    max_bytes: int,
) -> None:
    """Plot the learning rate and weight decay over epochs, with phases and jumps marked.

    Solver files are plotted one after another, over iterations or, with --images, over epochs. A folder
    stands for its solvers, in the order in which they are trained.
    """
    kind = format_of(out)
    names = tuple(
        file
        for name in names
        for file in (
            find_chain(Path(name), max_bytes, is_ordered=not apart) if Path(name).is_dir() else [name]
        )
    )
    files = [name for name in names if Path(name).is_file() and not name.endswith(RECIPE.suffixes)]
    per_iter = find_epochs_per_iter(files, images, ranks, batch, max_bytes)
    picture = render_plot(load_schedules(names, per_iter, apart=apart, max_bytes=max_bytes), kind, log=log)
    write_file(out, picture)
    echo(f"wrote {out}")
