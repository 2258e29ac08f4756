"""`caffe-recipes status`: where runs stand, here, on other hosts and in the queue."""

from __future__ import annotations

import json
import time

import click
from rich.text import Text

from caffe_recipes.cli import run_options
from caffe_recipes.cli.options import RUN, examples
from caffe_recipes.cli.streams import echo
from caffe_recipes.run.console import SafeConsole
from caffe_recipes.run.monitor.status import (
    Standing,
    StatusOptions,
    detail_standing,
    find_standing,
    find_standings,
    standing_as_json,
    table_of_standings,
)
from caffe_recipes.wording import printable


@click.command(
    epilog=examples(
        "caffe-recipes status",
        "caffe-recipes status digits-local-1 --json",
    )
)
@click.argument("run", type=RUN, required=False)
@run_options.runs_root
@run_options.on
@click.option("--json", "as_json", is_flag=True, help="Print JSON: a list of runs, or the one that is named.")
def status(run: str | None, caffe_root: str, on: str | None, as_json: bool) -> None:
    """Show where all runs and their Slurm jobs stand, or everything about one run.

    RUN is a run's folder or name (digits-local-1), or a recipe's name or YAML, which stands for its latest
    run. Nothing is written or locked.
    """
    options = StatusOptions(caffe_root, on)
    if run is not None:
        _show_one(find_standing(run, options), as_json)
        return
    standings = find_standings(options)
    if as_json:
        click.echo(json.dumps([standing_as_json(each) for each in standings], indent=1))
    elif not standings:
        echo("no run: `caffe-recipes run NAME` or `caffe-recipes submit NAME` starts one")
    else:
        console = SafeConsole(highlight=False, soft_wrap=True)
        width = console.width if console.is_terminal else None
        for line in table_of_standings(standings, time.time(), width):
            console.print(Text.assemble(*line))


def _show_one(standing: Standing, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(standing_as_json(standing), indent=1))
        return
    echo(standing.name)
    details = list(detail_standing(standing, time.time()))
    width = max(len(word) for word, _ in details)
    for word, text in details:
        echo(f"  {word:{width}}  {printable(text)}")
