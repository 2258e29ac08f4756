"""`caffe-recipes data`: build LMDBs of images, and check any LMDB."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import click
from click.core import ParameterSource

from caffe_recipes.cli.numbers import Whole
from caffe_recipes.cli.paths import PATH
from caffe_recipes.cli.progress import Progress
from caffe_recipes.cli.tfrecords import check_tfrecords, tfrecords
from caffe_recipes.data.check import check_lmdb
from caffe_recipes.data.check_text import render_json, render_text
from caffe_recipes.data.digits import build_digits
from caffe_recipes.data.opencv import require_opencv
from caffe_recipes.data.records_check import is_records
from caffe_recipes.errors import CheckFailed, InputError
from caffe_recipes.files import check_replaceable, write_whole

_ANY_LABEL = 2**31
_SIDE_PX = Whole(1, 65_500)  # a JPEG's most
_DIGITS = Path("examples/digits")


@click.group()
def data() -> None:
    """Build and check LMDBs of labelled images."""


data.add_command(tfrecords)


@data.command()
@click.argument("name", required=False, type=click.Choice(["digits"]))
@click.option("--images", metavar="LIST|FOLDER|TAR", type=PATH, help="What the LMDB is made of.")
@click.option(
    "--out",
    metavar="LMDB",
    type=PATH,
    help="What is built; of digits the folder [default: examples/digits].",
)
@click.option("--root", metavar="DIR", type=PATH, help="Folder of a LIST's paths [default: the list's].")
@click.option("--labels", metavar="FILE", type=PATH, help="Labels of a TAR of images alone.")
@click.option("--class-list", metavar="FILE", type=PATH, help="Names of classes, or a manifest with them.")
@click.option("--classes", metavar="N", type=Whole(1, _ANY_LABEL), help="Labels go from 0 to N - 1.")
@click.option("--resize-height", metavar="PX", type=_SIDE_PX, default=None, help="With --resize-width.")
@click.option("--resize-width", metavar="PX", type=_SIDE_PX, default=None, help="With --resize-height.")
@click.option("--shorter-side", metavar="PX", type=_SIDE_PX, help="Resize, and keep the sides' ratio.")
@click.option("--gray", is_flag=True, help="Make images grey.")
@click.option("--encoded/--raw", default=True, help="Keep JPEGs and PNGs, or pixels.", show_default=True)
@click.option(
    "--encode-type", metavar="jpg|png", type=click.Choice(["jpg", "png"]), help="[default: as each file is]"
)
@click.option("--shuffle", is_flag=True, help="Shuffle the images.")
@click.option("--seed", metavar="N", type=Whole(0), help="Another order [default: 1].")
@click.option("--check-size", is_flag=True, help="Refuse images of different sizes.")
@click.option("--skip-bad", is_flag=True, help="Leave out what does not decode, as convert_imageset does.")
@click.option("--workers", metavar="N", type=Whole(1, 1024), help="[default: one for each core]")
@click.option("--backend", type=click.Choice(["lmdb"]), default="lmdb", help="As convert_imageset's.")
def build(
    name: str | None,
    images: Path | None,
    out: Path | None,
    root: Path | None,
    labels: Path | None,
    class_list: Path | None,
    classes: int | None,
    resize_height: int | None,
    resize_width: int | None,
    shorter_side: int | None,
    gray: bool,
    encoded: bool,
    encode_type: str | None,
    shuffle: bool,
    seed: int | None,
    check_size: bool,
    skip_bad: bool,
    workers: int | None,
    backend: str,
) -> None:
    """Build the LMDB of --images, or both of digits, scikit-learn's 1,797; what is there already is kept.

    LIST has lines `path label`, FOLDER a subfolder for each class, TAR is as ImageNet's. A build that was cut
    off goes on where it was. LMDB.manifest.json says what it was made of.
    """
    if (name is None) == (images is None):
        raise click.UsageError("Give either 'digits' or --images.")
    if images is None:
        _refuse_options("digits", besides=("name", "out"))
        lmdbs = build_digits(out or _DIGITS)
        for path in (lmdbs.train, lmdbs.val):
            click.echo(click.format_filename(path))
        return
    if out is None:
        raise click.UsageError("Missing option '--out'.")
    if seed is not None and not shuffle:
        raise InputError("--seed", "has no effect without --shuffle", "add --shuffle")
    require_opencv(out)
    from caffe_recipes.data.build import build_lmdb
    from caffe_recipes.data.out import check_out
    from caffe_recipes.data.pixels import Settings
    from caffe_recipes.data.plan import check_settings, plan_build
    from caffe_recipes.data.sources import load_pictures

    settings = Settings(
        resize_height or 0, resize_width or 0, shorter_side or 0, gray, encoded, encode_type, check_size
    )
    check_settings(settings)  # before a million images are looked for
    check_out(out, images)
    found = load_pictures(images, root=root, labels=labels, class_list=class_list)
    if found.left_out:
        click.echo(f"{click.format_filename(images)}: {_tell_left_out(found.left_out)}", err=True)
    order = (1 if seed is None else seed) if shuffle else None
    plan = plan_build(found, settings, seed=order, classes=classes)
    cores = len(os.sched_getaffinity(0))
    built = build_lmdb(plan, out, workers=workers or cores, skip_bad=skip_bad, tell=Progress())
    left_out = f", {len(built.skipped):,} left out" if built.skipped else ""
    click.echo(
        f"{click.format_filename(out)}: {built.images:,} images of {len(built.labels):,} classes{left_out}"
    )


def _refuse_options(what: str, besides: Sequence[str]) -> None:
    """Raise InputError for the first option that is given, but those that `what` heeds."""
    context = click.get_current_context()
    for option in context.command.params:
        source = context.get_parameter_source(str(option.name))
        if option.name not in besides and source is ParameterSource.COMMANDLINE:
            is_off = context.params[str(option.name)] is False
            word = (option.secondary_opts if is_off else option.opts)[0]
            raise InputError(word, f"does not go with {what}", "leave it out")


def _tell_left_out(names: Sequence[str]) -> str:
    first = click.format_filename(names[0])
    if len(names) == 1:
        return f"left out 1 file that is no image by its name: '{first}'"
    return f"left out {len(names):,} files that are no images by their names, '{first}' to begin with"


@data.command()
@click.argument("lmdb", metavar="LMDB|TFRECORDS", type=PATH)
@click.option(
    "--classes",
    metavar="N",
    type=Whole(1, _ANY_LABEL),
    help="Labels go from 0 to N - 1; of TFRecords from 1 to N.",
)
@click.option("--all", "decodes_all", is_flag=True, help="Decode all images, and hash all records.")
@click.option("--sample", metavar="N", type=Whole(0), default=256, show_default=True, help="Decode N images.")
@click.option(
    "--batch",
    metavar="N",
    type=Whole(2),
    default=256,
    show_default=True,
    help="Count the classes of batches of N.",
)
@click.option("--shuffled", is_flag=True, help="Exit 1 unless the records are shuffled.")
@click.option("--sheet", metavar="FILE.png", type=PATH, help="Draw 64 images with their labels.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def check(
    lmdb: Path,
    classes: int | None,
    decodes_all: bool,
    sample: int,
    batch: int,
    shuffled: bool,
    sheet: Path | None,
    as_json: bool,
) -> None:
    """Look at an LMDB: every label, a sample of the images, how the records are shuffled, its size.

    Of TFRecords, a folder or a file: every record, and their order. Exit 1 if a label is out of range, an
    image does not decode, or records are not what the manifest says.
    """
    given = click.get_current_context().get_parameter_source("sample")
    if decodes_all and given is ParameterSource.COMMANDLINE:
        raise InputError("--sample", "does not go with --all, which decodes every image", "leave one out")
    if is_records(lmdb):
        if sheet is not None:
            raise InputError("--sheet", "is drawn of LMDBs alone", "leave it out")
        check_tfrecords(lmdb, classes, batch, shuffled=shuffled, as_json=as_json)
        return
    if sheet is not None:
        _check_sheet(sheet)
    if decodes_all or sample or sheet is not None:
        require_opencv(lmdb)
    decode = None if decodes_all else sample
    seen = check_lmdb(lmdb, classes, decode=decode, batch=batch, must_be_shuffled=shuffled)
    click.echo(render_json(seen) if as_json else render_text(seen), nl=False)
    if sheet is not None:
        from caffe_recipes.data.sheet import draw_sheet

        write_whole({sheet: draw_sheet(lmdb)})
        click.echo(f"wrote {click.format_filename(sheet)}", err=True)
    if seen.problems:
        raise CheckFailed(lmdb, str(seen.problems[0]), seen.hint)


def _check_sheet(sheet: Path) -> None:
    """See that a sheet could be written, before the LMDB is looked at."""
    if sheet.suffix != ".png":
        raise InputError(sheet, "is no .png file", "sheets are drawn as PNG")
    if not sheet.parent.is_dir():
        raise InputError(sheet, "its folder is not there", "make it, or give another path")
    try:
        check_replaceable(sheet)
    except OSError as error:
        raise InputError(sheet, f"cannot be written: {error.strerror}", "give another path") from None
