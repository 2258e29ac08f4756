"""`caffe-recipes attach`: watch a run from anywhere."""

from __future__ import annotations

import sys

import click

from caffe_recipes.cli import run_options
from caffe_recipes.cli.options import RUN, examples
from caffe_recipes.cli.streams import echo
from caffe_recipes.run.console import Reporter
from caffe_recipes.run.monitor.follow import AttachOptions
from caffe_recipes.run.monitor.follow import attach as attach_run


@click.command(
    epilog=examples(
        "caffe-recipes attach digits-local",
        "caffe-recipes attach mine-3 --on login1 --caffe-root /scratch/me",
    )
)
@click.argument("run", type=RUN)
@run_options.runs_root
@run_options.on
@click.option("--once", is_flag=True, help="Print where the run stands now, and exit.")
def attach(run: str, caffe_root: str, on: str | None, once: bool) -> None:
    """Watch a run until it is finished. Nothing is written; Ctrl-C stops the watching, not the run.

    RUN is a run's folder or name (digits-local-1), or a recipe's name or YAML, which stands for its latest
    run. While the run's job waits in Slurm's queue, `attach` shows that, and waits too.
    """
    try:
        attach_run(run, AttachOptions(caffe_root, on, once), Reporter())
    except KeyboardInterrupt:
        echo("detached; the run continues", err=True)
        sys.exit(130)
