"""Define the options of commands that use a model whose files are loose, rather than a run's."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce

import click

from caffe_recipes.caffe.models import LooseFiles
from caffe_recipes.cli.options import NUMBER, PATH, PATH_TEXT, RUN, gather

_OPTIONS = (
    click.option("--net", metavar="FILE", type=PATH, help="A deploy net, in place of a run; with --weights."),
    click.option(
        "--weights", metavar="FILE", type=PATH, help="The .caffemodel (or .caffemodel.h5) of --net."
    ),
    click.option(
        "--mean",
        metavar="FILE|B,G,R",
        type=PATH_TEXT,
        help="With --net: the mean to subtract: a mean file, a .npy, or e.g. 104,117,123.",
    ),
    click.option(
        "--scale", metavar="S", type=NUMBER, help="With --net: multiply pixels by S, after the mean."
    ),
    click.option(
        "--names",
        metavar="FILE",
        type=PATH,
        help="With --net: the names of the classes, one per line, e.g. synset_words.txt.",
    ),
    click.option(
        "--transform-of",
        metavar="RUN|FOLDER",
        type=RUN,
        help="With --net: prepare images and name classes as the model of this run, e.g. for a net that "
        "`deploy --fold-bn` made of it.",
    ),
)


def loose_files(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of loose files, gathered as `loose`."""
    return reduce(lambda made, option: option(made), reversed(_OPTIONS), gather(LooseFiles, "loose")(command))
