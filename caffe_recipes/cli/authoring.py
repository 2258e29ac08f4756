"""`caffe-recipes new`, `rescale` and `adopt`: write a recipe by rules, from another one or from prototxts."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import click

from caffe_recipes.authoring.adopt import adopt as adopt_folder
from caffe_recipes.authoring.adopt_cluster import AdoptOptions
from caffe_recipes.authoring.new import RecipeRequest, make_new
from caffe_recipes.authoring.new_options import NewOptions, make_request
from caffe_recipes.authoring.recipe_yaml import NewRecipe, check_recipe_path, choose_name, write_new
from caffe_recipes.authoring.rescale import RescaleTarget
from caffe_recipes.authoring.rescale import rescale as rescale_recipe
from caffe_recipes.caffe.nets import DEPTHS
from caffe_recipes.cli import consent, run_options
from caffe_recipes.cli.options import COUNT, FOLDER, NUMBER, PATH, PATH_TEXT, RECIPE, Whole, examples, gather
from caffe_recipes.cli.streams import any_dialect, echo, print_text
from caffe_recipes.cluster.profiles import load_profile
from caffe_recipes.errors import InputError
from caffe_recipes.recipe.model import OUR_TRAINER
from caffe_recipes.recipe.source import load_recipe
from caffe_recipes.render.headers import find_misnamed
from caffe_recipes.review.naming import recipe_named
from caffe_recipes.wording import shorten

_MOST_EPOCHS = 100_000


def check_epochs(least: float = 0) -> Callable[[click.Context, click.Parameter, float | None], float | None]:
    """Return a callback that refuses epochs below `least`, not above 0, or above 100,000."""

    def check(context: click.Context, option: click.Parameter, epochs: float | None) -> float | None:
        if epochs is not None and not math.isfinite(epochs):
            raise InputError(option.opts[0], f"{epochs:g} is not a finite number", "give epochs, such as 90")
        if epochs is not None and (epochs < least or epochs <= 0):
            hint = f"give {least:g} or more" if least else "give more than 0"
            raise InputError(option.opts[0], f"{epochs:g} is not a valid number of epochs", hint)
        if epochs is not None and epochs > _MOST_EPOCHS:
            what = f"{epochs:.10g} epochs is too many"
            raise InputError(option.opts[0], what, f"give {_MOST_EPOCHS} or fewer")
        return epochs

    return check


def read_name(context: click.Context, option: click.Parameter, name: str | None) -> str | None:
    """Return the name; raises InputError if it is empty."""
    if name == "":
        raise InputError("--name", "is empty", "give a name, or omit the option")
    return name


def read_trainer(context: click.Context, option: click.Parameter, trainer: str | None) -> str | None:
    """Return the trainer; raises InputError for a word that is neither a trainer nor the path of one."""
    if trainer is None or trainer == OUR_TRAINER or "/" in trainer or trainer.startswith("-"):
        return trainer
    hint = f"give {OUR_TRAINER}, or the path to a Caffe binary from the Caffe root, e.g. ./caffe"
    raise InputError("--trainer", f"'{shorten(trainer)}' is not a trainer", hint)


def _new_file(context: click.Context, option: click.Parameter, path: Path | None) -> Path | None:
    if path is not None:
        check_recipe_path(path)
    return path


out = click.option(
    "--out",
    metavar="FILE.yaml",
    type=PATH,
    callback=_new_file,
    help="Write the recipe to this new file [default: standard output]",
)


def trainer_option(default: str) -> Callable[[run_options.Command], run_options.Command]:
    """Return the option for the program that trains; `default` describes what it is without the option."""
    return click.option(
        "--trainer",
        metavar="caffe-torch|PATH",
        type=PATH_TEXT,
        callback=read_trainer,
        help="The program that trains: caffe-torch (PyTorch), or the path to a Caffe binary, relative to "
        f"the Caffe root [default: {default}]",
    )


def output_recipe(made: NewRecipe, path: Path | None) -> None:
    """Write a recipe's YAML to a new file, or print it; notes go to standard error."""
    notes = list(made.notes)
    if path is not None:
        write_new(path, made.text)
        misnamed = find_misnamed(made.recipe, str(path))
        notes += [f"warning: {misnamed}"] if misnamed else []
    for note in notes:
        echo(note, err=True)
    if path is None:
        print_text(made.text)
    else:
        echo(f"wrote {path}")


