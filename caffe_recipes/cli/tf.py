"""`caffe-recipes tf`: read the logs of TensorFlow and Horovod runs."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import click

from caffe_recipes.cli.options import PATH, RECIPE, examples
from caffe_recipes.cli.streams import echo
from caffe_recipes.errors import InputError
from caffe_recipes.recipe.source import load_any_recipe
from caffe_recipes.review.inspect.show import explain_other_run
from caffe_recipes.tensorflow.logs import load_evaluations

_RECIPE = "tf-256n-90ep"


@click.group(epilog=examples("caffe-recipes tf log evaluation.log"))
def tf() -> None:
    """Read the logs of TensorFlow and Horovod runs."""


@tf.command(
    epilog=examples(
        "caffe-recipes tf log evaluation.log",
    )
)
@click.argument("log", metavar="FILE", type=PATH)
@click.option(
    "--recipe",
    metavar="NAME|FILE.yaml",
    type=RECIPE,
    default=_RECIPE,
    show_default=True,
    help="The recipe that the log belongs to.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, with all evaluations.")
def log(log: Path, recipe: str, as_json: bool) -> None:
    """Print the accuracies from the log of an evaluation.

    Evaluations that do not belong to the recipe's run are marked.
    """
    loaded = load_any_recipe(recipe)
    if loaded.tensorflow is None:
        raise InputError(recipe, "has no TensorFlow run", f"give a recipe that has one, e.g. {_RECIPE}")
    found = load_evaluations(log)
    if as_json:
        # JSON has no nan.
        values = [
            {
                **asdict(replace(one, loss=None) if one.has_diverged else one),
                "has_diverged": one.has_diverged,
                "differs": explain_other_run(loaded, one.step),
            }
            for one in found
        ]
        click.echo(json.dumps(values, indent=2))
        return
    for one in found:
        tops = ((1, one.top1), (5, one.top5))
        parts = [f"top-{rank} {100 * top:g}%" for rank, top in tops if top is not None]
        parts += [f"loss {one.loss:.6g}"] if one.loss is not None else []
        echo(f"step {one.step:,}: {', '.join(parts) or 'no accuracy in the log'}")
        if one.has_diverged:
            echo("  the loss is not a number: the training has diverged")
        differs = explain_other_run(loaded, one.step)
        if differs:
            echo(f"  not from this recipe: {differs}")
