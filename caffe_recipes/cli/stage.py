"""`caffe-recipes stage`: put a recipe's training LMDB on the hosts of a hostfile, or take it away again."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import click

from caffe_recipes.chain.cleaning import clean_recipe
from caffe_recipes.chain.setting import StageOptions, find_root
from caffe_recipes.chain.staging import stage_recipe
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
@click.option("--clean", is_flag=True, help="Take away what was staged and is not in use, and nothing else.")
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
        cleaned = clean_recipe(loaded, options, open_host)
        for each in cleaned:
            click.echo(f"{each.host}: {each.said}", err=each.failed)
        _fail_for([each.host for each in cleaned if each.failed], len(cleaned), "were not cleaned")
        return
    placed = stage_recipe(loaded, options, open_host, click.echo)
    failed = [each for each in placed if each.outcome == "failed"]
    for lost in failed:
        click.echo(f"{lost.host}: failed: {lost.reason}", err=True)
    count = Counter(each.outcome for each in placed)
    click.echo(f"{count['there']} had it, {count['sent']} got it, {count['failed']} failed")
    _fail_for([lost.host for lost in failed], len(placed), "lack the LMDB")


def _fail_for(hosts: list[str], of: int, what: str) -> None:
    """Raise RunFailed, which names the first hosts, if there are any."""
    if hosts:
        names = ", ".join(hosts[:3]) + (", ..." if len(hosts) > 3 else "")
        raise RunFailed("stage", f"{len(hosts)} of {of} hosts {what}: {names}", "mend and repeat")
