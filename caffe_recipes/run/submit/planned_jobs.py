"""Planning a submit: its jobs and their sbatch options, from the recipe, the profile and the user's options.

Everything that no job could use, or that the machine does not allow, is reported before anything is
submitted. The limits of the machine come from its profile, which needs no Slurm, and from Slurm.
"""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from caffe_recipes.cluster.hostfile import parse_nodelist
from caffe_recipes.cluster.profiles import Profile, SbatchDefaults, check_partition, find_partitions
from caffe_recipes.cluster.slurm.sbatch_options import JobRequest, check_mail, check_options, pop_option
from caffe_recipes.cluster.slurm.times import describe_limit, render_limit
from caffe_recipes.cluster.staging import WAYS, Way
from caffe_recipes.cluster.staging.relay import DATA
from caffe_recipes.config import write_key
from caffe_recipes.errors import InputError, RecipeError
from caffe_recipes.limits import STOP_GRACE_S
from caffe_recipes.recipe.estimate import describe_limits, duration_at
from caffe_recipes.recipe.model import AnyRecipe
from caffe_recipes.recipe.pace import shape_of
from caffe_recipes.recipe.shipped import RECIPE_SUFFIXES
from caffe_recipes.recipe.source import load_any_recipe, locate_keys, require_caffe_recipe
from caffe_recipes.recipe.translate import original_name
from caffe_recipes.render.recipe_files import generate
from caffe_recipes.render.scripts import TRAINING_JOB, find_warning_s, limit_s
from caffe_recipes.render.tree import find_differences
from caffe_recipes.review.inspect.sweep import SpeedInputs, estimate_shapes
from caffe_recipes.run.context import find_profile, search_path, submitted_environment
from caffe_recipes.run.staging import find_rates
from caffe_recipes.run.submit.submissions import name_job
from caffe_recipes.run.training_plan import find_trainer, plan_steps


def check_spares_known(arguments: Sequence[str], spares: int) -> None:
    """Raise InputError if failed nodes are to be replaced and there are no spares."""
    if not spares and ("--on-failure", "replace") in pairwise(arguments):
        raise InputError("--on-failure", "replace needs spare nodes", "give --spares N")


def check_lmdb_source(environment: Mapping[str, str]) -> None:
    """Raise InputError if the LMDB to stage does not exist; its folder is shared with the nodes."""
    source = environment.get("LMDB_SOURCE")
    if source is not None and not Path(source, DATA).is_file():
        what = f"contains no {DATA}" if Path(source).is_dir() else "no such folder"
        raise InputError(source, what, "give the LMDB's folder with --lmdb-source")


def choose_partition(
    profile: Profile, batch: SbatchDefaults, nodes: int, time_s: float | None
) -> SbatchDefaults:
    """Return the sbatch defaults with a partition: the given one, or the only one that allows the job.

    Raises InputError if none of the profile's partitions allows the job.
    """
    hours = None if time_s is None else time_s / 3600
    if not profile.partitions:
        return batch
    if batch.partition is not None:
        for name in batch.partition.split(","):
            for line in check_partition(profile, name, nodes=nodes, hours=hours):
                others = "another --partition" if len(profile.partitions) > 1 else "another machine"
                raise InputError(profile.name, line, _advise(profile, [name], nodes, others))
        return batch
    fitting = find_partitions(profile, nodes, hours)
    if not fitting:
        lines = [
            line
            for name in profile.partitions
            for line in check_partition(profile, name, nodes=nodes, hours=hours)
        ]
        hint = _advise(profile, [*profile.partitions], nodes, "another machine")
        raise InputError(profile.name, "; ".join(lines), hint)
    return batch.model_copy(update={"partition": fitting[0]}) if len(fitting) == 1 else batch


def _advise(profile: Profile, names: Sequence[str], nodes: int, others: str) -> str:
    """Return the hint for a job that none of the partitions allows: a shorter time, or fewer nodes."""
    allowed = [profile.partitions[name].nodes for name in names]
    most = None if None in allowed else max(limit for limit in allowed if limit is not None)
    if most is None or nodes <= most:
        return f"use {others}, or a shorter --time"
    return f"use {others}, or rescale --nodes {most}"


PROGRAM = "caffe-recipes"


@dataclass(frozen=True)
class SubmitOptions:
    """Options of `submit`; `given` is the recipe as the user named it, `out` the folder that has `jobs/`.

    `sbatch_options` are passed to sbatch, one word each, `arguments` to `caffe-recipes run`, and
    `environment` to the job.
    """

    given: str = ""
    root: Path = Path()
    out: Path = Path()
    profile: str | None = None
    split: bool = False
    after: int | None = None
    mail_user: str | None = None
    time_s: float | None = None
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    spares: int = 0
    include_failed: bool = False
    sbatch_options: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def how(self) -> Way | None:
        """The method of staging among the `arguments`; None if `run` chooses it in the job."""
        given = dict(pairwise(self.arguments)).get("--how")
        return next((way for way in WAYS if way == given), None)


