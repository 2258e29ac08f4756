"""Submitting a chain once and only once: each job's name is on disk before sbatch is called.

Where a submit ended in between, or lost Slurm, the next one looks for the name before anything else.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace

from caffe_recipes.chain.status import Standing, StatusOptions, find_standing
from caffe_recipes.chain.submitting.bad_nodes import nodes_excluded
from caffe_recipes.chain.submitting.earlier import check_after
from caffe_recipes.chain.submitting.given import check_source
from caffe_recipes.chain.submitting.planned import (
    Planned,
    Step,
    SubmitOptions,
    build_request,
    find_output,
    plan_submission,
)
from caffe_recipes.chain.submitting.seen import SeenJob, describe_job, name_seen, slurm_of
from caffe_recipes.chain.submitting.slurm_check import check_with_slurm
from caffe_recipes.chain.submitting.startable import check_startable, check_unchanged
from caffe_recipes.chain.submitting.submissions import (
    Submission,
    SubmissionJournal,
    choose_group,
    load_submissions,
    submissions_path,
)
from caffe_recipes.cluster.hosts import Host
from caffe_recipes.cluster.slurm.queries import SchedulerAway, has_slurm
from caffe_recipes.cluster.slurm.submission import (
    Refused,
    Submitted,
    cancel_jobs,
    find_submission,
    sbatch_argv,
    submit,
)
from caffe_recipes.errors import ClusterError, InputError, RunFailed
from caffe_recipes.recipe.model import Recipe

Say = Callable[[str], None]
# After sbatch gave no answer: a controller that comes back has taken the job by then, or has not.
_LOOKS_S = (1.0, 2.0, 4.0, 8.0, 15.0)
_LOOK_FIRST = "the same command again looks first what was submitted"


@dataclass(frozen=True)
class Means:
    """How time passes, and which Slurm is asked."""

    host: Host
    pause: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.time


@dataclass(frozen=True)
class _Place:
    """Where a job goes: to a submit's others, `behind` one of them or none, on its cluster."""

    group: str
    behind: int | None
    exclude: tuple[str, ...]
    cluster: str = ""


def describe_submission(recipe: Recipe, options: SubmitOptions) -> str:
    """Return the commands that would be called, one a line, and the scripts; no Slurm is asked.

    Raises InputError as `submit_chain` does.
    """
    standing = None
    with suppress(InputError):  # no run, and nothing submitted
        standing = find_standing(recipe.name, _where(options), ask=lambda ids, names: (), reach=False)
    planned = plan_submission(recipe, options, _done(standing))
    group, lines, before = choose_group(), [], None
    for step in planned.steps:
        dependency = options.after if before is None else 0
        argv = sbatch_argv(build_request(planned, step, group, dependency))
        word = f"--dependency=afterok:{f'<job of {before}>' if before else options.after}"
        lines.append(shlex.join(word if each.startswith("--dependency=") else each for each in argv))
        before = step.phase
    texts = [f"\n# {step.script}\n{step.text.rstrip()}" for step in planned.steps]
    return "\n".join([*lines, *texts])


def submit_chain(recipe: Recipe, options: SubmitOptions, say: Say, means: Means) -> list[Submission]:
    """Submit a recipe's chain, or find that it is submitted; return its jobs.

    Raises InputError before anything is submitted, RunFailed where Slurm gives no answer.
    """
    plan_submission(recipe, options)
    if not options.root.is_dir():
        raise ClusterError(options.root, "no such folder", "give the Caffe root with --caffe-root")
    check_source(options.environment)
    if not has_slurm(means.host):
        hint = "submit on a machine of the Slurm cluster; --dry-run shows what would be submitted"
        raise ClusterError("sbatch", "not found on PATH", hint)
    path = submissions_path(options.root, recipe.name)
    before = load_submissions(path)
    standing = _look(recipe, options, means)
    check_startable(recipe, standing)
    planned = plan_submission(recipe, options, _done(standing))
    exclude: tuple[str, ...] = ()
    if not any(job.is_live for job in _jobs(standing)):
        try:
            if options.after is not None:
                check_after(means.host, options.after, planned.clusters)
            exclude = check_with_slurm(planned, standing, say, means.host)
        except SchedulerAway as error:
            raise RunFailed(error.where, error.what, f"nothing is submitted; {error.hint}") from None
    with closing(SubmissionJournal(path, means.clock)) as journal:
        if journal.state() != before:
            raise InputError(path, "another submit has just ended", "see caffe-recipes status")
        adopted = _adopt(journal, _jobs(standing), say)
        live = [job for job in _jobs(standing) if job.is_live]
        place, steps = _Place(choose_group(), options.after, exclude), planned.steps
        for job in live:
            if not job.submission.is_ours:
                raise _already(job, recipe)
        if live:
            steps = _left(planned, live, _jobs(standing))
            if not steps and adopted:
                return list(journal.state().latest)
            if not steps:
                raise _already(live[0], recipe)
            check_unchanged(recipe, standing)
            last = live[-1]
            excluded = nodes_excluded(last.submission)
            place = _Place(last.submission.group, last.job_id, excluded, last.cluster)
        return _submit_steps(journal, planned, steps, place, say, means)


