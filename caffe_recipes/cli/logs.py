"""`caffe-recipes logs`: print a run's log, and follow it."""

from __future__ import annotations

import codecs
import sys
from collections.abc import Callable

import click

from caffe_recipes.cli import run_options
from caffe_recipes.cli.options import RUN, Whole, complete_phase, examples
from caffe_recipes.cli.streams import echo
from caffe_recipes.run.monitor.logs import LogOptions, show_job_log, show_log


@click.command(
    epilog=examples(
        "caffe-recipes logs digits-local -f",
        "caffe-recipes logs digits-local-2 --phase cyc1 --rank 0",
    )
)
@click.argument("run", type=RUN)
@run_options.runs_root
@run_options.on
@click.option(
    "-f",
    "--follow",
    is_flag=True,
    help="Print new lines as they come, through all phases, until the run ends.",
)
@click.option(
    "--phase",
    metavar="NAME",
    shell_complete=complete_phase,
    help="The log of this phase [default: the one that trains, or trained last]",
)
@click.option("--rank", type=Whole(min=0), metavar="N", help="Print the lines of this rank only.")
@click.option("--job", is_flag=True, help="Print the output of the Slurm job that runs, or ran last.")
def logs(
    run: str,
    caffe_root: str,
    on: str | None,
    follow: bool,
    phase: str | None,
    rank: int | None,
    job: bool,
) -> None:
    """Print the log of the phase that trains, or trained last.

    RUN is a run's folder or name (digits-local-1), or a recipe's name or YAML, which stands for its latest
    run. Nothing is written or locked.
    """
    options = LogOptions(caffe_root, on, follow, phase, rank)
    try:
        show = show_job_log if job else show_log
        show(run, options, _printer(), lambda text: echo(text, err=True))
    except KeyboardInterrupt:
        sys.exit(130)


def _printer() -> Callable[[bytes], None]:
    """Return what prints a log: byte for byte into a file or pipe, on a terminal what is printable."""
    if not sys.stdout.isatty():
        return lambda data: click.echo(data, nl=False)
    decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")
    return lambda data: echo(decoder.decode(data).replace("\r\n", "\n"), nl=False)
