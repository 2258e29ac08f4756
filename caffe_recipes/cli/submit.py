"""`caffe-recipes submit`: submit a recipe's chain to Slurm."""

from __future__ import annotations

import math
import shlex
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import click

from caffe_recipes.cli import consent, run_options
from caffe_recipes.cli.options import PATH, RECIPE, Whole, examples, gather
from caffe_recipes.cli.streams import echo, echo_rows
from caffe_recipes.cluster.hosts import LocalHost
from caffe_recipes.cluster.profiles import load_profile
from caffe_recipes.cluster.slurm.times import parse_limit
from caffe_recipes.errors import InputError
from caffe_recipes.recipe.model import AnyRecipe
from caffe_recipes.recipe.source import load_any_recipe
from caffe_recipes.run.folders import root_words
from caffe_recipes.run.policy import OnFailure
from caffe_recipes.run.submit.planned_jobs import SubmitOptions
from caffe_recipes.run.submit.submit import SubmitEnv, describe_submission, submit_chain


def _read_time(context: click.Context, option: click.Parameter, text: str | None) -> float | None:
    """Return a time limit in seconds, from sbatch's formats; raises InputError, also for `unlimited`."""
    if text is None:
        return None
    seconds = parse_limit(text, "--time")
    if seconds is None or math.isinf(seconds) or seconds == 0:
        raise InputError("--time", f"{text[:80]!r} is not a time limit", "write e.g. 90 or 1-12:00:00")
    return seconds


def _find_root(typed: run_options.GivenRun, recipe: AnyRecipe, *, dry_run: bool) -> tuple[Path, str]:
    """Return the Caffe root and a note; for a dry run the root need not exist on this machine."""
    try:
        return typed.find_root(recipe, is_checked=False), ""
    except InputError:
        if not dry_run:
            raise
        known = load_profile(typed.profile).caffe_root if typed.profile else None
        note = "" if known else "using the current folder as the Caffe root (--caffe-root)"
        return Path(known or "."), note


@dataclass(frozen=True)
class _GivenPolicy:
    """The options of a Policy that the user has typed, which are passed on to `run` in the job."""

    on_failure: OnFailure | None = None
    retries: int | None = None
    checkpoint_every: int | None = None
    stall_s: float | None = None


def _run_arguments(
    policy: _GivenPolicy, given: run_options.GivenRun, recipe: AnyRecipe, spares: int
) -> tuple[str, ...]:
    """Return the arguments of `run` in the job; with spares the default of --on-failure is replace."""
    options = {
        "how": given.how,
        **asdict(policy),
        "on_failure": policy.on_failure or ("replace" if spares else None),
        "caffe": recipe.trainer if given.caffe else None,
        "trainer": given.trainer,
        # For an LMDB, the job gets $LMDB_SOURCE instead.
        "lmdb_source": None if recipe.reads_lmdb else given.find_source(recipe),
    }
    typed = {f"--{name.replace('_', '-')}": value for name, value in options.items() if value is not None}
    trusted = [word for name in given.trust_owner for word in ("--trust-owner", name)]
    return (*(word for name, value in typed.items() for word in (name, str(value))), *trusted)


