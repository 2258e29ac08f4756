"""`caffe-recipes adopt`: a folder of solvers and nets becomes a recipe."""

from __future__ import annotations

from pathlib import Path

import click

from caffe_recipes.cli import making
from caffe_recipes.cli.numbers import COUNT
from caffe_recipes.cli.paths import FOLDER, PATH
from caffe_recipes.making.adopt import adopt as make
from caffe_recipes.making.adopted_machine import Said
from caffe_recipes.making.output import choose_name


@click.command()
@click.argument("folder", metavar="FOLDER", type=PATH)
@making.out
@click.option(
    "--name",
    metavar="NAME",
    callback=making.read_name,
    help="The recipe's name [default: --out's, or the folder's]",
)
@click.option(
    "--script",
    metavar="FILE",
    type=PATH,
    help="A script, README or log with the commands: order, weights, ranks [default: one in the folder]",
)
@click.option("--ranks", metavar="N", type=COUNT, help="MPI ranks that train.")
@click.option("--ranks-per-node", metavar="N", type=COUNT, help="MPI ranks on each node.")
@click.option("--images", metavar="N", type=COUNT, help="Images of the training LMDB.")
@click.option("--test-images", metavar="N", type=COUNT, help="Images of the test LMDB.")
@click.option("--classes", metavar="N", type=COUNT, help="Classes that the net tells apart.")
@click.option(
    "--caffe-root",
    metavar="DIR",
    type=FOLDER,
    help="Where the solvers' net: paths start.",
)
def adopt(
    folder: Path,
    out: Path | None,
    name: str | None,
    script: Path | None,
    ranks: int | None,
    ranks_per_node: int | None,
    images: int | None,
    test_images: int | None,
    classes: int | None,
    caffe_root: Path | None,
) -> None:
    """Make a recipe of a folder's solvers and nets that generates them again, equal as messages.

    What the files do not hold is as given, else by the script, else by comments, else a guess that is told.
    """
    said = Said(ranks, ranks_per_node, images, test_images, classes, caffe_root)
    home = out.parent if out else Path()
    made = make(folder, said, name=choose_name(name, out), script=script, home=home)
    making.give_recipe(made, out)
