"""`caffe-recipes estimate`: estimate a recipe's time and cost, or recompute the paper's tables."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import click

from caffe_recipes.cli import consent, run_options
from caffe_recipes.cli.options import COUNT, NUMBER, PATH, RECIPE, examples, gather
from caffe_recipes.cli.streams import echo, terminal_width
from caffe_recipes.errors import InputError
from caffe_recipes.recipe.model import Recipe
from caffe_recipes.recipe.pace import KINDS, PaceKind, shape_of
from caffe_recipes.recipe.source import load_recipe
from caffe_recipes.render.tree import write_file
from caffe_recipes.review.inspect.estimate_tables import (
    estimate_values,
    render_estimate,
    render_sweep,
    render_tables,
    table_values,
)
from caffe_recipes.review.inspect.plot_style import format_of
from caffe_recipes.review.inspect.sweep import SpeedInputs, add_speedups, estimate_shapes, sweep_shapes
from caffe_recipes.review.inspect.sweep_plot import render_sweep_plot
from caffe_recipes.review.naming import recipe_named
from caffe_recipes.run.context import find_profile
from caffe_recipes.run.staging import find_rates


def _start(context: click.Context, option: click.Parameter, text: str | None) -> datetime:
    if text is None:
        return datetime.now().astimezone()
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise InputError("--start", f"'{text[:80]}' is not a time", "e.g. 2026-03-01T09:00") from None


@dataclass(frozen=True)
class _Speed:
    """The options that give a recipe's speed."""

    profile: str | None = None
    logs: tuple[Path, ...] = ()
    images_per_s: float | None = None
    by: PaceKind | None = None

    def known(self, recipe: Recipe) -> SpeedInputs:
        """Return the known speeds, with the machine of the profile or the recipe."""
        found = find_profile(recipe, self.profile)
        machine = found if self.profile else None
        return SpeedInputs(self.logs, self.images_per_s, machine, find_rates(found), self.by)


@dataclass(frozen=True)
class _Sweep:
    """The options for estimating other nodes or batch sizes than the recipe's own."""

    nodes: tuple[int, ...] = ()
    sweeps: tuple[str, ...] = ()
    plot: Path | None = None
    speedup: bool = False


@click.command(
    epilog=examples(
        "caffe-recipes estimate stampede2-64n-72ep",
        "caffe-recipes estimate mine.yaml --sweep nodes=64..512:x2 --plot sweep.svg",
        "caffe-recipes estimate stampede2-448n-90ep --to-accuracy 76",
        "caffe-recipes estimate paper-t2-8192-256n --sweep nodes=4..1024:x2 --speedup",
        "caffe-recipes estimate --paper-tables",
    )
)
@click.argument("name", metavar="NAME|FILE.yaml", required=False, type=RECIPE)
@run_options.profile
@click.option(
    "--log",
    "logs",
    type=PATH,
    metavar="FILE|DIR",
    multiple=True,
    help="Take the speed from this Caffe log or run folder; the run must have the recipe's nodes, ranks and "
    "batch size. May be repeated.",
)
@click.option(
    "--images-per-s",
    metavar="N",
    type=NUMBER,
    callback=run_options.read_speed,
    help="The speed with the recipe's nodes, ranks and batch size.",
)
@click.option(
    "--by",
    type=click.Choice(list(KINDS)),
    help="Where to take the speed from [default: the first of these that is known]",
)
@click.option(
    "--nodes",
    metavar="N",
    type=COUNT,
    multiple=True,
    help="Estimate for N nodes; may be repeated.",
)
@click.option(
    "--sweep",
    "sweeps",
    metavar="KEY=VALUES",
    multiple=True,
    help="Estimate a range of values. KEY is nodes, batch_per_rank or global_batch; VALUES are 64,128 or "
    "64..512:64 or 64..1024:x2.",
)
@click.option(
    "--to-accuracy",
    metavar="PERCENT",
    type=NUMBER,
    help="Estimate the time to this top-1 accuracy of ResNet-50 from the paper's epochs, e.g. 74, 76 or 77.",
)
@click.option("--plot", type=PATH, metavar="FILE", help="Plot the sweep to this .svg, .png or .pdf file.")
@click.option(
    "--speedup",
    is_flag=True,
    help="Add the speed-up over four ranks, as in the paper's Figures 1 and 2; --plot draws it.",
)
@click.option(
    "--start",
    metavar="TIME",
    callback=_start,
    help="Start time of the run, e.g. 2026-03-01T09:00 [default: now]",
)
@consent.run_code
@click.option(
    "--paper-tables", is_flag=True, help="Recompute the paper's tables, next to the published numbers."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, with all values unrounded.")
@gather(_Speed, "speed")
@gather(_Sweep, "sweep")
def estimate(
    name: str | None,
    speed: _Speed,
    sweep: _Sweep,
    to_accuracy: float | None,
    start: datetime,
    paper_tables: bool,
    as_json: bool,
) -> None:
    """Estimate a recipe's time and cost: training, staging, evaluation, node-hours, and when it ends.

    The speed is the first of these that is known: --log, --images-per-s, the images/s that the recipe's
    source reports, the paper's measurements on such a machine, and the minutes that the source reports.
    """
    if paper_tables:
        if name or speed != _Speed() or sweep != _Sweep() or to_accuracy is not None:
            hint = "give it alone, or with --json"
            raise InputError("--paper-tables", "uses the paper's own recipes and speeds", hint)
        _print_tables(as_json=as_json)
        return
    if name is None:
        raise InputError("", "no recipe given", "give one, or --paper-tables")
    kind = format_of(sweep.plot) if sweep.plot else ""
    if sweep.plot and not (sweep.sweeps or sweep.nodes):
        raise InputError("--plot", "needs a sweep to draw", "give --sweep or --nodes too")
    if sweep.speedup and not (sweep.sweeps or sweep.nodes):
        raise InputError("--speedup", "needs a sweep", "give e.g. --sweep nodes=4..256:x2")
    recipe = load_recipe(recipe_named(name), "start it, and see its images/s and the time left with `status`")
    shapes = sweep_shapes(shape_of(recipe), sweep.sweeps, nodes=sweep.nodes)
    inputs = speed.known(recipe)
    estimates = estimate_shapes(recipe, shapes, inputs, to_accuracy)
    if sweep.speedup:
        estimates = add_speedups(recipe, estimates, inputs)
    if sweep.plot:
        swept = [text.partition("=")[0] for text in sweep.sweeps]
        write_file(sweep.plot, render_sweep_plot(estimates, kind, swept))
        echo(f"wrote {sweep.plot}", err=True)
    if as_json:
        click.echo(json.dumps(estimate_values(estimates, start), indent=2))
    elif len(estimates) == 1 and not sweep.speedup:
        echo(*render_estimate(estimates[0], start, terminal_width()))
    else:
        echo(*render_sweep(estimates, terminal_width()))


def _print_tables(*, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(table_values(), indent=2))
    else:
        echo(*render_tables())
