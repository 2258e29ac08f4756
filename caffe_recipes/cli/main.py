"""`caffe-recipes`: the group of commands, which are imported when called; prints all errors."""

from __future__ import annotations

import atexit
import errno
import gc
import re
import sys
import threading
import traceback
from importlib import import_module
from typing import NamedTuple, cast

import click

from caffe_recipes.cli.options import examples
from caffe_recipes.errors import CaffeRecipesError, InputError, ReaderGone, escaped_error, is_host_full
from caffe_recipes.limits import LIMITS_VARIABLE, close_umask, raise_limits
from caffe_recipes.standard_streams import drop_output, open_standard_files, print_error, unwritable
from caffe_recipes.wording import did_you_mean

# Errors of the machine, not of the input.
_FAILED = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ESTALE}
_PRINTERS = (click.utils.__file__, "/rich/console.py", __file__)


class _Lazy(NamedTuple):
    """A command's module in this package, where it has its own name, and its help."""

    module: str
    help: str


# The commands by task, in the order in which they are listed.
TASKS = {
    "Recipes": {
        "recipes": _Lazy("recipes", "List the shipped recipes."),
        "show": _Lazy("recipes", "Show a recipe on one page."),
        "new": _Lazy("authoring", "Write a new recipe that follows the paper's rules."),
        "rescale": _Lazy("authoring", "Rescale a recipe's node count, batch size or epochs."),
        "adopt": _Lazy("authoring", "Turn existing solvers and nets into a recipe."),
        "generate": _Lazy("generate", "Write a recipe's solvers, nets and job scripts."),
        "estimate": _Lazy("estimate", "Estimate a recipe's time and cost."),
        "schema": _Lazy("recipes", "Print the JSON schema of a recipe."),
    },
    "Review": {
        "lint": _Lazy("lint", "Check recipes, solvers and nets for mistakes."),
        "diff": _Lazy("diff", "Compare prototxts, recipes, folders or git revisions."),
        "summary": _Lazy("summary", "Print a net layer by layer, and draw its graph."),
        "plot": _Lazy("plot", "Plot schedules, or the curves of runs and logs."),
        "parse-log": _Lazy("parse_log", "Print the losses and accuracies in training logs."),
        "lr": _Lazy("lr", "Print a solver's learning rate at each iteration."),
        "fmt": _Lazy("prototxts", "Format prototxts."),
        "upgrade": _Lazy("prototxts", "Upgrade old nets and solvers to the current format."),
    },
    "Models": {
        "deploy": _Lazy("deploy", "Derive the net that predicts from the net that trains."),
        "classify": _Lazy("classify", "Name what images show, with a trained model."),
        "export": _Lazy("export", "Write a trained model as ONNX or safetensors, checked."),
    },
    "Run": {
        "preflight": _Lazy("run", "Check hosts, files and launcher before a run."),
        "stage": _Lazy("stage", "Copy a recipe's training data to every host."),
        "run": _Lazy("run", "Train a recipe's chain, or resume it."),
        "ensemble": _Lazy("ensemble", "Average the predictions of a run's models."),
    },
    "Slurm": {
        "submit": _Lazy("submit", "Submit a recipe's chain to Slurm."),
    },
    "Watch and stop": {
        "status": _Lazy("monitor", "Show the status of runs and their jobs."),
        "runs": _Lazy("runs", "Compare runs and their recipes."),
        "attach": _Lazy("monitor", "Watch a run until it ends."),
        "logs": _Lazy("monitor", "Print a run's log, and follow it."),
        "report": _Lazy("report", "Write the report of runs, as one HTML page."),
        "explain": _Lazy("explain", "Explain the failures in any log."),
        "cancel": _Lazy("monitor", "Stop a run, local or in Slurm."),
    },
    "Data": {
        "data": _Lazy("data", "Build and check LMDBs and TFRecords."),
        "tf": _Lazy("tf", "Read the logs of TensorFlow and Horovod runs."),
    },
    "Setup": {
        "doctor": _Lazy("setup", "Check what is installed on this machine."),
        "profiles": _Lazy("setup", "List the cluster profiles, or print one."),
        "completion": _Lazy("setup", "Print a shell completion script."),
    },
}
COMMANDS = {name: lazy for commands_of in TASKS.values() for name, lazy in commands_of.items()}


