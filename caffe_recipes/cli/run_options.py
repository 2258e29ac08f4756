"""Options that the commands for hosts share: hosts, folders, the machine, the Caffe."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem

from caffe_recipes.caffe.dialects import OURS, load_dialects
from caffe_recipes.cli.options import PATH, PATH_TEXT
from caffe_recipes.cluster.staging.plan import WAYS, How
from caffe_recipes.errors import InputError

if TYPE_CHECKING:
    from caffe_recipes.recipe.model import Recipe
    from caffe_recipes.run.context import RunOptions


def read_speed(context: click.Context, option: click.Parameter, value: float | None) -> float | None:
    """Return `--images-per-s`; raises InputError for a speed that no machine has."""
    from caffe_recipes.recipe.model import FASTEST, SLOWEST  # pydantic: not for each command

    if value is not None and not SLOWEST <= value <= FASTEST:
        hint = f"give images a second of all ranks, {SLOWEST:g} to {FASTEST:g}"
        raise InputError("--images-per-s", f"{value:g} is not a speed", hint)
    return value


def complete_profile(context: click.Context, option: click.Parameter, typed: str) -> list[CompletionItem]:
    """Complete the profiles that ship; where none matches, let the shell complete a file."""
    from caffe_recipes.cluster.profiles import shipped_profiles  # only a shell that completes waits for it

    items = [CompletionItem(name) for name in shipped_profiles() if name.startswith(typed)]
    return items or [CompletionItem(typed, type="file")]


hostfile = click.option(
    "--hostfile",
    type=PATH,
    metavar="FILE",
    help="Hosts, one a line, or folded as c[1-4] [default: ./hostfile, else the Slurm job's hosts]",
)


profile = click.option(
    "--profile",
    type=PATH_TEXT,
    metavar="NAME|FILE.yaml",
    shell_complete=complete_profile,
    help="The machine: its launcher, modules, folders and rates [default: the recipe's]",
)


caffe = click.option(
    "--caffe", metavar="PATH", type=PATH_TEXT, help="The Caffe binary [default: the recipe's trainer]"
)


caffe_root = click.option(
    "--caffe-root",
    type=PATH,
    metavar="DIR",
    envvar="CAFFE_ROOT",
    show_envvar=True,
    help="Working directory of the trainer, on a file system that all hosts see [default: the profile's, "
    "else the current folder]",
)


runs_root = click.option(
    "--caffe-root",
    type=PATH_TEXT,
    metavar="DIR",
    envvar="CAFFE_ROOT",
    default=".",
    show_envvar=True,
    help="The folder that holds runs/; with --on a path on that host [default: the current folder]",
)


on = click.option(
    "--on", metavar="HOST", help="Read the run on this host, over ssh; the host needs sh and coreutils."
)


lmdb_source = click.option(
    "--lmdb-source",
    type=PATH,
    metavar="DIR",
    envvar="LMDB_SOURCE",
    show_envvar=True,
    help="Where the training LMDB is copied from [default: the recipe's source]",
    callback=lambda context, option, given: given.absolute() if given else None,
)


how = click.option("--how", type=click.Choice(list(WAYS)), help="How to stage [default: the quickest way]")


dialect = click.option(
    "--dialect",
    type=click.Choice(list(load_dialects())),
    default=OURS,
    show_default=True,
    help="The Caffe that trains; other than the default, the recipe is named <recipe>-<dialect>.",
)


@dataclass(frozen=True)
class GivenRun:
    """The recipe to run, its hosts, machine and trainer, as typed."""

    recipe: str
    hostfile: Path | None = None
    profile: str | None = None
    caffe: str | None = None
    caffe_root: Path | None = None
    lmdb_source: Path | None = None
    how: How | None = None
    dialect: str = OURS

    def load(self) -> Recipe:
        """Return the recipe, translated to the dialect, with the given Caffe; raises InputError."""
        from caffe_recipes.recipe.source import load_recipe
        from caffe_recipes.render.dialect import translate_whole

        loaded = translate_whole(load_recipe(self.recipe), self.dialect)
        if self.caffe is None:
            return loaded
        trainer = str(Path(shutil.which(self.caffe) or self.caffe).absolute())
        return loaded.model_copy(update={"trainer": trainer})

    def find_root(self, recipe: Recipe | None) -> Path:
        """Return the Caffe root; raises InputError if it holds nothing of the given recipe."""
        from caffe_recipes.run.context import find_root

        return find_root(self.caffe_root, self.profile, recipe, (self.recipe, self.caffe))

    def options(self, recipe: Recipe) -> RunOptions:
        """Return the options of a run; raises InputError for the Caffe root."""
        from caffe_recipes.run.context import RunOptions

        root = self.find_root(recipe)
        return RunOptions(root, self.hostfile, self.lmdb_source, self.how, self.profile)