@click.command(
    epilog=examples(
        "caffe-recipes new --images 1281167 --batch 8192 --epochs 80 --out mine.yaml",
        "caffe-recipes new --images 50000 --epochs 90 --trainer caffe-torch",
        "caffe-recipes new --net resnet18 --lmdb train --test-lmdb val --epochs 30",
    )
)
@click.option(
    "--net",
    type=PATH_TEXT,
    metavar="NAME|FILE|MODULE:FUNCTION",
    help="The net: a builder (resnet18, resnet34, resnet50, resnet101, resnet152 or resnet_small), a "
    "prototxt, or a function in a module next to the recipe, e.g. my_nets:lenet [default: resnet50]",
)
@click.option(
    "--images", metavar="N", type=COUNT, help="Images in the training LMDB [default: its number of records]"
)
@click.option(
    "--batch",
    metavar="B",
    type=COUNT,
    help="Global batch size: images per iteration over all ranks [default: 32 per rank]",
)
@click.option(
    "--epochs",
    metavar="E",
    type=NUMBER,
    callback=check_epochs(least=1),
    required=True,
    help="Number of epochs that the final model is trained for.",
)
@click.option(
    "--nodes",
    metavar="N",
    type=COUNT,
    help="Number of nodes [default: 1, or if a rank would get more than 256 images, enough for 32 per rank]",
)
@click.option(
    "--ranks-per-node",
    metavar="N",
    type=COUNT,
    help="MPI ranks per node [default: one per socket of the profile, else 1]",
)
@click.option("--batch-per-rank", metavar="N", type=COUNT, help="Images per rank per iteration.")
@click.option(
    "--cycles",
    metavar="N",
    type=Whole(0, 2**31 - 1),
    default=0,
    show_default=True,
    help="Number of cycles, of 15 epochs each, between the decay and the collapse.",
)
@click.option(
    "--collapse",
    type=click.Choice(["last", "each"]),
    default="last",
    show_default=True,
    help="Collapse once, at the end (last), or after the decay and every cycle, for an ensemble (each).",
)
@click.option(
    "--collapse-epochs",
    metavar="E",
    type=NUMBER,
    callback=check_epochs(least=1),
    help="Epochs of each collapse [default: 6% of the run, at least 3 and at most 10]",
)
@click.option(
    "--depth",
    type=click.Choice([str(depth) for depth in DEPTHS]),
    callback=lambda context, option, depth: int(depth) if depth else None,
    help="Depth of the ResNet; --depth 50 is the same as --net resnet50.",
)
@click.option(
    "--classes", metavar="N", type=COUNT, help="Number of classes [default: the LMDB's or the net's, or 1000]"
)
@click.option(
    "--test-images",
    metavar="N",
    type=COUNT,
    help="Images in the test LMDB [default: its number of records, or 50000 for ImageNet]",
)
@click.option(
    "--lmdb",
    metavar="DIR",
    type=PATH_TEXT,
    help=f"Path of the training LMDB on every node; if it exists here, images, classes and size are read "
    f"from it [default: {RecipeRequest.lmdb}]",
)
@click.option(
    "--test-lmdb",
    metavar="DIR",
    type=PATH_TEXT,
    help=f"Path of the test LMDB [default: {RecipeRequest.test_lmdb}]",
)
@click.option(
    "--name",
    metavar="NAME",
    callback=read_name,
    help="Name of the recipe [default: the name of the --out file, or resnet<depth>-<batch>-<epochs>ep]",
)
@click.option(
    "--profile",
    metavar="NAME|FILE.yaml",
    type=PATH_TEXT,
    shell_complete=run_options.complete_profile,
    callback=lambda context, option, profile: load_profile(profile) if profile else None,
    help="The machine to write the recipe for; its cores, threads, /tmp and MLSL settings are copied. Its "
    "launcher, modules and folders are used by `run --profile` and `submit --profile`.",
)
@trainer_option("caffe-torch for one node without a cluster's --profile, else ./build/tools/caffe")
@out
@gather(NewOptions, "asked")
def new(asked: NewOptions, out: Path | None) -> None:
    """Write a new recipe that follows the paper's rules (arXiv:1711.04291), which its YAML cites.

    The phases are a warm-up, a linear decay, cycles if requested, and a collapse. The learning rate
    does not jump between phases.
    """
    home = out.parent if out else Path()
    request = make_request(replace(asked, name=choose_name(asked.name, out)), home)
    output_recipe(make_new(request, home), out)


