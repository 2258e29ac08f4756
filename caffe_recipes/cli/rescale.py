"""`caffe-recipes rescale`: a recipe for another machine, batch or length."""

from __future__ import annotations

from pathlib import Path

import click

from caffe_recipes.cli import making
from caffe_recipes.cli.names import RECIPE
from caffe_recipes.cli.numbers import COUNT, NUMBER
from caffe_recipes.making.output import choose_name
from caffe_recipes.making.rescale import Change
from caffe_recipes.making.rescale import rescale as make
from caffe_recipes.recipe.source import load_recipe
from caffe_recipes.review.naming import recipe_named


def _epochs(context: click.Context, option: click.Parameter, value: float | None) -> float | None:
    making.check_epochs("--epochs", value)
    return value


@click.command()
@click.argument("recipe", metavar="NAME|FILE.yaml", type=RECIPE)
@click.option("--nodes", metavar="N", type=COUNT, help="On so many nodes; alone it keeps the batch.")
@click.option(
    "--batch", metavar="B", type=COUNT, help="Images of an iteration; alone by more or fewer nodes."
)
@click.option(
    "--epochs", metavar="E", type=NUMBER, callback=_epochs, help="Epochs behind the last model, in all."
)
@click.option("--ranks-per-node", metavar="N", type=COUNT, help="MPI ranks on a node.")
@click.option("--batch-per-rank", metavar="N", type=COUNT, help="Images of a rank in an iteration.")
@click.option("--smooth", is_flag=True, help="Let the rate go on at every join, and where a warm-up ends.")
@click.option(
    "--name",
    metavar="NAME",
    callback=making.read_name,
    help="The new recipe's name [default: --out's, or the old one's, and what is other]",
)
@making.out
def rescale(
    recipe: str,
    nodes: int | None,
    batch: int | None,
    epochs: float | None,
    ranks_per_node: int | None,
    batch_per_rank: int | None,
    smooth: bool,
    name: str | None,
    out: Path | None,
) -> None:
    """Make a recipe of another one by the authors' rules, with nothing for lint that its source has not.

    The rate is scaled with the batch, up to 6.4 at 16,384 images, and iterations against it; the first
    warm-up keeps its epochs. What is known to be lost at such a batch and length is warned of.
    """
    change = Change(nodes, batch, epochs, ranks_per_node, batch_per_rank, smooth, choose_name(name, out))
    made = make(load_recipe(recipe_named(recipe)), change, out.parent if out else Path())
    making.give_recipe(made, out)
