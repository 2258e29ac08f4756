"""`caffe-recipes cancel`: stop a run, or cancel its jobs."""

from __future__ import annotations

import sys

import click

from caffe_recipes.cli import run_options
from caffe_recipes.cli.options import RUN, Seconds, examples
from caffe_recipes.cli.streams import echo
from caffe_recipes.run.monitor.cancel import JOB_GRACE_S, CancelOptions, cancel_run


@click.command(
    epilog=examples(
        "caffe-recipes cancel digits-local",
        "caffe-recipes cancel stampede2-64n-72ep --grace-s 600",
    )
)
@click.argument("run", type=RUN)
@run_options.runs_root
@click.option("--now", is_flag=True, help="Stop at once, without a snapshot.")
@click.option(
    "--grace-s",
    type=Seconds(min=0),
    metavar="SECONDS",
    default=JOB_GRACE_S,
    show_default=True,
    help="How long a running job may take to stop; after that Slurm kills it.",
)
def cancel(run: str, caffe_root: str, now: bool, grace_s: float) -> None:
    """Stop a run here or in Slurm as Ctrl-C does, with a snapshot, and wait until it has ended.

    Its jobs that are still in the queue are cancelled first. Run the same command as before to resume.
    """
    try:
        cancel_run(run, CancelOptions(caffe_root, now, grace_s), echo)
    except KeyboardInterrupt:
        echo("no longer waiting; the run was asked to stop", err=True)
        sys.exit(130)
