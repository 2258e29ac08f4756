"""What is to be submitted: computed from recipe, profile and the user's words, before Slurm is asked.

Options of sbatch's that a profile, or the user, gives word by word.

What a user gives a submit that no job could use: reported before anything is submitted.

What the machine gives no job: by its profile, which needs no Slurm, and by what Slurm itself says.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from caffe_recipes.cluster.hostfile import parse_nodelist
from caffe_recipes.cluster.profiles import Profile, SbatchDefaults, check_partition, find_partitions
from caffe_recipes.cluster.slurm_jobs import NodeGroup, describe_limit
from caffe_recipes.cluster.slurm_queries import Partition, check_limits, check_nodes_now, default_partition
from caffe_recipes.cluster.slurm_submit import Request
from caffe_recipes.errors import InputError
from caffe_recipes.recipe.model import AnyRecipe
from caffe_recipes.recipe.source import load_any_recipe
from caffe_recipes.recipe.translate import original_name
from caffe_recipes.render.scripts import STOP_GRACE_S, find_warning_s, limit_s
from caffe_recipes.render.tree import find_differences, generate
from caffe_recipes.run.context import find_profile, submitted_environment
from caffe_recipes.run.plan import plan_steps
from caffe_recipes.run.submit.submissions import name_job

# sbatch's letters for its options.
_LETTERS = {"partition": "p", "account": "A", "qos": "q", "constraint": "C", "clusters": "M", "exclude": "x"}
# What a job is known by, waits for, is warned by and is measured by: with sbatch's letters, and what to do.
_OURS = (
    ("job-name", "J", "its jobs are known by names of its own"),
    ("dependency", "d", "give --after"),
    ("time", "t", "give --time"),
    ("nodes", "N", "give --spares, or change the recipe"),
    ("output", "o", "it is in runs/ under the Caffe root"),
    *(
        (name, letter, "submit the script with sbatch to do that")
        for name, letter in (
            ("array", "a"),
            ("wrap", ""),
            ("wait", "W"),
            ("test-only", ""),
            ("export", ""),
            ("signal", ""),
        )
    ),
)


def check_options(words: Sequence[str]) -> None:
    """Raise InputError for what sbatch would take for the script, and for what a submit itself says."""
    for word in words:
        if not re.fullmatch(r"-[A-Za-z].*|--[a-z].*", word):
            what = f"{word[:80]!r} is not an option of sbatch"
            raise InputError("--sbatch-option", what, "write --name=value")
        name = word.partition("=")[0]
        for own, letter, instead in _OURS:
            # sbatch takes the beginning of a name for the whole.
            if own.startswith(name[2:]) if word.startswith("--") else word[1] == letter:
                raise InputError("--sbatch-option", f"a submit says --{own} itself", instead)


def take_option(words: Sequence[str], name: str) -> tuple[str | None, tuple[str, ...]]:
    """Return what options of sbatch's say of one of them, the last word, and the others.

    >>> take_option(["-p", "long", "--exclusive", "--partition=debug"], "partition")
    ('debug', ('--exclusive',))
    """
    found, rest, left = None, [], iter(words)
    for word in left:
        if word in (f"--{name}", f"-{_LETTERS[name]}"):
            found = next(left, "")  # no word behind it: sbatch would take what comes next
        elif word.startswith(f"--{name}="):
            found = word.partition("=")[2]
        elif word.startswith(f"-{_LETTERS[name]}"):
            found = word[2:]
        else:
            rest.append(word)
    return found, tuple(rest)


def check_mail(address: str | None) -> None:
    """Raise InputError for what can be nobody's address: sbatch takes anything, and no mail arrives."""
    if address is not None and not (address.isprintable() and re.fullmatch(r"[^\s-]\S*", address)):
        raise InputError("--mail", f"{address[:80]!r} is not an address", "write one as you@example.org")


def check_spares(arguments: Sequence[str], spares: int) -> None:
    """Raise InputError where dead nodes are to be replaced, and there is nothing to replace them by."""
    if not spares and ("--on-failure", "replace") in pairwise(arguments):
        raise InputError("--on-failure", "replace needs spares, and there are none", "give --spares N")


def check_source(environment: Mapping[str, str]) -> None:
    """Raise InputError for an LMDB to stage that is not there; this machine sees what the nodes share."""
    source = environment.get("LMDB_SOURCE")
    if source is not None and not Path(source, "data.mdb").is_file():
        what = "no data.mdb is there" if Path(source).is_dir() else "no such folder"
        raise InputError(source, what, "give the LMDB's folder with --lmdb-source")


@dataclass(frozen=True)
class Asked:
    """What a submit asks of its partition; `time_s` is its longest job's, None where that is not known."""

    nodes: int
    time_s: float | None
    batch: SbatchDefaults


