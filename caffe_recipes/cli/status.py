"""`caffe-recipes status`: where runs stand, here, on other hosts and in the queue."""

from __future__ import annotations

import json

import click
from rich.console import Console

from caffe_recipes.chain.status import Standing, StatusOptions, find_standing, find_standings
from caffe_recipes.chain.status_lines import (
    detail_standing,
    standing_as_json,
    summarize_standing,
    table_of_standings,
)
from caffe_recipes.cli import options as given
from caffe_recipes.cli.names import RUN


@click.command()
@click.argument("run", type=RUN, required=False)
@given.runs_root
@given.on
@click.option("--json", "as_json", is_flag=True, help="For programs: a list of runs, or the one.")
def status(run: str | None, caffe_root: str, on: str | None, as_json: bool) -> None:
    """Say where all runs stand, or all that is known of one; nothing is written or locked.

    RUN is a run's folder, its name (`digits-local-1`), or a recipe's name or YAML, whose latest run is meant.
    """
    options = StatusOptions(caffe_root, on)
    if run is not None:
        _show_one(find_standing(run, options), as_json)
        return
    standings = find_standings(options)
    if as_json:
        click.echo(json.dumps([standing_as_json(each) for each in standings], indent=1))
    elif not standings:
        click.echo("no run: `caffe-recipes run NAME` or `caffe-recipes submit NAME` starts one")
    elif Console().is_terminal:
        Console(highlight=False, markup=False).print(table_of_standings(standings))
    else:
        for each in standings:
            click.echo(f"{each.name}  {each.state}  {_on_one_line(summarize_standing(each))}")


def _show_one(standing: Standing, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(standing_as_json(standing), indent=1))
        return
    click.echo(standing.name)
    details = list(detail_standing(standing))
    width = max(len(word) for word, _ in details)
    for word, said in details:
        click.echo(f"  {word:{width}}  {_on_one_line(said)}")


def _on_one_line(text: str) -> str:
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)
