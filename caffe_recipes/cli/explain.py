"""`caffe-recipes explain`: say what the failures in a log mean."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from caffe_recipes.cli.options import PATH, examples
from caffe_recipes.cli.streams import echo
from caffe_recipes.errors import InputError
from caffe_recipes.wording import describe_count

if TYPE_CHECKING:
    from caffe_recipes.run.failures.explain import ExplainedLog


@click.command(epilog=examples("caffe-recipes explain train.log", "caffe-recipes explain slurm-*.out"))
@click.argument("logs", metavar="LOG...", nargs=-1, required=True, type=PATH)
@click.pass_context
def explain(ctx: click.Context, logs: tuple[Path, ...]) -> None:
    """Explain the failures in logs of Caffe, TensorFlow, MLSL, MPI, ssh and Slurm.

    Beneath each line that is known: its cause, what to do, and where that is known from. A guess is called
    one. Logs of several ranks, as of `mpiexec -l` and `srun --label`, are also compared by rank. A file
    that cannot be explained is reported on standard error, and the exit code is then 2.
    """
    from caffe_recipes.run.failures.explain import explain_log

    exit_code = 0
    for log in logs:
        try:
            _print(log, explain_log(log))
        except InputError as error:
            echo(f"Error: {error}", err=True)
            exit_code = error.exit_code
    ctx.exit(exit_code)


def _print(log: Path, explained: ExplainedLog) -> None:
    for found in explained.found:
        echo(f"{log}:{found.number}: {found.text}" if found.number else f"{log}: all ranks together")
        if more := found.describe_more():
            echo(f"  {more}")
        for line in found.diagnosis.as_lines():
            echo(line)
    if not explained.found:
        unknown = f"; this fatal line is not known here: {explained.fatal}" if explained.fatal else ""
        echo(f"{log}: no known failure in {describe_count(explained.lines, 'line')}{unknown}")
