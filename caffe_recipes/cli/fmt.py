"""`caffe-recipes fmt`: canonical text, in place, comments kept."""

from __future__ import annotations

import sys

import click

from caffe_recipes.caffe.prototxt import MOST_BYTES, decode_prototxt
from caffe_recipes.caffe.rewrites import (
    Rewrite,
    check_writable,
    find_prototxts,
    format_text,
    plan_format,
    render_diff,
    save_rewrites,
)
from caffe_recipes.caffe.text_source import read_pieces
from caffe_recipes.cli.names import PROTOTXT
from caffe_recipes.errors import CheckFailed


@click.command()
@click.argument("paths", metavar="FILE|FOLDER|-...", nargs=-1, required=True, type=PROTOTXT)
@click.option("--check", is_flag=True, help="Write nothing; exit 1 and name the files that would change.")
@click.option("--diff", is_flag=True, help="Write nothing; print what would change.")
@click.option(
    "--max-bytes",
    metavar="N",
    type=click.IntRange(1),
    default=MOST_BYTES,
    show_default=True,
    help="Refuse files over N bytes.",
)
def fmt(paths: tuple[str, ...], check: bool, diff: bool, max_bytes: int) -> None:
    """Write prototxts of any kind in canonical form, in place, each comment with what it stands by.

    A folder stands for the *.prototxt below it, - for standard input to standard output. Unless all files can
    be read, none is written.
    """
    if paths == ("-",):
        data = read_pieces(sys.stdin.buffer, max_bytes + 1)
        text = decode_prototxt(data, "<stdin>", max_bytes)
        rewrites = [Rewrite("<stdin>", text, format_text(text, "<stdin>"))]
        if not check and not diff:
            click.echo(rewrites[0].after.encode(), nl=False)
            return
    elif "-" in paths:
        raise click.UsageError("give - alone: it stands for standard input to standard output")
    else:
        files = find_prototxts(paths)
        if not check and not diff:
            for file in files:
                check_writable(file, "give - to go from standard input to standard output")
        rewrites = [plan_format(file, max_bytes=max_bytes) for file in files]
    if check or diff:
        _show(rewrites, check=check, diff=diff)
        return
    changed = save_rewrites(rewrites)
    for rewrite in changed:
        click.echo(f"formatted {click.format_filename(rewrite.path)}")
    click.echo(f"{len(changed)} formatted, {len(rewrites) - len(changed)} unchanged")


def _show(rewrites: list[Rewrite], *, check: bool, diff: bool) -> None:
    changed = [rewrite for rewrite in rewrites if rewrite.is_change]
    for rewrite in changed:
        if diff:
            click.echo(render_diff(rewrite).encode(), nl=False)
        else:
            click.echo(f"would format {click.format_filename(rewrite.path)}")
    if check and changed:
        of = f"{len(changed)} of {len(rewrites)} files"
        raise CheckFailed("", f"{of} would change", "run caffe-recipes fmt on them")
    if check:
        click.echo(f"0 would change, {len(rewrites)} unchanged")