@click.command(
    epilog=examples(
        "caffe-recipes rescale stampede2-64n-72ep --nodes 128 --out r128.yaml",
        "caffe-recipes rescale mine.yaml --batch 8192 --smooth --out wide.yaml",
        "caffe-recipes rescale mine.yaml --nodes 1 --ranks-per-node 8 --out gpus.yaml",
    )
)
@click.argument("recipe", metavar="NAME|FILE.yaml", type=RECIPE)
@click.option(
    "--nodes",
    metavar="N",
    type=COUNT,
    help="Number of nodes; without --batch the global batch size stays the same.",
)
@click.option(
    "--batch",
    metavar="B",
    type=COUNT,
    help="Global batch size: images per iteration over all ranks; without --nodes, the number of nodes "
    "changes with it.",
)
@click.option(
    "--epochs",
    metavar="E",
    type=NUMBER,
    callback=check_epochs(),
    help="Number of epochs that the final model is trained for.",
)
@click.option("--ranks-per-node", metavar="N", type=COUNT, help="MPI ranks per node.")
@click.option("--batch-per-rank", metavar="N", type=COUNT, help="Images per rank per iteration.")
@click.option(
    "--smooth",
    is_flag=True,
    help="Remove jumps in the learning rate between phases and at the end of a warm-up.",
)
@click.option(
    "--name",
    metavar="NAME",
    callback=read_name,
    help="Name of the new recipe [default: the name of the --out file, or the old name and what changed]",
)
@trainer_option("that of the recipe")
@consent.run_code
@out
@gather(RescaleTarget, "target")
def rescale(recipe: str, target: RescaleTarget, out: Path | None) -> None:
    """Rescale a recipe's node count, batch size or epochs, by the paper's rules.

    The learning rate grows with the batch size, up to 6.4 at 16,384 images, and the number of iterations
    falls. The first warm-up keeps its epochs. If published runs lost accuracy at this batch size, a warning
    says so.
    """
    target = replace(target, name=choose_name(target.name, out))
    by_hand = (
        "change `cluster` and tensorflow.schedule in a copy of its YAML: steps are epochs x images / batch"
    )
    source = load_recipe(recipe_named(recipe), by_hand)
    made = rescale_recipe(source, target, out.parent if out else Path())
    output_recipe(made, out)


@click.command(
    epilog=examples(
        "caffe-recipes adopt models/resnet50 --ranks 128 --out mine.yaml",
        "caffe-recipes adopt models/googlenet/quick_solver.prototxt",
    )
)
@click.argument("target", metavar="FOLDER|SOLVER.prototxt", type=PATH)
@out
@click.option(
    "--name",
    metavar="NAME",
    callback=read_name,
    help="Name of the recipe [default: the name of the --out file, or of the folder]",
)
@click.option(
    "--script",
    metavar="FILE",
    type=PATH,
    help="A script, README or log with the training commands, to find order, weights and ranks [default: "
    "one in the folder]",
)
@click.option("--ranks", metavar="N", type=COUNT, help="Number of MPI ranks.")
@click.option("--ranks-per-node", metavar="N", type=COUNT, help="MPI ranks per node.")
@click.option("--images", metavar="N", type=COUNT, help="Images in the training LMDB.")
@click.option("--test-images", metavar="N", type=COUNT, help="Images in the test LMDB.")
@click.option("--classes", metavar="N", type=COUNT, help="Number of classes.")
@click.option(
    "--caffe-root",
    metavar="DIR",
    type=FOLDER,
    help="The folder that Caffe is started in; `net:` paths are relative to it.",
)
@any_dialect
@trainer_option("the program in the script, else ./build/tools/caffe")
@gather(AdoptOptions, "options")
def adopt(
    target: Path, options: AdoptOptions, out: Path | None, name: str | None, script: Path | None
) -> None:
    """Turn existing solvers and nets into a recipe.

    Give a folder whose solvers form one chain, or a single solver. The recipe generates files that are equal
    to them as protobuf messages.

    Values that are not in the files are taken from the options, then from the script, then from comments. All
    others are guessed, and each guess is reported.
    """
    home = out.parent if out else Path()
    made = adopt_folder(target, options, name=choose_name(name, out), script=script, home=home)
    output_recipe(made, out)
