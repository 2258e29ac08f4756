"""Read prototxts from standard input, and print text safely and in colour."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from caffe_recipes.caffe.dialects import load_dialects
from caffe_recipes.cli.options import Whole
from caffe_recipes.errors import InputError
from caffe_recipes.limits import PROTOTXT_BYTES
from caffe_recipes.review.text_columns import keep_plain
from caffe_recipes.wording import LONGEST_LINE, escape_commands, one_line, printable

if TYPE_CHECKING:
    from caffe_recipes.review.text_columns import Paint

STDIN = "<stdin>"


max_bytes_option = click.option(
    "--max-bytes",
    metavar="N",
    type=Whole(1),
    default=PROTOTXT_BYTES,
    show_default=True,
    help="Refuse prototxts larger than N bytes.",
)
any_dialect = click.option(
    "--dialect",
    type=click.Choice(list(load_dialects())),
    help="The Caffe that the prototxts are for [default: recognized by their fields]",
)


def read_stdin(max_bytes: int) -> str:
    """Return the text of standard input; raises PrototxtError if it is not text, or over `max_bytes`."""
    from caffe_recipes.caffe.prototxt import decode_prototxt
    from caffe_recipes.files.bounded_reads import read_pieces

    return decode_prototxt(read_pieces(sys.stdin.buffer, max_bytes + 1), STDIN, max_bytes)


# Marks the colours of `paint`; it is random, so that no file can contain it.
_WORD = os.urandom(8).hex()


_PAINT = re.compile(f"\x1b{_WORD}:(\\w*)\x1b")


def paint(text: str, colour: str) -> str:
    """Mark a text so that `echo` prints it in a colour, or in bold."""
    return f"\x1b{_WORD}:{colour}\x1b{text}\x1b{_WORD}:\x1b"


def painter(is_shown: bool) -> Paint:
    """Return `paint` if `is_shown` and NO_COLOR is not set, else a function that returns plain text."""
    return paint if is_shown and not os.environ.get("NO_COLOR") else keep_plain


def _style(colour: str) -> str:
    if not colour:
        return "\x1b[0m"
    bold = colour == "bold"
    return click.style("", fg=None if bold else colour, bold=bold or None, reset=False)


def echo(*lines: object, err: bool = False, color: bool | None = None) -> None:
    """Print lines for people, which are at most `LONGEST_LINE` characters long.

    Everything is escaped that the terminal or the log of a job would obey, also the line feeds in names.
    """
    click.echo("\n".join(_show(str(line)) for line in lines), err=err, color=color)


def _show(line: str) -> str:
    parts = _PAINT.split(escape_commands(line))  # text, colour, text, ..., text
    return "".join(
        _style(part) if index % 2 else one_line(part, LONGEST_LINE, keep="\t")
        for index, part in enumerate(parts)
    )


@contextmanager
def reporting(failures: list[InputError]) -> Iterator[None]:
    """Print an error and add it to `failures`, and continue after the `with` block."""
    try:
        yield
    except InputError as error:
        echo(f"Error: {error}", err=True)
        failures.append(error)


def echo_rows(rows: Iterable[str], *, is_command: bool = False) -> None:
    """Print lines for programs: with the same escapes, but with all names whole.

    With `is_command`, the lines are commands of ours for the log of a job.
    """
    shown = [printable(row if is_command else escape_commands(row), keep="\t") for row in rows]
    click.echo("\n".join(shown), nl=bool(shown))


def echo_text(text: str) -> None:
    """Print the text of a file, or a part of it, whole and in its own lines, with the same escapes."""
    click.echo(printable(escape_commands(text), keep="\n\t"), nl=False)


def terminal_width(*, in_pipes: bool = False) -> int | None:
    """Return the columns of the terminal on standard output; None for a pipe or a file.

    If `in_pipes`, a pipe or a file has the columns of $COLUMNS, if it is set.
    """
    is_known = sys.stdout.isatty() or (in_pipes and os.environ.get("COLUMNS", "").isdecimal())
    if not is_known:
        return None
    import shutil  # slow, since it can unpack archives

    return shutil.get_terminal_size().columns


def print_text(text: str) -> None:
    """Print the text of a file unchanged, as UTF-8 whatever the locale, but on a terminal with escapes."""
    if sys.stdout.isatty():
        echo_text(text)
    else:
        from caffe_recipes.caffe.prototxt import encode_prototxt

        click.echo(encode_prototxt(text), nl=False)
