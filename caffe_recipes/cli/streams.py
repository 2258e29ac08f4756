"""Read prototxts from standard input, and print text safely and in colour."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import sys
from typing import TYPE_CHECKING

import click

from caffe_recipes.caffe.prototxt import MOST_BYTES, decode_prototxt, encode_prototxt
from caffe_recipes.cli.options import Whole
from caffe_recipes.files import read_pieces
from caffe_recipes.review.columns import keep_plain
from caffe_recipes.wording import printable

if TYPE_CHECKING:
    from caffe_recipes.review.columns import Paint

STDIN = "<stdin>"


max_bytes_option = click.option(
    "--max-bytes",
    metavar="N",
    type=Whole(1),
    default=MOST_BYTES,
    show_default=True,
    help="Refuse files larger than N bytes.",
)


def read_stdin(max_bytes: int) -> str:
    """Return the text of standard input; raises PrototxtError if it is not text, or over `max_bytes`."""
    return decode_prototxt(read_pieces(sys.stdin.buffer, max_bytes + 1), STDIN, max_bytes)


# Marks the colours of `paint`; it is random, so that no file can contain it.
_WORD = secrets.token_hex(8)


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


_COMMAND = re.compile(r"^(\s*+):(?=:)", re.MULTILINE)  # of GitHub's, as the log of a job obeys them


def echo(
    text: object = "",
    *,
    err: bool = False,
    nl: bool = True,
    color: bool | None = None,
    is_command: bool = False,
) -> None:
    """Print text for people, with everything escaped that the terminal or the log of a job would obey.

    With `is_command`, the lines are commands of ours for that log.
    """
    text = str(text) if is_command else _COMMAND.sub(r"\1\\x3a", str(text))
    parts = _PAINT.split(text)  # text, colour, text, ..., text
    shown = [_style(part) if index % 2 else printable(part, keep="\n\t") for index, part in enumerate(parts)]
    click.echo("".join(shown), err=err, nl=nl, color=color)


def terminal_width(*, in_pipes: bool = False) -> int | None:
    """Return the columns of the terminal on standard output; None for a pipe or a file.

    If `in_pipes`, a pipe or a file has the columns of $COLUMNS, if it is set.
    """
    is_known = sys.stdout.isatty() or (in_pipes and os.environ.get("COLUMNS", "").isdecimal())
    return shutil.get_terminal_size().columns if is_known else None


def print_text(text: str) -> None:
    """Print the text of a file unchanged, as UTF-8 whatever the locale, but on a terminal as `echo` does."""
    if sys.stdout.isatty():
        echo(text, nl=False)
    else:
        click.echo(encode_prototxt(text), nl=False)
