"""`caffe-recipes attach`: watch a run from anywhere."""

from __future__ import annotations

import sys

import click

from caffe_recipes.cli import run_options
from caffe_recipes.cli.options import RUN
from caffe_recipes.cli.streams import echo
from caffe_recipes.run.console import Reporter
from caffe_recipes.run.monitor.follow import AttachOptions
from caffe_recipes.run.monitor.follow import attach as attach_run


@click.command()
@click.argument("run", type=RUN)
@run_options.runs_root
@run_options.on
@click.option("--once", is_flag=True, help="Say where the run stands, and end.")
def attach(run: str, caffe_root: str, on: str | None, once: bool) -> None:
    """Watch a run until it is finished; nothing is written, and Ctrl-C stops nothing but the watching.

    RUN is a run's folder, its name (`digits-local-1`), or a recipe's name or YAML, whose latest run is meant.
    While a job of its recipe waits in Slurm's queue, that is told, and the run waited for.
    """
    try:
        attach_run(run, AttachOptions(caffe_root, on, once), Reporter())
    except KeyboardInterrupt:
        echo("detached; the run goes on", err=True)
        sys.exit(130)
