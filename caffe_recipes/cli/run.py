"""`caffe-recipes run`: train a recipe's chain on the hosts of a hostfile, or go on with it."""

from __future__ import annotations

import os
import signal
import sys
import time
from dataclasses import dataclass, replace

import click

from caffe_recipes.cli import consent, run_options
from caffe_recipes.cli.options import RECIPE, Seconds, Whole, complete_phase, examples, gather
from caffe_recipes.cli.streams import echo
from caffe_recipes.recipe.model import Recipe
from caffe_recipes.render.scripts import STOP_GRACE_S
from caffe_recipes.run.console import Reporter
from caffe_recipes.run.context import ON_FAILURE, RETRIES, Policy, RunOptions
from caffe_recipes.run.detach import describe_detached
from caffe_recipes.run.detach import detach as leave_terminal
from caffe_recipes.run.runner import run_chain
from caffe_recipes.run.signals import Interrupted, Interrupts
from caffe_recipes.run.slurm_job import TimeOver, list_kept, requeue_job, this_job


@dataclass(frozen=True)
class GivenChain:
    """How the chain is carried on, as it was typed: fields of RunOptions."""

    stop_grace_s: float
    side_by_side: bool
    until: str | None
    new: bool
    overwrite: bool


@click.command(
    epilog=examples(
        "caffe-recipes run digits-local",
        "caffe-recipes run mine.yaml --hostfile hosts --on-failure replace --detach",
    )
)
@click.argument("recipe", metavar="NAME|FILE.yaml", type=RECIPE)
@run_options.hostfile
@run_options.profile
@run_options.caffe
@run_options.caffe_root
@run_options.lmdb_source
@run_options.how
@run_options.dialect
@click.option(
    "--stop-grace-s",
    type=Seconds(min=0),
    metavar="SECONDS",
    envvar="STOP_GRACE_S",
    default=float(STOP_GRACE_S),
    show_default=True,
    show_envvar=True,
    help="How long Caffe may take to exit where it is stopped before its schedule's end; then it is killed.",
)
@click.option(
    "--on-failure",
    type=click.Choice(ON_FAILURE),
    default="stop",
    show_default=True,
    help="After a failed launch: stop, retry, or replace a dead host with a spare (a further line of the "
    "hostfile) and retry.",
)
@click.option(
    "--retries",
    type=Whole(min=0),
    metavar="N",
    default=RETRIES,
    show_default=True,
    help="Retries of each phase, at most.",
)
@click.option(
    "--checkpoint-every",
    type=Whole(min=1),
    metavar="N",
    help="Snapshot every N iterations, keep the newest two here, and resume from them.",
)
@click.option(
    "--stall-s",
    type=Seconds(min=1),
    metavar="SECONDS",
    help="Give up a launch after this long without progress in the log [default: by the log's own pace]",
)
@click.option(
    "--side-by-side",
    is_flag=True,
    help="Train branches at the same time, on the last hosts of the hostfile: twice the recipe's nodes.",
)
@click.option(
    "--until",
    metavar="PHASE",
    shell_complete=complete_phase,
    help="Stop after this phase; run again to resume.",
)
@click.option("--new", is_flag=True, help="Start a new run instead of resuming the latest.")
@click.option("--overwrite", is_flag=True, help="Overwrite prototxts that differ from the recipe.")
@click.option(
    "--max-requeues",
    type=Whole(min=0),
    metavar="N",
    help="In a Slurm job: when SIGUSR1 announces its time limit, requeue it, at most N times.",
)
@click.option(
    "--detach", is_flag=True, help="Return once it trains; the run continues without this terminal."
)
@gather(run_options.GivenRun, "typed")
@gather(Policy, "policy")
@gather(GivenChain, "chain")
def run(
    typed: run_options.GivenRun, policy: Policy, chain: GivenChain, max_requeues: int | None, detach: bool
) -> None:
    """Train a recipe's chain: preflight, stage, each phase, evaluate. Run it again to resume.

    State, logs and verified snapshots of each run are kept in runs/<recipe>-<n>/. Ctrl-C asks Caffe for a
    snapshot and stops; a second one stops at once. SIGUSR1, which a batch system sends before a job's time
    limit, does the same.
    """
    consent.allow_code()
    begun_s, kept, options, loaded = time.monotonic(), frozenset[tuple[str, int]](), None, None
    try:
        # By default SIGUSR1 ends a process without a word. The others do, too, and may until there is a run.
        with Interrupts().raised((signal.SIGUSR1,)):
            loaded = typed.load()
            options = replace(typed.options(loaded), policy=policy, **vars(chain))
            if max_requeues is not None:
                kept = list_kept(options.root, loaded.name)
            _run(loaded, options, detach=detach)
    except Interrupted as stop:
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # once more would end us, and queue nothing again
        echo(f"interrupted by {stop}; run the same command again to resume", err=True)
        if max_requeues is None or stop.number != signal.SIGUSR1:
            sys.exit(128 + stop.number)
        now = list_kept(options.root, loaded.name) if options and loaded else kept
        over = TimeOver(this_job(os.environ), stop.time_s - begun_s, has_kept=bool(now - kept))
        sys.exit(requeue_job(over, max_requeues, lambda line: echo(line, err=True)))


def _run(recipe: Recipe, options: RunOptions, *, detach: bool) -> None:
    started = leave_terminal(options.root, recipe, _relay) if detach else None
    if started is None:
        run_chain(recipe, options, Reporter())
        return
    if started.exit_code is not None:
        sys.exit(started.exit_code)
    for line in describe_detached(started, options.root):
        echo(line)


def _relay(line: str) -> None:
    """Print what a detached run says; its last word on a failure as an error."""
    echo(line, err=line.startswith(("Error: ", "interrupted by ")))