class _LazyGroup(click.Group):
    """A group of the commands in TASKS; `--help` imports none of them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = import_module(f"{__package__}.{COMMANDS[cmd_name].module}")
        return cast(click.Command, getattr(module, cmd_name.replace("-", "_")))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        near = did_you_mean(args[0], COMMANDS, cutoff=0.7)
        if args[0] not in COMMANDS and near:
            raise click.UsageError(f"No such command '{args[0]}'; {near}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, COMMANDS))  # one column for all sections
        for task, lazies in TASKS.items():
            with formatter.section(task):
                formatter.write_dl([(f"{name:{width}}", lazy.help) for name, lazy in lazies.items()])


@click.group(
    cls=_LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=examples("caffe-recipes run digits-local", "caffe-recipes show stampede2-64n-72ep"),
)
@click.version_option(package_name="caffe-recipes")
@click.option(
    "--limit",
    "limits",
    metavar="NAME=N",
    multiple=True,
    help="Raise a limit on input, e.g. yaml-values=100000 (see docs/reviewing.md); may be repeated.",
)
def commands(limits: tuple[str, ...]) -> None:
    """Describe a multi-phase Caffe training once, in YAML; get its solvers, nets, job scripts, and a run that
    survives crashes.
    """
    try:
        raise_limits(limits)
    except ValueError as error:
        raise InputError("--limit" if limits else LIMITS_VARIABLE, str(error)) from None


def main() -> None:
    """Exit with 2 for bad input, 1 for a failed check, 3 for a failed run, 141 if the reader has ended."""
    # What modules make stays. The garbage collector would visit it again and again while they are imported,
    # and once more at exit: each time a tenth of a command's time.
    gc.set_threshold(20_000)
    atexit.register(gc.freeze)
    open_standard_files()
    close_umask()
    output = sys.stdout
    try:
        exit_code = commands.main(prog_name="caffe-recipes", standalone_mode=False)
        sys.stdout.flush()
        sys.exit(exit_code)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        sys.exit(error.exit_code)
    except click.ClickException as error:
        _fail(_one_line(error), error.exit_code)
    except (click.Abort, KeyboardInterrupt) as error:
        if isinstance(
            error.__cause__, EOFError
        ):  # for click it is a Ctrl-D; none of ours may end so silently
            _fail(str(escaped_error("", error.__cause__)), 3)
        sys.exit(130)
    except CaffeRecipesError as error:
        _fail(str(error), error.exit_code)
    except (RuntimeError, MemoryError) as error:
        if is_host_full(error):
            _fail(str(escaped_error("", error)), 3)
        if not isinstance(error, RuntimeError) or not _lacks_threads(error):
            raise
        _fail("cannot start more threads; raise `ulimit -u`, or the job's limit on processes", 3)
    except BrokenPipeError:
        drop_output(output)
        sys.exit(ReaderGone.exit_code)
    except SystemExit as end:  # click itself exits with 1 after a closed pipe, and wraps the output
        sys.exit(end.code if sys.stdout is output else ReaderGone.exit_code)
    except OSError as error:
        if error.filename:
            _fail(f"{error.filename}: {error.strerror}", 3 if error.errno in _FAILED else 2)
        drop_output(output)
        if _raised_in(error).endswith(_PRINTERS):  # not a failed run: a run survives this
            _fail(str(unwritable("standard output", error)), 2)
        _fail(str(error), 3 if error.errno in _FAILED else 2)


def _raised_in(error: OSError) -> str:
    """Return the source file that raised an error: those of `_PRINTERS` write only to standard output."""
    return traceback.extract_tb(error.__traceback__)[-1].filename


def _lacks_threads(error: RuntimeError) -> bool:
    """Return whether Python could not start a thread; this error has no specific type."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return (last.filename, last.name) == (threading.__file__, "start")


def _one_line(error: click.ClickException) -> str:
    """Return click's error in one line, with a reference to --help if it has no hint."""
    what = " ".join(error.format_message().split()).rstrip(".")
    what = re.sub(r"\. \(?Did you mean (.*?)\)?$", r"; did you mean \1", what)
    context = getattr(error, "ctx", None)
    has_hint = "; " in what or what.endswith("?")
    return f"{what}; see {context.command_path} --help" if context and not has_hint else what


def _fail(text: str, exit_code: int) -> None:
    """Print an error in one line, and exit."""
    print_error(f"Error: {text}")
    sys.exit(exit_code)