@dataclass(frozen=True)
class JobStep:
    """A job for the whole chain or a phase; `time_s` is its --time, None for the default of the partition."""

    phase: str | None
    script: Path
    text: str
    time_s: float | None

    @property
    def arguments(self) -> tuple[str, ...]:
        """The arguments of the script: the phase to train."""
        return () if self.phase is None else (self.phase,)


@dataclass(frozen=True)
class PlannedJobs:
    """The jobs of a submit, in order, with their sbatch options.

    `unwanted` are the nodes that the user or the profile excludes.
    """

    recipe: AnyRecipe
    options: SubmitOptions
    batch: SbatchDefaults
    profile: Profile
    nodes: int
    steps: tuple[JobStep, ...]
    unwanted: tuple[str, ...] = ()

    @property
    def clusters(self) -> tuple[str, ...]:
        """The clusters that sbatch chooses from; empty for the submitter's own."""
        value, _ = pop_option(self.batch.options, "clusters")
        return tuple(value.split(",")) if value else ()

    @property
    def longest_s(self) -> float | None:
        """The longest time limit of the jobs in seconds; None if none is known."""
        return max((step.time_s for step in self.steps if step.time_s is not None), default=None)


def plan_submission(
    recipe: AnyRecipe, options: SubmitOptions, done: Sequence[str] = (), *, is_dry: bool = False
) -> PlannedJobs:
    """Return the jobs to submit, without the phases that are `done`; a dry run needs no scripts on disk.

    Raises RecipeError for a flag that the programs do not know, which would fail only on every rank of the
    job, and InputError if a script differs from what the recipe generates, if an option cannot be used by any
    job, or if the jobs do not meet the requirements or limits of the machine in its profile.
    """
    check_mail(options.mail_user)
    check_spares_known(options.arguments, options.spares)
    for location, what, hint in find_trainer(recipe).unknown_flags():
        raise RecipeError(locate_keys(options.given)(location), f"{write_key(location)}: {what}", hint)
    profile = find_profile(recipe, options.profile)
    batch, unwanted = _pop_excluded(_choose_batch(profile, options))
    nodes = recipe.cluster.nodes + options.spares
    steps = _find_steps(recipe, options, done, is_dry=is_dry)
    times = [step.time_s for step in steps if step.time_s is not None]
    batch = choose_partition(profile, batch, nodes, max(times, default=None))
    return PlannedJobs(recipe, options, batch, profile, nodes, steps, unwanted)


def build_request(
    planned: PlannedJobs, step: JobStep, group: str, dependency: int | None, exclude: Sequence[str] = ()
) -> JobRequest:
    """Return the sbatch request for a job."""
    options, batch = planned.options, planned.batch
    name = name_job(planned.recipe.name, group, step.phase)
    output = find_output(options, name).replace("%", "%%")
    more, environment = _warn_in_time(planned, step)
    if options.spares:
        more = (*more, "--no-kill")  # otherwise Slurm kills or requeues the job as soon as a node fails
    return JobRequest(
        script=str(step.script),
        name=name,
        partition=batch.partition,
        account=batch.account,
        qos=batch.qos,
        constraint=batch.constraint,
        time_s=step.time_s,
        nodes=planned.nodes if options.spares else None,
        exclude=tuple(dict.fromkeys((*exclude, *planned.unwanted))),  # sbatch uses only its last --exclude
        dependency=dependency,
        mail_user=options.mail_user,
        options=(f"--output={output}", *more, *batch.options),
        environment={**_environment(options), **submitted_environment(planned.recipe, name), **environment},
        arguments=(*step.arguments, *_arguments(options)),
    )


def find_output(options: SubmitOptions, name: str) -> str:
    """Return the path of the output file of the job with a name."""
    return str(options.root.resolve() / "runs" / f"{name}.out")


def describe_generate(recipe: AnyRecipe, options: SubmitOptions, out: Path, *more: str) -> str:
    """Return the command that generates a recipe's files into a folder."""
    where = [] if out.resolve() == Path.cwd() else ["--out", str(out)]
    dialect = [] if original_name(recipe) == recipe.name else ["--dialect", recipe.dialect]
    return shlex.join([PROGRAM, "generate", options.given, *where, *dialect, *more])


def find_program() -> str | None:
    """Return the path of caffe-recipes for jobs, whose PATH may lack it; None if it is not found."""
    return shutil.which(PROGRAM, path=search_path(ours_first=True))


def _choose_batch(profile: Profile, options: SubmitOptions) -> SbatchDefaults:
    batch = profile.slurm
    batch = batch.model_copy(update={"options": (*batch.options, *options.sbatch_options)})
    check_options(options.sbatch_options)
    for name in ("partition", "account", "qos", "constraint"):
        value, rest = pop_option(batch.options, name)
        given = getattr(options, name) or value or getattr(batch, name)
        batch = batch.model_copy(update={name: given, "options": rest})
    for name in batch.requires:
        if getattr(batch, name) is None:
            hint = f"give --{name}, or write slurm.{name} in the profile"
            raise InputError(profile.name, f"jobs need --{name} on this machine", hint)
    return batch


