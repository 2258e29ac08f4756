"""`caffe-recipes stage`: put a recipe's training LMDB on the hosts of a hostfile, or take it away again."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import click

from caffe_recipes.chain.setting import StageOptions
from caffe_recipes.chain.staging import clean_recipe, stage_recipe
from caffe_recipes.cli.names import RECIPE
from caffe_recipes.cluster.hosts import open_host
from caffe_recipes.cluster.staging.costs import WAYS, How
from caffe_recipes.errors import RunFailed
from caffe_recipes.recipe.source import load_recipe

_PATH = click.Path(path_type=Path)


@click.command()
@click.argument("recipe", metavar="NAME|FILE.yaml", type=RECIPE)
@click.option(
    "--hostfile",
    type=_PATH,
    metavar="FILE",
    default="hostfile",
    show_default=True,
    help="Hosts, one a line; all of them are staged, in this order.",
)
@click.option("--how", type=click.Choice(list(WAYS)), help="The way, instead of the quickest.")
@click.option(
    "--lmdb-source",
    type=_PATH,
    metavar="DIR",
    envvar="LMDB_SOURCE",
    show_envvar=True,
    help="The training LMDB, instead of the recipe's source.",
)
@click.option(
    "--caffe-root",
    type=_PATH,
    metavar="DIR",
    envvar="CAFFE_ROOT",
    default=".",
    show_envvar=True,
    help="Where relative paths of the recipe begin [default: the current folder]",
)
@click.option("--clean", is_flag=True, help="Take away what was staged, and nothing else.")
def stage(
    recipe: str, hostfile: Path, how: How | None, lmdb_source: Path | None, caffe_root: Path, clean: bool
) -> None:
    """Put a recipe's training LMDB on every host that lacks it, whole or not at all.

    What is there and right is not sent again; what is there and not ours is never replaced.
    """
    source = lmdb_source.absolute() if lmdb_source else None
    options = StageOptions(caffe_root, hostfile, source, how)
    loaded = load_recipe(recipe)
    if clean:
        for host, said in clean_recipe(loaded, options, open_host):
            click.echo(f"{host}: {said}")
        return
    placed = stage_recipe(loaded, options, open_host, click.echo)
    failed = [each for each in placed if each.outcome == "failed"]
    for each in failed:
        click.echo(f"{each.host}: failed: {each.reason}", err=True)
    count = Counter(each.outcome for each in placed)
    click.echo(f"{count['there']} had it, {count['sent']} got it, {count['failed']} failed")
    if failed:
        names = ", ".join(each.host for each in failed[:3]) + (", ..." if len(failed) > 3 else "")
        raise RunFailed(
            "stage", f"{len(failed)} of {len(placed)} hosts lack the LMDB: {names}", "mend and repeat"
        )
