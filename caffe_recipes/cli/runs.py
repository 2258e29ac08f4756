"""`caffe-recipes runs`: compare runs, their results and what differs between their recipes."""

from __future__ import annotations

import click

from caffe_recipes.cli import run_options
from caffe_recipes.cli.options import RUN, examples
from caffe_recipes.cli.streams import echo, echo_rows
from caffe_recipes.errors import InputError


@click.command(
    epilog=examples(
        "caffe-recipes runs",
        "caffe-recipes runs mine-1 mine-2 --sort top1 --reverse",
        "caffe-recipes runs --csv > runs.csv",
    )
)
@click.argument("runs", metavar="[RUN]...", nargs=-1, type=RUN)
@run_options.runs_root
@run_options.on
@click.option("--sort", metavar="COLUMN", help="Sort by a column of the table, or by a key of the recipes.")
@click.option("--reverse", is_flag=True, help="Reverse the order.")
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV; accuracies are from 0 to 1.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON; accuracies are from 0 to 1.")
def runs(
    runs: tuple[str, ...],
    caffe_root: str,
    on: str | None,
    sort: str | None,
    reverse: bool,
    as_csv: bool,
    as_json: bool,
) -> None:
    """Compare runs: epochs, hours, images/s, loss, accuracy, and the keys in which their recipes differ.

    The loss is the last one of the training; the accuracies are those of the evaluation. RUN is the folder or
    name of a run (digits-local-1), or the name or YAML of a recipe, meaning its latest run; FAMILY.yaml means
    the latest run of each of its rows. Without any, all runs are compared. Nothing is written or locked.
    """
    from caffe_recipes.run.monitor import comparison
    from caffe_recipes.run.monitor.follow import StatusOptions
    from caffe_recipes.run.monitor.summary import summarize_runs

    if as_json and as_csv:
        raise InputError("--csv", "cannot be combined with --json", "give one of them")
    if reverse and sort is None:
        raise InputError("--reverse", "there is nothing to reverse", "give --sort COLUMN, too")
    compared = comparison.compare_runs(summarize_runs(runs, StatusOptions(caffe_root, on)))
    if sort is not None:
        compared = comparison.sort_comparison(compared, sort, reverse=reverse)
    if as_json:
        click.echo(comparison.render_json(compared))
    elif as_csv:
        echo_rows(comparison.render_runs_csv(compared))
    elif not compared.runs:
        where = f"{on}:{caffe_root}/runs" if on else f"{caffe_root}/runs"
        echo(f"no runs in {where}; give the folder that contains `runs` with --caffe-root")
    else:
        echo(*comparison.render_runs(compared, sort))
