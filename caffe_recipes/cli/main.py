"""`caffe-recipes`: the group of commands, each imported when it is called, and the one place of errors."""

from __future__ import annotations

import difflib
import errno
import os
import sys
import threading
import traceback
from importlib import import_module
from typing import NamedTuple, cast

import click

from caffe_recipes.errors import CaffeRecipesError, InputError
from caffe_recipes.limits import LIMITS_VARIABLE, raise_limits
from caffe_recipes.wording import printable

# The machine's fault, not that of what the user gave.
_FAILED = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ESTALE}


class _Lazy(NamedTuple):
    module: str
    attribute: str
    help: str


COMMANDS = {
    "recipes": _Lazy("caffe_recipes.cli.recipes", "recipes", "List the recipes that ship."),
    "show": _Lazy("caffe_recipes.cli.recipes", "show", "Show recipes: shape, rates, snapshots, results."),
    "plot": _Lazy("caffe_recipes.cli.plot", "plot", "Draw rates and weight decay over epochs."),
    "lr": _Lazy("caffe_recipes.cli.lr", "lr", "Print a solver's rate at every iteration."),
    "estimate": _Lazy("caffe_recipes.cli.estimate", "estimate", "Estimate a recipe's time and cost."),
    "schema": _Lazy("caffe_recipes.cli.recipes", "schema", "Print the JSON schema of a recipe."),
    "lint": _Lazy("caffe_recipes.cli.lint", "lint", "Say what is wrong with recipes, solvers and nets."),
    "new": _Lazy("caffe_recipes.cli.authoring", "new", "Make a recipe by the authors' rules."),
    "rescale": _Lazy("caffe_recipes.cli.authoring", "rescale", "Make a recipe for another size of another."),
    "adopt": _Lazy(
        "caffe_recipes.cli.authoring", "adopt", "Make a recipe of solvers and nets that there are."
    ),
    "generate": _Lazy("caffe_recipes.cli.generate", "generate", "Write a recipe's solvers, nets and script."),
    "fmt": _Lazy("caffe_recipes.cli.prototxts", "fmt", "Write prototxts in canonical form."),
    "upgrade": _Lazy(
        "caffe_recipes.cli.prototxts", "upgrade", "Turn old nets and solvers into today's form."
    ),
    "diff": _Lazy("caffe_recipes.cli.diff", "diff", "Compare prototxts, recipes, folders or git revisions."),
    "summary": _Lazy("caffe_recipes.cli.summary", "summary", "Count a net's layers, and draw its graph."),
    "data": _Lazy("caffe_recipes.cli.data", "data", "Build and check LMDBs."),
    "preflight": _Lazy(
        "caffe_recipes.cli.preflight", "preflight", "Look for all that would make a run fail."
    ),
    "stage": _Lazy("caffe_recipes.cli.stage", "stage", "Put a recipe's training LMDB on every host."),
    "run": _Lazy("caffe_recipes.cli.run", "run", "Train a recipe's chain, or go on with it."),
    "submit": _Lazy("caffe_recipes.cli.submit", "submit", "Hand a recipe's chain to Slurm."),
    "attach": _Lazy("caffe_recipes.cli.attach", "attach", "Watch a run from anywhere."),
    "status": _Lazy("caffe_recipes.cli.status", "status", "Say where runs stand, and jobs in the queue."),
    "logs": _Lazy("caffe_recipes.cli.logs", "logs", "Print a run's log, and follow it."),
    "ensemble": _Lazy("caffe_recipes.cli.ensemble", "ensemble", "Average the predictions of a run's models."),
    "cancel": _Lazy("caffe_recipes.cli.cancel", "cancel", "Stop a run, or take its jobs back."),
    "tf": _Lazy("caffe_recipes.cli.tf", "tf", "Read what a run of TensorFlow leaves behind."),
}


class _LazyGroup(click.Group):
    """Commands from the table: `--help` imports none of them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        lazy = COMMANDS[cmd_name]
        return cast(click.Command, getattr(import_module(lazy.module), lazy.attribute))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        near = difflib.get_close_matches(args[0], COMMANDS, n=1)
        if args[0] not in COMMANDS and near:
            raise click.UsageError(f"No such command '{args[0]}'; did you mean '{near[0]}'?")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, lazy.help) for name, lazy in COMMANDS.items()])


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="caffe-recipes")
@click.option(
    "--limit",
    "limits",
    metavar="NAME=N",
    multiple=True,
    help="Read larger files: raise a bound of docs/reviewing.md, as yaml-values=100000.",
)
def commands(limits: tuple[str, ...]) -> None:
    """Large-minibatch Caffe training recipes: generate, review, run."""
    try:
        raise_limits(limits)
    except ValueError as error:
        raise InputError("--limit" if limits else LIMITS_VARIABLE, str(error)) from None


def main() -> None:
    """Run the command line; exit 2 for bad input, 1 for a check that fails, 3 for a run that failed."""
    _open_standard_files()
    try:
        exit_code = commands.main(prog_name="caffe-recipes", standalone_mode=False)
        sys.stdout.flush()
        sys.exit(exit_code)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        sys.exit(error.exit_code)
    except click.ClickException as error:
        _fail(_one_line(error), error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(130)
    except CaffeRecipesError as error:
        _fail(str(error), error.exit_code)
    except RuntimeError as error:
        if not _lacks_threads(error):
            raise
        _fail("no more threads can be started; raise the limit on processes (ulimit -u), or the job's", 3)
    except BrokenPipeError:
        _drop_output()
        sys.exit(1)
    except OSError as error:
        what = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        if not error.filename:
            is_output = _raised_in(error) in (click.utils.__file__, __file__)
            what = f"standard output cannot be written to: {error.strerror}" if is_output else what
            _drop_output()
        _fail(what, 3 if error.errno in _FAILED else 2)


def _open_standard_files() -> None:
    """Open what was started closed (`>&-`), so that no other file takes the place of a standard one."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
            setattr(sys, name, os.fdopen(number, "w" if number else "r"))


def _raised_in(error: OSError) -> str:
    """Return the file of the code that met an error: click's, and this, write to standard output only."""
    return traceback.extract_tb(error.__traceback__)[-1].filename


def _lacks_threads(error: RuntimeError) -> bool:
    """Tell whether it was Python's refusal to start a thread, which has no type of its own."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return (last.filename, last.name) == (threading.__file__, "start")


def _drop_output() -> None:
    """Let what cannot be written go: Python would try again at its exit, and make the exit code 120."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _one_line(error: click.ClickException) -> str:
    """Say in one line what click refuses; where that has no hint, also where the usage stands."""
    what = " ".join(error.format_message().split()).rstrip(".")
    context = getattr(error, "ctx", None)
    return f"{what}; see {context.command_path} --help" if context and "; " not in what else what


def _fail(text: str, exit_code: int) -> None:
    """Say on one line what went wrong."""
    click.echo(f"Error: {printable(text)}", err=True)
    sys.exit(exit_code)
