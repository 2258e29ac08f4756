"""`caffe-recipes data`: build and check LMDBs of images, and write TFRecords."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from caffe_recipes.cli.options import NUMBER, PATH, Whole, examples, gather
from caffe_recipes.cli.streams import echo, terminal_width
from caffe_recipes.data.check import Problem, check_lmdb, render_report_json, render_text
from caffe_recipes.data.digits import build_digits
from caffe_recipes.data.images import ConversionSettings, Pictures, require_opencv
from caffe_recipes.data.tfrecords import is_records
from caffe_recipes.errors import CheckFailed, InputError
from caffe_recipes.files.atomic_writes import check_output, write_whole
from caffe_recipes.limits import MOST_RECORD_FILES
from caffe_recipes.review.text_columns import wrap_line
from caffe_recipes.wording import describe_count

if TYPE_CHECKING:  # slow to import
    from caffe_recipes.data.build import BuildPlan

_REPORT_EVERY_S = 10
_IN_SECONDS_S = 90  # shorter times are printed in seconds, since minutes would be too coarse


class BuildProgress:
    """Prints the progress of a build to standard error, at most every ten seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._start: tuple[int, float] | None = None
        self._last = clock()

    def __call__(self, done: int, total: int) -> None:
        """Report the number of finished images."""
        now = self._clock()
        if self._start is None:  # images of an interrupted build do not count towards the speed
            self._start = done, now
            if done:
                echo(f"resuming: {done:,} of {total:,} images are done", err=True)
        elif now - self._last >= _REPORT_EVERY_S and done > self._start[0]:
            self._last = now
            pace = (done - self._start[0]) / (now - self._start[1])
            left_s = (total - done) / pace
            left = f"{left_s:.0f} s" if left_s < _IN_SECONDS_S else f"{left_s / 60:.0f} min"
            echo(f"{done:,} of {total:,} images, {pace:,.0f} images/s, {left} left", err=True)


_ANY_LABEL = 2**31
_SIDE_PX = Whole(1, 65_500)  # the limit of a JPEG
_DIGITS = Path("examples/digits")
_TEST_SHARE = 0.2


@click.group(
    epilog=examples(
        "caffe-recipes data build --images train.txt --shuffle --out train_lmdb",
        "caffe-recipes data check train_lmdb --classes 1000 --shuffled",
        "caffe-recipes data tfrecords train_lmdb --out train_records",
    )
)
def data() -> None:
    """Build and check LMDBs of labelled images, and write TFRecords."""


_PREFIX = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def _prefix(context: click.Context, option: click.Parameter, text: str) -> str:
    if not _PREFIX.fullmatch(text):
        raise InputError("--prefix", f"'{text[:80]}' cannot start a file name", "e.g. train or validation")
    return text


@data.command(
    short_help="Write the images of an LMDB as TFRecords.",
    epilog=examples(
        "caffe-recipes data tfrecords train_lmdb --out train_records --shards 128",
        "caffe-recipes data tfrecords --adopt imagenet/train",
    ),
)
@click.argument("lmdb", type=PATH, required=False)
@click.option("--out", metavar="DIR", type=PATH, help="Folder to write the files to.")
@click.option(
    "--adopt",
    metavar="DIR",
    type=PATH,
    help="Write only the manifest of a folder of TFRecords that another program made, as tensorflow/tpu's "
    "imagenet_to_gcs.py does: its records, classes and digests.",
)
@click.option(
    "--shards",
    metavar="N",
    type=Whole(1, MOST_RECORD_FILES),
    default=1024,
    show_default=True,
    help="Number of files.",
)
@click.option("--seed", metavar="N", type=Whole(0), default=1, show_default=True, help="Seed of the shuffle.")
@click.option(
    "--prefix",
    metavar="NAME",
    default="train",
    show_default=True,
    callback=_prefix,
    help="Files are named NAME-00000-of-01024 and so on.",
)
@click.option(
    "--class-list", metavar="FILE", type=PATH, help="Names of the classes [default: from the LMDB's manifest]"
)
def tfrecords(
    lmdb: Path | None,
    out: Path | None,
    adopt: Path | None,
    shards: int,
    seed: int,
    prefix: str,
    class_list: Path | None,
) -> None:
    """Write an LMDB's images as TFRecords like ImageNet's: JPEGs, labels from 1, shuffled over all files.

    After an interruption, run the same command again to resume. `data check DIR` measures how well the
    records are shuffled.
    """
    from caffe_recipes.data.images import load_classes
    from caffe_recipes.data.manifest import load_manifest
    from caffe_recipes.data.tfrecords import adopt_records, write_tfrecords

    if adopt is not None:
        if lmdb or out or class_list:
            raise InputError(
                "--adopt", "reads the folder as it is", "give it without an LMDB, --out or --class-list"
            )
        found = adopt_records(adopt, seed)
        classes_of = f", {describe_count(len(found.classes), 'class', 'classes')}" if found.classes else ""
        echo(
            f"{adopt}: {describe_count(found.records, 'record')} in {describe_count(found.shards, 'file')}"
            f"{classes_of}; wrote {adopt.resolve().name}.manifest.json beside it"
        )
        return
    if lmdb is None or out is None:
        raise InputError("", "no LMDB or no --out given", "give both, or --adopt DIR for existing TFRecords")
    manifest = load_manifest(lmdb) if class_list is None else None
    classes = load_classes(class_list) if class_list else manifest.classes if manifest else None
    made = write_tfrecords(
        lmdb, out, shards=shards, seed=seed, prefix=prefix, classes=classes, on_progress=BuildProgress()
    )
    echo(f"{out}: {describe_count(made.records, 'record')} in {describe_count(made.shards, 'file')}")


