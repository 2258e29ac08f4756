"""`caffe-recipes recipes`, `show` and `schema`: list recipes, show one, and print the schema of recipes."""

from __future__ import annotations

import json

import click

from caffe_recipes.cli import consent, run_options
from caffe_recipes.cli.options import NUMBER, RECIPE, examples
from caffe_recipes.cli.streams import echo, terminal_width
from caffe_recipes.recipe.shipped import shipped_recipes
from caffe_recipes.recipe.source import load_any_recipe, recipe_schema
from caffe_recipes.render.dialect import translate_whole
from caffe_recipes.review.inspect.show import render_list, render_recipe, shown_values
from caffe_recipes.review.naming import recipe_named


@click.command(
    epilog=examples(
        "caffe-recipes recipes",
    )
)
def recipes() -> None:
    """List the shipped recipes; other commands accept these names."""
    echo(*render_list(map(load_any_recipe, shipped_recipes()), terminal_width()))


@click.command(
    epilog=examples(
        "caffe-recipes show stampede2-64n-72ep",
    )
)
@click.argument("recipes", metavar="NAME|FILE.yaml...", nargs=-1, required=True, type=RECIPE)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, with all values unrounded.")
@click.option(
    "--images-per-s",
    metavar="N",
    type=NUMBER,
    callback=run_options.read_speed,
    help="Estimate times at this speed [default: the speed that the recipe's source reports]",
)
@run_options.dialect("Show the recipe as generated for this Caffe.")
@consent.run_code
def show(recipes: tuple[str, ...], as_json: bool, images_per_s: float | None, dialect: str) -> None:
    """Show a recipe on one page: net, data, nodes and batch, rates by phase, snapshots, reported results."""
    loaded = [translate_whole(load_any_recipe(recipe_named(recipe)), dialect) for recipe in recipes]
    if as_json:
        click.echo(json.dumps([shown_values(recipe, images_per_s) for recipe in loaded], indent=2))
        return
    width = terminal_width()
    for index, recipe in enumerate(loaded):
        echo(*(["", ""] if index else []), *render_recipe(recipe, images_per_s, width))


@click.command(
    epilog=examples(
        "caffe-recipes schema > recipe.schema.json",
    )
)
def schema() -> None:
    """Print the JSON schema of a recipe's YAML, for editors that complete and check recipes."""
    click.echo(json.dumps(recipe_schema(), indent=2))
