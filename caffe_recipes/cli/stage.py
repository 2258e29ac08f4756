"""`caffe-recipes stage`: copy a recipe's training data to the hosts of a hostfile, or remove it."""

from __future__ import annotations

from collections import Counter

import click

from caffe_recipes.cli import run_options
from caffe_recipes.cli.options import RECIPE, examples, gather
from caffe_recipes.cli.streams import echo
from caffe_recipes.cluster.hosts import open_host
from caffe_recipes.errors import RunFailed
from caffe_recipes.run.context import StageOptions
from caffe_recipes.run.staging import clean_recipe, stage_recipe
from caffe_recipes.wording import describe_count


@click.command(
    epilog=examples(
        "caffe-recipes stage mine.yaml --hostfile hosts --lmdb-source $SCRATCH/lmdb",
        "caffe-recipes stage mine.yaml --hostfile hosts --clean",
    )
)
@click.argument("recipe", metavar="NAME|FILE.yaml", type=RECIPE)
@run_options.hostfile
@run_options.profile
@run_options.caffe_root
@run_options.lmdb_source
@run_options.trust_owner
@run_options.how
@run_options.trainer
@click.option(
    "--whole", is_flag=True, help="Copy all files of a set of TFRecords to every host, including spares."
)
@click.option("--clean", is_flag=True, help="Remove staged copies that are not in use, and nothing else.")
@gather(run_options.GivenRun, "typed")
def stage(typed: run_options.GivenRun, whole: bool, clean: bool) -> None:
    """Copy a recipe's training data to every host that lacks it.

    An LMDB is copied to all hosts, including spares. For TFRecords, each host gets the files that its ranks
    read, and a spare gets those of the host that it replaces. Each copy is verified, and renamed into place
    atomically. A correct copy is not sent again; a file that `stage` did not write is never replaced.
    """
    loaded = typed.load()
    if loaded.names_no_data:
        typed.find_source(loaded)
        echo(f"{loaded.name}: has `data: as-in-net`; what its nets read is left alone, so nothing is staged")
        return
    root = typed.find_root(loaded if loaded.reads_lmdb and not clean else None)
    source = typed.find_source(loaded)
    options = StageOptions(root, typed.hostfile, source, typed.how, typed.profile, whole)
    if clean:
        cleaned = clean_recipe(loaded, options, open_host)
        for each in cleaned:
            echo(f"{each.host}: {each.outcome}", err=each.failed)
        _fail_for([each.host for each in cleaned if each.failed], len(cleaned), "not cleaned")
        return
    placed = stage_recipe(loaded, options, open_host, echo)
    failed = [each for each in placed if each.outcome == "failed"]
    for lost in failed:
        echo(f"{lost.host}: failed: {lost.reason}", err=True)
    count = Counter(each.outcome for each in placed)
    echo(f"{count['there']} had it, {count['sent']} received it, {count['failed']} failed")
    _fail_for([lost.host for lost in failed], len(placed), "lack the training data")


def _fail_for(hosts: list[str], of: int, what: str) -> None:
    """Raise RunFailed, which names the first hosts, if there are any."""
    if hosts:
        names = ", ".join(hosts[:3]) + (", ..." if len(hosts) > 3 else "")
        failed = f"{len(hosts)} of {describe_count(of, 'host')} {what}: {names}"
        raise RunFailed("stage", failed, "fix them, and run the same command again")
