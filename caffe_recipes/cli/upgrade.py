"""`caffe-recipes upgrade`: old nets and solvers in today's form."""

from __future__ import annotations

import sys
from pathlib import Path

import click
from google.protobuf.message import Message

from caffe_recipes.caffe.documents import Document, load_document, parse_document
from caffe_recipes.caffe.prototxt import MOST_BYTES, decode_prototxt
from caffe_recipes.caffe.rewrites import Rewrite, check_writable, render_checked, render_diff, save_rewrites
from caffe_recipes.caffe.text_source import read_pieces
from caffe_recipes.caffe.upgrade import upgrade_document
from caffe_recipes.cli.names import PROTOTXT
from caffe_recipes.errors import CheckFailed


@click.command()
@click.argument("paths", metavar="FILE|-...", nargs=-1, required=True, type=PROTOTXT)
@click.option(
    "--write", "-w", is_flag=True, help="Write each file in place; what is up to date is not touched."
)
@click.option("--out", "-o", metavar="FILE", help="Write the one upgraded file there.")
@click.option("--check", is_flag=True, help="Write nothing; exit 1 and say what would change.")
@click.option("--diff", is_flag=True, help="Write nothing; print what would change.")
@click.option(
    "--max-bytes",
    metavar="N",
    type=click.IntRange(1),
    default=MOST_BYTES,
    show_default=True,
    help="Refuse files over N bytes.",
)
def upgrade(
    paths: tuple[str, ...], write: bool, out: str | None, check: bool, diff: bool, max_bytes: int
) -> None:
    """Turn old nets and solvers into today's form, as Caffe does itself when it reads them.

    One file goes to standard output, several need --write. What was changed is said on standard error.
    Comments are kept. Unless all files can be upgraded, none is written.
    """
    _check_options(paths, write=write, out=out, check=check or diff)
    rewrites, outdated = [], 0
    for path in paths:
        rewrite, changes = _plan(path, max_bytes)
        outdated += bool(changes)
        for change in changes or ("up to date",):
            click.echo(f"{click.format_filename(rewrite.path)}: {change}", err=True)
        if changes or not (write or check or diff):
            rewrites.append(rewrite)
    if diff:
        for rewrite in rewrites:
            click.echo(render_diff(rewrite).encode(), nl=False)
    if check and outdated:
        raise CheckFailed(
            "", f"{outdated} of {len(paths)} files would change", "run caffe-recipes upgrade -w"
        )
    if check or diff:
        return
    if write:
        save_rewrites(rewrites)
    elif out:
        save_rewrites([Rewrite(out, "", rewrites[0].after)])
    else:
        click.echo(rewrites[0].after.encode(), nl=False)


def _check_options(paths: tuple[str, ...], *, write: bool, out: str | None, check: bool) -> None:
    if write + (out is not None) + check > 1:
        raise click.UsageError("give one of --write, --out, and --check with or without --diff")
    if len(paths) > 1 and not write and not check:
        raise click.UsageError("several files need --write, --check or --diff")
    if "-" in paths and (write or len(paths) > 1):
        raise click.UsageError("give - alone: it stands for standard input")
    for path in (*(paths if write else ()), *([out] if out else ())):
        check_writable(path, "without --write and --out the text goes to standard output")


def _plan(path: str, max_bytes: int) -> tuple[Rewrite, tuple[str, ...]]:
    document: Document[Message]
    if path == "-":
        path, data = "<stdin>", read_pieces(sys.stdin.buffer, max_bytes + 1)
        document = parse_document(decode_prototxt(data, path, max_bytes), path)
    else:
        document = load_document(Path(path), max_bytes=max_bytes)
    upgraded = upgrade_document(document)
    text = render_checked(upgraded.message, upgraded.comments, path)
    return Rewrite(path, document.text, text), upgraded.changes
