"""What is to be submitted: computed from recipe, profile and the user's words, before Slurm is asked."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from caffe_recipes.chain.setting import find_profile
from caffe_recipes.chain.submitted import note_submitted
from caffe_recipes.chain.submitting.given import check_mail, check_spares
from caffe_recipes.chain.submitting.limits import choose_partition
from caffe_recipes.chain.submitting.sbatch_options import check_options, take_option
from caffe_recipes.chain.submitting.submissions import name_job
from caffe_recipes.cluster.profiles import Batch, Profile
from caffe_recipes.cluster.slurm.submission import Request
from caffe_recipes.errors import ClusterError, InputError
from caffe_recipes.generate.files import generate
from caffe_recipes.generate.jobs import STOP_GRACE_S, find_warning_s
from caffe_recipes.generate.tree import find_differences
from caffe_recipes.recipe.duration import estimate_duration
from caffe_recipes.recipe.model import Recipe
from caffe_recipes.recipe.translate import original_name

PROGRAM = "caffe-recipes"


@dataclass(frozen=True)
class SubmitOptions:
    """What the user says of a submit; `given` is the recipe as it was named, `out` where its jobs/ is.

    `sbatch_options` are handed on to sbatch, a word each, `arguments` to `caffe-recipes run`, `environment`
    to the job.
    """

    given: str
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


@dataclass(frozen=True)
class Step:
    """One job: the whole chain, or a phase. `time_s` is its --time, None for the partition's own."""

    phase: str | None
    script: Path
    text: str
    time_s: float | None


@dataclass(frozen=True)
class Planned:
    """The jobs of a submit, in order, and what Slurm is told of each of them."""

    recipe: Recipe
    options: SubmitOptions
    batch: Batch
    profile: Profile
    nodes: int
    steps: tuple[Step, ...]

    @property
    def clusters(self) -> tuple[str, ...]:
        """The clusters of which sbatch is to choose one; none for the own."""
        named, _ = take_option(self.batch.options, "clusters")
        return tuple(named.split(",")) if named else ()

    @property
    def longest_s(self) -> float | None:
        """The longest time that a job asks for; None if none is known."""
        return max((step.time_s for step in self.steps if step.time_s is not None), default=None)


def plan_submission(recipe: Recipe, options: SubmitOptions, done: Sequence[str] = ()) -> Planned:
    """Return the jobs to submit, but for the phases that are `done`.

    Raises InputError for a script that is not what the recipe generates and for what no job could use,
    ClusterError for what the profile says that the machine demands, or does not give.
    """
    check_mail(options.mail_user)
    check_spares(options.arguments, options.spares)
    profile = find_profile(recipe, options.profile)
    batch = _choose_batch(profile, options)
    nodes = recipe.cluster.nodes + options.spares
    steps = _find_steps(recipe, options, done)
    times = [step.time_s for step in steps if step.time_s is not None]
    batch = choose_partition(profile, batch, nodes, max(times, default=None))
    return Planned(recipe, options, batch, profile, nodes, steps)


def build_request(
    planned: Planned, step: Step, group: str, dependency: int | None, exclude: Sequence[str] = ()
) -> Request:
    """Return what sbatch is asked for one job."""
    options, batch = planned.options, planned.batch
    name = name_job(planned.recipe.name, group, step.phase)
    output = find_output(options, name).replace("%", "%%")
    more, environment = _warn_in_time(planned, step)
    if options.spares:
        more = (*more, "--no-kill")  # else Slurm ends or requeues it with the first node that dies
    return Request(
        script=str(step.script),
        name=name,
        partition=batch.partition,
        account=batch.account,
        qos=batch.qos,
        constraint=batch.constraint,
        time_s=step.time_s,
        nodes=planned.nodes if options.spares else None,
        exclude=tuple(exclude),
        dependency=dependency,
        mail_user=options.mail_user,
        options=(f"--output={output}", *more, *batch.options),
        environment={**_environment(options), **note_submitted(planned.recipe, name), **environment},
        arguments=_arguments(options),
    )