def choose_partition(
    profile: Profile, batch: SbatchDefaults, nodes: int, time_s: float | None
) -> SbatchDefaults:
    """Return the batch with its partition: the one that is given, or the only one that takes the job.

    Raises InputError where the profile knows of none that does.
    """
    hours = None if time_s is None else time_s / 3600
    if not profile.partitions:
        return batch
    if batch.partition is not None:
        for name in batch.partition.split(","):
            for line in check_partition(profile, name, nodes=nodes, hours=hours):
                helps = not [*check_partition(profile, name, nodes=nodes, hours=None)]
                hint = f"take another --partition{', or a shorter --time' if helps else ''}"
                raise InputError(profile.name, line, hint)
        return batch
    fitting = find_partitions(profile, nodes, hours)
    if not fitting:
        lines = [
            line
            for name in profile.partitions
            for line in check_partition(profile, name, nodes=nodes, hours=hours)
        ]
        # A shorter time gets a job no more nodes.
        shorter = ", or a shorter --time" if find_partitions(profile, nodes, None) else ""
        raise InputError(profile.name, "; ".join(lines), f"take another machine{shorter}")
    return batch.model_copy(update={"partition": fitting[0]}) if len(fitting) == 1 else batch


@dataclass(frozen=True)
class Verdict:
    """What to report of a job that Slurm takes; `must_wait` if too few nodes work for it now.

    `partitions` are those that take it.
    """

    notes: tuple[str, ...]
    must_wait: bool
    partitions: tuple[str, ...]


def check_slurm(asked: Asked, partitions: Sequence[Partition], groups: Sequence[NodeGroup]) -> Verdict:
    """Return what to report of a job that Slurm takes; raises InputError for one that it does not."""
    chosen = _find(asked.batch.partition, partitions)
    complaints = [_complain(asked, each) for each in chosen]
    if all(complaints):  # of several, Slurm takes the one that begins first
        complaint = "; ".join(line for lines in complaints for line in lines)
        raise InputError("", complaint, "nothing was submitted")
    fitting = [each for each, lines in zip(chosen, complaints, strict=True) if not lines]
    waits = [line for each in fitting for line in check_nodes_now(each, groups, asked.nodes)]
    notes = (*waits, *_describe_time(asked, fitting[0]))
    return Verdict(notes, len(waits) == len(fitting), tuple(each.name for each in fitting))


def _describe_time(asked: Asked, partition: Partition) -> Iterator[str]:
    if asked.time_s is None:
        time = describe_limit(partition.max_s if partition.default_s is None else partition.default_s)
        what = f"it gets the time of {partition.name}, {time}"
        yield f"nobody knows how long it takes: {what}; --time gives another"


def _find(given: str | None, partitions: Sequence[Partition]) -> list[Partition]:
    known = {each.name: each for each in partitions}
    there = ", ".join(known) or "none"
    if given is None:
        default = default_partition(partitions)
        if default is None:
            raise InputError("", "Slurm has no default partition", f"give --partition; there are: {there}")
        return [default]
    for name in given.split(","):
        if name not in known:
            raise InputError("", f"Slurm has no partition {name[:80]!r}", f"there are: {there}")
    return [known[name] for name in given.split(",")]


def _complain(asked: Asked, partition: Partition) -> tuple[str, ...]:
    # One that names no time gets the default, which is reported and no fault.
    time_s = partition.default_s if asked.time_s is None else asked.time_s
    return check_limits(
        partition, nodes=asked.nodes, time_s=time_s, account=asked.batch.account, qos=asked.batch.qos
    )


PROGRAM = "caffe-recipes"


@dataclass(frozen=True)
class SubmitOptions:
    """What the user says of a submit; `given` is the recipe as it was named, `out` where its jobs/ is.

    `sbatch_options` are handed on to sbatch, a word each, `arguments` to `caffe-recipes run`, `environment`
    to the job.
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


@dataclass(frozen=True)
class JobStep:
    """One job: the whole chain, or a phase. `time_s` is its --time, None for the partition's own."""

    phase: str | None
    script: Path
    text: str
    time_s: float | None

    @property
    def arguments(self) -> tuple[str, ...]:
        """The script's own words: the phase that it is to train."""
        return () if self.phase is None else (self.phase,)


