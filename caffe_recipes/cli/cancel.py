"""`caffe-recipes cancel`: stop a run in order, or take its jobs back."""

from __future__ import annotations

import sys

import click

from caffe_recipes.cli import run_options
from caffe_recipes.cli.options import RUN, Seconds
from caffe_recipes.cli.streams import echo
from caffe_recipes.run.monitor.cancel import JOB_GRACE_S, CancelOptions, cancel_run


@click.command()
@click.argument("run", type=RUN)
@run_options.runs_root
@click.option("--now", is_flag=True, help="Leave no time for a snapshot.")
@click.option(
    "--grace-s",
    type=Seconds(min=0),
    metavar="SECONDS",
    default=JOB_GRACE_S,
    show_default=True,
    help="For a job that runs to end in; then Slurm ends it.",
)
def cancel(run: str, caffe_root: str, now: bool, grace_s: float) -> None:
    """Stop what carries a run on, here or in Slurm, as Ctrl-C does, and wait for its end.

    Jobs that wait are taken back first. The same command as before goes on from the snapshot.
    """
    try:
        cancel_run(run, CancelOptions(caffe_root, now, grace_s), echo)
    except KeyboardInterrupt:
        echo("no longer waiting; it was told to end", err=True)
        sys.exit(130)