def find_output(options: SubmitOptions, name: str) -> str:
    """Return the file that Slurm writes what the script of a job of that name says into."""
    return str(options.root.resolve() / "runs" / f"{name}.out")


def find_program() -> str | None:
    """Return where this program is, for jobs whose PATH may lack it."""
    beside = Path(sys.executable).with_name(PROGRAM)
    return str(beside) if beside.exists() else shutil.which(PROGRAM)


def is_file(given: str) -> bool:
    """Tell whether a word names a YAML file, and nothing that ships."""
    return given.endswith((".yaml", ".yml"))


def _choose_batch(profile: Profile, options: SubmitOptions) -> Batch:
    batch = profile.slurm
    batch = batch.model_copy(update={"options": (*batch.options, *options.sbatch_options)})
    check_options(options.sbatch_options)
    for name in ("partition", "account", "qos", "constraint"):
        value, rest = take_option(batch.options, name)
        given = getattr(options, name) or value or getattr(batch, name)
        batch = batch.model_copy(update={name: given, "options": rest})
    for name in batch.requires:
        if getattr(batch, name) is None:
            hint = f"give --{name}, or write slurm.{name} in the profile"
            raise ClusterError(profile.name, f"demands of each job its {name}", hint)
    return batch


def _find_steps(recipe: Recipe, options: SubmitOptions, done: Sequence[str]) -> tuple[Step, ...]:
    """Read the scripts, which must be what the recipe generates: what is reviewed is what runs."""
    folder = f"jobs/{recipe.name}/"
    files = {path: text for path, text in generate(recipe).items() if path.endswith(".sbatch")}
    chain = f"{folder}chain.sbatch"
    of_phases = sorted(path for path in files if path != chain)
    phases: Sequence[str | None] = [phase.name for phase in recipe.phases] if options.split else [None]
    paths = of_phases if options.split else [chain]
    wanted = [(phase, path) for phase, path in zip(phases, paths, strict=True) if phase not in done]
    for difference in find_differences({path: files[path] for _, path in wanted}, options.out):
        if difference.what != "stale":
            where = options.out / difference.path
            what = {"missing": "no such file"}.get(difference.what, "is not what the recipe generates")
            dialect = "" if original_name(recipe) == recipe.name else f" --dialect {recipe.dialect}"
            raise InputError(where, what, f"run: caffe-recipes generate {options.given}{dialect}")
    return tuple(
        Step(phase, options.out / path, files[path], _find_time(recipe, options, phase))
        for phase, path in wanted
    )


def _find_time(recipe: Recipe, options: SubmitOptions, phase: str | None) -> float | None:
    """Return what the user says, else what the recipe's source reports, with its margin."""
    if options.time_s is not None:
        return options.time_s
    duration = estimate_duration(recipe, phase)
    return float(duration.limit_s) if duration else None


def _warn_in_time(planned: Planned, step: Step) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return what has Slurm warn as long before the end as suits a time that the script does not know of."""
    if planned.options.time_s is None:
        return (), {}
    warning_s = find_warning_s(step.time_s)
    grace_s = warning_s // 2
    environment = {"STOP_GRACE_S": str(grace_s)} if grace_s < STOP_GRACE_S else {}
    return (f"--signal=B:USR1@{warning_s}",), environment


def _environment(options: SubmitOptions) -> dict[str, str]:
    environment = {"CAFFE_ROOT": str(options.root.resolve())}
    if program := find_program():
        environment["CAFFE_RECIPES"] = program
    if is_file(options.given):
        environment["RECIPE_FILE"] = str(Path(options.given).resolve())
    return environment | dict(options.environment)


def _arguments(options: SubmitOptions) -> tuple[str, ...]:
    profile = options.profile
    if profile is not None and is_file(profile):
        profile = str(Path(profile).resolve())  # the job is in the Caffe root
    return (*(("--profile", profile) if profile else ()), *options.arguments)
