"""`caffe-recipes status`, `attach`, `logs` and `cancel`: look at runs and jobs, and stop them."""

from __future__ import annotations

import codecs
import json
import sys
import time
from collections.abc import Callable

import click
from rich.text import Text

from caffe_recipes.cli import run_options
from caffe_recipes.cli.options import RUN, Seconds, Whole, complete_phase, examples
from caffe_recipes.cli.streams import echo
from caffe_recipes.run.console import Reporter, SafeConsole
from caffe_recipes.run.monitor.cancel import JOB_GRACE_S, CancelOptions, cancel_run
from caffe_recipes.run.monitor.follow import AttachOptions
from caffe_recipes.run.monitor.follow import attach as attach_run
from caffe_recipes.run.monitor.logs import LogOptions, show_job_log, show_log
from caffe_recipes.run.monitor.status import (
    Standing,
    StatusOptions,
    detail_standing,
    find_standing,
    find_standings,
    standing_as_json,
    table_of_standings,
)
from caffe_recipes.wording import printable


@click.command(
    epilog=examples(
        "caffe-recipes status",
        "caffe-recipes status digits-local-1 --json",
    )
)
@click.argument("run", type=RUN, required=False)
@run_options.runs_root
@run_options.on
@click.option("--json", "as_json", is_flag=True, help="Print JSON: a list of runs, or the one that is named.")
def status(run: str | None, caffe_root: str, on: str | None, as_json: bool) -> None:
    """Show where all runs and their Slurm jobs stand, or everything about one run.

    RUN is a run's folder or name (digits-local-1), or a recipe's name or YAML, which stands for its latest
    run. Nothing is written or locked.
    """
    options = StatusOptions(caffe_root, on)
    if run is not None:
        _show_one(find_standing(run, options), as_json)
        return
    standings = find_standings(options)
    if as_json:
        click.echo(json.dumps([standing_as_json(each) for each in standings], indent=1))
    elif not standings:
        echo("no run: `caffe-recipes run NAME` or `caffe-recipes submit NAME` starts one")
    else:
        console = SafeConsole(highlight=False, soft_wrap=True)
        width = console.width if console.is_terminal else None
        for line in table_of_standings(standings, time.time(), width):
            console.print(Text.assemble(*line))


def _show_one(standing: Standing, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(standing_as_json(standing), indent=1))
        return
    echo(standing.name)
    details = list(detail_standing(standing, time.time()))
    width = max(len(word) for word, _ in details)
    for word, text in details:
        echo(f"  {word:{width}}  {printable(text)}")


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
