"""`caffe-recipes run`: train a recipe's chain on the hosts of a hostfile, or go on with it."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import click

from caffe_recipes.caffe.dialects import OURS, load_dialects
from caffe_recipes.chain.report import Reporter
from caffe_recipes.chain.runner import run_chain
from caffe_recipes.chain.setting import STOP_GRACE_S, Options
from caffe_recipes.chain.signals import Interrupted
from caffe_recipes.cli.names import RECIPE
from caffe_recipes.generate.dialect import translate_whole
from caffe_recipes.recipe.source import load_recipe

_PATH = click.Path(path_type=Path)


@click.command()
@click.argument("recipe", metavar="NAME|FILE.yaml", type=RECIPE)
@click.option(
    "--hostfile",
    type=_PATH,
    metavar="FILE",
    help="Hosts, one a line, or folded [default: hostfile, if there, else the Slurm job's]",
)
@click.option("--caffe", metavar="PATH", help="The Caffe binary, instead of the recipe's trainer.")
@click.option(
    "--caffe-root",
    type=_PATH,
    metavar="DIR",
    envvar="CAFFE_ROOT",
    default=".",
    show_envvar=True,
    help="The working directory of the trainer, seen by all hosts [default: the current folder]",
)
@click.option(
    "--lmdb-source",
    type=_PATH,
    metavar="DIR",
    envvar="LMDB_SOURCE",
    show_envvar=True,
    help="The training LMDB to stage on hosts that lack it.",
)
@click.option(
    "--dialect",
    type=click.Choice(list(load_dialects())),
    default=OURS,
    show_default=True,
    help="The Caffe that --caffe, or the recipe's trainer, is; for another the recipe is <recipe>-<dialect>.",
)
@click.option(
    "--stop-grace-s",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    envvar="STOP_GRACE_S",
    default=STOP_GRACE_S,
    show_default=True,
    show_envvar=True,
    help="For Caffe to end where it is stopped short of its schedule's end; then it is killed.",
)
@click.option("--new", is_flag=True, help="Start another run, whatever became of the latest.")
@click.option("--overwrite", is_flag=True, help="Overwrite prototxts that differ from the recipe's.")
def run(
    recipe: str,
    hostfile: Path | None,
    caffe: str | None,
    caffe_root: Path,
    lmdb_source: Path | None,
    dialect: str,
    stop_grace_s: float,
    new: bool,
    overwrite: bool,
) -> None:
    """Train a recipe's chain: preflight, stage, the phases, evaluate. Called again, it goes on where it was.

    The state of each run, its logs and its verified snapshots are kept in runs/<recipe>-<n>/.
    """
    loaded = translate_whole(load_recipe(recipe), dialect)
    if caffe is not None:
        loaded = loaded.model_copy(update={"trainer": str(Path(shutil.which(caffe) or caffe).absolute())})
    source = lmdb_source.absolute() if lmdb_source else None
    options = Options(
        root=caffe_root,
        hostfile=hostfile,
        lmdb_source=source,
        new=new,
        overwrite=overwrite,
        stop_grace_s=stop_grace_s,
    )
    try:
        run_chain(loaded, options, Reporter())
    except Interrupted as stop:
        click.echo(f"interrupted by {stop}; the same command goes on where it was", err=True)
        sys.exit(128 + stop.number)