def report_tfrecords(path: Path, classes: int | None, batch: int, *, shuffled: bool, as_json: bool) -> None:
    """Print a summary of a file or folder of TFRecords; raises CheckFailed if there are problems."""
    from caffe_recipes.data.tfrecords import check_tfrecords, records_values, render_records_text

    seen = check_tfrecords(path, classes, batch=batch, must_be_shuffled=shuffled)
    if as_json:
        click.echo(json.dumps(records_values(seen), indent=1))
    else:
        _echo_wrapped(render_records_text(seen))
    _fail_for_problems(path, seen.problems, seen.hint, as_json=as_json)


def _fail_for_problems(path: Path, problems: Sequence[Problem], hint: str, *, as_json: bool) -> None:
    """Raise CheckFailed if there are problems; the report on standard output has described each already."""
    if problems:
        listed = f"has {describe_count(len(problems), 'problem')}, listed above"
        raise CheckFailed(path, str(problems[0]) if as_json else listed, hint)


@dataclass(frozen=True)
class _Pictures:
    """The options that name the images and their classes."""

    images: Path | None = None
    root: Path | None = None
    labels: Path | None = None
    class_list: Path | None = None
    classes: int | None = None


@dataclass(frozen=True)
class _Order:
    """The options for the order of the images, and for dividing them into two LMDBs."""

    shuffle: bool = False
    seed: int | None = None
    test_out: Path | None = None
    test_share: float | None = None

    def check(self, out: Path) -> None:
        """Raise InputError for options that have no effect, and for a share that is not between 0 and 1."""
        if self.seed is not None and not (self.shuffle or self.test_out):
            raise InputError("--seed", "has no effect without --shuffle", "add --shuffle")
        if self.test_share is not None and self.test_out is None:
            raise InputError("--test-share", "has no effect without --test-out", "add --test-out LMDB")
        if self.test_share is not None and not 0 < self.test_share < 1:
            what = f"{self.test_share:g} is not between 0 and 1"
            raise InputError("--test-share", what, "give 0.2 for a fifth of the images")
        if self.test_out is not None and os.path.realpath(self.test_out) == os.path.realpath(out):
            raise InputError("--test-out", "is the same LMDB as --out", "give another path")

    def outputs(self, found: Pictures, out: Path) -> list[tuple[Path, Pictures]]:
        """Return the LMDBs to build, and the images of each. Raises DataError."""
        if self.test_out is None:
            return [(out, found)]
        from caffe_recipes.data.build import split_pictures

        share = _TEST_SHARE if self.test_share is None else self.test_share
        train, test = split_pictures(found, share, self.whole_seed)
        return [(out, train), (self.test_out, test)]

    @property
    def whole_seed(self) -> int:
        """The seed: the given one, or 1."""
        return 1 if self.seed is None else self.seed


