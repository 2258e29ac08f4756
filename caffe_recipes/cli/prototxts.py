"""`caffe-recipes fmt` and `upgrade`: format prototxts, and upgrade old nets and solvers."""

from __future__ import annotations

from pathlib import Path

import click

from caffe_recipes.caffe.dialects.schema import load_lenient, parse_lenient
from caffe_recipes.caffe.prototxt import render_checked
from caffe_recipes.caffe.upgrade import upgrade_document
from caffe_recipes.cli.options import PATH_TEXT, PROTOTXT, examples
from caffe_recipes.cli.streams import STDIN, any_dialect, echo, max_bytes_option, print_text, read_stdin
from caffe_recipes.errors import CheckFailed
from caffe_recipes.review.foreign import describe_foreign
from caffe_recipes.review.rewrites import (
    Rewrite,
    check_writable,
    find_prototxts,
    format_text,
    plan_format,
    render_diff,
    save_rewrites,
)
from caffe_recipes.wording import describe_count


@click.command(
    epilog=examples(
        "caffe-recipes fmt prototxt/",
        "caffe-recipes fmt --check solver.prototxt train_val.prototxt",
    )
)
@click.argument("paths", metavar="FILE|FOLDER|-...", nargs=-1, required=True, type=PROTOTXT)
@click.option("--check", is_flag=True, help="Write nothing; list the files that would change, and exit 1.")
@click.option("--diff", is_flag=True, help="Write nothing; print a diff.")
@any_dialect
@max_bytes_option
def fmt(paths: tuple[str, ...], check: bool, diff: bool, dialect: str | None, max_bytes: int) -> None:
    """Format prototxts in place, in one canonical form; comments stay with their fields.

    Fields that no known Caffe has are kept, and reported on standard error.

    For a folder, every *.prototxt below it is formatted; - formats standard input to standard output. If any
    file cannot be read, no file is written.
    """
    if paths == ("-",):
        rewrites = [format_text(read_stdin(max_bytes), STDIN)]
        _report_foreign(rewrites, dialect)
        if not check and not diff:
            print_text(rewrites[0].after)
            return
    elif "-" in paths:
        raise click.UsageError("give - alone: it formats standard input to standard output")
    else:
        files = find_prototxts(paths)
        if not check and not diff:
            for file in files:
                check_writable(file, "give - to format standard input to standard output")
        rewrites = [plan_format(file, max_bytes=max_bytes, is_found=file not in paths) for file in files]
        _report_foreign(rewrites, dialect)
    if check or diff:
        _show(rewrites, check=check, diff=diff)
        return
    changed = save_rewrites(rewrites)
    for rewrite in changed:
        echo(f"formatted {rewrite.path}")
    echo(f"{len(changed)} formatted, {len(rewrites) - len(changed)} unchanged")


def _report_foreign(rewrites: list[Rewrite], dialect: str | None) -> None:
    for line in describe_foreign([each.document for each in rewrites if each.document], dialect):
        echo(line, err=True)


def _show(rewrites: list[Rewrite], *, check: bool, diff: bool) -> None:
    changed = [rewrite for rewrite in rewrites if rewrite.is_change]
    for rewrite in changed:
        if diff:
            print_text(render_diff(rewrite))
        else:
            echo(f"would format {rewrite.path}")
    if check and changed:
        of = f"{len(changed)} of {describe_count(len(rewrites), 'file')}"
        raise CheckFailed("", f"{of} would change", "run caffe-recipes fmt on them")
    if check:
        echo(f"0 would change, {len(rewrites)} unchanged")


@click.command(
    epilog=examples(
        "caffe-recipes upgrade old.prototxt > new.prototxt",
        "caffe-recipes upgrade --write models/*.prototxt",
    )
)
@click.argument("paths", metavar="FILE|-...", nargs=-1, required=True, type=PROTOTXT)
@click.option(
    "--write", "-w", is_flag=True, help="Upgrade files in place; up-to-date files are left unchanged."
)
@click.option(
    "--out",
    "-o",
    metavar="FILE",
    type=PATH_TEXT,
    help="Write the upgraded file to this path; - is standard output.",
)
@click.option("--check", is_flag=True, help="Write nothing; list what would change, and exit 1.")
@click.option("--diff", is_flag=True, help="Write nothing; print a diff.")
@any_dialect
@max_bytes_option
def upgrade(
    paths: tuple[str, ...],
    write: bool,
    out: str | None,
    check: bool,
    diff: bool,
    dialect: str | None,
    max_bytes: int,
) -> None:
    """Upgrade V0 and V1 nets and old solvers to the current format, as Caffe does when it reads them.

    A single file is printed to standard output; several files need --write. Comments are kept, and changes
    are reported on standard error. If any file cannot be upgraded, no file is written.
    """
    _check_options(paths, write=write, out=out, check=check or diff)
    rewrites, outdated = [], 0
    # Read all files before printing, since a reported file would seem to have been written.
    planned = [_plan(path, max_bytes) for path in paths]
    _report_foreign([rewrite for rewrite, _ in planned], dialect)
    for rewrite, changes in planned:
        outdated += bool(changes)
        for change in changes or ("up to date",):
            echo(f"{rewrite.path}: {change}", err=True)
        if changes or not (write or check or diff):
            rewrites.append(rewrite)
    if diff:
        for rewrite in rewrites:
            print_text(render_diff(rewrite))
    if check and outdated:
        of = f"{outdated} of {describe_count(len(paths), 'file')}"
        raise CheckFailed("", f"{of} would change", "run caffe-recipes upgrade -w")
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
        raise click.UsageError("give only one of --write, --out and --check (with or without --diff)")
    if len(paths) > 1 and not write and not check:
        raise click.UsageError("several files need --write, --check or --diff")
    if "-" in paths and (write or len(paths) > 1):
        raise click.UsageError("give - alone: it means standard input")
    for path in (*(paths if write else ()), *([out] if out and out != "-" else ())):
        check_writable(path, "without --write and --out the text goes to standard output")


def _plan(path: str, max_bytes: int) -> tuple[Rewrite, tuple[str, ...]]:
    if path == "-":
        path = STDIN
        document = parse_lenient(read_stdin(max_bytes), path)
    else:
        document = load_lenient(Path(path), max_bytes)
    upgraded = upgrade_document(document)
    text = render_checked(upgraded.message, upgraded.comments, path)
    return Rewrite(path, document.text, text, document), upgraded.changes
