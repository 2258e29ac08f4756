"""What `adopt`, `new` and `rescale` share: how counts and epochs are read, and where their recipe goes."""

from __future__ import annotations

import math
from pathlib import Path

import click

from caffe_recipes.cli.paths import PATH
from caffe_recipes.errors import InputError
from caffe_recipes.generate.header import find_misnamed
from caffe_recipes.making.made import Made
from caffe_recipes.making.output import check_output, write_new

_MOST_EPOCHS = 100_000


def check_epochs(option: str, epochs: float | None, least: float = 0) -> None:
    """Refuse epochs that are none, or more than anyone trains for; raises InputError."""
    if epochs is None:
        return
    if not (least <= epochs and 0 < epochs < math.inf):
        hint = f"give {least:g} or more" if least else "give more than 0"
        raise InputError(option, f"{epochs:g} epochs are none to train", hint)
    if epochs > _MOST_EPOCHS:
        what = f"{epochs:.10g} epochs are more than anyone trains for"
        raise InputError(option, what, f"give {_MOST_EPOCHS} or fewer")


def read_name(context: click.Context, option: click.Parameter, name: str | None) -> str | None:
    """Refuse an empty name, which would be taken for none; raises InputError."""
    if name == "":
        raise InputError("--name", "is empty", "give a name, or leave it out")
    return name


def _new_file(context: click.Context, option: click.Parameter, path: Path | None) -> Path | None:
    if path is not None:
        check_output(path)
    return path


out = click.option(
    "--out",
    metavar="FILE.yaml",
    type=PATH,
    callback=_new_file,
    help="Write the recipe here, where nothing is yet [default: print it]",
)


def give_recipe(made: Made, path: Path | None) -> None:
    """Print a recipe's YAML, or write it; what is to be said of it goes to standard error."""
    notes = list(made.notes)
    if path is not None:
        write_new(path, made.text)
        misnamed = find_misnamed(made.recipe, str(path))
        notes += [f"warning: {misnamed}"] if misnamed else []
    for note in notes:
        click.echo(note, err=True)
    if path is None:
        click.echo(made.text.encode(), nl=False)
    else:
        click.echo(f"wrote {click.format_filename(path)}")
