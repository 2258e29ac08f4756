"""`caffe-recipes data tfrecords`, and `data check` of such files."""

from __future__ import annotations

import json
import re
from pathlib import Path

import click

from caffe_recipes.cli.numbers import Whole
from caffe_recipes.cli.paths import PATH
from caffe_recipes.cli.progress import Progress
from caffe_recipes.errors import CheckFailed, InputError

_PREFIX = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def _prefix(context: click.Context, option: click.Parameter, text: str) -> str:
    if not _PREFIX.fullmatch(text):
        raise InputError("--prefix", f"'{text[:80]}' begins no file's name", "e.g. train or validation")
    return text


@click.command()
@click.argument("lmdb", type=PATH)
@click.option("--out", metavar="DIR", type=PATH, required=True, help="Folder of the files.")
@click.option(
    "--shards",
    metavar="N",
    type=Whole(1, 100_000),
    default=1024,
    show_default=True,
    help="How many files.",
)
@click.option("--seed", metavar="N", type=Whole(0), default=1, show_default=True, help="Another order.")
@click.option(
    "--prefix",
    metavar="NAME",
    default="train",
    show_default=True,
    callback=_prefix,
    help="Files are NAME-00000-of-01024 and so on.",
)
@click.option(
    "--class-list", metavar="FILE", type=PATH, help="Names of classes [default: the LMDB's manifest's]"
)
def tfrecords(lmdb: Path, out: Path, shards: int, seed: int, prefix: str, class_list: Path | None) -> None:
    """Write an LMDB's images as TFRecords of ImageNet's kind, classes shuffled across all files.

    Labels count from 1 there, and images are JPEGs. What was cut off goes on. `data check DIR` measures the
    order.
    """
    from caffe_recipes.data.labels import load_classes
    from caffe_recipes.data.manifest import load_manifest
    from caffe_recipes.data.tfrecords import write_tfrecords

    manifest = load_manifest(lmdb) if class_list is None else None
    classes = load_classes(class_list) if class_list else manifest.classes if manifest else None
    made = write_tfrecords(
        lmdb, out, shards=shards, seed=seed, prefix=prefix, classes=classes, tell=Progress()
    )
    click.echo(f"{click.format_filename(out)}: {made.records:,} records in {made.shards:,} files")


def check_tfrecords(path: Path, classes: int | None, batch: int, *, shuffled: bool, as_json: bool) -> None:
    """Print what files of TFRecords hold; raises CheckFailed for what is wrong."""
    from caffe_recipes.data.records_check import check_records, records_values, render_records_text

    seen = check_records(path, classes, batch=batch, must_be_shuffled=shuffled)
    click.echo(
        json.dumps(records_values(seen), indent=1) + "\n" if as_json else render_records_text(seen), nl=False
    )
    if seen.problems:
        raise CheckFailed(path, str(seen.problems[0]), seen.hint)