@data.command(
    short_help="Build an LMDB of labelled images.",
    epilog=examples(
        "caffe-recipes data build --images train.txt --shuffle --out train_lmdb",
        "caffe-recipes data build --images photos/ --out train --test-out test",
        "caffe-recipes data build digits",
    ),
)
@click.argument("name", required=False, type=click.Choice(["digits"]))
@click.option("--images", metavar="LIST|FOLDER|TAR", type=PATH, help="The images to build the LMDB from.")
@click.option(
    "--out",
    metavar="LMDB",
    type=PATH,
    help="The LMDB to build; for digits, the folder of both LMDBs [default: examples/digits]",
)
@click.option(
    "--root",
    metavar="DIR",
    type=PATH,
    help="The folder that the paths in LIST are relative to [default: the list's folder]",
)
@click.option("--labels", metavar="FILE", type=PATH, help="Labels for a TAR that contains only images.")
@click.option(
    "--class-list",
    metavar="FILE",
    type=PATH,
    help="File of class names, one per line in the order of the labels, or a manifest that has them.",
)
@click.option("--classes", metavar="N", type=Whole(1, _ANY_LABEL), help="Refuse labels outside 0 to N - 1.")
@click.option(
    "--resize-height",
    "resize_height_px",
    metavar="PX",
    type=_SIDE_PX,
    help="Resize to this height; needs --resize-width.",
)
@click.option(
    "--resize-width",
    "resize_width_px",
    metavar="PX",
    type=_SIDE_PX,
    help="Resize to this width; needs --resize-height.",
)
@click.option(
    "--shorter-side",
    "shorter_side_px",
    metavar="PX",
    type=_SIDE_PX,
    help="Resize the shorter side to this length, keeping the aspect ratio.",
)
@click.option("--gray", "is_gray", is_flag=True, help="Convert images to greyscale.")
@click.option(
    "--encoded/--raw",
    "is_encoded",
    default=True,
    help="Store images as JPEG or PNG, or as raw pixels.",
    show_default=True,
)
@click.option(
    "--encode-type",
    metavar="jpg|png",
    type=click.Choice(["jpg", "png"]),
    help="Encode all images in this format [default: the format of each file]",
)
@click.option("--shuffle", is_flag=True, help="Shuffle the images.")
@click.option("--seed", metavar="N", type=Whole(0), help="Seed of the shuffle and of --test-out [default: 1]")
@click.option(
    "--test-out",
    metavar="LMDB",
    type=PATH,
    help="Also build this test LMDB, from a share of each class; --out gets the rest.",
)
@click.option(
    "--test-share",
    metavar="FRACTION",
    type=NUMBER,
    help="The share of each class that goes to --test-out [default: 0.2]",
)
@click.option("--check-size", is_flag=True, help="Refuse images of different sizes.")
@click.option("--skip-bad", is_flag=True, help="Skip images that do not decode, as convert_imageset does.")
@click.option(
    "--workers", metavar="N", type=Whole(1, 1024), help="Number of worker processes [default: one per core]"
)
@click.option(
    "--backend",
    type=click.Choice(["lmdb"]),
    default="lmdb",
    expose_value=False,
    help="Only lmdb is supported; accepted for compatibility with convert_imageset.",
)
@gather(_Pictures, "pictures")
@gather(ConversionSettings, "settings")
@gather(_Order, "order")
def build(
    name: str | None,
    out: Path | None,
    pictures: _Pictures,
    settings: ConversionSettings,
    order: _Order,
    skip_bad: bool,
    workers: int | None,
) -> None:
    """Build an LMDB of labelled images, or two LMDBs of scikit-learn's 1,797 digits.

    LIST has a line `path label` per image, FOLDER has a subfolder per class, and TAR is one of ImageNet's
    archives.
    An LMDB that already exists is kept. After an interruption, run the same command again to resume.
    LMDB.manifest.json records what the LMDB was built from.
    """
    if (name is None) == (pictures.images is None):
        raise click.UsageError("Give either 'digits' or --images.")
    if pictures.images is None:
        _build_digits(out)
        return
    if out is None:
        raise click.UsageError("Missing option '--out'.", click.get_current_context())
    order.check(out)
    require_opencv(out)
    from caffe_recipes.data import build as builder

    builder.check_settings(settings)  # before listing a million images
    for path in filter(None, (out, order.test_out)):
        builder.check_lmdb_path(path, pictures.images)
    if order.test_out is not None:
        builder.check_apart(out, order.test_out)
    lists = {"root": pictures.root, "labels": pictures.labels, "class_list": pictures.class_list}
    found = builder.load_pictures(pictures.images, **lists)
    if found.ignored:
        echo(f"{pictures.images}: {_describe_left_out(found.ignored)}", err=True)
    seed = order.whole_seed if order.shuffle else None
    plans = [
        (path, builder.plan_build(part, settings, seed=seed, classes=pictures.classes))
        for path, part in order.outputs(found, out)
    ]
    for path, plan in plans[1:]:  # the first LMDB, which is checked when its build begins, may take hours
        builder.check_planned(plan, path)
    for path, plan in plans:
        _build_lmdb(plan, path, workers or len(os.sched_getaffinity(0)), skip_bad=skip_bad)


