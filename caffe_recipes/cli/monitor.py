"""`caffe-recipes status`, `attach`, `logs` and `cancel`: monitor runs and jobs, and stop them.

What only a body needs is imported there, so that `--help` and completion are fast.
"""

from __future__ import annotations

import codecs
import json
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from caffe_recipes.cli import run_options
from caffe_recipes.cli.options import RUN, Seconds, Whole, complete_phase, examples
from caffe_recipes.cli.streams import echo, echo_text
from caffe_recipes.limits import JOB_GRACE_S

if TYPE_CHECKING:
    from caffe_recipes.run.monitor.status import StatusEntry


@click.command(
    epilog=examples(
        "caffe-recipes status",
        "caffe-recipes status digits-local-1 --json",
    )
)
@click.argument("run", type=RUN, required=False)
@run_options.runs_root
@run_options.on
@click.option("--json", "as_json", is_flag=True, help="Print JSON: a list of runs, or the given run.")
def status(run: str | None, caffe_root: str, on: str | None, as_json: bool) -> None:
    """Show the state of all runs and their Slurm jobs, or everything about one run.

    RUN is the folder or name of a run (digits-local-1), or the name or YAML of a recipe, meaning its latest
    run. Nothing is written or locked.
    """
    from rich.text import Text

    from caffe_recipes.run.console import SafeConsole
    from caffe_recipes.run.monitor.follow import StatusOptions
    from caffe_recipes.run.monitor.status import find_status, find_statuses
    from caffe_recipes.run.monitor.status_text import status_as_json, status_table

    options = StatusOptions(caffe_root, on)
    if run is not None:
        _show_one(find_status(run, options), as_json)
        return
    statuses = find_statuses(options)
    if as_json:
        click.echo(json.dumps([status_as_json(each) for each in statuses], indent=1))
    elif not statuses:
        where = f"{on}:{caffe_root}/runs" if on else Path(caffe_root, "runs").absolute()
        start = "start one with `caffe-recipes run NAME` or `caffe-recipes submit NAME`"
        echo(f"no runs in {where}; {start}, or give the folder that contains `runs` with --caffe-root")
    else:
        console = SafeConsole(highlight=False, soft_wrap=True)
        width = console.width if console.is_terminal else None
        for line in status_table(statuses, time.time(), width):
            console.print(Text.assemble(*line))


def _show_one(run_status: StatusEntry, as_json: bool) -> None:
    from caffe_recipes.run.monitor.status_text import status_as_json, status_details

    if as_json:
        click.echo(json.dumps(status_as_json(run_status), indent=1))
        return
    echo(run_status.name)
    details = list(status_details(run_status, time.time()))
    width = max(len(word) for word, _ in details)
    for word, text in details:
        echo(f"  {word:{width}}  {text}")


@click.command(
    epilog=examples(
        "caffe-recipes attach digits-local",
        "caffe-recipes attach mine-3 --on login1 --caffe-root /scratch/me",
    )
)
@click.argument("run", type=RUN)
@run_options.runs_root
@run_options.on
@click.option("--once", is_flag=True, help="Print the current state of the run and exit.")
@click.option("--plain", is_flag=True, help="Print lines on a terminal, too, as where there is none.")
def attach(run: str, caffe_root: str, on: str | None, once: bool, plain: bool) -> None:
    """Watch a run until it ends; Ctrl-C stops watching, not the run.

    On a terminal, a screen shows its phases, loss, learning rate, speed, hosts and alarms.

    RUN is the folder or name of a run (digits-local-1), or the name or YAML of a recipe, meaning its latest
    run. If its job is waiting in Slurm's queue, `attach` shows that, and waits too. Nothing is
    written.
    """
    from caffe_recipes.run.console import Reporter, SafeConsole
    from caffe_recipes.run.monitor.follow import AttachOptions
    from caffe_recipes.run.monitor.follow import attach as attach_run
    from caffe_recipes.run.monitor.screen.live import RunScreen, has_room

    console = SafeConsole(highlight=False, soft_wrap=True)
    screen = RunScreen(console) if has_room(console) and not (plain or once) else None
    if screen is not None:  # closed before the process ends
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        attach_run(run, AttachOptions(caffe_root, on, once), screen or Reporter(console), screen=screen)
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
    help="Keep printing new lines, through all phases, until the run ends.",
)
@click.option(
    "--phase",
    metavar="NAME",
    shell_complete=complete_phase,
    help="Print the log of this phase [default: the phase that is training, or else the last one]",
)
@click.option("--rank", type=Whole(min=0), metavar="N", help="Print only the lines of this rank.")
@click.option("--job", is_flag=True, help="Print the output of the running Slurm job, or of the last one.")
def logs(
    run: str,
    caffe_root: str,
    on: str | None,
    follow: bool,
    phase: str | None,
    rank: int | None,
    job: bool,
) -> None:
    """Print the log of the phase that is training, or else of the last one.

    RUN is the folder or name of a run (digits-local-1), or the name or YAML of a recipe, meaning its latest
    run. Nothing is written or locked.
    """
    from caffe_recipes.run.monitor.logs import LogOptions, show_job_log, show_log

    options = LogOptions(caffe_root, on, follow, phase, rank)
    try:
        show = show_job_log if job else show_log
        show(run, options, _printer(), lambda text: echo(text, err=True))
    except KeyboardInterrupt:
        sys.exit(130)


def _printer() -> Callable[[bytes], None]:
    """Return the function that prints a log: unchanged to a file or pipe, escaped to a terminal."""
    if not sys.stdout.isatty():
        return lambda data: click.echo(data, nl=False)
    decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")
    return lambda data: echo_text(decoder.decode(data).replace("\r\n", "\n"))


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
    help="Grace period for a running job to stop before Slurm kills it.",
)
def cancel(run: str, caffe_root: str, now: bool, grace_s: float) -> None:
    """Stop a run, local or in Slurm, as Ctrl-C does: take a snapshot, and wait until the run has ended.

    Jobs of the run that are still in the queue are cancelled first. To resume, run the same command as
    before.
    """
    from caffe_recipes.run.monitor.cancel import CancelOptions, cancel_run

    try:
        cancel_run(run, CancelOptions(caffe_root, now, grace_s), echo)
    except KeyboardInterrupt:
        echo("stopped waiting; the run is still stopping", err=True)
        sys.exit(130)
