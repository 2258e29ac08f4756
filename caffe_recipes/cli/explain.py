"""`caffe-recipes explain`: say what the failures in a log mean."""

from __future__ import annotations

from pathlib import Path

import click

from caffe_recipes.cli.options import PATH, examples
from caffe_recipes.cli.streams import echo
from caffe_recipes.wording import describe_count


@click.command(epilog=examples("caffe-recipes explain train.log", "caffe-recipes explain slurm-*.out"))
@click.argument("logs", metavar="LOG...", nargs=-1, required=True, type=PATH)
def explain(logs: tuple[Path, ...]) -> None:
    """Explain the failures in logs of Caffe, TensorFlow, MLSL, MPI, ssh and Slurm.

    Beneath each line that is known: its cause, what to do, and where that is known from. A guess is called
    one. Logs of several ranks, as of `mpiexec -l` and `srun --label`, are also compared by rank.
    """
    from caffe_recipes.run.failures.explain import explain_log

    explained = [(log, explain_log(log)) for log in logs]
    for log, result in explained:
        for found in result.found:
            echo(f"{log}:{found.number}: {found.text}" if found.number else f"{log}: all ranks together")
            if more := found.describe_more():
                echo(f"  {more}")
            for line in found.diagnosis.as_lines():
                echo(line)
        if not result.found:
            unknown = f"; this fatal line is not known here: {result.fatal}" if result.fatal else ""
            echo(f"{log}: no known failure in {describe_count(result.lines, 'line')}{unknown}")
