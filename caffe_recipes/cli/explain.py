"""`caffe-recipes explain`: say what the failures in a log mean."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from caffe_recipes.cli import run_options
from caffe_recipes.cli.options import PATH_TEXT, examples
from caffe_recipes.cli.streams import echo, reporting
from caffe_recipes.errors import InputError
from caffe_recipes.wording import describe_count

if TYPE_CHECKING:
    from caffe_recipes.run.failures.explain import ExplainedLog


@click.command(
    epilog=examples(
        "caffe-recipes explain train.log",
        "caffe-recipes explain digits-local-1",
        "caffe-recipes explain slurm-*.out --json",
    )
)
@click.argument("names", metavar="LOG|RUN...", nargs=-1, required=True, type=PATH_TEXT)
@click.option("--json", "as_json", is_flag=True, help="Print JSON: an object for each log, by its path.")
@run_options.runs_root
@click.pass_context
def explain(ctx: click.Context, names: tuple[str, ...], as_json: bool, caffe_root: str) -> None:
    """Explain the failures in logs of Caffe, TensorFlow, MLSL, MPI, ssh and Slurm.

    Beneath each line that is known: its cause, what to do, and where that is known from. A guess is called
    one. Logs of several ranks, as of `mpiexec -l` and `srun --label`, are also compared by rank. A file that
    cannot be explained is reported on standard error, and the exit code is then 2. RUN is the folder or name
    of a run (digits-local-1), for the logs of its launches. `-` is standard input; a log may be compressed by
    gzip.
    """
    from caffe_recipes.run.failures.explain import explain_log
    from caffe_recipes.run.monitor.curves import find_run_logs, is_run

    failures, data, logs = list[InputError](), dict[str, object](), list[Path]()
    for name in names:
        with reporting(failures):
            logs += find_run_logs(name, caffe_root) if is_run(name, caffe_root) else [Path(name)]
    for log in logs:
        with reporting(failures):
            explained = explain_log(log)
            data[str(log)] = explained.as_json()
            if not as_json:
                _print(log, explained)
    if as_json:
        click.echo(json.dumps(data, indent=1))
    ctx.exit(InputError.exit_code if failures else 0)


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
