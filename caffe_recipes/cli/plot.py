"""`caffe-recipes plot`: draw the schedules of recipes and solvers, or the curves of runs and logs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from caffe_recipes.cli import run_options
from caffe_recipes.cli.options import PATH, RECIPE, RECIPE_OR_PROTOTXT, Whole, examples, gather
from caffe_recipes.cli.streams import echo, max_bytes_option
from caffe_recipes.errors import InputError
from caffe_recipes.files.atomic_writes import check_not_input
from caffe_recipes.recipe.source import expand_families
from caffe_recipes.render.tree import write_file
from caffe_recipes.review.inspect.plot_style import format_of
from caffe_recipes.review.inspect.schedules import find_epochs_per_iter, load_schedules
from caffe_recipes.review.inspect.schedules_plot import render_plot
from caffe_recipes.review.lint.folders import find_chain
from caffe_recipes.review.naming import KINDS, require_named

if TYPE_CHECKING:
    from caffe_recipes.review.inspect.curves import XAxis

_COUNT = Whole(1, 2**31 - 1)


@dataclass(frozen=True)
class _Counts:
    """The options from which epochs are counted."""

    images: int | None = None
    ranks: int | None = None
    batch: int | None = None


@click.command(
    epilog=examples(
        "caffe-recipes plot stampede2-64n-72ep -o schedule.svg",
        "caffe-recipes plot init.prototxt cyc1.prototxt -o rates.png",
        "caffe-recipes plot digits-local-1 digits-local-2 -o curves.svg",
        "caffe-recipes plot train.log --x hours -o curves.png",
    )
)
@click.argument(
    "names",
    metavar="NAME|FILE.yaml|FOLDER|SOLVER.prototxt|RUN|LOG...",
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
    help="The .svg, .png or .pdf file to write; curves also as .csv.",
)
@click.option("--log", is_flag=True, help="Plot the rate on a logarithmic axis (four decades at most).")
@click.option(
    "--x",
    "axis",
    type=click.Choice(["iterations", "epochs", "hours"]),
    help="What to draw curves over [default: epochs if they are known, else iterations]",
)
@click.option("--images", metavar="N", type=_COUNT, help="Images in an epoch, for solver files and logs.")
@click.option("--ranks", metavar="N", type=_COUNT, help="MPI ranks, for solver files and logs [default: 1]")
@click.option(
    "--batch",
    metavar="N",
    type=_COUNT,
    help="Images per rank per iteration [default: read from the nets next to the solvers]",
)
@click.option(
    "--apart", is_flag=True, help="Plot each solver file from iteration 0, instead of one after another."
)
@run_options.runs_root
@max_bytes_option
@gather(_Counts, "counts")
def plot(
    names: tuple[str, ...],
    out: Path,
    axis: XAxis | None,
    log: bool,
    counts: _Counts,
    apart: bool,
    caffe_root: str,
    max_bytes: int,
) -> None:
    """Plot schedules: the learning rate and weight decay over epochs, with phases and jumps marked.

    Solver files are plotted one after another, over iterations or, with --images, over epochs. A folder
    stands for its solvers, in the order in which they are trained.

    Plot curves of runs and training logs: loss, accuracy and learning rate over epochs, iterations or hours,
    with joins, restarts and warm-ups marked. RUN is the folder or name of a run (digits-local-1). LOG may be
    `-`, which is standard input, and compressed by gzip.
    """
    check_not_input(out, names, "-o")
    shown = [_is_trained(name, caffe_root) for name in names]
    if all(shown):
        if apart:
            raise InputError("--apart", "is for solver files", "leave it out")
        _plot_curves(names, out, axis, counts, caffe_root, log=log)
        return
    if any(shown):
        trained, other = names[shown.index(True)], names[shown.index(False)]
        require_named(other, KINDS, "", takes_runs=True)
        what = f"is not a run or a log, as {trained} is"
        raise InputError(other, what, "plot schedules and curves by two commands")
    if axis is not None:
        raise InputError("--x", "is for runs and logs", "leave it out; --images draws solvers over epochs")
    _plot_schedules(names, out, counts, max_bytes, is_apart=apart, log=log)


def _plot_schedules(
    names: tuple[str, ...], out: Path, counts: _Counts, max_bytes: int, *, is_apart: bool, log: bool
) -> None:
    names = tuple(
        file
        for name in expand_families(names)
        for file in (
            find_chain(Path(name), max_bytes, is_ordered=not is_apart) if Path(name).is_dir() else [name]
        )
    )
    files = [name for name in names if Path(name).is_file() and not name.endswith(RECIPE.suffixes)]
    per_iter = find_epochs_per_iter(files, counts.images, counts.ranks, counts.batch, max_bytes)
    schedules = load_schedules(names, per_iter, apart=is_apart, max_bytes=max_bytes)
    if out.suffix.lower() == ".csv":
        raise InputError(
            out, "is for curves", "end it in .svg, .png or .pdf; `caffe-recipes lr` prints rates"
        )
    write_file(out, render_plot(schedules, format_of(out), log=log))
    echo(f"wrote {out}")


def _is_trained(name: str, root: str) -> bool:
    """Return whether a name is a run or a log, rather than a recipe or a solver."""
    from caffe_recipes.run.monitor.curves import is_run

    is_file = Path(name).exists() and not Path(name).is_dir()
    is_log = (
        name == "-"
        or name.endswith((".log", ".log.gz"))
        or (is_file and not name.endswith(RECIPE_OR_PROTOTXT.suffixes))
    )
    return is_log or is_run(name, root)


def _plot_curves(
    names: tuple[str, ...], out: Path, axis: XAxis | None, counts: _Counts, root: str, *, log: bool
) -> None:
    from caffe_recipes.review.inspect import curves as found
    from caffe_recipes.review.inspect.curves_plot import render_curves
    from caffe_recipes.run.monitor.curves import is_run, load_run_curve

    kind = "csv" if out.suffix.lower() == ".csv" else format_of(out, ".svg, .png, .pdf or .csv")
    if log and kind == "csv":
        raise InputError("--log", "is for pictures, not for a .csv", "leave it out")
    given = next((option for option, count in vars(counts).items() if count is not None), None)
    if given and all(is_run(name, root) for name in names):
        raise InputError(f"--{given}", "is for solver files and logs", "leave it out")
    curves: list[found.TrainingCurve] = []
    for name, shown in zip(names, found.name_logs([*map(Path, names)]), strict=True):
        if is_run(name, root):
            curve = load_run_curve(name, root)
            curve.name = shown if "/" in shown else curve.name
            curves.append(curve)
        else:
            per_iter = find_epochs_per_iter([], counts.images, counts.ranks, counts.batch)
            curves += found.load_log_curves(Path(name), per_iter, shown)
    axis = axis or found.best_axis(curves)
    found.check_axis(curves, axis)
    if kind == "csv":
        write_file(out, "".join(f"{row}\n" for row in found.render_curves_csv(curves)).encode())
    else:
        write_file(out, render_curves(curves, axis, kind, log=log))
    echo(f"wrote {out}")
