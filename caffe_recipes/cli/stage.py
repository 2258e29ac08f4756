"""`caffe-recipes stage`: put a recipe's training LMDB on the hosts of a hostfile, or take it away again."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import click

from caffe_recipes.chain.setting import StageOptions, find_root
from caffe_recipes.chain.staging import clean_recipe, stage_recipe
from caffe_recipes.cli import options as given
from caffe_recipes.cli.names import RECIPE
from caffe_recipes.cluster.hosts import open_host
from caffe_recipes.cluster.staging.costs import How
from caffe_recipes.errors import RunFailed
from caffe_recipes.recipe.source import load_recipe


@click.command()
@click.argument("recipe", metavar="NAME|FILE.yaml", type=RECIPE)
@given.hostfile
@given.profile
@given.caffe_root
@given.lmdb_source
@given.how
@click.option("--clean", is_flag=True, help="Take away what was staged, and nothing else.")
def stage(
    recipe: str,
    hostfile: Path | None,
    profile: str | None,
    caffe_root: Path | None,
    lmdb_source: Path | None,
    how: How | None,
    clean: bool,
) -> None:
    """Put a recipe's training LMDB on every host that lacks it, spares too, whole or not at all.

    What is there and right is not sent again; what is there and not ours is never replaced.
    """
    options = StageOptions(find_root(caffe_root, profile), hostfile, lmdb_source, how, profile)
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
