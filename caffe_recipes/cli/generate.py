"""`caffe-recipes generate`: write a recipe's files, or compare them with those on disk.

What only a body needs is imported there, so that `--help` and completion are fast.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path

import click

from caffe_recipes.caffe.dialects import OURS
from caffe_recipes.cli import consent, run_options
from caffe_recipes.cli.options import PATH, RECIPE, examples
from caffe_recipes.cli.streams import echo, echo_text
from caffe_recipes.errors import CheckFailed, InputError, RecipeError


@click.command(
    epilog=examples(
        "caffe-recipes generate digits-local",
        "caffe-recipes generate mine.yaml --check",
        "caffe-recipes generate stampede2-64n-72ep --dialect intel",
    )
)
@click.argument("recipes", metavar="NAME|FILE.yaml...", nargs=-1, required=True, type=RECIPE)
@click.option(
    "--out",
    metavar="DIR",
    type=PATH,
    default=".",
    help="Write prototxt/ and jobs/ into this folder [default: the current one]",
)
@click.option("--check", is_flag=True, help="Write nothing; if files differ, print a diff and exit 1.")
@consent.run_code
@click.option("--overwrite", is_flag=True, help="Also overwrite files that `generate` did not write.")
@run_options.dialect(
    "The Caffe to generate for; with any but the default, files go to prototxt/<recipe>-<dialect>/."
)
def generate(recipes: tuple[str, ...], out: Path, check: bool, overwrite: bool, dialect: str) -> None:
    """Write a recipe's solvers, nets and job scripts into prototxt/<recipe>/ and jobs/<recipe>/.

    The file of a family stands for all of its rows. Unchanged files are counted, not listed.
    """
    from caffe_recipes.recipe.source import expand_families, load_any_recipe
    from caffe_recipes.render.dialect import find_parts, translate_whole
    from caffe_recipes.render.headers import check_namesake, find_misnamed
    from caffe_recipes.render.recipe_files import generate_all
    from caffe_recipes.render.tree import find_stale, write_files
    from caffe_recipes.run.lock import check_unread

    if not check:
        consent.allow_code()
    recipes = tuple(expand_families(recipes))
    loaded = [load_any_recipe(recipe) for recipe in recipes]
    inexact = [f"{recipe.name}: {part}" for recipe in loaded for part in find_parts(recipe, dialect)]
    for line in inexact:
        echo(line, err=True)
    if inexact:
        count = "1 part has" if len(inexact) == 1 else f"{len(inexact)} parts have"
        what = f"{count} no exact equivalent in the dialect {dialect}"
        raise RecipeError("", what, "nothing was written")
    translated = [translate_whole(recipe, dialect) for recipe in loaded]
    files = generate_all(translated)
    if check:
        _check_current(files, out, _command(recipes, out, dialect))
        return
    for recipe, given in zip(loaded, recipes, strict=True):
        check_namesake(recipe, given)
    if not overwrite:
        _check_foreign(files, out, _command(recipes, out, dialect, "--overwrite"))
    check_unread(translated, files, out)
    written = write_files(files, out)
    for path in written:
        echo(f"wrote {out / path}")
    echo(f"{len(written)} written, {len(files) - len(written)} unchanged")
    for path in find_stale(files, out):
        echo(f"stale: {out / path} is no longer generated; remove it", err=True)
    for recipe, given in zip(loaded, recipes, strict=True):
        if warning := find_misnamed(recipe, given):
            echo(f"warning: {warning}", err=True)


def _check_current(files: Mapping[str, str], out: Path, command: str) -> None:
    """Print the differences from the files on disk; raises CheckFailed if there are any."""
    from caffe_recipes.render.tree import find_differences

    differences = find_differences(files, out)
    for difference in differences:
        echo_text(difference.diff)
    if differences:
        paths = ", ".join(f"{difference.path} ({difference.what})" for difference in differences)
        is_stale = any(difference.what.startswith("stale") for difference in differences)
        raise CheckFailed("", paths, f"run {command}{', and remove stale files' if is_stale else ''}")
    echo(f"{len(files)} files are up to date")


def _check_foreign(files: Mapping[str, str], out: Path, command: str) -> None:
    """Raise InputError if `generate` did not write a file that it would overwrite."""
    from caffe_recipes.render.tree import find_foreign

    if foreign := find_foreign(files, out):
        others = f", and neither were {len(foreign) - 1} more" if len(foreign) > 1 else ""
        what = f"was not written by `generate`{others}"
        raise InputError(out / foreign[0], what, f"move it away, or overwrite it: {command}")


def _command(recipes: tuple[str, ...], out: Path, dialect: str, *more: str) -> str:
    """Return the command that generates the same files."""
    where = [] if out == Path() else ["--out", str(out)]
    caffe = [] if dialect == OURS else ["--dialect", dialect]
    return shlex.join(["caffe-recipes", "generate", *recipes, *where, *caffe, *more])
