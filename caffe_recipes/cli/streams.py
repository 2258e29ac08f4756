"""What commands on prototxts share: `-` for standard input or output, and how large a file may be."""

from __future__ import annotations

import sys

import click

from caffe_recipes.caffe.prototxt import MOST_BYTES, decode_prototxt
from caffe_recipes.caffe.text.source import read_pieces
from caffe_recipes.cli.numbers import Whole

STDIN = "<stdin>"

max_bytes_option = click.option(
    "--max-bytes",
    metavar="N",
    type=Whole(1),
    default=MOST_BYTES,
    show_default=True,
    help="Refuse files over N bytes.",
)


def read_stdin(max_bytes: int) -> str:
    """Read a prototxt's text from standard input; PrototxtError if it is none, or over `max_bytes`."""
    return decode_prototxt(read_pieces(sys.stdin.buffer, max_bytes + 1), STDIN, max_bytes)


def print_text(text: str) -> None:
    """Print text as UTF-8, whatever the terminal's encoding, and no line more."""
    click.echo(text.encode(), nl=False)