@dataclass(frozen=True)
class PlannedJobs:
    """The jobs of a submit, in order, and what sbatch gets of each of them.

    `unwanted` are the nodes that the user, or the profile, excludes.
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
        """The clusters of which sbatch is to choose one; none for the own."""
        named, _ = take_option(self.batch.options, "clusters")
        return tuple(named.split(",")) if named else ()

    @property
    def longest_s(self) -> float | None:
        """The longest time that a job asks for; None if none is known."""
        return max((step.time_s for step in self.steps if step.time_s is not None), default=None)


def plan_submission(recipe: AnyRecipe, options: SubmitOptions, done: Sequence[str] = ()) -> PlannedJobs:
    """Return the jobs to submit, but for the phases that are `done`.

    Raises InputError for a script that is not what the recipe generates, for what no job could use, and for
    what the profile says that the machine demands, or does not give.
    """
    check_mail(options.mail_user)
    check_spares(options.arguments, options.spares)
    profile = find_profile(recipe, options.profile)
    batch, unwanted = _take_excluded(_choose_batch(profile, options))
    nodes = recipe.cluster.nodes + options.spares
    steps = _find_steps(recipe, options, done)
    times = [step.time_s for step in steps if step.time_s is not None]
    batch = choose_partition(profile, batch, nodes, max(times, default=None))
    return PlannedJobs(recipe, options, batch, profile, nodes, steps, unwanted)


def build_request(
    planned: PlannedJobs, step: JobStep, group: str, dependency: int | None, exclude: Sequence[str] = ()
) -> Request:
    """Return what sbatch is asked for one job."""
    options, batch = planned.options, planned.batch
    name = name_job(planned.recipe.name, group, step.phase)
    output = find_output(options, name).replace("%", "%%")
    more, environment = _warn_in_time(planned, step)
    if options.spares:
        more = (*more, "--no-kill")  # else Slurm ends or requeues it with the first node that dies
    if planned.unwanted:
        # sbatch takes the last alone; the long form stays what `nodes_excluded` reads: the nodes that failed.
        more = (*more, f"-x{','.join(dict.fromkeys((*exclude, *planned.unwanted)))}")
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
        environment={**_environment(options), **submitted_environment(planned.recipe, name), **environment},
        arguments=(*step.arguments, *_arguments(options)),
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


def _choose_batch(profile: Profile, options: SubmitOptions) -> SbatchDefaults:
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
            raise InputError(profile.name, f"demands of each job its {name}", hint)
    return batch


def _take_excluded(batch: SbatchDefaults) -> tuple[SbatchDefaults, tuple[str, ...]]:
    """Return the batch without what excludes nodes, and these nodes."""
    given, rest = take_option(batch.options, "exclude")
    if given is None:
        return batch, ()
    if "/" in given:
        raise InputError("--exclude", f"{given[:80]!r} is a file", "write the names of its nodes")
    return batch.model_copy(update={"options": rest}), parse_nodelist(given, "--exclude")


def _find_steps(recipe: AnyRecipe, options: SubmitOptions, done: Sequence[str]) -> tuple[JobStep, ...]:
    """Read the scripts, which must be what the recipe generates: what is reviewed is what runs."""
    # Another trainer than the recipe's own is an argument of the recipe's own script.
    scripted = load_any_recipe(options.given) if "--trainer" in options.arguments else recipe
    path = f"jobs/{scripted.name}/{'phase' if options.split else 'chain'}.sbatch"
    files = generate(scripted)  # all of it: a net that Caffe would refuse is reported before the queue
    if path not in files or (options.split and scripted is not recipe):
        raise InputError("--split", f"{recipe.name} is one step", "leave it out")
    text = files[path]
    phases: Sequence[str | None] = [step.phase for step in plan_steps(recipe)] if options.split else [None]
    for difference in find_differences({path: text}, options.out):
        if difference.what != "stale":
            where = options.out / difference.path
            what = {"missing": "no such file"}.get(difference.what, "is not what the recipe generates")
            dialect = "" if original_name(recipe) == recipe.name else f" --dialect {recipe.dialect}"
            raise InputError(where, what, f"run: caffe-recipes generate {options.given}{dialect}")
    return tuple(
        JobStep(phase, options.out / path, text, _find_time(recipe, options, phase))
        for phase in phases
        if phase not in done
    )


def _find_time(recipe: AnyRecipe, options: SubmitOptions, phase: str | None) -> float | None:
    """Return what the user says, else what the recipe's source reports, with its margin."""
    return options.time_s if options.time_s is not None else limit_s(recipe, phase)


def _warn_in_time(planned: PlannedJobs, step: JobStep) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return what has Slurm warn as long before the end as suits a time that the script does not know of."""
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
    if is_file(options.given):
        environment["RECIPE_FILE"] = str(Path(options.given).resolve())
    return environment | dict(options.environment)


def _arguments(options: SubmitOptions) -> tuple[str, ...]:
    profile = options.profile
    if profile is not None and is_file(profile):
        profile = str(Path(profile).resolve())  # the job is in the Caffe root
    return (*(("--profile", profile) if profile else ()), *options.arguments)