@click.command(
    epilog=examples(
        "caffe-recipes submit mine.yaml --profile cluster.yaml --dry-run",
        "caffe-recipes submit mine.yaml --profile cluster.yaml --split --spares 2",
    )
)
@click.argument("recipe", metavar="NAME|FILE.yaml", type=RECIPE)
@run_options.profile
@run_options.caffe
@run_options.caffe_root
@run_options.train_dialect
@run_options.trainer
@click.option("--dry-run", is_flag=True, help="Print what would be submitted, and submit nothing.")
@click.option("--show-scripts", is_flag=True, help="With --dry-run: also print the job scripts.")
@consent.run_code
@click.option("--split", is_flag=True, help="Submit one job per phase, each depending on the previous one.")
@click.option(
    "--time",
    "time_s",
    metavar="LIMIT",
    envvar="SBATCH_TIMELIMIT",
    callback=_read_time,
    help="Time limit of each job, in sbatch's formats: minutes, or days-hours:minutes:seconds "
    "[default: estimated from the images/s that the recipe's source reports, else the partition's]",
)
@click.option(
    "--partition",
    metavar="NAME",
    envvar="SBATCH_PARTITION",
    help="Partition [default: the profile's, or its only partition that fits the job]",
)
@click.option(
    "--account", metavar="NAME", envvar="SBATCH_ACCOUNT", help="Account to charge [default: the profile's]"
)
@click.option(
    "--qos", metavar="NAME", envvar="SBATCH_QOS", help="Quality of service [default: the profile's]"
)
@click.option(
    "--constraint",
    metavar="FEATURES",
    envvar="SBATCH_CONSTRAINT",
    help="Features required of the nodes [default: the profile's]",
)
@click.option(
    "--after",
    type=Whole(min=1),
    metavar="JOB",
    help="Start only after this job has succeeded; give its job id.",
)
@click.option(
    "--mail",
    "mail_user",
    metavar="ADDRESS",
    help="Address to which Slurm sends mail when a job ends, fails or is requeued.",
)
@click.option(
    "--spares",
    type=Whole(min=0),
    metavar="N",
    default=0,
    help="Request N additional nodes, to replace dead ones.",
)
@click.option("--include-failed", is_flag=True, help="Also use nodes that failed before.")
@run_options.lmdb_source
@run_options.trust_owner
@run_options.how
@run_options.policy(
    "What to do after a failed launch: stop, retry, or replace a dead host with a spare and retry "
    "[default: replace if --spares is given, else stop]"
)
@click.option(
    "--sbatch-option",
    "sbatch_options",
    metavar="OPTION",
    multiple=True,
    help="Another option for sbatch, e.g. --sbatch-option=--reservation=course; may be repeated.",
)
@click.option(
    "--out",
    "jobs_in",
    type=PATH,
    metavar="DIR",
    help="The folder that contains jobs/, as for `generate` [default: the current folder, else the Caffe "
    "root]",
)
@gather(run_options.GivenRun, "typed")
@gather(_GivenPolicy, "policy")
@gather(SubmitOptions, "options")
def submit(
    typed: run_options.GivenRun,
    policy: _GivenPolicy,
    options: SubmitOptions,
    jobs_in: Path | None,
    dry_run: bool,
    show_scripts: bool,
) -> None:
    """Submit a recipe's chain to Slurm as one job, or with --split as one job per phase.

    A job that is requeued resumes where it stopped. A job that is already submitted is not submitted again.
    The scripts in jobs/ must match what `generate` writes. The environment variables SBATCH_PARTITION,
    SBATCH_ACCOUNT, SBATCH_QOS, SBATCH_CONSTRAINT and SBATCH_TIMELIMIT set the options of the same name.
    """
    if not dry_run:
        consent.allow_code()
    loaded = typed.load(is_checked=not dry_run)
    root, note = _find_root(typed, loaded, dry_run=dry_run)
    source = typed.find_source(loaded)
    name = load_any_recipe(typed.recipe).name if typed.trainer else loaded.name
    is_here = Path("jobs", name).is_dir() or not root.is_dir()
    options = replace(
        options,
        given=typed.recipe,
        root=root,
        out=jobs_in or (Path() if is_here else root),
        profile=typed.profile,
        arguments=_run_arguments(policy, typed, loaded, options.spares),
        environment={"LMDB_SOURCE": str(source)} if source and loaded.reads_lmdb else {},
    )
    if dry_run:
        echo_rows(describe_submission(loaded, options, note, with_scripts=show_scripts))  # to be copied
        return
    submit_chain(loaded, options, echo, SubmitEnv(LocalHost()))
    for word in ("status", "cancel"):
        effect = "to see its state" if word == "status" else "to cancel it"
        echo(f"{effect}: {shlex.join(['caffe-recipes', word, loaded.name, *root_words(root)])}")
