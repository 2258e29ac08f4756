"""`caffe-recipes upgrade`: old nets and solvers in today's form."""

from __future__ import annotations

from pathlib import Path

import click
from google.protobuf.message import Message

from caffe_recipes.caffe.documents import Document, load_document, parse_document
from caffe_recipes.caffe.prototxt import render_checked
from caffe_recipes.caffe.upgrade import upgrade_document
from caffe_recipes.cli.names import PROTOTXT
from caffe_recipes.cli.paths import PATH_TEXT
from caffe_recipes.cli.streams import STDIN, max_bytes_option, print_text, read_stdin
from caffe_recipes.errors import CheckFailed
from caffe_recipes.review.rewrites import Rewrite, check_writable, render_diff, save_rewrites


@click.command()
@click.argument("paths", metavar="FILE|-...", nargs=-1, required=True, type=PROTOTXT)
@click.option(
    "--write", "-w", is_flag=True, help="Write each file in place; what is up to date is not touched."
)
@click.option(
    "--out",
    "-o",
    metavar="FILE",
    type=PATH_TEXT,
    help="Write the one upgraded file there; - is standard output.",
)
@click.option("--check", is_flag=True, help="Write nothing; exit 1 and say what would change.")
@click.option("--diff", is_flag=True, help="Write nothing; print what would change.")
@max_bytes_option
def upgrade(
    paths: tuple[str, ...], write: bool, out: str | None, check: bool, diff: bool, max_bytes: int
) -> None:
    """Turn old nets and solvers into today's form, as Caffe does itself when it reads them.

    One file goes to standard output, several need --write. What was changed is said on standard error.
    Comments are kept. Unless all files can be upgraded, none is written.
    """
    _check_options(paths, write=write, out=out, check=check or diff)
    rewrites, outdated = [], 0
    # All are read first: what is said of one would look done where another cannot be read.
    for rewrite, changes in [_plan(path, max_bytes) for path in paths]:
        outdated += bool(changes)
        for change in changes or ("up to date",):
            click.echo(f"{click.format_filename(rewrite.path)}: {change}", err=True)
        if changes or not (write or check or diff):
            rewrites.append(rewrite)
    if diff:
        for rewrite in rewrites:
            print_text(render_diff(rewrite))
    if check and outdated:
        raise CheckFailed(
            "", f"{outdated} of {len(paths)} files would change", "run caffe-recipes upgrade -w"
        )
    if check or diff:
        return
    if write:
        save_rewrites(rewrites)
    elif out and out != "-":
        save_rewrites([Rewrite(out, "", rewrites[0].after)])
    else:
        print_text(rewrites[0].after)


def _check_options(paths: tuple[str, ...], *, write: bool, out: str | None, check: bool) -> None:
    if write + (out is not None) + check > 1:
        raise click.UsageError("give one of --write, --out, and --check with or without --diff")
    if len(paths) > 1 and not write and not check:
        raise click.UsageError("several files need --write, --check or --diff")
    if "-" in paths and (write or len(paths) > 1):
        raise click.UsageError("give - alone: it stands for standard input")
    for path in (*(paths if write else ()), *([out] if out and out != "-" else ())):
        check_writable(path, "without --write and --out the text goes to standard output")


def _plan(path: str, max_bytes: int) -> tuple[Rewrite, tuple[str, ...]]:
    document: Document[Message]
    if path == "-":
        path = STDIN
        document = parse_document(read_stdin(max_bytes), path)
    else:
        document = load_document(Path(path), max_bytes=max_bytes)
    upgraded = upgrade_document(document)
    text = render_checked(upgraded.message, upgraded.comments, path)
    return Rewrite(path, document.text, text), upgraded.changes
