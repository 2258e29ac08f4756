"""`caffe-recipes recipes`, `show` and `schema`: what recipes there are, and what is in one."""

from __future__ import annotations

import json

import click

from caffe_recipes.generate.summary import render_list, render_summary
from caffe_recipes.recipe.model import Recipe
from caffe_recipes.recipe.source import load_recipe, shipped_recipes


@click.command()
def recipes() -> None:
    """List the recipes that ship, by the name that the other commands take."""
    click.echo(render_list(map(load_recipe, shipped_recipes())))


@click.command()
@click.argument("recipe", metavar="NAME|FILE.yaml")
def show(recipe: str) -> None:
    """Show what a recipe trains, on what, and how: its shape, its phases, and what its source reports."""
    click.echo(render_summary(load_recipe(recipe)))


@click.command()
def schema() -> None:
    """Print the JSON schema of a recipe's YAML, for editors that complete and check by one."""
    click.echo(json.dumps(Recipe.model_json_schema(), indent=2))