def _pop_excluded(batch: SbatchDefaults) -> tuple[SbatchDefaults, tuple[str, ...]]:
    """Return the sbatch defaults without `--exclude`, and the nodes that it excludes."""
    given, rest = pop_option(batch.options, "exclude")
    if given is None:
        return batch, ()
    if "/" in given:
        raise InputError("--exclude", f"{given[:80]!r} is a file", "give the names of the nodes instead")
    return batch.model_copy(update={"options": rest}), parse_nodelist(given, "--exclude")


def _find_steps(
    recipe: AnyRecipe, options: SubmitOptions, done: Sequence[str], *, is_dry: bool
) -> tuple[JobStep, ...]:
    """Return the jobs with their scripts; raises InputError if these differ from the generated ones."""
    # The TensorFlow run of a recipe for Caffe has a script of its own.
    scripted = load_any_recipe(options.given) if "--trainer" in options.arguments else recipe
    is_other, own = scripted.name != recipe.name, "phase.sbatch" if options.split else "chain.sbatch"
    path = f"jobs/{scripted.name}/{TRAINING_JOB if is_other else own}"
    files = generate(scripted)  # everything, to report a net that Caffe would refuse before the job is queued
    if path not in files or (options.split and is_other):
        raise InputError("--split", f"{recipe.name} has only one step", "leave it out")
    text = files[path]
    phases: Sequence[str | None] = [step.phase for step in plan_steps(recipe)] if options.split else [None]
    for difference in find_differences({path: text}, options.out):
        if difference.what != "stale" and not (is_dry and difference.what == "missing"):
            where = options.out / difference.path
            what = {"missing": "no such file"}.get(difference.what, "differs from what the recipe generates")
            raise InputError(where, what, f"run: {describe_generate(recipe, options, options.out)}")
    return tuple(
        JobStep(phase, options.out / path, text, _find_time(recipe, options, phase))
        for phase in phases
        if phase not in done
    )


def _find_time(recipe: AnyRecipe, options: SubmitOptions, phase: str | None) -> float | None:
    """Return the time limit that the user gave, else the recipe's estimate with a margin, if there is one."""
    return options.time_s if options.time_s is not None else limit_s(recipe, phase, options.how)


def describe_assumed(planned: PlannedJobs) -> str:
    """Return what the time limits of jobs assume that were submitted without --time."""
    return describe_limits(planned.recipe, [step.phase for step in planned.steps], planned.options.how)


def describe_extrapolated(planned: PlannedJobs) -> str:
    """Return the time that `estimate` gives for jobs whose speed the recipe does not report, and a --time.

    Empty if `estimate` has none either. The --time has the margin of a reported speed.
    """
    options = planned.options
    inputs = SpeedInputs(
        profile=planned.profile if options.profile else None, rates=find_rates(planned.profile)
    )
    try:
        recipe = require_caffe_recipe(planned.recipe, planned.recipe.name)
        (found,) = estimate_shapes(recipe, [shape_of(recipe)], inputs)
    except InputError:  # its speed is unknown, or TensorFlow trains it
        return ""
    speed = found.pace.images_per_s
    durations = [duration_at(recipe, speed, step.phase, how=options.how) for step in planned.steps]
    limit = render_limit(max(duration.limit_s for duration in durations))
    phases = " for all phases" if options.split else ""
    return f"`estimate` gives {describe_limit(found.total_s)}{phases}: give e.g. --time {limit}"


def _warn_in_time(planned: PlannedJobs, step: JobStep) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return the sbatch options and variables that adapt the warning before the end to the job's time limit.

    The script itself has those for the time limit of the recipe, so without another time both are empty.
    """
    if planned.options.time_s is None and step.phase is None:
        return (), {}
    warning_s = find_warning_s(step.time_s)
    grace_s = warning_s // 2
    is_short = grace_s < STOP_GRACE_S and "STOP_GRACE_S" not in os.environ
    environment = {"STOP_GRACE_S": str(grace_s)} if is_short else {}
    return (f"--signal=B:USR1@{warning_s}",), environment


def _environment(options: SubmitOptions) -> dict[str, str]:
    environment = {"CAFFE_ROOT": str(options.root.resolve())}
    if program := find_program():
        environment["CAFFE_RECIPES"] = program
    if options.given.endswith(RECIPE_SUFFIXES):
        environment["RECIPE_FILE"] = str(Path(options.given).resolve())
    return environment | dict(options.environment)


def _arguments(options: SubmitOptions) -> tuple[str, ...]:
    profile = options.profile
    if profile is not None and profile.endswith(RECIPE_SUFFIXES):
        profile = str(Path(profile).resolve())  # the job is in the Caffe root
    return (*(("--profile", profile) if profile else ()), *options.arguments)