def _build_lmdb(plan: BuildPlan, out: Path, workers: int, *, skip_bad: bool) -> None:
    """Build one LMDB, and print what it contains."""
    from caffe_recipes.data.build import build_lmdb

    existed = os.path.lexists(out)
    built = build_lmdb(
        plan,
        out,
        workers=workers,
        skip_bad=skip_bad,
        on_progress=BuildProgress(),
        warn=lambda text: echo(f"warning: {out}: {text}", err=True),
    )
    left_out = f", {len(built.skipped):,} skipped" if built.skipped else ""
    kept = "; already built, and kept" if existed else ""
    classes = describe_count(len(built.labels), "class", "classes")
    echo(f"{out!s}: {describe_count(built.images, 'image')} of {classes}{left_out}{kept}")
    least = min(built.labels, default=0)
    if least > 0:
        outputs = max(built.labels) + 1
        what = f"the labels begin at {least}, but Caffe counts classes from 0"
        echo(f"note: {out!s}: {what}; number them from 0, or use num_output: {outputs}", err=True)


def _build_digits(out: Path | None) -> None:
    _refuse_options("digits", besides=("name", "out"))
    lmdbs = build_digits(out or _DIGITS)
    for path in (lmdbs.train, lmdbs.val):
        echo(str(path))


def _refuse_options(what: str, besides: Sequence[str]) -> None:
    """Raise InputError for the first option on the command line that is not one of `besides`."""
    context = click.get_current_context()
    for option in context.command.params:
        source = context.get_parameter_source(str(option.name))
        if option.name not in besides and source is ParameterSource.COMMANDLINE:
            is_off = context.params.get(str(option.name)) is False
            word = (option.secondary_opts if is_off else option.opts)[0]
            raise InputError(word, f"cannot be used with {what}", "omit it")


def _describe_left_out(names: Sequence[str]) -> str:
    first = str(names[0])
    if len(names) == 1:
        return f"skipped 1 file without an image suffix: '{first}'"
    return f"skipped {len(names):,} files without an image suffix, e.g. '{first}'"


@data.command(
    short_help="Check an LMDB or TFRecords.",
    epilog=examples(
        "caffe-recipes data check train_lmdb --classes 1000 --shuffled",
    ),
)
@click.argument("lmdb", metavar="LMDB|TFRECORDS", type=PATH)
@click.option(
    "--classes",
    metavar="N",
    type=Whole(1, _ANY_LABEL),
    help="Number of classes: labels must be 0 to N - 1, or 1 to N in TFRecords.",
)
@click.option("--all", "decodes_all", is_flag=True, help="Decode every image and hash every record.")
@click.option(
    "--sample", metavar="N", type=Whole(0), default=256, show_default=True, help="Number of images to decode."
)
@click.option(
    "--batch",
    metavar="N",
    type=Whole(2),
    default=256,
    show_default=True,
    help="Batch size for measuring how well classes are mixed.",
)
@click.option("--shuffled", is_flag=True, help="Exit 1 unless the records are shuffled.")
@click.option(
    "--sheet",
    metavar="FILE.png",
    type=PATH,
    help="Draw a contact sheet of 64 images with their classes.",
)
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
    """Check every label of an LMDB, a sample of its images, its shuffling and its size.

    A file or folder of TFRecords is checked record by record. Exit 1 if a label is out of range, an image
    does not decode, or the records differ from the manifest.
    """
    given = click.get_current_context().get_parameter_source("sample")
    if decodes_all and given is ParameterSource.COMMANDLINE:
        raise InputError(
            "--sample", "cannot be used with --all, which decodes every image", "omit one of them"
        )
    if is_records(lmdb):
        if sheet is not None:
            raise InputError("--sheet", "works only for LMDBs", "omit it")
        report_tfrecords(lmdb, classes, batch, shuffled=shuffled, as_json=as_json)
        return
    if sheet is not None:
        _check_sheet(sheet)
    if decodes_all or sample or sheet is not None:
        require_opencv(lmdb)
    decode = None if decodes_all else sample
    seen = check_lmdb(lmdb, classes, decode=decode, batch=batch, must_be_shuffled=shuffled)
    if as_json:
        click.echo(render_report_json(seen), nl=False)
    else:
        _echo_wrapped(render_text(seen))
    if sheet is not None:
        from caffe_recipes.data.sheet import draw_sheet

        write_whole({sheet: draw_sheet(lmdb)})
        echo(f"wrote {sheet}", err=True)
    _fail_for_problems(lmdb, seen.problems, seen.hint, as_json=as_json)


def _echo_wrapped(lines: Iterable[str]) -> None:
    """Print lines, wrapped to the terminal."""
    echo(*(part for line in lines for part in wrap_line(line, terminal_width(), 7)))


def _check_sheet(sheet: Path) -> None:
    """Raise InputError unless the sheet can be written; called before the LMDB is read."""
    if sheet.suffix != ".png":
        raise InputError(sheet, "is not a .png file", "sheets are drawn as PNG")
    check_output(sheet, (), "--sheet")
