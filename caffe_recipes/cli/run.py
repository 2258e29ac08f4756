"""`caffe-recipes preflight` and `run`: check hosts and files, and train a recipe's chain on them.

What only a body needs is imported there, so that `--help` and completion are fast.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from caffe_recipes.cli import consent, run_options
from caffe_recipes.cli.options import PATH, RECIPE, Seconds, Whole, complete_phase, examples, gather
from caffe_recipes.cli.streams import echo
from caffe_recipes.errors import InputError
from caffe_recipes.limits import STOP_GRACE_S
from caffe_recipes.run.policy import Policy

if TYPE_CHECKING:
    from caffe_recipes.recipe.model import AnyRecipe
    from caffe_recipes.run.context import Observer, RunOptions
    from caffe_recipes.run.preflight.findings import CheckResult


@click.command(
    epilog=examples(
        "caffe-recipes preflight digits-local",
        "caffe-recipes preflight mine.yaml --hostfile hosts --caffe-root $HOME/caffe",
    )
)
@click.argument("recipe", metavar="NAME|FILE.yaml", type=RECIPE)
@run_options.machine
@click.option(
    "--checkpoint-every",
    type=Whole(min=1),
    metavar="N",
    help="Also check the disk space that `run --checkpoint-every N` needs.",
)
@click.option("--new", is_flag=True, help="Check as for `run --new`.")
@click.option("--overwrite", is_flag=True, help="Accept prototxts that differ, as `run --overwrite` does.")
@consent.run_code
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@gather(run_options.GivenRun, "typed")
@gather(Policy, "policy")
@gather("caffe_recipes.run.context:RunOptions", "given")
def preflight(typed: run_options.GivenRun, given: RunOptions, as_json: bool) -> None:
    """Check hosts, files and launcher, as `run` does before training; exit 1 if a check fails.

    Nothing is changed on any host.
    """
    from caffe_recipes.cluster.hosts import open_host
    from caffe_recipes.run.console import Reporter
    from caffe_recipes.run.preflight.checks import preflight_recipe
    from caffe_recipes.run.preflight.findings import describe_outcome

    loaded = typed.load()
    options = typed.options(loaded, given)
    found = preflight_recipe(loaded, options, open_host)
    if as_json:
        click.echo(json.dumps([_as_json(finding) for finding in found], indent=1))
    else:
        Reporter().show_findings(found)
        echo(describe_outcome(found))
    if any(finding.error for finding in found):
        click.get_current_context().exit(1)


def _as_json(finding: CheckResult) -> dict[str, object]:
    return {
        "subject": finding.subject,
        "mark": finding.mark,
        "said": finding.message,
        "hosts": list(finding.hosts),
        "hint": finding.error.hint if finding.error else "",
    }


@click.command(
    epilog=examples(
        "caffe-recipes run digits-local",
        "caffe-recipes run mine.yaml --hostfile hosts --on-failure replace --detach",
        "caffe-recipes run family.yaml --each",
    )
)
@click.argument("recipe", metavar="NAME|FILE.yaml", type=RECIPE)
@run_options.machine
@click.option(
    "--stop-grace-s",
    type=Seconds(min=0),
    metavar="SECONDS",
    envvar="STOP_GRACE_S",
    default=float(STOP_GRACE_S),
    show_default=True,
    show_envvar=True,
    help="Grace period for Caffe to exit when it is stopped early, before it is killed.",
)
@run_options.policy(
    "What to do after a failed launch: stop, retry, or replace a dead host with a spare (a host of the "
    "hostfile that the recipe does not need) and retry [default: stop]"
)
@click.option(
    "--side-by-side",
    is_flag=True,
    help="Train branches at the same time, on the last hosts of the hostfile; needs twice the nodes.",
)
@click.option(
    "--until",
    metavar="PHASE",
    shell_complete=complete_phase,
    help="Stop after this phase; run the same command without --until to continue.",
)
@click.option("--new", is_flag=True, help="Start a new run instead of resuming the latest.")
@click.option("--overwrite", is_flag=True, help="Overwrite prototxts that differ from the recipe's.")
@click.option(
    "--max-requeues",
    type=Whole(min=0),
    metavar="N",
    help="In a Slurm job: requeue the job when SIGUSR1 announces its time limit, at most N times.",
)
@click.option(
    "--detach", is_flag=True, help="Return once training has begun; the run continues in the background."
)
@click.option(
    "--tensorboard",
    metavar="DIR",
    type=PATH,
    callback=lambda context, option, given: given.absolute() if given else None,
    help="At its end, write event files for TensorBoard below this folder, in a folder for each phase.",
)
@click.option("--each", is_flag=True, help="Run every row of a family, one after the other.")
@gather(run_options.GivenRun, "typed")
@gather(Policy, "policy")
@gather("caffe_recipes.run.context:RunOptions", "given")
def run(
    typed: run_options.GivenRun, given: RunOptions, max_requeues: int | None, detach: bool, each: bool
) -> None:
    """Train a recipe's chain: preflight, staging, each phase, evaluation.

    Run the same command again to resume. The state, logs and verified snapshots of each run are kept in
    runs/<recipe>-<n>/, with report.html, a page that shows all of it, and at the end model/, which `classify`
    and `export` take. Ctrl-C asks Caffe for a snapshot and stops; a second Ctrl-C stops at once. SIGUSR1,
    which a batch system sends before a job's time limit, does the same as Ctrl-C.

    On one node, `run` chooses what the recipe leaves open, and prints it: the threads of a rank
    (cluster.omp_num_threads), and with caffe-torch a GPU (solver.solver_mode).

    With --each, the recipe is the file of a family. A row that fails is reported, the next one follows, and
    the exit code is 3; the same command continues with those that are not finished.
    """
    from caffe_recipes.cluster.slurm.this_job import TimeOver, requeue_job, this_job
    from caffe_recipes.run.signals import Interrupted, Interrupts
    from caffe_recipes.run.slurm_job import list_kept

    if each and (detach or max_requeues is not None):
        option = "--detach" if detach else "--max-requeues"
        raise InputError(option, "cannot be combined with --each", "omit it, or run each row by itself")
    consent.allow_code()
    begun_s, kept, options, loaded = time.monotonic(), frozenset[tuple[str, int]](), None, None
    try:
        # By default SIGUSR1 ends a process silently. Other signals may do so until a run exists.
        with Interrupts().raised((signal.SIGUSR1,)):
            if each:
                _run_each(typed, given)
                return
            loaded = typed.load()
            options = typed.options(loaded, given)
            if max_requeues is not None:
                kept = list_kept(options.root, loaded)
            _run(loaded, options, detach=detach)
    except Interrupted as stop:
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # a second one would end us before the job is requeued
        command = "the same command without --new" if given.new else "the same command again"
        echo(f"interrupted by {stop}; run {command} to resume", err=True)
        if max_requeues is None or stop.number != signal.SIGUSR1:
            sys.exit(128 + stop.number)
        now = list_kept(options.root, loaded) if options and loaded else kept
        over = TimeOver(this_job(os.environ), stop.time_s - begun_s, has_kept=bool(now - kept))
        sys.exit(requeue_job(over, max_requeues, lambda line: echo(line, err=True)))


def _run_each(typed: run_options.GivenRun, given: RunOptions) -> None:
    """Run the rows of a family, once all of them could be read."""
    from caffe_recipes.recipe.source import list_family_rows
    from caffe_recipes.run.each import run_each

    rows = list_family_rows(typed.recipe)
    if rows is None:
        raise InputError(typed.recipe, "is not the file of a family", "omit --each, or give FAMILY.yaml")
    each = [replace(typed, recipe=f"{typed.recipe}:{row}") for row in rows]
    recipes = [row.load() for row in each]
    options = {one.name: row.options(one, given) for row, one in zip(each, recipes, strict=True)}
    run_each(recipes, lambda one: _run(one, options[one.name], detach=False), echo)
    echo(f"compare them: caffe-recipes runs {typed.recipe}, or report {typed.recipe} -o report.html")


def _run(recipe: AnyRecipe, options: RunOptions, *, detach: bool) -> None:
    from caffe_recipes.run.console import Reporter
    from caffe_recipes.run.detach import describe_detached
    from caffe_recipes.run.detach import detach as leave_terminal
    from caffe_recipes.run.runner import run_chain

    def train(*observers: Observer) -> None:
        run_chain(recipe, options, Reporter(), observers=observers)

    if not detach:
        train()
        return
    started = leave_terminal(options.root, recipe, train, lambda line, is_failure: echo(line, err=is_failure))
    if started is not None and started.exit_code is not None:
        sys.exit(started.exit_code)
    for line in describe_detached(started, options.root) if started is not None else ():
        echo(line)
