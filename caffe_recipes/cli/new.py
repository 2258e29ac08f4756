"""`caffe-recipes new`: a recipe by the authors' rules."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import click

from caffe_recipes.caffe.nets import DEPTHS
from caffe_recipes.cli import making, options
from caffe_recipes.cli.numbers import COUNT, NUMBER, Whole
from caffe_recipes.cli.paths import PATH_TEXT
from caffe_recipes.cluster.profiles import load_profile
from caffe_recipes.making.new import Wish, make_new
from caffe_recipes.making.output import choose_name


def _epochs(context: click.Context, option: click.Parameter, value: float | None) -> float | None:
    making.check_epochs(option.opts[0], value, least=1)
    return value


@click.command()
@click.option("--images", metavar="N", type=COUNT, required=True, help="Images of the training LMDB.")
@click.option("--batch", metavar="B", type=COUNT, required=True, help="Images of an iteration, all ranks.")
@click.option(
    "--epochs",
    metavar="E",
    type=NUMBER,
    callback=_epochs,
    required=True,
    help="Epochs behind the last model.",
)
@click.option("--nodes", metavar="N", type=COUNT, help="Nodes [default: for 32 images of each rank]")
@click.option(
    "--ranks-per-node",
    metavar="N",
    type=COUNT,
    help="MPI ranks on a node [default: the profile's sockets, or 1]",
)
@click.option("--batch-per-rank", metavar="N", type=COUNT, help="Images of a rank in an iteration.")
@click.option(
    "--cycles",
    metavar="N",
    type=Whole(0, 2**31 - 1),
    default=0,
    show_default=True,
    help="Cycles of 15 epochs between decay and collapse.",
)
@click.option(
    "--collapse",
    type=click.Choice(["last", "each"]),
    default="last",
    show_default=True,
    help="Collapse once at the end, or off the end of decay and each cycle, for an ensemble.",
)
@click.option(
    "--collapse-epochs",
    metavar="E",
    type=NUMBER,
    callback=_epochs,
    help="Epochs of a collapse [default: 6 % of the run, but 3 to 10]",
)
@click.option(
    "--depth",
    type=click.Choice([str(depth) for depth in DEPTHS]),
    default=str(Wish.depth),
    show_default=True,
    help="Which ResNet.",
)
@click.option("--classes", metavar="N", type=COUNT, default=1000, show_default=True)
@click.option("--test-images", metavar="N", type=COUNT, default=50_000, show_default=True)
@click.option(
    "--lmdb",
    metavar="DIR",
    type=PATH_TEXT,
    default=Wish.lmdb,
    show_default=True,
    help="The training LMDB on every node.",
)
@click.option("--test-lmdb", metavar="DIR", type=PATH_TEXT, default=Wish.test_lmdb, show_default=True)
@click.option(
    "--name",
    metavar="NAME",
    callback=making.read_name,
    help="The recipe's name [default: --out's, or resnet<depth>-<batch>-<epochs>ep]",
)
@click.option(
    "--profile",
    metavar="NAME|FILE.yaml",
    type=PATH_TEXT,
    shell_complete=options.complete_profile,
    help="The machine that the recipe is for: its nodes' cores and /tmp, threads, MLSL and copy_with go "
    "into it; launcher, modules, folders and rates are for `run --profile` and `submit --profile`.",
)
@making.out
def new(
    images: int,
    batch: int,
    epochs: float,
    nodes: int | None,
    ranks_per_node: int | None,
    batch_per_rank: int | None,
    cycles: int,
    collapse: Literal["last", "each"],
    collapse_epochs: float | None,
    depth: str,
    classes: int,
    test_images: int,
    lmdb: str,
    test_lmdb: str,
    name: str | None,
    profile: str | None,
    out: Path | None,
) -> None:
    """Make a recipe for a ResNet by the rules of arXiv:1711.04291, each told in the YAML with its source.

    Warm-up, linear decay, cycles if any, and a collapse, or one off the end of each of them; the rate goes on
    at every join.
    """
    wish = Wish(
        images,
        batch,
        epochs,
        nodes,
        ranks_per_node,
        batch_per_rank,
        cycles,
        collapse,
        collapse_epochs,
        classes,
        test_images,
        lmdb,
        test_lmdb,
        choose_name(name, out),
        load_profile(profile) if profile else None,
        int(depth),
    )
    making.give_recipe(make_new(wish), out)
