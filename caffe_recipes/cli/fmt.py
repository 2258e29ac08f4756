"""`caffe-recipes fmt`: canonical text, in place, comments kept."""

from __future__ import annotations

import click

from caffe_recipes.cli.names import PROTOTXT
from caffe_recipes.cli.streams import STDIN, max_bytes_option, print_text, read_stdin
from caffe_recipes.errors import CheckFailed
from caffe_recipes.review.rewrites import (
    Rewrite,
    check_writable,
    find_prototxts,
    format_text,
    plan_format,
    render_diff,
    save_rewrites,
)


@click.command()
@click.argument("paths", metavar="FILE|FOLDER|-...", nargs=-1, required=True, type=PROTOTXT)
@click.option("--check", is_flag=True, help="Write nothing; exit 1 and name the files that would change.")
@click.option("--diff", is_flag=True, help="Write nothing; print what would change.")
@max_bytes_option
def fmt(paths: tuple[str, ...], check: bool, diff: bool, max_bytes: int) -> None:
    """Write prototxts of any kind in canonical form, in place, each comment with what it stands by.

    A folder stands for the *.prototxt below it, - for standard input to standard output. Unless all files can
    be read, none is written.
    """
    if paths == ("-",):
        text = read_stdin(max_bytes)
        rewrites = [Rewrite(STDIN, text, format_text(text, STDIN))]
        if not check and not diff:
            print_text(rewrites[0].after)
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
            print_text(render_diff(rewrite))
        else:
            click.echo(f"would format {click.format_filename(rewrite.path)}")
    if check and changed:
        of = f"{len(changed)} of {len(rewrites)} files"
        raise CheckFailed("", f"{of} would change", "run caffe-recipes fmt on them")
    if check:
        click.echo(f"0 would change, {len(rewrites)} unchanged")