def _look(recipe: Recipe, options: SubmitOptions, means: Means) -> Standing | None:
    """Return where the recipe stands; None without run and job. Raises RunFailed if Slurm is away."""
    ask = slurm_of(means.host)
    try:
        standing = find_standing(recipe.name, _where(options), ask=ask, reach=False)
    except InputError:
        if load_submissions(submissions_path(options.root, recipe.name)).all:
            raise
        return None
    for job in standing.jobs:
        why = job.away or (f"it {describe_job(job)}" if job.is_elsewhere else "")
        if why:
            what = f"whether {name_seen(job)} waits or runs is not known: {why}"
            raise RunFailed("", what, "nothing is submitted")
    return standing


def _adopt(journal: SubmissionJournal, jobs: Sequence[SeenJob], say: Say) -> bool:
    """Write the numbers of jobs whose submit ended before it could; tell whether there is one that lives."""
    adopted = False
    for seen in jobs:
        if seen.submission.is_settled or seen.job is None:
            continue
        journal.settle(seen.submission.name, seen.job.job_id, seen.cluster)
        say(f"{name_seen(seen)} was submitted before ({seen.submission.name}); it {describe_job(seen)}")
        adopted = adopted or seen.is_live
    return adopted


def _left(planned: Planned, live: Sequence[SeenJob], jobs: Sequence[SeenJob]) -> tuple[Step, ...]:
    """Return the jobs that a submit by phases was ended before: those behind the last that lives.

    One that was about to be submitted, and that Slurm does not know, was not.
    """
    phases = [step.phase for step in planned.steps]
    last = live[-1].submission
    known = [job.submission.name for job in jobs if job.job is not None or job.submission.is_settled]
    if not planned.options.split or last.phase not in phases or last.name != known[-1]:
        return ()
    return planned.steps[phases.index(last.phase) + 1 :]


def _already(seen: SeenJob, recipe: Recipe) -> InputError:
    cancel = f"caffe-recipes cancel {shlex.quote(recipe.name)}"
    return InputError(
        "", f"already submitted: {name_seen(seen)} {describe_job(seen)}", f"cancel it first ({cancel})"
    )


def _submit_steps(
    journal: SubmissionJournal,
    planned: Planned,
    steps: Sequence[Step],
    place: _Place,
    say: Say,
    means: Means,
) -> list[Submission]:
    """Submit jobs, each behind the one before; if one is refused, those before it are cancelled."""
    names: list[str] = []
    for step in steps:
        request = build_request(planned, step, place.group, place.behind, place.exclude)
        if place.cluster:  # jobs of different clusters cannot wait for each other
            request = replace(request, options=(*request.options, f"--clusters={place.cluster}"))
        clusters = place.cluster or ",".join(planned.clusters)
        submission = Submission(
            name=request.name,
            group=place.group,
            script=request.script,
            time_s=0.0,
            argv=sbatch_argv(request),
            profile=planned.options.profile,
            phase=step.phase,
            output=find_output(planned.options, request.name),
            cluster=clusters,
        )
        journal.begin(submission)
        outcome = submit(means.host, request)
        if isinstance(outcome, Refused):
            journal.refuse(request.name, outcome.text)
            undone = _cancel_all(journal, names, means)
            raise ClusterError("sbatch", outcome.text, undone or "nothing was submitted")
        if not isinstance(outcome, Submitted):
            say(f"sbatch gave no answer ({outcome.text}); looking for {request.name}")
            outcome = _look_again(submission, outcome.text, means)
        journal.settle(request.name, outcome.job_id, outcome.cluster)
        place = replace(place, behind=outcome.job_id, cluster=outcome.cluster or place.cluster)
        names.append(request.name)
        what = f"{step.phase}: " if step.phase else ""
        where = f" of {outcome.cluster}" if outcome.cluster else ""
        say(f"{what}submitted as job {outcome.job_id}{where} ({request.name})")
    state = journal.state()
    return [state.find(name) for name in names]


def _look_again(submission: Submission, text: str, means: Means) -> Submitted:
    """Return a job that may have been submitted; raises RunFailed if that cannot be known."""
    said, name = text, submission.name
    for pause_s in _LOOKS_S:
        means.pause(pause_s)
        said = f"Slurm knows no job {name}"
        for cluster in submission.cluster.split(","):
            try:
                job = find_submission(means.host, name, cluster)
            except ClusterError as error:
                said = str(error)
                continue
            if job is not None:
                return Submitted(job.job_id, cluster)
    raise RunFailed("sbatch", f"whether the job was submitted is not known: {said}", _LOOK_FIRST)


def _cancel_all(journal: SubmissionJournal, names: Sequence[str], means: Means) -> str:
    """Cancel what was submitted, the last first; say what became of it."""
    state = journal.state()
    done = [each for name in reversed(names) if (each := state.find(name)).job_id is not None]
    if not done:
        return ""
    ids, cluster = [each.job_id for each in done if each.job_id is not None], done[0].cluster
    listed = ", ".join(map(str, ids))
    try:
        cancel_jobs(means.host, ids, cluster=cluster)
    except ClusterError as error:
        return f"cancel the jobs before it yourself, scancel {listed}: {error}"
    for name in reversed(names):
        journal.cancel(name)
    return f"the jobs before it are cancelled: {listed}"


def _done(standing: Standing | None) -> tuple[str, ...]:
    """Return the phases that need no job: the finished ones, but the last, which is evaluated."""
    run = standing.run if standing is not None else None
    if run is None or run.is_complete:
        return ()
    return tuple(phase.name for phase in run.recipe.phases[:-1] if phase.name in run.state.finished)


def _jobs(standing: Standing | None) -> tuple[SeenJob, ...]:
    return standing.jobs if standing is not None else ()


def _where(options: SubmitOptions) -> StatusOptions:
    return StatusOptions(str(options.root))
