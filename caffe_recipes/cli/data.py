"""`caffe-recipes data`: build the LMDBs of a data set that comes with its images, and check any LMDB."""

from __future__ import annotations

from pathlib import Path

import click

from caffe_recipes.caffe.datums import check_datums
from caffe_recipes.data.digits import build_digits

_PATH = click.Path(path_type=Path)
_ANY_LABEL = 2**31


@click.group()
def data() -> None:
    """Build and check LMDBs of labelled images."""


@data.command()
@click.argument("name", type=click.Choice(["digits"]))
@click.option("--out", metavar="DIR", type=_PATH, default="examples/digits", show_default=True)
def build(name: str, out: Path) -> None:
    """Build the LMDBs of a data set, where they are not there yet: digits, scikit-learn's 1,797."""
    lmdbs = build_digits(out)
    for path in (lmdbs.train, lmdbs.val):
        click.echo(click.format_filename(path))


@data.command()
@click.argument("lmdb", type=_PATH)
@click.option("--classes", metavar="N", type=click.IntRange(1, _ANY_LABEL), help="Labels go from 0 to N - 1.")
def check(lmdb: Path, classes: int | None) -> None:
    """Look at every record of an LMDB: each holds an image, and a label of one of the classes."""
    seen = check_datums(lmdb, classes or _ANY_LABEL)
    click.echo(f"{seen.checked:,} records, {seen.encoded:,} of them encoded images")
    click.echo(f"labels {min(seen.labels)} to {max(seen.labels)}, {len(seen.labels)} different")
    for (channels, height, width), count in sorted(seen.shapes.items()):
        click.echo(f"{count:,} images of {channels} x {height} x {width}")
