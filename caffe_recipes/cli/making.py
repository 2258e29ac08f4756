"""What `adopt`, `new` and `rescale` share: where the recipe that they make goes."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import click

from caffe_recipes.making.output import check_output, write_new

COUNT = click.IntRange(1, 2**31 - 1)


def _new_file(context: click.Context, option: click.Parameter, path: Path | None) -> Path | None:
    if path is not None:
        check_output(path)
    return path


out = click.option(
    "--out",
    metavar="FILE.yaml",
    type=click.Path(path_type=Path),
    callback=_new_file,
    help="Write the recipe here, where nothing is yet [default: print it]",
)


def give_recipe(text: str, notes: Iterable[str], path: Path | None) -> None:
    """Print a recipe's YAML, or write it; what is to be said of it goes to standard error."""
    for note in notes:
        click.echo(note, err=True)
    if path is None:
        click.echo(text.encode(), nl=False)
        return
    write_new(path, text)
    click.echo(f"wrote {click.format_filename(path)}")
