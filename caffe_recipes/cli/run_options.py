"""Define the options of commands that work on hosts: hostfile, profile, folders, staging, Caffe."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from caffe_recipes.caffe.dialects import OURS, load_dialects
from caffe_recipes.cli.options import PATH, PATH_TEXT, Seconds, Whole, refuse_empty
from caffe_recipes.cluster.staging import WAYS, Way
from caffe_recipes.errors import InputError
from caffe_recipes.run.policy import ON_FAILURE, RETRIES

if TYPE_CHECKING:
    from caffe_recipes.recipe.model import AnyRecipe
    from caffe_recipes.run.context import RunOptions

Command = Callable[..., None]


def read_speed(context: click.Context, option: click.Parameter, value: float | None) -> float | None:
    """Return `--images-per-s`; raises InputError for an impossible speed."""
    from caffe_recipes.recipe.model import FASTEST, SLOWEST  # slow: imports pydantic

    if value is not None and not SLOWEST <= value <= FASTEST:
        hint = f"give the images per second of all ranks, {SLOWEST:g} to {FASTEST:g}"
        raise InputError("--images-per-s", f"{value:g} is not a plausible speed", hint)
    return value


def complete_profile(context: click.Context, option: click.Parameter, typed: str) -> list[CompletionItem]:
    """Return the matching shipped profiles; if there are none, let the shell complete a file."""
    from caffe_recipes.cluster.profiles import shipped_profiles  # slow, and needed only for completion

    items = [CompletionItem(name) for name in shipped_profiles() if name.startswith(typed)]
    return items or [CompletionItem(typed, type="file")]


hostfile = click.option(
    "--hostfile",
    type=PATH,
    metavar="FILE",
    help="Hostfile: one host per line, or a range such as c[1-4] [default: ./hostfile, else the Slurm job's "
    "hosts, else this machine for a recipe of one node]",
)


profile = click.option(
    "--profile",
    type=PATH_TEXT,
    metavar="NAME|FILE.yaml",
    shell_complete=complete_profile,
    help="The machine to run on: launcher, modules, folders, transfer rates [default: the recipe's profile]",
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
    help="Working directory of the trainer, on a file system that all hosts share [default: the profile's, "
    "else the current folder]",
)


runs_root = click.option(
    "--caffe-root",
    type=PATH_TEXT,
    metavar="DIR",
    envvar="CAFFE_ROOT",
    default=".",
    show_envvar=True,
    help="The folder that contains runs/ [default: the current folder]",
)


on = click.option(
    "--on",
    metavar="HOST",
    callback=lambda _, param, value: value if value is None else refuse_empty("host", value, param),
    help="Read the run on this host, over ssh; --caffe-root is then a path there. The host needs sh and "
    "coreutils.",
)


lmdb_source = click.option(
    "--lmdb-source",
    type=PATH,
    metavar="DIR",
    envvar="LMDB_SOURCE",
    show_envvar=True,
    help="The training data to copy to the hosts [default: the recipe's source]",
    callback=lambda context, option, given: given.absolute() if given else None,
)


trust_owner = click.option(
    "--trust-owner",
    multiple=True,
    metavar="NAME",
    help="A user whose data may be used in folders where everybody can write, such as /scratch, besides "
    "those that the profile names; may be repeated.",
)


class _StagingWay(click.Choice[str]):
    """A method of staging; `sftp`, the former name of `ssh`, is accepted too."""

    def convert(self, value: str, param: click.Parameter | None, context: click.Context | None) -> str:
        """Return the current name of the method."""
        return super().convert("ssh" if value == "sftp" else value, param, context)


how = click.option(
    "--how",
    type=_StagingWay(list(WAYS)),
    help="How to copy the training data to the hosts [default: the fastest method]",
)


def dialect(help: str, *more: str) -> Callable[[Command], Command]:
    """Return the option for another Caffe, or for one of `more`."""
    return click.option(
        "--dialect",
        type=click.Choice([*load_dialects(), *more]),
        default=OURS,
        show_default=True,
        help=help,
    )


train_dialect = dialect(
    "The Caffe to train with; with any but the default, the recipe is called <recipe>-<dialect>."
)


trainer = click.option(
    "--trainer",
    type=click.Choice(["tensorflow"]),
    help="Use the recipe's TensorFlow run instead of its phases; the run is called <recipe>-tensorflow.",
)


def _all_of(*options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    return lambda command: reduce(lambda decorated, option: option(decorated), reversed(options), command)


# The options of a GivenRun.
machine = _all_of(hostfile, profile, caffe, caffe_root, lmdb_source, trust_owner, how, train_dialect, trainer)


def policy(on_failure: str) -> Callable[[Command], Command]:
    """Return a decorator that adds the options of a Policy; `on_failure` is the help of --on-failure."""
    return _all_of(
        click.option("--on-failure", type=click.Choice(ON_FAILURE), help=on_failure),
        click.option(
            "--retries",
            type=Whole(min=0),
            metavar="N",
            help=f"Maximum number of retries per phase [default: {RETRIES}]",
        ),
        click.option(
            "--checkpoint-every",
            type=Whole(min=1),
            metavar="N",
            help="Take a snapshot every N iterations, keep the newest two, and resume from them.",
        ),
        click.option(
            "--stall-s",
            type=Seconds(min=1),
            metavar="SECONDS",
            help="End a launch after this time without progress in the log [default: depends on the time "
            "between log lines]",
        ),
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
    trust_owner: tuple[str, ...] = ()
    how: Way | None = None
    dialect: str = OURS
    trainer: str | None = None

    def load(self, *, is_checked: bool = True) -> AnyRecipe:
        """Return the recipe, translated to the dialect, with the given trainer; raises InputError.

        If it `is_checked`, also raises it for a recipe or profile that others can change, now or read later.
        """
        import shutil

        from caffe_recipes.recipe.model import TensorFlowRecipe
        from caffe_recipes.recipe.source import load_any_recipe, load_tensorflow_run
        from caffe_recipes.render.dialect import translate_whole

        if is_checked:
            self._refuse_others()
        if self.trainer is not None:
            return load_tensorflow_run(self.recipe)
        loaded = translate_whole(load_any_recipe(self.recipe), self.dialect)
        if self.caffe is None:
            return loaded
        if isinstance(loaded, TensorFlowRecipe):
            what = f"{loaded.name} is trained by TensorFlow, not by a Caffe"
            raise InputError("--caffe", what, "omit it, or set `python` in the profile")
        trainer = str(Path(shutil.which(self.caffe) or self.caffe).absolute())
        return loaded.model_copy(update={"trainer": trainer})

    def _refuse_others(self) -> None:
        """Read no recipe or profile for the rest of this command that another user could change.

        The owners that the user named are trusted from then on.
        """
        from caffe_recipes.files.yaml_text import refusing_others
        from caffe_recipes.run.context import find_root, find_trusted
        from caffe_recipes.trust import trusting

        context = click.get_current_context()
        context.with_resource(refusing_others())
        context.with_resource(trusting(find_trusted(self.profile, self.trust_owner)))
        root = self.caffe_root or find_root(None, self.profile)
        if root.is_dir():  # it is reported later if it is not; its owner is trusted
            context.with_resource(trusting((root.stat().st_uid,)))

    def find_source(self, recipe: AnyRecipe) -> Path | None:
        """Return the training data to copy, from `--lmdb-source`; None to use the recipe's own source.

        $LMDB_SOURCE is the path of an LMDB, so recipes without an LMDB ignore it, unlike the option.
        """
        source = click.get_current_context().get_parameter_source("lmdb_source")
        is_typed = source is ParameterSource.COMMANDLINE
        if is_typed and recipe.names_no_data:
            raise InputError(
                "--lmdb-source", "the recipe has `data: as-in-net`, so nothing is staged", "omit it"
            )
        return self.lmdb_source if is_typed or recipe.reads_lmdb else None

    def find_root(self, recipe: AnyRecipe | None, *, is_checked: bool = True) -> Path:
        """Return the Caffe root.

        Raises InputError if it has none of the recipe's files, and, if it `is_checked`, for one that others
        can write in, or if they can change the hostfile.
        """
        from caffe_recipes.run.context import check_own_root, find_root
        from caffe_recipes.run.folders import own_paths

        root = find_root(self.caffe_root, self.profile, recipe, (self.recipe, self.caffe))
        if is_checked:
            typed = filter(None, (self.hostfile,))
            check_own_root(root, [*(own_paths(root, recipe) if recipe else ()), *typed])
        return root

    def options(self, recipe: AnyRecipe, given: RunOptions) -> RunOptions:
        """Return the `given` options of a run with its folders, hosts and machine.

        Raises InputError for an unusable Caffe root.
        """
        return replace(
            given,
            root=self.find_root(recipe),
            hostfile=self.hostfile,
            lmdb_source=self.find_source(recipe),
            how=self.how,
            profile=self.profile,
        )
